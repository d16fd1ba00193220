package replay

import (
	"fmt"
	"strconv"
	"time"
)

// oddity is a property of packets worth one warning or note per capture.
type oddity int

const (
	backwards oddity = iota
	steppedBack
	steppedAhead
	returned
	overflowing
	outside
	truncated
	headersCut
	longer
	unknownLink
	uncut
	uncutUDP
	uncutGiven
	uncutOther
	shortCut
	undeclaredFCS
	missingFCS
	trailer
)

var oddities = [...]string{
	backwards:     "timestamp goes backwards; metered at the latest time so far",
	steppedBack:   "timestamp steps back by %v, more than %v: a new clock begins at the latest time so far; --max-step sets what is reordering",
	steppedAhead:  "timestamp steps ahead by %v, more than %v: a new clock begins at the latest time so far; --max-gap sets what is a pause",
	returned:      "timestamp continues an earlier clock",
	overflowing:   "sub-second field is 1 s or more; the excess was added to the seconds",
	outside:       "timestamp is before 1970 or after 2261; metered at the nearest time in that range",
	truncated:     "truncated by the snap length; metered by original length",
	headersCut:    "headers truncated by the snap length; classified by the bytes that were captured",
	longer:        "more bytes captured than the original length; metered by captured length",
	unknownLink:   "link type %v cannot be read; counted as non-IP, which classes for IP do not meter",
	uncut:         "longer than 1,500 bytes, of a TCP connection whose SYN was not captured; metered as one packet, although TSO or GRO may have combined several",
	uncutUDP:      "UDP longer than 1,500 bytes, not fragmented; metered as one packet, although UDP GSO or GRO may have combined several: --udp-segment BYTES cuts it",
	uncutGiven:    "UDP longer than 1,500 bytes, not fragmented, that --udp-segment does not cut: more than 128 segments, or truncated before its ports; metered as one packet, although UDP GSO or GRO may have combined several",
	uncutOther:    "longer than 1,500 bytes, neither TCP nor plain UDP (%s); metered as one packet, although the sender's or receiver's stack may have combined several",
	shortCut:      "UDP of at most 1,500 bytes, cut by --udp-segment, although it may have been one packet",
	undeclaredFCS: "the frame ends with its own CRC-32, an FCS that the capture does not declare; metered with it: --fcs %d removes it from all frames, --fcs 0 keeps it (%s frames looked at)",
	missingFCS:    "the IP packet reaches into the FCS that the capture declares; metered without these bytes: --fcs 0 keeps them",
	trailer:       "the frame has %[1]d bytes behind the IP packet; metered with them: --fcs %[1]d removes them from all frames, --fcs 0 keeps them (%[2]s frames looked at)",
}

// occurrences counts the packets with an oddity.
type occurrences struct {
	packets int64
	first   int64  // packet number
	text    string // of the warning
}

func (r *run) note(o oddity) { r.noteOf(r.summary.Read, o) }

// noteOf counts an oddity of a packet, by its number.
func (r *run) noteOf(number int64, o oddity) {
	s := &r.seen[o]
	if s.packets == 0 {
		s.first, s.text = number, oddities[o]
		if o == unknownLink {
			s.text = fmt.Sprintf(oddities[o], r.link)
		}
	}
	s.packets++
}

// warnings returns the texts of all oddities, apart from notes.
func (r *run) warnings() []string {
	r.trailers.finish(r)
	r.seen[steppedBack].addStep(r.timeline.back, r.timeline.maxStep)
	r.seen[steppedAhead].addStep(r.timeline.ahead, r.timeline.maxGap)
	var out []string
	for o := range r.seen {
		if oddity(o) != truncated {
			out = r.appendText(out, oddity(o))
		}
	}
	if r.cfg.FCS > 0 && r.summary.Packets > 0 && !r.frames {
		out = append(out, fmt.Sprintf("--fcs %d removes nothing: no packet is an Ethernet frame", r.cfg.FCS))
	}
	return out
}

// addStep adds the largest step and the exceeded bound, ns.
func (s *occurrences) addStep(by, bound int64) {
	if s.packets > 0 {
		most := time.Duration(by).String()
		if s.packets > 1 {
			most = "up to " + most
		}
		s.text = fmt.Sprintf(s.text, most, time.Duration(bound))
	}
}

// notes returns the texts of oddities after which nothing is wrong: a capture of complete headers is
// metered exactly.
func (r *run) notes() []string { return r.appendText(nil, truncated) }

// appendText appends the text of an oddity, if some packet showed it.
func (r *run) appendText(out []string, o oddity) []string {
	switch s := &r.seen[o]; {
	case s.packets == 1:
		out = append(out, fmt.Sprintf("packet %d: %s", s.first, s.text))
	case s.packets > 1:
		out = append(out, fmt.Sprintf("%s packets (first: %d): %s", grouped(s.packets), s.first, s.text))
	}
	return out
}

// grouped formats a number with a comma between groups of three digits.
func grouped(n int64) string {
	s := strconv.FormatInt(n, 10)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
