// Package replay runs captures through a pipeline in virtual time: the packets'
// own stamps are the clock, and what comes out is the capture as it would have
// left the box.
//
// Records are patched where they lie in the input buffer and written on as they
// are. So a capture keeps its format, byte order, resolution, interfaces, names
// and comments, and a packet is copied once on its way through.
//
// Times are those from 1970 to 2261, UTC. A stamp outside of them, which pcapng can
// have by its resolution and offset, is metered as the nearest of them, with a
// warning; a packet that is not queued leaves with the stamp that it has.
//
// A frame check sequence that a capture declares is no part of a packet's Data and
// WireLen: pcap has its length beside the link type (draft-ietf-opsawg-pcap §4),
// pcapng in if_fcslen, in bits, and epb_flags, in bytes, which come first
// (draft-ietf-opsawg-pcapng §4.2, §4.3.1). An if_fcslen below 8 is taken for bytes.
// The output has it as it was, but for that of an Ethernet frame which was right
// and captured whole: it is right for the marked frame.
package replay
