package meter

import (
	"math"
	"time"
)

// rule is a meter other than one or two buckets of 64 bits. Its value holds the parameters and is
// comparable. The caller keeps the state and the log. If now is earlier than the latest time in a
// state, no more tokens are found than at the latest.
type rule interface {
	// start returns the words of a state with these tokens before its clock begins.
	start(tc, te int64) (first, second int64)
	// tokens implements Meter.Tokens, and bursts implements Profile.Bursts.
	tokens(s state, log []entry, now int64) (tc, te int64)
	bursts() (c, e int64)
	// span returns the longest time after the latest packet, in ns, in which a state
	// becomes as good as new. rested reports whether it is at now.
	span() int64
	rested(s state, log []entry, now int64) bool
	// entries returns the length of the log.
	entries() int
	// valid reports whether a state with these used entries of the log, the oldest first, can
	// be one of the rule. The epoch is notBegun or later.
	valid(s state, log []entry) bool
}

// byRule meters a packet by the rule, and brings the state to now. If take is false, it
// takes nothing and only returns the color; it writes to the log only if the clock begins.
// A negative n never conforms.
//
// A switch calls the rules, not the interface: an interface call would move every state to
// the heap.
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

// withLog returns a copy of the profile with a log of its own if the rule needs a log,
// otherwise the profile.
func (p *Profile) withLog() *Profile {
	n := p.entries()
	if n == 0 {
		return p
	}
	own := *p
	own.log = make([]entry, n)
	return &own
}

// keeps returns the color of a packet in a meter of two colors.
func keeps(fits bool, in Color) Color {
	if !fits {
		return Red
	}
	return in
}

// soonest returns the time from the first argument until ok first holds. Once ok holds it
// must stay so. It returns false if ok does not hold at to, or only after the largest
// Duration.
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
