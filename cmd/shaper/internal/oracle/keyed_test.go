package oracle

import (
	"net/netip"
	"testing"
)

// frameFrom returns a packet with a source address; "" is a packet without an IP header.
func frameFrom(src string) frame {
	if src == "" {
		return frame{}
	}
	f := frame{kind: ipv4, src: netip.MustParseAddr(src), dst: netip.MustParseAddr("192.0.2.99")}
	if f.src.Is6() {
		f.kind = ipv6
	}
	return f
}

// keyedStep is a packet of one token from 10.0.0.x, or without a key if x is 0.
type keyedStep struct {
	at   int64 // ns
	x    byte
	in   color
	want color
}

func keyed(t *testing.T, text string, steps []keyedStep) {
	t.Helper()
	m := meterOf(t, text)
	for i, s := range steps {
		f := frame{}
		if s.x > 0 {
			f = frame{kind: ipv4, src: netip.AddrFrom4([4]byte{10, 0, 0, s.x})}
		}
		if got, _, _ := m.decide(f, whole(s.at), 1, s.in); got != s.want {
			t.Errorf("%s: step %d, %+v: got %s, want %s", text, i, s, got, s.want)
		}
	}
}

// A new key has one token, and nothing refills it. So green shows that the key was not in the
// table.
func TestLRU(t *testing.T) {
	keyed(t, "{type: token-bucket, rate: 1B/1h, burst: 1, per: src, keys: 2, color: aware}", []keyedStep{
		{0, 1, green, green},
		{0, 2, green, green},
		{0, 1, green, red}, // a red packet uses its key
		{0, 3, green, green},
		{0, 1, green, red}, // 2 was evicted
		{0, 2, yellow, yellow},
		{0, 1, red, red}, // red input: does not use its key
		{0, 3, green, green},
		{0, 1, green, green},
		{0, 4, red, red}, // nor adds a key
		{0, 3, green, red},
		{0, 1, green, red},
		{0, 0, green, green}, // shared, not limited by the bound
		{0, 0, green, red},
		{0, 3, green, red},
		{0, 1, green, red},
	})
}

func TestIdleEviction(t *testing.T) {
	keyed(t, "{type: token-bucket, rate: 1B/1us, burst: 1, per: src, keys: 1, evict: idle}", []keyedStep{
		{0, 1, green, green},
		{1, 2, green, green}, // by the shared meter, because key 1 is not full
		{1, 2, green, red},
		{1, 0, green, red}, // shared meter of packets without a key
		{999, 3, green, red},
		{999, 1, green, red},
		{1000, 2, green, green}, // key 1 is full, and evicted
		{1000, 2, green, red},
		{1000, 1, green, red}, // shared, at 0.999
		{1001, 1, green, green},
		{1001, 0, green, red},
	})
	// The least recently used key decides, even if another one is idle.
	keyed(t, "{type: fixed-window, limit: 1, window: 1us, per: src, keys: 2, evict: idle}", []keyedStep{
		{0, 1, green, green},
		{0, 2, green, green},
		{1000, 1, green, green}, // 2 is like new
		{1000, 3, green, green}, // so 2 is evicted
		{1000, 2, green, green}, // shared: 1 is not like new
		{1000, 2, green, red},
		{1000, 3, green, red},
	})
}

func TestNewEmpty(t *testing.T) {
	// The clock of a key starts with its first packet.
	keyed(t, "{type: token-bucket, rate: 1B/1us, burst: 1, per: src, new: empty, color: aware}", []keyedStep{
		{0, 1, red, red}, // not with this one
		{500, 1, green, red},
		{1000, 2, green, red},
		{1499, 1, green, red},
		{1500, 1, green, green},
		{1999, 2, green, red},
		{2000, 2, green, green},
		{3000, 0, green, red},
		{4000, 0, green, green},
	})
	keyed(t, "{type: sliding-log, limit: 1, window: 1us, per: src, new: empty, keys: 9, entries: 1}",
		[]keyedStep{
			{500, 1, green, red},
			{1499, 1, green, red},
			{1500, 1, green, green},
		})
}

// TestAsGoodAsNew checks when a meter is like new after one packet of a byte at 500 ns, to the ns.
func TestAsGoodAsNew(t *testing.T) {
	for _, test := range []struct {
		meter string
		at    int64
	}{
		{"type: token-bucket, rate: 1B/700ns, burst: 9", 1200},
		{"type: gcra, rate: 2B/700ns, burst: 9", 850},
		{"type: srtcm, cir: 1B/700ns, cbs: 0, ebs: 9", 1200},
		{"type: trtcm, cir: 1B/700ns, cbs: 9, pir: 1B/100ns, pbs: 9", 1200},
		{"type: trtcm4115, cir: 1B/1ns, cbs: 0, eir: 1B/700ns, ebs: 9", 1200},
		{"type: trtcm4115, cir: 1B/1ns, cbs: 0, eir: 0bit, ebs: 9, coupling: true", 501},
		{"type: fixed-window, limit: 9, window: 1us", 1000},
		{"type: sliding-window, limit: 9, window: 1us, slots: 4", 1500}, // its slot is from 500
		{"type: sliding-window, limit: 9, window: 1us, slots: 5", 1400}, // from 400
		{"type: sliding-counter, limit: 9, window: 1us", 2000},
		{"type: sliding-log, limit: 9, window: 1us", 1500},
		{"type: token-bucket, rate: 1B/1ns, burst: 9, warmup: 1us", 1500},    // full before, but warm
		{"type: token-bucket, rate: 1B/10us, burst: 3, warmup: 1us", 30_837}, // cold before, but not full
		{"type: token-bucket, rate: 1B/10us, burst: 3, warmup: 20us", 37_234},
	} {
		s := meterOf(t, "{"+test.meter+"}").state.(keyable)
		s.decide(whole(500), whole(1), green)
		if s.likeNew(whole(test.at - 1)) {
			t.Errorf("%s: like new before %d", test.meter, test.at)
		}
		if !s.likeNew(whole(test.at)) {
			t.Errorf("%s: not like new at %d", test.meter, test.at)
		}
	}
	for _, meter := range []string{
		"type: token-bucket, rate: 1B/1s, burst: 9",
		"type: fixed-window, limit: 9, window: 1s",
		"type: sliding-window, limit: 9, window: 1s",
		"type: sliding-counter, limit: 9, window: 1s",
		"type: sliding-log, limit: 9, window: 1s",
	} {
		s := meterOf(t, "{"+meter+"}").state.(keyable)
		if s.decide(whole(500), whole(10), green) != red || !s.likeNew(whole(500)) {
			t.Errorf("%s: a red packet changed the meter", meter)
		}
	}
}

