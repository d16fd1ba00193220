package dataplane

import (
	"net/netip"
	"testing"
)

// TestMatch has rows for the rules that involve several fields.
func TestMatch(t *testing.T) {
	tcp := sample{kind: IPv4, ethertype: etherIPv4, src: src4, dst: dst4, proto: protoTCP, ports: true, sport: 1000, dport: 80}
	with := func(edit func(*sample)) sample {
		s := tcp
		edit(&s)
		return s
	}
	sctp := with(func(s *sample) { s.proto = protoSCTP })
	later := with(func(s *sample) { s.ports = false })
	six := with(func(s *sample) { s.kind, s.ethertype, s.src, s.dst = IPv6, etherIPv6, src6, dst6 })
	tagged := with(func(s *sample) { s.tagged, s.vlan, s.pcp = true, 100, 5 })
	arp := sample{kind: Other, ethertype: 0x0806, length: 46}
	taggedARP := sample{kind: Other, ethertype: 0x0806, tagged: true, vlan: 100, pcp: 5}
	malformed := sample{kind: Malformed, ethertype: etherIPv4, mark: 7}
	unknown := sample{kind: Other, mark: 7}
	for _, test := range []struct {
		name  string
		match Match
		yes   []sample
		no    []sample
	}{
		{"zero match: IP", Match{}, []sample{tcp, sctp, later, six, tagged}, []sample{arp, taggedARP, malformed, unknown}},
		{"empty lists", Match{
			Src: []netip.Prefix{}, Dst: []netip.Prefix{}, Proto: []Range{}, SPort: []Range{}, DPort: []Range{}, DSCP: []Range{},
			VLAN: []Range{}, PCP: []Range{}, Mark: []Range{}, EtherType: []Range{}, Length: []Range{},
		}, []sample{tcp, sctp, later, six, tagged}, []sample{arp, taggedARP, malformed, unknown}},
		{"port", Match{DPort: values(80)}, []sample{tcp, six}, []sample{sctp, later, arp, malformed}},
		{"port and its protocol", Match{DPort: values(80), Proto: values(protoSCTP)}, []sample{sctp}, []sample{tcp, later}},
		{"port and any protocol", Match{DPort: values(80), Proto: []Range{{0, 255}}}, []sample{tcp, sctp}, []sample{later}},
		{"all ports: only packets with ports", Match{SPort: []Range{{0, 65535}}}, []sample{tcp, six}, []sample{sctp, later, arp}},
		{"0.0.0.0/0: all of IPv4", Match{Src: prefixes("0.0.0.0/0")}, []sample{tcp, tagged}, []sample{six, arp}},
		{"::/0: all of IPv6", Match{Dst: prefixes("::/0")}, []sample{six}, []sample{tcp, arp}},
		{"both address families", Match{Src: prefixes("192.0.2.1/32", "2001:db8::/32")}, []sample{tcp, six}, nil},
		{"IPv4 addresses in IPv6 notation", Match{Src: prefixes("::192.0.2.1/128", "::ffff:192.0.2.1/128")}, nil, []sample{tcp, six}},
		{"VLAN", Match{VLAN: values(100)}, []sample{tagged, taggedARP}, []sample{tcp, arp}},
		{"PCP", Match{PCP: values(5)}, []sample{tagged, taggedARP}, []sample{tcp}},
		{"VLAN and DSCP", Match{VLAN: values(100), DSCP: values(0)}, []sample{tagged}, []sample{tcp, taggedARP}},
		{"EtherType", Match{EtherType: values(0x0806)}, []sample{arp, taggedARP}, []sample{tcp, malformed, unknown}},
		{"EtherType of malformed packets", Match{EtherType: values(etherIPv4)}, []sample{tcp, malformed}, []sample{six, unknown}},
		{"length: packets of all kinds", Match{Length: []Range{{0, 46}}}, []sample{tcp, arp, malformed, unknown}, nil},
		{"mark: IP", Match{Mark: values(7, 0)}, []sample{tcp, six}, []sample{malformed, unknown, arp}},
		{"mark and length", Match{Mark: values(7), Length: []Range{{0, 46}}}, []sample{malformed, unknown}, []sample{tcp, arp}},
	} {
		t.Run(test.name, func(t *testing.T) {
			defer noPanic(t)
			c := NewClassifier([]Match{test.match})
			for want, samples := range [2][]sample{test.no, test.yes} {
				for _, s := range samples {
					p := s.packet()
					if got := c.Classify(p, s.length) + 1; got != want {
						t.Errorf("%s, length %d: matched %d times, want %d", describe(p), s.length, got, want)
					}
					if s.matches(&test.match) != (want == 1) {
						t.Errorf("%s, length %d: sample.matches disagrees", describe(p), s.length)
					}
				}
			}
		})
	}
}

