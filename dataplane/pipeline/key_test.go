package pipeline

import (
	"bytes"
	"cmp"
	"math"
	"net/netip"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/internal/frametest"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// sharedMeter returns a policy of classes a and b, for DSCP 0 and 1. They share one meter, or
// have one each if separate.
func sharedMeter(separate bool, m dataplane.Meter) *dataplane.Policy {
	list := classes("a", "b")
	first, second := m, m
	list[0].Meter, list[1].Meter = &first, &second
	if !separate {
		list[1].Meter = &first
	}
	return &dataplane.Policy{Classes: list}
}

// TestFlowOfFragments checks that all fragments of a packet belong to one flow, and that
// whole packets with the same addresses, protocol and ports belong to another.
func TestFlowOfFragments(t *testing.T) {
	// in units of 8 bytes; all but the last have More Fragments set
	inFragments := func(offsets ...uint16) [][]byte {
		var out [][]byte
		for i, offset := range offsets {
			frag := offset | 0x2000
			if i == len(offsets)-1 {
				frag = offset
			}
			out = append(out, frametest.V4{Proto: frametest.ProtoUDP, Frag: frag}.Packet(frametest.UDP))
		}
		return out
	}
	// an IPv6 packet in fragments; the fragment header names protocol next
	inFragments6 := func(first []byte, next byte) [][]byte {
		return [][]byte{
			frametest.V6{Next: 44}.Packet(frametest.Fragment(next, 0), first),
			frametest.V6{Next: 44}.Packet(frametest.Fragment(next, 7), frametest.UDP),
			frametest.V6{Next: 44}.Packet(frametest.Patched(frametest.Fragment(next, 9), 3, 9<<3),
				frametest.UDP),
		}
	}
	for name, packets := range map[string][][]byte{
		"IPv4":                           inFragments(0, 1, 185),
		"IPv4, last fragment first":      {inFragments(0, 1)[1], inFragments(0, 1)[0]},
		"IPv6":                           inFragments6(frametest.UDP, frametest.ProtoUDP),
		"IPv6, another extension header": inFragments6(frametest.Concat(frametest.Extension(frametest.ProtoUDP, 8), frametest.UDP), 60),
		"IPv6, extension headers before and after": {frametest.V6{Next: 0}.Packet(frametest.Extension(44, 8), frametest.Fragment(60, 0), frametest.Extension(frametest.ProtoUDP, 8), frametest.UDP), inFragments6(frametest.UDP, 60)[1]},
	} {
		m := &dataplane.Meter{
			Params: meter.TokenBucket{Rate: meter.ByteRate(1), Burst: 1}, Packets: true,
			Per: dataplane.Key{By: dataplane.ByFlow},
		}
		l := newPipeline(t, &dataplane.Policy{Classes: []dataplane.Class{{Name: "a", Meter: m}}})
		for i, data := range packets {
			var v dataplane.Verdict
			l.Process(&dataplane.Packet{Data: data, Link: dataplane.LinkRaw}, &v)
			if want := i > 0; v.Done.Dropped() != want {
				t.Errorf("%s: fragment %d, dropped: %v", name, i, !want)
			}
		}
		var v dataplane.Verdict
		whole := frametest.V4{Proto: frametest.ProtoUDP}.Packet(frametest.UDP)
		if packets[0][0]>>4 == 6 {
			whole = frametest.V6{Next: frametest.ProtoUDP}.Packet(frametest.UDP)
		}
		if l.Process(&dataplane.Packet{Data: whole, Link: dataplane.LinkRaw}, &v); v.Done.Dropped() {
			t.Errorf(
				"%s: a whole packet with these ports was dropped, want it in another flow than the fragments",
				name)
		}
	}
	// A match by port still matches the first fragment.
	l := newPipeline(t, &dataplane.Policy{Classes: []dataplane.Class{
		{Name: "port", Match: dataplane.Match{DPort: []dataplane.Range{{First: 2000, Last: 2000}}}},
		{Name: "rest"},
	}})
	for i, data := range inFragments(0, 1) {
		var v dataplane.Verdict
		if l.Process(&dataplane.Packet{Data: data, Link: dataplane.LinkRaw}, &v); int(v.Class) != i {
			t.Errorf("fragment %d: got class %d, want %[1]d", i, v.Class)
		}
	}
}

// TestInheritSplit checks that two meters that continue the same one do not share its
// state, such as a log or a table of keys.
func TestInheritSplit(t *testing.T) {
	for name, m := range map[string]dataplane.Meter{
		"log":    {Params: meter.SlidingLog{Limit: 1000, Window: time.Second, Entries: 100}},
		"slots":  {Params: meter.SlidingWindow{Limit: 1000, Window: time.Second, Slots: 10}},
		"keys":   {Params: meter.TokenBucket{Rate: meter.ByteRate(1), Burst: 1000}, Per: dataplane.Key{By: dataplane.BySrc}},
		"bucket": {Params: meter.TokenBucket{Rate: meter.ByteRate(1), Burst: 1000}},
	} {
		before := newPipeline(t, sharedMeter(false, m))
		process(before, 0, ipPacket(0, 400)) // leaves 600 bytes to both
		l, _ := inherited(t, before, sharedMeter(true, m))
		for i, want := range []meter.Color{meter.Green, meter.Red} {
			if v, _ := process(l, 1, ipPacket(0, 500)); v.Color != want {
				t.Errorf("%s: packet %d of class a is %v, want %v", name, i, v.Color, want)
			}
		}
		v, _ := process(l, 2, ipPacket(1, 300)) // class b has 600 bytes of its own; with keys, 1000
		if v.Color != meter.Green {
			t.Errorf("%s: the packet of class b is %v, want green", name, v.Color)
		}
		if name == "log" || name == "slots" {
			if v, _ := process(l, int64(2*time.Second), ipPacket(0, 1000)); v.Color != meter.Green {
				t.Errorf("%s: the packet of class a is %v in an empty window, want green", name, v.Color)
			}
		}
	}
}

// TestInheritKeys checks that keys are inherited if the key and the bound of the table are
// the same, even if the burst differs.
func TestInheritKeys(t *testing.T) {
	policy := func(burst int64, keys int) *dataplane.Policy {
		m := &dataplane.Meter{
			Params: meter.TokenBucket{Rate: meter.ByteRate(1), Burst: burst},
			Per:    dataplane.Key{By: dataplane.BySrc}, Keys: keys,
		}
		return &dataplane.Policy{Classes: []dataplane.Class{{Name: "a", Meter: m}}}
	}
	before := newPipeline(t, policy(1000, 5))
	process(before, 0, ipPacket(0, 400))
	same, _ := inherited(t, before, policy(700, 5))
	if v, _ := process(same, 0, ipPacket(0, 601)); v.Color != meter.Red {
		t.Errorf("601 bytes with 600 tokens are %v, want red", v.Color)
	}
	if v, _ := process(same, 0, ipPacket(0, 600)); v.Color != meter.Green {
		t.Errorf("600 bytes with 600 tokens are %v, want green", v.Color)
	}
	if n := same.Keys(0); n.Keys != 1 {
		t.Errorf("keys %+v, want 1", n)
	}
	other, _ := inherited(t, same, policy(700, 6))
	if v, _ := process(other, 0, ipPacket(0, 700)); v.Color != meter.Green {
		t.Errorf("700 bytes with a new table are %v, want green", v.Color)
	}
}

// TestInheritEnvelope checks that a flow keeps its tokens, and that it gains tokens from
// then on.
func TestInheritEnvelope(t *testing.T) {
	flow := meter.TRTCM4115{CIR: meter.ByteRate(1000), CBS: 1000}
	alone := &dataplane.Policy{Classes: []dataplane.Class{{Name: "a", Meter: &dataplane.Meter{Params: flow}}}}
	within := func() *dataplane.Policy {
		return &dataplane.Policy{Classes: []dataplane.Class{{
			Name:  "a",
			Meter: &dataplane.Meter{Params: flow, Envelope: &dataplane.Envelope{Name: "e"}, Rank: 1},
		}}}
	}
	for name, policies := range map[string][2]*dataplane.Policy{
		"into": {alone, within()}, "out of": {within(), alone}, "within": {within(), within()},
	} {
		before := newPipeline(t, policies[0])
		process(before, 0, ipPacket(0, 1000))
		l, _ := inherited(t, before, policies[1])
		if v, _ := process(l, int64(100*time.Millisecond), ipPacket(0, 101)); v.Color != meter.Red {
			t.Errorf("%s an envelope: 101 bytes with 100 tokens are %v, want red", name, v.Color)
		}
		if v, _ := process(l, int64(100*time.Millisecond), ipPacket(0, 100)); v.Color != meter.Green {
			t.Errorf("%s an envelope: 100 bytes with 100 tokens are %v, want green", name, v.Color)
		}
	}
}

// TestForeignMeter checks that a meter that no class uses has no tokens and no keys, rather
// than those of the first stage.
func TestForeignMeter(t *testing.T) {
	params := meter.TokenBucket{Rate: meter.ByteRate(1), Burst: 1000}
	own := &dataplane.Meter{Params: params, Per: dataplane.Key{By: dataplane.BySrc}}
	foreign := &dataplane.Meter{Params: params}
	for name, policy := range map[string]*dataplane.Policy{
		"keyed":    {Classes: []dataplane.Class{{Name: "a", Meter: own}}},
		"unkeyed":  {Classes: []dataplane.Class{{Name: "a", Meter: &dataplane.Meter{Params: params}}}},
		"no meter": {Classes: []dataplane.Class{{Name: "a"}}},
	} {
		l := newPipeline(t, policy)
		process(l, 0, ipPacket(0, 400))
		for _, m := range []*dataplane.Meter{foreign, nil} {
			if tc, te := tokensOf(l, m); tc != 0 || te != 0 {
				t.Errorf("%s: got %d and %d tokens, want none", name, tc, te)
			}
			if n := l.Keys(l.plan.Stage(m)); n != (meter.TableStats{}) {
				t.Errorf("%s: keys %+v, want none", name, n)
			}
		}
	}
	if n := newPipeline(t, &dataplane.Policy{
		Classes: []dataplane.Class{{Name: "a", Meter: own}},
	}).Keys(0); n != (meter.TableStats{}) {
		t.Errorf("keys %+v before the first packet, want none", n)
	}
}

// TestExplainKeys checks the keys in the steps of Explain, also of packets that are red before
// the meter, and of packets that have no key.
func TestExplainKeys(t *testing.T) {
	tagged := frametest.Concat(frametest.Ethernet(frametest.EtherVLAN),
		frametest.Tag(0, 0, 7, frametest.EtherIPv6),
		frametest.V6{Class: 46 << 2, Next: frametest.ProtoTCP}.Packet(frametest.Ports(1000, 80),
			make([]byte, 16)))
	packet := frametest.Concat(frametest.Ethernet(frametest.EtherIPv4),
		frametest.V4{Tos: 10 << 2, Proto: frametest.ProtoUDP}.Packet(frametest.UDP))
	unnamed := frametest.Concat(frametest.Ethernet(frametest.EtherIPv4),
		frametest.V4{Proto: 253}.Packet(frametest.UDP))
	for _, test := range []struct {
		key   dataplane.Key
		frame []byte
		want  string
	}{
		{dataplane.Key{By: dataplane.BySrc}, packet, "src 192.0.2.1"},
		{dataplane.Key{By: dataplane.BySrc, V4: 24}, packet, "src 192.0.2.0/24"},
		{dataplane.Key{By: dataplane.BySrc, V4: 24}, tagged, "src 2001:db8::1"},
		{dataplane.Key{By: dataplane.BySrc, V6: 32}, tagged, "src 2001:db8::/32"},
		{dataplane.Key{By: dataplane.BySrc, V6: 32}, packet, "src 192.0.2.1"},
		{dataplane.Key{By: dataplane.ByDst}, packet, "dst 198.51.100.2"},
		{dataplane.Key{By: dataplane.ByDst, V4: 1, V6: 127}, tagged, "dst 2001:db8:ffff::2/127"},
		{dataplane.Key{By: dataplane.ByDst, V4: 8}, packet, "dst 198.0.0.0/8"},
		{dataplane.Key{By: dataplane.ByFlow}, packet, "flow 192.0.2.1:1000 > 198.51.100.2:2000 udp"},
		{dataplane.Key{By: dataplane.ByFlow}, tagged, "flow [2001:db8::1]:1000 > [2001:db8:ffff::2]:80 tcp"},
		{dataplane.Key{By: dataplane.ByFlow}, unnamed, "flow 192.0.2.1:0 > 198.51.100.2:0 proto 253"},
		{dataplane.Key{By: dataplane.ByVLAN}, tagged, "vlan 7"},
		{dataplane.Key{By: dataplane.ByVLAN}, packet, ""},
		{dataplane.Key{By: dataplane.ByDSCP}, packet, "dscp 10"},
		{dataplane.Key{By: dataplane.ByDSCP}, tagged, "dscp 46"},
		{dataplane.Key{By: dataplane.ByDSCP}, arp, ""},
		{dataplane.Key{By: dataplane.BySrc}, arp, ""},
		{dataplane.Key{By: dataplane.ByFlow}, arp, ""},
	} {
		l := newPipeline(t, &dataplane.Policy{Classes: []dataplane.Class{{
			Name: "a", Match: dataplane.Match{Length: []dataplane.Range{{First: 0, Last: math.MaxUint32}}},
			Meter: &dataplane.Meter{
				Params: meter.TokenBucket{Rate: frametest.Mega, Burst: 1500}, Per: test.key,
				Aware: true,
				PreColor: dataplane.PreColor{
					From: dataplane.SKBMark, Map: map[uint32]meter.Color{1: meter.Red},
				},
			},
		}}})
		for mark, want := range []meter.Color{meter.Green, meter.Red} {
			var v dataplane.Verdict
			steps := l.Explain(&dataplane.Packet{
				Data: bytes.Clone(test.frame), Link: dataplane.LinkEthernet, Mark: uint32(mark),
			}, &v)
			if len(steps) != 1 || steps[0].Key != test.want || steps[0].Color != want {
				t.Errorf("key %v, frame of %d bytes, input color %v: steps %+v, want key %q", test.key,
					len(test.frame), want, steps, test.want)
			}
		}
	}
}

// TestKeyString checks the spelling of keys.
func TestKeyString(t *testing.T) {
	for key, want := range map[dataplane.Key]string{
		{}:                                     "",
		{By: dataplane.BySrc}:                  "src",
		{By: dataplane.ByHosts}:                "hosts",
		{By: dataplane.ByDst, V4: 24}:          "dst/24",
		{By: dataplane.ByDst, V4: 24, V6: 64}:  "dst/24,64",
		{By: dataplane.BySrc, V6: 64}:          "src/32,64",
		{By: dataplane.BySrc, V4: 1, V6: 1}:    "src/1,1",
		{By: dataplane.ByAddress, V4: 24}:      "address/24",
		{By: dataplane.ByMAC}:                  "mac",
		{By: dataplane.ByVLANMAC}:              "[vlan, mac]",
		{By: dataplane.ByVNI}:                  "vni",
		{By: dataplane.ByTEID}:                 "teid",
		{By: dataplane.ByMark}:                 "mark",
		{By: dataplane.ByCgroup}:               "cgroup",
		{By: dataplane.ByCgroup + 1}:           "KeyField(14)",
		{By: dataplane.ByCgroup + 1, V4: 1}:    "KeyField(14)/1",
		{By: dataplane.BySrc, V4: 32, V6: 128}: "src/32,128",
	} {
		if got := key.String(); got != want {
			t.Errorf("%#v is %q, want %q", key, got, want)
		}
	}
}

// TestMasks compares the masks of all prefix lengths with the standard library.
func TestMasks(t *testing.T) {
	for bits := range uint8(129) {
		ones, _ := netip.MustParseAddr(
			"ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff").Prefix(int(cmp.Or(bits, 128)))
		if got := frametest.Address(dataplane.IPv6, (dataplane.Key{V6: bits}).Mask6()); got != ones.Addr() {
			t.Errorf("/%d of IPv6: mask %v, want %v", bits, got, ones.Addr())
		}
		if bits > 32 {
			continue
		}
		four, _ := netip.MustParseAddr("255.255.255.255").Prefix(int(cmp.Or(bits, 32)))
		if got := frametest.Address(dataplane.IPv4,
			dataplane.Addr{Lo: uint64((dataplane.Key{V4: bits}).Mask4())}); got != four.Addr() {
			t.Errorf("/%d of IPv4: mask %v, want %v", bits, got, four.Addr())
		}
	}
}

// TestPrefixKeys sends two packets with a budget for one packet per key: the second is red if
// it has the same key.
func TestPrefixKeys(t *testing.T) {
	from := func(src, dst string) []byte {
		a, b := netip.MustParseAddr(src), netip.MustParseAddr(dst)
		if a.Is4() {
			return frametest.V4{Proto: 1, Src: a, Dst: b}.Packet(nil)
		}
		return frametest.V6{Next: 59, Src: a, Dst: b}.Packet()
	}
	for _, test := range []struct {
		key        dataplane.Key
		src1, src2 string
		same       bool
	}{
		{dataplane.Key{V4: 24, V6: 64}, "10.1.2.3", "10.1.2.255", true},
		{dataplane.Key{V4: 24, V6: 64}, "10.1.2.3", "10.1.3.3", false},
		{dataplane.Key{V4: 24}, "2001:db8::1", "2001:db8::2", false},
		{dataplane.Key{V4: 24, V6: 64}, "2001:db8::1", "2001:db8::ffff:0:0:1", true},
		{dataplane.Key{V4: 24, V6: 64}, "2001:db8::1", "2001:db8:0:1::1", false},
		{dataplane.Key{V6: 65}, "2001:db8::1", "2001:db8::7fff:0:0:1", true},
		{dataplane.Key{V6: 65}, "2001:db8::1", "2001:db8::8000:0:0:1", false},
		{dataplane.Key{V6: 63}, "2001:db8::1", "2001:db8:0:1::1", true},
		{dataplane.Key{V6: 63}, "2001:db8::1", "2001:db8:0:2::1", false},
		{dataplane.Key{}, "10.1.2.3", "10.1.2.3", true},
		{dataplane.Key{}, "10.1.2.3", "10.1.2.2", false},
	} {
		for _, by := range []dataplane.KeyField{dataplane.BySrc, dataplane.ByDst} {
			test.key.By = by
			l := newPipeline(t,
				&dataplane.Policy{Classes: []dataplane.Class{{Name: "a", Meter: &dataplane.Meter{
					Params: meter.TokenBucket{Rate: meter.ByteRate(1), Burst: 1}, Packets: true,
					Per: test.key,
				}}}})
			var v [2]dataplane.Verdict
			for i, addr := range []string{test.src1, test.src2} {
				other := addr[:len(addr)-1] + string('4'+rune(i)) // the address that is not in the key
				data := from(addr, other)
				if by == dataplane.ByDst {
					data = from(other, addr)
				}
				l.Process(&dataplane.Packet{Data: data, Link: dataplane.LinkRaw}, &v[i])
			}
			want := meter.Green
			if test.same {
				want = meter.Red
			}
			if v[0].Color != meter.Green || v[1].Color != want {
				t.Errorf("key %v of %s and %s: got %v and %v, want green and %v", test.key, test.src1,
					test.src2, v[0].Color, v[1].Color, want)
			}
		}
	}
}

// TestPacketsWithoutKey checks that packets without a key share one meter, whose tokens
// Tokens returns, and add no key, also during Explain.
func TestPacketsWithoutKey(t *testing.T) {
	m := &dataplane.Meter{
		Params: meter.TokenBucket{Rate: meter.ByteRate(1), Burst: 100},
		Per:    dataplane.Key{By: dataplane.BySrc}, Aware: true,
		PreColor: dataplane.PreColor{From: dataplane.SKBMark, Map: map[uint32]meter.Color{1: meter.Red}},
	}
	policy := &dataplane.Policy{Classes: []dataplane.Class{
		{Name: "a", Match: dataplane.Match{Length: []dataplane.Range{{First: 0, Last: 1500}}}, Meter: m},
	}}
	l, explained := newPipeline(t, policy), newPipeline(t, policy)
	for i, row := range []struct {
		frame  []byte
		mark   uint32
		color  meter.Color
		tokens int64 // of the meter without a key
		keys   int
	}{
		{arp, 1, meter.Red, 100, 0},
		{arp, 0, meter.Green, 54, 0}, // 46 bytes
		{ipPacket(0, 100), 0, meter.Green, 54, 1},
		{ipPacket(0, 20), 0, meter.Red, 54, 1},
		{arp, 1, meter.Red, 54, 1},
		{arp, 0, meter.Green, 8, 1},
		{arp, 0, meter.Red, 8, 1},
	} {
		v := verdictOf(l,
			&dataplane.Packet{Data: bytes.Clone(row.frame), Link: dataplane.LinkEthernet, Mark: row.mark})
		if tokens, _ := tokensOf(l, m); v.Color != row.color || tokens != row.tokens ||
			l.Keys(0).Keys != row.keys {
			t.Errorf("packet %d: got %v, %d tokens, %d keys; want %v, %d, %d", i, v.Color, tokens,
				l.Keys(0).Keys, row.color, row.tokens, row.keys)
		}
		explained.Explain(
			&dataplane.Packet{Data: bytes.Clone(row.frame), Link: dataplane.LinkEthernet, Mark: row.mark}, &v)
		if tokens, _ := tokensOf(explained, m); v.Color != row.color || tokens != row.tokens ||
			explained.Keys(0).Keys != row.keys {
			t.Errorf("packet %d, Explain: got %v, %d tokens, %d keys; want %v, %d, %d", i, v.Color, tokens,
				explained.Keys(0).Keys, row.color, row.tokens, row.keys)
		}
	}
}
