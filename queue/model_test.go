package queue

import (
	"math/big"
	"time"

	"github.com/a-seed-32e5a53f/shaper/meter"
)

// The rules again, exact and without regard to speed.

func ratOf(n int64) *big.Rat { return new(big.Rat).SetInt64(n) }

// ceilOf rounds a time up to whole ns.
func ceilOf(r *big.Rat) int64 {
	n := new(big.Int).Add(r.Num(), new(big.Int).Sub(r.Denom(), big.NewInt(1)))
	return n.Div(n, r.Denom()).Int64()
}

// sendTime is the time in ns that a rate takes to send a packet.
func sendTime(r meter.Rate, bytes int64) *big.Rat {
	t := ratOf(bytes)
	return t.Mul(t, big.NewRat(int64(r.Period), r.Bytes))
}

// bytesIn is the number of whole bytes that a rate sends in a time.
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

// modelEarly is the WRED and CoDel of one queue.
type modelEarly struct {
	Config
	wred [3]*Early // nil: none
	k    int64     // number of random numbers drawn

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

func (m *modelEarly) stale(p Packet, t, delay int64, f Fate) Fate {
	if m.CoDel == (CoDel{}) {
		return f
	}
	interval, above := int64(m.CoDel.Interval), false
	if delay < int64(m.CoDel.Target) {
		m.firstAbove = nil
	} else if m.firstAbove == nil {
		m.firstAbove = new(t + interval)
	} else {
		above = t >= *m.firstAbove
	}
	// The largest whole number whose square, times the count, is at most the
	// square of the interval.
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
		m.count += onWire(p)
		m.dropNext += onWire(p) * step()
	} else {
		if d := m.count - m.last; d > 1 && t-m.dropNext < 16*interval {
			m.count = d
		} else {
			m.count = 1
		}
		m.last, m.dropping = m.count, true
		m.count += onWire(p) - 1
		m.dropNext = t + onWire(p)*step()
	}
	return m.strike(p, Stale)
}

// setCoDel changes the times of CoDel. If it was off, or is off now, it forgets all.
func (m *modelEarly) setCoDel(c CoDel) {
	if m.CoDel == (CoDel{}) || c == (CoDel{}) {
		m.firstAbove, m.dropping, m.count, m.last, m.dropNext = nil, false, 0, 0, 0
	}
	m.CoDel = c
}

// capacity is the maximum backlog in packets.
func (m *modelEarly) capacity() int {
	n := int64(MaxPackets)
	if m.Packets > 0 {
		n = min(n, m.Packets)
	}
	if m.Bytes > 0 {
		n = min(n, max(1, m.Bytes/20))
	}
	return int(n)
}

// onWire is the number of packets as which a packet leaves.
func onWire(p Packet) int64 { return max(int64(p.Segments), 1) }

// model is a model of Leaky.
type model struct {
	modelEarly
	next     *big.Rat
	admitted []departure
}

func (m *model) start(now int64) *big.Rat {
	if m.next != nil && m.next.Cmp(ratOf(now)) > 0 {
		return m.next
	}
	return ratOf(now)
}

func (m *model) delay(now int64) time.Duration { return time.Duration(ceilOf(m.start(now)) - now) }

// setRate changes the rate. If it differs, the queue is free at the next whole ns.
func (m *model) setRate(rate meter.Rate) {
	if m.next != nil && sendTime(rate, 1).Cmp(sendTime(m.Rate, 1)) != 0 {
		m.next = ratOf(ceilOf(m.next))
	}
	m.Rate = rate
}

func (m *model) admit(now int64, p Packet) (int64, Fate) {
	start := m.start(now)
	depart, delay := ceilOf(start), int64(m.delay(now))
	packets, bytes := 0, int64(0)
	for _, d := range m.admitted {
		if d.at > now {
			packets += d.packets
			bytes += d.bytes
		}
	}
	switch {
	case m.Time > 0 && delay > int64(m.Time),
		m.Bytes > 0 && bytes+int64(p.Bytes) > m.Bytes,
		m.Bytes+m.Packets > 0 && packets+int(onWire(p)) > m.capacity():
		return 0, Full
	}
	b := int64(packets)
	if m.Time > 0 {
		b = delay
	} else if m.Bytes > 0 {
		b = bytes
	}
	f := m.thin(p, b)
	if !f.Dropped() {
		f = m.stale(p, depart, delay, f)
	}
	if f.Dropped() {
		return 0, f
	}
	m.admitted = append(m.admitted, departure{depart, int64(p.Bytes), int(onWire(p))})
	m.next = new(big.Rat).Add(start, sendTime(m.Rate, int64(p.Bytes)))
	return depart, f
}
