package dataplane_test

import (
	"net/netip"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/dataplane/internal/frametest"
)

// TestMatch has rows for the rules that involve several fields.
func TestMatch(t *testing.T) {
	tcp := frametest.Sample{
		Kind: dataplane.IPv4, Ethertype: frametest.EtherIPv4, Src: frametest.Src4, Dst: frametest.Dst4,
		Proto: frametest.ProtoTCP, Ports: true, Sport: 1000, Dport: 80,
	}
	with := func(edit func(*frametest.Sample)) frametest.Sample {
		s := tcp
		edit(&s)
		return s
	}
	sctp := with(func(s *frametest.Sample) { s.Proto = frametest.ProtoSCTP })
	later := with(func(s *frametest.Sample) { s.Ports = false })
	six := with(func(s *frametest.Sample) {
		s.Kind, s.Ethertype, s.Src, s.Dst = dataplane.IPv6, frametest.EtherIPv6, frametest.Src6,
			frametest.Dst6
	})
	tagged := with(func(s *frametest.Sample) { s.Tagged, s.Vlan, s.Pcp = true, 100, 5 })
	arp := frametest.Sample{Kind: dataplane.Other, Ethertype: 0x0806, Length: 46}
	taggedARP := frametest.Sample{Kind: dataplane.Other, Ethertype: 0x0806, Tagged: true, Vlan: 100, Pcp: 5}
	malformed := frametest.Sample{Kind: dataplane.Malformed, Ethertype: frametest.EtherIPv4, Mark: 7}
	unknown := frametest.Sample{Kind: dataplane.Other, Mark: 7}
	for _, test := range []struct {
		name  string
		match dataplane.Match
		yes   []frametest.Sample
		no    []frametest.Sample
	}{
		{"zero match: IP", dataplane.Match{}, []frametest.Sample{tcp, sctp, later, six, tagged}, []frametest.Sample{arp, taggedARP, malformed, unknown}},
		{
			"empty lists",
			dataplane.Match{
				Src: []netip.Prefix{}, Dst: []netip.Prefix{}, Proto: []dataplane.Range{},
				SPort: []dataplane.Range{}, DPort: []dataplane.Range{}, DSCP: []dataplane.Range{},
				VLAN: []dataplane.Range{}, PCP: []dataplane.Range{}, Mark: []dataplane.Range{},
				EtherType: []dataplane.Range{}, Length: []dataplane.Range{},
			},
			[]frametest.Sample{tcp, sctp, later, six, tagged},
			[]frametest.Sample{arp, taggedARP, malformed, unknown},
		},
		{"port", dataplane.Match{DPort: frametest.Values(80)}, []frametest.Sample{tcp, six}, []frametest.Sample{sctp, later, arp, malformed}},
		{"port and its protocol", dataplane.Match{DPort: frametest.Values(80), Proto: frametest.Values(frametest.ProtoSCTP)}, []frametest.Sample{sctp}, []frametest.Sample{tcp, later}},
		{"port and any protocol", dataplane.Match{DPort: frametest.Values(80), Proto: []dataplane.Range{{First: 0, Last: 255}}}, []frametest.Sample{tcp, sctp}, []frametest.Sample{later}},
		{"all ports: only packets with ports", dataplane.Match{SPort: []dataplane.Range{{First: 0, Last: 65535}}}, []frametest.Sample{tcp, six}, []frametest.Sample{sctp, later, arp}},
		{"0.0.0.0/0: all of IPv4", dataplane.Match{Src: frametest.Prefixes("0.0.0.0/0")}, []frametest.Sample{tcp, tagged}, []frametest.Sample{six, arp}},
		{"::/0: all of IPv6", dataplane.Match{Dst: frametest.Prefixes("::/0")}, []frametest.Sample{six}, []frametest.Sample{tcp, arp}},
		{"both address families", dataplane.Match{Src: frametest.Prefixes("192.0.2.1/32", "2001:db8::/32")}, []frametest.Sample{tcp, six}, nil},
		{"IPv4 addresses in IPv6 notation", dataplane.Match{Src: frametest.Prefixes("::192.0.2.1/128", "::ffff:192.0.2.1/128")}, nil, []frametest.Sample{tcp, six}},
		{"VLAN", dataplane.Match{VLAN: frametest.Values(100)}, []frametest.Sample{tagged, taggedARP}, []frametest.Sample{tcp, arp}},
		{"PCP", dataplane.Match{PCP: frametest.Values(5)}, []frametest.Sample{tagged, taggedARP}, []frametest.Sample{tcp}},
		{"VLAN and DSCP", dataplane.Match{VLAN: frametest.Values(100), DSCP: frametest.Values(0)}, []frametest.Sample{tagged}, []frametest.Sample{tcp, taggedARP}},
		{"EtherType", dataplane.Match{EtherType: frametest.Values(0x0806)}, []frametest.Sample{arp, taggedARP}, []frametest.Sample{tcp, malformed, unknown}},
		{"EtherType of malformed packets", dataplane.Match{EtherType: frametest.Values(frametest.EtherIPv4)}, []frametest.Sample{tcp, malformed}, []frametest.Sample{six, unknown}},
		{"length: packets of all kinds", dataplane.Match{Length: []dataplane.Range{{First: 0, Last: 46}}}, []frametest.Sample{tcp, arp, malformed, unknown}, nil},
		{"mark: IP", dataplane.Match{Mark: frametest.Values(7, 0)}, []frametest.Sample{tcp, six}, []frametest.Sample{malformed, unknown, arp}},
		{"mark and length", dataplane.Match{Mark: frametest.Values(7), Length: []dataplane.Range{{First: 0, Last: 46}}}, []frametest.Sample{malformed, unknown}, []frametest.Sample{tcp, arp}},
	} {
		t.Run(test.name, func(t *testing.T) {
			defer frametest.NoPanic(t)
			c := compiled.NewClassifier([]dataplane.Match{test.match})
			for want, samples := range [2][]frametest.Sample{test.no, test.yes} {
				for _, s := range samples {
					p := s.Packet()
					if got := c.Classify(p, s.Length) + 1; got != want {
						t.Errorf("%s, length %d: matched %d times, want %d", frametest.Describe(p), s.Length,
							got, want)
					}
					if s.Matches(&test.match) != (want == 1) {
						t.Errorf("%s, length %d: sample.matches disagrees", frametest.Describe(p), s.Length)
					}
				}
			}
		})
	}
}

