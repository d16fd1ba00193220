package meter

import (
	"math"
	"math/bits"
)

// Meter is one meter: 24 bytes of state beside a pointer to its shared Profile.
// New makes one; the zero Meter has no parameters and is not for use. A Meter is
// for one goroutine at a time; Locked is the form for several, Table for many
// keys.
//
// A sliding window and a sliding log have memory beside it, which copies of the
// Meter share, and clones do not.
type Meter struct {
	profile *Profile
	state
}

// state is what a meter knows of the packets before.
//
// A bucket is kept as the debt it would have had at the epoch: the units it
// lacks to be full, plus those that have arrived since. Refilling therefore
// changes nothing, and neither does a red packet. A rule uses the words as its
// own comment says.
type state struct {
	epoch int64 // ns
	c, e  int64 // units, at least 0 but for what was reserved ahead
}

const (
	longAgo  = math.MinInt64     // the epoch of a meter that has always been full
	notBegun = math.MinInt64 + 1 // the epoch of one that waits for its first packet
)

// New returns a meter whose buckets are full (RFC 2697 §3, RFC 2698 §3) and
// whose windows are empty.
func New(p *Profile) Meter {
	if p.rule != nil {
		c, e := p.Bursts()
		return NewWithTokens(p, c, e)
	}
	return Meter{p, state{epoch: longAgo}}
}

// NewWithTokens returns a meter whose buckets begin with tc and te bytes, cut
// to 0 and their bursts. They begin to refill with the first packet, which
// must be later than -2^62 ns. A window begins with tc left of its limit.
func NewWithTokens(p *Profile, tc, te int64) Meter {
	p = p.withLog()
	return Meter{p, p.start(tc, te)}
}

// start is the state of a meter that waits for its first packet.
func (p *Profile) start(tc, te int64) state {
	if p.rule != nil {
		return state{notBegun, p.rule.start(tc), 0}
	}
	return state{notBegun, p.c.debt(tc, p.den), p.e.debt(te, p.den)}
}

// debt is what a bucket that holds tokens bytes lacks to be full, in units.
func (b *bucket) debt(tokens, den int64) int64 {
	burst := b.burst(den)
	return (burst - min(max(tokens, 0), burst)) * den
}

// Clone returns a meter with the same state, and memory of its own.
func (m *Meter) Clone() Meter {
	p := m.profile.withLog()
	if p != m.profile {
		copy(p.log, m.profile.log)
	}
	return Meter{p, m.state}
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
	return m.profile.color(&m.state, nil, now, n, in)
}

// color has the log of a key, or nil for the profile's own.
func (p *Profile) color(s *state, log []entry, now int64, n int, in Color) Color {
	dt := uint64(now) - uint64(s.epoch)
	if dt >= p.horizon {
		if p.rule != nil {
			return p.byRule(s, log, now, n, in)
		}
		dt = p.rebase(s, now)
	}
	tc, te := int64(dt)*p.c.num, int64(dt)*p.e.num
	c, e := s.c, s.e
	if c < tc { // C is full
		e += (c - tc) & p.coupled
		c = tc
	}
	cost := p.cost(n)
	overC, overE := cost-p.c.room, cost-p.e.room
	// Where E's debt was paid since, the packet alone must fit: overE.
	var takeC, takeE int64
	var color Color
	if p.peak {
		takeC, takeE, color = p.both(c+(overC-tc), e+(overE-te), overE, cost, in)
	} else {
		takeC, takeE, color = p.either(c+(overC-tc), e+(overE-te), overE, cost, in)
	}
	s.c, s.e = c+takeC, max(e, te)+takeE
	return color
}

// Colors meters packets that share one time, in order, as one call of Color
// for each would. colors holds the color before each packet and receives its
// color; it is at least as long as lengths.
func (m *Meter) Colors(now int64, lengths []int, colors []Color) {
	p := m.profile
	dt := uint64(now) - uint64(m.epoch)
	if dt >= p.horizon {
		if p.rule != nil {
			for i, n := range lengths {
				colors[i] = p.byRule(&m.state, nil, now, n, colors[i])
			}
			return
		}
		dt = p.rebase(&m.state, now)
	}
	tc, te := int64(dt)*p.c.num, int64(dt)*p.e.num
	c, e := p.settle(m.c, m.e, tc, te)
	c, e = c-tc, e-te
	if p.peak {
		c, e = p.bothAll(c, e, lengths, colors)
	} else {
		c, e = p.eitherAll(c, e, lengths, colors)
	}
	m.c, m.e = c+tc, e+te
}

// bothAll and eitherAll are the loops of Colors, on settled debts. They are
// functions of their own so that all of their state is in registers.

func (p *Profile) bothAll(c, e int64, lengths []int, colors []Color) (int64, int64) {
	colors = colors[:len(lengths)]
	var takeC, takeE int64
	for i, n := range lengths {
		cost := p.cost(n)
		takeC, takeE, colors[i] = p.both(c+(cost-p.c.room), e+(cost-p.e.room), -1, cost, colors[i])
		c += takeC
		e += takeE
	}
	return c, e
}

func (p *Profile) eitherAll(c, e int64, lengths []int, colors []Color) (int64, int64) {
	colors = colors[:len(lengths)]
	var takeC, takeE int64
	for i, n := range lengths {
		cost := p.cost(n)
		takeC, takeE, colors[i] = p.either(c+(cost-p.c.room), e+(cost-p.e.room), -1, cost, colors[i])
		c += takeC
		e += takeE
	}
	return c, e
}

