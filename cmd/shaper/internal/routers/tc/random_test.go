package tc

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/routers"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/routers/rowstest"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// canonical writes what a policy does, with names. Two policies with the same text treat all
// packets alike: matches are sets, and meters, queues and links are the same or different ones.
func canonical(p *dataplane.Policy) string {
	var b strings.Builder
	if slices.ContainsFunc(p.Classes, countsLengths) {
		fmt.Fprintf(&b, "length %+v, drop %v\n", p.Length, p.DropUnclassified)
	}
	meters, queues, links := map[*dataplane.Meter]int{}, map[*dataplane.Queue]int{}, map[*dataplane.Link]int{}
	for _, c := range p.Classes {
		fmt.Fprintf(&b, "class %q: %s\n", c.Name, canonicalMatch(c.Match))
		colors := []meter.Color{meter.Green}
		if m := c.Meter; m != nil {
			number(meters, m)
			fmt.Fprintf(&b, "  meter %d: %T %+v packets %v\n", meters[m], m.Params, m.Params, m.Packets)
			colors = append(colors, meter.Red)
			if len(m.Params.Buckets()) == 2 {
				colors = append(colors, meter.Yellow)
			}
		}
		for _, color := range colors {
			a := c.Action(color)
			marks := slices.Clone(a.Marks)
			slices.SortFunc(marks, func(a, b dataplane.Mark) int { return int(a.Field) - int(b.Field) })
			fmt.Fprintf(&b, "  %v: drop %v, ecn %v, marks %v", color, a.Drop, a.ECN, marks)
			if q := a.Queue; q != nil {
				number(queues, q)
				fmt.Fprintf(&b, ", queue %d", queues[q])
			}
			fmt.Fprintln(&b)
		}
	}
	for n := range len(queues) {
		for q, i := range queues {
			if i != n {
				continue
			}
			c, err := q.Resolve()
			fmt.Fprintf(&b, "queue %d %q: %+v fair %v, hosts %v %v", n, q.Name, c, q.Fair, q.Hosts, err)
			for l := q.Link; l != nil; l = l.Link {
				number(links, l)
				fmt.Fprintf(&b, " link %d %q %v, guarantee %v, priority %d, weight %d;", links[l], l.Name,
					l.Rate.String(), l.Guarantee.String(), l.Priority, max(l.Weight, 1))
			}
			fmt.Fprintln(&b)
		}
	}
	return b.String()
}

// countsLengths reports whether a class meters bytes or queues packets, so that lengths matter.
func countsLengths(c dataplane.Class) bool {
	return c.Meter != nil && !c.Meter.Packets || c.Action(meter.Green).Queue != nil
}

var names = regexp.MustCompile(`(?m)^(class|queue \d+) ".*": `)

// withoutNames removes the names of parts, which the kernel does not have, from a canonical text.
func withoutNames(text string) string {
	text = names.ReplaceAllString(text, "$1 ")
	return regexp.MustCompile(`link (\d+) "[^"]*" `).ReplaceAllString(text, "link $1 ")
}

// number numbers pointers in the order of first use.
func number[T any](m map[*T]int, p *T) {
	if _, ok := m[p]; !ok {
		m[p] = len(m)
	}
}

// canonicalMatch writes the sets of values of a match.
func canonicalMatch(m dataplane.Match) string {
	var parts []string
	// Source and destination of a packet are of the same family, so a prefix whose family the
	// other list lacks matches nothing.
	has := func(list []netip.Prefix, v4 bool) bool {
		return len(list) == 0 ||
			slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Addr().Is4() == v4 })
	}
	for name, list := range map[string][]netip.Prefix{"src": m.Src, "dst": m.Dst} {
		var values []string
		for _, p := range list {
			contained := slices.ContainsFunc(list,
				func(o netip.Prefix) bool { return o.Bits() < p.Bits() && o.Contains(p.Addr()) })
			if v4 := p.Addr().Is4(); has(m.Src, v4) && has(m.Dst, v4) && !contained {
				values = append(values, p.String())
			}
		}
		slices.Sort(values)
		parts = append(parts, fmt.Sprint(name, slices.Compact(values)))
	}
	for _, f := range dataplane.MatchFields {
		values := map[uint64]bool{}
		text := ""
		for _, r := range *f.List(&m) {
			if r.Last-r.First > 70000 {
				text += fmt.Sprint(r)
				continue
			}
			for v := r.First; v <= r.Last; v++ {
				values[v] = true
			}
		}
		var sorted []uint64
		for v := range values {
			sorted = append(sorted, v)
		}
		slices.Sort(sorted)
		// TCP and UDP are the default if ports are given (docs/POLICY.md).
		if f.Name == "proto" && len(m.SPort)+len(m.DPort) > 0 && len(sorted) == 0 {
			sorted = []uint64{6, 17}
		}
		parts = append(parts, fmt.Sprint(f.Name, sorted, text))
	}
	slices.Sort(parts)
	return strings.Join(parts, " ")
}

