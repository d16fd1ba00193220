package replay

import "fmt"

// oddity is something about packets that draws one warning.
type oddity int

const (
	backwards oddity = iota
	farFuture
	overflowing
	outside
	cutShort
	longer
	unknownLink
)

var oddities = [...]string{
	backwards:   "the stamp goes back: the meters used the largest stamp so far",
	farFuture:   "the stamp is far ahead of all before it: stamps behind it refill nothing",
	overflowing: "the stamp has a fraction of a second or more: it was carried to the seconds",
	outside:     "the stamp is before 1970 or after 2261: the nearest time between was taken",
	cutShort:    "captured in part: the length on the wire was metered",
	longer:      "more bytes captured than the wire had: the captured length was metered",
	unknownLink: "a link type that shaper does not know: counted as not IP",
}

// odd counts an oddity.
type odd struct {
	packets int64
	first   int64
	detail  string
}

func (r *run) note(o oddity) {
	s := &r.seen[o]
	if s.packets == 0 {
		s.first = r.summary.Packets
		if o == unknownLink {
			s.detail = fmt.Sprintf(" (link type %d)", r.link)
		}
	}
	s.packets++
}

func (r *run) warnings() []string {
	var out []string
	for o, s := range r.seen {
		switch {
		case s.packets == 1:
			out = append(out, fmt.Sprintf("packet %d: %s%s", s.first, oddities[o], s.detail))
		case s.packets > 1:
			out = append(out, fmt.Sprintf("packet %d and %d more: %s%s", s.first, s.packets-1, oddities[o], s.detail))
		}
	}
	return out
}
