package pipeline

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/internal/frametest"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// ecnPacket returns a frame with an ECN-capable IPv4 packet of n bytes.
func ecnPacket(dscp uint8, n int) []byte {
	return frametest.Concat(frametest.Ethernet(frametest.EtherIPv4),
		frametest.V4{Tos: dscp<<2 | 2, Proto: frametest.ProtoUDP}.Packet(make([]byte, n-20)))
}

// settled returns the packets that are settled by now, each as its ID and verdict.
func settled(policy *dataplane.Policy, l *Pipeline, now int64) (list []string) {
	for v := (dataplane.Verdict{}); l.Settle(now, &v); {
		list = append(list, fmt.Sprint(v.ID, " ", verdict(policy, v)))
	}
	return list
}

// TestLink sends packets, numbered from 1, to queues of a link with a rate of one byte per
// microsecond.
func TestLink(t *testing.T) {
	link := func(edit func(*dataplane.Queue)) *dataplane.Queue {
		q := &dataplane.Queue{
			Name: "q", Config: queue.Config{Packets: 100},
			Link: &dataplane.Link{Name: "wan", Rate: frametest.Mega},
		}
		edit(q)
		return q
	}
	to := func(q *dataplane.Queue, marks ...dataplane.Mark) *dataplane.Action {
		return &dataplane.Action{Queue: q, Marks: marks}
	}
	plain := link(func(*dataplane.Queue) {})
	beside := func(q *dataplane.Queue, edit func(*dataplane.Queue)) *dataplane.Queue {
		other := link(edit)
		other.Link = q.Link
		return other
	}
	codel := queue.CoDel{Target: 1000 * µs, Interval: 1000 * µs}
	ef := dataplane.Match{DSCP: frametest.Values(46)}
	type step struct {
		at      int64
		frame   []byte
		want    string
		settled []string // packets settled by that time
	}
	for _, test := range []struct {
		name    string
		classes []dataplane.Class
		steps   []step
		rest    []string // packets settled at the end
	}{
		{
			"an idle link sends immediately, a busy one by priority",
			[]dataplane.Class{
				{Name: "ef", Match: ef, Green: to(plain)},
				{Name: "rest", Green: to(beside(plain, func(q *dataplane.Queue) { q.Priority = 1 }))},
			},
			[]step{
				{0, ipPacket(0, 1000), "rest green>green wait no-meter", []string{"1 rest green>green queue@0 no-meter"}},
				{1 * µs, ipPacket(0, 500), "rest green>green wait no-meter", nil},
				{2 * µs, ipPacket(46, 100), "ef green>green wait no-meter", nil},
				{1000*µs - 1, ipPacket(0, 200), "rest green>green wait no-meter", nil},
				{1000 * µs, ipPacket(46, 100), "ef green>green wait no-meter", []string{"3 ef green>green queue@1000000 no-meter"}},
				{1200 * µs, arp, "- pass not-ip", []string{"5 ef green>green queue@1100000 no-meter", "2 rest green>green queue@1200000 no-meter"}},
			},
			[]string{"4 rest green>green queue@1700000 no-meter"},
		},
		{
			"several classes share a queue and its limit",
			[]dataplane.Class{
				{Name: "ef", Match: ef, Green: to(plain)},
				{Name: "rest", Green: to(plain)},
			},
			[]step{
				{0, ipPacket(46, 1000), "ef green>green wait no-meter", []string{"1 ef green>green queue@0 no-meter"}},
				{0, ipPacket(0, 1000), "rest green>green wait no-meter", nil},
				{0, ipPacket(46, 1000), "ef green>green wait no-meter", nil},
			},
			[]string{"2 rest green>green queue@1000000 no-meter", "3 ef green>green queue@2000000 no-meter"},
		},
		{
			"only yellow packets are queued",
			[]dataplane.Class{{
				Name:   "a",
				Meter:  &dataplane.Meter{Params: meter.SRTCM{CIR: frametest.Mega, CBS: 1000, EBS: 1000}},
				Yellow: to(plain),
			}},
			[]step{
				{0, ipPacket(0, 1000), "a green>green pass rfc2697-green", nil},
				{0, ipPacket(0, 1000), "a green>yellow wait rfc2697-yellow", []string{"2 a green>yellow queue@0 rfc2697-yellow"}},
				{0, ipPacket(0, 20), "a green>red drop rfc2697-red", nil},
				{999 * µs, ipPacket(0, 999), "a green>green pass rfc2697-green", nil},
				{999 * µs, ipPacket(0, 20), "a green>red drop rfc2697-red", nil},
				{1999 * µs, ipPacket(0, 1000), "a green>green pass rfc2697-green", nil},
			},
			nil,
		},
		{
			"a mark is written on arrival and counted on departure",
			[]dataplane.Class{{Name: "a", Green: &dataplane.Action{
				ECN: dataplane.CE, Queue: plain, Marks: []dataplane.Mark{{Field: dataplane.DSCP, Value: 10}},
			}}},
			[]step{
				{0, ecnPacket(0, 1000), "a green>green ecn+mark=10+wait no-meter", []string{"1 a green>green ecn+mark=10+queue@0 no-meter"}},
				{0, ipPacket(0, 1000), "a green>green mark=10+wait no-meter", nil},
			},
			[]string{"2 a green>green mark=10+queue@1000000 no-meter"},
		},
		{
			"full",
			[]dataplane.Class{{Name: "a", Green: to(link(func(q *dataplane.Queue) { q.Packets = 1 }),
				dataplane.Mark{Field: dataplane.DSCP, Value: 10})}},
			[]step{
				{0, ipPacket(0, 1000), "a green>green mark=10+wait no-meter", []string{"1 a green>green mark=10+queue@0 no-meter"}},
				{0, ipPacket(0, 1000), "a green>green mark=10+wait no-meter", nil},
				{0, ipPacket(0, 1000), "a green>green drop queue-full", nil},
			},
			[]string{"2 a green>green mark=10+queue@1000000 no-meter"},
		},
		{
			"WRED",
			[]dataplane.Class{{
				Name:  "a",
				Green: to(link(func(q *dataplane.Queue) { q.WRED[0] = queue.Early{Min: 1, Max: 1} })),
			}},
			[]step{
				{0, ipPacket(0, 1000), "a green>green wait no-meter", []string{"1 a green>green queue@0 no-meter"}},
				{0, ipPacket(0, 1000), "a green>green wait no-meter", nil},
				{0, ecnPacket(0, 1000), "a green>green drop wred", nil},
			},
			[]string{"2 a green>green queue@1000000 no-meter"},
		},
		{
			"CoDel drops when the link becomes free",
			[]dataplane.Class{{Name: "a", Green: to(link(func(q *dataplane.Queue) { q.CoDel = codel }),
				dataplane.Mark{Field: dataplane.DSCP, Value: 10})}},
			[]step{
				{0, ipPacket(0, 1000), "a green>green mark=10+wait no-meter", []string{"1 a green>green mark=10+queue@0 no-meter"}},
				{0, ipPacket(0, 1000), "a green>green mark=10+wait no-meter", nil},
				{0, ecnPacket(0, 1000), "a green>green mark=10+wait no-meter", nil},
				{0, ipPacket(0, 1000), "a green>green mark=10+wait no-meter", nil},
				{0, ipPacket(0, 1000), "a green>green mark=10+wait no-meter", nil},
				{0, ipPacket(0, 1000), "a green>green mark=10+wait no-meter", nil},
				{2000*µs - 1, arp, "- pass not-ip", []string{"2 a green>green mark=10+queue@1000000 no-meter"}},
				{2000 * µs, arp, "- pass not-ip", []string{"3 a green>green drop codel", "4 a green>green mark=10+queue@2000000 no-meter"}},
			},
			[]string{
				"5 a green>green mark=10+queue@3000000 no-meter",
				"6 a green>green mark=10+queue@4000000 no-meter",
			},
		},
		{
			"CoDel marks ECN-capable packets",
			[]dataplane.Class{
				{Name: "a", Green: to(link(func(q *dataplane.Queue) { q.CoDel, q.ECN = codel, true }))},
			},
			[]step{
				{0, ecnPacket(0, 1000), "a green>green wait no-meter", []string{"1 a green>green queue@0 no-meter"}},
				{0, ecnPacket(0, 1000), "a green>green wait no-meter", nil},
				{0, ecnPacket(0, 1000), "a green>green wait no-meter", nil},
				{0, ipPacket(0, 1000), "a green>green wait no-meter", nil},
				{0, ipPacket(0, 1000), "a green>green wait no-meter", nil},
				{0, ecnPacket(0, 1000), "a green>green wait no-meter", nil},
			},
			[]string{
				"2 a green>green queue@1000000 no-meter", "3 a green>green ecn+queue@2000000 no-meter", "4 a green>green drop codel",
				"5 a green>green queue@3000000 no-meter", "6 a green>green queue@4000000 no-meter",
			},
		},
		{
			"two links are independent",
			[]dataplane.Class{
				{Name: "ef", Match: ef, Green: to(link(func(q *dataplane.Queue) { q.Link.Rate = meter.BitRate(80e6) }))},
				{Name: "rest", Green: to(plain)},
			},
			[]step{
				{0, ipPacket(0, 1000), "rest green>green wait no-meter", []string{"1 rest green>green queue@0 no-meter"}},
				{0, ipPacket(0, 1000), "rest green>green wait no-meter", nil},
				{0, ipPacket(46, 1000), "ef green>green wait no-meter", []string{"3 ef green>green queue@0 no-meter"}},
				{0, ipPacket(46, 1000), "ef green>green wait no-meter", nil},
				{100 * µs, arp, "- pass not-ip", []string{"4 ef green>green queue@100000 no-meter"}},
			},
			[]string{"2 rest green>green queue@1000000 no-meter"},
		},
		{
			"a timestamp that goes backwards",
			[]dataplane.Class{{Name: "a", Green: to(plain)}},
			[]step{
				{500 * µs, ipPacket(0, 100), "a green>green wait no-meter", []string{"1 a green>green queue@500000 no-meter"}},
				{0, ipPacket(0, 100), "a green>green wait no-meter", nil},
			},
			[]string{"2 a green>green queue@600000 no-meter"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			policy := &dataplane.Policy{Classes: test.classes}
			l, sum := newPipeline(t, policy), newTally(policy)
			again := newPipeline(t, policy) // settled at each due time, for the counters
			for i, s := range test.steps {
				v := verdictOf(l, &dataplane.Packet{
					Data: bytes.Clone(s.frame), Time: s.at, Link: dataplane.LinkEthernet, ID: int64(i + 1),
				})
				if got := verdict(policy, v); got != s.want {
					t.Errorf("packet %d: got %q, want %q", i+1, got, s.want)
				}
				if v.Done.Dropped() && (v.DSCPOut != v.DSCPIn || v.Departure != v.Now) {
					t.Errorf(
						"packet %d was dropped, but has DSCP %d and departure %d: want those of its arrival",
						i+1, v.DSCPOut, v.Departure)
				}
				if got := settled(policy, l, l.Now()); !slices.Equal(got, s.settled) {
					t.Errorf("after packet %d: got %q, want %q", i+1, got, s.settled)
				}
				sum.addVerdict(verdictOf(again, &dataplane.Packet{
					Data: bytes.Clone(s.frame), Time: s.at, Link: dataplane.LinkEthernet, ID: int64(i + 1),
				}))
			}
			if got := settled(policy, l, math.MaxInt64); !slices.Equal(got, test.rest) {
				t.Errorf("at the end: got %q, want %q", got, test.rest)
			}
			if at, ok := l.Due(); ok {
				t.Errorf("Due returned %d, want false with no packet queued", at)
			}
			var v dataplane.Verdict
			for at, ok := again.Due(); ok; at, ok = again.Due() {
				if !again.Settle(at, &v) {
					t.Fatalf("Settle at the due time %d returned false", at)
				}
				if v.Done.Dropped() && (v.DSCPOut != v.DSCPIn || v.Departure != v.Now) {
					t.Errorf(
						"packet %d was dropped, but has DSCP %d and departure %d: want those of its arrival",
						v.ID, v.DSCPOut, v.Departure)
				}
				sum.settle(v)
			}
			sum.check(t, again)
		})
	}
}

