package queue

import (
	"math/big"
	"slices"
	"time"

	"github.com/a-seed-32e5a53f/shaper/meter"
)

// The rules once more: exact, and with no thought for speed.

func whole(n int64) *big.Rat { return new(big.Rat).SetInt64(n) }

// ceil is a time as a packet has it.
func ceil(r *big.Rat) int64 {
	n := new(big.Int).Add(r.Num(), new(big.Int).Sub(r.Denom(), big.NewInt(1)))
	return n.Div(n, r.Denom()).Int64()
}

// takes is how long a rate takes for a packet, in ns.
func takes(r meter.Rate, bytes int) *big.Rat {
	t := whole(int64(bytes))
	return t.Mul(t, big.NewRat(int64(r.Period), r.Bytes))
}

// bytesIn is what a rate sends in a time.
func bytesIn(r meter.Rate, ns int64) int64 {
	n := new(big.Int).Mul(big.NewInt(r.Bytes), big.NewInt(ns))
	return n.Div(n, big.NewInt(int64(r.Period))).Int64()
}

// modelRandom is the k-th random number of a seed.
func modelRandom(seed uint64, k int64) *big.Int {
	mod := new(big.Int).Lsh(big.NewInt(1), 64)
	number := func(hex string) *big.Int {
		n, _ := new(big.Int).SetString(hex, 16)
		return n
	}
	z := new(big.Int).Mul(big.NewInt(k), number("9E3779B97F4A7C15"))
	z.Mod(z.Add(z, new(big.Int).SetUint64(seed)), mod)
	shifted := func(n uint) *big.Int { return new(big.Int).Rsh(z, n) }
	z.Mod(z.Mul(z.Xor(z, shifted(30)), number("BF58476D1CE4E5B9")), mod)
	z.Mod(z.Mul(z.Xor(z, shifted(27)), number("94D049BB133111EB")), mod)
	return z.Xor(z, shifted(31))
}

// modelEarly is WRED and CoDel of one queue.
type modelEarly struct {
	Config
	wred [3]*Early // nil is none
	k    int64     // random numbers drawn

	firstAbove            *int64
	dropping              bool
	count, last, dropNext int64
}

func newModelEarly(cfg Config) modelEarly {
	m := modelEarly{Config: cfg}
	for color, e := range cfg.WRED {
		if e != (Early{}) {
			m.wred[color] = &e
		}
	}
	return m
}

func (m *modelEarly) strike(p Packet, f Fate) Fate {
	if m.ECN && p.ECN {
		return AdmitCE
	}
	return f
}

func (m *modelEarly) thin(p Packet, b int64) Fate {
	e := m.wred[p.Color]
	if e == nil || b < e.Min {
		return Admit
	}
	if b >= e.Max {
		return Thin
	}
	m.k++
	r := new(big.Rat).SetFrac(new(big.Int).Rsh(modelRandom(m.Seed, m.k), 40), big.NewInt(1<<24))
	chance := big.NewRat(b-e.Min, e.Max-e.Min)
	if r.Cmp(chance.Mul(chance, big.NewRat(int64(e.Probability), 1<<24))) < 0 {
		return m.strike(p, Thin)
	}
	return Admit
}

func (m *modelEarly) stale(p Packet, t, wait int64, f Fate) Fate {
	if m.CoDel == (CoDel{}) {
		return f
	}
	interval, above := int64(m.CoDel.Interval), false
	if wait < int64(m.CoDel.Target) {
		m.firstAbove = nil
	} else if m.firstAbove == nil {
		m.firstAbove = new(t + interval)
	} else {
		above = t >= *m.firstAbove
	}
	// The largest whole number whose square, times the count, is not above
	// that of the interval.
	step := func() int64 {
		square := new(big.Int).Mul(big.NewInt(interval), big.NewInt(interval))
		return square.Sqrt(square.Div(square, big.NewInt(m.count))).Int64()
	}
	if !above {
		m.dropping = false
		return f
	}
	if m.dropping && t < m.dropNext {
		return f
	}
	if m.dropping {
		m.count++
		m.dropNext += step()
	} else {
		if d := m.count - m.last; d > 1 && t-m.dropNext < 16*interval {
			m.count = d
		} else {
			m.count = 1
		}
		m.last, m.dropping = m.count, true
		m.dropNext = t + step()
	}
	return m.strike(p, Stale)
}

// holds is how many packets have room.
func (m *modelEarly) holds() int {
	n := int64(MaxPackets)
	if m.Packets > 0 {
		n = min(n, m.Packets)
	}
	if m.Bytes > 0 {
		n = min(n, max(1, m.Bytes/20))
	}
	return int(n)
}

// model is a Leaky.
type model struct {
	modelEarly
	next     *big.Rat
	admitted []departure
}

func (m *model) start(now int64) *big.Rat {
	if m.next != nil && m.next.Cmp(whole(now)) > 0 {
		return m.next
	}
	return whole(now)
}

