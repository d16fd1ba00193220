package replay

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// wrapping is a link type, with the bytes that it puts around an IPv4 packet.
type wrapping struct {
	name   string
	link   dataplane.LinkType
	wrap   func(o binary.ByteOrder, packet []byte) []byte
	unread bool // tshark does not decode it
}

// before puts bytes before a packet.
func before(parts ...[]byte) func(binary.ByteOrder, []byte) []byte {
	return func(_ binary.ByteOrder, packet []byte) []byte {
		return slices.Concat(slices.Concat(parts...), packet)
	}
}

// attribute returns an attribute of an NFLOG message, padded.
func attribute(o binary.ByteOrder, kind uint16, value []byte) []byte {
	b := make([]byte, 4)
	o.PutUint16(b, uint16(4+len(value)))
	o.PutUint16(b[2:], kind)
	return append(append(b, value...), make([]byte, -len(value)&3)...)
}

// analyzed returns a frame with its FCS after some bytes.
func analyzed(n int) func(binary.ByteOrder, []byte) []byte {
	return func(_ binary.ByteOrder, packet []byte) []byte {
		frame := ethernetFrame(packet)
		head := make([]byte, n)
		head[1] = 0x04 | byte(n/12)<<1 // version 1, transparent
		binary.LittleEndian.PutUint16(head[2:], uint16(n-4+len(frame)+4))
		return slices.Concat(head, binary.LittleEndian.AppendUint32(frame, crc32.ChecksumIEEE(frame)))
	}
}

var (
	macs = make([]byte, 12)
	ip0  = []byte{8, 0}
	llc  = []byte{0xaa, 0xaa, 3, 0, 0, 0, 8, 0}
)

var wrappings = []wrapping{
	{"PPP", 9, before([]byte{0xff, 3, 0, 0x21}), false},
	{"PPP without address", 9, before([]byte{0, 0x21}), false},
	{"PPP in HDLC", 50, before([]byte{0xff, 3, 0, 0x21}), false},
	{"PPPoE", 51, before([]byte{0x11, 0, 0, 1, 0, 62, 0, 0x21}), false},
	{"pppd", 166, before([]byte{0, 3, 0, 0x21}), true},
	{"Cisco HDLC", 104, before([]byte{0x0f, 0, 8, 0}), false},
	{"frame relay", 107, before([]byte{0x18, 0x41, 3, 0xcc}), false},
	{"FDDI", 10, before([]byte{0x50}, macs, llc), false},
	{"ATM", 100, before(llc), false},
	{"classical IP over ATM", 106, before(), false},
	{"classical IP over ATM with LLC", 106, before(llc), true},
	{"SunATM", 123, before([]byte{2, 0, 0, 32}, llc), false},
	{"Fibre Channel", 122, before(make([]byte, 16), llc), false},
	{"IEEE 1394", 138, before(make([]byte, 16), ip0), false},
	{"InfiniBand", 242, before(make([]byte, 40), ip0, []byte{0, 0}), false},
	{"Symantec", 99, before(make([]byte, 6), ip0, make([]byte, 36)), false},
	{"DSA", 284, before(macs, []byte{0xc0, 0, 0, 0}, ip0), true},
	{"DSA of Broadcom", 281, before(macs, []byte{0, 0, 0, 0}, ip0), true},
	{"DSA with EtherType", 285, before(macs, make([]byte, 8), ip0), true},
	{"SLIP", 8, before(make([]byte, 16)), true},
	{"enc", 109, before([]byte{2, 0, 0, 0}, make([]byte, 8)), false},
	{"pflog", 117, before([]byte{61, 2}, make([]byte, 62)), false},
	{"PPI", 192, before([]byte{0, 0, 8, 0, 1, 0, 0, 0}, macs, ip0), false},
	{"PPP with direction", 204, before([]byte{1, 0xff, 3, 0, 0x21}), false},
	{"Cisco HDLC with direction", 205, before([]byte{1, 0x0f, 0, 8, 0}), true},
	{"frame relay with direction", 206, before([]byte{1, 0x18, 0x41, 3, 0xcc}), true},
	{"ipnet", 226, before([]byte{1, 2}, make([]byte, 22)), true},
	{"PKTAP", 258, before([]byte{108, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0}, make([]byte, 96), macs, ip0), false},
	{"DSA of Broadcom before the frame", 282, before(make([]byte, 4), macs, ip0), true},
	{"netANALYZER", 240, analyzed(4), false},
	{"netANALYZER, transparent", 241, analyzed(12), true},
	{"NFLOG", 239, func(o binary.ByteOrder, packet []byte) []byte {
		return slices.Concat([]byte{2, 0, 0, 5}, attribute(o, 1, []byte{8, 0, 1, 0}),
			attribute(o, 10, []byte("prefix\x00")), attribute(o, 9, packet), attribute(o, 5, make([]byte, 4)))
	}, false},
	{"NFLOG of a bridge", 239, func(o binary.ByteOrder, packet []byte) []byte {
		return slices.Concat([]byte{7, 0, 0, 5}, attribute(o, 1, []byte{8, 0, 1, 0}), attribute(o, 9, packet))
	}, true},
}