// TestQueueMarks checks that a queue with a rate of its own writes CE to the packet, also if
// the action has set CE already.
func TestQueueMarks(t *testing.T) {
	q := &dataplane.Queue{Name: "q", Config: queue.Config{
		Rate: frametest.Mega, Packets: 9, ECN: true,
		CoDel: queue.CoDel{Target: 1000 * µs, Interval: 1000 * µs},
	}}
	for _, action := range []dataplane.ECN{dataplane.NoECN, dataplane.CE} {
		policy := &dataplane.Policy{Classes: []dataplane.Class{{Name: "a", Green: &dataplane.Action{
			ECN: action, Queue: q, Marks: []dataplane.Mark{{Field: dataplane.DSCP, Value: 10}},
		}}}}
		l := newPipeline(t, policy)
		process(l, 0, ipPacket(0, 1000))
		process(l, 0, ipPacket(0, 1000))
		v, frame := process(l, 0, ecnPacket(0, 1000))
		if got := verdict(policy, v); got != "a green>green ecn+mark=10+queue@2000000 no-meter" {
			t.Errorf("action %d: got %q, want departure with ecn, mark and queue", action, got)
		}
		if want := frametest.Concat(frametest.Ethernet(frametest.EtherIPv4), frametest.V4{
			Tos: 10<<2 | 3, Proto: frametest.ProtoUDP,
		}.Packet(make([]byte, 980))); !bytes.Equal(frame, want) {
			t.Errorf("action %d: got\n% x, want\n% x", action, frame[:40], want[:40])
		}
		v, _ = process(l, 0, ipPacket(7, 1000)) // would depart at 3 ms
		if got := verdict(policy, v); got != "a green>green drop codel" || v.DSCPOut != 7 ||
			v.Departure != 0 {
			t.Errorf("action %d: got %q, DSCP %d, departure %d, want a drop by codel, DSCP 7, departure 0",
				action, got, v.DSCPOut, v.Departure)
		}
	}
}

