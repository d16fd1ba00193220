package meter

import "sort"

// Charge records the tokens taken by one call of Color, for Refund.
type Charge struct {
	At        int64 // time of the call, ns, or the meter's latest time, if later
	N         int   // length in bytes
	In, Color Color // the input color and the result
}

// Refund gives back the tokens of a packet that was dropped after Color. Call it at most once for a
// charge. A Refund right after Color restores the tokens from before Color.
//
// A bucket gets its bytes back, up to its burst. The bytes above CBS go to the excess bucket of an
// SRTCM, and of a TRTCM4115 with Coupling, like arriving tokens. A window or a log subtracts the
// bytes where it had added them, unless they are out of view by now. The average of a TSWTCM
// includes all packets, so it does not change.
//
// A refunded packet still began the clock, and ended the pause of a warm-up.
func (m *Meter) Refund(c Charge) { m.profile.made().refund(&m.state, m.profile.log, c) }

// Refund is Meter.Refund for the meter of a key. It does nothing if the key is not in the
// table, and does not count as a use of the key.
func (t *Table[K]) Refund(key K, c Charge) {
	if _, i, known := t.find(t.hash(key), key); known {
		t.profileOf(i).refund(&t.slots[i].state, t.log(i), c)
	}
}

// Refund is Meter.Refund for a packet of a flow. What exceeds the bursts of the flow is lost.
func (e *Envelope) Refund(flow int, now int64, c Charge) {
	e.refill(now)
	if i := int(c.Color); c.Color != Red {
		e.flows[flow].add(i, int64(c.N)*e.den)
	}
}

// refund needs no time. It adds tokens at the epoch, and later ones overflow as they would
// have done.
func (p *Profile) refund(s *state, log []entry, c Charge) {
	if c.Color >= Red {
		return
	}
	switch r := p.rule.(type) {
	case nil:
		cost := p.cost(c.N)
		if fromC, fromE := p.took(c, p.e.tooLarge > 0); fromC && fromE {
			s.first, s.second = s.first-cost, s.second-cost
		} else if fromC {
			s.first -= cost
		} else {
			s.second -= cost
		}
		s.first, s.second = p.overflow(s.first, s.second, 0)
		s.second = max(s.second, 0)
	case wide:
		r.refund(p, s, log, c)
	case fixedWindow:
		r.refund(s, c)
	case slidingCounter:
		if c.At < s.epoch && uint64(s.epoch)-uint64(c.At) <= uint64(r.length) {
			s.second -= min(int64(c.N), s.second)
		} else {
			r.refund(s, c)
		}
	case slidingLog:
		r.refund(s, log, c)
	case warmUp:
		s.first = min(s.first+min(int64(c.N), r.burst)*r.unit, r.burst*r.unit)
	}
}

// took returns the buckets charged for a green or yellow packet.
func (p *Profile) took(c Charge, excess bool) (fromC, fromE bool) {
	fromC = !excess || c.Color == Green
	return fromC, excess && (p.peak || !fromC)
}

func (w *wide) refund(p *Profile, s *state, log []entry, c Charge) {
	l := w.load(*s, log)
	fromC, fromE := p.took(c, w.excess)
	back := level{min(int64(c.N), int64(p.longest)), 0}
	if fromE {
		w.e.add(&l.at[1], back)
	}
	if fromC {
		if over := w.c.add(&l.at[0], back); w.coupled {
			w.e.add(&l.at[1], over)
		}
	}
	w.store(l, s, log)
}

func (w fixedWindow) refund(s *state, c Charge) {
	if at := max(c.At, firstWindow); at >= s.epoch && uint64(at)-uint64(s.epoch) < uint64(w.length) {
		s.first -= min(int64(c.N), s.first)
	}
}

// refund removes an entry once it is empty. The entries before it move by one place.
func (w slidingLog) refund(s *state, log []entry, c Charge) {
	slot, n := w.slotOf(max(c.At, firstWindow)), int64(c.N)
	i := sort.Search(inUse(s), func(i int) bool { return log[w.at(s, i)].slot >= slot })
	if i == inUse(s) || log[w.at(s, i)].slot != slot || log[w.at(s, i)].n < n {
		return
	}
	s.first -= n
	if log[w.at(s, i)].n -= n; log[w.at(s, i)].n > 0 {
		return
	}
	for ; i > 0; i-- {
		log[w.at(s, i)] = log[w.at(s, i-1)]
	}
	s.second = int64(w.at(s, 1))<<32 | int64(inUse(s)-1)
}
