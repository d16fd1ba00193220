package dataplane

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/marker"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// mega is one byte per microsecond.
var mega = meter.BitRate(8e6)

const µs = 1000

// ip returns a frame with an IPv4 packet of n bytes.
func ip(dscp uint8, n int) []byte {
	return cat(eth(etherIPv4), v4{tos: dscp << 2, proto: protoUDP}.packet(make([]byte, n-20)))
}

var arp = pad(cat(eth(0x0806), make([]byte, 28)), 60)

// build compiles a policy.
func build(t testing.TB, policy *Policy) *Pipeline {
	t.Helper()
	l, err := New(policy)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// tokensOf returns the tokens of a meter of the policy.
func tokensOf(l *Pipeline, m *Meter) (tc, te int64) { return l.Tokens(l.plan.Stage(m)) }

// verdictOf processes a packet.
func verdictOf(l *Pipeline, p *Packet) (v Verdict) {
	l.Process(p, &v)
	return v
}

// process processes a copy of an Ethernet frame that arrives at a time, and returns the
// marked copy too.
func process(l *Pipeline, at int64, frame []byte) (Verdict, []byte) {
	p := Packet{Data: bytes.Clone(frame), Time: at, Link: LinkEthernet}
	return verdictOf(l, &p), p.Data
}

// verdict returns a Verdict as text:
//
//	class pre>color done reason
//
// done contains the new DSCP after mark, and the departure after queue, or wait for a packet
// that is queued in a link.
func verdict(policy *Policy, v Verdict) string {
	if v.Class < 0 {
		return fmt.Sprintf("- %s %v", done(v), v.Reason)
	}
	return fmt.Sprintf("%s %v>%v %s %v", policy.Classes[v.Class].Name, v.Pre, v.Color, done(v), v.Reason)
}

// done returns Verdict.Done as text.
func done(v Verdict) string {
	if v.Done.Dropped() {
		return "drop"
	}
	var b []string
	if v.Done&ECNSet != 0 {
		b = append(b, "ecn")
	}
	if v.Done&Marked != 0 {
		b = append(b, fmt.Sprintf("mark=%d", v.DSCPOut))
	}
	switch {
	case v.Done&Waiting != 0:
		b = append(b, "wait")
	case v.Done&Queued != 0:
		b = append(b, fmt.Sprintf("queue@%d", v.Departure))
	}
	if b == nil {
		return "pass"
	}
	return strings.Join(b, "+")
}

// tally counts verdicts, for comparison with the Stats of a pipeline.
type tally struct {
	policy *Policy
	stats  []ClassStats
	sent   [][3]Count // by class and color
}

func newTally(policy *Policy) *tally {
	n := len(policy.Classes)
	return &tally{policy, make([]ClassStats, n+1), make([][3]Count, n)}
}

func (c *tally) add(v Verdict) {
	if v.Class < 0 {
		s := &c.stats[len(c.stats)-1]
		s.Untaken.add(v.count())
		if v.Done.Dropped() {
			s.UntakenDropped.add(v.count())
		}
		return
	}
	c.stats[v.Class].Colors[v.Color].add(v.count())
	if v.Done&Waiting == 0 {
		c.settle(v)
	}
}

// settle counts the outcome of a packet: a verdict that is not Waiting.
func (c *tally) settle(v Verdict) {
	s := &c.stats[v.Class]
	if v.Done.Dropped() {
		cause := CauseECN
		switch action := c.policy.Classes[v.Class].Action(v.Color); {
		case action.Drop:
			cause = CauseColor
		case v.Reason == QueueFull:
			cause = CauseQueue
		case v.Reason == WRED:
			cause = CauseWRED
		case v.Reason == CoDel:
			cause = CauseCoDel
		}
		s.Drops[v.Color][cause].add(v.count())
		return
	}
	c.sent[v.Class][v.Color].add(v.count())
	if v.Done&Marked != 0 {
		s.Marked[v.Color].add(v.count())
	}
	if v.Done&ECNSet != 0 {
		s.CE[v.Color].add(v.count())
	}
	if v.Done&Queued != 0 {
		s.Queued[v.Color].add(v.count())
	}
}

// check compares the counters of a pipeline with the verdicts.
func (c *tally) check(t testing.TB, l *Pipeline) {
	t.Helper()
	stats := l.Stats()
	if len(stats) != len(c.stats) {
		t.Fatalf("%d counters for %d classes", len(stats), len(c.sent))
	}
	for i := range stats {
		if stats[i] != c.stats[i] {
			t.Errorf("class %d: counters %+v, the sum of the verdicts is %+v", i, stats[i], c.stats[i])
		}
	}
	for i, sent := range c.sent {
		var in Count
		for color := meter.Green; color <= meter.Red; color++ {
			in = in.Plus(stats[i].Colors[color])
			if sum := sent[color].Plus(stats[i].Dropped(color)); stats[i].Colors[color] != sum {
				t.Errorf("class %d, %v: %v received, %v sent and dropped", i, color, stats[i].Colors[color], sum)
			}
		}
		if stats[i].Total() != in {
			t.Errorf("class %d: total %v, want %v", i, stats[i].Total(), in)
		}
	}
}

func TestZeroVerdict(t *testing.T) {
	if !(Verdict{}).Done.Dropped() {
		t.Error("the zero Verdict is not a drop")
	}
	for _, d := range []Done{Pass, ECNSet, Marked, Queued, Waiting} {
		if d.Dropped() {
			t.Errorf("Done %d is a drop", d)
		}
	}
}

func TestPipeline(t *testing.T) {
	srTCM := meter.SRTCM{CIR: mega, CBS: 1000, EBS: 1000}
	af := func(v uint8) *Action { return &Action{Marks: []Mark{{DSCP, uint32(v)}}} }
	paced := func(cfg queue.Config) *Action { return &Action{Queue: &Queue{Name: "q", Config: cfg}} }
	one := func(c Class) []Class { c.Name = "a"; return []Class{c} }
	shared := &Meter{Params: srTCM}
	pool := paced(queue.Config{Rate: mega, Time: 1000 * µs})
	everything := Match{Length: []Range{{0, math.MaxUint32}}}
	type step struct {
		at    int64
		frame []byte
		want  string
	}
	for _, test := range []struct {
		name    string
		classes []Class
		steps   []step
	}{
		{"defaults: green and yellow pass, red is dropped", one(Class{Meter: &Meter{Params: srTCM}}), []step{
			{0, ip(0, 1001), "a green>red drop rfc2697-red"},
			{0, ip(0, 1000), "a green>green pass rfc2697-green"},
			{0, ip(0, 1000), "a green>yellow pass rfc2697-yellow"},
			{0, ip(0, 20), "a green>red drop rfc2697-red"},
			{19 * µs, ip(0, 20), "a green>red drop rfc2697-red"},
			{20 * µs, ip(0, 20), "a green>green pass rfc2697-green"},
		}},
		{"an action for every color", one(Class{Meter: &Meter{Params: srTCM}, Green: af(10), Yellow: &Action{Drop: true}, Red: &Action{}}), []step{
			{0, ip(0, 1000), "a green>green mark=10 rfc2697-green"},
			{0, ip(0, 1000), "a green>yellow drop rfc2697-yellow"},
			{0, ip(0, 1001), "a green>red pass rfc2697-red"},
		}},
		{"no meter: green", one(Class{}), []step{
			{0, ip(14, 1500), "a green>green pass no-meter"},
			{0, cat(eth(etherIPv6), v6{class: 14 << 2}.packet()), "a green>green pass no-meter"},
		}},
		{"no meter: the green action", one(Class{Green: &Action{Drop: true}}), []step{
			{0, ip(0, 100), "a green>green drop no-meter"},
		}},
		{"unclassified packets", one(Class{Match: Match{DSCP: is(46)}, Green: &Action{Drop: true}}), []step{
			{0, ip(46, 100), "a green>green drop no-meter"},
			{0, ip(0, 100), "- pass no-meter"},
			{0, cat(eth(etherIPv6), v6{}.packet()), "- pass no-meter"},
			{0, arp, "- pass not-ip"},
			{0, ip(46, 100)[:33], "- pass malformed"},
			{0, nil, "- pass malformed"},
		}},
		{"the first matching class", []Class{
			{Name: "ef", Match: Match{DSCP: is(46)}, Red: &Action{}},
			{Name: "low", Match: Match{DSCP: []Range{{0, 46}}}, Green: &Action{Drop: true}},
			{Name: "rest"},
		}, []step{
			{0, ip(46, 100), "ef green>green pass no-meter"},
			{0, ip(45, 100), "low green>green drop no-meter"},
			{0, ip(47, 100), "rest green>green pass no-meter"},
		}},
		{"two classes share a meter", []Class{
			{Name: "ef", Match: Match{DSCP: is(46)}, Meter: shared},
			{Name: "rest", Meter: shared, Red: &Action{}},
		}, []step{
			{0, ip(46, 600), "ef green>green pass rfc2697-green"},
			{0, ip(0, 600), "rest green>yellow pass rfc2697-yellow"},
			{0, ip(46, 401), "ef green>red drop rfc2697-red"},
			{0, ip(0, 400), "rest green>green pass rfc2697-green"},
			{0, ip(46, 400), "ef green>yellow pass rfc2697-yellow"},
			{0, ip(0, 20), "rest green>red pass rfc2697-red"},
		}},
		{"a meter of packets", one(Class{Meter: &Meter{Params: meter.TokenBucket{Rate: meter.Rate{Bytes: 1, Period: time.Second}, Burst: 2}, Packets: true}}), []step{
			{0, ip(0, 9000), "a green>green pass token-bucket-green"},
			{0, ip(0, 20), "a green>green pass token-bucket-green"},
			{0, ip(0, 20), "a green>red drop token-bucket-red"},
			{1e9 - 1, ip(0, 20), "a green>red drop token-bucket-red"},
			{1e9, ip(0, 9000), "a green>green pass token-bucket-green"},
		}},
		{"a bucket that starts empty gains tokens from its first packet on", one(Class{Meter: &Meter{Params: srTCM, Initial: Share{0, 1}}}), []step{
			{5e9, ip(0, 20), "a green>red drop rfc2697-red"},
			{5e9 + 19*µs, ip(0, 20), "a green>red drop rfc2697-red"},
			{5e9 + 20*µs, ip(0, 20), "a green>green pass rfc2697-green"},
		}},
		{"initial tokens are rounded down", one(Class{Meter: &Meter{Params: meter.SRTCM{CIR: mega, CBS: 101, EBS: 99}, Initial: Share{1, 2}}}), []step{
			{0, ip(0, 51), "a green>red drop rfc2697-red"},
			{0, ip(0, 50), "a green>green pass rfc2697-green"},
			{0, ip(0, 50), "a green>red drop rfc2697-red"},
			{0, ip(0, 49), "a green>yellow pass rfc2697-yellow"},
		}},
		{"a timestamp that goes backwards", one(Class{Meter: &Meter{Params: srTCM}, Green: paced(queue.Config{Rate: mega, Time: time.Second})}), []step{
			{1000 * µs, ip(0, 1000), "a green>green queue@1000000 rfc2697-green"},
			{0, ip(0, 1000), "a green>yellow pass rfc2697-yellow"},
			{0, ip(0, 20), "a green>red drop rfc2697-red"},
			{500 * µs, ip(0, 20), "a green>red drop rfc2697-red"},
			{1020 * µs, ip(0, 20), "a green>green queue@2000000 rfc2697-green"},
			{0, ip(0, 20), "a green>red drop rfc2697-red"},
		}},
		{"queue: a limit in time", one(Class{Green: paced(queue.Config{Rate: mega, Time: 1000 * µs})}), []step{
			{0, ip(0, 1000), "a green>green queue@0 no-meter"},
			{0, ip(0, 1000), "a green>green queue@1000000 no-meter"},
			{0, ip(0, 20), "a green>green drop queue-full"},
			{1000*µs - 1, ip(0, 20), "a green>green drop queue-full"},
			{1000 * µs, ip(0, 20), "a green>green queue@2000000 no-meter"},
		}},
		{"queue: a limit in packets", one(Class{Green: paced(queue.Config{Rate: mega, Packets: 1})}), []step{
			{0, ip(0, 1000), "a green>green queue@0 no-meter"},
			{0, ip(0, 1000), "a green>green queue@1000000 no-meter"},
			{0, ip(0, 20), "a green>green drop queue-full"},
		}},
		{"queue: two colors of two classes share a queue", []Class{
			{Name: "ef", Match: Match{DSCP: is(46)}, Green: pool},
			{Name: "rest", Meter: &Meter{Params: meter.TokenBucket{Rate: mega, Burst: 20}}, Red: pool},
		}, []step{
			{0, ip(46, 500), "ef green>green queue@0 no-meter"},
			{0, ip(0, 500), "rest green>red queue@500000 token-bucket-red"},
			{0, ip(46, 500), "ef green>green queue@1000000 no-meter"},
			{0, ip(0, 500), "rest green>red drop queue-full"},
			{0, ip(0, 20), "rest green>green pass token-bucket-green"},
		}},
		{"a packet dropped by a queue is not marked", one(Class{Green: &Action{Marks: []Mark{{DSCP, 10}}, Queue: pool.Queue}}), []step{
			{0, ip(0, 1001), "a green>green mark=10+queue@0 no-meter"},
			{0, ip(0, 20), "a green>green drop queue-full"},
		}},
		{"ECN, mark and queue", one(Class{Match: everything, Green: &Action{ECN: CE, Marks: []Mark{{DSCP, 10}}, Queue: pool.Queue}}), []step{
			{0, cat(eth(etherIPv4), v4{tos: 2}.packet(nil)), "a green>green ecn+mark=10+queue@0 no-meter"},
			{0, cat(eth(etherIPv4), v4{tos: 0}.packet(nil)), "a green>green mark=10+queue@20000 no-meter"},
			{0, arp, "a green>green queue@40000 no-meter"},
		}},
		{"ECN or drop", one(Class{Match: everything, Green: &Action{ECN: CEOrDrop, Marks: []Mark{{DSCP, 10}}}}), []step{
			{0, cat(eth(etherIPv6), v6{class: 1}.packet()), "a green>green ecn+mark=10 no-meter"},
			{0, cat(eth(etherIPv6), v6{class: 4}.packet()), "a green>green drop no-meter"},
			{0, arp, "a green>green drop no-meter"},
		}},
		{"marking with the present DSCP", one(Class{Green: af(10)}), []step{
			{0, ip(10, 20), "a green>green mark=10 no-meter"},
		}},
		{"a class of all frames includes frames without IP", one(Class{Match: everything, Meter: &Meter{Params: srTCM, Aware: true}, Green: af(10)}), []step{
			{0, arp, "a green>green pass rfc2697-green"},
			{0, nil, "a green>green pass rfc2697-green"},
			{0, ip(12, 20), "a yellow>yellow pass rfc2697-pre-yellow"},
			{0, ip(14, 20), "a red>red drop rfc2697-pre-red"},
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			policy := &Policy{Classes: test.classes}
			l, sum := build(t, policy), newTally(&Policy{Classes: test.classes})
			now := int64(math.MinInt64)
			for i, s := range test.steps {
				v, _ := process(l, s.at, s.frame)
				sum.add(v)
				if got := verdict(policy, v); got != s.want {
					t.Errorf("step %d: got %q, want %q", i, got, s.want)
				}
				if now = max(now, s.at); l.Now() != now || v.Done == Pass && v.Departure != now {
					t.Errorf("step %d: clock %d, departure %d, want %d", i, l.Now(), v.Departure, now)
				}
			}
			sum.check(t, l)
		})
	}
}

// TestDropUnclassified checks that DropUnclassified drops unclassified packets, with their
// reasons.
func TestDropUnclassified(t *testing.T) {
	policy := &Policy{DropUnclassified: true, Classes: []Class{
		{Name: "ef", Match: Match{DSCP: is(46)}},
		{Name: "arp", Match: Match{EtherType: is(0x0806), VLAN: is(7)}},
	}}
	l, sum := build(t, policy), newTally(policy)
	tagged := cat(eth(0x8100), []byte{0, 7, 8, 6}, make([]byte, 28))
	for i, s := range []struct {
		frame []byte
		want  string
	}{
		{ip(46, 100), "ef green>green pass no-meter"},
		{ip(0, 100), "- drop no-meter"},
		{cat(eth(etherIPv6), v6{}.packet()), "- drop no-meter"},
		{arp, "- drop not-ip"},
		{tagged, "arp green>green pass no-meter"},
		{ip(46, 100)[:33], "- drop malformed"},
		{nil, "- drop malformed"},
	} {
		v, after := process(l, int64(i), s.frame)
		sum.add(v)
		if got := verdict(policy, v); got != s.want || !bytes.Equal(after, s.frame) {
			t.Errorf("frame %d: got %q, want %q", i, got, s.want)
		}
	}
	sum.check(t, l)
	if got, all := l.Stats()[2].UntakenDropped.Packets, l.Stats()[2].AllDropped().Packets; got != 5 || all != 5 {
		t.Errorf("%d of %d dropped packets were unclassified, want 5 of 5", got, all)
	}
}

// TestChain checks the tokens of both meters of a chain after each packet.
func TestChain(t *testing.T) {
	total := &Meter{Name: "total", Params: meter.SRTCM{CIR: mega, CBS: 500, EBS: 400}, Aware: true, PreColor: PreColor{Map: map[uint32]meter.Color{0: meter.Red}}}
	first := &Meter{Name: "first", Params: meter.TRTCM{CIR: mega, CBS: 1000, PIR: mega, PBS: 1200}, Aware: true, Then: total}
	policy := &Policy{Classes: []Class{{Name: "a", Meter: first}, {Name: "unused", Match: Match{DSCP: is(1)}, Meter: total}}}
	l := build(t, policy)
	for i, row := range []struct {
		frame          []byte
		want           string
		tc, tp         int64 // of first
		totalC, totalE int64
	}{
		// Red by the second meter: the first one has still taken its tokens.
		{ip(0, 600), "a green>red drop rfc2697-red", 400, 600, 500, 400},
		// Red by the first meter: the second is skipped.
		{ip(0, 601), "a green>red drop rfc2698-red", 400, 600, 500, 400},
		// The input color of the second meter is the color from the first, not that of the DSCP.
		{ip(0, 400), "a green>green pass rfc2697-green", 0, 200, 100, 400},
		// Yellow by the first meter takes tokens from Te of the second.
		{ip(0, 50), "a green>yellow pass rfc2697-pre-yellow", 0, 150, 100, 350},
		// The input color of a verdict is that of the first meter.
		{ip(12, 60), "a yellow>yellow pass rfc2697-pre-yellow", 0, 90, 100, 290},
		{ip(14, 20), "a red>red drop rfc2698-pre-red", 0, 90, 100, 290},
	} {
		v, _ := process(l, 0, row.frame)
		tc, tp := tokensOf(l, first)
		totalC, totalE := tokensOf(l, total)
		if got := verdict(policy, v); got != row.want || tc != row.tc || tp != row.tp || totalC != row.totalC || totalE != row.totalE {
			t.Errorf("row %d: %q with %d, %d and %d, %d tokens; want %q with %d, %d and %d, %d",
				i, got, tc, tp, totalC, totalE, row.want, row.tc, row.tp, row.totalC, row.totalE)
		}
	}
}

func TestPreColor(t *testing.T) {
	const green, yellow, red = meter.Green, meter.Yellow, meter.Red
	colors := func(pairs ...any) map[uint32]meter.Color {
		m := map[uint32]meter.Color{}
		for i := 0; i < len(pairs); i += 2 {
			value, ok := pairs[i].(uint32)
			if !ok {
				value = uint32(pairs[i].(int))
			}
			m[value] = pairs[i+1].(meter.Color)
		}
		return m
	}
	tagged := func(pcp, dei uint16) []byte {
		return cat(eth(etherQinQ), tag(pcp, dei, 1, etherVLAN), tag(7, 1-dei, 2, etherIPv4), ip(14, 20)[14:])
	}
	labeled := cat(eth(etherMPLS), label(1, 5, 0), label(2, 3, 1), ip(14, 20)[14:])
	for _, test := range []struct {
		name  string
		from  PreColor
		frame []byte
		mark  uint32
		want  meter.Color
	}{
		{"AF11", PreColor{}, ip(10, 20), 0, green},
		{"AF12", PreColor{}, ip(12, 20), 0, yellow},
		{"AF13", PreColor{}, ip(14, 20), 0, red},
		{"AF43 in IPv6", PreColor{}, cat(eth(etherIPv6), v6{class: 38<<2 | 3}.packet()), 0, red},
		{"EF", PreColor{}, ip(46, 20), 0, green},
		{"default", PreColor{}, ip(0, 20), 0, green},
		{"CS1", PreColor{}, ip(8, 20), 0, green},
		{"no IP", PreColor{Map: colors(0, red)}, arp, 0, green},
		{"malformed", PreColor{Map: colors(0, red)}, ip(0, 20)[:33], 0, green},
		{"own map", PreColor{Map: colors(0, yellow, 63, red)}, ip(0, 20), 0, yellow},
		{"own map, last value", PreColor{Map: colors(0, yellow, 63, red)}, ip(63, 20), 0, red},
		{"own map, missing value", PreColor{Map: colors(0, yellow, 63, red)}, ip(14, 20), 0, green},
		{"empty map", PreColor{Map: colors()}, ip(14, 20), 0, green},
		{"PCP", PreColor{From: PCP, Map: colors(1, yellow, 7, red)}, tagged(1, 0), 0, yellow},
		{"PCP, missing value", PreColor{From: PCP, Map: colors(1, yellow, 7, red)}, tagged(2, 0), 0, green},
		{"PCP, default", PreColor{From: PCP}, tagged(1, 0), 0, green},
		{"PCP, no tag", PreColor{From: PCP, Map: colors(0, red)}, ip(14, 20), 0, green},
		{"DEI, default", PreColor{From: DEI}, tagged(0, 1), 0, yellow},
		{"DEI 0, default", PreColor{From: DEI}, tagged(7, 0), 0, green},
		{"DEI, own map", PreColor{From: DEI, Map: colors(0, red)}, tagged(0, 0), 0, red},
		{"DEI, no tag", PreColor{From: DEI, Map: colors(0, red)}, ip(14, 20), 0, green},
		{"MPLS, top label", PreColor{From: MPLSTC, Map: colors(5, yellow, 3, red)}, labeled, 0, yellow},
		{"MPLS, default", PreColor{From: MPLSTC}, labeled, 0, green},
		{"MPLS, no label", PreColor{From: MPLSTC, Map: colors(0, red)}, ip(14, 20), 0, green},
		{"mark", PreColor{From: SKBMark, Map: colors(7, yellow, 64, red, uint32(1<<32-1), yellow)}, arp, 7, yellow},
		{"mark 64", PreColor{From: SKBMark, Map: colors(7, yellow, 64, red, uint32(1<<32-1), yellow)}, arp, 64, red},
		{"largest mark", PreColor{From: SKBMark, Map: colors(7, yellow, 64, red, uint32(1<<32-1), yellow)}, arp, 1<<32 - 1, yellow},
		{"mark, missing value", PreColor{From: SKBMark, Map: colors(7, yellow, 64, red)}, arp, 65, green},
		{"mark, default", PreColor{From: SKBMark}, ip(14, 20), 65, green},
	} {
		for _, aware := range []bool{true, false} {
			l := build(t, &Policy{Classes: []Class{{
				Name: "a", Match: Match{Length: []Range{{0, 1500}}},
				Meter: &Meter{Params: meter.TRTCM{CIR: mega, CBS: 1500, PIR: mega, PBS: 1500}, Aware: aware, PreColor: test.from},
			}}})
			want := green
			if aware {
				want = test.want
			}
			v := verdictOf(l, &Packet{Data: test.frame, Link: LinkEthernet, Mark: test.mark})
			if v.Pre != want || v.Color != want {
				t.Errorf("%s, aware %v: input color %v, color %v, want %v", test.name, aware, v.Pre, v.Color, want)
			}
		}
	}
}

// TestMarks compares all bytes of the marked frame with a frame that was built with the
// mark.
func TestMarks(t *testing.T) {
	payload := pad(udp, 80)
	plain := func(tos byte) []byte { return cat(eth(etherIPv4), v4{tos: tos, options: 8}.packet(payload)) }
	six := func(class byte) []byte { return cat(eth(etherIPv6), v6{class: class, next: protoUDP}.packet(payload)) }
	deep := func(pcp, dei uint16, tc uint32, tos byte) []byte {
		return cat(eth(etherQinQ), tag(pcp, dei, 0xabc, etherVLAN), tag(2, 0, 2, etherMPLS), label(0xfffff, tc, 0), label(2, 2, 1), v4{tos: tos}.packet(payload))
	}
	dscp, tagged, labeled := []Mark{{DSCP, 46}}, []Mark{{PCP, 5}, {DEI, 1}}, []Mark{{MPLSTC, 6}}
	for _, test := range []struct {
		name   string
		action Action
		frame  []byte
		want   []byte
		done   Done
		dscp   int // on departure, -1 without IP
		mark   uint32
	}{
		{"DSCP of IPv4 keeps ECN", Action{Marks: dscp}, plain(0x2b), plain(46<<2 | 3), Marked, 46, 0},
		{"DSCP of IPv6 keeps ECN and flow label", Action{Marks: dscp}, six(0x2a), six(46<<2 | 2), Marked, 46, 0},
		{"the same DSCP counts as a mark", Action{Marks: dscp}, plain(46 << 2), plain(46 << 2), Marked, 46, 0},
		{"DSCP 0", Action{Marks: []Mark{{DSCP, 0}}}, plain(0xff), plain(3), Marked, 0, 0},
		{"DSCP, no IP", Action{Marks: dscp}, arp, arp, Pass, -1, 0},
		{"DSCP, malformed", Action{Marks: dscp}, plain(0)[:40], plain(0)[:40], Pass, -1, 0},
		{"PCP and DEI", Action{Marks: tagged}, deep(2, 0, 1, 8), deep(5, 1, 1, 8), Marked, 2, 0},
		{"PCP alone", Action{Marks: tagged[:1]}, deep(2, 0, 1, 8), deep(5, 0, 1, 8), Marked, 2, 0},
		{"DEI cleared", Action{Marks: []Mark{{DEI, 0}}}, deep(7, 1, 1, 8), deep(7, 0, 1, 8), Marked, 2, 0},
		{"PCP and DEI, no tag", Action{Marks: tagged}, plain(8), plain(8), Pass, 2, 0},
		{"MPLS, the top label", Action{Marks: labeled}, deep(2, 0, 1, 8), deep(2, 0, 6, 8), Marked, 2, 0},
		{"MPLS, no label", Action{Marks: labeled}, plain(8), plain(8), Pass, 2, 0},
		{"skb mark", Action{Marks: []Mark{{SKBMark, 1<<32 - 1}}}, arp, arp, Marked, -1, 1<<32 - 1},
		{"all fields", Action{ECN: CE, Marks: []Mark{{SKBMark, 7}, {MPLSTC, 6}, {DEI, 1}, {PCP, 5}, {DSCP, 46}}}, deep(2, 0, 1, 9), deep(5, 1, 6, 46<<2|3), Marked | ECNSet, 46, 7},
		{"fields that the packet does not have", Action{Marks: []Mark{{MPLSTC, 6}, {DSCP, 46}, {PCP, 5}}}, plain(8), plain(46 << 2), Marked, 46, 0},
		{"ECT(0)", Action{ECN: CE}, plain(46<<2 | 2), plain(46<<2 | 3), ECNSet, 46, 0},
		{"ECT(1)", Action{ECN: CE}, six(46<<2 | 1), six(46<<2 | 3), ECNSet, 46, 0},
		{"CE", Action{ECN: CEOrDrop}, plain(46<<2 | 3), plain(46<<2 | 3), ECNSet, 46, 0},
		{"not ECN-capable", Action{ECN: CE}, plain(46 << 2), plain(46 << 2), Pass, 46, 0},
		{"not ECN-capable or dropped", Action{ECN: CEOrDrop}, six(46 << 2), six(46 << 2), 0, 46, 0},
		{"ECN, no IP", Action{ECN: CE}, arp, arp, Pass, -1, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			l := build(t, &Policy{Classes: []Class{{Name: "a", Match: Match{Length: []Range{{0, 1500}}}, Green: &test.action}}})
			p := Packet{Data: bytes.Clone(test.frame), Link: LinkEthernet}
			v := verdictOf(l, &p)
			if !bytes.Equal(p.Data, test.want) {
				t.Errorf("got  % x\nwant % x", p.Data, test.want)
			}
			if v.Done&^Pass != test.done&^Pass || v.Done.Dropped() != test.done.Dropped() || p.Mark != test.mark {
				t.Errorf("done %04b, want %04b; mark %d, want %d", v.Done, test.done, p.Mark, test.mark)
			}
			if v.HasDSCP != (test.dscp >= 0) || v.HasDSCP && int(v.DSCPOut) != test.dscp {
				t.Errorf("DSCP on departure %d (valid %v), want %d", v.DSCPOut, v.HasDSCP, test.dscp)
			}
		})
	}
}

