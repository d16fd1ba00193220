// Package dataplane is the core that every plane shares: what happens to one
// packet. It has no privilege, no clock and no input or output of its own.
//
//	source -> parse -> classify -> meter -> act {pass | mark | queue | drop} -> sink
//
// A Policy says what should happen; New compiles it to a Pipeline, which does
// it, a Packet at a time. The packet arrives at a known time, is classified
// once, colored once, acted on once, and leaves at a known time: the Verdict.
//
//	pipeline, err := dataplane.New(&policy)
//	...
//	packet := dataplane.Packet{Data: frame, WireLen: len(frame), Time: now, Link: dataplane.LinkEthernet}
//	pipeline.Process(&packet, &verdict) // marks are written into frame
//
// # The l3 length
//
// RFC 2697 §1 counts the bytes of the IP packet, header included, without the
// link header. Of a real frame that is the frame's length on the wire less the
// link header with its VLAN tags, MPLS labels and PPPoE. It is not the total
// length that the IP header claims: a sender could claim little and send much.
// Only a frame so short that Ethernet had to pad it (60 bytes, plus 4 for each
// VLAN tag) is cut to the claim, because there the rest is padding.
package dataplane
