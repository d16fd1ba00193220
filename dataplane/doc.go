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
//
// # What is read of a packet
//
// Before the IP header: the link header, up to 3 VLAN tags, then up to 16 MPLS
// labels or a PPPoE session header with a PPP protocol of two bytes or one (RFC
// 1661 §6.5). All else is not IP: the reason is NotIP.
//
// A capture may hold less of a packet than the wire had. Where the cut is before
// the end of the fixed IP header, 20 or 40 bytes, nobody knows the addresses, or
// whether there is IP at all: the packet is malformed, as one is whose headers
// contradict each other, and the reason is BadPacket. Where it is behind, the
// packet is IP and metered by its length on the wire. Then what was cut is not
// known: there are no ports; the protocol of IPv4 is known, that of IPv6 is the
// last one that a captured header names.
//
// A first fragment has ports, which matches see; later ones have none. A flow is
// all fragments of a packet, so none of them has ports in its key, and their
// protocol is the one that all of them name: that of the IPv4 header or of the
// IPv6 fragment header.
package dataplane
