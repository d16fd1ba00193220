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

// leases are the meters of a shaper whose budgets are on servers. They have a lock of their
// own, so setting a lease does not wait for the locks of a reload.
type leases struct {
	lock   sync.Mutex             // guards all fields
	states *ebpf.Map              // the map leases
	stages map[string]leasedStage // by budget
	loaded *ebpf.Collection       // the program that sets leases; nil until it is needed
}

// leasedStage is a stage whose meter has a lease.
type leasedStage struct {
	slot    uint32
	kind    meter.Kind
	coupled bool
}

// useStages replaces the meters by those of a policy. states is the map with their states.
// The caller must hold the lock.
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

// setLease sets the lease of the meter of a budget now. It does nothing if no class uses the
// budget.
func (l *leases) setLease(budget string, lease *dataplane.Lease) error {
	l.lock.Lock()
	defer l.lock.Unlock()
	stage, ok := l.stages[budget]
	if !ok {
		return nil
	}
	if err := l.loadProgram(); err != nil {
		return err
	}
	return l.set(stage, lease, 0)
}

// askedOf returns the tokens that packets have requested from the meter of a budget, by
// resulting color.
func (l *leases) askedOf(budget string) (asked [3]uint64, err error) {
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

// loadProgram loads the program that sets leases.
func (l *leases) loadProgram() (err error) {
	if l.loaded == nil {
		l.loaded, err = loadBudgetProgram(bpf.BudgetProgShaperLease, map[string]*ebpf.Map{bpf.ShaperMapLeases: l.states})
	}
	return err
}

// set sets the lease of a stage at a time (ns of CLOCK_MONOTONIC), 0 for now.
func (l *leases) set(stage leasedStage, lease *dataplane.Lease, now uint64) error {
	var granted bpf.ShaperLeased
	for i, limits := range lease.Limits {
		granted.Phases[i] = stage.profile(limits)
	}
	for i, until := range lease.Ends() {
		granted.Until[i] = uint64(max(until, 0))
	}
	if err := l.loaded.Maps[bpf.BudgetMapGranted].Put(uint32(0), &granted); err != nil {
		return fmt.Errorf("lease: %w", cause.Of(err))
	}
	if err := runOnSlot(l.loaded.Programs[bpf.BudgetProgShaperLease], stage.slot, now); err != nil {
		return fmt.Errorf("lease: %w", err)
	}
	return nil
}

// maxLeaseBurst is the largest burst, in tokens, that a bucket of the kernel can have with
// any rate in whole bit/s: 2^59 units of 1/8,000,000,000 token.
const maxLeaseBurst = 1 << 59 / 8_000_000_000

// profile returns the profile of a meter with these limits. Invalid limits return the zero
// profile, which passes nothing.
func (s leasedStage) profile(l dataplane.Limits) bpf.ShaperProfile {
	for capped := false; ; capped = true {
		p, err := l.With(s.kindParams()).Profile()
		if err != nil {
			return bpf.ShaperProfile{}
		}
		numbers, err := p.Integers()
		if err == nil {
			return encodeProfile(numbers)
		}
		if capped {
			return bpf.ShaperProfile{}
		}
		for i := range l {
			l[i].Burst = min(l[i].Burst, maxLeaseBurst)
		}
	}
}

// kindParams returns the parameters of the stage's meter, without rates and bursts.
func (s leasedStage) kindParams() dataplane.Params {
	p := s.kind.Info().Defaults
	if t, ok := p.(meter.TRTCM4115); ok {
		t.Coupling = s.coupled
		p = t
	}
	return p
}

// readLease reads the state of a meter with a lease.
func readLease(states *ebpf.Map, slot uint32) (state bpf.ShaperLeased, err error) {
	if err := states.LookupWithFlags(slot, &state, ebpf.LookupLock); err != nil {
		return state, fmt.Errorf("leases: %w", cause.Of(err))
	}
	return state, nil
}

// leaseLevels returns the levels of a meter with a lease, at a time (ns of
// CLOCK_MONOTONIC), and the profile in force then.
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

// inheritLeases assigns slots to meters whose budgets are on servers. A budget that the
// previous policy has keeps its slot.
func (g *image) inheritLeases(before *About) {
	slots := slotAllocator{used: map[uint32]bool{}}
	for i := range before.Stages {
		if s := &before.Stages[i]; s.Table == storeLeased {
			slots.used[s.Slot] = true
		}
	}
	for i, from := range g.from.Stages {
		s := &g.stages[i]
		switch {
		case s.Table != storeLeased:
		case from >= 0 && before.Outline.Stages[from].BudgetName == g.plan.Stages[i].BudgetName && before.Stages[from].Table == storeLeased:
			s.Slot = before.Stages[from].Slot
		default:
			s.Slot = slots.allocate()
		}
	}
}

// populateLeases writes the states of new meters with leases, and copies the others if their
// map was replaced.
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

// leaseLimits returns the present limits of the meter of a budget on a server, and those after
// its lease; zeros if no class uses the budget.
func (s *stateMaps) leaseLimits(a *About, budget string) (now, last dataplane.Limits, err error) {
	for i := range a.Stages {
		if at := &a.Stages[i]; at.Table == storeLeased && a.Outline.Stages[i].BudgetName == budget {
			return leaseLimits(s.leases, at.Slot, uint64(Now()))
		}
	}
	return now, last, nil
}

// leaseLimits returns the limits of the meter in a slot, at a time (ns of CLOCK_MONOTONIC)
// and after its lease.
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

// limitsOf returns the limits of a profile.
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
