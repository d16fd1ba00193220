package meter

import "math"

// Meter is one meter: 24 bytes of state and a pointer to its Profile. New makes one;
// the methods of the zero Meter panic. A Meter is for one goroutine at a time. See
// Locked for several goroutines, and Table for many keys.
//
// Do not copy a Meter: the copy does not know what the original let through. go vet
// reports copies, such as a range by value over a []Meter. Clone copies on purpose.
//
// SlidingWindow and SlidingLog allocate memory beside the Meter, and so do two buckets if 64 bits
// each cannot count them exactly.
type Meter struct {
	_       noCopy
	profile *Profile
	state
}

// noCopy is for the copylocks check of go vet.
type noCopy struct{}

func (*noCopy) Lock()   {}
func (*noCopy) Unlock() {}

// state is the history of a meter.
type state struct {
	epoch int64 // ns
	// Units owed by the buckets C and E, as defined in verdict.go; at least 0. Rules define their
	// own use of these words.
	first, second int64
}

// Values of an epoch that are no time.
const (
	longAgo  = math.MinInt64     // buckets have always been full
	notBegun = math.MinInt64 + 1 // the clock begins with the next call
	earliest = math.MinInt64 + 2 // the smallest epoch that is a time
)

// New returns a meter with full buckets (RFC 2697 §3, RFC 2698 §3) or empty windows. It
// panics if p is nil.
func New(p *Profile) Meter {
	if p.made().rule != nil {
		c, e := p.Bursts()
		return NewWithTokens(p, c, e)
	}
	return Meter{profile: p, state: state{epoch: longAgo}}
}

// NewWithTokens returns a meter whose buckets begin with tc and te bytes, limited to the
// range from 0 to their bursts. A window begins with tc bytes left of its limit. The
// average of a TSWTCM begins at 0.
//
// The clock begins with the first call with a time, and the buckets refill from then on. That time
// must not be within 2^55 ns (a year) of the smallest int64. To continue from a known time, use
// Restore.
func NewWithTokens(p *Profile, tc, te int64) Meter {
	p = p.made().withLog()
	return Meter{profile: p, state: p.start(tc, te)}
}

// Restore returns a meter with tc and te bytes at a time, as Tokens returned them. It refills from
// then on, less the fraction of a byte rounded off by Tokens. The bytes a window had let through
// count from that time. The average of a TSWTCM begins at 0.
//
// The clock must continue across restarts, as Now does not; see Shift. AppendBinary saves the
// exact state.
func Restore(p *Profile, at, tc, te int64) Meter {
	p = p.made().withLog()
	s := p.start(tc, te)
	p.begin(&s, p.log, at)
	return Meter{profile: p, state: s}
}

const noProfile = "meter: no Profile: make a Meter with New and a Profile that is not nil"

// made returns the profile, or panics if it is nil.
func (p *Profile) made() *Profile {
	if p == nil {
		panic(noProfile)
	}
	return p
}

// start returns a state with these tokens before its clock begins.
func (p *Profile) start(tc, te int64) state {
	if p.rule != nil {
		first, second := p.rule.start(tc, te)
		return state{notBegun, first, second}
	}
	return state{notBegun, p.c.owes(tc, p.den), p.e.owes(te, p.den)}
}

// Clone returns a meter with the same state, which changes independently.
func (m *Meter) Clone() Meter {
	p := m.profile.made().withLog()
	if p != m.profile {
		copy(p.log, m.profile.log)
	}
	return Meter{profile: p, state: m.state}
}

// Profile returns the parameters.
func (m *Meter) Profile() *Profile { return m.profile }

// Color meters one packet, takes its tokens and returns its color.
//
// now is in nanoseconds on any clock. A time earlier than the latest so far refills
// nothing and finds no more tokens than the latest did. n is the length in bytes. A packet
// conforms if n is at most the tokens; a negative n never conforms. in is the input color:
// the color before this meter in color-aware mode, always Green in color-blind mode. The
// result is never better than in.
//
// Color does not allocate.
func (m *Meter) Color(now int64, n int, in Color) Color {
	return m.profile.made().color(&m.state, nil, now, n, in)
}

// Allow meters one packet in color-blind mode. It reports whether the packet is green or yellow;
// otherwise it takes no tokens.
func (m *Meter) Allow(now int64, n int) bool { return m.Color(now, n, Green) != Red }

// Colors meters packets of one time, as a call of Color for each in order would, and writes their
// colors. in holds the input color of each packet, or is nil in color-blind mode. in and colors
// must be at least as long as lengths, and may be the same slice.
func (m *Meter) Colors(now int64, lengths []int, in, colors []Color) {
	m.profile.made().colors(&m.state, now, lengths, in, colors)
}

