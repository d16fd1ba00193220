package engine

import (
	"math/bits"

	"github.com/a-seed-32e5a53f/shaper/bpf"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
)

// Constants of bpf/src/bucket.h, which describes states.
const (
	Closed   = 1       // bit of a word: locked
	NotBegun = 1 << 63 // stamp of a meter before its first packet
)

// Levels are the levels of a meter's buckets, in the units of its bpf.ShaperProfile. For a
// window, the first is the unused part of its limit, in bytes.
type Levels [2]int64

// InitialLevels returns the levels of a new meter.
func InitialLevels(s *compiled.Stage, p *bpf.ShaperProfile) Levels {
	var l Levels
	for i, b := range p.Buckets {
		l[i] = s.Initial.Of(b.Size/int64(b.Den)) * int64(b.Den)
	}
	return l
}

// UnstartedState returns the state with these levels of a meter whose clock starts at its
// first packet.
func (l Levels) UnstartedState(p *bpf.ShaperProfile) bpf.ShaperState {
	if p.Window > 0 {
		return bpf.ShaperState{Word: [2]uint64{uint64(p.Buckets[0].Size - l[0])}, Stamp: NotBegun}
	}
	return bpf.ShaperState{Word: [2]uint64{uint64(-l[0]) | Closed, uint64(-l[1]) | Closed}, Stamp: NotBegun}
}

// State returns the state of a meter with these levels at now (ns of CLOCK_MONOTONIC).
func (l Levels) State(now uint64, p *bpf.ShaperProfile) bpf.ShaperState {
	if p.Window > 0 {
		return bpf.ShaperState{Word: [2]uint64{uint64(p.Buckets[0].Size - l[0])}, Stamp: now - now%p.Window}
	}
	state := bpf.ShaperState{Stamp: now}
	for i, b := range p.Buckets {
		state.Word[i] = now*b.Num - uint64(l[i])
	}
	return state
}

// LevelsAt returns the levels of a state at now (ns of CLOCK_MONOTONIC), as advance_words in
// bpf/src/bucket.h computes them.
func LevelsAt(state *bpf.ShaperState, p *bpf.ShaperProfile, now uint64) Levels {
	if p.Window > 0 {
		return windowLevelsAt(state, p, now)
	}
	var l Levels
	if state.Stamp == NotBegun {
		for i, w := range state.Word {
			l[i] = -int64(w &^ Closed)
		}
		return l
	}
	dt := uint64(0)
	if int64(now) > int64(state.Stamp) {
		dt = now - state.Stamp
	}
	for i, b := range p.Buckets {
		l[i] = int64(state.Stamp*b.Num - state.Word[i]&^Closed)
		if dt >= b.Full {
			l[i] = Fills
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

// windowLevelsAt is LevelsAt for a window, as window_color in bpf/src/bucket.h.
func windowLevelsAt(state *bpf.ShaperState, p *bpf.ShaperProfile, now uint64) Levels {
	limit, count, before, since := p.Buckets[0].Size, int64(state.Word[0]), state.Word[1], now-state.Stamp
	view := p.Window
	switch {
	case state.Stamp == NotBegun || int64(since) <= 0:
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
	return Levels{max(limit-count-int64(counts), 0)}
}

// Tokens returns the levels in whole bytes or packets, rounded down; at least 0.
func (l Levels) Tokens(p *bpf.ShaperProfile) (tc, te int64) {
	return max(l[0], 0) / int64(p.Buckets[0].Den), max(l[1], 0) / int64(p.Buckets[1].Den)
}

// Convert converts levels of one profile to those of another, capped at its bursts and
// rounded down to its units.
func (l Levels) Convert(from, to *bpf.ShaperProfile) Levels {
	var out Levels
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
			out[i] &^= Halves - 1
		}
	}
	return out
}
