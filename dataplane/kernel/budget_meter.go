package kernel

import (
	"math"
	"runtime"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/a-seed-32e5a53f/shaper/bpf"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// budgetMeter meters packets of this process by a budget of the host: bpf/src/bucket.h
// in Go, on memory that the kernel's programs use, too. What takes the lock there is
// done by a program here. One goroutine at a time uses it.
type budgetMeter struct {
	budget      *bpf.ShaperBudget // in memory that other CPUs write
	maps        *memberMaps       // keeps the memory
	slot        uint32
	clockOffset int64 // ns, of the kernel's clock behind that of packets

	profile bpf.ShaperProfile // a copy of that of version
	version uint32
	run     testRun
}

// maxSwaps is how often a packet tries to swap a word that others swap, too. It costs
// less than a run of the program, which takes microseconds.
const maxSwaps = 64

func (j *memberMaps) meter(slot uint32, late int64) *budgetMeter {
	size := unsafe.Sizeof(bpf.ShaperBudget{})
	m := &budgetMeter{budget: (*bpf.ShaperBudget)(unsafe.Pointer(&j.memory[uintptr(slot)*size])), maps: j, slot: slot, clockOffset: late}
	m.version = atomic.LoadUint32(&m.budget.Version) - 1 // none
	return m
}

// refresh reads the parameters again if they have changed. It says whether they can
// be used.
func (m *budgetMeter) refreshProfile() bool {
	version := atomic.LoadUint32(&m.budget.Version)
	if version == m.version {
		return true
	}
	m.profile = m.budget.Profile
	if atomic.LoadUint32(&m.budget.Version) != version { // or they are half changed
		return false
	}
	m.version = version
	return true
}

// Color is meter.Meter.Color.
func (m *budgetMeter) Color(now int64, n int, in meter.Color) meter.Color {
	if in >= meter.Red || n < 0 {
		return meter.Red
	}
	now -= m.clockOffset
	bytes := uint32(min(n, math.MaxUint32))
	if !m.refreshProfile() || m.profile.Window > 0 {
		return meter.Color(m.colorByProgram(uint64(now), bytes, in))
	}
	p := &m.profile
	first := int(p.Peak)
	cost := int64(fills)
	if p.Peak != 0 || uint8(in) <= p.Limit {
		cost = m.cost(first, bytes)
	}
	fits, spill, ok := m.draw(first, uint64(now), cost, 0)
	if !ok { // nothing was written
		return meter.Color(m.colorByProgram(uint64(now), bytes, in))
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
	also := m.drawSecond(1-first, uint64(now), bytes, spill)
	switch {
	case p.Peak != 0 && also:
		return meter.Green
	case p.Peak != 0:
		return meter.Yellow
	case fits:
		return in
	case also:
		return meter.Yellow
	}
	return meter.Red
}

func (m *budgetMeter) cost(i int, n uint32) int64 {
	b := &m.profile.Buckets[i]
	return int64(min(uint64(n), b.Over) * b.Den)
}

// draw takes a cost from a bucket, if it holds as much after it got a credit. It is not
// ok if that takes the lock.
func (m *budgetMeter) draw(i int, now uint64, cost, credit int64) (fits bool, spill int64, ok bool) {
	b := &m.profile.Buckets[i]
	at := &m.budget.Word[i]
	v := now * b.Num
	for range maxSwaps {
		word := atomic.LoadUint64(at)
		if word&closed != 0 || atomic.LoadUint32(&m.budget.Version) != m.version || now-atomic.LoadUint64(&m.budget.Stamp) >= m.profile.Horizon {
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
		if atomic.CompareAndSwapUint64(at, word, next) {
			return fits, spill, true
		}
	}
	return false, 0, false
}

// second draws from the other bucket, after the first one has been written.
func (m *budgetMeter) drawSecond(i int, now uint64, n uint32, credit int64) bool {
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
	code, err := r.run(m.maps.loaded[1].Programs[bpf.ShareProgShaperDraw].FD())
	return err == nil && code == 1
}

// whole meters a packet by the program. What cannot be metered is red.
func (m *budgetMeter) colorByProgram(now uint64, n uint32, in meter.Color) meter.Color {
	r := &m.run
	r.Cb = [5]uint32{m.slot, uint32(now), uint32(now >> 32), n, uint32(in)}
	code, err := r.run(m.maps.loaded[0].Programs[bpf.ShareProgShaperShare].FD())
	if err != nil {
		return meter.Red
	}
	return meter.Color(code)
}

// Tokens is meter.Meter.Tokens.
func (m *budgetMeter) Tokens(now int64) (tc, te int64) {
	b := m.budget
	for !m.refreshProfile() { // for as long as a change of them takes
		runtime.Gosched()
	}
	state := bpf.ShaperState{Stamp: atomic.LoadUint64(&b.Stamp)}
	for i := range state.Word {
		state.Word[i] = atomic.LoadUint64(&b.Word[i])
	}
	return levelsAt(&state, &m.profile, uint64(now-m.clockOffset)).tokens(&m.profile)
}

// testRun is a run of a program on a packet that has no bytes of interest: what it is
// about is in its context. It allocates nothing.
type testRun struct {
	skbContext
	frame [14]byte
	attr  testRunAttr
}

// skbContext begins struct __sk_buff of linux/bpf.h.
type skbContext struct {
	_        [2]uint32
	Mark     uint32
	_        [5]uint32
	Priority uint32
	_        [3]uint32
	Cb       [5]uint32
	_        uint32
}

// testRunAttr is union bpf_attr of BPF_PROG_TEST_RUN.
type testRunAttr struct {
	program, code           uint32
	dataSize, dataSizeOut   uint32
	data, dataOut           uint64
	repeat, duration        uint32
	contextSize, contextOut uint32
	context, contextOutAt   uint64
	flags, cpu, batch, _    uint32
}

// do runs a program and returns its code.
func (r *testRun) run(program int) (uint32, error) {
	r.attr = testRunAttr{
		program: uint32(program), dataSize: uint32(len(r.frame)), data: uint64(uintptr(unsafe.Pointer(&r.frame))), repeat: 1,
		contextSize: uint32(unsafe.Sizeof(r.skbContext)), context: uint64(uintptr(unsafe.Pointer(&r.skbContext))),
	}
	for {
		_, _, e := unix.Syscall(unix.SYS_BPF, unix.BPF_PROG_TEST_RUN, uintptr(unsafe.Pointer(&r.attr)), unsafe.Sizeof(r.attr))
		runtime.KeepAlive(r)
		switch e {
		case 0:
			return r.attr.code, nil
		case unix.EINTR, unix.EAGAIN:
		default:
			return 0, e
		}
	}
}
