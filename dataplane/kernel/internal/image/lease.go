package image

import (
	"fmt"
	"math/big"
	"sync"

	"github.com/a-seed-32e5a53f/shaper/bpf"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/cause"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/engine"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/record"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/cilium/ebpf"
)

// Leases are the meters of a shaper whose budgets are on servers. They have a lock of their
// own, so setting a lease does not wait for the locks of a reload.
type Leases struct {
	Lock   sync.Mutex             // guards all fields
	States *ebpf.Map              // the map leases
	stages map[string]LeasedStage // by budget
	loaded *ebpf.Collection       // the program for setting leases; nil until it is needed
}

// LeasedStage is a stage whose meter uses a lease.
type LeasedStage struct {
	Slot    uint32
	Kind    meter.Kind
	Coupled bool
}

// UseStages replaces the meters by those of a policy. states is the map with their states.
// The caller must hold the lock.
func (l *Leases) UseStages(states *ebpf.Map, a *record.About) {
	if l.States != states && l.loaded != nil {
		l.loaded.Close()
		l.loaded = nil
	}
	l.States, l.stages = states, map[string]LeasedStage{}
	for i := range a.Stages {
		if s := &a.Stages[i]; s.Table == record.StoreLeased {
			o := &a.Outline.Stages[i]
			l.stages[o.BudgetName] = LeasedStage{Slot: s.Slot, Kind: o.Kind, Coupled: s.Profile.Coupled != 0}
		}
	}
}

func (l *Leases) Close() {
	l.Lock.Lock()
	defer l.Lock.Unlock()
	if l.loaded != nil {
		l.loaded.Close()
	}
	l.loaded, l.States, l.stages = nil, nil, nil
}

// SetLease sets the lease of the meter of a budget now. It does nothing if no class uses the
// budget.
func (l *Leases) SetLease(budget string, lease *compiled.Lease) error {
	l.Lock.Lock()
	defer l.Lock.Unlock()
	stage, ok := l.stages[budget]
	if !ok {
		return nil
	}
	if err := l.LoadProgram(); err != nil {
		return err
	}
	return l.Set(stage, lease, 0)
}

// DemandFor returns the tokens requested by packets from the meter of a budget, by resulting color.
func (l *Leases) DemandFor(budget string) (asked [3]uint64, err error) {
	l.Lock.Lock()
	defer l.Lock.Unlock()
	stage, ok := l.stages[budget]
	if !ok {
		return asked, nil
	}
	state, err := ReadLease(l.States, stage.Slot)
	if err != nil {
		return asked, err
	}
	copy(asked[:], state.Asked[:])
	return asked, nil
}

// LoadProgram loads the program for setting leases.
func (l *Leases) LoadProgram() (err error) {
	if l.loaded == nil {
		l.loaded, err = engine.LoadBudgetProgram(bpf.BudgetProgShaperLease,
			map[string]*ebpf.Map{bpf.ShaperMapLeases: l.States})
	}
	return err
}

// Set sets the lease of a stage at a time (ns of CLOCK_MONOTONIC), 0 for now.
func (l *Leases) Set(stage LeasedStage, lease *compiled.Lease, now uint64) error {
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
	if err := engine.RunOnSlot(l.loaded.Programs[bpf.BudgetProgShaperLease], stage.Slot, now); err != nil {
		return fmt.Errorf("lease: %w", err)
	}
	return nil
}

// MaxLeaseBurst is the largest burst, in tokens, of a bucket in the kernel with any rate in whole
// bit/s: 2^59 units of 1/8,000,000,000 token.
const MaxLeaseBurst = 1 << 59 / 8_000_000_000

// profile returns the profile of a meter with these limits. Invalid limits return the zero
// profile, which passes nothing.
func (s LeasedStage) profile(l compiled.BucketLimits) bpf.ShaperProfile {
	for capped := false; ; capped = true {
		p, err := l.With(s.kindParams()).Profile()
		if err != nil {
			return bpf.ShaperProfile{}
		}
		numbers, err := p.Integers()
		if err == nil {
			return engine.EncodeProfile(numbers)
		}
		if capped {
			return bpf.ShaperProfile{}
		}
		for i := range l {
			l[i].Burst = min(l[i].Burst, MaxLeaseBurst)
		}
	}
}

// kindParams returns the parameters of the stage's meter, without rates and bursts.
func (s LeasedStage) kindParams() meter.Params {
	p := s.Kind.Info().Defaults
	if t, ok := p.(meter.TRTCM4115); ok {
		t.Coupling = s.Coupled
		p = t
	}
	return p
}

