package meter

import (
	"math"
	"math/big"
	"time"
)

// slowCounter is a sliding window counter. It counts bytes by window.
type slowCounter struct {
	limit, length int64
	carried       int64       // bytes taken before the first packet
	packets       []slowTaken // by window
	now           int64       // time of the latest packet
	begun         bool
}

// slowTaken is the bytes that a packet took.
type slowTaken struct {
	at *big.Int // window, slot or ns
	n  int64
}

// leftAt returns the exact number of bytes that fit at now. It may be negative.
func (w *slowCounter) leftAt(now int64) *big.Rat {
	at := windowOf(now, w.length)
	left := ratOf(w.limit)
	begin := new(big.Int).Mul(at, big.NewInt(w.length))
	f := new(big.Int).Sub(big.NewInt(now), begin)
	inView := new(big.Rat).SetFrac(new(big.Int).Sub(big.NewInt(w.length), f), big.NewInt(w.length))
	for _, p := range w.packets {
		switch windows := new(big.Int).Sub(at, p.at); {
		case windows.Sign() == 0:
			left.Sub(left, ratOf(p.n))
		case windows.Cmp(big.NewInt(1)) == 0:
			left.Sub(left, new(big.Rat).Mul(ratOf(p.n), inView))
		}
	}
	return left
}

func (w *slowCounter) color(now int64, n int, in Color) Color {
	at := windowOf(now, w.length)
	if !w.begun {
		w.packets = append(w.packets, slowTaken{at, w.carried})
	}
	w.now, w.begun = now, true
	for len(w.packets) > 0 && new(big.Int).Sub(at, w.packets[0].at).Cmp(big.NewInt(1)) > 0 {
		w.packets = w.packets[1:] // outside the window
	}
	if in == Red || n < 0 || ratOf(int64(n)).Cmp(w.leftAt(now)) > 0 {
		return Red
	}
	w.packets = append(w.packets, slowTaken{at, int64(n)})
	return in
}

func (w *slowCounter) tokens() (tc, te int64) {
	return max(floorOf(w.leftAt(w.now)), 0), 0
}

func (w *slowCounter) isIdle(now int64) bool {
	if !w.begun {
		return w.carried == 0
	}
	at := windowOf(now, w.length)
	for _, p := range w.packets {
		if p.n > 0 && new(big.Int).Sub(at, p.at).Cmp(big.NewInt(1)) <= 0 {
			return false
		}
	}
	return true
}

// slowLog is a sliding window in slots, or a sliding log: slots of a ns, with a bound on the
// entries.
type slowLog struct {
	limit, slot, length int64
	entries             int   // 0 means no bound
	first               int64 // bytes taken before the first packet
	packets             []slowTaken
	now                 *big.Int
}

func (w *slowLog) inView(at *big.Int) (used int64, entries int, here bool) {
	var last *big.Int
	for _, p := range w.packets {
		if p.n == 0 || new(big.Int).Sub(at, p.at).Cmp(big.NewInt(w.length)) >= 0 {
			continue
		}
		used += p.n
		if last == nil || last.Cmp(p.at) != 0 {
			entries++
		}
		last = p.at
	}
	return used, entries, last != nil && last.Cmp(at) == 0
}

func (w *slowLog) color(now int64, n int, in Color) Color {
	at := windowOf(now, w.slot)
	if w.now == nil {
		w.packets = append(w.packets, slowTaken{at, w.first})
	}
	w.now = at
	used, entries, here := w.inView(at)
	room := w.entries == 0 || n == 0 || here || entries < w.entries
	if in == Red || n < 0 || int64(n) > w.limit-used || !room {
		return Red
	}
	w.packets = append(w.packets, slowTaken{at, int64(n)})
	return in
}

func (w *slowLog) tokens() (tc, te int64) {
	used, entries, here := w.inView(w.now)
	if w.entries > 0 && !here && entries == w.entries {
		return 0, 0
	}
	return w.limit - used, 0
}

func (w *slowLog) isIdle(now int64) bool {
	if w.now == nil {
		return w.first == 0
	}
	used, _, _ := w.inView(windowOf(now, w.slot))
	return used == 0
}

// slowTSW is RFC 2859 in the integers that METERS.md defines.
type slowTSW struct {
	average, committed, peak *big.Int
	window                   *big.Int
	last                     *big.Int
	seed, drawn              uint64
	now                      int64 // time of the latest packet of any color
}

func newSlowTSW(t TSWTCM) *slowTSW {
	units := func(r Rate) *big.Int {
		a := rational(r)
		a.Mul(a, ratOf(int64(t.Window/time.Nanosecond))).Mul(a, ratOf(65536))
		return new(big.Int).Quo(a.Num(), a.Denom())
	}
	return &slowTSW{
		average: new(big.Int), committed: units(t.CIR), peak: units(t.PIR),
		window: big.NewInt(int64(t.Window)), seed: t.Seed,
	}
}

func (s *slowTSW) color(now int64, n int, in Color) Color {
	if in == Red || n < 0 { // not counted, and does not begin the clock
		s.now = now
		return Red
	}
	if s.last == nil {
		s.last = big.NewInt(now)
	}
	s.now = now
	span := pauseNS(s.last, now)
	span.Add(span, s.window)
	sum := new(big.Int).Mul(big.NewInt(int64(n)), big.NewInt(65536))
	sum.Add(sum, s.average).Mul(sum, s.window)
	s.average, s.last = sum.Quo(sum, span), big.NewInt(now)
	if s.average.Cmp(s.committed) <= 0 {
		return in
	}
	s.drawn++
	z := s.seed + s.drawn*0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	z ^= z >> 31
	drawn := new(big.Int).Mul(new(big.Int).SetUint64(z>>32), s.average)
	over := func(target *big.Int) bool {
		share := new(big.Int).Sub(s.average, target)
		return s.average.Cmp(target) > 0 && drawn.Cmp(share.Lsh(share, 32)) < 0
	}
	switch {
	case over(s.peak):
		return Red
	case over(s.committed):
		return max(in, Yellow)
	}
	return in
}

// pauseNS returns the ns for which an average decays, at most an int64.
func pauseNS(from *big.Int, to int64) *big.Int {
	span := new(big.Int).Sub(big.NewInt(to), from)
	if most := big.NewInt(math.MaxInt64); span.Cmp(most) > 0 {
		return most
	}
	return span
}

func (s *slowTSW) tokens() (tc, te int64) {
	span := new(big.Int)
	if s.last != nil {
		span = pauseNS(s.last, s.now)
	}
	average := new(big.Int).Mul(s.average, s.window)
	average.Quo(average, span.Add(span, s.window))
	left := func(target *big.Int) int64 {
		d := new(big.Int).Sub(target, average)
		if d.Sign() < 0 {
			return 0
		}
		return d.Rsh(d, 16).Int64()
	}
	return left(s.committed), left(s.peak)
}

func (s *slowTSW) isIdle(int64) bool { return false }