// TestLengthRule has rows at and next to each bound of the rule.
func TestLengthRule(t *testing.T) {
	for _, test := range []struct {
		rule  LengthRule
		frame []byte
		wire  int64
		want  int64
	}{
		{LengthRule{}, ip(0, 29), 60, 29},
		{LengthRule{}, ip(0, 1000), 0, 1000},
		{LengthRule{}, ip(0, 20), 1 << 20, 1<<20 - 14},
		{LengthRule{Base: L2}, ip(0, 29), 60, 60},
		{LengthRule{Base: L2}, ip(0, 29), 0, 43},
		{LengthRule{Base: L1}, ip(0, 29), 0, 84},
		{LengthRule{Base: L1}, ip(0, 46), 0, 84},
		{LengthRule{Base: L1}, ip(0, 47), 0, 85},
		{LengthRule{Base: L1}, ip(0, 1500), 0, 1538},
		{LengthRule{Base: L2, Overhead: 4}, ip(0, 1500), 0, 1518},
		{LengthRule{Overhead: -20}, ip(0, 1500), 0, 1480},
		{LengthRule{Overhead: -21}, ip(0, 20), 0, 0},
		{LengthRule{MPU: 64}, ip(0, 63), 0, 64},
		{LengthRule{MPU: 64}, ip(0, 65), 0, 65},
		{LengthRule{Base: L2, Overhead: 4, MPU: 64}, ip(0, 45), 0, 64},
		{LengthRule{Base: L2, Overhead: 4, MPU: 64}, ip(0, 47), 0, 65},
		{LengthRule{Overhead: -2000, MPU: 64}, ip(0, 1500), 0, 64},
		{LengthRule{Base: L2}, arp, 0, 60},
		{LengthRule{}, arp, 0, 46},
		{LengthRule{Base: L2}, ip(0, 20), 1<<32 - 1, 1<<32 - 1},
		{LengthRule{Base: L1}, ip(0, 20), 1<<32 - 25, 1<<32 - 1},
		{LengthRule{Base: L1}, ip(0, 20), 1<<32 - 24, 1<<32 - 1}, // capped at 32 bits
		{LengthRule{Base: L1, Overhead: 1 << 15}, ip(0, 20), 1<<32 - 1, 1<<32 - 1},
		{LengthRule{Base: L1, Overhead: -1 << 15}, ip(0, 20), 1<<32 - 1, 1<<32 + 23 - 1<<15},
		{LengthRule{Base: L1, Overhead: 1 << 15}, ip(0, 20), math.MaxInt32, min(math.MaxInt32+24+1<<15, math.MaxInt)},
		{LengthRule{Overhead: 1 << 15, MPU: 1 << 15}, ip(0, 20), 0, 20 + 1<<15},
		{LengthRule{Overhead: -1 << 15, MPU: 1 << 15}, ip(0, 20), 0, 1 << 15},
	} {
		if int64(int(test.wire)) != test.wire {
			continue // an int has 32 bits
		}
		l := build(t, &Policy{Length: test.rule, Classes: []Class{{Name: "a", Match: Match{Length: is(uint32(test.want))}}}})
		v := verdictOf(l, &Packet{Data: test.frame, WireLen: int(test.wire), Link: LinkEthernet})
		if int64(v.Length) != test.want || v.Class != 0 || l.Stats()[0].Colors[meter.Green] != (Count{1, test.want}) {
			t.Errorf("%+v, frame of %d bytes: length %d (class %d, counters %+v), want %d", test.rule, max(int64(len(test.frame)), test.wire), v.Length, v.Class, l.Stats()[0], test.want)
		}
	}
}

