package pipeline

import (
	"bytes"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/internal/frametest"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// ipPacket returns a frame with an IPv4 packet of n bytes.
func ipPacket(dscp uint8, n int) []byte {
	return frametest.Concat(frametest.Ethernet(frametest.EtherIPv4),
		frametest.V4{Tos: dscp << 2, Proto: frametest.ProtoUDP}.Packet(make([]byte, n-20)))
}

var arp = frametest.PadTo(frametest.Concat(frametest.Ethernet(0x0806), make([]byte, 28)), 60)

// newPipeline compiles a policy.
func newPipeline(t testing.TB, policy *dataplane.Policy) *Pipeline {
	t.Helper()
	l, err := New(policy)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// tokensOf returns the tokens of a meter of the policy.
func tokensOf(l *Pipeline, m *dataplane.Meter) (tc, te int64) { return l.Tokens(l.plan.Stage(m)) }

// verdictOf processes a packet.
func verdictOf(l *Pipeline, p *dataplane.Packet) (v dataplane.Verdict) {
	l.Process(p, &v)
	return v
}

// process processes a copy of an Ethernet frame that arrives at a time, and returns the
// marked copy too.
func process(l *Pipeline, at int64, frame []byte) (dataplane.Verdict, []byte) {
	p := dataplane.Packet{Data: bytes.Clone(frame), Time: at, Link: dataplane.LinkEthernet}
	return verdictOf(l, &p), p.Data
}

func TestPipeline(t *testing.T) {
	srTCM := meter.SRTCM{CIR: frametest.Mega, CBS: 1000, EBS: 1000}
	af := func(v uint8) *dataplane.Action {
		return &dataplane.Action{Marks: []dataplane.Mark{{Field: dataplane.DSCP, Value: uint32(v)}}}
	}
	paced := func(cfg queue.Config) *dataplane.Action {
		return &dataplane.Action{Queue: &dataplane.Queue{Name: "q", Config: cfg}}
	}
	one := func(c dataplane.Class) []dataplane.Class { c.Name = "a"; return []dataplane.Class{c} }
	shared := &dataplane.Meter{Params: srTCM}
	pool := paced(queue.Config{Rate: frametest.Mega, Time: 1000 * µs})
	everything := dataplane.Match{Length: []dataplane.Range{{First: 0, Last: math.MaxUint32}}}
	type step struct {
		at    int64
		frame []byte
		want  string
	}
	for _, test := range []struct {
		name    string
		classes []dataplane.Class
		steps   []step
	}{
		{"defaults: green and yellow pass, red is dropped", one(dataplane.Class{Meter: &dataplane.Meter{Params: srTCM}}), []step{
			{0, ipPacket(0, 1001), "a green>red drop rfc2697-red"},
			{0, ipPacket(0, 1000), "a green>green pass rfc2697-green"},
			{0, ipPacket(0, 1000), "a green>yellow pass rfc2697-yellow"},
			{0, ipPacket(0, 20), "a green>red drop rfc2697-red"},
			{19 * µs, ipPacket(0, 20), "a green>red drop rfc2697-red"},
			{20 * µs, ipPacket(0, 20), "a green>green pass rfc2697-green"},
		}},
		{"an action for every color", one(dataplane.Class{Meter: &dataplane.Meter{Params: srTCM}, Green: af(10), Yellow: &dataplane.Action{Drop: true}, Red: &dataplane.Action{}}), []step{
			{0, ipPacket(0, 1000), "a green>green mark=10 rfc2697-green"},
			{0, ipPacket(0, 1000), "a green>yellow drop rfc2697-yellow"},
			{0, ipPacket(0, 1001), "a green>red pass rfc2697-red"},
		}},
		{"no meter: green", one(dataplane.Class{}), []step{
			{0, ipPacket(14, 1500), "a green>green pass no-meter"},
			{0, frametest.Concat(frametest.Ethernet(frametest.EtherIPv6), frametest.V6{Class: 14 << 2}.Packet()), "a green>green pass no-meter"},
		}},
		{"no meter: the green action", one(dataplane.Class{Green: &dataplane.Action{Drop: true}}), []step{
			{0, ipPacket(0, 100), "a green>green drop no-meter"},
		}},
		{"unclassified packets", one(dataplane.Class{Match: dataplane.Match{DSCP: frametest.Values(46)}, Green: &dataplane.Action{Drop: true}}), []step{
			{0, ipPacket(46, 100), "a green>green drop no-meter"},
			{0, ipPacket(0, 100), "- pass no-meter"},
			{0, frametest.Concat(frametest.Ethernet(frametest.EtherIPv6), frametest.V6{}.Packet()), "- pass no-meter"},
			{0, arp, "- pass not-ip"},
			{0, ipPacket(46, 100)[:33], "- pass malformed"},
			{0, nil, "- pass malformed"},
		}},
		{"the first matching class", []dataplane.Class{
			{Name: "ef", Match: dataplane.Match{DSCP: frametest.Values(46)}, Red: &dataplane.Action{}},
			{Name: "low", Match: dataplane.Match{DSCP: []dataplane.Range{{First: 0, Last: 46}}}, Green: &dataplane.Action{Drop: true}},
			{Name: "rest"},
		}, []step{
			{0, ipPacket(46, 100), "ef green>green pass no-meter"},
			{0, ipPacket(45, 100), "low green>green drop no-meter"},
			{0, ipPacket(47, 100), "rest green>green pass no-meter"},
		}},
		{"two classes share a meter", []dataplane.Class{
			{Name: "ef", Match: dataplane.Match{DSCP: frametest.Values(46)}, Meter: shared},
			{Name: "rest", Meter: shared, Red: &dataplane.Action{}},
		}, []step{
			{0, ipPacket(46, 600), "ef green>green pass rfc2697-green"},
			{0, ipPacket(0, 600), "rest green>yellow pass rfc2697-yellow"},
			{0, ipPacket(46, 401), "ef green>red drop rfc2697-red"},
			{0, ipPacket(0, 400), "rest green>green pass rfc2697-green"},
			{0, ipPacket(46, 400), "ef green>yellow pass rfc2697-yellow"},
			{0, ipPacket(0, 20), "rest green>red pass rfc2697-red"},
		}},
		{"a meter of packets", one(dataplane.Class{Meter: &dataplane.Meter{Params: meter.TokenBucket{Rate: meter.Rate{Bytes: 1, Period: time.Second}, Burst: 2}, Packets: true}}), []step{
			{0, ipPacket(0, 9000), "a green>green pass token-bucket-green"},
			{0, ipPacket(0, 20), "a green>green pass token-bucket-green"},
			{0, ipPacket(0, 20), "a green>red drop token-bucket-red"},
			{1e9 - 1, ipPacket(0, 20), "a green>red drop token-bucket-red"},
			{1e9, ipPacket(0, 9000), "a green>green pass token-bucket-green"},
		}},
		{"a bucket that starts empty gains tokens from its first packet on", one(dataplane.Class{Meter: &dataplane.Meter{Params: srTCM, Initial: dataplane.Fraction{Num: 0, Den: 1}}}), []step{
			{5e9, ipPacket(0, 20), "a green>red drop rfc2697-red"},
			{5e9 + 19*µs, ipPacket(0, 20), "a green>red drop rfc2697-red"},
			{5e9 + 20*µs, ipPacket(0, 20), "a green>green pass rfc2697-green"},
		}},
		{"initial tokens are rounded down", one(dataplane.Class{Meter: &dataplane.Meter{Params: meter.SRTCM{CIR: frametest.Mega, CBS: 101, EBS: 99}, Initial: dataplane.Fraction{Num: 1, Den: 2}}}), []step{
			{0, ipPacket(0, 51), "a green>red drop rfc2697-red"},
			{0, ipPacket(0, 50), "a green>green pass rfc2697-green"},
			{0, ipPacket(0, 50), "a green>red drop rfc2697-red"},
			{0, ipPacket(0, 49), "a green>yellow pass rfc2697-yellow"},
		}},
		{"a timestamp that goes backwards", one(dataplane.Class{Meter: &dataplane.Meter{Params: srTCM}, Green: paced(queue.Config{Rate: frametest.Mega, Time: time.Second})}), []step{
			{1000 * µs, ipPacket(0, 1000), "a green>green queue@1000000 rfc2697-green"},
			{0, ipPacket(0, 1000), "a green>yellow pass rfc2697-yellow"},
			{0, ipPacket(0, 20), "a green>red drop rfc2697-red"},
			{500 * µs, ipPacket(0, 20), "a green>red drop rfc2697-red"},
			{1020 * µs, ipPacket(0, 20), "a green>green queue@2000000 rfc2697-green"},
			{0, ipPacket(0, 20), "a green>red drop rfc2697-red"},
		}},
		{"queue: a limit in time", one(dataplane.Class{Green: paced(queue.Config{Rate: frametest.Mega, Time: 1000 * µs})}), []step{
			{0, ipPacket(0, 1000), "a green>green queue@0 no-meter"},
			{0, ipPacket(0, 1000), "a green>green queue@1000000 no-meter"},
			{0, ipPacket(0, 20), "a green>green drop queue-full"},
			{1000*µs - 1, ipPacket(0, 20), "a green>green drop queue-full"},
			{1000 * µs, ipPacket(0, 20), "a green>green queue@2000000 no-meter"},
		}},
		{"queue: a limit in packets", one(dataplane.Class{Green: paced(queue.Config{Rate: frametest.Mega, Packets: 1})}), []step{
			{0, ipPacket(0, 1000), "a green>green queue@0 no-meter"},
			{0, ipPacket(0, 1000), "a green>green queue@1000000 no-meter"},
			{0, ipPacket(0, 20), "a green>green drop queue-full"},
		}},
		{"queue: two colors of two classes share a queue", []dataplane.Class{
			{Name: "ef", Match: dataplane.Match{DSCP: frametest.Values(46)}, Green: pool},
			{Name: "rest", Meter: &dataplane.Meter{Params: meter.TokenBucket{Rate: frametest.Mega, Burst: 20}}, Red: pool},
		}, []step{
			{0, ipPacket(46, 500), "ef green>green queue@0 no-meter"},
			{0, ipPacket(0, 500), "rest green>red queue@500000 token-bucket-red"},
			{0, ipPacket(46, 500), "ef green>green queue@1000000 no-meter"},
			{0, ipPacket(0, 500), "rest green>red drop queue-full"},
			{0, ipPacket(0, 20), "rest green>green pass token-bucket-green"},
		}},
		{"a packet dropped by a queue is not marked", one(dataplane.Class{Green: &dataplane.Action{Marks: []dataplane.Mark{{Field: dataplane.DSCP, Value: 10}}, Queue: pool.Queue}}), []step{
			{0, ipPacket(0, 1001), "a green>green mark=10+queue@0 no-meter"},
			{0, ipPacket(0, 20), "a green>green drop queue-full"},
		}},
		{"ECN, mark and queue", one(dataplane.Class{Match: everything, Green: &dataplane.Action{ECN: dataplane.CE, Marks: []dataplane.Mark{{Field: dataplane.DSCP, Value: 10}}, Queue: pool.Queue}}), []step{
			{0, frametest.Concat(frametest.Ethernet(frametest.EtherIPv4), frametest.V4{Tos: 2}.Packet(nil)), "a green>green ecn+mark=10+queue@0 no-meter"},
			{0, frametest.Concat(frametest.Ethernet(frametest.EtherIPv4), frametest.V4{Tos: 0}.Packet(nil)), "a green>green mark=10+queue@20000 no-meter"},
			{0, arp, "a green>green queue@40000 no-meter"},
		}},
		{"ECN or drop", one(dataplane.Class{Match: everything, Green: &dataplane.Action{ECN: dataplane.CEOrDrop, Marks: []dataplane.Mark{{Field: dataplane.DSCP, Value: 10}}}}), []step{
			{0, frametest.Concat(frametest.Ethernet(frametest.EtherIPv6), frametest.V6{Class: 1}.Packet()), "a green>green ecn+mark=10 no-meter"},
			{0, frametest.Concat(frametest.Ethernet(frametest.EtherIPv6), frametest.V6{Class: 4}.Packet()), "a green>green drop no-meter"},
			{0, arp, "a green>green drop no-meter"},
		}},
		{"marking with the present DSCP", one(dataplane.Class{Green: af(10)}), []step{
			{0, ipPacket(10, 20), "a green>green mark=10 no-meter"},
		}},
		{"a class of all frames includes frames without IP", one(dataplane.Class{Match: everything, Meter: &dataplane.Meter{Params: srTCM, Aware: true}, Green: af(10)}), []step{
			{0, arp, "a green>green pass rfc2697-green"},
			{0, nil, "a green>green pass rfc2697-green"},
			{0, ipPacket(12, 20), "a yellow>yellow pass rfc2697-pre-yellow"},
			{0, ipPacket(14, 20), "a red>red drop rfc2697-pre-red"},
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			policy := &dataplane.Policy{Classes: test.classes}
			l, sum := newPipeline(t, policy), newTally(&dataplane.Policy{Classes: test.classes})
			now := int64(math.MinInt64)
			for i, s := range test.steps {
				v, _ := process(l, s.at, s.frame)
				sum.addVerdict(v)
				if got := verdict(policy, v); got != s.want {
					t.Errorf("step %d: got %q, want %q", i, got, s.want)
				}
				if now = max(now, s.at); l.Now() != now || v.Done == dataplane.Pass && v.Departure != now {
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
	policy := &dataplane.Policy{DropUnclassified: true, Classes: []dataplane.Class{
		{Name: "ef", Match: dataplane.Match{DSCP: frametest.Values(46)}},
		{Name: "arp", Match: dataplane.Match{EtherType: frametest.Values(0x0806), VLAN: frametest.Values(7)}},
	}}
	l, sum := newPipeline(t, policy), newTally(policy)
	tagged := frametest.Concat(frametest.Ethernet(0x8100), []byte{0, 7, 8, 6}, make([]byte, 28))
	for i, s := range []struct {
		frame []byte
		want  string
	}{
		{ipPacket(46, 100), "ef green>green pass no-meter"},
		{ipPacket(0, 100), "- drop no-meter"},
		{frametest.Concat(frametest.Ethernet(frametest.EtherIPv6), frametest.V6{}.Packet()), "- drop no-meter"},
		{arp, "- drop not-ip"},
		{tagged, "arp green>green pass no-meter"},
		{ipPacket(46, 100)[:33], "- drop malformed"},
		{nil, "- drop malformed"},
	} {
		v, after := process(l, int64(i), s.frame)
		sum.addVerdict(v)
		if got := verdict(policy, v); got != s.want || !bytes.Equal(after, s.frame) {
			t.Errorf("frame %d: got %q, want %q", i, got, s.want)
		}
	}
	sum.check(t, l)
	if got, all := l.Stats()[2].UntakenDropped.Packets, l.Stats()[2].AllDropped().Packets; got != 5 ||
		all != 5 {
		t.Errorf("%d of %d dropped packets were unclassified, want 5 of 5", got, all)
	}
}

// TestChain checks the tokens of both meters of a chain after each packet.
func TestChain(t *testing.T) {
	for _, totalFirst := range []bool{false, true} {
		testChain(t, totalFirst)
	}
}

// testChain tests a chain whose last meter is used by an earlier class too, or by a later one.
func testChain(t *testing.T, totalFirst bool) {
	total := &dataplane.Meter{
		Name: "total", Params: meter.SRTCM{CIR: frametest.Mega, CBS: 500, EBS: 400}, Aware: true,
		PreColor: dataplane.PreColor{Map: map[uint32]meter.Color{0: meter.Red}},
	}
	first := &dataplane.Meter{
		Name: "first", Params: meter.TRTCM{CIR: frametest.Mega, CBS: 1000, PIR: frametest.Mega, PBS: 1200},
		Aware: true, Then: total,
	}
	policy := &dataplane.Policy{Classes: []dataplane.Class{
		{Name: "a", Meter: first},
		{Name: "unused", Match: dataplane.Match{DSCP: frametest.Values(1)}, Meter: total},
	}}
	if totalFirst {
		slices.Reverse(policy.Classes)
	}
	l := newPipeline(t, policy)
	for i, row := range []struct {
		frame          []byte
		want           string
		tc, tp         int64 // of first
		totalC, totalE int64
	}{
		// Red by the second meter: the first one has still taken its tokens.
		{ipPacket(0, 600), "a green>red drop rfc2697-red", 400, 600, 500, 400},
		// Red by the first meter: the second is skipped.
		{ipPacket(0, 601), "a green>red drop rfc2698-red", 400, 600, 500, 400},
		// The input color of the second meter is the color from the first, not that of the DSCP.
		{ipPacket(0, 400), "a green>green pass rfc2697-green", 0, 200, 100, 400},
		// Yellow by the first meter takes tokens from Te of the second.
		{ipPacket(0, 50), "a green>yellow pass rfc2697-pre-yellow", 0, 150, 100, 350},
		// The input color of a verdict is that of the first meter.
		{ipPacket(12, 60), "a yellow>yellow pass rfc2697-pre-yellow", 0, 90, 100, 290},
		{ipPacket(14, 20), "a red>red drop rfc2698-pre-red", 0, 90, 100, 290},
	} {
		v, _ := process(l, 0, row.frame)
		tc, tp := tokensOf(l, first)
		totalC, totalE := tokensOf(l, total)
		if got := verdict(policy, v); got != row.want || tc != row.tc || tp != row.tp ||
			totalC != row.totalC || totalE != row.totalE {
			t.Errorf("row %d: got %q with %d, %d and %d, %d tokens; want %q with %d, %d and %d, %d",
				i, got, tc, tp, totalC, totalE, row.want, row.tc, row.tp, row.totalC, row.totalE)
		}
	}
}

const µs = 1000
