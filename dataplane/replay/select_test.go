package replay

import (
	"bytes"
	"net/netip"
	"slices"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// TestSelect excludes packets. The others keep their numbers, and nothing else of the excluded
// ones is left: not in the output, the counts, the clock or the warnings.
func TestSelect(t *testing.T) {
	c := littleEndian().section().iface(ethernet, 0)
	at := []uint64{1_000_000, 1_000_010, 900_000_000_000, 1_000_020, 5, 1_000_030}
	for i, us := range at {
		c.enhanced(0, us, ethernetFrame(ipv4(100, 0, uint16(i+1))))
	}
	c.simple(ethernetFrame(ipv4(100, 0, 7))) // has the time of packet 6
	excluded := []uint16{3, 5, 6}
	filter := func(p *dataplane.Packet) bool { return !slices.Contains(excluded, packet{data: p.Data}.id()) }
	p := newPipeline(t, dataplane.Class{
		Name:  "all",
		Meter: &dataplane.Meter{Name: "m", Params: meter.TokenBucket{Rate: byteRate, Burst: 250}},
	})
	var out bytes.Buffer
	var numbers []int64
	var times []int64
	s, err := Run(t.Context(), bytes.NewReader(c.bytes), p, Config{
		Output: &out, Select: Selection{Filter: filter},
		Each: func(p *dataplane.Packet, v *dataplane.Verdict) error {
			numbers, times = append(numbers, v.ID), append(times, p.Time)
			return nil
		},
	})
	if err != nil || s.Packets != 4 || s.Read != 7 || s.First != 1e9 || s.Last != 1_000_030_000 ||
		len(s.Warnings) > 0 {
		t.Errorf("got %+v, %v", s, err)
	}
	if want := []int64{1, 2, 4, 7}; !slices.Equal(numbers, want) {
		t.Errorf("packets %v, want %v", numbers, want)
	}
	if want := []int64{
		1_000_000_000, 1_000_010_000, 1_000_020_000, 1_000_030_000,
	}; !slices.Equal(times, want) {
		t.Errorf("times %v, want %v", times, want)
	}
	// 250 tokens, less 100, plus 10, less 100, plus 10: too few for packet 4, so for 7 as well.
	if got := idsOf(readBack(t, out.Bytes())); !slices.Equal(got, []uint16{1, 2}) {
		t.Errorf("packets %v in the output, want 1 and 2", got)
	}
	if n := p.Stats()[0].Total().Packets; n != 4 {
		t.Errorf("%d packets counted, want 4", n)
	}
}

// TestSelectUntimed excludes the packet whose time the first one of the replay has.
func TestSelectUntimed(t *testing.T) {
	c := littleEndian().section().iface(ethernet, 0)
	c.enhanced(0, 1_000_000, ethernetFrame(ipv4(100, 0, 1)))
	c.simple(ethernetFrame(ipv4(100, 0, 2)))
	s, err := Run(t.Context(), bytes.NewReader(c.bytes), transparent(t), Config{
		Select: Selection{Filter: func(p *dataplane.Packet) bool { return packet{data: p.Data}.id() == 2 }},
	})
	if err != nil || s.First != 1e9 || s.Last != 1e9 || s.Packets != 1 {
		t.Errorf("got %+v, %v, want one packet at 1 s", s, err)
	}
}

// TestSelectGaps excludes packets between those that a link and a queue hold.
func TestSelectGaps(t *testing.T) {
	c := littleEndian().pcap(magicMicro, ethernet)
	var want []uint16
	for i := range uint16(1000) {
		c.packet(1, uint32(i), ethernetFrame(ipv4(100, 0, i)))
		if i%7 == 0 {
			want = append(want, i)
		}
	}
	for name, engine := range map[string]Go{"link": linked(t), "queue": queued(t), "pass": transparent(t)} {
		var out bytes.Buffer
		_, err := Run(t.Context(), bytes.NewReader(c.bytes), engine, Config{
			Output: &out,
			Select: Selection{
				Filter: func(p *dataplane.Packet) bool { return packet{data: p.Data}.id()%7 == 0 },
			},
		})
		if got := idsOf(readBack(t, out.Bytes())); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: got %d packets, %v, want %d", name, len(got), err, len(want))
		}
	}
}

