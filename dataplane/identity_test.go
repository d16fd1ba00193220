package dataplane_test

import (
	"net/netip"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/internal/frametest"
)

// TestRareFields reads the rare fields at the limits of headers, captures and fragments.
func TestRareFields(t *testing.T) {
	src, dst := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	tcp := frametest.PadTo(append(make([]byte, 13), 0x12), 20)
	ipv4 := func(proto byte, fragment uint16, payload []byte) []byte {
		return frametest.Concat(frametest.Ethernet(frametest.EtherIPv4),
			frametest.V4{Proto: proto, Frag: fragment, Src: src, Dst: dst}.Packet(payload))
	}
	ipv6 := func(next byte, parts ...[]byte) []byte {
		return frametest.Concat(frametest.Ethernet(frametest.EtherIPv6), frametest.V6{
			Next: next, Src: netip.MustParseAddr("2001:db8::1"), Dst: netip.MustParseAddr("2001:db8::2"),
		}.Packet(parts...))
	}
	const none = -1
	for _, test := range []struct {
		name        string
		frame       []byte
		cut         int // captured bytes; 0: all
		flags, icmp int
	}{
		{"TCP", ipv4(6, 0, tcp), 0, 0x12, none},
		{"TCP, captured up to the flags", ipv4(6, 0, tcp), 14 + 20 + 14, 0x12, none},
		{"TCP, captured up to the byte before the flags", ipv4(6, 0, tcp), 14 + 20 + 13, none, none},
		{"TCP of 13 bytes with padding", append(ipv4(6, 0, tcp[:13]), make([]byte, 13)...), 0, none, none},
		{"TCP, first fragment", ipv4(6, 0x2000, tcp), 0, 0x12, none},
		{"TCP, later fragment", ipv4(6, 1, tcp), 0, none, none},
		{"UDP", ipv4(17, 0, tcp), 0, none, none},
		{"TCP over IPv6", ipv6(6, tcp), 0, 0x12, none},
		{"TCP behind a fragment header", ipv6(44, frametest.Fragment(6, 0), tcp), 0, 0x12, none},
		{"TCP in a later fragment of IPv6", ipv6(44, frametest.Fragment(6, 1), tcp), 0, none, none},
		{"ICMP", ipv4(1, 0, []byte{3, 4, 0, 0}), 0, none, 3<<8 | 4},
		{"ICMP of one byte", ipv4(1, 0, []byte{3}), 0, none, none},
		{"ICMP, later fragment", ipv4(1, 1, []byte{3, 4, 0, 0}), 0, none, none},
		{"ICMPv6", ipv6(58, []byte{128, 0, 0, 0}), 0, none, 1<<16 | 128<<8},
		{"ICMPv6, captured up to the type", ipv6(58, []byte{128, 0, 0, 0}), 14 + 40 + 1, none, none},
		{"no IP", frametest.Concat(frametest.Ethernet(0x0806), make([]byte, 46)), 0, none, none},
	} {
		p := dataplane.Packet{Data: test.frame, WireLen: len(test.frame), Link: dataplane.LinkEthernet}
		if test.cut > 0 {
			p.Data = p.Data[:test.cut]
		}
		dataplane.Parse(&p)
		flags, icmp := none, none
		if v, ok := p.TCPFlags(); ok {
			flags = int(v)
		}
		if v, ok := p.ICMPType(); ok {
			icmp = int(v)
		}
		if flags != test.flags || icmp != test.icmp {
			t.Errorf("%s: flags %#x, type %#x, want %#x and %#x", test.name, flags, icmp, test.flags, test.icmp)
		}
	}
}

// TestMACs reads the MAC addresses of a frame, and those of the inner side by direction.
func TestMACs(t *testing.T) {
	const dst, src = 0x020000000001, 0x020000000002 // of frametest.Ethernet
	frame := frametest.Concat(frametest.Ethernet(0x88b5), make([]byte, 46))
	for _, test := range []struct {
		link     dataplane.LinkType
		captured int
		has      bool
	}{
		{dataplane.LinkEthernet, 60, true},
		{dataplane.LinkEthernet, 14, true},
		{dataplane.LinkEthernet, 13, false},
		{dataplane.LinkRaw, 60, false},
		{dataplane.LinkSLL, 60, false},
	} {
		for direction, inside := range map[dataplane.Direction]uint64{
			dataplane.Egress: dst, dataplane.Ingress: src,
		} {
			p := dataplane.Packet{Data: frame[:test.captured], WireLen: 60, Link: test.link}
			dataplane.Parse(&p)
			p.Direction = direction
			for name, field := range map[string]struct {
				read func() (uint64, bool)
				want uint64
			}{
				"src": {p.SrcMAC, src}, "dst": {p.DstMAC, dst}, "inside": {p.InsideMAC, inside},
			} {
				want := field.want
				if !test.has {
					want = 0
				}
				if got, ok := field.read(); got != want || ok != test.has {
					t.Errorf("link %v, %d bytes, %v: %s %#x, %v, want %#x, %v", test.link, test.captured, direction,
						name, got, ok, want, test.has)
				}
			}
		}
	}
	if got := string(dataplane.AppendMAC(nil, 0x02005e10000a)); got != "02:00:5e:10:00:0a" {
		t.Errorf("got %s", got)
	}
}

// TestContainsCgroup compares paths of cgroups.
func TestContainsCgroup(t *testing.T) {
	for _, test := range []struct {
		outer, inner string
		want         bool
	}{
		{"/", "/", true},
		{"/", "/a/b", true},
		{"/a", "/a", true},
		{"/a", "/a/b", true},
		{"/a", "/ab", false},
		{"/a/b", "/a", false},
		{"/a", "/", false},
	} {
		if got := dataplane.ContainsCgroup(test.outer, test.inner); got != test.want {
			t.Errorf("%s contains %s: %v, want %v", test.outer, test.inner, got, test.want)
		}
	}
}