// random makes policies that tc can express, for the most part.
type random struct {
	*rand.Rand
	live  bool // only values that survive the kernel's rounding
	plain bool // only what works without police, flower, CoDel and actions
}

func pick[T any](r random, values ...T) T { return values[r.IntN(len(values))] }

func (r random) chance(percent int) bool { return r.IntN(100) < percent }

func (r random) rate() meter.Rate {
	if r.live { // a byte takes a tick of 64 ns, or more
		return meter.ByteRate(pick(r, 125, 12_345, 125_000, 1_250_000, 15_625_000, r.Int64N(15_625_000)+1000))
	}
	return meter.ByteRate(pick(r, 1, 125, 12_345, 125_000, 1_250_000, 12_500_000, r.Int64N(1<<30)+1))
}

func (r random) burst() int64 {
	if r.live { // more than a tick
		return 1500 + r.Int64N(1<<20)
	}
	return pick(r, 1, 1500, 10_000, 65_536, r.Int64N(1<<20)+1)
}

func (r random) policy() *dataplane.Policy {
	p := &dataplane.Policy{Length: pick(r,
		dataplane.LengthRule{}, dataplane.LengthRule{}, dataplane.LengthRule{Base: dataplane.L2},
		dataplane.LengthRule{Base: dataplane.L1},
		dataplane.LengthRule{Base: dataplane.L2, Overhead: r.IntN(40), MPU: r.IntN(70)},
		dataplane.LengthRule{Base: dataplane.L3, Overhead: r.IntN(80) - 40, MPU: r.IntN(70)},
		dataplane.LengthRule{Base: dataplane.L2, Overhead: -r.IntN(14)},
	)}
	var links []*dataplane.Link
	for i := range r.IntN(3) {
		links = append(links,
			&dataplane.Link{Name: fmt.Sprintf("link %d", i), Rate: meter.ByteRate(1000 + r.Int64N(1<<28))})
	}
	for i := 0; len(links) > 0 && i < r.IntN(6); i++ {
		links = append(links, r.link(i, links[r.IntN(len(links))]))
	}
	var queues []*dataplane.Queue
	for i := range r.IntN(6) {
		queues = append(queues, r.queue(i, links))
	}
	prioritize(links, queues)
	var shared *dataplane.Meter
	if r.chance(40) && !r.plain {
		shared = r.meter("shared")
	}
	if len(queues) > 0 && r.chance(10) {
		p.Classes = []dataplane.Class{{
			Name: "all", Match: dataplane.Match{Length: anyLength},
			Green: &dataplane.Action{Queue: queues[0]},
		}}
		return p
	}
	for i := range 1 + r.IntN(5) {
		c := dataplane.Class{
			Name: pick(r, fmt.Sprintf("c%d", i), fmt.Sprintf("class   %d: \"x\", é # ", i)), Match: r.match(),
		}
		switch {
		case shared != nil && r.chance(30):
			c.Meter = shared
		case r.chance(60) && !r.plain:
			c.Meter = r.meter(c.Name)
		}
		r.actions(&c, queues)
		p.Classes = append(p.Classes, c)
	}
	return p
}

func (r random) meter(name string) *dataplane.Meter {
	m := &dataplane.Meter{Name: name}
	a, b := r.rate(), r.rate()
	if a.Cmp(b) > 0 {
		a, b = b, a
	}
	switch r.IntN(4) {
	case 0:
		m.Params = meter.TRTCM{CIR: a, CBS: r.burst(), PIR: b, PBS: r.burst()}
	case 1:
		m.Params = meter.TRTCM4115{CIR: b, CBS: r.burst(), EIR: a, EBS: r.burst()}
	case 2:
		m.Params = meter.TokenBucket{Rate: a, Burst: r.burst()}
	default:
		m.Packets = true
		m.Params = meter.TokenBucket{Rate: meter.Per(1+r.Int64N(1e6), time.Second), Burst: r.burst()}
	}
	return m
}

// link returns a link below another one.
func (r random) link(i int, above *dataplane.Link) *dataplane.Link {
	l := &dataplane.Link{Name: fmt.Sprintf("below %d", i), Link: above, Weight: 1 + pick(r, 0, r.IntN(1000))}
	l.Rate, l.Guarantee = r.share(above)
	return l
}

