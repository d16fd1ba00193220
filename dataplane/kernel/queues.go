package kernel

import (
	"cmp"
	"fmt"
	"math"
	"math/big"
	"math/bits"
	"slices"
	"time"

	"github.com/cilium/ebpf"

	"github.com/a-seed-32e5a53f/shaper/bpf"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/cause"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/qdisc"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// Pacer is the root qdisc that holds queued packets until they leave.
type Pacer string

const (
	FQ  Pacer = qdisc.FQ  // a packet's departure time is in skb->tstamp
	HTB Pacer = qdisc.HTB // the class of a packet's queue is in skb->priority
)

// pacerNumber is enum pacer of bpf/src/policy.h.
var pacerNumber = map[Pacer]uint32{FQ: 1, HTB: 2}

// queueOf returns the first queue of a plan that is of a link, and the first that is
// fair, or nil.
func linkedAndFair(plan *dataplane.Plan) (linked, fair *dataplane.PlanQueue) {
	for i := len(plan.Queues) - 1; i >= 0; i-- {
		q := &plan.Queues[i]
		if q.Link >= 0 {
			linked = q
		}
		if q.Fair {
			fair = q
		}
	}
	return linked, fair
}

// choosePacer says what holds the packets of a plan's queues: what was asked
// for, or what the kernel has; "" for a plan without queues.
func choosePacer(asked Pacer, plan *dataplane.Plan) (Pacer, error) {
	linked, fair := linkedAndFair(plan)
	switch {
	case len(plan.Queues) == 0:
		return "", nil
	case asked == "" && linked == nil && qdisc.Have(string(FQ)) == nil:
		return FQ, nil
	case asked == "":
		asked = HTB
	}
	err := qdisc.Have(string(asked))
	if err == nil && fair != nil && asked == HTB {
		if err = qdisc.Have(qdisc.FQCoDel); err != nil {
			err = fmt.Errorf("queue %s is fair: %w", fair.Name, err)
		}
	}
	return asked, err
}

func (e *encoder) queue(q *dataplane.PlanQueue) {
	c := &q.Config
	out := bpf.ShaperQueue{
		Time: uint64(c.Time), Bytes: uint64(c.Bytes), Capacity: uint64(c.Capacity()), Seed: c.Seed,
		Target: uint64(c.CoDel.Target), Interval: uint64(c.CoDel.Interval),
		Axis: uint8(c.Axis()), Ecn: flag(c.ECN), Linked: flag(q.Link >= 0),
	}
	for color, w := range c.WRED {
		out.Wred[color] = bpf.ShaperEarly{Min: uint64(w.Min), Max: uint64(w.Max), Probability: uint64(w.Probability)}
	}
	if q.Link >= 0 {
		out.Capacity = 0
		e.checkLinked(q)
	} else {
		num, den, _ := queue.Pace(q.Drain) // it has compiled
		out.Ns, out.Rest, out.Den = num/den, num%den, den
	}
	if e.pacer == FQ && maxDelay(q) > maxFQDelay {
		e.refuse(q.Source, "limit", fmt.Sprintf("lets a packet wait longer than the %v that fq holds it", maxFQDelay), UseHTB)
	}
	if out.Capacity > 0 {
		size := 1 << bits.Len64(out.Capacity-1)
		out.Ring, out.Mask = uint32(e.ring), uint64(size-1)
		e.ring += size
	}
	e.queues = append(e.queues, out)
}

// linked refuses what HTB does not do.
func (e *encoder) checkLinked(q *dataplane.PlanQueue) {
	if e.pacer == FQ {
		e.refuse(q.Source, "link", "is scheduled by HTB", UseHTB)
	}
	if q.Fair && q.Key.By != dataplane.ByFlow {
		e.fail(q.Source, "fair", "keeps flows apart in the kernel plane, by fq_codel: write fair: flow")
	}
	if q.WRED != [3]queue.Early{} || q.CoDel != (queue.CoDel{}) && !q.Fair {
		field := "wred"
		if q.WRED == [3]queue.Early{} {
			field = "codel"
		}
		e.fail(q.Source, field, "is not done in a queue of a link by the kernel plane, whose HTB does not tell what waits there: give the queue a rate of its own")
	}
	if q.Packets > 0 {
		e.fail(q.Source, "limit", "of a link's queue is in bytes in the kernel plane: give a size, such as 64KiB, or a time")
	}
}

// maxHorizon is what fq can hold packets for: 2^32 µs, with room.
const maxFQDelay = time.Hour

// horizon is the longest that a packet may wait.
func maxDelay(q *dataplane.PlanQueue) time.Duration {
	switch {
	case q.Link >= 0:
		return 0
	case q.Time > 0:
		return q.Time
	}
	return transmitTime(q.Drain, maxBacklog(q, maxPacket))
}

// lasting is how long bytes take at a rate.
func transmitTime(r meter.Rate, bytes int64) time.Duration {
	t := new(big.Int).Mul(big.NewInt(bytes), big.NewInt(int64(r.Period)))
	if t.Div(t, big.NewInt(r.Bytes)); !t.IsInt64() {
		return math.MaxInt64
	}
	return time.Duration(t.Int64())
}

const maxPacket = 1 << 16 // bytes: GSO's most, but for BIG TCP

// mayWait is how many bytes a queue's limit lets wait, where a packet has at
// most so many.
func maxBacklog(q *dataplane.PlanQueue, packet int) (bytes int64) {
	switch {
	case q.Time > 0:
		bytes, _ = q.Drain.Burst(min(q.Time, time.Hour))
	case q.Bytes > 0:
		bytes = q.Bytes
	default:
		bytes = q.Packets * int64(packet)
	}
	return bytes
}

// perSecond is a rate in bytes per second, rounded up: what a queue lets in, its
// program decides.
func bytesPerSecond(r meter.Rate) uint64 {
	b := new(big.Int).Mul(big.NewInt(r.Bytes), big.NewInt(int64(time.Second)))
	b.Add(b, big.NewInt(int64(r.Period)-1)).Div(b, big.NewInt(int64(r.Period)))
	return b.Uint64()
}

// Where timers come late, HTB falls behind: it makes up for credit at once, and
// for more by a surplus, the part of a queue's rate by which its leaf is faster.
// No more comes to it than the program lets in. An idle queue saves its credit:
// it is less than what may wait there, or nothing would.
const (
	leafCredit  = 10 * time.Millisecond
	leafSurplus = 16384
)

// room is how many bytes the leaf of a queue holds at most where HTB has fallen
// behind, of bytes that may wait.
func leafLimit(bytes int64) uint32 {
	return uint32(min(min(bytes, math.MaxInt32)*3/2, math.MaxInt32) + maxPacket)
}

// tree is what the queues need at the root of a device.
func (g *image) tree(d *device) *qdisc.Tree {
	length := g.plan.Length
	t := &qdisc.Tree{Kind: string(g.pacer), Overhead: length.Overhead, MTU: d.mtu}
	switch length.Base {
	case dataplane.L3:
		if d.linkType == dataplane.LinkEthernet {
			t.Overhead -= 14
		}
	case dataplane.L1:
		t.Overhead += 24
	}
	longest := cmp.Or(d.mtu, 1500) + 14 // bytes of a frame
	for i, id := range g.linkIDs {
		t.Links = append(t.Links, qdisc.Link{ID: id, Rate: bytesPerSecond(g.plan.Links[i].Rate), Credit: leafCredit})
	}
	for i := range g.plan.Queues {
		q := &g.plan.Queues[i]
		leaf := qdisc.Leaf{ID: uint16(g.queues[i].ClassId)}
		t.Horizon = max(t.Horizon, maxDelay(q))
		if q.Link < 0 {
			leaf.Rate = bytesPerSecond(q.Drain)
			leaf.Rate += leaf.Rate / leafSurplus
			bytes := maxBacklog(q, cmp.Or(d.mtu, maxPacket))
			leaf.Limit, leaf.Credit = leafLimit(bytes), min(leafCredit, transmitTime(q.Drain, bytes)/4)
			t.Leaves = append(t.Leaves, leaf)
			continue
		}
		leaf.Parent, leaf.Priority = g.linkIDs[q.Link], uint32(q.Priority)
		leaf.Quantum, leaf.Limit = g.quantum(q, longest), uint32(min(q.Bytes, math.MaxUint32))
		if q.Fair {
			leaf.Fair = &qdisc.Fair{CoDel: q.CoDel, ECN: q.ECN, Packets: uint32(q.Capacity())}
		}
		t.Leaves = append(t.Leaves, leaf)
	}
	return t
}

// quantum is how many bytes a queue of a link may send in its turn: the longest
// packet for the smallest weight of its priority, which HTB needs at least.
func (g *image) quantum(q *dataplane.PlanQueue, longest int) uint32 {
	least := q.Weight
	for _, i := range g.plan.Links[q.Link].Queues {
		if other := &g.plan.Queues[i]; other.Priority == q.Priority {
			least = min(least, other.Weight)
		}
	}
	return uint32((q.Weight*longest + least - 1) / least)
}

// Queues returns what waits, as dataplane.Pipeline does.
func (s *Shaper) Queues() ([]dataplane.QueueState, error) {
	now, err := monotonic()
	if err != nil {
		return nil, err
	}
	leaves, err := s.leafCounts()
	if err != nil {
		return nil, err
	}
	out := make([]dataplane.QueueState, len(s.Queued))
	for i, q := range s.Queued {
		out[i].Name = s.Outline.Queues[i].Name
		leaf := leaves[uint16(q.ClassId)]
		out[i].Sent = dataplane.Count{Packets: int64(leaf.Packets), Bytes: int64(leaf.Bytes)}
		out[i].Dropped, out[i].Class = int64(leaf.Drops), q.Class
		if q.Linked != 0 {
			out[i].Bytes = int64(leaf.Backlog)
			continue
		}
		var b bpf.ShaperBacklog
		if err := s.maps.backlogs.LookupWithFlags(q.Slot, &b, ebpf.LookupLock); err != nil {
			return nil, fmt.Errorf("backlogs: %w", err)
		}
		if wait := int64(b.Next - now); b.Begun != 0 && wait > 0 {
			out[i].Delay = time.Duration(wait)
			out[i].Bytes, _ = meter.Rate{Bytes: int64(q.Den), Period: time.Duration(q.Ns*q.Den + q.Rest)}.Burst(out[i].Delay)
		}
	}
	return out, nil
}

// leaves returns what HTB counts, by class; nothing where it holds no packets.
func (s *Shaper) leafCounts() (map[uint16]qdisc.Counts, error) {
	if s.Pacer != HTB {
		return s.finalLeafCounts, nil
	}
	return qdisc.LeafCounts(s.Place.Index)
}

// inheritQueues gives queues their slots, and queues and links their classes of HTB.
func (g *image) inheritQueues(before *About) {
	slots, classes := slotAllocator{used: map[uint32]bool{}}, slotAllocator{used: map[uint32]bool{0: true}}
	for i := range before.Queued {
		q := &before.Queued[i]
		slots.used[q.Slot], classes.used[q.ClassId&math.MaxUint16] = true, true
	}
	for _, id := range before.Links {
		classes.used[uint32(id)] = true
	}
	for i, was := range g.from.Links {
		if was >= 0 {
			g.linkIDs[i] = before.Links[was]
		} else {
			g.linkIDs[i] = uint16(classes.allocate())
		}
	}
	outline := g.plan.Outline()
	for i, from := range g.from.Queues {
		q := &g.queues[i]
		feeder := feederOf(outline, i)
		if from < 0 {
			q.ClassId, q.Slot = qdisc.Handle(uint16(classes.allocate())), slots.allocate()
		} else {
			was := &before.Queued[from]
			q.ClassId, feeder = was.ClassId, feeder.merge(was.feeder)
			if q.Slot = was.Slot; !sameQueue(q, &was.ShaperQueue) {
				q.Slot = slots.allocate()
			}
		}
		g.feeders = append(g.feeders, feeder)
	}
}

// sameQueue says whether a backlog means the same under both.
func sameQueue(a, b *bpf.ShaperQueue) bool {
	x, y := *a, *b
	x.Slot, x.ClassId, x.Ring = y.Slot, y.ClassId, y.Ring
	return x == y
}

// sameRings says whether the rings of the policy before will do.
func (g *image) sameRings(before *About) bool {
	if g.ring == 0 && before.Ring == 0 {
		return true
	}
	if len(g.queues) != len(before.Queued) || g.ring != before.Ring {
		return false
	}
	for i, q := range g.queues {
		if was := before.Queued[i]; g.from.Queues[i] != i || was.Ring != q.Ring || was.Mask != q.Mask {
			return false
		}
	}
	return true
}

func (g *image) newRings() (*ebpf.Map, error) {
	spec, err := bpf.LoadShaper()
	if err != nil {
		return nil, err
	}
	s := spec.Maps[bpf.ShaperMapWaiting]
	s.MaxEntries = uint32(max(g.ring, 1))
	m, err := ebpf.NewMap(s)
	return m, cause.Of(err)
}

// keepWaiting copies what waits in the rings of queues that stay as they are to
// their new places. A packet that comes meanwhile is not counted there.
func (g *image) copyDepartures(before *About, from *stateMaps, to *ebpf.Map) error {
	for i := range g.queues {
		q := &g.queues[i]
		at := slices.IndexFunc(before.Queued, func(r queueRecord) bool { return r.Slot == q.Slot })
		if at < 0 || q.Capacity == 0 {
			continue
		}
		var b bpf.ShaperBacklog
		if err := from.backlogs.LookupWithFlags(q.Slot, &b, ebpf.LookupLock); err != nil {
			return fmt.Errorf("backlogs: %w", err)
		}
		for k := b.End - min(b.End, q.Mask+1); k < b.End; k++ {
			var w bpf.ShaperDeparture
			err := from.departures.Lookup(before.Queued[at].Ring+uint32(k&q.Mask), &w)
			if err == nil {
				err = to.Put(q.Ring+uint32(k&q.Mask), &w)
			}
			if err != nil {
				return fmt.Errorf("waiting: %w", err)
			}
		}
	}
	return nil
}

// settleQueues writes the backlogs that begin. A queue that changed is free when
// the one before would have been.
func (g *image) populateBacklogs(before *About, from, to *stateMaps) error {
	slots := map[uint32]bool{}
	for _, q := range before.Queued {
		slots[q.Slot] = true
	}
	for i := range g.queues {
		q := &g.queues[i]
		if slots[q.Slot] {
			if err := copySlot[bpf.ShaperBacklog](from.backlogs, to.backlogs, q.Slot); err != nil {
				return err
			}
			continue
		}
		var b bpf.ShaperBacklog
		if at := g.from.Queues[i]; at >= 0 {
			var was bpf.ShaperBacklog
			if err := from.backlogs.LookupWithFlags(before.Queued[at].Slot, &was, ebpf.LookupLock); err != nil {
				return fmt.Errorf("backlogs: %w", err)
			}
			b.Next, b.Begun = was.Next+uint64(flag(was.Frac > 0)), was.Begun
		}
		if err := to.backlogs.Put(q.Slot, b); err != nil {
			return fmt.Errorf("backlogs: %w", err)
		}
	}
	return nil
}