func (m *model) delay(now int64) time.Duration { return time.Duration(ceil(m.start(now)) - now) }

func (m *model) admit(now int64, p Packet) (int64, Fate) {
	start := m.start(now)
	depart, wait := ceil(start), int64(m.delay(now))
	packets, bytes := 0, int64(0)
	for _, d := range m.admitted {
		if d.at > now {
			packets++
			bytes += d.bytes
		}
	}
	switch {
	case m.Time > 0 && wait > int64(m.Time),
		m.Bytes > 0 && bytes+int64(p.Bytes) > m.Bytes,
		m.Bytes+m.Packets > 0 && packets+1 > m.holds():
		return 0, Full
	}
	b := int64(packets)
	if m.Time > 0 {
		b = wait
	} else if m.Bytes > 0 {
		b = bytes
	}
	f := m.thin(p, b)
	if !f.Dropped() {
		f = m.stale(p, depart, wait, f)
	}
	if f.Dropped() {
		return 0, f
	}
	m.admitted = append(m.admitted, departure{depart, int64(p.Bytes)})
	m.next = new(big.Rat).Add(start, takes(m.Rate, p.Bytes))
	return depart, f
}

// modelLink is a Link whose values are packet numbers.
type modelLink struct {
	rate    meter.Rate
	free    *big.Rat
	queues  []*modelShare
	active  [MaxPriority + 1][]*modelShare
	decided []Decision[int]
}

type modelShare struct {
	modelEarly
	Share
	waits   []modelWaiting
	deficit int64
	fresh   bool
}

type modelWaiting struct {
	Packet
	came  int64
	fate  Fate
	value int
}

func newModelLink(rate meter.Rate, shares []Share) *modelLink {
	m := &modelLink{rate: rate}
	for _, s := range shares {
		q := &modelShare{modelEarly: newModelEarly(s.Config), Share: s}
		if s.Time > 0 {
			q.modelEarly.Time, q.modelEarly.Bytes = 0, bytesIn(rate, int64(s.Time))
			if s.Bytes > 0 {
				q.modelEarly.Bytes = min(q.modelEarly.Bytes, s.Bytes)
			}
			for _, e := range q.wred {
				if e != nil {
					e.Min, e.Max = bytesIn(rate, e.Min), bytesIn(rate, e.Max)
				}
			}
		}
		m.queues = append(m.queues, q)
	}
	return m
}

func (q *modelShare) bytes() (n int64) {
	for _, w := range q.waits {
		n += int64(w.Bytes)
	}
	return n
}

// waiting is how many packets wait.
func (m *modelLink) waiting() (n int) {
	for _, q := range m.queues {
		n += len(q.waits)
	}
	return n
}

// until makes all choices of times up to now, or of all times.
func (m *modelLink) until(now int64, all bool) {
	for m.waiting() > 0 && (all || m.free.Cmp(whole(now)) <= 0) {
		m.choose()
	}
}

func (m *modelLink) choose() {
	level := slices.IndexFunc(m.active[:], func(list []*modelShare) bool { return len(list) > 0 })
	for {
		q := m.active[level][0]
		if q.fresh {
			q.deficit += int64(q.Weight) * 1514
			q.fresh = false
		}
		w := q.waits[0]
		if q.deficit < int64(w.Bytes) {
			m.active[level] = append(m.active[level][1:], q)
			q.fresh = true
			continue
		}
		q.waits = q.waits[1:]
		depart := ceil(m.free)
		f := q.stale(w.Packet, depart, depart-w.came, w.fate)
		if !f.Dropped() {
			q.deficit -= int64(w.Bytes)
			m.free = new(big.Rat).Add(m.free, takes(m.rate, w.Bytes))
		}
		m.decided = append(m.decided, Decision[int]{w.value, depart, f})
		if len(q.waits) == 0 {
			m.active[level] = m.active[level][1:]
			q.deficit = 0
		}
		return
	}
}

func (m *modelLink) admit(now int64, queue int, p Packet, value int) Fate {
	m.until(now, false)
	q := m.queues[queue]
	limit := q.modelEarly.Bytes
	if limit > 0 && q.bytes()+int64(p.Bytes) > limit || len(q.waits)+1 > q.holds() {
		return Full
	}
	b := int64(len(q.waits))
	if limit > 0 {
		b = q.bytes()
	}
	f := q.thin(p, b)
	if f.Dropped() {
		return f
	}
	if len(q.waits) == 0 {
		q.deficit, q.fresh = 0, true
		m.active[q.Priority] = append(m.active[q.Priority], q)
	}
	if m.waiting() == 0 && (m.free == nil || m.free.Cmp(whole(now)) < 0) {
		m.free = whole(now)
	}
	q.waits = append(q.waits, modelWaiting{p, now, f, value})
	m.until(now, false)
	return f
}

// due is when the next decision is.
func (m *modelLink) due() int64 {
	if len(m.decided) > 0 {
		return m.decided[0].Depart
	}
	return ceil(m.free)
}