// share returns a rate below that of a link, and a guarantee, or none.
func (r random) share(above *dataplane.Link) (rate, guarantee meter.Rate) {
	reach, _ := above.Reach().Burst(time.Second)
	if reach > 8 && r.chance(40) {
		reach = 1 + r.Int64N(reach-1)
		rate = meter.ByteRate(reach)
	}
	if r.chance(50) {
		guarantee = meter.ByteRate(1 + r.Int64N(max(reach/pick[int64](r, 1, 3, 6), 1)))
	}
	return rate, guarantee
}

// prioritize gives links the priority of their queues with the lowest number, as tc has it.
func prioritize(links []*dataplane.Link, queues []*dataplane.Queue) {
	for _, l := range links {
		lowest := queue.MaxPriority
		for _, q := range queues {
			for above := q.Link; above != nil; above = above.Link {
				if above == l {
					lowest = min(lowest, q.Priority)
				}
			}
		}
		if l.Link != nil {
			l.Priority = lowest
		}
	}
}

func (r random) queue(i int, links []*dataplane.Link) *dataplane.Queue {
	q := &dataplane.Queue{Name: fmt.Sprintf("q%d", i)}
	if len(links) > 0 && r.chance(60) {
		q.Link = links[r.IntN(len(links))]
		q.Priority, q.Weight = pick(r, 0, 0, r.IntN(8)), 1+pick(r, 0, r.IntN(1000))
		q.Rate, q.Guarantee = r.share(q.Link)
	} else {
		q.Rate = r.rate()
	}
	kind := r.IntN(6)
	if r.plain {
		kind %= 2
	}
	switch kind {
	case 0:
		q.Bytes = 1 + r.Int64N(1<<30)
	case 1:
		q.Packets = 1 + r.Int64N(queue.MaxPackets)
	case 2:
		q.Packets, q.Fair = 1+r.Int64N(maxSFQ), dataplane.Key{By: dataplane.ByFlow}
		ownLink(q)
	case 3:
		q.Bytes, q.ECN = 1+r.Int64N(1<<30), true
		q.CoDel = cakeCoDel(time.Duration(r.IntN(3e6)) * time.Microsecond)
		q.Fair.By = pick(r, dataplane.NoKey, dataplane.ByFlow, dataplane.BySrc, dataplane.ByDst,
			dataplane.ByHosts)
		if q.Fair.By == dataplane.ByFlow {
			q.Hosts.By = pick(r, dataplane.NoKey, dataplane.BySrc, dataplane.ByDst)
		}
		ownLink(q)
	default:
		q.Packets = 1 + r.Int64N(queue.MaxPackets)
		q.CoDel = queue.CoDel{
			Target:   time.Duration(1+r.IntN(1e5)) * time.Microsecond,
			Interval: time.Duration(1+r.IntN(3e6)) * time.Microsecond,
		}
		q.ECN = r.chance(50)
		if r.chance(50) {
			q.Fair = dataplane.Key{By: dataplane.ByFlow}
			ownLink(q)
		}
	}
	return q
}

// ownLink gives a fair queue a link for its rate, as policyfile does.
func ownLink(q *dataplane.Queue) {
	if q.Link == nil && q.Fair.By != dataplane.NoKey {
		q.Link, q.Rate = &dataplane.Link{Name: q.Name, Rate: q.Rate}, meter.Rate{}
	}
}

func (r random) actions(c *dataplane.Class, queues []*dataplane.Queue) {
	main := &dataplane.Action{}
	if len(queues) > 0 && r.chance(50) {
		main.Queue = queues[r.IntN(len(queues))]
	}
	other := &dataplane.Action{}
	if len(queues) > 0 && r.chance(50) {
		other.Queue = queues[r.IntN(len(queues))]
	}
	marked := &dataplane.Action{
		Queue: main.Queue, Marks: []dataplane.Mark{{Field: dataplane.SKBMark, Value: r.Uint32()}},
	}
	if c.Match.Length == nil && c.Match.EtherType == nil && c.Match.VLAN == nil {
		marked.Marks = append(marked.Marks, dataplane.Mark{Field: dataplane.DSCP, Value: r.Uint32N(64)})
	}
	for _, a := range []**dataplane.Action{&c.Green, &c.Yellow, &c.Red} {
		*a = pick(r, main, main, marked, other, &dataplane.Action{Drop: true})
		if r.plain {
			*a = main
		}
	}
}

