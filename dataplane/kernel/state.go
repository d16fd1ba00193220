package kernel

import (
	"fmt"
	"math/bits"

	"github.com/cilium/ebpf"

	"github.com/a-seed-32e5a53f/shaper/bpf"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// bpf/src/meter.h has these, too, and says what a state is.
const (
	closed   = 1
	notBegun = 1 << 63
)

// levels are what the buckets of a meter hold, in halves of its profile's
// units; of a window the first is what is left of its limit, in bytes.
type levels [2]int64

// initial are the levels that a meter begins with.
func initial(m *dataplane.Meter, s *bpf.ShaperStage) levels {
	var l levels
	for i, b := range s.Buckets {
		l[i] = m.Initial.Of(b.Size/int64(b.Den)) * int64(b.Den)
	}
	return l
}

// waiting is the state of a meter whose clock begins with its first packet.
func (l levels) waiting(s *bpf.ShaperStage) bpf.ShaperState {
	if s.Window > 0 {
		return bpf.ShaperState{Word: [2]uint64{uint64(s.Buckets[0].Size - l[0])}, Stamp: notBegun}
	}
	return bpf.ShaperState{Word: [2]uint64{uint64(-l[0]) | closed, uint64(-l[1]) | closed}, Stamp: notBegun}
}

// at is the state of a meter that has these levels now.
func (l levels) at(now uint64, s *bpf.ShaperStage) bpf.ShaperState {
	if s.Window > 0 {
		return bpf.ShaperState{Word: [2]uint64{uint64(s.Buckets[0].Size - l[0])}, Stamp: now - now%s.Window}
	}
	state := bpf.ShaperState{Stamp: now}
	for i, b := range s.Buckets {
		state.Word[i] = now*b.Num - uint64(l[i])
	}
	return state
}

// levelsAt reads a state, as exclusive in bpf/src/meter.h does.
func levelsAt(state *bpf.ShaperState, s *bpf.ShaperStage, now uint64) levels {
	if s.Window > 0 {
		return leftAt(state, s, now)
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
	for i, b := range s.Buckets {
		l[i] = int64(state.Stamp*b.Num - state.Word[i]&^closed)
		if dt >= b.Full {
			l[i] = fills
		} else {
			l[i] += int64(dt * b.Num)
		}
	}
	over := l[0] - s.Buckets[0].Size
	l[1] = min(l[1], s.Buckets[1].Size)
	if over > 0 {
		l[0] = s.Buckets[0].Size
		if s.Coupled != 0 {
			l[1] = min(l[1]+over, s.Buckets[1].Size)
		}
	}
	return l
}

// leftAt reads a state of a window, as counted in bpf/src/meter.h does.
func leftAt(state *bpf.ShaperState, s *bpf.ShaperStage, now uint64) levels {
	limit, count, before, since := s.Buckets[0].Size, int64(state.Word[0]), state.Word[1], now-state.Stamp
	view := s.Window
	switch {
	case state.Stamp == notBegun || int64(since) <= 0:
	case since < s.Window:
		view -= since
	case s.Sliding != 0 && since < 2*s.Window:
		count, before = 0, uint64(count)
		view = 2*s.Window - since
	default:
		count, before = 0, 0
	}
	hi, lo := bits.Mul64(before, view)
	counts, rest := bits.Div64(hi, lo, s.Window)
	if rest > 0 {
		counts++
	}
	return levels{max(limit-count-int64(counts), 0)}
}

// tokens are whole bytes, rounded down.
func (l levels) tokens(s *bpf.ShaperStage) (tc, te int64) {
	return max(l[0], 0) / int64(s.Buckets[0].Den), max(l[1], 0) / int64(s.Buckets[1].Den)
}

// carry gives the levels of one profile to another, cut to its bursts. What
// its units cannot express is rounded down.
func (l levels) carry(from, to *bpf.ShaperStage) levels {
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

// begin makes the maps that depend on the policy, and writes the states of all
// meters, whose clocks wait for a packet.
func (g *image) begin(to *shared) (err error) {
	if err := to.grow(g); err != nil {
		return err
	}
	for i := range g.stages {
		s := &g.stages[i]
		if err := to.states.Put(s.Slot, initial(g.meters[i], s).waiting(s)); err != nil {
			return fmt.Errorf("states: %w", err)
		}
	}
	if err := g.settleTables(&About{}, to); err != nil {
		return err
	}
	to.waiting.Close()
	to.waiting, err = g.newRings()
	return err
}

// held reads what a meter holds now.
func held(states *ebpf.Map, s *bpf.ShaperStage, now uint64) (levels, error) {
	var state bpf.ShaperState
	if err := states.LookupWithFlags(s.Slot, &state, ebpf.LookupLock); err != nil {
		return levels{}, fmt.Errorf("states: %w", err)
	}
	return levelsAt(&state, s, now), nil
}

// tokens reads what a meter holds now, in whole bytes.
func tokens(states *ebpf.Map, s *bpf.ShaperStage, now uint64) (tc, te int64, err error) {
	l, err := held(states, s, now)
	tc, te = l.tokens(s)
	return tc, te, err
}
