package diff

import (
	"cmp"
	"slices"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/dataplane/replay"
)

// Side is one of the two policies: its plan, and an engine to run it.
type Side struct {
	Plan *compiled.Plan
	replay.Engine
}

// Fates is a replay.Engine. It runs each packet through both policies and counts the packets with
// different fates. The fate of a packet is its color, its action, its departure, and the fields
// written by marks.
type Fates struct {
	sides   [2]Side
	all     dataplane.Count
	kinds   map[kind]dataplane.Count
	dropped [2]dataplane.Count // packets dropped by this side only
	early   shift              // departures earlier with the second policy
	late    shift
	first   []other // of the smallest numbers, in order
	copied  []byte  // of the packet, for the first side
	packets [2][1]dataplane.Packet
	verdict [2][1]dataplane.Verdict
	pending map[int64]*outcome // packets still undecided by a link, by ID
}

// mostFirst is the maximum number of packets shown.
const mostFirst = 10

// outcome is the fate of a packet on both sides.
type outcome struct {
	time    int64 // timestamp, ns
	shift   int64 // as in dataplane.Packet
	verdict [2]dataplane.Verdict
	fields  differs // fields with a difference after marking
}

// kind is a kind of difference.
type kind struct {
	class   [2]int32
	color   [2]int8 // -1 for unclassified packets
	done    [2]dataplane.Done
	differs differs
}

// shift counts the changes of departures in one direction.
type shift struct {
	dataplane.Count
	most int64 // ns
}

// other is a packet with another fate.
type other struct {
	outcome
	differs differs
}

// differs is a set of parts of a fate.
type differs uint8

const (
	inColor differs = 1 << iota
	inAction
	inDeparture
	inFields // the first of dataplane.Field
)

func (d differs) names() []string {
	out := []string{}
	for i, name := range []string{
		"color", "action", "departure",
		dataplane.DSCP.String(), dataplane.PCP.String(), dataplane.DEI.String(), dataplane.MPLSTC.String(),
		dataplane.SKBMark.String(),
	} {
		if d&(1<<i) != 0 {
			out = append(out, name)
		}
	}
	return out
}

// NewFates returns the comparison of two policies.
func NewFates(a, b Side) *Fates {
	return &Fates{sides: [2]Side{a, b}, kinds: map[kind]dataplane.Count{}, pending: map[int64]*outcome{}}
}

// Accepts asks both sides.
func (f *Fates) Accepts(link dataplane.LinkType) error {
	return cmp.Or(f.sides[0].Accepts(link), f.sides[1].Accepts(link))
}

// Batch is 1.
func (*Fates) Batch() int { return 1 }

// Process runs packets through both policies. The verdicts are those of the second one, but not
// Waiting.
func (f *Fates) Process(packets []dataplane.Packet, verdicts []dataplane.Verdict) error {
	for i := range packets {
		if err := f.packet(&packets[i]); err != nil {
			return err
		}
		verdicts[i] = f.verdict[1][0]
		verdicts[i].Done &^= dataplane.Waiting
	}
	return nil
}

func (f *Fates) packet(p *dataplane.Packet) error {
	f.copied = append(f.copied[:0], p.Data...)
	f.packets = [2][1]dataplane.Packet{{*p}, {*p}}
	f.packets[0][0].Data = f.copied
	o := outcome{time: p.Time - p.Shift, shift: p.Shift}
	for i := range f.sides {
		if err := f.sides[i].Process(f.packets[i][:], f.verdict[i][:]); err != nil {
			return err
		}
		o.verdict[i] = f.verdict[i][0]
	}
	for field := dataplane.DSCP; field <= dataplane.SKBMark; field++ {
		a, _ := f.packets[0][0].Field(field)
		if b, _ := f.packets[1][0].Field(field); a != b {
			o.fields |= inFields << field
		}
	}
	f.all = f.all.Plus(countOf(&o.verdict[0]))
	if o.waiting() {
		f.pending[p.ID] = &o
	} else {
		f.decided(&o)
	}
	for i := range f.sides {
		f.settle(i, o.verdict[i].Now)
	}
	return nil
}

