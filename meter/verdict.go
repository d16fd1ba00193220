package meter

import "math/bits"

// This file is the packet path of buckets that fit 64 bits each. All other meters are
// rules; see rule.go.
//
// The state of a bucket is the number of units that it owes: the units missing at the
// epoch to be full, and all units taken since. It has gained dt * rate units since the
// epoch, so now it is owed - gained units short of full. Neither time nor a red packet
// changes the state. Nothing is divided, and nothing is rounded.
//
// If a bucket owes less than it gained, it has overflowed and is full. Then owed is raised
// to gained.
//
// Branches on the verdict would be mispredicted in random traffic. The verdict is
// therefore computed with masks: -1 is true, 0 is false.

// bothNegative returns the mask of a < 0 and b < 0.
func bothNegative(a, b int64) int64 { return (a & b) >> 63 }

// color meters one packet. log is the log of a key in a Table, or nil to use the
// profile's.
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
	overC, overE := cost-p.c.tooLarge, cost-p.e.tooLarge // negative if the packet fits the full bucket
	lackC := owedC + (overC - gainedC)
	lackE := owedE + (overE - gainedE)
	// If E owes less than it gained, it is full: then the sign of overE decides.
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

// cost returns the cost of n bytes in units. A length above the larger burst costs as much
// as one byte above it, which keeps the product within 64 bits. A negative n is a huge
// length.
func (p *Profile) cost(n int) int64 { return int64(min(uint64(n), p.longest)) * p.den }

// overflow raises owedC to gainedC if C has overflowed. With coupling, E owes that much
// less.
func (p *Profile) overflow(owedC, owedE, gainedC int64) (c, e int64) {
	if owedC < gainedC {
		owedE += (owedC - gainedC) & p.coupled
		owedC = gainedC
	}
	return owedC, owedE
}

// takeBoth and takeEither decide which buckets a packet takes units from. A lack is
// negative if the packet fits the bucket. They return the units to take from each bucket,
// and the color of the packet.

// takeBoth is RFC 2698 §3. A packet that takes from C also takes from P.
func (p *Profile) takeBoth(lackC, lackP, cost int64, in Color) (takeC, takeP int64, color Color) {
	fitsC := bothNegative(lackC, int64(in)-p.barredC)
	fitsP := bothNegative(lackP, int64(in)-int64(Red))
	takeP = cost & fitsP
	return takeP & fitsC, takeP, Red + Color(fitsP+fitsP&fitsC)
}

// takeEither is RFC 2697 §3 and RFC 4115 §3. A packet that does not take from C may take
// from E. A packet that takes from C keeps its color: green, or in a token bucket also
// yellow.
func (p *Profile) takeEither(lackC, lackE, cost int64, in Color) (takeC, takeE int64, color Color) {
	fitsC := bothNegative(lackC, int64(in)-p.barredC)
	fitsE := bothNegative(lackE, int64(in)-int64(Red))
	takeC = cost & fitsC
	color = Red + Color(fitsE)           // yellow if it fits E
	color ^= (color ^ in) & Color(fitsC) // in if it fits C
	return takeC, (cost - takeC) & fitsE, color
}

// colors meters packets that share one time. It replaces their input colors by the
// results.
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

// takeBothEach and takeEitherEach are the loops of colors, from an epoch of now. They are
// separate functions so that the compiler keeps their state in registers.

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

// rebase moves the epoch to now, unless now is earlier. It returns 0, the ns since the
// epoch.
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

// gained returns the units that arrive in dt ns, limited to a number that pays any debt.
func gained(dt uint64, rate int64) int64 {
	hi, lo := bits.Mul64(dt, uint64(rate))
	if hi != 0 || lo > 2*maxGained {
		return 2 * maxGained
	}
	return int64(lo)
}