// TestPipelineDue checks the due time of two links, which is the earlier one.
func TestPipelineDue(t *testing.T) {
	queues := [2]*dataplane.Queue{}
	for i, rate := range []meter.Rate{frametest.Mega, meter.BitRate(80e6)} {
		queues[i] = &dataplane.Queue{Config: queue.Config{Packets: 9}, Link: &dataplane.Link{Rate: rate}}
	}
	l := newPipeline(t, &dataplane.Policy{Classes: []dataplane.Class{
		{Name: "ef", Match: dataplane.Match{DSCP: frametest.Values(46)}, Green: &dataplane.Action{Queue: queues[1]}},
		{Name: "rest", Green: &dataplane.Action{Queue: queues[0]}},
	}})
	due := func(want int64, wantOK bool) {
		t.Helper()
		if at, ok := l.Due(); ok != wantOK || at != want {
			t.Errorf("due at %d (queued %v), want %d (%v)", at, ok, want, wantOK)
		}
	}
	var v dataplane.Verdict
	due(0, false)
	for range 2 {
		process(l, 5, ipPacket(0, 1000))
		due(5, true)
		process(l, 5, ipPacket(46, 1000))
	}
	l.Settle(5, &v)
	due(5, true)
	l.Settle(5, &v)
	due(5+100*µs, true)
	if l.Settle(4+100*µs, &v) || !l.Settle(5+100*µs, &v) {
		t.Error("the packet was not settled exactly at its due time")
	}
	due(5+1000*µs, true)
	l.Settle(math.MaxInt64, &v)
	due(0, false)
}