func (o *outcome) waiting() bool {
	return (o.verdict[0].Done|o.verdict[1].Done)&dataplane.Waiting != 0
}

// Settle lets the links of both policies decide. It returns nothing itself.
func (f *Fates) Settle(now int64, _ *dataplane.Verdict) bool {
	for i := range f.sides {
		f.settle(i, now)
	}
	return false
}

func (f *Fates) settle(side int, now int64) {
	var v dataplane.Verdict
	for f.sides[side].Settle(now, &v) {
		o := f.pending[v.ID]
		o.verdict[side] = v
		if !o.waiting() {
			delete(f.pending, v.ID)
			f.decided(o)
		}
	}
}

// countOf returns the count of a packet. Its bytes are those metered by its policy.
func countOf(v *dataplane.Verdict) dataplane.Count {
	return dataplane.Count{Packets: int64(v.Packets), Bytes: int64(v.Length)}
}

// decided counts a packet decided by both sides.
func (f *Fates) decided(o *outcome) {
	d := o.differs()
	if d == 0 {
		return
	}
	a, b := &o.verdict[0], &o.verdict[1]
	k := kind{
		[2]int32{a.Class, b.Class}, [2]int8{colorOf(a), colorOf(b)}, [2]dataplane.Done{a.Done, b.Done}, d,
	}
	n := countOf(a)
	f.kinds[k] = f.kinds[k].Plus(n)
	for i, v := range []*dataplane.Verdict{a, b} {
		if v.Done.Dropped() && !o.verdict[1-i].Done.Dropped() {
			f.dropped[i] = f.dropped[i].Plus(n)
		}
	}
	if d&inDeparture != 0 {
		if by := o.departure(1) - o.departure(0); by < 0 {
			f.early.add(n, -by)
		} else {
			f.late.add(n, by)
		}
	}
	if len(f.first) < mostFirst || a.ID < f.first[len(f.first)-1].verdict[0].ID {
		at, _ := slices.BinarySearchFunc(f.first, a.ID,
			func(p other, id int64) int { return cmp.Compare(p.verdict[0].ID, id) })
		f.first = slices.Insert(f.first, at, other{*o, d})
		f.first = f.first[:min(len(f.first), mostFirst)]
	}
}

func (s *shift) add(n dataplane.Count, by int64) {
	s.Count = s.Plus(n)
	s.most = max(s.most, by)
}

// differs compares the fates of a packet.
func (o *outcome) differs() (d differs) {
	a, b := &o.verdict[0], &o.verdict[1]
	if colorOf(a) != colorOf(b) {
		d |= inColor
	}
	if a.Done != b.Done {
		d |= inAction
	}
	if a.Done.Dropped() || b.Done.Dropped() {
		return d
	}
	d |= o.fields
	if o.departure(0) != o.departure(1) {
		d |= inDeparture
	}
	return d
}

// departure returns the departure as in replay --decisions. The packet must not be dropped.
func (o *outcome) departure(side int) int64 {
	if v := &o.verdict[side]; v.Done&dataplane.Queued != 0 {
		return v.Departure - o.shift
	}
	return o.time // even if the clock of the meters is ahead
}

// colorOf returns the color, or -1 if the packet is unclassified.
func colorOf(v *dataplane.Verdict) int8 {
	if v.Class < 0 {
		return -1
	}
	return int8(v.Color)
}

// fate describes the fate of a packet on a side.
func (f *Fates) fate(side int, class int32, v *dataplane.Verdict) Fate {
	out := Fate{Class: say.Unclassified, Action: v.Done.String()}
	if class >= 0 {
		out.Class, out.Color = f.sides[side].Plan.Classes[class].Name, v.Color.String()
	}
	return out
}
