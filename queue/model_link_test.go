package queue

import (
	"cmp"
	"math/big"
	"slices"

	"github.com/a-seed-32e5a53f/shaper/meter"
)

// modelLink is a model of Link whose values are packet numbers.
type modelLink struct {
	rate    meter.Rate
	free    *big.Rat
	queues  []*modelShare
	levels  [MaxPriority + 1]modelLevel
	busy    *modelLevel // level of the packet sent last
	decided []Decision[int]
}

// backlog is the number of queued packets.
func (m *modelLink) backlog() (n int) {
	for _, q := range m.queues {
		n += len(q.backlog)
	}
	return n
}

// advanceTo makes all selections of times up to now, or of all times.
func (m *modelLink) advanceTo(now int64, all bool) {
	for m.free != nil && (all || m.free.Cmp(ratOf(now)) <= 0) {
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
	level.time = max(level.time,
		slices.MinFunc(ready, func(a, b *modelShare) int { return cmp.Compare(a.start, b.start) }).start)
	ready = slices.DeleteFunc(ready, func(q *modelShare) bool { return q.start > level.time })
	q := slices.MinFunc(ready, func(a, b *modelShare) int { return cmp.Compare(a.finish(), b.finish()) })
	flow, finish := q.nextFlow(), q.finish()
	w := q.remove(flow)
	depart := ceilOf(m.free)
	delay := depart - w.arrived
	if totalBytes(q.packetsOf(flow)) <= 1514 {
		delay = min(delay, int64(q.modelEarly.CoDel.Target)-1) // a single packet is not a queue
	}
	f := flow.early.stale(w.Packet, depart, delay, w.fate)
	if !f.Dropped() {
		q.start = finish
		level.latest = max(level.latest, finish)
		level.bytes, m.busy = int64(w.Bytes), level
		flow.deficit -= w.Bytes
		flow.host.deficit -= w.Bytes
		flow.host.flows.chosen, q.hosts.chosen = nil, nil
		m.free = new(big.Rat).Add(m.free, sendTime(m.rate, int64(w.Bytes)))
	}
	m.decided = append(m.decided, Decision[int]{w.value, depart, f})
}

func (m *modelLink) admit(now int64, queue int, p Packet, value int) Fate {
	m.advanceTo(now, false)
	q := m.queues[queue]
	f := q.arrive(p)
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
	for q.over(p) {
		most := q.largest(q.largest(nil))
		m.decided = append(m.decided, Decision[int]{q.remove(most).value, now, Full})
	}
	if m.backlog() == 0 && (m.free == nil || m.free.Cmp(ratOf(now)) < 0) {
		m.free = ratOf(now)
	}
	q.push(modelQueued{p, now, f, value})
	m.advanceTo(now, false)
	return f
}

// due is the time of the next decision.
func (m *modelLink) due() int64 {
	if len(m.decided) > 0 {
		return m.decided[0].Depart
	}
	return ceilOf(m.free)
}

// modelLevel has the virtual time of WF2Q+, in units of 1/2^20 byte.
type modelLevel struct {
	queues       []*modelShare
	time, latest int64
	bytes        int64 // being sent
}

// modelShare is a queue with the packets of all flows in one list. All packets of a queue which is
// not fair to hosts are of host 0. All packets of a queue which is not fair are of flow 0.
type modelShare struct {
	modelEarly
	LinkQueue
	level   *modelLevel
	start   int64
	backlog []modelQueued
	known   []*modelParty // hosts and flows
	hosts   modelRound
}

// modelParty is a host or a flow.
type modelParty struct {
	number  uint16
	host    *modelParty // of a flow
	deficit int
	flows   modelRound // of a host
	early   modelEarly // of a flow
}

// modelRound is who takes turns, in two lists.
type modelRound struct {
	begun, older []*modelParty
	chosen       *modelParty
}

func (r *modelRound) enter(p *modelParty) {
	if !slices.Contains(r.begun, p) && !slices.Contains(r.older, p) {
		p.deficit = 1514
		r.begun = append(r.begun, p)
	}
}

// numbersOf returns the numbers of the host and the flow of a packet.
func (q *modelShare) numbersOf(p Packet) (host, flow uint16) {
	switch q.Fair {
	case FairNone:
		return 0, 0
	case FairFlows:
		return 0, p.Flow
	}
	return p.Host, p.Flow
}

// packetsOf returns the queued packets of a host or a flow.
func (q *modelShare) packetsOf(f *modelParty) (list []modelQueued) {
	for _, w := range q.backlog {
		if host, flow := q.numbersOf(w.Packet); f.host == nil && f.number == host ||
			f.host != nil && f.host.number == host && f.number == flow {
			list = append(list, w)
		}
	}
	return list
}

// over reports whether a packet exceeds a limit.
func (q *modelShare) over(p Packet) bool {
	limit := q.modelEarly.Bytes
	return limit > 0 && q.bytes()+int64(p.Bytes) > limit || q.packets()+onWire(p) > int64(q.capacity())
}

// arrive decides about a packet by the limit and by WRED.
func (q *modelShare) arrive(p Packet) Fate {
	limit := q.modelEarly.Bytes
	tooLarge := limit > 0 && int64(p.Bytes) > limit || onWire(p) > int64(q.capacity())
	if q.over(p) && q.Fair == FairNone || tooLarge {
		return Full
	}
	b := q.packets()
	if limit > 0 {
		b = q.bytes()
	}
	return q.thin(p, b)
}

// push adds a packet.
func (q *modelShare) push(w modelQueued) {
	flow := q.flow(w.Packet)
	q.hosts.enter(flow.host)
	flow.host.flows.enter(flow)
	q.backlog = append(q.backlog, w)
}

// largest returns the host of a queue, or the flow of a host, with the most bytes.
func (q *modelShare) largest(in *modelParty) (most *modelParty) {
	for _, p := range q.known {
		list := q.packetsOf(p)
		if p.host != in || len(list) == 0 {
			continue
		}
		if most == nil || totalBytes(list) > totalBytes(q.packetsOf(most)) ||
			totalBytes(list) == totalBytes(q.packetsOf(most)) && p.number < most.number {
			most = p
		}
	}
	return most
}

// party returns a host, or a flow of a host.
func (q *modelShare) party(host *modelParty, number uint16) *modelParty {
	for _, p := range q.known {
		if p.host == host && p.number == number {
			return p
		}
	}
	p := &modelParty{number: number, host: host, early: newModelEarly(q.modelEarly.Config)}
	q.known = append(q.known, p)
	return p
}

func (q *modelShare) bytes() int64 { return totalBytes(q.backlog) }

// packets is the backlog in packets on the wire.
func (q *modelShare) packets() (n int64) {
	for _, w := range q.backlog {
		n += onWire(w.Packet)
	}
	return n
}

// flow returns the flow of a packet.
func (q *modelShare) flow(p Packet) *modelParty {
	host, flow := q.numbersOf(p)
	return q.party(q.party(nil, host), flow)
}

// remove removes the first packet of a flow.
func (q *modelShare) remove(f *modelParty) modelQueued {
	i := slices.Index(q.backlog, q.packetsOf(f)[0])
	w := q.backlog[i]
	q.backlog = slices.Delete(q.backlog, i, i+1)
	if f.host.flows.chosen == f && len(q.packetsOf(f)) == 0 {
		f.host.flows.chosen = nil
	}
	if q.hosts.chosen == f.host && len(q.packetsOf(f.host)) == 0 {
		q.hosts.chosen = nil
	}
	return w
}

// nextFlow returns the flow to serve.
func (q *modelShare) nextFlow() *modelParty { return q.next(&q.next(&q.hosts).flows) }

// next returns the host or the flow to serve, by RFC 8290 §4.2.
func (q *modelShare) next(r *modelRound) *modelParty {
	for r.chosen == nil {
		list := &r.begun
		if len(*list) == 0 {
			list = &r.older
		}
		f := (*list)[0]
		if f.deficit <= 0 {
			f.deficit += 1514
			*list = (*list)[1:]
			r.older = append(r.older, f)
			continue
		}
		if len(q.packetsOf(f)) > 0 {
			r.chosen = f
			break
		}
		*list = (*list)[1:]
		if list == &r.begun {
			r.older = append(r.older, f)
		} else {
			f.flows = modelRound{}
		}
	}
	return r.chosen
}

func (q *modelShare) finish() int64 {
	return q.start + int64(q.packetsOf(q.nextFlow())[0].Bytes)<<20/int64(q.Weight)
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
		q := &modelShare{modelEarly: limitsOf(rate, s), LinkQueue: s}
		q.level = &m.levels[s.Priority]
		q.level.queues = append(q.level.queues, q)
		m.queues = append(m.queues, q)
	}
	return m
}