// inputColors copies the input colors of n packets to the slice of their results.
func inputColors(in, colors []Color, n int) []Color {
	colors = colors[:n:len(colors)] // panics if it is too short, even within its capacity
	if in == nil {
		clear(colors)
	} else {
		copy(colors, in[:n:len(in)])
	}
	return colors
}

// ColorEach meters packets of one time, each by the meter of the same index, in order. The cache
// misses of the meters overlap. in, colors and lengths are as for Meter.Colors, and at least as
// long as meters.
func ColorEach(meters []*Meter, now int64, lengths []int, in, colors []Color) {
	for _, m := range meters {
		_ = m.profile // the nil check loads its cache line
	}
	lengths, colors = lengths[:len(meters):len(lengths)], inputColors(in, colors, len(meters))
	for i, m := range meters {
		colors[i] = m.Color(now, lengths[i], colors[i])
	}
}

// Begun reports whether the clock runs. The clock of a meter from NewWithTokens begins with its
// first call.
func (m *Meter) Begun() bool { return m.epoch != notBegun }

// begin begins the clock unless it runs.
func (m *Meter) begin(now int64) {
	if p := m.profile.made(); m.epoch == notBegun {
		p.begin(&m.state, m.profile.log, now)
	}
}

// begin begins the clock of a state, except if it is an average: a packet begins it.
func (p *Profile) begin(s *state, log []entry, now int64) {
	switch {
	case p.rule == nil:
		p.rebase(s, now)
	case p.kind != kindTSWTCM:
		p.byRule(s, log, now, 0, Green, false)
	}
}

// Tokens returns the whole bytes in the buckets at now, rounded down: Tc and Te, or Tc and Tp. A
// window returns the bytes left of its limit, and 0. TSWTCM returns by how much its average is
// below CIR and PIR, in bytes in a Window. Tokens takes nothing.
func (m *Meter) Tokens(now int64) (tc, te int64) {
	m.begin(now)
	return m.profile.tokens(m.state, m.profile.log, now)
}

// Holds reports whether the buckets hold n tokens each at now: n <= tc and n <= te of Tokens, without
// its divisions. n must not be negative.
func (m *Meter) Holds(now int64, n int) (c, e bool) {
	p := m.profile
	dt := uint64(now) - uint64(m.epoch)
	if dt >= p.horizon {
		tc, te := m.Tokens(now)
		return int64(n) <= tc, int64(n) <= te
	}
	gainedC, gainedE := int64(dt)*p.c.rate, int64(dt)*p.e.rate
	owedC, owedE := p.overflow(m.first, m.second, gainedC)
	cost := p.cost(n)
	return owedC+cost < gainedC+p.c.tooLarge, max(owedE, gainedE)+cost < gainedE+p.e.tooLarge
}

func (p *Profile) tokens(s state, log []entry, now int64) (tc, te int64) {
	if p.rule != nil {
		return p.rule.tokens(s, log, now)
	}
	p.rebase(&s, now)
	return max(p.c.full()-s.first, 0) / p.den, max(p.e.full()-s.second, 0) / p.den
}

// SetProfile changes the parameters at now. Each bucket keeps its tokens, up to the new burst;
// fractions of a byte beyond the new rate's precision are rounded down. If the old or new
// parameters are not buckets, only whole bytes are kept. All reservations end.
func (m *Meter) SetProfile(now int64, p *Profile) {
	m.begin(now)
	old := m.profile
	if old == p || old.sameRule(p.made()) {
		return
	}
	p = p.withLog()
	m.state = p.adopt(p.log, now, old, m.state, old.log)
	m.profile = p
}

// sameRule reports whether a state and its log mean the same with both profiles.
func (p *Profile) sameRule(q *Profile) bool {
	return p.rule != nil && p.rule == q.rule && p.kind == q.kind
}

// adopt returns the state of a meter with another profile until now.
func (p *Profile) adopt(log []entry, now int64, old *Profile, s state, oldLog []entry) state {
	from, had := old.buckets()
	to, has := p.buckets()
	if !had || !has {
		now = max(now, old.latest(s))
		tc, te := old.tokens(s, oldLog, now)
		s = p.start(tc, te)
		p.begin(&s, log, now)
		return s
	}
	l := old.levels(s, oldLog, now)
	for i := range l.at {
		l.at[i] = l.at[i].carry(from[i], to[i])
	}
	return p.state(l, log)
}
