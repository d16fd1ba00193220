package dataplane

import "strings"

// Flow is the key ByFlow of a packet: its addresses, protocol and ports. Flows are comparable.
// Non-IP packets have the zero Flow.
type Flow struct{ key PacketKey }

var flowReader = NewKeyReader(Key{By: ByFlow})

// FlowOf returns the flow of a parsed packet.
func FlowOf(p *Packet) Flow {
	key, ok := flowReader.Key(p)
	if !ok {
		return Flow{}
	}
	return Flow{key}
}

// Hash returns the same number for equal flows, and spreads others evenly.
func (f Flow) Hash() uint64 {
	k := &f.key
	h := (k.src.Hi ^ k.dst.Hi<<1) * 0x9e3779b97f4a7c15
	h = (h ^ h>>29 ^ k.src.Lo ^ k.dst.Lo<<32) * 0xff51afd7ed558ccd
	h = (h ^ h>>32 ^ k.dst.Lo>>32 ^ uint64(k.sport)<<32 ^ uint64(k.dport)<<16 ^
		uint64(k.proto)) * 0xc4ceb9fe1a85ec53
	return h ^ h>>32
}

// String returns the flow for people, such as "10.0.0.1:5000 > 10.0.0.2:53 udp" or
// "[2001:db8::1]:5000 > [2001:db8::2]:53 udp" (RFC 5952 §6), or "not IP".
func (f Flow) String() string {
	if f == (Flow{}) {
		return "not IP"
	}
	return strings.TrimPrefix(string(flowReader.AppendText(nil, f.key)), "flow ")
}