func TestAccepts(t *testing.T) {
	links := []LinkType{LinkNull, LinkEthernet, LinkRawBSD, LinkRawOBSD, LinkRaw, LinkLoop, LinkSLL, LinkIPv4, LinkIPv6, LinkSLL2, 127}
	for _, rule := range []LengthRule{{}, {Overhead: 4, MPU: 64}, {Base: L2}, {Base: L1}, {Base: L2, Overhead: 4}} {
		l := build(t, &Policy{Length: rule, Classes: []Class{{Name: "a"}}})
		for _, link := range links {
			want := rule.Base == L3 || link == LinkEthernet
			if err := l.Accepts(link); (err == nil) != want {
				t.Errorf("%+v on link type %d: error %v, want accepted %v", rule, link, err, want)
			}
		}
	}
}

// randomMeter returns a meter with token buckets for a few packets, or a chain of them.
func randomMeter(r *rand.Rand, aware bool) *Meter {
	rate := func() meter.Rate { return meter.BitRate(1 + r.Int64N(20e6)) }
	burst := func() int64 { return 1 + r.Int64N(6000) }
	m := &Meter{Aware: aware, Packets: r.IntN(8) == 0, Initial: Share{r.Int64N(5), 4}}
	switch a, b := rate(), rate(); r.IntN(4) {
	case 0:
		m.Params = meter.SRTCM{CIR: a, CBS: burst(), EBS: burst()}
	case 1:
		if a.Cmp(b) > 0 {
			a, b = b, a
		}
		m.Params = meter.TRTCM{CIR: a, CBS: burst(), PIR: b, PBS: burst()}
	case 2:
		m.Params = meter.TRTCM4115{CIR: a, CBS: burst(), EIR: b, EBS: burst(), Coupling: r.IntN(2) == 0}
	case 3:
		m.Params = meter.TokenBucket{Rate: a, Burst: burst()}
	}
	if r.IntN(3) == 0 {
		m.Then = randomMeter(r, true)
	}
	return m
}

