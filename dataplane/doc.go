// Package dataplane decides about one packet at a time. All planes share it: replay,
// kernel and TAP. It needs no privilege, reads no clock and does no input or output.
//
//	source -> parse -> classify -> meter -> act {pass | mark | queue | drop} -> sink
//
// A Policy is plain data: classes, meters, actions and queues. Compile checks it and
// returns a Plan, which is immutable. NewPipeline adds the state: tokens, backlogs and
// counters. Process takes one Packet, which arrives at a known time. The packet is
// classified once, colored once and acted on once. The result is a Verdict, with the
// time at which the packet departs.
//
//	plan, err := dataplane.Compile(&policy)
//	...
//	pipeline := dataplane.NewPipeline(plan)
//	packet := dataplane.Packet{Data: frame, WireLen: len(frame), Time: now, Link: dataplane.LinkEthernet}
//	pipeline.Process(&packet, &verdict) // writes marks into frame
//
// Pipelines can share a plan; each has its own tokens, backlogs and counters. To change
// the policy, make a new pipeline and let it Inherit the state of the old one. If
// packets are queued in a link, Settle returns their departures later.
//
// # Lengths
//
// By default a packet counts its l3 length. RFC 2697 §1 counts the bytes of the IP
// packet, header included, without the link header. So the l3 length is the length on
// the wire, minus the link header with its VLAN tags, MPLS labels and PPPoE. It is not
// the total length in the IP header: a sender could claim little and send much. There
// is one exception. Ethernet pads short frames to 60 bytes, plus 4 for each VLAN tag, plus
// the tag of a switch. A frame of at most that length counts the total length of the IP header,
// because the rest is padding.
//
// # Headers
//
// Parse reads the link header, up to 3 VLAN tags, then up to 16 MPLS labels or a PPPoE
// session header, and the IP header. The PPP protocol has one byte or two (RFC 1661
// §6.5). A packet with any other headers is not IP.
//
// A capture may contain only the beginning of a packet. If it ends within the fixed IP
// header (20 or 40 bytes), the packet is malformed, like a packet whose headers
// contradict each other: an IPv4 header whose total length is below its own length
// or whose own length is below 20 bytes or exceeds the packet on the wire. A total length of
// 0 is valid: segmentation offload writes it for packets above 64 KiB. If the capture ends
// later, the packet is IP and is metered by its length on the wire. Such a packet has no ports if they were cut off, and the protocol of an
// IPv6 packet is the last one that a captured header names.
//
// The first fragment of a packet has ports, and matches see them. Later fragments have
// none. All fragments of a packet belong to one flow. So the flow key of a fragment
// has no ports, and its protocol is the one that every fragment names, in the IPv4
// header or in the IPv6 fragment header.
package dataplane