func TestCovers(t *testing.T) {
	udp5000 := Match{Proto: values(protoUDP), DPort: []Range{{5000, 5999}}}
	for _, test := range []struct {
		name string
		a, b Match
		want bool
	}{
		{"itself", udp5000, udp5000, true},
		{"all IP", Match{}, udp5000, true},
		{"the reverse", udp5000, Match{}, false},
		{"range in range", Match{DPort: []Range{{1, 6000}}}, Match{DPort: []Range{{5, 7}, {100, 6000}}}, true},
		{"range beyond a range", Match{DPort: []Range{{1, 6000}}}, Match{DPort: []Range{{5, 6001}}}, false},
		{"prefix in prefix", Match{Dst: prefixes("10.0.0.0/8")}, Match{Dst: prefixes("10.1.0.0/16", "10.2.3.4/32")}, true},
		{"prefix beyond a prefix", Match{Dst: prefixes("10.0.0.0/8")}, Match{Dst: prefixes("10.0.0.0/7")}, false},
		{"the same prefix", Match{Src: prefixes("10.0.0.0/8")}, Match{Src: prefixes("10.0.0.0/8")}, true},
		{"the other address family", Match{Dst: prefixes("0.0.0.0/0")}, Match{Dst: prefixes("::/0")}, false},
		{"source is not destination", Match{Src: prefixes("10.0.0.0/8")}, Match{Dst: prefixes("10.0.0.0/8")}, false},
		{"ports imply TCP and UDP", Match{Proto: values(protoTCP, protoUDP)}, Match{SPort: values(53)}, true},
		{"ports without protocol miss SCTP", Match{SPort: values(53)}, Match{SPort: values(53), Proto: values(protoSCTP)}, false},
		{"IP does not cover ARP", Match{}, Match{EtherType: values(0x0806)}, false},
		{"IP does not cover malformed IP", Match{}, Match{EtherType: values(etherIPv4)}, false},
		{"IP does not cover all of a VLAN", Match{}, Match{VLAN: values(7)}, false},
		{"IP covers the IP in a VLAN", Match{}, Match{VLAN: values(7), DSCP: values(46)}, true},
		{"IP covers one protocol and source in a VLAN", Match{}, Match{VLAN: values(7), Proto: values(protoTCP), Src: prefixes("10.0.0.0/8")}, true},
		{"IP covers one source and destination in a VLAN", Match{}, Match{VLAN: values(7), Src: prefixes("10.0.0.0/8"), Dst: prefixes("10.0.0.0/8")}, true},
		{"IP covers one destination and DSCP in a VLAN", Match{}, Match{VLAN: values(7), Dst: prefixes("10.0.0.0/8"), DSCP: values(46)}, true},
		{"a VLAN covers one EtherType in it", Match{VLAN: values(7)}, Match{VLAN: values(7), EtherType: values(0x0806)}, true},
		{"customers do not cover strangers", Match{Customer: true}, Match{}, false},
		{"all IP covers that of customers", Match{}, Match{Customer: true}, true},
		{"customers cover some of them", Match{Customer: true}, Match{Customer: true, DPort: values(53)}, true},
		{"all lengths cover all packets", Match{Length: []Range{{0, 1<<32 - 1}}}, Match{EtherType: values(0x0806), Length: values(60)}, true},
	} {
		if got := test.a.Covers(&test.b); got != test.want {
			t.Errorf("%s: got %v, want %v", test.name, got, test.want)
		}
	}
}