func TestCovers(t *testing.T) {
	udp5000 := dataplane.Match{
		Proto: frametest.Values(frametest.ProtoUDP), DPort: []dataplane.Range{{First: 5000, Last: 5999}},
	}
	for _, test := range []struct {
		name string
		a, b dataplane.Match
		want bool
	}{
		{"itself", udp5000, udp5000, true},
		{"all IP", dataplane.Match{}, udp5000, true},
		{"the reverse", udp5000, dataplane.Match{}, false},
		{"range in range", dataplane.Match{DPort: []dataplane.Range{{First: 1, Last: 6000}}}, dataplane.Match{DPort: []dataplane.Range{{First: 5, Last: 7}, {First: 100, Last: 6000}}}, true},
		{"range beyond a range", dataplane.Match{DPort: []dataplane.Range{{First: 1, Last: 6000}}}, dataplane.Match{DPort: []dataplane.Range{{First: 5, Last: 6001}}}, false},
		{"prefix in prefix", dataplane.Match{Dst: frametest.Prefixes("10.0.0.0/8")}, dataplane.Match{Dst: frametest.Prefixes("10.1.0.0/16", "10.2.3.4/32")}, true},
		{"prefix beyond a prefix", dataplane.Match{Dst: frametest.Prefixes("10.0.0.0/8")}, dataplane.Match{Dst: frametest.Prefixes("10.0.0.0/7")}, false},
		{"the same prefix", dataplane.Match{Src: frametest.Prefixes("10.0.0.0/8")}, dataplane.Match{Src: frametest.Prefixes("10.0.0.0/8")}, true},
		{"the other address family", dataplane.Match{Dst: frametest.Prefixes("0.0.0.0/0")}, dataplane.Match{Dst: frametest.Prefixes("::/0")}, false},
		{"source is not destination", dataplane.Match{Src: frametest.Prefixes("10.0.0.0/8")}, dataplane.Match{Dst: frametest.Prefixes("10.0.0.0/8")}, false},
		{"ports imply TCP and UDP", dataplane.Match{Proto: frametest.Values(frametest.ProtoTCP, frametest.ProtoUDP)}, dataplane.Match{SPort: frametest.Values(53)}, true},
		{"ports without protocol miss SCTP", dataplane.Match{SPort: frametest.Values(53)}, dataplane.Match{SPort: frametest.Values(53), Proto: frametest.Values(frametest.ProtoSCTP)}, false},
		{"IP does not cover ARP", dataplane.Match{}, dataplane.Match{EtherType: frametest.Values(0x0806)}, false},
		{"IP does not cover malformed IP", dataplane.Match{}, dataplane.Match{EtherType: frametest.Values(frametest.EtherIPv4)}, false},
		{"IP does not cover all of a VLAN", dataplane.Match{}, dataplane.Match{VLAN: frametest.Values(7)}, false},
		{"IP covers the IP in a VLAN", dataplane.Match{}, dataplane.Match{VLAN: frametest.Values(7), DSCP: frametest.Values(46)}, true},
		{"IP covers one protocol and source in a VLAN", dataplane.Match{}, dataplane.Match{VLAN: frametest.Values(7), Proto: frametest.Values(frametest.ProtoTCP), Src: frametest.Prefixes("10.0.0.0/8")}, true},
		{"IP covers one source and destination in a VLAN", dataplane.Match{}, dataplane.Match{VLAN: frametest.Values(7), Src: frametest.Prefixes("10.0.0.0/8"), Dst: frametest.Prefixes("10.0.0.0/8")}, true},
		{"IP covers one destination and DSCP in a VLAN", dataplane.Match{}, dataplane.Match{VLAN: frametest.Values(7), Dst: frametest.Prefixes("10.0.0.0/8"), DSCP: frametest.Values(46)}, true},
		{"a VLAN covers one EtherType in it", dataplane.Match{VLAN: frametest.Values(7)}, dataplane.Match{VLAN: frametest.Values(7), EtherType: frametest.Values(0x0806)}, true},
		{"customers do not cover strangers", dataplane.Match{Customer: true}, dataplane.Match{}, false},
		{"all IP covers that of customers", dataplane.Match{}, dataplane.Match{Customer: true}, true},
		{"customers cover some of them", dataplane.Match{Customer: true}, dataplane.Match{Customer: true, DPort: frametest.Values(53)}, true},
		{"all lengths cover all packets", dataplane.Match{Length: []dataplane.Range{{First: 0, Last: 1<<32 - 1}}}, dataplane.Match{EtherType: frametest.Values(0x0806), Length: frametest.Values(60)}, true},
	} {
		if got := test.a.Covers(&test.b); got != test.want {
			t.Errorf("%s: got %v, want %v", test.name, got, test.want)
		}
	}
}

