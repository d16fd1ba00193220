package dataplane_test

import (
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/internal/frametest"
	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
)

// tunneled is what a packet says of its tunnel.
type tunneled struct {
	vni, teid int64 // -1: none
	kind      dataplane.PacketKind
	src, dst  dataplane.Addr
}

// readTunnel parses a frame of Ethernet.
func readTunnel(data []byte, wire int) (out tunneled) {
	p := dataplane.Packet{Data: data, WireLen: wire, Link: dataplane.LinkEthernet}
	dataplane.Parse(&p)
	out.vni, out.teid = -1, -1
	if v, ok := p.VNI(); ok {
		out.vni = int64(v)
	}
	if v, ok := p.TEID(); ok {
		out.teid = int64(v)
	}
	out.kind, out.src, out.dst = p.Inner()
	return out
}

// TestTunnelBytes reads tunnels written by hand, with each number of captured bytes. A field is there once
// all bytes of its header are.
func TestTunnelBytes(t *testing.T) {
	src, dst := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	from, to := netip.MustParseAddr("10.1.0.1"), netip.MustParseAddr("10.1.0.2")
	inner4 := frametest.V4{Proto: 17, Src: from, Dst: to}.Packet(make([]byte, 8))
	inner6 := frametest.V6{
		Next: 17, Src: netip.MustParseAddr("2001:db8::1"), Dst: netip.MustParseAddr("2001:db8::2"),
	}.Packet(make([]byte, 8))
	ethernet4 := frametest.Concat(frametest.Ethernet(frametest.EtherIPv4), inner4)
	tagged6 := frametest.Concat(frametest.Ethernet(frametest.EtherQinQ),
		frametest.Tag(0, 0, 5, frametest.EtherVLAN), frametest.Tag(0, 0, 6, frametest.EtherIPv6), inner6)
	mislabeled := frametest.Concat(frametest.Ethernet(frametest.EtherIPv6), inner4)
	tag := frametest.Tag(0, 0, 7, frametest.EtherVLAN)
	thrice := frametest.Concat(frametest.Ethernet(frametest.EtherVLAN), tag, tag,
		frametest.Tag(0, 0, 7, frametest.EtherIPv4), inner4)
	is4 := tunneled{
		kind: dataplane.IPv4, src: dataplane.Addr{Lo: 0x0a010001}, dst: dataplane.Addr{Lo: 0x0a010002},
	}
	is6 := tunneled{
		kind: dataplane.IPv6, src: dataplane.Addr{Hi: 0x20010db8 << 32, Lo: 1},
		dst: dataplane.Addr{Hi: 0x20010db8 << 32, Lo: 2},
	}
	no := tunneled{kind: dataplane.Other}
	const none, udp = -1, 14 + 20 + 8
	for _, test := range []struct {
		name      string
		port      uint16
		tunnel    string // hexadecimal
		payload   []byte
		vni, teid int64
		want      tunneled // inner addresses
		header    int      // bytes from the payload to the end of the IP header
	}{
		{"VXLAN", 4789, "08000000 01020304", ethernet4, 0x010203, none, is4, 14 + 20},
		{"VXLAN of Linux", 8472, "08000000 00000500", tagged6, 5, none, is6, 14 + 8 + 40},
		{"VXLAN without the I flag", 4789, "f7000000 00000500", ethernet4, none, none, no, 0},
		{"VXLAN, three tags", 4789, "08000000 00000500", thrice, 5, none, no, 0},
		{"VXLAN to another port", 4790, "08000000 00000500", ethernet4, none, none, no, 0},
		{"VXLAN of IPv4 called IPv6", 4789, "08000000 00000500", mislabeled, 5, none, no, 0},
		{"GENEVE", 6081, "00006558 000009ff", ethernet4, 9, none, is4, 14 + 20},
		{"GENEVE with options", 6081, "02406558 00000900 01020300 01010101", tagged6, 9, none, is6, 14 + 8 + 40},
		{"GENEVE of IPv6", 6081, "000086dd ffffff00", inner6, 0xffffff, none, is6, 40},
		{"GENEVE of IPv4 called IPv6", 6081, "000086dd 00000900", inner4, 9, none, no, 0},
		{"GENEVE of nothing known", 6081, "00000000 00000900", inner4, 9, none, no, 0},
		{"GENEVE, version 1", 6081, "40006558 00000900", ethernet4, none, none, no, 0},
		{"GTP-U", 2152, "30ff0024 00000007", inner4, none, 7, is4, 20},
		{"GTP-U with a sequence number", 2152, "32ff0028 ffffffff 00010085", inner6, none, 1<<32 - 1, is6, 40},
		{"GTP-U with extensions", 2152, "34ff0000 00000007 00000085 010009c0 02000000 00000000", inner4, none, 7, is4, 20},
		{"GTP-U with five extensions", 2152, "34ff0000 00000007 00000001 01000001 01000001 01000001 01000001 01000000", inner4, none, 7, no, 0},
		{"GTP-U with an extension of no length", 2152, "34ff0000 00000007 00000085 00000000", inner4, none, 7, no, 0},
		{"GTP-U, end marker", 2152, "30fe0000 00000007", inner4, none, 7, no, 0},
		{"GTP prime", 2152, "20ff0000 00000007", inner4, none, none, no, 0},
		{"GTP, version 2", 2152, "50ff0000 00000007", inner4, none, none, no, 0},
	} {
		tunnel, err := hex.DecodeString(strings.ReplaceAll(test.tunnel, " ", ""))
		if err != nil {
			t.Fatal(err)
		}
		payload := frametest.Concat(frametest.Ports(1234, test.port), make([]byte, 4), tunnel, test.payload)
		frame := frametest.Concat(frametest.Ethernet(frametest.EtherIPv4),
			frametest.V4{Proto: 17, Src: src, Dst: dst}.Packet(payload))
		expect := func(n int) tunneled {
			want := tunneled{vni: none, teid: none, kind: dataplane.Other}
			if n >= udp+8 {
				want.vni, want.teid = test.vni, test.teid
			}
			if test.want != no && n >= udp+len(tunnel)+test.header {
				want.kind, want.src, want.dst = test.want.kind, test.want.src, test.want.dst
			}
			return want
		}
		for n := range len(frame) + 1 {
			if got, want := readTunnel(frame[:n], len(frame)), expect(n); got != want {
				t.Errorf("%s, %d of %d bytes captured:\ngot  %+v\nwant %+v", test.name, n, len(frame), got, want)
			}
		}
		for name, later := range map[string][]byte{
			"TCP":      frametest.V4{Proto: 6, Src: src, Dst: dst}.Packet(payload),
			"fragment": frametest.V4{Proto: 17, Frag: 1, Src: src, Dst: dst}.Packet(payload),
		} {
			data := frametest.Concat(frametest.Ethernet(frametest.EtherIPv4), later)
			if got := readTunnel(data, len(data)); got != expect(0) {
				t.Errorf("%s, %s: got %+v", test.name, name, got)
			}
		}
	}
}

