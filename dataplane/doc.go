// Package dataplane is the language of all planes: policies, packets and verdicts, as plain data. Package
// pipeline below it decides about packets in Go, package kernel in the kernel.
//
//	source -> parse -> classify -> meter -> act {pass | mark | queue | drop} -> sink
//
// A program running a policy needs these names, in this order:
//
//   - A [Policy] is an ordered list of classes. The first [Class] whose [Match] accepts a packet decides.
//   - A [Meter] colors the packets of its class, with parameters of package meter. Meters may form a
//     chain, have a key each, and be shared among classes.
//   - An [Action] for each color passes, marks or drops packets, or sends them through a [Queue].
//   - pipeline.New checks the policy and adds the state: tokens, backlogs and counters. Its errors
//     join [FieldError]s.
//   - A [Packet] is a frame that arrives at a known time. [Parse] reads its headers.
//   - pipeline.Pipeline.Process classifies, meters and marks the packet: the one call on the packet path.
//   - A [Verdict] is the outcome for the packet: class, color, reason, and the time at which it departs.
//   - [ClassStats] counts the packets of a class, by color and cause of drop.
//
// For example:
//
//	pl, err := pipeline.New(&policy)
//	...
//	packet := dataplane.Packet{Data: frame, WireLen: len(frame), Time: now, Link: dataplane.LinkEthernet}
//	pl.Process(&packet, &verdict) // writes marks into frame
//
// # More of the language
//
// Queues may share the rate of a [Link], meters an [Envelope]. [Customers] have a [ServicePlan]
// each. A [Budget] is a limit shared by several policies. Package compiled contains policies in the
// form run by planes; only programs inspecting policies, or planes of their own, need it.
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
// A capture may contain only the beginning of a packet. If it ends within the fixed IP header (20
// or 40 bytes), the packet is malformed, like a packet whose headers contradict each other: an IPv4
// header whose total length is below its own length or whose own length is below 20 bytes or
// exceeds the packet on the wire. A total length of 0 is valid: segmentation offload writes it for
// packets above 64 KiB. If the capture ends later, the packet is IP and is metered by its length on
// the wire. Such a packet lacks ports if they were cut off, and the protocol of an IPv6 packet is
// the last one named by a captured header.
//
// The first fragment of a packet has ports, and matches see them. Later fragments have none. All
// fragments of a packet belong to one flow. So the flow key of a fragment has no ports, and its
// protocol is the one named by every fragment, in the IPv4 header or in the IPv6 fragment header.
package dataplane
