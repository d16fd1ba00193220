package meter

import (
	"math"
	"sort"
	"time"
)

// rule is a meter that is no bucket. Its value is its parameters and can be
// compared; the state and the log are the caller's. now may be earlier than a
// time that the state has seen, and gives no more then.
type rule interface {
	// start is the word c of a state that waits for its first packet, which
	// will find as many tokens.
	start(tokens int64) int64
	// tokens and bursts are Meter.Tokens and Profile.Bursts.
	tokens(s state, log []entry, now int64) (tc, te int64)
	bursts() (c, e int64)
	// span is how many ns after the latest packet a state is as good as new,
	// at most; rested says whether it is at now.
	span() int64
	rested(s state, log []entry, now int64) bool
	// entries is how long the log is.
	entries() int
}

// byRule is color. It knows all rules, and so does look: a state that is passed to a
// method of an interface would have to be on the heap.
func (p *Profile) byRule(s *state, log []entry, now int64, n int, in Color) Color {
	var color Color
	switch r := p.rule.(type) {
	case fixedWindow:
		if color = r.look(s, now, n, in); color != Red {
			s.c += int64(n)
		}
	case slidingCounter:
		if color = r.look(s, now, n, in); color != Red {
			s.c += int64(n)
		}
	case slidingLog:
		if log == nil {
			log = p.log
		}
		if color = r.look(s, log, now, n, in); color != Red {
			r.take(s, log, n)
		}
	case tsw:
		color = r.look(s, now, n, in)
	case warmUp:
		if color = r.look(s, now, n, in); color != Red {
			s.c -= int64(n) * r.unit
		}
	}
	return color
}

// look brings a state to now and says what color a packet would have. A negative
// n never conforms. It does not write to the log.
func (p *Profile) look(s *state, log []entry, now int64, n int, in Color) Color {
	switch r := p.rule.(type) {
	case fixedWindow:
		return r.look(s, now, n, in)
	case slidingCounter:
		return r.look(s, now, n, in)
	case slidingLog:
		return r.look(s, log, now, n, in)
	case tsw:
		return r.look(s, now, n, in)
	case warmUp:
		return r.look(s, now, n, in)
	}
	return Red
}

func (p *Profile) entries() int {
	if p.rule == nil {
		return 0
	}
	return p.rule.entries()
}

// withLog is the profile with a log of its own, where its meter needs one.
func (p *Profile) withLog() *Profile {
	n := p.entries()
	if n == 0 {
		return p
	}
	own := *p
	own.log = make([]entry, n)
	return &own
}

// keeps is the color of a packet in a meter of two colors.
func keeps(fits bool, in Color) Color {
	if !fits {
		return Red
	}
	return in
}

// soonest is how long after a time ok holds first, up to another time, where ok
// stays once it does; false where it never does.
func soonest(from, to int64, ok func(now int64) bool) (time.Duration, bool) {
	if ok(from) {
		return 0, true
	}
	if !ok(to) {
		return 0, false
	}
	most := int(min(uint64(to)-uint64(from), math.MaxInt64))
	return time.Duration(sort.Search(most, func(i int) bool { return ok(from + int64(i)) })), true
}

// limits of all windows.
const (
	minWindow = time.Microsecond
	maxWindow = 366 * 24 * time.Hour
	maxLimit  = 1 << 47 // bytes
)

func (f *faults) span(field string, d, longest time.Duration) {
	if d < minWindow || d > longest {
		f.add(field, "of "+d.String()+" is not between "+minWindow.String()+" and "+longest.String())
	}
}

func (f *faults) limit(n int64) {
	f.positive("limit", n, "")
	if n > maxLimit {
		f.add("limit", "is above 2^47 bytes")
	}
}
