package oracle

import (
	"encoding/hex"
	"strings"
	"testing"
)

// hexBytes joins hexadecimal pieces. Blanks are ignored.
func hexBytes(t *testing.T, pieces ...string) []byte {
	t.Helper()
	data, err := hex.DecodeString(strings.ReplaceAll(strings.Join(pieces, ""), " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

const (
	macs = "020000000001 020000000002"
	// IPv4, total length 28, UDP from port 4000 to port 53, DSCP 10, ECN 1.
	udp4 = "4529001c 00000000 40110000 0a000001 c0000201" + udp
	udp  = "0fa00035 00080000"
	// IPv6, payload length 8.
	udp6 = "6b800000 00081140 20010db8000000000000000000000001 20010db8000000000000000000000002" + udp
)

func hexZeros(n int) string { return strings.Repeat("00", n) }

func TestFrames(t *testing.T) {
	const ports = 1 // marks rows whose ports must be 4000 and 53
	tests := []struct {
		name  string
		link  int
		bytes string
		wire  int64 // 0: as captured
		kind  kind
		l3    int64
		dscp  int
		proto int
		ports int
	}{
		{"padded to 60", 1, macs + "0800" + udp4 + hexZeros(18), 0, ipv4, 28, 10, 17, ports},
		{"61 bytes are not padding", 1, macs + "0800" + udp4 + hexZeros(19), 0, ipv4, 47, 10, 17, ports},
		{"unpadded", 1, macs + "0800" + udp4, 0, ipv4, 28, 10, 17, ports},
		{"tag and 64", 1, macs + "8100 6064 0800" + udp4 + hexZeros(18), 0, ipv4, 28, 10, 17, ports},
		{"tag and 65", 1, macs + "8100 6064 0800" + udp4 + hexZeros(19), 0, ipv4, 47, 10, 17, ports},
		{"three tags and 72", 1, macs + "88a8 6064 9100 0001 8100 0002 86dd" + udp6, 0, ipv6, 48, 46, 17, ports},
		{"four tags", 1, macs + "8100 6064 8100 0001 8100 0002 8100 0003 0800" + udp4, 0, nonIP, 32, 0, 0, 0},
		{"total length beyond the frame", 1, macs + "0800" + strings.Replace(udp4, "001c", "001d", 1), 0, ipv4, 28, 10, 17, ports},
		{"total length below the header", 1, macs + "0800" + strings.Replace(udp4, "001c", "0013", 1) + hexZeros(18), 0, malformed, 46, 0, 0, 0},
		{"total length 0", 1, macs + "0800" + strings.Replace(udp4, "001c", "0000", 1) + hexZeros(18), 0, ipv4, 46, 10, 17, ports},
		{"total length without ports", 1, macs + "0800" + strings.Replace(udp4, "001c", "0014", 1) + hexZeros(18), 0, ipv4, 20, 10, 17, 0},
		{"snap length cut", 1, macs + "0800" + udp4, 1514, ipv4, 1500, 10, 17, ports},
		{"header cut", 1, macs + "0800" + udp4[:40], 60, malformed, 46, 0, 0, 0},
		{"options cut", 1, macs + "0800" + "46" + udp4[2:48], 100, ipv4, 86, 10, 17, 0},
		{"options cut, padded", 1, macs + "0800" + "46" + udp4[2:48], 60, ipv4, 28, 10, 17, 0},
		{"options beyond the wire", 1, macs + "0800" + "4f" + udp4[2:], 60, malformed, 46, 0, 0, 0},
		{"IHL of 4", 1, macs + "0800" + "44" + udp4[2:], 0, malformed, 28, 0, 0, 0},
		{"IPv6 under 0800", 1, macs + "0800" + udp6, 0, malformed, 48, 0, 0, 0},
		{"IPv4 under 86dd", 1, macs + "86dd" + udp4 + hexZeros(12), 0, malformed, 40, 0, 0, 0},
		{"link header cut", 1, macs + "08", 60, malformed, 46, 0, 0, 0},
		{"tag cut", 1, macs + "8100 60", 60, malformed, 46, 0, 0, 0},
		{"ARP", 1, macs + "0806" + hexZeros(46), 0, nonIP, 46, 0, 0, 0},
		{"LLC", 1, macs + "0026" + hexZeros(46), 0, nonIP, 46, 0, 0, 0},
		{"MPLS", 1, macs + "8847 00010600 00011740" + udp4 + hexZeros(10), 0, ipv4, 28, 10, 17, ports},
		{"MPLS, IPv6", 1, macs + "8848 00011740" + udp6, 0, ipv6, 48, 46, 17, ports},
		{"MPLS, pseudowire", 1, macs + "8847 00011740 00000000" + hexZeros(40), 0, nonIP, 44, 0, 0, 0},
		{"MPLS, stack cut", 1, macs + "8847 00010600", 60, malformed, 42, 0, 0, 0},
		{"PPPoE", 1, macs + "8864 1100 0001 001e 0021" + udp4 + hexZeros(10), 0, ipv4, 28, 10, 17, ports},
		{"PPPoE, LCP", 1, macs + "8864 1100 0001 001e c021" + hexZeros(38), 0, nonIP, 38, 0, 0, 0},
		{"PPPoE, IPv6", 1, macs + "8864 1100 0001 0032 0057" + udp6, 0, ipv6, 48, 46, 17, ports},
		{"PPPoE, one byte of protocol", 1, macs + "8864 1100 0001 001d 21" + udp4 + hexZeros(11), 0, ipv4, 28, 10, 17, ports},
		{"PPPoE, one byte of protocol, IPv6", 1, macs + "8864 1100 0001 0031 57" + udp6, 0, ipv6, 48, 46, 17, ports},
		{"PPPoE, one byte of protocol, other", 1, macs + "8864 1100 0001 0031 fd" + hexZeros(39), 0, nonIP, 39, 0, 0, 0},
		{"cooked", 113, "0000 0001 0006 0200000000010000 0800" + udp4 + hexZeros(16), 0, ipv4, 28, 10, 17, ports},
		{"cooked, 61 bytes", 113, "0000 0001 0006 0200000000010000 0800" + udp4 + hexZeros(17), 0, ipv4, 45, 10, 17, ports},
		{"cooked v2", 276, "0800 0000 00000001 0001 00 06 0200000000010000" + udp4, 0, ipv4, 28, 10, 17, ports},
		{"raw", 101, udp4 + hexZeros(4), 0, ipv4, 32, 10, 17, ports},
		{"raw IPv6", 12, udp6, 0, ipv6, 48, 46, 17, ports},
		{"raw of no version", 14, hexZeros(40), 0, malformed, 40, 0, 0, 0},
		{"IPv4 link", 228, udp4, 0, ipv4, 28, 10, 17, ports},
		{"IPv4 link, IPv6 packet", 228, udp6, 0, malformed, 48, 0, 0, 0},
		{"IPv6 link", 229, udp6, 0, ipv6, 48, 46, 17, ports},
		{"null, little-endian", 0, "02000000" + udp4, 0, ipv4, 28, 10, 17, ports},
		{"null, big-endian", 0, "0000001e" + udp6, 0, ipv6, 48, 46, 17, ports},
		{"loop", 108, "00000018" + udp6, 0, ipv6, 48, 46, 17, ports},
		{"loop, other family", 108, "00000007" + udp6, 0, nonIP, 48, 0, 0, 0},
		{"unknown link type", 127, udp4, 0, nonIP, 28, 0, 0, 0},
		{"later fragment", 101, strings.Replace(udp4, "00000000", "00000001", 1), 0, ipv4, 28, 10, 17, 0},
		{"first fragment", 101, strings.Replace(udp4, "00000000", "00002000", 1), 0, ipv4, 28, 10, 17, ports},
		{
			"extension headers", 101,
			"6b800000 00281140" + strings.Repeat("20010db8000000000000000000000001", 2),
			0, ipv6, 40, 46, 17, 0,
		},
		{
			"all extension headers", 101,
			"6b800000 00400040" + strings.Repeat("20010db8000000000000000000000001", 2) +
				"2b00000000000000" + // hop-by-hop, then routing
				"2c01000000000000 0000000000000000" + // then fragment
				"3c00000000000000" + // then destination
				"3300000000000000" + // then authentication
				"8704000000000000 0000000000000000 0000000000000000" + // then mobility
				"8b00000000000000" + // then HIP
				"8c00000000000000" + // then shim6
				"1100000000000000" + udp,
			0, ipv6, 136, 46, 17, ports,
		},
		{
			"later IPv6 fragment", 101,
			"6b800000 00102c40" + strings.Repeat("20010db8000000000000000000000001", 2) +
				"1100000800000000" + udp,
			0, ipv6, 56, 46, 17, 0,
		},
		{
			"extension header cut", 101,
			"6b800000 00100040" + strings.Repeat("20010db8000000000000000000000001", 2) + "1102000000000000" + udp,
			0, ipv6, 56, 46, 17, 0,
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			data := hexBytes(t, test.bytes)
			wire := test.wire
			if wire == 0 {
				wire = int64(len(data))
			}
			f := parseFrame(test.link, data, wire)
			if f.kind != test.kind || f.l3 != test.l3 || f.dscp() != test.dscp || f.proto != test.proto {
				t.Errorf("kind %d, l3 %d, DSCP %d, proto %d; want %d, %d, %d, %d",
					f.kind, f.l3, f.dscp(), f.proto, test.kind, test.l3, test.dscp, test.proto)
			}
			if f.hasPorts != (test.ports == ports) || f.hasPorts && (f.sport != 4000 || f.dport != 53) {
				t.Errorf("got ports %v, %d and %d, want %v, 4000 and 53", f.hasPorts, f.sport, f.dport,
					test.ports == ports)
			}
		})
	}
}

// TestCutFrames truncates a frame after every byte. The rest is malformed, or its headers are
// the same as those of the whole frame.
func TestCutFrames(t *testing.T) {
	for _, pieces := range []string{
		macs + "0800" + udp4,
		macs + "86dd" + udp6,
		macs + "8100 6064 8847 00011740" + udp6,
		macs + "8864 1100 0001 001e 0021" + udp4,
	} {
		data := hexBytes(t, pieces)
		uncut := parseFrame(1, data, 1000)
		for n := range data {
			f := parseFrame(1, data[:n], 1000)
			if f.kind != malformed && (f.kind != uncut.kind || f.l3 != uncut.l3 || f.proto != uncut.proto) {
				t.Errorf("%d bytes: got kind %d, l3 %d, proto %d, want those of the whole frame", n, f.kind,
					f.l3, f.proto)
			}
		}
	}
}

func TestOuterHeaders(t *testing.T) {
	f := parseFrame(1, hexBytes(t, macs, "88a8 6064 8100 8002 8847 00010600 00011740", udp4), 100)
	if !f.hasVLAN || f.vlan != 100 || f.pcp != 3 || f.tags != 2 {
		t.Errorf("VLAN %d, PCP %d, %d tags; want 100, 3, 2", f.vlan, f.pcp, f.tags)
	}
	if !f.hasMPLS || f.mplsTC != 3 || f.ethertype != etherMPLS || f.header != 30 {
		t.Errorf("MPLS TC %d, ethertype %#x, link header %d; want 3, 0x8847, 30", f.mplsTC, f.ethertype,
			f.header)
	}
	if f.src.String() != "10.0.0.1" || f.dst.String() != "192.0.2.1" || f.ecn() != 1 {
		t.Errorf("got %s to %s with ECN %d, want 10.0.0.1 to 192.0.2.1 with ECN 1", f.src, f.dst, f.ecn())
	}
}

func TestLengthRules(t *testing.T) {
	short := parseFrame(1, hexBytes(t, macs, "0800", udp4), 42)
	tests := []struct {
		rule lengthRule
		want int64
	}{
		{lengthRule{base: "l3"}, 28},
		{lengthRule{base: "l2"}, 42},
		{lengthRule{base: "l1"}, 84},
		{lengthRule{base: "l3", overhead: 18}, 46},
		{lengthRule{base: "l3", overhead: -40}, 0},
		{lengthRule{base: "l2", overhead: 4, mpu: 64}, 64},
		{lengthRule{base: "l1", overhead: 4, mpu: 64}, 88},
	}
	for _, test := range tests {
		if got, err := test.rule.meteredBytes(short); err != nil || got != test.want {
			t.Errorf("%+v: got %d, %v; want %d", test.rule, got, err, test.want)
		}
	}
	longest := parseFrame(1, hexBytes(t, macs, "0800", udp4), 1<<32-1)
	if got, err := (lengthRule{base: "l1"}).meteredBytes(longest); err != nil || got != 1<<32-1 {
		t.Errorf("the longest frame of all: got %d, %v, want %d", got, err, 1<<32-1)
	}
	if _, err := (lengthRule{base: "l2"}).meteredBytes(parseFrame(101, hexBytes(t, udp4), 28)); err == nil {
		t.Error("l2 of a raw IP packet: got nil, want an error")
	}
}