func TestKeys(t *testing.T) {
	tagged := func(id int) frame { return frame{kind: nonIP, hasVLAN: true, vlan: id} }
	marked := func(dscp byte) frame { return frame{kind: ipv6, trafficClass: dscp<<2 | 3} }
	flow := func(dst string, proto, sport, dport int) frame {
		f := frameFrom("10.0.0.1")
		f.dst, f.proto, f.hasPorts, f.sport, f.dport = netip.MustParseAddr(dst), proto, sport+dport > 0,
			sport, dport
		return f
	}
	for _, test := range []struct {
		per  string
		a, b frame
		same bool
	}{
		{"src", frameFrom("10.0.0.1"), frameFrom("10.0.0.1"), true},
		{"src", frameFrom("10.0.0.1"), frameFrom("10.0.0.2"), false},
		{"src", frameFrom("10.0.0.1"), frameFrom("::ffff:10.0.0.1"), false},
		{"dst", frameFrom("10.0.0.1"), frameFrom("10.0.0.2"), true},
		{"dst", frameFrom("10.0.0.1"), flow("192.0.2.98", 6, 0, 0), false},
		{"src/24", frameFrom("10.0.0.1"), frameFrom("10.0.0.255"), true},
		{"src/24", frameFrom("10.0.0.1"), frameFrom("10.0.1.1"), false},
		{"src/24", frameFrom("2001:db8::1"), frameFrom("2001:db8::2"), false},
		{"src/24,64", frameFrom("2001:db8::1"), frameFrom("2001:db8::ffff:0:0:2"), true},
		{"src/24,64", frameFrom("2001:db8::1"), frameFrom("2001:db8:0:1::1"), false},
		{"src/24,64", frameFrom("0.0.0.1"), frameFrom("::1"), false},
		{"dst/31", flow("192.0.2.98", 6, 0, 0), frameFrom("1.1.1.1"), true},
		{"dst/31", flow("192.0.2.97", 6, 0, 0), frameFrom("1.1.1.1"), false},
		{"flow", flow("192.0.2.1", 6, 1, 2), flow("192.0.2.1", 6, 1, 2), true},
		{"flow", flow("192.0.2.1", 6, 1, 2), flow("192.0.2.2", 6, 1, 2), false},
		{"flow", flow("192.0.2.1", 6, 1, 2), flow("192.0.2.1", 17, 1, 2), false},
		{"flow", flow("192.0.2.1", 6, 1, 2), flow("192.0.2.1", 6, 2, 1), false},
		{"flow", flow("192.0.2.1", 6, 1, 23), flow("192.0.2.1", 6, 12, 3), false},
		{"flow", flow("192.0.2.1", 17, 0, 0), flow("192.0.2.1", 17, 0, 0), true},
		{"vlan", tagged(7), tagged(7), true},
		{"vlan", tagged(7), tagged(8), false},
		{"vlan", tagged(0), frame{}, false},
		{"dscp", marked(0), marked(1), false},
		{"dscp", marked(0), frameFrom("10.0.0.1"), true}, // v4 or v6
		{"dscp", marked(0), frame{}, false},
		{"src", frameFrom(""), tagged(1), true}, // both without a key
		{"vlan", frameFrom("10.0.0.1"), frameFrom("10.0.0.2"), true},
	} {
		m := meterOf(t, `{type: token-bucket, rate: 1bit, burst: 1, per: "`+test.per+`"}`)
		m.decide(test.a, whole(0), 1, green)
		if color, _, _ := m.decide(test.b, whole(0), 1, green); (color == red) != test.same {
			t.Errorf("per %s: %+v and %+v: got %s, want one meter: %v", test.per, test.a, test.b, color,
				test.same)
		}
	}
}

// TestSharedKeys checks that classes that share a meter share its keys.
func TestSharedKeys(t *testing.T) {
	p, err := parsePolicy([]byte(`
meters:
  total: {type: token-bucket, rate: 1bit, burst: 2, color: aware, per: src, keys: 1}
classes:
  - {name: a, meter: {type: tswtcm, cir: 1mbit, pir: 1mbit, window: 1s}, then: total}
  - {name: b, meter: {type: tswtcm, cir: 1mbit, pir: 1mbit, window: 1s}, then: total}
`))
	if err != nil {
		t.Fatal(err)
	}
	for i, step := range []struct {
		class int
		src   string
		want  color
	}{
		{0, "10.0.0.1", green},
		{1, "10.0.0.1", green},
		{0, "10.0.0.1", red},
		{1, "10.0.0.2", green},
		{0, "10.0.0.1", green},
	} {
		if _, got, _ := p.classes[step.class].meter(&row{frame: frameFrom(step.src)}, whole(0), 1,
			nil); got != step.want {
			t.Errorf("step %d: got %s, want %s", i, got, step.want)
		}
	}
}