// TestCoversAgainstScan checks reported covers with samples at the bounds of both matches.
func TestCoversAgainstScan(t *testing.T) {
	r := seeded(t)
	claims := 0
	for range 20_000 {
		a, b := randomMatch(r, 2+r.IntN(12)), randomMatch(r, 2+r.IntN(12))
		if r.IntN(2) == 0 { // a is b without some of its lists
			a = b
			for _, list := range lists(&a) {
				if r.IntN(3) == 0 {
					*list = nil
				}
			}
			if r.IntN(2) == 0 {
				a.Src = nil
			}
			if r.IntN(2) == 0 {
				a.Customer = false
			}
		}
		if !a.Covers(&b) {
			continue
		}
		claims++
		for range 20 {
			m := &b
			if r.IntN(2) == 0 {
				m = &a
			}
			if s := aimedSample(r, m); s.matches(&b) && !s.matches(&a) {
				t.Fatalf("%+v does not cover %+v: it does not match %s of length %d", a, b, describe(s.packet()), s.length)
			}
		}
	}
	if claims < 500 {
		t.Errorf("only %d covers were reported, too few for this test", claims)
	}
}

// TestMisses checks the key that Misses returns.
func TestMisses(t *testing.T) {
	tcp := sample{kind: IPv4, ethertype: etherIPv4, src: src4, dst: dst4, proto: protoTCP, ports: true, sport: 1000, dport: 80}
	arp := sample{kind: Other, ethertype: 0x0806, length: 46}
	customer, customerARP := tcp, arp
	customer.customer, customerARP.customer = true, true
	for _, test := range []struct {
		match Match
		s     sample
		want  string
	}{
		{Match{}, tcp, ""},
		{Match{}, arp, "ip"},
		{Match{Mark: values(0)}, arp, "ip"},
		{Match{Mark: values(1)}, arp, "mark"},
		{Match{DSCP: values(0)}, arp, "dscp"},
		{Match{Src: prefixes("0.0.0.0/0")}, arp, "src"},
		{Match{EtherType: values(0x0806)}, arp, ""},
		{Match{Length: values(46)}, arp, ""},
		{Match{Length: values(45, 47)}, arp, "length"},
		{Match{Src: prefixes("::/0")}, tcp, "src"},
		{Match{Dst: prefixes("0.0.0.0/32"), DPort: values(81)}, tcp, "dst"},
		{Match{SPort: values(1000), DPort: values(81)}, tcp, "dport"},
		{Match{SPort: values(1000), Proto: values(protoUDP)}, tcp, "proto"},
		{Match{VLAN: values(7)}, tcp, "vlan"},
		{Match{Customer: true, VLAN: values(7)}, tcp, "customer"},
		{Match{Customer: true}, customer, ""},
		{Match{Customer: true, VLAN: values(7)}, customer, "vlan"},
		{Match{Customer: true}, customerARP, "ip"},
	} {
		if got := test.match.Misses(test.s.packet(), test.s.length); got != test.want {
			t.Errorf("%+v, %s: missed %q, want %q", test.match, describe(test.s.packet()), got, test.want)
		}
	}
}

// TestMissesAgainstClassifier checks that Misses and the classifier agree.
func TestMissesAgainstClassifier(t *testing.T) {
	r := seeded(t)
	matched := 0
	for range 2_000 {
		m := randomMatch(r, 2+r.IntN(12))
		c := NewClassifier([]Match{m})
		for range 50 {
			s := aimedSample(r, &m)
			p := s.packet()
			key := m.Misses(p, s.length)
			if (key == "") != (c.Classify(p, s.length) == 0) {
				t.Fatalf("%+v, %s of length %d: missed %q, but the classifier disagrees", m, describe(p), s.length, key)
			}
			if key == "" {
				matched++
			}
		}
	}
	if matched < 5000 {
		t.Errorf("only %d packets matched, too few for this test", matched)
	}
}

// TestOverlaps checks that two matches overlap if a packet matches both, and that most pairs do not
// overlap.
func TestOverlaps(t *testing.T) {
	r := seeded(t)
	both, apart := 0, 0
	for range 20_000 {
		a, b := randomMatch(r, 1+r.IntN(6)), randomMatch(r, 1+r.IntN(6))
		overlaps := a.Overlaps(&b)
		if overlaps != b.Overlaps(&a) {
			t.Fatalf("%+v and %+v: not symmetric", a, b)
		}
		if !overlaps {
			apart++
		}
		for range 20 {
			if s := aimedSample(r, &a); s.matches(&a) && s.matches(&b) {
				both++
				if !overlaps {
					t.Fatalf("%+v matches %+v and %+v", s, a, b)
				}
			}
		}
	}
	if both < 1000 || apart < 5000 {
		t.Errorf("%d packets match both, %d pairs do not overlap", both, apart)
	}
}
