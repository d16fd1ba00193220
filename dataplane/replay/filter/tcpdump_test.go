package filter

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/google/gopacket/pcapgo"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// pile is a capture for tcpdump, and its packets.
type pile struct {
	path    string
	packets []dataplane.Packet
}

// piles joins the packets of all test captures, at most 400 of each, in one file per link type.
// The number of a packet is its timestamp.
func piles(t *testing.T) map[dataplane.LinkType]*pile {
	t.Helper()
	found := map[dataplane.LinkType]*pile{}
	for _, dir := range []string{"../../../testdata/pcaps", "../../../../shared/pcaps"} {
		paths, err := filepath.Glob(filepath.Join(dir, "*.pcap*"))
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range paths {
			readPackets(t, path, func(link dataplane.LinkType, wire int, data []byte) {
				if found[link] == nil {
					found[link] = &pile{
						path: filepath.Join(t.TempDir(), fmt.Sprintf("%d.pcap", uint16(link))),
					}
				}
				p := found[link]
				p.packets = append(p.packets, dataplane.Packet{Data: data, WireLen: wire, Link: link})
			})
		}
	}
	for link, p := range found {
		var file bytes.Buffer
		w := pcapgo.NewWriter(&file)
		if err := w.WriteFileHeader(1<<18, layers.LinkType(link)); err != nil {
			t.Fatal(err)
		}
		raw := file.Bytes() // NewWriter truncates the link type to 8 bits
		raw[20], raw[21] = byte(link), byte(link>>8)
		for i, packet := range p.packets {
			if err := w.WritePacket(gopacket.CaptureInfo{
				Timestamp: time.Unix(int64(i), 0), CaptureLength: len(packet.Data), Length: packet.WireLen,
			}, packet.Data); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(p.path, file.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return found
}

func readPackets(t *testing.T, path string, each func(link dataplane.LinkType, wire int, data []byte)) {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if z, err := gzip.NewReader(bytes.NewReader(raw)); err == nil {
		raw, _ = io.ReadAll(z)
	}
	var read func() ([]byte, gopacket.CaptureInfo, error)
	var link func(gopacket.CaptureInfo) dataplane.LinkType
	if r, err := pcapgo.NewReader(bytes.NewReader(raw)); err == nil {
		read = r.ReadPacketData
		link = func(gopacket.CaptureInfo) dataplane.LinkType {
			at := 20
			if raw[0] == 0xa1 {
				at = 22
				return dataplane.LinkType(raw[at])<<8 | dataplane.LinkType(raw[at+1])
			}
			return dataplane.LinkType(raw[at]) | dataplane.LinkType(raw[at+1])<<8
		}
	} else if r, err := pcapgo.NewNgReader(bytes.NewReader(raw),
		pcapgo.NgReaderOptions{WantMixedLinkType: true, SkipUnknownVersion: true}); err == nil {
		read = r.ReadPacketData
		link = func(info gopacket.CaptureInfo) dataplane.LinkType {
			return dataplane.LinkType(info.AncillaryData[0].(layers.LinkType))
		}
	} else {
		return
	}
	for range 400 {
		data, info, err := read()
		if err != nil {
			return
		}
		// tcpdump knows only the families of its own system
		if l := link(info); l.Known() && l != dataplane.LinkNull && l != dataplane.LinkLoop {
			each(l, max(info.Length, len(data)), data)
		}
	}
}

// tcpdump returns the packets that tcpdump chooses, or its error.
func (p *pile) tcpdump(program string, options ...string) ([]bool, string) {
	cmd := exec.Command(program, append([]string{"-r", p.path, "-w", "-"}, options...)...)
	var out, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &stderr
	if err := cmd.Run(); err != nil {
		lines := strings.Split(strings.TrimSpace(stderr.String()), "\n")
		message := lines[len(lines)-1]
		if strings.Contains(message, "rejects all packets") {
			return make([]bool, len(p.packets)), ""
		}
		return nil, message
	}
	chosen := make([]bool, len(p.packets))
	r, err := pcapgo.NewReader(&out)
	if err != nil {
		return nil, err.Error()
	}
	for {
		_, info, err := r.ReadPacketData()
		if err != nil {
			return chosen, ""
		}
		chosen[info.Timestamp.Unix()] = true
	}
}

// expressions are filters that tcpdump accepts, about the packets of the test captures.
var expressions = []string{
	"ip", "ip6", "arp", "rarp", "tcp", "udp", "sctp", "icmp", "icmp6", "igmp", "pim", "vrrp", "ah", "esp", "igrp", "carp",
	"host 192.0.2.10", "src host 192.0.2.10", "dst 192.0.2.10", "src or dst 192.0.2.10", "src and dst host 192.0.2.10", "ip host 192.0.2.1", "arp host 192.0.2.1", "rarp host 192.0.2.1",
	"host 2001:db8::1", "src 2001:db8::1", "ip6 host 2001:db8::1", "ip6 dst host ff02::1",
	"net 192.0.2.0/24", "net 192.0.2", "net 10", "net 192", "src net 198.51.100.0/25", "dst net 203.0.113.0 mask 255.255.255.0", "net 192.0.0.0 mask 255.0.0.255 or tcp",
	"net 2001:db8::/32", "src net 2001:db8::/34", "dst net fe80::/10", "src net 10 or 192 or 198.51", "ip net 192.0.2.0/26", "arp net 192.0.2",
	"port 53", "src port 53", "dst port 443", "tcp port 80", "udp port 53", "sctp port 5000", "udp src port 53", "src and dst port 443", "port 0x35", "port 0123",
	"portrange 1-1023", "udp portrange 5000-5999", "portrange 5999-5000", "src portrange 40000-65535", "tcp dst portrange 80-443",
	"port 53 or 443", "tcp and port (80 or 443)", "port not 53", "host (192.0.2.10 or 192.0.2.11)", "not host 192.0.2.10 and 192.0.2.11", "tcp port 80 or dst 192.0.2.1", "not port 53 and not 443",
	"proto 6", "ip proto 17", "ip proto \\tcp", "ip6 proto 58", "ip6 proto \\udp", "proto \\icmp", "ether proto 0x0806", "ether proto \\ip6", "ip proto 47", "ip6 proto 44", "ip6 proto 0",
	"ether host 02:00:00:00:00:01", "ether src 2:0:0:0:0:1", "ether dst ff:ff:ff:ff:ff:ff", "not ether src 02:00:00:00:00:01",
	"vlan", "vlan 5", "vlan and tcp", "vlan 100 and vlan 200", "vlan and host 192.0.2.10", "not vlan and ip", "vlan or ip", "vlan and vlan and vlan and ip", "(vlan and udp) or tcp", "vlan and port 53",
	"less 60", "greater 1000", "less 0x80 or arp", "len > 100", "len = 60", "len != 60", "len >= 1514 and tcp", "100 > len", "len - 14 < 46", "len / 2 = 30", "len % 4 = 2", "len & 1 = 0", "len << 1 > 200", "len >> 3 = 7", "len | 1 = 61", "len ^ 1 = 61", "len > 60 and -len < 4294967236", "len * 2 % 3 = 1", "len ^ 3 | 1 & 2 = 0", "len + 1 ^ 3 + 4 > 60",
	"tcp[tcpflags] & tcp-syn != 0", "tcp[tcpflags] & (tcp-syn|tcp-ack) == tcp-syn", "tcp[13] = 0x10", "not tcp[13] & 2 != 0", "tcp[12] & 0xf0 > 0x50", "tcp[2:2] = 443", "tcp[0:2] < 1024", "tcp[100] = 0", "tcp[20:4] = 0",
	"(tcp[12] & 0xf0) >> 2 > 20", "ip[8] < 64", "ip[0] & 0xf > 5", "ip[6:2] & 0x1fff != 0", "ip[2:2] = len - 14", "ip[1] & 3 = 1", "ip[ip[0] & 0xf] != 0", "ip[8] = ip[9]", "ip[12:4] = 0xc000020a", "udp[4:2] > 100", "udp[8] = 1", "icmp[icmptype] = icmp-echo", "icmp[icmptype] != icmp-echo", "icmp[icmpcode] = 0",
	"icmp6[icmp6type] = icmp6-neighborsolicit", "icmp6[0] = 135 or icmp6[0] = 136", "ip6[6] = 17", "ip6[7] < 255", "ip6[40] = 0", "ip6[0:4] & 0xff00000 != 0", "arp[6:2] = 1", "ether[0] & 1 = 1", "ether[12:2] = 0x800", "ether[6] = 2", "ip[9] = 6 and tcp[13] = 0x10", "(ip and 100 / ip[8] > 1)", "tcp[len] = 0", "not udp[1000] = 5",
	"tcp and udp", "tcp or udp and ip6", "not tcp", "!tcp && !udp", "not (tcp or udp)", "not not tcp", "ip and not tcp || arp", "(((tcp)))", "tcp and not port 443 or udp", "1 = 1", "1 = 2 or tcp", "host 192.0.2.10 and (tcp or udp) and not port 53",
}

// unoptimized are filters for which the optimizer of libpcap omits tests that read the packet.
var unoptimized = []string{
	"net ::/0", "net 0.0.0.0/0", "src net ::/0", "ip net 0.0.0.0/0", "arp dst net 0.0.0.0/0", "not net ::/0", "net 0.0.0.0 mask 0.0.0.255", "net 0.0.0.0/0 and tcp",
	"len >= 0 and net 0.0.0.0/0", "ip[0] & 0 = 0", "ip6[24:4] * 0 = 0",
}

// fieldExpressions read a field of each header that has some.
var fieldExpressions = func() (list []string) {
	for _, name := range []string{
		"ether", "ip", "ip6", "arp", "rarp", "tcp", "udp", "sctp", "icmp", "icmp6", "igmp", "igrp", "pim",
		"vrrp", "carp",
	} {
		list = append(list, name+"[0] = 58", "not "+name+"[7:4] != 0")
	}
	return list
}()

// pileOf writes packets of one link type for tcpdump.
func pileOf(t *testing.T, link dataplane.LinkType, packets [][]byte) *pile {
	t.Helper()
	p := &pile{path: filepath.Join(t.TempDir(), "packets.pcap")}
	file := binary.LittleEndian.AppendUint32(nil, 0xa1b2c3d4)
	file = append(file, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0)
	file = binary.LittleEndian.AppendUint32(file, uint32(link))
	for i, data := range packets {
		p.packets = append(p.packets, dataplane.Packet{Data: data, WireLen: 200, Link: link})
		for _, v := range []int{i, 0, len(data), 200} {
			file = binary.LittleEndian.AppendUint32(file, uint32(v))
		}
		file = append(file, data...)
	}
	if err := os.WriteFile(p.path, file, 0o600); err != nil {
		t.Fatal(err)
	}
	return p
}

// networkPackets are packets of all protocols with fields, with and without fragments and IPv6
// extension headers, by EtherType.
func networkPackets() map[uint16][][]byte {
	src, dst := []byte{0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1},
		[]byte{0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}
	payload := []byte{3, 232, 0, 53, 0, 40, 1, 2, 58, 128, 0, 0, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}
	all := map[uint16][][]byte{}
	for _, proto := range []byte{1, 2, 6, 9, 17, 44, 50, 51, 58, 103, 112, 132, 253} {
		for _, fragment := range []uint16{0, 0x2000, 0x2001, 7} {
			for _, words := range []int{0, 2} {
				h := []byte{
					byte(0x45 + words), 0, 0, 200, 0, 1, byte(fragment >> 8), byte(fragment), 64, proto, 0, 0,
					192, 0, 2, 10, 198, 51, 100, 1,
				}
				all[etherIPv4] = append(all[etherIPv4], slices.Concat(h, make([]byte, 4*words), payload))
			}
		}
		for _, chain := range [][]byte{
			nil,
			{44, 0, 0, 1, 0, 0, 0, 7},
			{44, 0, 1, 1, 0, 0, 0, 7},
			{0, 0, 1, 4, 0, 0, 0, 0},
			{60, 0, 1, 4, 0, 0, 0, 0},
		} {
			next := proto
			if chain != nil {
				next, chain[0] = chain[0], proto
			}
			h := []byte{0x60, 0, 0, 0, 0, 160, next, 64}
			all[etherIPv6] = append(all[etherIPv6], slices.Concat(h, src, dst, chain, payload))
		}
	}
	arp := slices.Concat([]byte{0, 1, 8, 0, 6, 4, 0, 1}, make([]byte, 6), []byte{192, 0, 2, 10},
		make([]byte, 6), []byte{192, 0, 2, 11})
	all[etherARP], all[etherRARP] = [][]byte{arp}, [][]byte{arp}
	return all
}

// cutPackets are packets of all lengths up to their own.
func cutPackets(packets [][]byte) (all [][]byte) {
	for _, p := range packets {
		for n := range p {
			all = append(all, p[:n])
		}
		all = append(all, p)
	}
	return all
}

// TestCutAgainstTcpdump compares the packets that a filter chooses with those of tcpdump, if the
// packets were cut after each byte. It includes link types that dataplane parses for the filter.
func TestCutAgainstTcpdump(t *testing.T) {
	program, err := exec.LookPath("tcpdump")
	if err != nil {
		t.Skip("needs tcpdump (apt-get install tcpdump)")
	}
	ethernet := func(t uint16) []byte { return append(make([]byte, 12), byte(t>>8), byte(t)) }
	for _, link := range []struct {
		number dataplane.LinkType
		header func(etherType uint16) []byte
		whole  bool // packets are not cut within the link header
	}{
		{dataplane.LinkEthernet, ethernet, false},
		{dataplane.LinkEthernet, func(t uint16) []byte { return append(ethernet(0x8100), 0, 5, byte(t>>8), byte(t)) }, false},
		{dataplane.LinkRaw, func(t uint16) []byte { return nil }, false},
		{dataplane.LinkSLL, func(t uint16) []byte { return append(make([]byte, 14), byte(t>>8), byte(t)) }, false},
		{dataplane.LinkSLL2, func(t uint16) []byte { return append([]byte{byte(t >> 8), byte(t)}, make([]byte, 18)...) }, false},
		{dataplane.LinkIPv4, func(t uint16) []byte { return nil }, false},
		{dataplane.LinkIPv6, func(t uint16) []byte { return nil }, false},
		{dataplane.LinkCiscoHDLC, func(t uint16) []byte { return []byte{0x0f, 0, byte(t >> 8), byte(t)} }, true},
		{dataplane.LinkIPoIB, func(t uint16) []byte { return append(make([]byte, 40), byte(t>>8), byte(t), 0, 0) }, true},
		{dataplane.LinkSymantec, func(t uint16) []byte {
			return slices.Concat(make([]byte, 6), []byte{byte(t >> 8), byte(t)}, make([]byte, 36))
		}, true},
		{dataplane.LinkIEEE1394, func(t uint16) []byte { return append(make([]byte, 16), byte(t>>8), byte(t)) }, true},
		{dataplane.LinkPPP, func(t uint16) []byte { return append([]byte{0xff, 3}, pppOf(t)...) }, true},
		{dataplane.LinkPPPHDLC, func(t uint16) []byte { return append([]byte{0xff, 3}, pppOf(t)...) }, true},
		{dataplane.LinkPPPoE, func(t uint16) []byte { return append([]byte{0x11, 0, 0, 1, 0, 160}, pppOf(t)...) }, true},
		{dataplane.LinkPPPD, func(t uint16) []byte { return append([]byte{0, 3}, pppOf(t)...) }, true},
	} {
		var packets [][]byte
		for etherType, list := range networkPackets() {
			if header := link.header(etherType); header != nil || link.number == dataplane.LinkRaw ||
				uint16(link.number-dataplane.LinkIPv4) == etherType/etherIPv6 {
				for _, p := range list {
					packets = append(packets, slices.Concat(header, p))
				}
			}
		}
		file := pileOf(t, link.number, cutPackets(packets))
		if link.whole {
			size := len(link.header(etherIPv4))
			file = pileOf(t, link.number,
				slices.DeleteFunc(cutPackets(packets), func(p []byte) bool { return len(p) < size }))
		}
		list := slices.Concat(unoptimized, fieldExpressions, []string{
			"host 192.0.2.10", "src 2001:db8::1", "port 53", "udp portrange 1-60", "ip6 proto 58", "less 60",
			"not icmp6",
		})
		if link.number == dataplane.LinkEthernet {
			list = append(list, expressions...)
		}
		chosen := 0
		for _, expression := range list {
			want, failure := file.tcpdump(program, "-O", "--", expression)
			if failure != "" { // such as "no VLAN support"
				continue
			}
			f, err := New(expression)
			if err != nil {
				t.Fatal(err)
			}
			for i := range file.packets {
				got := f.Match(&file.packets[i])
				if got {
					chosen++
				}
				if got != want[i] {
					t.Errorf("%s: link type %v: got %t, tcpdump %t: % x", expression, link.number, got,
						want[i], file.packets[i].Data)
					break
				}
			}
		}
		if chosen == 0 {
			t.Errorf("link type %v: no packet chosen", link.number)
		}
	}
}

// pppOf returns the PPP protocol for an EtherType, or one that is not IP.
func pppOf(etherType uint16) []byte {
	switch etherType {
	case etherIPv4:
		return []byte{0, 0x21}
	case etherIPv6:
		return []byte{0, 0x57}
	}
	return []byte{0xc0, 0x21}
}

// TestAgainstTcpdump compares the packets that a filter chooses with those of tcpdump, for fixed
// expressions and random ones. Random ones contain contradictions, for which libpcap's
// optimizer omits tests that would read beyond a truncated packet: they run without it (-O).
func TestAgainstTcpdump(t *testing.T) {
	program, err := exec.LookPath("tcpdump")
	if err != nil {
		t.Skip("needs tcpdump (apt-get install tcpdump)")
	}
	files := piles(t)
	if len(files) < 3 { // without ../shared
		t.Fatalf("only %d link types", len(files))
	}
	list := slices.Concat(expressions, unoptimized)
	r := rand.New(rand.NewPCG(3, 4))
	for range 150 {
		list = append(list, randomExpression(r, 3))
	}
	chosen, compared := 0, 0
	for i, expression := range list {
		options := []string{"--", expression}
		if i >= len(expressions) {
			options = append([]string{"-O"}, options...)
		}
		f, err := New(expression)
		if err != nil {
			t.Errorf("%s: %v", expression, err)
			continue
		}
		for link, file := range files {
			want, failure := file.tcpdump(program, options...)
			if failure != "" { // such as "no VLAN support"
				if link == dataplane.LinkEthernet {
					t.Errorf("%s: tcpdump: %s", expression, failure)
				}
				continue
			}
			for i := range file.packets {
				got := f.Match(&file.packets[i])
				if compared++; got {
					chosen++
				}
				if got != want[i] {
					t.Errorf("%s: packet %d of link type %v: got %t, tcpdump %t: % x", expression, i, link,
						got, want[i], file.packets[i].Data[:min(len(file.packets[i].Data), 80)])
					break
				}
			}
		}
	}
	t.Logf("%d filters, %d packets compared, %d chosen", len(list), compared, chosen)
}

// randomExpression joins fixed expressions.
func randomExpression(r *rand.Rand, depth int) string {
	switch {
	case depth == 0 || r.IntN(4) == 0:
		return expressions[r.IntN(len(expressions))]
	case r.IntN(4) == 0:
		return "not (" + randomExpression(r, depth-1) + ")"
	}
	join := []string{" and ", " or "}[r.IntN(2)]
	left, right := randomExpression(r, depth-1), randomExpression(r, depth-1)
	if r.IntN(2) == 0 {
		left = "(" + left + ")"
	}
	return left + join + right
}