func randomAction(r *rand.Rand, queues []*Queue) *Action {
	switch r.IntN(4) {
	case 0:
		return nil
	case 1:
		return &Action{Drop: true}
	}
	a := &Action{ECN: ECN(r.IntN(3))}
	for _, f := range r.Perm(len(fieldMax))[:r.IntN(len(fieldMax)+1)] {
		a.Marks = append(a.Marks, Mark{Field(f), uint32(r.Uint64N(uint64(fieldMax[f]) + 1))})
	}
	if r.IntN(2) == 0 {
		a.Queue = queues[r.IntN(len(queues))]
	}
	return a
}

// randomPolicy returns a policy. It makes the same meters, classes and actions from the same
// random numbers, whether the meters are color-aware or not.
func randomPolicy(r *rand.Rand, aware bool, from func() PreColor) *Policy {
	policy := &Policy{Length: LengthRule{LengthBase(r.IntN(3)), r.IntN(60) - 30, r.IntN(80)}}
	meters := []*Meter{nil, randomMeter(r, aware), randomMeter(r, aware), randomMeter(r, aware)}
	for _, m := range meters[1:] {
		m.PreColor = from()
	}
	early := queue.Config{
		ECN: r.IntN(2) == 0, Seed: r.Uint64(),
		WRED:  [3]queue.Early{{}, {Min: 100, Max: 3000, Probability: queue.Certain / 2}, {Min: 0, Max: 2000, Probability: queue.Certain}},
		CoDel: queue.CoDel{Target: time.Millisecond, Interval: 2 * time.Millisecond},
	}
	with := func(c queue.Config, edit func(*queue.Config)) queue.Config { edit(&c); return c }
	link := &Link{Rate: meter.BitRate(4e6)}
	queues := []*Queue{
		{Config: queue.Config{Rate: meter.BitRate(1e6), Time: 10 * time.Millisecond}},
		{Config: with(early, func(c *queue.Config) { c.Rate, c.Bytes, c.Packets = meter.BitRate(1e7), 3000, 9 })},
		{Config: with(early, func(c *queue.Config) { c.Bytes = 5000 }), Link: link},
		{Config: queue.Config{Packets: 9}, Link: link, Weight: 3},
		{Config: queue.Config{Time: 20 * time.Millisecond}, Link: link, Priority: 1},
		{Config: queue.Config{Bytes: 3000}, Link: &Link{Rate: meter.BitRate(1e6)}},
	}
	for i := range 1 + r.IntN(6) {
		policy.Classes = append(policy.Classes, Class{
			Name: fmt.Sprint(i), Match: randomMatch(r, 12), Meter: meters[r.IntN(len(meters))],
			Green: randomAction(r, queues), Yellow: randomAction(r, queues), Red: randomAction(r, queues),
		})
	}
	return policy
}

