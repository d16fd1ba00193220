package meter

import (
	"math"
	"math/bits"
)

// Meter is one meter: 32 bytes of state beside its shared Profile. New makes
// one; the zero Meter has no parameters and is not for use. A Meter is for one
// goroutine at a time; Locked is the form for several.
//
// A bucket is kept as the debt it would have had at the epoch: the units it
// lacks to be full, plus those that have arrived since. Refilling therefore
// changes nothing, and neither does a red packet.
type Meter struct {
	profile *Profile
	epoch   int64 // ns
	c, e    int64 // units, at least 0
}

const (
	longAgo  = math.MinInt64     // the epoch of a meter that has always been full
	notBegun = math.MinInt64 + 1 // the epoch of one that waits for its first packet
)

// New returns a meter whose buckets are full (RFC 2697 §3, RFC 2698 §3).
func New(p *Profile) Meter { return Meter{profile: p, epoch: longAgo} }

// NewWithTokens returns a meter whose buckets begin with tc and te bytes, cut
// to 0 and their bursts. They begin to refill with the first packet, which
// must be later than -2^62 ns.
func NewWithTokens(p *Profile, tc, te int64) Meter {
	return Meter{p, notBegun, p.c.debt(tc, p.den), p.e.debt(te, p.den)}
}

// debt is what a bucket that holds tokens bytes lacks to be full, in units.
func (b *bucket) debt(tokens, den int64) int64 {
	burst := b.burst(den)
	return (burst - min(max(tokens, 0), burst)) * den
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
	p := m.profile
	dt := uint64(now) - uint64(m.epoch)
	if dt >= p.horizon {
		dt = m.rebase(now)
	}
	tc, te := int64(dt)*p.c.num, int64(dt)*p.e.num
	c, e := m.c, m.e
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
	m.c, m.e = c+takeC, max(e, te)+takeE
	return color
}

// Colors meters packets that share one time, in order, as one call of Color
// for each would. colors holds the color before each packet and receives its
// color; it is at least as long as lengths.
func (m *Meter) Colors(now int64, lengths []int, colors []Color) {
	p := m.profile
	dt := uint64(now) - uint64(m.epoch)
	if dt >= p.horizon {
		dt = m.rebase(now)
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
func (m *Meter) rebase(now int64) uint64 {
	switch {
	case m.epoch == notBegun:
		m.epoch = now
	case now > m.epoch:
		p, dt := m.profile, uint64(now)-uint64(m.epoch)
		tc, te := elapsed(dt, p.c.num), elapsed(dt, p.e.num)
		c, e := p.settle(m.c, m.e, tc, te)
		m.c, m.e = c-tc, e-te
		m.epoch = now
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
// Tc and Te, or Tc and Tp. It changes nothing.
func (m *Meter) Tokens(now int64) (tc, te int64) {
	at := *m
	at.rebase(now)
	p := m.profile
	return max(p.c.room-1-at.c, 0) / p.den, max(p.e.room-1-at.e, 0) / p.den
}

// SetProfile changes the parameters at now. Each bucket keeps its tokens, cut
// to the new burst; a fraction that the new rate cannot express is rounded
// down.
func (m *Meter) SetProfile(now int64, p *Profile) {
	old := m.profile
	if m.epoch != notBegun {
		m.rebase(now)
	}
	m.c = p.c.carry(p.den, old.c.room-1-m.c, old.den)
	m.e = p.e.carry(p.den, old.e.room-1-m.e, old.den)
	m.profile = p
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
