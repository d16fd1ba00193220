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
// units.
type levels [2]int64

// initial are the levels that a meter begins with.
func initial(m *dataplane.Meter, s *bpf.ShaperStage) levels {
	var l levels
	for i, b := range s.Buckets {
		l[i] = m.Initial.Of(b.Size/int64(s.Den)) * int64(s.Den)
	}
	return l
}

// waiting is the state of a meter whose clock begins with its first packet.
func (l levels) waiting() bpf.ShaperState {
	return bpf.ShaperState{Word: [2]uint64{uint64(-l[0]) | closed, uint64(-l[1]) | closed}, Stamp: notBegun}
}

// at is the state of a meter that has these levels now.
func (l levels) at(now uint64, s *bpf.ShaperStage) bpf.ShaperState {
	state := bpf.ShaperState{Stamp: now}
	for i, b := range s.Buckets {
		state.Word[i] = now*b.Num - uint64(l[i])
	}
	return state
}

// levelsAt reads a state, as exclusive in bpf/src/meter.h does.
func levelsAt(state *bpf.ShaperState, s *bpf.ShaperStage, now uint64) levels {
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

// tokens are whole bytes, rounded down.
func (l levels) tokens(s *bpf.ShaperStage) (tc, te int64) {
	return max(l[0], 0) / int64(s.Den), max(l[1], 0) / int64(s.Den)
}

// carry gives the levels of one profile to another, cut to its bursts. What
// its units cannot express is rounded down.
func (l levels) carry(from, to *bpf.ShaperStage) levels {
	var out levels
	for i, b := range to.Buckets {
		hi, lo := bits.Mul64(uint64(max(l[i], 0)), to.Den)
		if hi >= from.Den {
			out[i] = b.Size // the quotient is above 2^64
			continue
		}
		units, _ := bits.Div64(hi, lo, from.Den)
		out[i] = int64(min(units, uint64(b.Size))) &^ (halves - 1)
	}
	return out
}

// begin writes the states of all meters, whose clocks wait for a packet.
func (g *image) begin(states *ebpf.Map) error {
	for i := range g.stages {
		s := &g.stages[i]
		if err := states.Put(s.Slot, initial(g.meters[i], s).waiting()); err != nil {
			return fmt.Errorf("states: %w", err)
		}
	}
	return nil
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