// anyField returns a source of random PreColors.
func anyField(r *rand.Rand) func() PreColor {
	return func() PreColor {
		from := PreColor{From: Field(r.IntN(len(fieldMax)))}
		if r.IntN(2) == 0 {
			from.Map = map[uint32]meter.Color{}
			for range 8 {
				from.Map[uint32(r.Uint64N(uint64(fieldMax[from.From])+1))] = meter.Color(r.IntN(3))
			}
		}
		return from
	}
}

// randomFrame returns a frame with random headers, sometimes truncated.
func randomFrame(r *rand.Rand) []byte {
	payload := pad(ports(uint16(r.Uint32()), uint16(r.Uint32())), 8+r.IntN(1400))
	proto := []byte{protoTCP, protoUDP, protoSCTP, 1}[r.IntN(4)]
	tos := byte(r.Uint32())
	t, packet := uint16(etherIPv4), v4{tos: tos, proto: proto, frag: uint16(r.IntN(2) * r.IntN(9)), options: 4 * r.IntN(11)}.packet(payload)
	ppp := uint16(pppIPv4)
	switch r.IntN(5) {
	case 0, 1:
		t, packet, ppp = etherIPv6, v6{class: tos, next: 60}.packet(extension(proto, 8), payload), pppIPv6
	case 2:
		if r.IntN(2) == 0 {
			t, packet, ppp = 0x0806, make([]byte, 28), 0xc021
		}
	}
	switch r.IntN(4) {
	case 0:
		t, packet = etherMPLS, cat(label(r.Uint32N(1<<20), r.Uint32N(8), 0), label(9, r.Uint32N(8), 1), packet)
	case 1:
		t, packet = etherPPPoE, cat(pppoe(ppp), packet)
	}
	for range r.IntN(4) {
		t, packet = etherVLAN, cat(tag(uint16(r.IntN(8)), uint16(r.IntN(2)), uint16(r.IntN(4096)), t), packet)
	}
	frame := cat(eth(t), packet)
	if r.IntN(10) == 0 {
		frame = frame[:r.IntN(len(frame))]
	}
	return frame
}