// limitsOf returns the limits of a queue of a link, in bytes or packets.
func limitsOf(rate meter.Rate, s LinkQueue) modelEarly {
	m := newModelEarly(s.Config)
	if s.Time > 0 {
		m.Time, m.Bytes = 0, bytesIn(rate, int64(s.Time))
		if s.Bytes > 0 {
			m.Bytes = min(m.Bytes, s.Bytes)
		}
		for _, e := range m.wred {
			if e != nil {
				e.Min, e.Max = bytesIn(rate, e.Min), bytesIn(rate, e.Max)
			}
		}
	}
	return m
}

// setRate changes the rate. The packet that is being sent ends at the next whole ns, if the
// rate differs.
func (m *modelLink) setRate(now int64, rate meter.Rate, shares []LinkQueue) {
	m.advanceTo(now, false)
	if m.free != nil && sendTime(rate, 1).Cmp(sendTime(m.rate, 1)) != 0 {
		m.free = ratOf(ceilOf(m.free))
	}
	m.rate = rate
	for i, q := range m.queues {
		limits := limitsOf(rate, shares[i])
		q.modelEarly.Bytes, q.wred = limits.Bytes, limits.wred
		q.modelEarly.setCoDel(shares[i].CoDel)
		for _, f := range q.known {
			f.early.setCoDel(shares[i].CoDel)
		}
	}
}

func totalBytes(list []modelQueued) (n int64) {
	for _, w := range list {
		n += int64(w.Bytes)
	}
	return n
}
