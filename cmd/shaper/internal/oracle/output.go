package oracle

import (
	"cmp"
	"encoding/binary"
	"math/big"
	"slices"
)

// Sent is a packet of the output capture.
type Sent struct {
	Packet int      // its number in the input
	Time   *big.Int // its departure
	Data   []byte   // what was captured of it, with its marks
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
		out = append(out, Sent{numbers[r], r.departure, r.marks()})
	}
	return out, err
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
