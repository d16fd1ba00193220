package meter

import (
	"math"
	"time"
)

// rule is a meter that is no bucket of 64 bits. Its value is its parameters and
// can be compared; the state and the log are the caller's. now may be earlier than
// a time that the state has seen, and gives no more then.
type rule interface {
	// start is the words of a state whose clock has not begun, and which has as
	// many tokens.
	start(tc, te int64) (c, e int64)
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

// byRule meters a packet by the rule, which brings the state to now. If take is false it
// only returns the color that the packet would have: nothing is taken, and the log is
// written only when the clock begins. A negative n never conforms.
//
// It is a switch and not a method of rule, because a state whose address is passed to a
// method of an interface would have to be on the heap.
func (p *Profile) byRule(s *state, log []entry, now int64, n int, in Color, take bool) (color Color) {
	if log == nil {
		log = p.log
	}
	switch r := p.rule.(type) {
	case fixedWindow:
		if color = r.look(s, now, n, in); take && color != Red {
			s.first += int64(n)
		}
	case slidingCounter:
		if color = r.look(s, now, n, in); take && color != Red {
			s.first += int64(n)
		}
	case slidingLog:
		if color = r.look(s, log, now, n, in); take && color != Red {
			r.take(s, log, n)
		}
	case tsw:
		color = r.look(s, now, n, in)
	case warmUp:
		if color = r.look(s, now, n, in); take && color != Red {
			s.first -= int64(n) * r.unit
		}
	case wide:
		if take {
			return r.color(p, s, log, now, n, in)
		}
		return r.look(p, s, log, now, n, in)
	}
	return color
}

func (p *Profile) entries() int {
	if p.made().rule == nil {
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
// stays once it does; false where it never does, or not before a Duration ends.
func soonest(from, to int64, ok func(now int64) bool) (time.Duration, bool) {
	if ok(from) {
		return 0, true
	}
	most := min(uint64(to)-uint64(from), math.MaxInt64)
	if to < from || !ok(from+int64(most)) {
		return 0, false
	}
	no, yes := uint64(0), most
	for yes-no > 1 {
		if i := no + (yes-no)/2; ok(from + int64(i)) {
			yes = i
		} else {
			no = i
		}
	}
	return time.Duration(yes), true
}