// settle ends the debts of full buckets; what overflows C goes into E where
// they are coupled.
func (p *Profile) settle(c, e, tc, te int64) (int64, int64) {
	full := max(c, tc)
	return full, max(e+(c-full)&p.coupled, te)
}

// cost of n bytes in units; more than any bucket holds where n is.
func (p *Profile) cost(n int) int64 { return int64(min(uint64(n), p.over)) * p.den }

// both and either are the verdicts. c and e are negative where the bucket holds
// the packet, for E only where alone is negative too. The results are what the
// packet takes from the buckets, in units, and its color. Masks inside are -1
// for yes, 0 for no: random traffic would mispredict every branch.

// both is RFC 2698 §3: what takes from C takes from P as well.
func (p *Profile) both(c, e, alone, cost int64, in Color) (takeC, takeE int64, color Color) {
	fitsC := c & (int64(in) - p.cLimit) >> 63
	fitsE := e & ((int64(in) - int64(Red)) & alone) >> 63
	takeE = cost & fitsE
	return takeE & fitsC, takeE, Red + Color(fitsE+fitsE&fitsC)
}

// either is RFC 2697 §3 and RFC 4115 §3: what does not take from C may take
// from E. A token bucket lets yellow take from C, and it stays yellow.
func (p *Profile) either(c, e, alone, cost int64, in Color) (takeC, takeE int64, color Color) {
	fitsC := c & (int64(in) - p.cLimit) >> 63
	fitsE := e & ((int64(in) - int64(Red)) & alone) >> 63
	takeC = cost & fitsC
	return takeC, (cost - takeC) & fitsE, Red + Color(fitsC+(fitsC|fitsE)+int64(in)&fitsC)
}

// rebase moves the epoch to now, or says that no time has passed since it
// where now is earlier. It returns the ns from the epoch to now.
func (p *Profile) rebase(s *state, now int64) uint64 {
	switch {
	case s.epoch == notBegun:
		s.epoch = now
	case now > s.epoch:
		dt := uint64(now) - uint64(s.epoch)
		tc, te := elapsed(dt, p.c.num), elapsed(dt, p.e.num)
		c, e := p.settle(s.c, s.e, tc, te)
		s.c, s.e = c-tc, e-te
		s.epoch = now
	}
	return 0
}

// elapsed is dt*num, cut off where every bucket has long been full.
func elapsed(dt uint64, num int64) int64 {
	hi, lo := bits.Mul64(dt, uint64(num))
	if hi != 0 || lo > 2*maxElapsed {
		return 2 * maxElapsed
	}
	return int64(lo)
}

// Tokens returns what the buckets hold at now in whole bytes, rounded down:
// Tc and Te, or Tc and Tp; what is left of a window's limit, and 0; what the
// average of RFC 2859 is below CIR and PIR, in bytes of its window. It changes
// nothing.
func (m *Meter) Tokens(now int64) (tc, te int64) {
	return m.profile.tokens(m.state, m.profile.log, now)
}

func (p *Profile) tokens(s state, log []entry, now int64) (tc, te int64) {
	if p.rule != nil {
		return p.rule.tokens(s, log, now)
	}
	p.rebase(&s, now)
	return max(p.c.room-1-s.c, 0) / p.den, max(p.e.room-1-s.e, 0) / p.den
}

// SetProfile changes the parameters at now. Each bucket keeps its tokens, cut
// to the new burst; a fraction that the new rate cannot express is rounded
// down. Where either is no meter of buckets, whole tokens are kept.
func (m *Meter) SetProfile(now int64, p *Profile) {
	old := m.profile
	if old == p || old.sameRule(p) {
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
	begun := s.epoch != notBegun
	if p.rule != nil || old.rule != nil {
		if begun {
			now = max(now, old.latest(s))
		}
		tc, te := old.tokens(s, oldLog, now)
		s = p.start(tc, te)
		if begun && p.rule != nil {
			p.look(&s, log, now, 0, Green)
		} else if begun {
			s.epoch = now
		}
		return s
	}
	if begun {
		old.rebase(&s, now)
	}
	s.c = p.c.carry(p.den, old.c.room-1-s.c, old.den)
	s.e = p.e.carry(p.den, old.e.room-1-s.e, old.den)
	return s
}

// carry is the debt of a bucket that gets the level of another one, counted
// in units of 1/oldDen byte.
func (b *bucket) carry(den, level, oldDen int64) int64 {
	full := max(b.room-1, 0)
	if level <= 0 {
		return full
	}
	hi, lo := bits.Mul64(uint64(level), uint64(den))
	if hi >= uint64(oldDen) {
		return 0 // the quotient is above 2^64, and so above every burst
	}
	kept, _ := bits.Div64(hi, lo, uint64(oldDen))
	return full - int64(min(kept, uint64(full)))
}

// ColorEach meters packets that share one time, each by the meter beside it,
// in order. The cache misses of a burst over many meters overlap. colors and
// lengths are as in Meter.Colors and at least as long as meters.
func ColorEach(meters []*Meter, now int64, lengths []int, colors []Color) {
	for _, m := range meters {
		_ = *m // the nil check loads its cache line
	}
	lengths, colors = lengths[:len(meters)], colors[:len(meters)]
	for i, m := range meters {
		colors[i] = m.Color(now, lengths[i], colors[i])
	}
}
