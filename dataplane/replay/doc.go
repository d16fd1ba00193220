// Package replay runs captures through a pipeline in virtual time: the packets'
// own stamps are the clock, and what comes out is the capture as it would have
// left the box.
//
// Records are patched where they lie in the input buffer and written on as they
// are. So a capture keeps its format, byte order, resolution, interfaces, names
// and comments, and a packet is copied once on its way through.
package replay