// sll returns a frame with a Linux cooked header, version 1 or 2.
func sll(version, kind int, packet []byte) []byte {
	if version == 1 {
		return slices.Concat([]byte{byte(kind >> 8), byte(kind), 0, 1, 0, 6, 2, 0, 0, 0, 0, 1, 0, 0, 8, 0},
			packet)
	}
	return slices.Concat([]byte{8, 0, 0, 0, 0, 0, 0, 1, 0, 1, byte(kind), 6, 2, 0, 0, 0, 0, 1, 0, 0}, packet)
}

// TestWay checks the direction of packets by each source.
func TestWay(t *testing.T) {
	const cooked2 = 276
	in, out := []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")},
		[]netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("192.0.2.0/24")}
	packet := ipv4(60, 0, 1) // from 192.0.2.1 to 198.51.100.1
	flagged := func(flags uint32) []byte {
		c := littleEndian().section().iface(ethernet, 0)
		frame := ethernetFrame(packet)
		n := uint32(len(frame))
		frame = append(frame, make([]byte, -len(frame)&3)...)
		option := c.option(2, byte(flags), byte(flags>>8), byte(flags>>16), byte(flags>>24))
		return c.block(6, c.body(0, 0, 1e6, n, n).rawBytes(frame...).rawBytes(option...).words(0).bytes).bytes
	}
	pcapOf := func(link uint32, frame []byte) []byte {
		return littleEndian().pcap(magicMicro, link).packet(1, 0, frame).bytes
	}
	arp := ethernetFrame(packet)
	arp[13] = 6
	for name, test := range map[string]struct {
		in     []byte
		inside []netip.Prefix
		want   Way
	}{
		"SLL to us":              {pcapOf(cooked, sll(1, 0, packet)), nil, In},
		"SLL broadcast":          {pcapOf(cooked, sll(1, 1, packet)), nil, In},
		"SLL multicast":          {pcapOf(cooked, sll(1, 2, packet)), nil, In},
		"SLL to another":         {pcapOf(cooked, sll(1, 3, packet)), nil, In},
		"SLL by us":              {pcapOf(cooked, sll(1, 4, packet)), nil, Out},
		"SLL unknown type":       {pcapOf(cooked, sll(1, 5, packet)), nil, AnyWay},
		"SLL large type":         {pcapOf(cooked, sll(1, 0x104, packet)), nil, AnyWay},
		"SLL empty":              {pcapOf(cooked, nil), nil, AnyWay},
		"SLL2 to us":             {pcapOf(cooked2, sll(2, 0, packet)), nil, In},
		"SLL2 by us":             {pcapOf(cooked2, sll(2, 4, packet)), nil, Out},
		"SLL2 cut":               {pcapOf(cooked2, sll(2, 4, packet)[:10]), nil, AnyWay},
		"flags unknown":          {flagged(0), nil, AnyWay},
		"flags inbound":          {flagged(1), nil, In},
		"flags outbound":         {flagged(2), nil, Out},
		"flags both":             {flagged(3), nil, AnyWay},
		"flags, others set":      {flagged(0xff00000e), nil, Out},
		"Ethernet":               {pcapOf(ethernet, ethernetFrame(packet)), nil, AnyWay},
		"from inside":            {pcapOf(ethernet, ethernetFrame(packet)), out, Out},
		"to inside":              {pcapOf(ethernet, ethernetFrame(packet)), in, In},
		"within the inside":      {pcapOf(ethernet, ethernetFrame(packet)), slices.Concat(in, out), AnyWay},
		"not inside":             {pcapOf(ethernet, ethernetFrame(packet)), []netip.Prefix{netip.MustParsePrefix("2001:db8::/32")}, AnyWay},
		"ARP":                    {pcapOf(ethernet, arp), out, AnyWay},
		"inside against SLL":     {pcapOf(cooked, sll(1, 0, packet)), out, Out},
		"not inside, SLL is new": {pcapOf(cooked, sll(1, 0, packet)), []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, In},
	} {
		for _, choose := range []Way{In, Out} {
			s, err := Run(t.Context(), bytes.NewReader(test.in), transparent(t),
				Config{Select: Selection{Way: choose, Inside: test.inside}})
			got := s.Packets == 1
			if err != nil || got != (test.want == choose) || s.Directed != (test.want != AnyWay) ||
				s.Undirected > 0 != (test.want == AnyWay) {
				t.Errorf("%s, choosing %d: got %+v, %v, want direction %d", name, choose, s, err, test.want)
			}
		}
	}
}