// TestQueues checks the backlogs of a queue with a rate and of a queue of a link.
func TestQueues(t *testing.T) {
	alone := &dataplane.Queue{Name: "alone", Config: queue.Config{Rate: frametest.Mega, Time: time.Second}}
	shared := &dataplane.Queue{
		Name: "shared", Config: queue.Config{Packets: 9}, Link: &dataplane.Link{Rate: frametest.Mega},
	}
	l := newPipeline(t, &dataplane.Policy{Classes: []dataplane.Class{
		{Name: "ef", Match: dataplane.Match{DSCP: frametest.Values(46)}, Green: &dataplane.Action{Queue: shared}},
		{Name: "rest", Green: &dataplane.Action{Queue: alone}},
	}})
	check := func(now int64, delay time.Duration, bytes, linked int64) {
		t.Helper()
		want := []dataplane.QueueState{
			{Name: "shared", Bytes: linked}, {Name: "alone", Delay: delay, Bytes: bytes},
		}
		if got := l.Queues(now); !slices.Equal(got, want) {
			t.Errorf("at %d: got %+v, want %+v", now, got, want)
		}
	}
	check(0, 0, 0, 0)
	for range 2 {
		process(l, 0, ipPacket(0, 1000))
		process(l, 0, ipPacket(46, 500))
	}
	check(0, 2000*µs, 2000, 500) // one of two packets on the link is being sent
	check(1, 2000*µs-1, 1999, 500)
	process(l, 1000*µs, arp)
	settled(&dataplane.Policy{Classes: make([]dataplane.Class, 2)}, l, 1000*µs)
	check(1000*µs, 1000*µs, 1000, 0)
	check(2001*µs, 0, 0, 0)
}

