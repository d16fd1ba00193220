package meter

import "math"

// Meter is one meter: 24 bytes of state beside a pointer to its shared Profile.
// New makes one; the zero Meter has no parameters, and its methods panic. A Meter is
// for one goroutine at a time; Locked is the form for several, Table for many
// keys.
//
// Copies of a Meter forget what the others let through: go vet reports them, as a
// range over a []Meter by value. Clone makes a second meter on purpose.
//
// A sliding window and a sliding log have memory beside it, and so have two buckets
// where 64 bits do not hold one of them exactly.
type Meter struct {
	_       noCopy
	profile *Profile
	state
}

// noCopy is for the copylocks check of go vet.
type noCopy struct{}

func (*noCopy) Lock()   {}
func (*noCopy) Unlock() {}

// state is what a meter knows of the packets before.
//
// A bucket is kept as the debt it would have had at the epoch: the units it
// lacks to be full, plus those that have arrived since. Refilling therefore
// changes nothing, and neither does a red packet. A rule uses the words as its
// own comment says.
type state struct {
	epoch         int64 // ns
	first, second int64 // of buckets: the units that C and E owe
}

const (
	longAgo  = math.MinInt64     // the epoch of a meter that has always been full
	notBegun = math.MinInt64 + 1 // the epoch of one whose clock has not begun
	earliest = math.MinInt64 + 2 // the least epoch of a time
)

// New returns a meter whose buckets are full (RFC 2697 §3, RFC 2698 §3) and
// whose windows are empty. It panics where p is nil.
func New(p *Profile) Meter {
	if p.made().rule != nil {
		c, e := p.Bursts()
		return NewWithTokens(p, c, e)
	}
	return Meter{profile: p, state: state{epoch: longAgo}}
}

// NewWithTokens returns a meter whose buckets begin with tc and te bytes, cut
// to 0 and their bursts. Its clock begins with the first call that has a time,
// whichever it is, which must not be in the first 2^55 ns (a year) that an int64 has:
// from then on they refill. A window begins with tc left of its limit. Where the
// tokens are those of a time, use Restore.
func NewWithTokens(p *Profile, tc, te int64) Meter {
	p = p.made().withLog()
	return Meter{profile: p, state: p.start(tc, te)}
}

// Restore returns a meter that had tc and te bytes at a time, as Tokens said
// then: it has refilled since. A fraction of a byte that Tokens left out is lost.
// What a window had taken counts as taken at that time. The average of a TSWTCM
// begins at 0, here and in NewWithTokens.
//
// A clock that begins anew with the process, such as Now, is not one to save a
// time of.
func Restore(p *Profile, at, tc, te int64) Meter {
	p = p.made().withLog()
	s := p.start(tc, te)
	p.begin(&s, p.log, at)
	return Meter{profile: p, state: s}
}

const noProfile = "meter: no Profile: a Meter is made by New, of a Profile that is not nil"

// made is the profile, or a panic that says what is wrong.
func (p *Profile) made() *Profile {
	if p == nil {
		panic(noProfile)
	}
	return p
}

// start is the state of a meter whose clock has not begun.
func (p *Profile) start(tc, te int64) state {
	if p.rule != nil {
		c, e := p.rule.start(tc, te)
		return state{notBegun, c, e}
	}
	return state{notBegun, p.c.owes(tc, p.den), p.e.owes(te, p.den)}
}

// owes returns the units that a bucket with these tokens lacks to be full.
func (b *bucket) owes(tokens, den int64) int64 {
	return b.full() - min(max(tokens, 0), b.full()/den)*den
}

// Clone returns a meter with the same state, and memory of its own.
func (m *Meter) Clone() Meter {
	p := m.profile.made().withLog()
	if p != m.profile {
		copy(p.log, m.profile.log)
	}
	return Meter{profile: p, state: m.state}
}

// Profile returns the parameters.
func (m *Meter) Profile() *Profile { return m.profile }