// TestBoth checks when a capture has both directions in one class.
func TestBoth(t *testing.T) {
	client, other := tcp{port: 40000, peer: 443}, tcp{port: 40001, peer: 443}
	server := tcp{port: 443, peer: 40000}
	forth, back := client.frame(flagACK, nil, 10, false), reversed(server, flagACK, nil)
	oneWay := [][]byte{forth, other.frame(flagACK, nil, 10, false), forth}
	capture := func(link uint32, frames ...[]byte) []byte {
		c := littleEndian().pcap(magicMicro, link)
		for _, frame := range frames {
			c.packet(1, 0, frame)
		}
		return c.bytes
	}
	c := littleEndian().section().iface(ethernet, 0)
	for range BothSample {
		c.enhanced(0, 1, forth)
	}
	for _, flags := range []byte{flagsInbound, flagsOutbound} {
		padded := append(bytes.Clone(forth), make([]byte, -len(forth)&3)...)
		n := uint32(len(forth))
		c.block(6,
			c.body(0, 0, 1, n, n).rawBytes(padded...).rawBytes(c.option(2, flags, 0, 0, 0)...).words(0).bytes)
	}
	flagged := c.bytes
	long := slices.Repeat([][]byte{forth}, BothSample)
	for name, test := range map[string]struct {
		in     []byte
		shared []bool
		inside string
		want   Both
	}{
		"TCP, both":           {capture(ethernet, forth, back, forth, other.frame(flagACK, nil, 1, false)), []bool{true}, "", Both{ToServers: 2, ToClients: 1}},
		"TCP, one way":        {capture(ethernet, oneWay...), []bool{true}, "", Both{}},
		"TCP, not the same":   {capture(ethernet, forth, reversed(tcp{port: 443, peer: 40001}, flagACK, nil)), []bool{true}, "", Both{}},
		"UDP":                 {capture(ethernet, ethernetFrame(ipv4(100, 0, 1))), []bool{true}, "", Both{}},
		"class of its own":    {capture(ethernet, forth, back), []bool{false}, "", Both{}},
		"not asked":           {capture(ethernet, forth, back), nil, "", Both{}},
		"inside":              {capture(ethernet, forth, back, back), []bool{true}, "192.0.2.0/24", Both{In: 2, Out: 1}},
		"SLL, both":           {capture(cooked, sll(1, 0, forth[14:]), sll(1, 4, back[14:]), sll(1, 1, forth[14:])), []bool{true}, "", Both{In: 2, Out: 1}},
		"SLL, one way":        {capture(cooked, sll(1, 4, forth[14:]), sll(1, 4, back[14:])), []bool{true}, "", Both{}},
		"beyond the sample":   {capture(ethernet, append(long, back)...), []bool{true}, "", Both{}},
		"last of the sample":  {capture(ethernet, append(long[:BothSample-1:BothSample-1], back, back)...), []bool{true}, "", Both{ToServers: BothSample - 1, ToClients: 1}},
		"raw, beyond":         {capture(rawIP, append(slices.Repeat([][]byte{forth[14:]}, BothSample), back[14:])...), []bool{true}, "", Both{}},
		"flags at the end":    {flagged, []bool{true}, "", Both{In: 1, Out: 1}},
		"first packets count": {capture(ethernet, append([][]byte{back}, long...)...), []bool{true}, "", Both{ToServers: BothSample - 1, ToClients: 1}},
	} {
		cfg := Config{Shared: test.shared}
		if test.inside != "" {
			cfg.Select.Inside = []netip.Prefix{netip.MustParsePrefix(test.inside)}
		}
		s, err := Run(t.Context(), bytes.NewReader(test.in), transparent(t), cfg)
		if err != nil || s.Both != test.want {
			t.Errorf("%s: got %+v, %v, want %+v", name, s.Both, err, test.want)
		}
	}
	// Classes by direction: each has one.
	p := newPipeline(t, dataplane.Class{
		Name: "up", Match: dataplane.Match{DPort: []dataplane.Range{{First: 443, Last: 443}}},
	}, dataplane.Class{Name: "rest"})
	if s, err := Run(t.Context(), bytes.NewReader(capture(ethernet, forth, back)), p,
		Config{Shared: []bool{true, true}}); err != nil ||
		s.Both != (Both{}) {
		t.Errorf("two classes: got %+v, %v", s.Both, err)
	}
}