// TestTunnelInPadding checks that bytes behind the IP packet are no tunnel.
func TestTunnelInPadding(t *testing.T) {
	datagram := frametest.V4{
		Proto: 17, Src: netip.MustParseAddr("192.0.2.1"), Dst: netip.MustParseAddr("192.0.2.2"),
	}.Packet(frametest.Concat(frametest.Ports(1, 4789), make([]byte, 4)))
	frame := frametest.Concat(frametest.Ethernet(frametest.EtherIPv4), datagram,
		[]byte{8, 0, 0, 0, 0, 0, 5, 0}, make([]byte, 10))
	for length, want := range map[byte]int64{28: -1, 35: -1, 36: 5} {
		frame[17] = length
		if got := readTunnel(frame, len(frame)); len(frame) != 60 || got.vni != want {
			t.Errorf("%d bytes of IP in a frame of %d: got VNI %d, want %d", length, len(frame), got.vni, want)
		}
	}
}

// TestTunnelsAgainstGopacket compares tunnels that gopacket writes, and those of captures, with what it
// reads.
func TestTunnelsAgainstGopacket(t *testing.T) {
	compared := map[gopacket.LayerType]int{}
	compare := func(data []byte) {
		packet := gopacket.NewPacket(data, layers.LayerTypeEthernet, gopacket.Default)
		want := tunneled{vni: -1, teid: -1, kind: dataplane.Other}
		inside := false
		for _, layer := range packet.Layers() {
			switch l := layer.(type) {
			case *layers.VXLAN:
				if l.ValidIDFlag {
					want.vni, inside = int64(l.VNI), true
				}
			case *layers.Geneve:
				want.vni, inside = int64(l.VNI), true
			case *layers.GTPv1U:
				want.teid, inside = int64(l.TEID), true
			case *layers.IPv4:
				if inside {
					want.kind, want.src, want.dst = dataplane.IPv4, number(l.SrcIP), number(l.DstIP)
				}
			case *layers.IPv6:
				if inside {
					want.kind, want.src, want.dst = dataplane.IPv6, number(l.SrcIP), number(l.DstIP)
				}
			default:
				continue
			}
			if inside {
				compared[layer.LayerType()]++
			}
			if want.kind != dataplane.Other {
				break // of several tunnels the outer one
			}
		}
		if got := readTunnel(data, len(data)); got != want {
			t.Errorf("%x:\ngot  %+v\nwant %+v", data, got, want)
		}
	}
	for _, name := range []string{"tcpdump-vxlan.pcap", "tcpdump-geneve.pcap"} {
		file := filepath.Join("../../shared/pcaps", name)
		if found, _ := filepath.Glob(file); found == nil {
			t.Logf("no capture %s to compare", file)
			continue
		}
		capture(t, file, func(p *dataplane.Packet) { compare(p.Data) })
	}
	r := frametest.Seeded(t)
	ip := func(n byte, proto layers.IPProtocol) gopacket.SerializableLayer {
		if r.IntN(2) == 0 {
			return &layers.IPv4{
				Version: 4, TTL: 9, Protocol: proto,
				SrcIP: net.IP{10, n, 0, byte(r.Uint32())}, DstIP: net.IP{10, n, 1, byte(r.Uint32())},
			}
		}
		src, dst := net.ParseIP("2001:db8::1"), net.ParseIP("2001:db8::2")
		src[5], dst[15] = n, byte(r.Uint32())
		return &layers.IPv6{Version: 6, NextHeader: proto, SrcIP: src, DstIP: dst}
	}
	ethernet := func(next gopacket.SerializableLayer, vlan bool) []gopacket.SerializableLayer {
		t := layers.EthernetTypeIPv4
		if _, six := next.(*layers.IPv6); six {
			t = layers.EthernetTypeIPv6
		}
		mac := net.HardwareAddr{2, 0, 0, 0, 0, 1}
		if vlan {
			return []gopacket.SerializableLayer{
				&layers.Ethernet{SrcMAC: mac, DstMAC: mac, EthernetType: layers.EthernetTypeDot1Q},
				&layers.Dot1Q{VLANIdentifier: 7, Type: t}, next,
			}
		}
		return []gopacket.SerializableLayer{&layers.Ethernet{SrcMAC: mac, DstMAC: mac, EthernetType: t}, next}
	}
	for range 2000 {
		inner := ip(1, layers.IPProtocolUDP)
		packet := ethernet(ip(0, layers.IPProtocolUDP), r.IntN(4) == 0)
		port := map[int]layers.UDPPort{0: 4789, 1: 2152}[r.IntN(2)]
		packet = append(packet, &layers.UDP{SrcPort: 1, DstPort: port})
		if port == 4789 {
			packet = append(packet, &layers.VXLAN{ValidIDFlag: true, VNI: r.Uint32N(1 << 24)})
			packet = append(packet, ethernet(inner, r.IntN(3) == 0)...)
		} else {
			packet = append(packet, gopacket.Payload(gtpHeader(r)), inner)
		}
		packet = append(packet, &layers.UDP{SrcPort: 5000, DstPort: 5001},
			gopacket.Payload(make([]byte, r.IntN(50))))
		buffer, options := gopacket.NewSerializeBuffer(), gopacket.SerializeOptions{FixLengths: true}
		if err := gopacket.SerializeLayers(buffer, options, packet...); err != nil {
			t.Fatal(err)
		}
		compare(buffer.Bytes())
	}
	t.Logf("compared %v", compared)
	for _, l := range []gopacket.LayerType{
		layers.LayerTypeVXLAN, layers.LayerTypeGTPv1U, layers.LayerTypeIPv4, layers.LayerTypeIPv6,
	} {
		if compared[l] < 300 {
			t.Errorf("only %d layers of %v", compared[l], l)
		}
	}
}

// gtpHeader returns a header of GTP-U, in a half of cases with an extension, which gopacket reads, but does
// not write.
func gtpHeader(r *rand.Rand) []byte {
	b := binary.BigEndian.AppendUint32([]byte{0x30, 255, 0, 0}, r.Uint32())
	if r.IntN(2) == 0 {
		b[0] |= 4
		b = append(b, 0, 0, 0, 0x85, 1, byte(r.Uint32()), byte(r.Uint32()), 0)
	}
	return b
}

// number returns an address as dataplane.Addr.
func number(ip net.IP) (out dataplane.Addr) {
	for _, b := range ip {
		out.Hi = out.Hi<<8 | out.Lo>>56
		out.Lo = out.Lo<<8 | uint64(b)
	}
	return out
}