func (r random) match() (m dataplane.Match) {
	values := func(max uint64) (list []dataplane.Range) {
		for range 1 + r.IntN(3) {
			v := r.Uint64N(max + 1)
			list = append(list, dataplane.Range{First: v, Last: v + min(pick(r, 0, r.Uint64N(9)), max-v)})
		}
		return list
	}
	prefixes := func() (list []netip.Prefix) {
		for range 1 + r.IntN(3) {
			a := netip.AddrFrom4([4]byte{10, byte(r.Uint32()), byte(r.Uint32()), byte(r.Uint32())})
			if r.chance(40) {
				b := [16]byte{
					0x20, 0x01, 0x0d, 0xb8, byte(r.Uint32()), byte(r.Uint32()), 15: byte(r.Uint32()),
				}
				a = netip.AddrFrom16(b)
			}
			list = append(list, netip.PrefixFrom(a, 1+r.IntN(a.BitLen())).Masked())
		}
		return list
	}
	switch r.IntN(12) {
	case 0:
		return dataplane.Match{Length: anyLength}
	case 1:
		return dataplane.Match{}
	case 2:
		return dataplane.Match{EtherType: []dataplane.Range{{First: 0x0806, Last: 0x0806}}}
	case 3:
		return dataplane.Match{EtherType: []dataplane.Range{{First: 0x0800, Last: 0x0800}}, DSCP: values(63)}
	}
	if r.chance(30) {
		m.Src = prefixes()
	}
	if r.chance(30) {
		m.Dst = prefixes()
	}
	if r.chance(30) {
		m.DSCP = values(63)
	}
	kind := r.IntN(5)
	if r.plain {
		kind = 4
	}
	switch kind {
	case 0:
		m.Proto = values(255)
	case 1:
		m.DPort = values(65535)
		m.Proto = pick(r, nil, []dataplane.Range{{First: 6, Last: 6}},
			[]dataplane.Range{{First: 17, Last: 17}})
	case 2:
		m.SPort = values(65535)
	case 3:
		m.Mark = values(1<<32 - 1)
	}
	if r.chance(15) && m.Mark == nil && !r.plain {
		m.VLAN = values(4095)
		if r.chance(30) {
			m.PCP = values(7)
		}
	}
	return m
}

// TestTCRandom exports random policies and imports the script: the policy must be the same.
func TestTCRandom(t *testing.T) {
	t.Parallel()
	rounds, expressible := 1000, 0
	if testing.Short() {
		rounds = 100
	}
	var reasons []string
	for seed := range uint64(rounds) {
		p := random{Rand: rand.New(rand.NewPCG(seed, 1))}.policy()
		if _, err := compiled.Compile(p); err != nil {
			continue
		}
		e := Dialect{}.Export(p, "eth0")
		if len(e.Problems) > 0 {
			reasons = append(reasons, e.Problems...)
			continue
		}
		expressible++
		back := reimported(t, e.Text, "eth0")
		if want, got := canonical(p), canonical(back); got != want {
			t.Fatalf("seed %d: the policy was imported with other lines: %s\n%s", seed, otherLines(want, got),
				e.Text)
		}
		if expressible > 200 {
			continue
		}
		for _, capture := range []string{"edges.pcap", "tags.pcap"} {
			capture = "../../../../../testdata/pcaps/" + capture
			want, err := rowstest.Rows(p, capture)
			if err != nil {
				t.Fatal(err)
			}
			if got, err := rowstest.Rows(back, capture); err != nil || !slices.Equal(got, want) {
				t.Fatalf("seed %d: %v: other rows of %s\n%s", seed, err, capture, e.Text)
			}
		}
	}
	if expressible < rounds/4 {
		t.Errorf("only %d of %d policies could be exported: %q", expressible, rounds,
			reasons[:min(50, len(reasons))])
	}
	t.Logf("%d of %d policies", expressible, rounds)
}

// otherLines returns the lines that only one of two texts has.
func otherLines(a, b string) (out string) {
	for _, d := range [][3]string{{a, b, "-"}, {b, a, "+"}} {
		for line := range strings.Lines(d[0]) {
			if !strings.Contains(d[1], line) {
				out += "\n" + d[2] + strings.TrimSuffix(line, "\n")
			}
		}
	}
	return out
}

// reimport imports a script and returns the canonical text of the policy.
func reimport(t *testing.T, text, name string) string {
	t.Helper()
	return canonical(reimported(t, text, name))
}

// reimported imports a script.
func reimported(t *testing.T, text, name string) *dataplane.Policy {
	t.Helper()
	in, err := Dialect{}.Import(routers.Source{Name: "script", Text: text})
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	d, problems, err := in.Pick(name)
	if err != nil || len(problems) > 0 {
		t.Fatalf("%v, %v\n%s", err, problems, text)
	}
	r := rendered(t, d)
	p, err := policyfile.Source{Name: "p", Text: r}.Compile()
	if err != nil {
		t.Fatalf("%v\n%s\n%s", err, r, text)
	}
	return p.Policy
}
