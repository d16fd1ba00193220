package oracle

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"math/big"
	"slices"
)

// Sent is a packet of the resulting capture.
type Sent struct {
	Packet int      // number in the input
	Time   *big.Int // departure
	Data   []byte   // captured bytes, with marks and FCS
}

// Output is Site.Output for the zero Site.
func Output(policy []byte, capture string) ([]Sent, error) { return Site{}.Output(policy, capture) }

// Output returns the capture to be written by `shaper replay -o` for the input of Decide, in the
// order of departures, section by section.
func (s Site) Output(policy []byte, capture string) ([]Sent, error) {
	rows, err := s.replay(policy, capture)
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

// sealed returns the frame with its FCS. If the whole frame was captured and its FCS is right,
// an Ethernet FCS is computed again.
func (r *row) sealed(data []byte) []byte {
	p := r.packet
	check := p.check
	if p.linkType == linkEthernet && p.fcs == 4 && bytes.Equal(check, ethernetFCS(p.data)) {
		check = ethernetFCS(data)
	}
	return slices.Concat(data, check)
}

// ethernetFCS returns the remainder of the frame by the polynomial of IEEE 802.3, §3.2.9.
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

// marks returns the packet with CE and the action's marks, in existing headers.
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

// writeTrafficClass sets the traffic class in an IP header. It updates an IPv4 checksum by the
// difference (RFC 1624, equation 3), so a wrong checksum stays wrong.
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