// TestWrappings replays a packet of 60 bytes in the link header, or behind the pseudo-header, of each
// link type, in all formats. Only the packet is metered and marked, and tshark finds it in the output.
func TestWrappings(t *testing.T) {
	marking := newPipeline(t, dataplane.Class{
		Name: "all", Green: &dataplane.Action{Marks: []dataplane.Mark{{Field: dataplane.DSCP, Value: 10}}},
	})
	datagram := func(tosByte byte) []byte {
		b := tos(60, tosByte, 1)
		copy(b[20:], []byte{0x10, 0, 0x20, 0, 0, 40, 0, 0})
		return b
	}
	tshark, err := exec.LookPath("tshark")
	if err != nil {
		t.Log("without tshark (apt-get install tshark)")
	}
	for _, w := range wrappings {
		forms := map[string]func(c *capture, frame []byte) []byte{
			"pcap": func(c *capture, frame []byte) []byte {
				return c.pcap(magicMicro, uint32(w.link)).packet(1, 0, frame).bytes
			},
			"pcapng": func(c *capture, frame []byte) []byte {
				raw := c.section().iface(uint16(w.link), 0).enhanced(0, 1, frame).simple(frame).bytes
				copy(raw[16:], bytes.Repeat([]byte{0xff}, 8)) // the output does not know the section's length
				return raw
			},
		}
		for name, form := range forms {
			for _, c := range []*capture{littleEndian(), bigEndian()} {
				t.Run(fmt.Sprintf("%s/%s/%v", w.name, name, c.byteOrder), func(t *testing.T) {
					in := form(&capture{byteOrder: c.byteOrder}, w.wrap(c.byteOrder, datagram(0)))
					want := form(&capture{byteOrder: c.byteOrder}, w.wrap(c.byteOrder, datagram(10<<2)))
					var out bytes.Buffer
					s, err := Run(t.Context(), bytes.NewReader(in), marking,
						Config{Output: &out, Each: func(p *dataplane.Packet, v *dataplane.Verdict) error {
							if p.Kind != dataplane.IPv4 || v.Length != 60 {
								t.Errorf("%v of %d bytes, link type %v, want an IPv4 packet of 60", p.Kind,
									v.Length, p.Link)
							}
							return nil
						}})
					if err != nil || len(s.Warnings)+len(s.Notes) > 0 {
						t.Errorf("error %v, warnings %q, notes %q", err, s.Warnings, s.Notes)
					}
					if !bytes.Equal(out.Bytes(), want) {
						t.Errorf("output\n% x\nwant\n% x", out.Bytes(), want)
					}
					if tshark == "" || w.unread || name != "pcap" {
						return
					}
					path := filepath.Join(t.TempDir(), "out")
					if err := os.WriteFile(path, out.Bytes(), 0o600); err != nil {
						t.Fatal(err)
					}
					fields, err := exec.Command(tshark, "-r", path, "-T", "fields", "-e", "ip.len", "-e",
						"ip.dsfield.dscp").Output()
					if got := strings.TrimSpace(string(fields)); err != nil || got != "60\t10" {
						t.Errorf("tshark: %q, %v", got, err)
					}
				})
			}
		}
	}
}

