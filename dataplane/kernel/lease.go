package kernel

import (
	"fmt"
	"math/big"
	"sync"

	"github.com/cilium/ebpf"

	"github.com/a-seed-32e5a53f/shaper/bpf"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/cause"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// leases are the meters of a shaper whose budgets are on servers.
type leases struct {
	lock   sync.Mutex // of all below: whoever gives leases does not wait for who reloads
	states *ebpf.Map
	stages map[string]leasedStage // by budget
	loaded *ebpf.Collection       // what changes states; nil until it is needed
}

// leasedStage is a stage that follows a lease.
type leasedStage struct {
	slot    uint32
	kind    meter.Kind
	coupled bool
}

// follow turns to the meters of a policy, whose states are in a map. The caller has the
// lock.
func (l *leases) useStages(states *ebpf.Map, a *About) {
	if l.states != states && l.loaded != nil {
		l.loaded.Close()
		l.loaded = nil
	}
	l.states, l.stages = states, map[string]leasedStage{}
	for i := range a.Stages {
		if s := &a.Stages[i]; s.Table == storeLeased {
			o := &a.Outline.Stages[i]
			l.stages[o.BudgetName] = leasedStage{s.Slot, o.Kind, s.Profile.Coupled != 0}
		}
	}
}

func (l *leases) close() {
	l.lock.Lock()
	defer l.lock.Unlock()
	if l.loaded != nil {
		l.loaded.Close()
	}
	l.loaded, l.states, l.stages = nil, nil, nil
}

// SetLease gives the meter of a budget on a server its limits from now on: up to now
// it has had those before. Its times are those of CLOCK_MONOTONIC, in ns. Phases
// begin and end by the kernel's clock, whatever becomes of this process. Before the
// first lease nothing passes. Bursts of more than 72,057,594 tokens are cut to that if
// the meter cannot keep them exactly. It does nothing if no class leads to such a
// meter. It may be called on any goroutine.
func (s *Shaper) SetLease(budget string, lease dataplane.Lease) error {
	l := &s.leases
	l.lock.Lock()
	defer l.lock.Unlock()
	stage, ok := l.stages[budget]
	if !ok {
		return nil
	}
	if err := l.loadProgram(); err != nil {
		return err
	}
	return l.set(stage, &lease, 0)
}

// load loads the program that gives leases.
func (l *leases) loadProgram() (err error) {
	if l.loaded == nil {
		l.loaded, err = loadBudgetProgram(bpf.ShareProgShaperLease, map[string]*ebpf.Map{bpf.ShaperMapLeases: l.states})
	}
	return err
}

// set gives a stage a lease at a time (ns), 0 for now.
func (l *leases) set(stage leasedStage, lease *dataplane.Lease, now uint64) error {
	var granted bpf.ShaperLeased
	for i, limits := range lease.Limits {
		granted.Phases[i] = stage.profile(limits)
	}
	for i, until := range lease.Ends() {
		granted.Until[i] = uint64(max(until, 0))
	}
	if err := l.loaded.Maps[bpf.ShareMapGranted].Put(uint32(0), &granted); err != nil {
		return fmt.Errorf("lease: %w", cause.Of(err))
	}
	r := testRun{}
	r.Cb = [5]uint32{stage.slot, uint32(now), uint32(now >> 32)}
	code, err := r.run(l.loaded.Programs[bpf.ShareProgShaperLease].FD())
	if err == nil && code != 0 {
		err = fmt.Errorf("there is no slot %d", stage.slot)
	}
	if err != nil {
		return fmt.Errorf("lease: %w", cause.Of(err))
	}
	return nil
}

// mostTokens is the largest burst that any rate in whole bit/s has in the kernel:
// 2^59 units of 1/8,000,000,000.
const maxLeaseBurst = 1 << 59 / 8_000_000_000

// phase is the profile of limits, which lets nothing through if they are those of no
// meter.
func (s leasedStage) profile(l dataplane.Limits) bpf.ShaperProfile {
	for try := 0; ; try++ {
		p, err := l.With(s.kindParams()).Profile()
		if err != nil {
			return bpf.ShaperProfile{}
		}
		numbers, err := p.Integers()
		if err == nil {
			return encodeProfile(numbers)
		}
		if try > 0 {
			return bpf.ShaperProfile{}
		}
		for i := range l {
			l[i].Burst = min(l[i].Burst, maxLeaseBurst)
		}
	}
}

// params are those of the stage's type, without numbers.
func (s leasedStage) kindParams() dataplane.Params {
	p := s.kind.Info().Defaults
	if t, ok := p.(meter.TRTCM4115); ok {
		t.Coupling = s.coupled
		p = t
	}
	return p
}

// Asked returns the tokens that packets asked the meter of a budget on a server for, by
// the color that they got, since the budget is in the policy. It may be called on any
// goroutine.
func (s *Shaper) Asked(budget string) (asked [3]uint64, err error) {
	l := &s.leases
	l.lock.Lock()
	defer l.lock.Unlock()
	stage, ok := l.stages[budget]
	if !ok {
		return asked, nil
	}
	state, err := readLease(l.states, stage.slot)
	if err != nil {
		return asked, err
	}
	copy(asked[:], state.Asked[:])
	return asked, nil
}

func readLease(states *ebpf.Map, slot uint32) (state bpf.ShaperLeased, err error) {
	if err := states.LookupWithFlags(slot, &state, ebpf.LookupLock); err != nil {
		return state, fmt.Errorf("leases: %w", cause.Of(err))
	}
	return state, nil
}

// heldLease reads what a meter holds now that follows a lease.
func leaseLevels(states *ebpf.Map, slot uint32, now uint64) (levels, *bpf.ShaperProfile, error) {
	s, err := readLease(states, slot)
	if err != nil {
		return levels{}, nil, err
	}
	state := bpf.ShaperState{Word: s.Word, Stamp: s.Stamp}
	phase := min(s.Phase, uint32(len(s.Phases)-1))
	for ; phase < uint32(len(s.Until)) && now >= s.Until[phase]; phase++ {
		from, to := &s.Phases[phase], &s.Phases[phase+1]
		var l levels
		if from.Buckets[0].Den > 0 && to.Buckets[0].Den > 0 {
			l = levelsAt(&state, from, s.Until[phase]).convert(from, to)
		}
		state = l.state(s.Until[phase], to)
	}
	p := &s.Phases[phase]
	if p.Buckets[0].Den == 0 {
		return levels{}, blockingProfile(), nil
	}
	return levelsAt(&state, p, now), p, nil
}

// nothing is the profile of a meter that lets nothing through.
func blockingProfile() *bpf.ShaperProfile {
	return &bpf.ShaperProfile{Buckets: [2]bpf.ShaperBucket{{Den: 1}, {Den: 1}}}
}

// inheritLeases gives meters of budgets on servers their slots: those of the policy
// before if it has the budget, too.
func (g *image) inheritLeases(before *About) {
	free := slotAllocator{used: map[uint32]bool{}}
	for i := range before.Stages {
		if s := &before.Stages[i]; s.Table == storeLeased {
			free.used[s.Slot] = true
		}
	}
	for i, from := range g.from.Stages {
		s := &g.stages[i]
		switch {
		case s.Table != storeLeased:
		case from >= 0 && before.Outline.Stages[from].BudgetName == g.plan.Stages[i].BudgetName && before.Stages[from].Table == storeLeased:
			s.Slot = before.Stages[from].Slot
		default:
			s.Slot = free.allocate()
		}
	}
}

// settleLeases writes the states of meters that have had no lease, and copies those
// of others if their map was replaced.
func (g *image) populateLeases(before *About, from, to *stateMaps) error {
	old := map[uint32]bool{}
	for i := range before.Stages {
		if s := &before.Stages[i]; s.Table == storeLeased {
			old[s.Slot] = true
		}
	}
	for i := range g.stages {
		s := &g.stages[i]
		if s.Table != storeLeased {
			continue
		}
		var err error
		if old[s.Slot] {
			err = copySlot[bpf.ShaperLeased](from.leases, to.leases, s.Slot)
		} else if err = to.leases.Put(s.Slot, &bpf.ShaperLeased{Phase: uint32(len(bpf.ShaperLeased{}.Until))}); err != nil {
			err = fmt.Errorf("leases: %w", err)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Leased returns the current limits of the meter of a budget on a server, and its limits
// after the lease. Both are zero before the first lease, and if no class leads to such a
// meter. Rates are rounded down. The leases may be given by another process.
func (s *Shaper) Leased(budget string) (now, last dataplane.Limits, err error) {
	for i := range s.Stages {
		if at := &s.Stages[i]; at.Table == storeLeased && s.Outline.Stages[i].BudgetName == budget {
			return leaseLimits(s.maps.leases, at.Slot, uint64(Now()))
		}
	}
	return now, last, nil
}

// leased is Leased of a slot, at a time (ns).
func leaseLimits(states *ebpf.Map, slot uint32, at uint64) (now, last dataplane.Limits, err error) {
	state, err := readLease(states, slot)
	if err != nil {
		return now, last, err
	}
	end := uint32(len(state.Until))
	phase := min(state.Phase, end)
	for phase < end && at >= state.Until[phase] {
		phase++
	}
	return limitsOf(&state.Phases[phase]), limitsOf(&state.Phases[end]), nil
}

// limitsOf are the limits of a profile of phase.
func limitsOf(p *bpf.ShaperProfile) (out dataplane.Limits) {
	for i := range out {
		b := &p.Buckets[i]
		if b.Den == 0 {
			continue
		}
		rate := new(big.Int).Mul(new(big.Int).SetUint64(b.Num), big.NewInt(8e9)) // eighths of a token per second
		rate.Div(rate, new(big.Int).SetUint64(b.Den))
		out[i] = dataplane.Limit{Rate: rate.Int64(), Burst: b.Size / int64(b.Den)}
	}
	return out
}