// ReadLease reads the state of a meter with a lease.
func ReadLease(states *ebpf.Map, slot uint32) (state bpf.ShaperLeased, err error) {
	if err := states.LookupWithFlags(slot, &state, ebpf.LookupLock); err != nil {
		return state, fmt.Errorf("leases: %w", cause.Of(err))
	}
	return state, nil
}

// LeaseLevels returns the levels of a meter with a lease, at a time (ns of
// CLOCK_MONOTONIC), and the profile in force then.
func LeaseLevels(states *ebpf.Map, slot uint32, now uint64) (engine.Levels, *bpf.ShaperProfile, error) {
	s, err := ReadLease(states, slot)
	if err != nil {
		return engine.Levels{}, nil, err
	}
	state := bpf.ShaperState{Word: s.Word, Stamp: s.Stamp}
	phase := min(s.Phase, uint32(len(s.Phases)-1))
	for ; phase < uint32(len(s.Until)) && now >= s.Until[phase]; phase++ {
		from, to := &s.Phases[phase], &s.Phases[phase+1]
		var l engine.Levels
		if from.Buckets[0].Den > 0 && to.Buckets[0].Den > 0 {
			l = engine.LevelsAt(&state, from, s.Until[phase]).Convert(from, to)
		}
		state = l.State(s.Until[phase], to)
	}
	p := &s.Phases[phase]
	if p.Buckets[0].Den == 0 {
		return engine.Levels{}, engine.BlockingProfile(), nil
	}
	return engine.LevelsAt(&state, p, now), p, nil
}

// inheritLeases assigns slots to meters whose budgets are on servers. A budget of the previous
// policy keeps its slot.
func (g *Image) inheritLeases(before *record.About) {
	slots := engine.SlotAllocator{Used: map[uint32]bool{}}
	for i := range before.Stages {
		if s := &before.Stages[i]; s.Table == record.StoreLeased {
			slots.Used[s.Slot] = true
		}
	}
	for i, from := range g.from.Stages {
		s := &g.Stages[i]
		switch {
		case s.Table != record.StoreLeased:
		case from >= 0 && before.Outline.Stages[from].BudgetName == g.Plan.Stages[i].BudgetName &&
			before.Stages[from].Table == record.StoreLeased:
			s.Slot = before.Stages[from].Slot
		default:
			s.Slot = slots.Allocate()
		}
	}
}

// populateLeases writes the states of new meters with leases, and copies the others if their
// map was replaced.
func (g *Image) populateLeases(before *record.About, from, to *Maps) error {
	old := map[uint32]bool{}
	for i := range before.Stages {
		if s := &before.Stages[i]; s.Table == record.StoreLeased {
			old[s.Slot] = true
		}
	}
	for i := range g.Stages {
		s := &g.Stages[i]
		if s.Table != record.StoreLeased {
			continue
		}
		var err error
		if old[s.Slot] {
			err = copySlot[bpf.ShaperLeased](from.Leases, to.Leases, s.Slot)
		} else if err = to.Leases.Put(s.Slot,
			&bpf.ShaperLeased{Phase: uint32(len(bpf.ShaperLeased{}.Until))}); err != nil {
			err = fmt.Errorf("leases: %w", err)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// LeaseLimits returns the present limits of the meter of a budget on a server, and those after
// its lease; zeros if no class uses the budget.
func (s *Maps) LeaseLimits(a *record.About, budget string) (now, last compiled.BucketLimits, err error) {
	for i := range a.Stages {
		if at := &a.Stages[i]; at.Table == record.StoreLeased && a.Outline.Stages[i].BudgetName == budget {
			return LeaseLimits(s.Leases, at.Slot, uint64(engine.Now()))
		}
	}
	return now, last, nil
}

// LeaseLimits returns the limits of the meter in a slot, at a time (ns of CLOCK_MONOTONIC)
// and after its lease.
func LeaseLimits(states *ebpf.Map, slot uint32, at uint64) (now, last compiled.BucketLimits, err error) {
	state, err := ReadLease(states, slot)
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
func limitsOf(p *bpf.ShaperProfile) (out compiled.BucketLimits) {
	for i := range out {
		b := &p.Buckets[i]
		if b.Den == 0 {
			continue
		}
		// eighths of a token per second
		rate := new(big.Int).Mul(new(big.Int).SetUint64(b.Num), big.NewInt(8e9))
		rate.Div(rate, new(big.Int).SetUint64(b.Den))
		out[i] = compiled.BucketLimit{Rate: rate.Int64(), Burst: b.Size / int64(b.Den)}
	}
	return out
}