// TestWrappedInQueue checks that a queued packet of a pcapng block without a timestamp keeps its
// pseudo-header.
func TestWrappedInQueue(t *testing.T) {
	for _, w := range wrappings {
		frame := w.wrap(binary.LittleEndian, ipv4(60, 0, 1))
		in := littleEndian().section().iface(uint16(w.link), 0).simple(frame).simple(frame).bytes
		out, _ := mustReplay(t, in, queued(t))
		if n := bytes.Count(out, frame); n != 2 {
			t.Errorf("%s: %d of 2 packets in the output", w.name, n)
		}
	}
}

// TestWrappedLengths checks the lengths of packets that are not there as a whole.
func TestWrappedLengths(t *testing.T) {
	o := binary.LittleEndian
	ip := ipv4(1000, 0, 1)
	nflog := func(packet []byte) []byte { return append([]byte{2, 0, 0, 5}, attribute(o, 9, packet)...) }
	for _, test := range []struct {
		name   string
		link   uint32
		data   []byte
		wire   uint32
		kind   dataplane.PacketKind
		length int
	}{
		{"truncated by the snap length", 204, append([]byte{0, 0, 0x21}, ip[:40]...), 1003, dataplane.IPv4, 1000},
		{"truncated in the pseudo-header", 109, make([]byte, 10), 1012, dataplane.Malformed, 1000},
		{"shorter than the pseudo-header", 109, make([]byte, 10), 10, dataplane.Malformed, 0},
		{"logged in part", 239, nflog(ip[:64]), 72, dataplane.IPv4, 1000},
		{"NFLOG truncated by the snap length", 239, nflog(ip)[:60], 1008, dataplane.IPv4, 1000},
		{"NFLOG without a packet", 239, append([]byte{2, 0, 0, 5}, attribute(o, 10, []byte("prefix\x00"))...), 16, dataplane.Other, 16},
		{"NFLOG, an attribute of 0 bytes", 239, []byte{2, 0, 0, 5, 0, 0, 0, 0}, 8, dataplane.Other, 8},
		{"PKTAP of an unread link type", 258, append([]byte{108, 0, 0, 0, 1, 0, 0, 0, 127}, make([]byte, 199)...), 208, dataplane.Other, 100},
		{"PKTAP of 39 bytes", 258, append([]byte{39, 0, 0, 0, 1, 0, 0, 0, 12}, make([]byte, 199)...), 208, dataplane.Other, 208},
		{"PKTAP of 40 bytes", 258, slices.Concat([]byte{40, 0, 0, 0, 1, 0, 0, 0, 12}, make([]byte, 31), ip), 1040, dataplane.IPv4, 1000},
		{"PPI of 0 bytes", 192, slices.Concat([]byte{0, 0, 0, 0, 101, 0, 0, 0}, ip), 1008, dataplane.Other, 1008},
		{"PPI of 7 bytes", 192, slices.Concat([]byte{0, 0, 7, 0, 101, 0, 0, 0}, ip), 1008, dataplane.Other, 1008},
		{"PPI of 8 bytes", 192, slices.Concat([]byte{0, 0, 8, 0, 101, 0, 0, 0}, ip), 1008, dataplane.IPv4, 1000},
		{"PPI of an unread link type", 192, slices.Concat([]byte{0, 0, 8, 0, 105, 0, 0, 0}, ip), 1008, dataplane.Other, 1000},
		{"pflog of 0 bytes", 117, slices.Concat([]byte{0, 2}, ip), 1002, dataplane.Other, 1002},
		{"pflog of 44 bytes", 117, slices.Concat([]byte{44, 2}, make([]byte, 42), ip), 1044, dataplane.Other, 1044},
		{"pflog of 45 bytes", 117, slices.Concat([]byte{45, 2}, make([]byte, 46), ip), 1048, dataplane.IPv4, 1000},
		{"PKTAP, a length beyond the packet", 258, append([]byte{0, 0, 0, 0xff, 1, 0, 0, 0, 1}, make([]byte, 199)...), 208, dataplane.Malformed, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			in := littleEndian().pcap(magicMicro, test.link).words(1, 0, uint32(len(test.data)),
				test.wire).rawBytes(test.data...).bytes
			_, err := Run(t.Context(), bytes.NewReader(in), transparent(t),
				Config{Each: func(p *dataplane.Packet, v *dataplane.Verdict) error {
					if p.Kind != test.kind || v.Length != test.length {
						t.Errorf("%v of %d bytes, want %v of %d", p.Kind, v.Length, test.kind, test.length)
					}
					return nil
				}})
			if err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestWrappedUnread checks that the warning names the link type that cannot be read: that behind a
// pseudo-header, or the pseudo-header's own if that is broken.
func TestWrappedUnread(t *testing.T) {
	pktap := func(size, link byte) []byte {
		return append([]byte{size, 0, 0, 0, 1, 0, 0, 0, link}, make([]byte, 199)...)
	}
	none := newPipeline(t, dataplane.Class{
		Name: "huge", Match: dataplane.Match{Length: []dataplane.Range{{First: 1 << 20, Last: 1 << 20}}},
	})
	for _, test := range []struct {
		link  uint32
		data  []byte
		names dataplane.LinkType
	}{
		{258, pktap(108, 127), 127},
		{258, pktap(8, 127), 258},
		{192, append([]byte{0, 0, 8, 0, 105, 0, 0, 0}, make([]byte, 40)...), 105},
		{192, append([]byte{0, 0, 4, 0, 1, 0, 0, 0}, make([]byte, 40)...), 192},
		{192, append([]byte{0, 0, 8, 0, 1, 0, 1, 0}, make([]byte, 40)...), 192},
		{117, make([]byte, 80), 117},
	} {
		in := littleEndian().pcap(magicMicro, test.link).packet(1, 0, test.data).bytes
		s, err := Run(t.Context(), bytes.NewReader(in), none, Config{})
		want := fmt.Sprintf("packet 1: link type %v cannot be read", test.names)
		if err != nil || len(s.Warnings) != 1 || !strings.HasPrefix(s.Warnings[0], want) || s.Unread != 1 ||
			s.UnreadLink != test.names {
			t.Errorf("%d, % x: warnings %q, unread %d of %v; want %q: %v", test.link, test.data[:9],
				s.Warnings, s.Unread, s.UnreadLink, want, err)
		}
	}
}

// TestWrappedDirections checks the directions in pseudo-headers.
func TestWrappedDirections(t *testing.T) {
	pktap := func(flags byte) []byte {
		b := append([]byte{108, 0, 0, 0, 1, 0, 0, 0, 12}, make([]byte, 99)...)
		b[36] = flags
		return b
	}
	pflog := func(way byte) []byte {
		b := append([]byte{61, 2}, make([]byte, 62)...)
		b[60] = way
		return b
	}
	for _, test := range []struct {
		link   uint32
		before []byte
		want   Way
	}{
		{8, append([]byte{0}, make([]byte, 15)...), In},
		{8, append([]byte{1}, make([]byte, 15)...), Out},
		{204, []byte{0, 0, 0x21}, In},
		{205, []byte{2, 0x0f, 0, 8, 0}, Out},
		{206, []byte{1, 0x18, 0x41, 3, 0xcc}, Out},
		{117, pflog(1), In},
		{117, pflog(2), Out},
		{117, pflog(0), AnyWay},
		{258, pktap(1), In},
		{258, pktap(2), Out},
		{258, pktap(0), AnyWay},
		{109, append([]byte{2}, make([]byte, 11)...), AnyWay},
	} {
		frame := append(test.before, ipv4(40, 0, 1)...)
		for _, way := range []Way{In, Out} {
			in := littleEndian().pcap(magicMicro, test.link).packet(1, 0, frame).bytes
			s, err := Run(t.Context(), bytes.NewReader(in), transparent(t),
				Config{Select: Selection{Way: way}})
			if err != nil {
				t.Fatal(err)
			}
			if chosen := s.Packets == 1; chosen != (way == test.want) ||
				(s.Undirected == 1) != (test.want == AnyWay) {
				t.Errorf("link type %d, % x: chosen as %v: %v, %d undirected; want %v", test.link,
					test.before[:1], way, chosen, s.Undirected, test.want)
			}
		}
	}
}