// queuedPacket is a packet that is queued in a link, and the frame as it arrived.
type queuedPacket struct {
	p     Packet
	frame []byte
}

// TestProperties checks the properties of all policies on random ones: colors get no better,
// departures are not before arrivals, marks change nothing else, counters add up.
func TestProperties(t *testing.T) {
	r := seeded(t)
	var seen Done
	reasons := map[Reason]int{}
	for range 150 {
		policy := randomPolicy(r, true, anyField(r))
		l, sum := build(t, policy), newTally(policy)
		waiting := map[int64]queuedPacket{}
		settle := func(now int64) {
			for v := (Verdict{}); l.Settle(now, &v); {
				w, ok := waiting[v.ID]
				if delete(waiting, v.ID); !ok {
					t.Fatalf("packet %d was not queued: %+v", v.ID, v)
				}
				sum.settle(v)
				seen |= v.Done
				reasons[v.Reason]++
				if !v.Done.Dropped() && (v.Departure < v.Now || v.Departure > now) {
					t.Fatalf("settled by %d: arrived at %d and departs at %d", now, v.Now, v.Departure)
				}
				if v.Done&ECNSet != 0 {
					w.p.SetCE()
				}
				checkMarked(t, policy.Classes[v.Class].Action(v.Color), &w.p, w.frame, v)
			}
		}
		var now int64
		for i := range int64(150) {
			now += r.Int64N(2e6) - 1e5
			frame := randomFrame(r)
			p := Packet{Data: bytes.Clone(frame), Time: now, Link: LinkEthernet, Mark: r.Uint32N(3), ID: i}
			v := verdictOf(l, &p)
			sum.add(v)
			seen |= v.Done
			reasons[v.Reason]++
			before := describe(&p)
			if v.Class < 0 {
				if v.Done != Pass || !bytes.Equal(p.Data, frame) {
					t.Fatalf("%s: unclassified, but done is %04b", before, v.Done)
				}
				continue
			}
			if v.Color < v.Pre {
				t.Fatalf("%s: %v became %v", before, v.Pre, v.Color)
			}
			if v.Departure < l.Now() {
				t.Fatalf("%s: departs at %d, before its arrival at %d", before, v.Departure, l.Now())
			}
			if v.Done&Waiting != 0 {
				waiting[i] = queuedPacket{p, frame}
			} else {
				action := policy.Classes[v.Class].Action(v.Color)
				checkMarked(t, action, &p, frame, v)
				checkAgain(t, action, p.Data)
			}
			if r.IntN(3) > 0 {
				settle(l.Now())
			}
		}
		for at, ok := l.Due(); ok; at, ok = l.Due() {
			settle(max(at, l.Now()))
		}
		if len(waiting) > 0 {
			t.Fatalf("%d packets were not settled", len(waiting))
		}
		sum.check(t, l)
	}
	if seen != Pass|ECNSet|Marked|Queued|Waiting {
		t.Errorf("a case did not occur: done %05b", seen)
	}
	if reasons[QueueFull] == 0 || reasons[WRED]+reasons[CoDel] == 0 {
		t.Errorf("a case did not occur: reasons %v", reasons)
	}
}

