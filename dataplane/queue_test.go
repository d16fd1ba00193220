package dataplane

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

	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// ecnPacket returns a frame with an ECN-capable IPv4 packet of n bytes.
func ecnPacket(dscp uint8, n int) []byte {
	return concat(ethernet(etherIPv4), v4{tos: dscp<<2 | 2, proto: protoUDP}.packet(make([]byte, n-20)))
}

// settled returns the packets that are settled by now, each as its ID and verdict.
func settled(policy *Policy, l *Pipeline, now int64) (list []string) {
	for v := (Verdict{}); l.Settle(now, &v); {
		list = append(list, fmt.Sprint(v.ID, " ", verdict(policy, v)))
	}
	return list
}

// TestLink sends packets, numbered from 1, to queues of a link with a rate of one byte per
// microsecond.
func TestLink(t *testing.T) {
	link := func(edit func(*Queue)) *Queue {
		q := &Queue{Name: "q", Config: queue.Config{Packets: 100}, Link: &Link{Name: "wan", Rate: mega}}
		edit(q)
		return q
	}
	to := func(q *Queue, marks ...Mark) *Action { return &Action{Queue: q, Marks: marks} }
	plain := link(func(*Queue) {})
	beside := func(q *Queue, edit func(*Queue)) *Queue {
		other := link(edit)
		other.Link = q.Link
		return other
	}
	codel := queue.CoDel{Target: 1000 * µs, Interval: 1000 * µs}
	ef := Match{DSCP: values(46)}
	type step struct {
		at      int64
		frame   []byte
		want    string
		settled []string // packets settled by that time
	}
	for _, test := range []struct {
		name    string
		classes []Class
		steps   []step
		rest    []string // packets settled at the end
	}{
		{
			"an idle link sends immediately, a busy one by priority",
			[]Class{
				{Name: "ef", Match: ef, Green: to(plain)},
				{Name: "rest", Green: to(beside(plain, func(q *Queue) { q.Priority = 1 }))},
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
			[]Class{
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
			[]Class{{Name: "a", Meter: &Meter{Params: meter.SRTCM{CIR: mega, CBS: 1000, EBS: 1000}}, Yellow: to(plain)}},
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
			[]Class{{Name: "a", Green: &Action{ECN: CE, Queue: plain, Marks: []Mark{{DSCP, 10}}}}},
			[]step{
				{0, ecnPacket(0, 1000), "a green>green ecn+mark=10+wait no-meter", []string{"1 a green>green ecn+mark=10+queue@0 no-meter"}},
				{0, ipPacket(0, 1000), "a green>green mark=10+wait no-meter", nil},
			},
			[]string{"2 a green>green mark=10+queue@1000000 no-meter"},
		},
		{
			"full",
			[]Class{{Name: "a", Green: to(link(func(q *Queue) { q.Packets = 1 }), Mark{DSCP, 10})}},
			[]step{
				{0, ipPacket(0, 1000), "a green>green mark=10+wait no-meter", []string{"1 a green>green mark=10+queue@0 no-meter"}},
				{0, ipPacket(0, 1000), "a green>green mark=10+wait no-meter", nil},
				{0, ipPacket(0, 1000), "a green>green drop queue-full", nil},
			},
			[]string{"2 a green>green mark=10+queue@1000000 no-meter"},
		},
		{
			"WRED",
			[]Class{{Name: "a", Green: to(link(func(q *Queue) { q.WRED[0] = queue.Early{Min: 1, Max: 1} }))}},
			[]step{
				{0, ipPacket(0, 1000), "a green>green wait no-meter", []string{"1 a green>green queue@0 no-meter"}},
				{0, ipPacket(0, 1000), "a green>green wait no-meter", nil},
				{0, ecnPacket(0, 1000), "a green>green drop wred", nil},
			},
			[]string{"2 a green>green queue@1000000 no-meter"},
		},
		{
			"CoDel drops when the link becomes free",
			[]Class{{Name: "a", Green: to(link(func(q *Queue) { q.CoDel = codel }), Mark{DSCP, 10})}},
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
			[]string{"5 a green>green mark=10+queue@3000000 no-meter", "6 a green>green mark=10+queue@4000000 no-meter"},
		},
		{
			"CoDel marks ECN-capable packets",
			[]Class{{Name: "a", Green: to(link(func(q *Queue) { q.CoDel, q.ECN = codel, true }))}},
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
			[]Class{
				{Name: "ef", Match: ef, Green: to(link(func(q *Queue) { q.Link.Rate = meter.BitRate(80e6) }))},
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
			[]Class{{Name: "a", Green: to(plain)}},
			[]step{
				{500 * µs, ipPacket(0, 100), "a green>green wait no-meter", []string{"1 a green>green queue@500000 no-meter"}},
				{0, ipPacket(0, 100), "a green>green wait no-meter", nil},
			},
			[]string{"2 a green>green queue@600000 no-meter"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			policy := &Policy{Classes: test.classes}
			l, sum := newPipeline(t, policy), newTally(policy)
			again := newPipeline(t, policy) // settled at each due time, for the counters
			for i, s := range test.steps {
				v := verdictOf(l, &Packet{Data: bytes.Clone(s.frame), Time: s.at, Link: LinkEthernet, ID: int64(i + 1)})
				if got := verdict(policy, v); got != s.want {
					t.Errorf("packet %d: got %q, want %q", i+1, got, s.want)
				}
				if v.Done.Dropped() && (v.DSCPOut != v.DSCPIn || v.Departure != v.Now) {
					t.Errorf("packet %d was dropped, but has DSCP %d and departure %d: want those of its arrival", i+1, v.DSCPOut, v.Departure)
				}
				if got := settled(policy, l, l.Now()); !slices.Equal(got, s.settled) {
					t.Errorf("after packet %d: got %q, want %q", i+1, got, s.settled)
				}
				sum.addVerdict(verdictOf(again, &Packet{Data: bytes.Clone(s.frame), Time: s.at, Link: LinkEthernet, ID: int64(i + 1)}))
			}
			if got := settled(policy, l, math.MaxInt64); !slices.Equal(got, test.rest) {
				t.Errorf("at the end: got %q, want %q", got, test.rest)
			}
			if at, ok := l.Due(); ok {
				t.Errorf("Due returned %d, want false with no packet queued", at)
			}
			var v Verdict
			for at, ok := again.Due(); ok; at, ok = again.Due() {
				if !again.Settle(at, &v) {
					t.Fatalf("Settle at the due time %d returned false", at)
				}
				if v.Done.Dropped() && (v.DSCPOut != v.DSCPIn || v.Departure != v.Now) {
					t.Errorf("packet %d was dropped, but has DSCP %d and departure %d: want those of its arrival", v.ID, v.DSCPOut, v.Departure)
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
	q := &Queue{Name: "q", Config: queue.Config{
		Rate: mega, Packets: 9, ECN: true,
		CoDel: queue.CoDel{Target: 1000 * µs, Interval: 1000 * µs},
	}}
	for _, action := range []ECN{NoECN, CE} {
		policy := &Policy{Classes: []Class{{Name: "a", Green: &Action{ECN: action, Queue: q, Marks: []Mark{{DSCP, 10}}}}}}
		l := newPipeline(t, policy)
		process(l, 0, ipPacket(0, 1000))
		process(l, 0, ipPacket(0, 1000))
		v, frame := process(l, 0, ecnPacket(0, 1000))
		if got := verdict(policy, v); got != "a green>green ecn+mark=10+queue@2000000 no-meter" {
			t.Errorf("action %d: got %q, want departure with ecn, mark and queue", action, got)
		}
		if want := concat(ethernet(etherIPv4), v4{tos: 10<<2 | 3, proto: protoUDP}.packet(make([]byte, 980))); !bytes.Equal(frame, want) {
			t.Errorf("action %d: got\n% x, want\n% x", action, frame[:40], want[:40])
		}
		v, _ = process(l, 0, ipPacket(7, 1000)) // would depart at 3 ms
		if got := verdict(policy, v); got != "a green>green drop codel" || v.DSCPOut != 7 || v.Departure != 0 {
			t.Errorf("action %d: got %q, DSCP %d, departure %d, want a drop by codel, DSCP 7, departure 0", action, got, v.DSCPOut, v.Departure)
		}
	}
}

// TestPipelineDue checks the due time of two links, which is the earlier one.
func TestPipelineDue(t *testing.T) {
	queues := [2]*Queue{}
	for i, rate := range []meter.Rate{mega, meter.BitRate(80e6)} {
		queues[i] = &Queue{Config: queue.Config{Packets: 9}, Link: &Link{Rate: rate}}
	}
	l := newPipeline(t, &Policy{Classes: []Class{
		{Name: "ef", Match: Match{DSCP: values(46)}, Green: &Action{Queue: queues[1]}},
		{Name: "rest", Green: &Action{Queue: queues[0]}},
	}})
	due := func(want int64, wantOK bool) {
		t.Helper()
		if at, ok := l.Due(); ok != wantOK || at != want {
			t.Errorf("due at %d (queued %v), want %d (%v)", at, ok, want, wantOK)
		}
	}
	var v Verdict
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
	alone := &Queue{Name: "alone", Config: queue.Config{Rate: mega, Time: time.Second}}
	shared := &Queue{Name: "shared", Config: queue.Config{Packets: 9}, Link: &Link{Rate: mega}}
	l := newPipeline(t, &Policy{Classes: []Class{
		{Name: "ef", Match: Match{DSCP: values(46)}, Green: &Action{Queue: shared}},
		{Name: "rest", Green: &Action{Queue: alone}},
	}})
	check := func(now int64, delay time.Duration, bytes, linked int64) {
		t.Helper()
		want := []QueueState{{Name: "shared", Bytes: linked}, {Name: "alone", Delay: delay, Bytes: bytes}}
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
	settled(&Policy{Classes: make([]Class, 2)}, l, 1000*µs)
	check(1000*µs, 1000*µs, 1000, 0)
	check(2001*µs, 0, 0, 0)
}

// TestFairQueue queues packets of two flows in one queue of a link: they are sent in turns. The
// keys of other fields, or no key, make one flow, whose packets are sent in their order.
func TestFairQueue(t *testing.T) {
	from := func(src string, port uint16, n int) []byte {
		return v4{proto: protoUDP, src: netip.MustParseAddr(src)}.packet(concat(ports(port, 53), make([]byte, n-24)))
	}
	const fifo, turns = "0 1 2 3", "0 2 1 3"
	for _, test := range []struct {
		key  Key
		want string
	}{
		{Key{By: BySrc}, turns},
		{Key{By: BySrc, V4: 8}, fifo},
		{Key{By: BySrc, V6: 8}, turns},
		{Key{By: ByDst}, fifo},
		{Key{By: ByHosts}, turns},
		{Key{By: ByFlow}, turns},
		{Key{By: ByDSCP}, fifo},
		{Key{By: ByVLAN}, fifo},
		{Key{}, fifo},
	} {
		q := &Queue{Name: "q", Config: queue.Config{Bytes: 90_000}, Link: &Link{Name: "wan", Rate: mega}, Fair: test.key}
		l := newPipeline(t, &Policy{Classes: []Class{{Name: "a", Green: &Action{Queue: q}}}})
		for i, data := range [][]byte{from("10.0.0.1", 1, 1514), from("10.0.0.1", 1, 1514), from("10.0.0.2", 1, 1514), from("10.0.0.2", 1, 1514)} {
			verdictOf(l, &Packet{Data: data, Link: LinkRaw, ID: int64(i)})
		}
		var order []string
		for v := (Verdict{}); l.Settle(math.MaxInt64, &v); {
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
		key      Key
		kind     Kind
		src, dst netip.Addr
		ports    uint64 // source << 16 | destination
		proto    uint64
		version  uint64
	}{
		{Key{By: BySrc}, IPv4, src4, netip.Addr{}, 0, 0, 4},
		{Key{By: ByDst}, IPv6, netip.Addr{}, dst6, 0, 0, 6},
		{Key{By: ByHosts}, IPv4, src4, dst4, 0, 0, 4},
		{Key{By: ByFlow}, IPv4, src4, dst4, 1000<<16 | 2000, protoUDP, 4},
		{Key{By: ByFlow}, IPv6, src6, dst6, 1000<<16 | 2000, protoUDP, 6},
		{Key{By: ByVLAN}, IPv4, netip.Addr{}, netip.Addr{}, 0, 0, 0},
		{Key{By: BySrc}, Other, netip.Addr{}, netip.Addr{}, 0, 0, 0},
	} {
		data := v4{proto: protoUDP}.packet(udp)
		link := LinkRaw
		switch test.kind {
		case IPv6:
			data = v6{next: protoUDP}.packet(udp)
		case Other:
			link = 127
		}
		p := Packet{Data: data, Link: link}
		Parse(&p)
		var words [4]uint64
		if test.src.IsValid() {
			words[0], words[1] = be(test.src)
		}
		if test.dst.IsValid() {
			words[2], words[3] = be(test.dst)
		}
		want := queue.Flow(seed, words[0], words[1], words[2], words[3], test.ports<<16|test.proto<<8|test.version)
		reader := NewKeyReader(test.key)
		if got := reader.FlowNumber(&p, seed); got != want {
			t.Errorf("fair: %v, %s: flow %d, want %d", test.key, describe(&p), got, want)
		}
	}
}
