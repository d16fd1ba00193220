// Package replay runs captures through a pipeline in virtual time: the packets'
// own timestamps are the clock, and the output is the capture as it would have
// left the box.
//
// Records are patched in place in the input buffer and written unchanged otherwise.
// So a capture keeps its format, byte order, resolution, interfaces, names and
// comments, and each packet is copied once.
//
// Times are limited to 1970 to 2261, UTC. A pcapng resolution and offset can express timestamps
// outside of this range. They are metered as the nearest time in range, with a warning; the output
// keeps the original timestamp of an unqueued packet.
//
// Packets of some link types, such as NFLOG and PKTAP, begin with a pseudo-header,
// written by the capturing system. Data, WireLen and Link describe the packet behind it.
// The output keeps the pseudo-header.
//
// A frame check sequence (FCS) declared by the capture is not part of a packet's Data and WireLen.
// pcap gives its length beside the link type (draft-ietf-opsawg-pcap §4), pcapng in epb_flags, in
// bytes, or else in if_fcslen, in bits (draft-ietf-opsawg-pcapng §4.2, §4.3.1); an if_fcslen below
// 8 is read as bytes. The output keeps the FCS. If an Ethernet frame was captured whole with a
// correct FCS, the FCS is corrected when the frame is marked.
package replay
