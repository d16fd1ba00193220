package oracle

import (
	"math/big"
	"slices"
)

// charge records the tokens taken from a state by one packet.
type charge struct {
	state     state
	keys      *table // nil unless the state belongs to a key
	key       string // in keys
	at, cost  *big.Rat
	in, after color
}

// refundable is a state to which tokens can be returned. All others refund nothing.
type refundable interface {
	refund(now *big.Rat, c charge)
}

// refund gives back the tokens taken by a dropped packet, at a time.
func (r *row) refund(t *big.Int) {
	for _, c := range r.charges {
		if c.keys != nil {
			i := slices.IndexFunc(c.keys.known, func(e entry) bool { return e.key == c.key })
			if i < 0 {
				continue
			}
			c.state = c.keys.known[i].state
		}
		if s, ok := c.state.(refundable); ok && c.after != red {
			s.refund(new(big.Rat).SetInt(t), c)
		}
	}
	r.charges = nil
}

func (b *buckets) refund(now *big.Rat, c charge) {
	b.refill(now)
	for _, x := range b.paid(c) {
		over := x.add(c.cost)
		if x == b.c && (b.kind == "srtcm" || b.kind == "trtcm4115" && b.coupling) {
			b.e.add(over)
		}
	}
}

// paid returns the buckets from which a packet took tokens.
func (b *buckets) paid(c charge) []*bucket {
	switch {
	case b.kind == "trtcm" && c.after == green:
		return []*bucket{b.p, b.c}
	case b.kind == "trtcm":
		return []*bucket{b.p}
	case (b.kind == "srtcm" || b.kind == "trtcm4115") && c.after == yellow:
		return []*bucket{b.e}
	}
	return []*bucket{b.c}
}

// refund in an envelope loses the tokens above the burst.
func (m *member) refund(now *big.Rat, c charge) {
	m.refill(now)
	m.flow.paid(c)[0].add(c.cost)
}

// refund is no packet, so it does not end a pause: the time of the last packet stays.
func (b *warmBucket) refund(_ *big.Rat, c charge) { b.add(c.cost) }

func (w *window) refund(_ *big.Rat, c charge) {
	place := floor(new(big.Rat).Quo(c.at, new(big.Rat).SetInt(w.place)))
	i := w.at(place)
	if i < 0 {
		return
	}
	w.taken[i].tokens = new(big.Rat).Sub(w.taken[i].tokens, c.cost)
	if w.taken[i].tokens.Sign() == 0 {
		w.taken = slices.Delete(w.taken, i, i+1)
	}
}

// settle lets all links decide about packets due by the clock, and gives tokens back in the order
// of the drops. all empties the links.
func (p *policy) settle(clock *big.Int, all bool) {
	until := new(big.Rat).SetInt(clock)
	if all {
		until = nil
	}
	for _, t := range p.trees {
		t.run(until)
	}
	p.returnTokens(clock)
}

// returnTokens gives the tokens of dropped packets back, in the order of the drops.
func (p *policy) returnTokens(clock *big.Int) {
	var dropped []*queued
	for _, t := range p.trees {
		dropped = append(dropped, t.dropped...)
		t.dropped = nil
	}
	slices.SortStableFunc(dropped, func(a, b *queued) int { return a.droppedAt.Cmp(b.droppedAt) })
	for _, d := range dropped {
		t := d.droppedAt
		if t.Cmp(clock) > 0 {
			t = clock
		}
		d.refund(t)
	}
}
