package queue

import (
	"cmp"
	"math/big"
	"slices"
	"time"

	"github.com/a-seed-32e5a53f/shaper/meter"
)

// The rules again, exact and without regard to speed.

func whole(n int64) *big.Rat { return new(big.Rat).SetInt64(n) }

// ceil rounds a time up to whole ns.
func ceil(r *big.Rat) int64 {
	n := new(big.Int).Add(r.Num(), new(big.Int).Sub(r.Denom(), big.NewInt(1)))
	return n.Div(n, r.Denom()).Int64()
}

// sendTime is the time in ns that a rate takes to send a packet.
func sendTime(r meter.Rate, bytes int64) *big.Rat {
	t := whole(bytes)
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

// model is a model of Leaky.
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
	depart, delay := ceil(start), int64(m.delay(now))
	packets, bytes := 0, int64(0)
	for _, d := range m.admitted {
		if d.at > now {
			packets++
			bytes += d.bytes
		}
	}
	switch {
	case m.Time > 0 && delay > int64(m.Time),
		m.Bytes > 0 && bytes+int64(p.Bytes) > m.Bytes,
		m.Bytes+m.Packets > 0 && packets+1 > m.capacity():
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
	m.admitted = append(m.admitted, departure{depart, int64(p.Bytes)})
	m.next = new(big.Rat).Add(start, sendTime(m.Rate, int64(p.Bytes)))
	return depart, f
}

// modelLink is a model of Link whose values are packet numbers.
type modelLink struct {
	rate    meter.Rate
	free    *big.Rat
	queues  []*modelShare
	levels  [MaxPriority + 1]modelLevel
	busy    *modelLevel // level of the packet sent last
	decided []Decision[int]
}

// modelLevel has the virtual time of WF2Q+, in units of 1/2^20 byte.
type modelLevel struct {
	queues       []*modelShare
	time, latest int64
	bytes        int64 // being sent
}

// modelShare is a queue with the packets of all flows in one list.
type modelShare struct {
	modelEarly
	LinkQueue
	level        *modelLevel
	start        int64
	backlog      []modelQueued
	begun, older []*modelFlow
	flows        map[uint16]*modelFlow
	chosen       *modelFlow
}

type modelFlow struct {
	number  uint16
	deficit int
	early   modelEarly
}

type modelQueued struct {
	Packet
	arrived int64
	fate    Fate
	value   int
}

func newModelLink(rate meter.Rate, shares []LinkQueue) *modelLink {
	m := &modelLink{rate: rate}
	for _, s := range shares {
		q := &modelShare{modelEarly: newModelEarly(s.Config), LinkQueue: s}
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
		q.flows = map[uint16]*modelFlow{}
		q.level = &m.levels[s.Priority]
		q.level.queues = append(q.level.queues, q)
		m.queues = append(m.queues, q)
	}
	return m
}

// packetsOf returns the queued packets of a flow.
func (q *modelShare) packetsOf(f *modelFlow) (list []modelQueued) {
	for _, w := range q.backlog {
		if !q.Fair || w.Flow == f.number {
			list = append(list, w)
		}
	}
	return list
}

func total(list []modelQueued) (n int64) {
	for _, w := range list {
		n += int64(w.Bytes)
	}
	return n
}

func (q *modelShare) bytes() int64 { return total(q.backlog) }

// flow returns the flow of a packet.
func (q *modelShare) flow(p Packet) *modelFlow {
	n := p.Flow
	if !q.Fair {
		n = 0
	}
	if q.flows[n] == nil {
		q.flows[n] = &modelFlow{number: n, early: newModelEarly(q.modelEarly.Config)}
	}
	return q.flows[n]
}

// remove removes the first packet of a flow.
func (q *modelShare) remove(f *modelFlow) modelQueued {
	i := slices.IndexFunc(q.backlog, func(w modelQueued) bool { return !q.Fair || w.Flow == f.number })
	w := q.backlog[i]
	q.backlog = slices.Delete(q.backlog, i, i+1)
	if q.chosen == f && len(q.packetsOf(f)) == 0 {
		q.chosen = nil
	}
	return w
}

// next returns the flow to serve, by RFC 8290 §4.2.
func (q *modelShare) next() *modelFlow {
	for q.chosen == nil {
		list := &q.begun
		if len(*list) == 0 {
			list = &q.older
		}
		f := (*list)[0]
		if f.deficit <= 0 {
			f.deficit += 1514
			*list = (*list)[1:]
			q.older = append(q.older, f)
			continue
		}
		if len(q.packetsOf(f)) > 0 {
			q.chosen = f
			break
		}
		*list = (*list)[1:]
		if list == &q.begun {
			q.older = append(q.older, f)
		}
	}
	return q.chosen
}

// backlog is the number of queued packets.
func (m *modelLink) backlog() (n int) {
	for _, q := range m.queues {
		n += len(q.backlog)
	}
	return n
}

// until makes all selections of times up to now, or of all times.
func (m *modelLink) until(now int64, all bool) {
	for m.free != nil && (all || m.free.Cmp(whole(now)) <= 0) {
		if m.busy != nil {
			weights := int64(0)
			for _, q := range m.busy.queues {
				weights += int64(q.Weight)
			}
			m.busy.time += m.busy.bytes << 20 / weights
			m.busy = nil
		}
		if m.backlog() == 0 {
			return
		}
		m.choose()
	}
}

func (q *modelShare) finish() int64 {
	return q.start + int64(q.packetsOf(q.next())[0].Bytes)<<20/int64(q.Weight)
}

func (m *modelLink) choose() {
	var ready []*modelShare
	for i := range m.levels {
		for _, q := range m.levels[i].queues {
			if len(q.backlog) > 0 {
				ready = append(ready, q)
			}
		}
		if len(ready) > 0 {
			break
		}
	}
	level := ready[0].level
	level.time = max(level.time, slices.MinFunc(ready, func(a, b *modelShare) int { return cmp.Compare(a.start, b.start) }).start)
	ready = slices.DeleteFunc(ready, func(q *modelShare) bool { return q.start > level.time })
	q := slices.MinFunc(ready, func(a, b *modelShare) int { return cmp.Compare(a.finish(), b.finish()) })
	flow, finish := q.next(), q.finish()
	w := q.remove(flow)
	depart := ceil(m.free)
	delay := depart - w.arrived
	if total(q.packetsOf(flow)) <= 1514 {
		delay = min(delay, int64(q.modelEarly.CoDel.Target)-1) // a single packet is not a queue
	}
	f := flow.early.stale(w.Packet, depart, delay, w.fate)
	if !f.Dropped() {
		q.start = finish
		level.latest = max(level.latest, finish)
		level.bytes, m.busy = int64(w.Bytes), level
		flow.deficit -= w.Bytes
		q.chosen = nil
		m.free = new(big.Rat).Add(m.free, sendTime(m.rate, int64(w.Bytes)))
	}
	m.decided = append(m.decided, Decision[int]{w.value, depart, f})
}

func (m *modelLink) admit(now int64, queue int, p Packet, value int) Fate {
	m.until(now, false)
	q := m.queues[queue]
	limit := q.modelEarly.Bytes
	over := func() bool {
		return limit > 0 && q.bytes()+int64(p.Bytes) > limit || len(q.backlog)+1 > q.capacity()
	}
	if over() && !q.Fair || limit > 0 && int64(p.Bytes) > limit {
		return Full
	}
	b := int64(len(q.backlog))
	if limit > 0 {
		b = q.bytes()
	}
	f := q.thin(p, b)
	if f.Dropped() {
		return f
	}
	empty := true
	for _, other := range q.level.queues {
		empty = empty && len(other.backlog) == 0
	}
	if empty && m.busy != q.level {
		q.level.time = max(q.level.time, q.level.latest)
	}
	if len(q.backlog) == 0 {
		q.start = max(q.start, q.level.time)
	}
	for over() {
		var most *modelFlow
		for _, f := range q.flows {
			if n, other := total(q.packetsOf(f)), int64(-1); len(q.packetsOf(f)) > 0 {
				if most != nil {
					other = total(q.packetsOf(most))
				}
				if n > other || n == other && f.number < most.number {
					most = f
				}
			}
		}
		m.decided = append(m.decided, Decision[int]{q.remove(most).value, now, Full})
	}
	if m.backlog() == 0 && (m.free == nil || m.free.Cmp(whole(now)) < 0) {
		m.free = whole(now)
	}
	if flow := q.flow(p); !slices.Contains(q.begun, flow) && !slices.Contains(q.older, flow) {
		flow.deficit = 1514
		q.begun = append(q.begun, flow)
	}
	q.backlog = append(q.backlog, modelQueued{p, now, f, value})
	m.until(now, false)
	return f
}

// due is the time of the next decision.
func (m *modelLink) due() int64 {
	if len(m.decided) > 0 {
		return m.decided[0].Depart
	}
	return ceil(m.free)
}