// checkMarked checks that marking keeps the length, the results of Parse, a valid checksum,
// and the ECN field unless the action or the queue sets CE.
func checkMarked(t *testing.T, action Action, p *Packet, frame []byte, v Verdict) {
	t.Helper()
	q := Packet{Data: frame, Link: LinkEthernet}
	Parse(&q)
	before := describe(&q)
	if Parse(p); describe(p) != before || len(p.Data) != len(frame) {
		t.Fatalf("%s became %s by %+v", before, describe(p), action)
	}
	if p.Kind == IPv4 {
		h := p.Data[p.L3:]
		if checksum(h[:4*int(h[0]&15)]) != 0 {
			t.Fatalf("%s: wrong checksum after %+v", before, action)
		}
	}
	ecn := func(p *Packet) byte {
		switch p.Kind {
		case IPv4:
			return p.Data[p.L3+1] & 3
		case IPv6:
			return p.Data[p.L3+1] >> 4 & 3
		}
		return 0
	}
	want := ecn(&q)
	if (action.ECN != NoECN || v.Done&ECNSet != 0) && want != marker.NotECT {
		want = marker.CE
	}
	if ecn(p) != want || v.Done&ECNSet != 0 && want != marker.CE {
		t.Fatalf("%s: ECN %d became %d by %+v", before, ecn(&q), ecn(p), action)
	}
	if dscp, ok := p.DSCP(); ok && !v.Done.Dropped() && dscp != v.DSCPOut {
		t.Fatalf("%s: DSCP %d, but %d in the verdict", before, dscp, v.DSCPOut)
	}
	if v.Done == Pass && !bytes.Equal(p.Data, frame) {
		t.Fatalf("%s passed, but changed", before)
	}
}