// Color meters one packet and takes its tokens.
//
// now is in nanoseconds on any clock. An earlier time than the latest refills
// nothing: it sees no more tokens than there were at the latest. n is the
// length in bytes; n equal to the tokens conforms, and a negative n never
// does. in is the color before this meter; in color-blind mode it is Green. The
// result is never better than in.
//
// Color does not allocate.
func (m *Meter) Color(now int64, n int, in Color) Color {
	return m.profile.made().color(&m.state, nil, now, n, in)
}

// Allow meters one packet in color-blind mode and says whether it may pass, green
// or yellow: only then it has taken tokens.
func (m *Meter) Allow(now int64, n int) bool { return m.Color(now, n, Green) != Red }

// Colors meters packets that share one time, in order, as one call of Color
// for each would, and writes their colors. before holds the color before each
// packet; nil is color-blind mode. It may be colors itself. Both are at least as
// long as lengths.
func (m *Meter) Colors(now int64, lengths []int, before, colors []Color) {
	m.profile.made().colors(&m.state, now, lengths, colorsBefore(before, colors, len(lengths)))
}

// colorsBefore puts the colors before n packets where their results will be: green
// where there are none.
func colorsBefore(before, colors []Color, n int) []Color {
	colors = colors[:n:len(colors)] // not past their ends, where there is room
	if before == nil {
		clear(colors)
	} else {
		copy(colors, before[:n:len(before)])
	}
	return colors
}

// Begun says whether the clock of a meter has begun, as that of New has.
func (m *Meter) Begun() bool { return m.epoch != notBegun }

// begin starts the clock of a meter that waits for its first call. An average has
// none: it begins with a packet.
func (m *Meter) begin(now int64) {
	if p := m.profile.made(); m.epoch == notBegun {
		p.begin(&m.state, m.profile.log, now)
	}
}

func (p *Profile) begin(s *state, log []entry, now int64) {
	switch {
	case p.rule == nil:
		p.rebase(s, now)
	case p.kind != KindTSWTCM:
		p.byRule(s, log, now, 0, Green, false)
	}
}

// Tokens returns what the buckets hold at now in whole bytes, rounded down:
// Tc and Te, or Tc and Tp; what is left of a window's limit, and 0; what the
// average of RFC 2859 is below CIR and PIR, in bytes of its window. It takes
// nothing.
func (m *Meter) Tokens(now int64) (tc, te int64) {
	m.begin(now)
	return m.profile.tokens(m.state, m.profile.log, now)
}

func (p *Profile) tokens(s state, log []entry, now int64) (tc, te int64) {
	if p.rule != nil {
		return p.rule.tokens(s, log, now)
	}
	p.rebase(&s, now)
	return max(p.c.full()-s.first, 0) / p.den, max(p.e.full()-s.second, 0) / p.den
}

// SetProfile changes the parameters at now. Each bucket keeps its tokens, cut
// to the new burst; a fraction that the new rate cannot express is rounded
// down. Where either is no meter of buckets, whole tokens are kept.
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

// sameRule says whether a state and its log mean the same under both.
func (p *Profile) sameRule(q *Profile) bool {
	return p.rule != nil && p.rule == q.rule && p.kind == q.kind
}

// adopt is the state of a meter that was of another profile until now.
func (p *Profile) adopt(log []entry, now int64, old *Profile, s state, oldLog []entry) state {
	from, to := old.wide(), p.wide()
	if from == nil || to == nil {
		now = max(now, old.latest(s))
		tc, te := old.tokens(s, oldLog, now)
		s = p.start(tc, te)
		p.begin(&s, log, now)
		return s
	}
	l := old.levels(s, oldLog, now)
	l.at[0] = l.at[0].carry(from.c, to.c)
	l.at[1] = l.at[1].carry(from.e, to.e)
	return p.state(l, log)
}

// ColorEach meters packets that share one time, each by the meter beside it,
// in order. The cache misses of a burst over many meters overlap. before, colors
// and lengths are as in Meter.Colors and at least as long as meters.
func ColorEach(meters []*Meter, now int64, lengths []int, before, colors []Color) {
	for _, m := range meters {
		_ = m.profile // the nil check loads its cache line
	}
	lengths, colors = lengths[:len(meters):len(lengths)], colorsBefore(before, colors, len(meters))
	for i, m := range meters {
		colors[i] = m.Color(now, lengths[i], colors[i])
	}
}
