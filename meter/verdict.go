package meter

import (
	"math"
	"math/bits"
)

// This file is the packet path of buckets within 64 bits each. All other meters are rules; see
// rule.go.
//
// The state of a bucket is the number of units it owes: the units missing at the epoch to be full,
// and all units taken since. Its gain since the epoch is dt * rate units, so now it is owed -
// gained units short of full. Neither time nor a red packet changes the state. Nothing is divided,
// and nothing is rounded.
//
// If a bucket owes less than it gained, it is full after an overflow. Then owed is raised to
// gained.
//
// Branches on the verdict would be mispredicted in random traffic. The compiler makes conditional
// moves of an if whose body only assigns words, so the verdict is computed by those.

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
	owedE = max(owedE, gainedE)
	roomC, roomE := p.rooms(gainedC+p.c.tooLarge, gainedE+p.e.tooLarge, in)
	var color Color
	if p.peak {
		s.first, s.second, color = takeBoth(owedC, owedE, roomC, roomE, cost)
	} else {
		s.first, s.second, color = takeEither(owedC, owedE, roomC, roomE, cost, in)
	}
	return color
}

// cost returns the cost of n bytes in units. A length above the larger burst costs as much
// as one byte above it, which keeps the product within 64 bits. A negative n is a huge
// length.
func (p *Profile) cost(n int) int64 { return int64(min(uint64(n), p.longest)) * p.den }

// overflow raises owedC to gainedC if C overflowed. With coupling, E owes the difference less.
func (p *Profile) overflow(owedC, owedE, gainedC int64) (c, e int64) {
	if owedC < gainedC {
		owedE += (owedC - gainedC) & p.coupled
		owedC = gainedC
	}
	return owedC, owedE
}

// A packet fits a bucket if it owes less than its room after the packet.

// noRoom is the room of a bucket too small for any packet.
const noRoom = math.MinInt64

// rooms takes the room from buckets closed to this input color.
func (p *Profile) rooms(roomC, roomE int64, in Color) (c, e int64) {
	if int64(in) >= p.barredC {
		roomC = noRoom
	}
	if in >= Red {
		roomE = noRoom
	}
	return roomC, roomE
}

// takeBoth and takeEither return the units owed by the buckets after a packet, and its color.

// takeBoth is RFC 2698 §3. A packet taking from C also takes from P.
func takeBoth(owedC, owedP, roomC, roomP, cost int64) (c, p int64, color Color) {
	afterC, afterP := owedC+cost, owedP+cost
	c, p = owedC, owedP
	fits, out := int64(Yellow), int64(Red)
	if afterC < roomC {
		owedC = afterC
		fits = int64(Green)
	}
	if afterP < roomP {
		c, p = owedC, afterP
		out = fits
	}
	return c, p, Color(out)
}

// takeEither is RFC 2697 §3 and RFC 4115 §3. A packet not taking from C may take from E. A packet
// taking from C keeps its color: green, or in a token bucket also yellow.
func takeEither(owedC, owedE, roomC, roomE, cost int64, in Color) (c, e int64, color Color) {
	afterC, afterE := owedC+cost, owedE+cost
	c, e = owedC, owedE
	out, kept := int64(Red), int64(in)
	if afterE < roomE {
		e = afterE
		out = int64(Yellow)
	}
	if afterC < roomC {
		c, e = afterC, owedE
		out = kept
	}
	return c, e, Color(out)
}

// colors meters packets of one time. in holds their input colors, or is nil.
func (p *Profile) colors(s *state, now int64, lengths []int, in, colors []Color) {
	colors = colors[:len(lengths):len(colors)] // panics if it is too short, even within its capacity
	if in != nil || p.rule != nil {
		inputColors(in, colors, len(lengths))
	}
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
	switch {
	case p.peak && in == nil:
		owedC, owedE = takeBothEach[blind](p, owedC, owedE, lengths, colors)
	case p.peak:
		owedC, owedE = takeBothEach[aware](p, owedC, owedE, lengths, colors)
	case in == nil:
		owedC, owedE = takeEitherEach[blind](p, owedC, owedE, lengths, colors)
	default:
		owedC, owedE = takeEitherEach[aware](p, owedC, owedE, lengths, colors)
	}
	s.first, s.second = owedC+gainedC, owedE+gainedE
}

// takeBothEach and takeEitherEach are the loops of colors, from an epoch of now. They are separate
// functions so that the compiler keeps their state in registers. A blind loop does not read the
// input colors.

func takeBothEach[M mode](p *Profile, owedC, owedP int64, lengths []int, colors []Color) (c, e int64) {
	colors = colors[:len(lengths)]
	for i := range lengths {
		roomC, roomP := p.c.tooLarge, p.e.tooLarge
		if reads[M]() {
			roomC, roomP = p.rooms(roomC, roomP, colors[i])
		}
		owedC, owedP, colors[i] = takeBoth(owedC, owedP, roomC, roomP, p.cost(lengths[i]))
	}
	return owedC, owedP
}

func takeEitherEach[M mode](p *Profile, owedC, owedE int64, lengths []int, colors []Color) (c, e int64) {
	colors = colors[:len(lengths)]
	for i := range lengths {
		in, roomC, roomE := Green, p.c.tooLarge, p.e.tooLarge
		if reads[M]() {
			in = colors[i]
			roomC, roomE = p.rooms(roomC, roomE, in)
		}
		owedC, owedE, colors[i] = takeEither(owedC, owedE, roomC, roomE, p.cost(lengths[i]), in)
	}
	return owedC, owedE
}

// mode is known when a loop is compiled.
type (
	mode  interface{ blind | aware }
	blind [0]Color
	aware [1]Color
)

// reads reports whether a loop reads the input colors.
func reads[M mode]() bool {
	var m M
	return len(m) > 0
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

// gained returns the units arriving in dt ns, limited to a number that pays any debt.
func gained(dt uint64, rate int64) int64 {
	hi, lo := bits.Mul64(dt, uint64(rate))
	if hi != 0 || lo > 2*maxGained {
		return 2 * maxGained
	}
	return int64(lo)
}
