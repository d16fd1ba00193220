package oracle

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"math/big"
	"slices"
)

// Sent is a packet of the output capture.
type Sent struct {
	Packet int      // its number in the input
	Time   *big.Int // its departure
	Data   []byte   // what was captured of it, with its marks and FCS
}

// Output is the capture that `shaper replay -o` writes, from the same input as that of
// Decide: in the order of departures, section by section.
func Output(policy []byte, capture string) ([]Sent, error) {
	rows, err := replay(policy, capture)
	numbers := map[*row]int{}
	for i, r := range rows {
		numbers[r] = i + 1
	}
	rows = slices.DeleteFunc(rows, func(r *row) bool { return r.dropped })
	slices.SortStableFunc(rows, func(a, b *row) int {
		return cmp.Or(cmp.Compare(a.packet.section, b.packet.section), a.sent.Cmp(b.sent))
	})
	var out []Sent
	for _, r := range rows {
		out = append(out, Sent{numbers[r], r.departure, r.sealed(r.marks())})
	}
	return out, err
}

// sealed is the frame with its FCS. One of Ethernet that was captured whole, and right, is
// that of the frame as it leaves.
func (r *row) sealed(data []byte) []byte {
	p := r.packet
	check := p.check
	if p.linkType == linkEthernet && p.fcs == 4 && bytes.Equal(check, ethernetFCS(p.data)) {
		check = ethernetFCS(data)
	}
	return slices.Concat(data, check)
}

// ethernetFCS is the remainder of the frame by the polynomial of IEEE 802.3, §3.2.9.
func ethernetFCS(frame []byte) []byte {
	sum := ^uint32(0)
	for _, b := range frame {
		for bit := range 8 {
			low := sum&1 != uint32(b)>>bit&1
			sum >>= 1
			if low {
				sum ^= 0xedb88320
			}
		}
	}
	return binary.LittleEndian.AppendUint32(nil, ^sum)
}

// marks is the packet with CE and what the action writes into headers that are there.
func (r *row) marks() []byte {
	data := slices.Clone(r.packet.data)
	if f := r.frame; f.isIP() {
		class := f.trafficClass
		if r.action.dscp >= 0 {
			class = byte(r.action.dscp)<<2 | class&3
		}
		if r.ecn {
			class |= 3
		}
		writeTrafficClass(data[f.header:], f.kind, class)
	}
	if r.action.pcp >= 0 && r.frame.hasVLAN {
		tag := data[r.frame.tagAt:]
		tag[0] = tag[0]&0x1f | byte(r.action.pcp)<<5
	}
	if r.action.mpls >= 0 && r.frame.hasMPLS {
		label := data[r.frame.labelAt:]
		label[2] = label[2]&0xf1 | byte(r.action.mpls)<<1
	}
	return data
}

// writeTrafficClass sets it in an IP header, and corrects an IPv4 checksum by the
// difference (RFC 1624, equation 3): one that was wrong stays wrong.
func writeTrafficClass(ip []byte, k kind, class byte) {
	if k == ipv6 {
		ip[0] = ip[0]&0xf0 | class>>4
		ip[1] = ip[1]&0x0f | class<<4
		return
	}
	if ip[1] == class {
		return
	}
	sum := uint32(^uint16(be16(ip[10:]))) + uint32(^uint16(be16(ip)))
	ip[1] = class
	sum += uint32(be16(ip))
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	binary.BigEndian.PutUint16(ip[10:], ^uint16(sum))
}
