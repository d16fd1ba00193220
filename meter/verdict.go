package meter

import "math/bits"

// The metering of packets by buckets that fit 64 bits; rules are in rule.go.
//
// Of each bucket a state stores the units that it owes: those that it lacked at the
// epoch to be full, and all that packets have taken since. With the units gained
// since the epoch, dt * rate, it lacks owed - gained now. So neither time nor a red
// packet changes the state, nothing is divided, and nothing is rounded.
//
// If owed is below gained the bucket has overflowed: its debt was paid, and owed is
// raised to gained.
//
// Random traffic would mispredict every branch on the verdict, so the verdict is
// computed with masks, which are -1 for yes and 0 for no.

// bothNegative returns the mask of a < 0 and b < 0.
func bothNegative(a, b int64) int64 { return (a & b) >> 63 }

// color meters one packet. The log is that of the meter's key in a Table, or nil for
// the profile's own.
func (p *Profile) color(s *state, log []entry, now int64, n int, in Color) Color {
	dt := uint64(now) - uint64(s.epoch)
	if dt >= p.horizon {
		if p.rule != nil {
			return p.byRule(s, log, now, n, in, true)
		}
		dt = p.rebase(s, now)
	}
	gainedC, gainedE := int64(dt)*p.c.rate, int64(dt)*p.e.rate
	cost := p.cost(n)
	owedC, owedE := p.overflow(s.first, s.second, gainedC)
	overC, overE := cost-p.c.tooLarge, cost-p.e.tooLarge // negative if a full bucket holds the packet
	lackC := owedC + (overC - gainedC)
	lackE := owedE + (overE - gainedE)
	// E may owe less than it gained. Then it is full: overE must be negative, too.
	lackE &= overE
	var takeC, takeE int64
	var color Color
	if p.peak {
		takeC, takeE, color = p.takeBoth(lackC, lackE, cost, in)
	} else {
		takeC, takeE, color = p.takeEither(lackC, lackE, cost, in)
	}
	s.first, s.second = owedC+takeC, max(owedE, gainedE)+takeE
	return color
}

// cost returns the units that n bytes cost. Any length above the larger burst costs
// as much as one byte more than that burst, so products stay within 64 bits.
func (p *Profile) cost(n int) int64 { return int64(min(uint64(n), p.longest)) * p.den }

// overflow ends C's debt if it is paid. With coupling, the units that overflow C pay
// E's.
func (p *Profile) overflow(owedC, owedE, gainedC int64) (c, e int64) {
	if owedC < gainedC {
		owedE += (owedC - gainedC) & p.coupled
		owedC = gainedC
	}
	return owedC, owedE
}

// takeBoth and takeEither are the verdict on a packet. A bucket lacks the units by which
// it is short of the packet's cost, less one: the packet fits if that is negative. The
// results are the units that the packet takes from each bucket, and its color.

// takeBoth is RFC 2698 §3: a packet that takes from C takes from P as well.
func (p *Profile) takeBoth(lackC, lackP, cost int64, in Color) (takeC, takeP int64, color Color) {
	fitsC := bothNegative(lackC, int64(in)-p.barredC)
	fitsP := bothNegative(lackP, int64(in)-int64(Red))
	takeP = cost & fitsP
	return takeP & fitsC, takeP, Red + Color(fitsP+fitsP&fitsC)
}

// takeEither is RFC 2697 §3 and RFC 4115 §3: a packet that does not take from C may
// take from E. A packet that takes from C keeps its color, which a token bucket also
// allows yellow ones.
func (p *Profile) takeEither(lackC, lackE, cost int64, in Color) (takeC, takeE int64, color Color) {
	fitsC := bothNegative(lackC, int64(in)-p.barredC)
	fitsE := bothNegative(lackE, int64(in)-int64(Red))
	takeC = cost & fitsC
	color = Red + Color(fitsE) // yellow if it fits E
	color ^= (color ^ in) & Color(fitsC)
	return takeC, (cost - takeC) & fitsE, color
}

// colors meters packets that share one time. colors holds their input colors, and then
// the results.
func (p *Profile) colors(s *state, now int64, lengths []int, colors []Color) {
	colors = colors[:len(lengths)]
	dt := uint64(now) - uint64(s.epoch)
	if dt >= p.horizon {
		if p.rule != nil {
			for i, n := range lengths {
				colors[i] = p.byRule(s, nil, now, n, colors[i], true)
			}
			return
		}
		dt = p.rebase(s, now)
	}
	gainedC, gainedE := int64(dt)*p.c.rate, int64(dt)*p.e.rate
	owedC, owedE := p.overflow(s.first, s.second, gainedC)
	owedC, owedE = owedC-gainedC, max(owedE-gainedE, 0)
	if p.peak {
		owedC, owedE = p.takeBothEach(owedC, owedE, lengths, colors)
	} else {
		owedC, owedE = p.takeEitherEach(owedC, owedE, lengths, colors)
	}
	s.first, s.second = owedC+gainedC, owedE+gainedE
}

// takeBothEach and takeEitherEach are the loops of colors, with nothing gained. They are
// functions of their own so that all of their state is in registers.

func (p *Profile) takeBothEach(owedC, owedP int64, lengths []int, colors []Color) (c, e int64) {
	colors = colors[:len(lengths)]
	for i, n := range lengths {
		cost := p.cost(n)
		takeC, takeP, color := p.takeBoth(owedC+(cost-p.c.tooLarge), owedP+(cost-p.e.tooLarge), cost, colors[i])
		owedC += takeC
		owedP += takeP
		colors[i] = color
	}
	return owedC, owedP
}

func (p *Profile) takeEitherEach(owedC, owedE int64, lengths []int, colors []Color) (c, e int64) {
	colors = colors[:len(lengths)]
	for i, n := range lengths {
		cost := p.cost(n)
		takeC, takeE, color := p.takeEither(owedC+(cost-p.c.tooLarge), owedE+(cost-p.e.tooLarge), cost, colors[i])
		owedC += takeC
		owedE += takeE
		colors[i] = color
	}
	return owedC, owedE
}

// rebase moves the epoch to now. If now is earlier than the epoch it changes nothing: no
// time has passed. It returns the ns from the epoch to now.
func (p *Profile) rebase(s *state, now int64) uint64 {
	switch {
	case s.epoch == notBegun:
		s.epoch = max(now, earliest)
	case now > s.epoch:
		dt := uint64(now) - uint64(s.epoch)
		gainedC, gainedE := gained(dt, p.c.rate), gained(dt, p.e.rate)
		owedC, owedE := p.overflow(s.first, s.second, gainedC)
		s.first, s.second = owedC-gainedC, max(owedE-gainedE, 0)
		s.epoch = now
	}
	return 0
}

// gained returns the units that arrive in dt ns, but no more than fill any bucket.
func gained(dt uint64, rate int64) int64 {
	hi, lo := bits.Mul64(dt, uint64(rate))
	if hi != 0 || lo > 2*maxGained {
		return 2 * maxGained
	}
	return int64(lo)
}