// TestFairQueue queues packets of two flows in one queue of a link: they are sent in turns. The
// keys of other fields, or no key, make one flow, whose packets are sent in their order.
func TestFairQueue(t *testing.T) {
	from := func(src string, port uint16, n int) []byte {
		return frametest.V4{Proto: frametest.ProtoUDP, Src: netip.MustParseAddr(src)}.Packet(
			frametest.Concat(frametest.Ports(port, 53), make([]byte, n-24)))
	}
	const fifo, turns = "0 1 2 3", "0 2 1 3"
	for _, test := range []struct {
		key  dataplane.Key
		want string
	}{
		{dataplane.Key{By: dataplane.BySrc}, turns},
		{dataplane.Key{By: dataplane.BySrc, V4: 8}, fifo},
		{dataplane.Key{By: dataplane.BySrc, V6: 8}, turns},
		{dataplane.Key{By: dataplane.ByDst}, fifo},
		{dataplane.Key{By: dataplane.ByHosts}, turns},
		{dataplane.Key{By: dataplane.ByFlow}, turns},
		{dataplane.Key{By: dataplane.ByDSCP}, fifo},
		{dataplane.Key{By: dataplane.ByVLAN}, fifo},
		{dataplane.Key{}, fifo},
	} {
		q := &dataplane.Queue{
			Name: "q", Config: queue.Config{Bytes: 90_000},
			Link: &dataplane.Link{Name: "wan", Rate: frametest.Mega}, Fair: test.key,
		}
		l := newPipeline(t,
			&dataplane.Policy{Classes: []dataplane.Class{{Name: "a", Green: &dataplane.Action{Queue: q}}}})
		for i, data := range [][]byte{
			from("10.0.0.1", 1, 1514), from("10.0.0.1", 1, 1514), from("10.0.0.2", 1, 1514),
			from("10.0.0.2", 1, 1514),
		} {
			verdictOf(l, &dataplane.Packet{Data: data, Link: dataplane.LinkRaw, ID: int64(i)})
		}
		var order []string
		for v := (dataplane.Verdict{}); l.Settle(math.MaxInt64, &v); {
			order = append(order, fmt.Sprint(v.ID))
		}
		if got := strings.Join(order, " "); got != test.want {
			t.Errorf("fair: %v: packets are sent in the order %s, want %s", test.key, got, test.want)
		}
	}
}

// TestFlowNumber computes the flow of a packet independently: IP version, addresses, ports and
// protocol, without the fields that are not in the key.
func TestFlowNumber(t *testing.T) {
	be := func(a netip.Addr) (hi, lo uint64) {
		b := a.As16()
		if a.Is4() {
			return 0, uint64(binary.BigEndian.Uint32(b[12:]))
		}
		return binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:])
	}
	seed := uint64(7)
	for _, test := range []struct {
		key      dataplane.Key
		kind     dataplane.PacketKind
		src, dst netip.Addr
		ports    uint64 // source << 16 | destination
		proto    uint64
		version  uint64
	}{
		{dataplane.Key{By: dataplane.BySrc}, dataplane.IPv4, frametest.Src4, netip.Addr{}, 0, 0, 4},
		{dataplane.Key{By: dataplane.ByDst}, dataplane.IPv6, netip.Addr{}, frametest.Dst6, 0, 0, 6},
		{dataplane.Key{By: dataplane.ByHosts}, dataplane.IPv4, frametest.Src4, frametest.Dst4, 0, 0, 4},
		{dataplane.Key{By: dataplane.ByFlow}, dataplane.IPv4, frametest.Src4, frametest.Dst4, 1000<<16 | 2000, frametest.ProtoUDP, 4},
		{dataplane.Key{By: dataplane.ByFlow}, dataplane.IPv6, frametest.Src6, frametest.Dst6, 1000<<16 | 2000, frametest.ProtoUDP, 6},
		{dataplane.Key{By: dataplane.ByVLAN}, dataplane.IPv4, netip.Addr{}, netip.Addr{}, 0, 0, 0},
		{dataplane.Key{By: dataplane.BySrc}, dataplane.Other, netip.Addr{}, netip.Addr{}, 0, 0, 0},
	} {
		data := frametest.V4{Proto: frametest.ProtoUDP}.Packet(frametest.UDP)
		link := dataplane.LinkRaw
		switch test.kind {
		case dataplane.IPv6:
			data = frametest.V6{Next: frametest.ProtoUDP}.Packet(frametest.UDP)
		case dataplane.Other:
			link = 127
		}
		p := dataplane.Packet{Data: data, Link: link}
		dataplane.Parse(&p)
		var words [4]uint64
		if test.src.IsValid() {
			words[0], words[1] = be(test.src)
		}
		if test.dst.IsValid() {
			words[2], words[3] = be(test.dst)
		}
		want := queue.Flow(seed, words[0], words[1], words[2], words[3],
			test.ports<<16|test.proto<<8|test.version)
		reader := dataplane.NewKeyReader(test.key)
		if got := reader.FlowNumber(&p, seed); got != want {
			t.Errorf("fair: %v, %s: flow %d, want %d", test.key, frametest.Describe(&p), got, want)
		}
	}
}
