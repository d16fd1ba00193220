package lint

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// TestContradiction classifies frames of all kinds by random matches: none matches one that is said to match
// no packet.
func TestContradiction(t *testing.T) {
	frames := [][]byte{ordinary[0], ordinary[1]}
	for _, p := range append(append(append([]probe{}, control...), forgotten...), hidden...) {
		frames = append(frames, p.frame)
	}
	label, ppp := []byte{0, 1, 1, 64},
		func(proto byte) []byte { return []byte{0x11, 0, 0, 1, 0, 40, 0, proto} }
	ports := []byte{0, 80, 0, 80, 0, 0, 0, 0}
	for _, proto := range []byte{6, 17, 33, 132, 136, 47, 89} {
		v4, v6 := ipv4(proto, ports), ipv6(proto, ports)
		frames = append(frames, frame(0x0800, v4), frame(0x86dd, v6),
			frame(0x8100, append([]byte{0x60, 7, 0x08, 0}, v4...)),
			frame(0x8847, append(label, v4...)), frame(0x8847, append(label, v6...)),
			frame(0x8848, append(label, v4...)),
			frame(0x8864, append(ppp(0x21), v4...)), frame(0x8864, append(ppp(0x57), v6...)))
	}
	frames = append(frames, frame(0x0800, ipv4(1, ports)), frame(0x0800, ipv4(2, ports)))
	for _, port := range []uint16{4789, 8472, 6081, 2152} {
		tunnel := append(binary.BigEndian.AppendUint16([]byte{0, 80}, port), 0, 0, 0, 0)
		tunnel = append(tunnel, 8, 0, 0, 0, 0, 0, 5, 0)
		switch port {
		case 6081:
			tunnel[8] = 0
		case 2152:
			tunnel[8] = 0x30
		}
		frames = append(frames, frame(0x0800, ipv4(17, tunnel)), frame(0x86dd, ipv6(17, tunnel)))
	}
	var packets []dataplane.Packet
	for _, f := range frames {
		p := dataplane.Packet{Data: f, WireLen: max(len(f), 60), Link: dataplane.LinkEthernet}
		dataplane.Parse(&p)
		packets = append(packets, p)
	}
	r := rand.New(rand.NewPCG(31, 4))
	ranges := func(values ...uint64) (list []dataplane.Range) {
		for range r.IntN(3) {
			a, b := values[r.IntN(len(values))], values[r.IntN(len(values))]
			if r.IntN(3) > 0 {
				b = a
			}
			list = append(list, dataplane.Range{First: min(a, b), Last: max(a, b)})
		}
		return list
	}
	prefixes := func() (list []netip.Prefix) {
		for range r.IntN(3) {
			list = append(list, []netip.Prefix{
				netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("0.0.0.0/8"),
				netip.MustParsePrefix("::/0"), netip.MustParsePrefix("::/64"),
				netip.MustParsePrefix("::ffff:0:0/96"), netip.MustParsePrefix("::ffff:0.0.0.0/128"),
			}[r.IntN(6)])
		}
		return list
	}
	refused, matched := 0, 0
	for range 20_000 {
		m := dataplane.Match{
			Proto:     ranges(1, 2, 6, 17, 33, 47, 58, 89, 132, 136),
			EtherType: ranges(28, 0x5ff, 0x800, 0x806, 0x86dd, 0x8847, 0x8864, 0x88e5),
		}
		if r.IntN(2) == 0 {
			m.Src = prefixes()
		}
		if r.IntN(2) == 0 {
			m.Dst = prefixes()
		}
		if r.IntN(3) == 0 {
			m.DPort = ranges(80, 179, 5000, 2152, 4789, 8472, 6081)
		}
		switch r.IntN(12) {
		case 0:
			m.VNI = ranges(0, 5)
		case 1:
			m.TEID = ranges(0, 0x500)
		case 2:
			m.VNI, m.TEID = ranges(5), ranges(0x500)
		case 3:
			m.TCPFlags = ranges(0, 255)
		case 4:
			m.ICMPType = ranges(0, 0x50, 0x1ffff)
		case 5:
			m.VNI, m.TCPFlags, m.ICMPType = ranges(0, 5), ranges(0, 255), ranges(0, 0x1ffff)
		}
		if r.IntN(3) == 0 {
			m.DSCP = ranges(0, 48)
		}
		_, why := contradiction(&m)
		if why != "" {
			refused++
		}
		for i := range packets {
			if m.Misses(&packets[i], packets[i].L3Len) != "" {
				continue
			}
			if matched++; why != "" {
				t.Fatalf("%+v matches frame %x, and is said to match none: %s", m, frames[i], why)
			}
		}
	}
	if refused < 2000 || matched < 2000 {
		t.Errorf("%d contradictions and %d matches are too few for a test", refused, matched)
	}
}
