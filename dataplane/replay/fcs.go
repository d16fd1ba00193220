package replay

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

const (
	// NoFCS is a Config.FCS for frames without an FCS, whatever the capture declares.
	NoFCS = -1
	// MaxFCS is the maximum of Config.FCS, bytes.
	MaxFCS = 64

	ethernetFCSLen = 4
	fewFrames      = 4 // with fewer whole frames, a trailer of one length is no evidence

	// All of the first frames are looked at, then one in a thousand: a capture may be several in one.
	firstLooks = 256
	laterLooks = 1024
)

// isFrame reports whether packets of a link type are Ethernet frames, with or without the tag of a switch.
func isFrame(link dataplane.LinkType) bool {
	switch link {
	case dataplane.LinkEthernet, dataplane.LinkDSA, dataplane.LinkDSABrcm, dataplane.LinkDSAEther:
		return true
	}
	return false
}

// fcsLength returns the length of the FCS of a packet without its pseudo-header, bytes. given is Config.FCS.
func fcsLength(link dataplane.LinkType, declared, given int) int {
	switch {
	case given == 0 || !isFrame(link):
		return declared
	case given == NoFCS:
		return 0
	}
	return given
}

// trailers looks at a sample of the frames for an undeclared FCS or trailer, and for a declared but
// missing FCS. Both would be metered wrongly. It decides nothing: a stream is metered before enough
// frames are known.
type trailers struct {
	next    int64 // number of the next packet to look at
	frames  int64 // looked at
	whole   int64 // of these, IP packets that need no padding
	length  int   // of the trailers, bytes
	differs bool  // trailers have several lengths
}

// look looks at a packet, if it is an Ethernet frame.
func (t *trailers) look(r *run, rec *record) {
	t.next++
	if rec.ID >= firstLooks {
		t.next = rec.ID + laterLooks
	}
	if !isFrame(rec.Link) {
		return
	}
	t.frames++
	if n := len(rec.Data) - ethernetFCSLen; n > 0 && rec.fcs == 0 && len(rec.Data) >= rec.WireLen {
		if crc32.ChecksumIEEE(rec.Data[:n]) == binary.LittleEndian.Uint32(rec.Data[n:]) {
			r.note(undeclaredFCS)
			return
		}
	}
	dataplane.ParseOnce(rec.Packet)
	length := statedLength(rec.Packet)
	if length == 0 || rec.L3+length < rec.PaddedLen() {
		return
	}
	t.whole++
	switch {
	case length > rec.L3Len && rec.fcs > 0 && length <= rec.L3Len+rec.fcs:
		r.note(missingFCS)
	case length < rec.L3Len && rec.L3Len-length <= MaxFCS:
		if t.length == 0 {
			t.length = rec.L3Len - length
		}
		t.differs = t.differs || t.length != rec.L3Len-length
		r.note(trailer)
	}
}

// finish completes the warnings. Trailers of several lengths, or of few frames, are padding.
func (t *trailers) finish(r *run) {
	if t.differs || t.whole < fewFrames || 2*r.seen[trailer].packets <= t.whole {
		r.seen[trailer] = occurrences{}
	}
	for _, o := range []oddity{undeclaredFCS, trailer} {
		if s := &r.seen[o]; s.packets > 0 {
			bytes := ethernetFCSLen
			if o == trailer {
				bytes = t.length
			}
			s.text = fmt.Sprintf(s.text, bytes, grouped(t.frames))
		}
	}
}