// TestCoversAgainstScan checks reported covers with samples at the bounds of both matches.
func TestCoversAgainstScan(t *testing.T) {
	r := frametest.Seeded(t)
	claims := 0
	for range 20_000 {
		a, b := frametest.RandomMatch(r, 2+r.IntN(12)), frametest.RandomMatch(r, 2+r.IntN(12))
		if r.IntN(2) == 0 { // a is b without some of its lists
			a = b
			for _, list := range frametest.Lists(&a) {
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
			if s := frametest.AimedSample(r, m); s.Matches(&b) && !s.Matches(&a) {
				t.Fatalf("%+v does not cover %+v: it does not match %s of length %d", a, b,
					frametest.Describe(s.Packet()), s.Length)
			}
		}
	}
	if claims < 500 {
		t.Errorf("only %d covers were reported, too few for this test", claims)
	}
}

// TestMisses checks the key that Misses returns.
func TestMisses(t *testing.T) {
	tcp := frametest.Sample{
		Kind: dataplane.IPv4, Ethertype: frametest.EtherIPv4, Src: frametest.Src4, Dst: frametest.Dst4,
		Proto: frametest.ProtoTCP, Ports: true, Sport: 1000, Dport: 80,
	}
	arp := frametest.Sample{Kind: dataplane.Other, Ethertype: 0x0806, Length: 46}
	customer, customerARP := tcp, arp
	customer.Customer, customerARP.Customer = true, true
	for _, test := range []struct {
		match dataplane.Match
		s     frametest.Sample
		want  string
	}{
		{dataplane.Match{}, tcp, ""},
		{dataplane.Match{}, arp, "ip"},
		{dataplane.Match{Mark: frametest.Values(0)}, arp, "ip"},
		{dataplane.Match{Mark: frametest.Values(1)}, arp, "mark"},
		{dataplane.Match{DSCP: frametest.Values(0)}, arp, "dscp"},
		{dataplane.Match{Src: frametest.Prefixes("0.0.0.0/0")}, arp, "src"},
		{dataplane.Match{EtherType: frametest.Values(0x0806)}, arp, ""},
		{dataplane.Match{Length: frametest.Values(46)}, arp, ""},
		{dataplane.Match{Length: frametest.Values(45, 47)}, arp, "length"},
		{dataplane.Match{Src: frametest.Prefixes("::/0")}, tcp, "src"},
		{dataplane.Match{Dst: frametest.Prefixes("0.0.0.0/32"), DPort: frametest.Values(81)}, tcp, "dst"},
		{dataplane.Match{SPort: frametest.Values(1000), DPort: frametest.Values(81)}, tcp, "dport"},
		{dataplane.Match{SPort: frametest.Values(1000), Proto: frametest.Values(frametest.ProtoUDP)}, tcp, "proto"},
		{dataplane.Match{VLAN: frametest.Values(7)}, tcp, "vlan"},
		{dataplane.Match{Customer: true, VLAN: frametest.Values(7)}, tcp, "customer"},
		{dataplane.Match{Customer: true}, customer, ""},
		{dataplane.Match{Customer: true, VLAN: frametest.Values(7)}, customer, "vlan"},
		{dataplane.Match{Customer: true}, customerARP, "ip"},
	} {
		if got := test.match.Misses(test.s.Packet(), test.s.Length); got != test.want {
			t.Errorf("%+v, %s: missed %q, want %q", test.match, frametest.Describe(test.s.Packet()), got,
				test.want)
		}
	}
}

// TestMissesAgainstClassifier checks that Misses and the classifier agree.
func TestMissesAgainstClassifier(t *testing.T) {
	r := frametest.Seeded(t)
	matched := 0
	for range 2_000 {
		m := frametest.RandomMatch(r, 2+r.IntN(12))
		c := compiled.NewClassifier([]dataplane.Match{m})
		for range 50 {
			s := frametest.AimedSample(r, &m)
			p := s.Packet()
			key := m.Misses(p, s.Length)
			if (key == "") != (c.Classify(p, s.Length) == 0) {
				t.Fatalf("%+v, %s of length %d: missed %q, but the classifier disagrees", m,
					frametest.Describe(p), s.Length, key)
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
	r := frametest.Seeded(t)
	both, apart := 0, 0
	for range 20_000 {
		a, b := frametest.RandomMatch(r, 1+r.IntN(6)), frametest.RandomMatch(r, 1+r.IntN(6))
		overlaps := a.Overlaps(&b)
		if overlaps != b.Overlaps(&a) {
			t.Fatalf("%+v and %+v: not symmetric", a, b)
		}
		if !overlaps {
			apart++
		}
		for range 60 {
			if s := frametest.AimedSample(r, &a); s.Matches(&a) && s.Matches(&b) {
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
