package kernel

import (
	"math/bits"

	"github.com/a-seed-32e5a53f/shaper/bpf"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// Constants of bpf/src/bucket.h, which describes states.
const (
	closed   = 1       // bit of a word: locked
	notBegun = 1 << 63 // stamp of a meter before its first packet
)

// levels are the levels of a meter's buckets, in the units of its bpf.ShaperProfile. For a
// window, the first is the unused part of its limit, in bytes.
type levels [2]int64

// initialLevels returns the levels of a new meter.
func initialLevels(s *dataplane.PlanStage, p *bpf.ShaperProfile) levels {
	var l levels
	for i, b := range p.Buckets {
		l[i] = s.Initial.Of(b.Size/int64(b.Den)) * int64(b.Den)
	}
	return l
}

// unstartedState returns the state with these levels of a meter whose clock starts at its
// first packet.
func (l levels) unstartedState(p *bpf.ShaperProfile) bpf.ShaperState {
	if p.Window > 0 {
		return bpf.ShaperState{Word: [2]uint64{uint64(p.Buckets[0].Size - l[0])}, Stamp: notBegun}
	}
	return bpf.ShaperState{Word: [2]uint64{uint64(-l[0]) | closed, uint64(-l[1]) | closed}, Stamp: notBegun}
}

// state returns the state of a meter with these levels at now (ns of CLOCK_MONOTONIC).
func (l levels) state(now uint64, p *bpf.ShaperProfile) bpf.ShaperState {
	if p.Window > 0 {
		return bpf.ShaperState{Word: [2]uint64{uint64(p.Buckets[0].Size - l[0])}, Stamp: now - now%p.Window}
	}
	state := bpf.ShaperState{Stamp: now}
	for i, b := range p.Buckets {
		state.Word[i] = now*b.Num - uint64(l[i])
	}
	return state
}

// levelsAt returns the levels of a state at now (ns of CLOCK_MONOTONIC), as advance_words in
// bpf/src/bucket.h computes them.
func levelsAt(state *bpf.ShaperState, p *bpf.ShaperProfile, now uint64) levels {
	if p.Window > 0 {
		return windowLevelsAt(state, p, now)
	}
	var l levels
	if state.Stamp == notBegun {
		for i, w := range state.Word {
			l[i] = -int64(w &^ closed)
		}
		return l
	}
	dt := uint64(0)
	if int64(now) > int64(state.Stamp) {
		dt = now - state.Stamp
	}
	for i, b := range p.Buckets {
		l[i] = int64(state.Stamp*b.Num - state.Word[i]&^closed)
		if dt >= b.Full {
			l[i] = fills
		} else {
			l[i] += int64(dt * b.Num)
		}
	}
	over := l[0] - p.Buckets[0].Size
	l[1] = min(l[1], p.Buckets[1].Size)
	if over > 0 {
		l[0] = p.Buckets[0].Size
		if p.Coupled != 0 {
			l[1] = min(l[1]+over, p.Buckets[1].Size)
		}
	}
	return l
}

// windowLevelsAt is levelsAt for a window, as window_color in bpf/src/bucket.h.
func windowLevelsAt(state *bpf.ShaperState, p *bpf.ShaperProfile, now uint64) levels {
	limit, count, before, since := p.Buckets[0].Size, int64(state.Word[0]), state.Word[1], now-state.Stamp
	view := p.Window
	switch {
	case state.Stamp == notBegun || int64(since) <= 0:
	case since < p.Window:
		view -= since
	case p.Sliding != 0 && since < 2*p.Window:
		count, before = 0, uint64(count)
		view = 2*p.Window - since
	default:
		count, before = 0, 0
	}
	hi, lo := bits.Mul64(before, view)
	counts, rest := bits.Div64(hi, lo, p.Window)
	if rest > 0 {
		counts++
	}
	return levels{max(limit-count-int64(counts), 0)}
}

// tokens returns the levels in whole bytes or packets, rounded down; at least 0.
func (l levels) tokens(p *bpf.ShaperProfile) (tc, te int64) {
	return max(l[0], 0) / int64(p.Buckets[0].Den), max(l[1], 0) / int64(p.Buckets[1].Den)
}

// convert converts levels of one profile to those of another, capped at its bursts and
// rounded down to its units.
func (l levels) convert(from, to *bpf.ShaperProfile) levels {
	var out levels
	for i, b := range to.Buckets {
		den := from.Buckets[i].Den
		hi, lo := bits.Mul64(uint64(max(l[i], 0)), b.Den)
		if hi >= den {
			out[i] = b.Size // the quotient is above 2^64
			continue
		}
		units, _ := bits.Div64(hi, lo, den)
		out[i] = int64(min(units, uint64(b.Size)))
		if to.Window == 0 {
			out[i] &^= halves - 1
		}
	}
	return out
}
