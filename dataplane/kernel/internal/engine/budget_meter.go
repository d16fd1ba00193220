package engine

import (
	"math"
	"runtime"
	"sync/atomic"

	"github.com/a-seed-32e5a53f/shaper/bpf"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// BudgetMeter meters packets of this process against a budget of the host. It is
// bpf/src/bucket.h in Go, on memory shared with the kernel's programs. Operations that
// need the lock run in an eBPF program. A BudgetMeter must not be used concurrently.
type BudgetMeter struct {
	Budget      *bpf.ShaperBudget // shared memory, written by other CPUs
	Budgets     *Budgets          // owns the memory, and the programs
	slot        uint32
	clockOffset int64 // packet clock minus kernel clock, ns

	profile bpf.ShaperProfile // copy of the budget's profile
	version uint32            // of profile
	run     testRun
}

// maxSwaps is the number of attempts to swap a word swapped by other CPUs at the same time. They
// take less time than one run of the program, which takes microseconds.
const maxSwaps = 64

// Meter returns a meter for the budget in a slot. clockOffset is the packet clock minus the kernel
// clock, ns.
func (b *Budgets) Meter(slot uint32, clockOffset int64) *BudgetMeter {
	m := &BudgetMeter{Budget: &b.memory.Values[slot], Budgets: b, slot: slot, clockOffset: clockOffset}
	m.version = atomic.LoadUint32(&m.Budget.Version) - 1 // no profile read yet
	return m
}

// refreshProfile reads the parameters again if they have changed. It returns false if they
// are changing right now.
func (m *BudgetMeter) refreshProfile() bool {
	version := atomic.LoadUint32(&m.Budget.Version)
	if version == m.version {
		return true
	}
	m.profile = m.Budget.Profile
	if atomic.LoadUint32(&m.Budget.Version) != version { // the copy may be half old, half new
		return false
	}
	m.version = version
	return true
}

// Color implements pipeline.Shared, as meter.Meter.Color.
func (m *BudgetMeter) Color(now int64, n int, in meter.Color) meter.Color {
	if in >= meter.Red || n < 0 {
		return meter.Red
	}
	now -= m.clockOffset
	bytes := uint32(min(uint64(n), math.MaxUint32))
	if !m.refreshProfile() || m.profile.Window > 0 {
		return meter.Color(m.ColorByProgram(uint64(now), bytes, in))
	}
	p := &m.profile
	first := int(p.Peak)
	cost := int64(Fills)
	if p.Peak != 0 || uint8(in) <= p.Limit {
		cost = m.cost(first, bytes)
	}
	fits, spill, ok := m.draw(first, uint64(now), cost, 0)
	if !ok { // no word was written
		return meter.Color(m.ColorByProgram(uint64(now), bytes, in))
	}
	if p.Peak != 0 {
		if !fits {
			return meter.Red
		}
		if in != meter.Green {
			return meter.Yellow
		}
	} else {
		if p.Excess == 0 || fits && spill == 0 {
			if fits {
				return in
			}
			if p.Excess == 0 {
				return meter.Red
			}
		}
		if fits {
			bytes = 0
		}
	}
	secondFits := m.drawSecond(1-first, uint64(now), bytes, spill)
	switch {
	case p.Peak != 0 && secondFits:
		return meter.Green
	case p.Peak != 0:
		return meter.Yellow
	case fits:
		return in
	case secondFits:
		return meter.Yellow
	}
	return meter.Red
}

// cost returns the cost of n bytes, in units of bucket i.
func (m *BudgetMeter) cost(i int, n uint32) int64 {
	b := &m.profile.Buckets[i]
	return int64(min(uint64(n), b.Over) * b.Den)
}

// draw adds a credit to bucket i and then takes a cost, if the bucket holds as much. spill is the
// overflow of a coupled bucket. All amounts are in units of the bucket. ok is false if the
// operation needs the lock; then nothing was written.
func (m *BudgetMeter) draw(i int, now uint64, cost, credit int64) (fits bool, spill int64, ok bool) {
	b := &m.profile.Buckets[i]
	shared := &m.Budget.Word[i]
	v := now * b.Num
	for range maxSwaps {
		word := atomic.LoadUint64(shared)
		if word&Closed != 0 || atomic.LoadUint32(&m.Budget.Version) != m.version ||
			now-atomic.LoadUint64(&m.Budget.Stamp) >= m.profile.Horizon {
			return false, 0, false
		}
		holds := int64(v - word)
		spill = 0
		if holds > b.Size {
			if i == 0 && m.profile.Coupled != 0 {
				spill = holds - b.Size
			}
			holds = b.Size
		}
		holds = min(holds+credit, b.Size)
		fits = holds >= cost
		if !fits && credit == 0 && spill == 0 {
			return false, 0, true
		}
		next := v - uint64(holds)
		if fits {
			next += uint64(cost)
		}
		if atomic.CompareAndSwapUint64(shared, word, next) {
			return fits, spill, true
		}
	}
	return false, 0, false
}

// drawSecond draws n bytes from bucket i, after the word of the other bucket was written.
func (m *BudgetMeter) drawSecond(i int, now uint64, n uint32, credit int64) bool {
	cost := int64(0)
	if n > 0 {
		cost = m.cost(i, n)
	}
	fits, _, ok := m.draw(i, now, cost, credit)
	if ok {
		return fits
	}
	r := &m.run
	r.Mark, r.Priority = uint32(credit), uint32(uint64(credit)>>32)
	r.Cb = [5]uint32{m.slot<<1 | uint32(i), uint32(now), uint32(now >> 32), n, m.version}
	code, err := r.Run(m.Budgets.loaded[1].Programs[bpf.BudgetProgShaperDraw].FD())
	return err == nil && code == 1
}

// Refund implements pipeline.Shared, as meter.Meter.Refund.
func (m *BudgetMeter) Refund(c meter.Charge) {
	if c.Color >= meter.Red {
		return
	}
	r := &m.run
	now := uint64(c.At - m.clockOffset)
	r.Cb = [5]uint32{m.slot, uint32(now), uint32(now >> 32), uint32(c.N), uint32(c.Color)}
	_, _ = r.Run(m.Budgets.loaded[2].Programs[bpf.BudgetProgShaperRefund].FD()) // a failure costs tokens only
}

// ColorByProgram meters a packet by an eBPF program. It returns Red if the program fails.
func (m *BudgetMeter) ColorByProgram(now uint64, n uint32, in meter.Color) meter.Color {
	r := &m.run
	r.Cb = [5]uint32{m.slot, uint32(now), uint32(now >> 32), n, uint32(in)}
	code, err := r.Run(m.Budgets.loaded[0].Programs[bpf.BudgetProgShaperColor].FD())
	if err != nil {
		return meter.Red
	}
	return meter.Color(code)
}

// Tokens implements pipeline.Shared, as meter.Meter.Tokens.
func (m *BudgetMeter) Tokens(now int64) (tc, te int64) {
	b := m.Budget
	for !m.refreshProfile() { // a change takes microseconds
		runtime.Gosched()
	}
	state := bpf.ShaperState{Stamp: atomic.LoadUint64(&b.Stamp)}
	for i := range state.Word {
		state.Word[i] = atomic.LoadUint64(&b.Word[i])
	}
	return LevelsAt(&state, &m.profile, uint64(now-m.clockOffset)).Tokens(&m.profile)
}