// checkAgain checks that applying an action a second time changes nothing.
func checkAgain(t *testing.T, action Action, marked []byte) {
	t.Helper()
	action.Queue = nil
	l := build(t, &Policy{Classes: []Class{{Name: "a", Match: Match{Length: []Range{{0, math.MaxUint32}}}, Green: &action}}})
	if _, again := process(l, 0, marked); !bytes.Equal(again, marked) {
		t.Fatalf("%+v applied twice: % x, once: % x", action, again, marked)
	}
}

// TestBlindIsAwareWithGreen checks that a color-blind policy is the color-aware one with
// green input colors.
func TestBlindIsAwareWithGreen(t *testing.T) {
	r := seeded(t)
	for range 100 {
		seed := r.Uint64()
		policy := func(aware bool) *Policy {
			return randomPolicy(rand.New(rand.NewPCG(seed, 0)), aware, func() PreColor {
				return PreColor{Map: map[uint32]meter.Color{}}
			})
		}
		blind, aware := build(t, policy(false)), build(t, policy(true))
		var now int64
		for i := range 100 {
			now += r.Int64N(2e6)
			frame := randomFrame(r)
			got, gotFrame := process(blind, now, frame)
			want, wantFrame := process(aware, now, frame)
			if got != want || !bytes.Equal(gotFrame, wantFrame) {
				t.Fatalf("packet %d: color-blind %+v, color-aware %+v", i, got, want)
			}
		}
	}
}

// workload returns a pipeline of 16 classes that uses all features, and frames that reach
// all of them.
func workload(t testing.TB) (*Pipeline, [][]byte) {
	total := &Meter{Name: "total", Params: meter.TRTCM{CIR: meter.BitRate(80e6), CBS: 1 << 20, PIR: meter.BitRate(100e6), PBS: 2 << 20}, Aware: true}
	bulk := &Queue{Name: "bulk", Config: queue.Config{Rate: meter.BitRate(20e6), Time: 100 * time.Millisecond}}
	shared := &Queue{Name: "shared", Config: queue.Config{Bytes: 30_000, ECN: true, CoDel: queue.CoDel{Target: time.Millisecond, Interval: time.Millisecond}}, Link: &Link{Rate: meter.BitRate(4e6)}}
	policy := &Policy{}
	for i := range uint32(15) {
		policy.Classes = append(policy.Classes, Class{
			Name:   fmt.Sprint(i),
			Match:  Match{Proto: is(protoTCP, protoUDP), DPort: []Range{{i * 4000, i*4000 + 3999}}, Dst: prefixes("198.51.100.0/24", "2001:db8::/32")},
			Meter:  &Meter{Name: "own", Params: meter.SRTCM{CIR: meter.BitRate(8e6), CBS: 20_000, EBS: 40_000}, Aware: true, Then: total},
			Green:  &Action{ECN: CE, Marks: []Mark{{DSCP, 10}, {PCP, 1}, {MPLSTC, 1}, {SKBMark, 1}}},
			Yellow: &Action{Marks: []Mark{{DSCP, 12}, {DEI, 1}}, Queue: bulk},
			Red:    &Action{ECN: CEOrDrop, Queue: shared},
		})
	}
	policy.Classes = append(policy.Classes, Class{
		Name: "rest", Match: Match{Length: []Range{{0, 9000}}},
		Meter: &Meter{Name: "rest", Params: meter.TokenBucket{Rate: meter.BitRate(1e6), Burst: 9000}, Aware: true, PreColor: PreColor{From: SKBMark, Map: map[uint32]meter.Color{1000: meter.Red}}},
	})
	r := rand.New(rand.NewPCG(1, 1))
	frames := make([][]byte, 512)
	for i := range frames {
		frames[i] = randomFrame(r)
	}
	return build(t, policy), frames
}

func TestProcessAllocatesNothing(t *testing.T) {
	l, frames := workload(t)
	var seen Done
	var dropped, rest bool
	var v Verdict
	p := Packet{Link: LinkEthernet}
	i := 0
	process := func() {
		p.Data, p.WireLen = frames[i%len(frames)], 0
		p.Time += 300 * µs
		l.Process(&p, &v)
		seen |= v.Done
		dropped = dropped || v.Done.Dropped()
		rest = rest || v.Class == 15
		for l.Settle(p.Time, &v) {
			seen |= v.Done
		}
		i++
	}
	for range 5000 {
		process()
	}
	if allocs := testing.AllocsPerRun(5000, process); allocs != 0 {
		t.Errorf("%v allocations per packet", allocs)
	}
	if seen != Pass|ECNSet|Marked|Queued|Waiting || !dropped || !rest {
		t.Errorf("a case did not occur: done %05b, dropped %v, last class %v", seen, dropped, rest)
	}
}

func BenchmarkProcess(b *testing.B) {
	l, frames := workload(b)
	var v Verdict
	p := Packet{Link: LinkEthernet}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		p.Data, p.WireLen = frames[i%len(frames)], 0
		p.Time += µs
		l.Process(&p, &v)
		for l.Settle(p.Time, &v) {
		}
	}
}
