package image

import (
	"fmt"

	"github.com/cilium/ebpf"

	"github.com/a-seed-32e5a53f/shaper/bpf"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/engine"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/record"
)

// Initialize makes the policy's maps, and writes the states of all meters. Their clocks start at
// their first packets.
func (g *Image) Initialize(to *Maps) (err error) {
	if err := to.grow(g); err != nil {
		return err
	}
	for i := range g.Stages {
		s := &g.Stages[i]
		if !record.InStates(s.Table) {
			continue
		}
		if err := to.States.Put(s.Slot,
			engine.InitialLevels(&g.Plan.Stages[i], &s.Profile).UnstartedState(&s.Profile)); err != nil {
			return fmt.Errorf("states: %w", err)
		}
	}
	if err := g.populateTables(&record.About{}, to); err != nil {
		return err
	}
	if err := g.populateLeases(&record.About{}, to, to); err != nil {
		return err
	}
	if g.customerImage != nil {
		for _, unused := range []*ebpf.Map{to.prefixes, to.searches, to.Customers, to.plans} {
			unused.Close()
		}
	}
	if err := to.makeCustomerMaps(g); err != nil {
		return err
	}
	if err := g.populateCustomers(to, nil); err != nil {
		return err
	}
	to.Departures.Close()
	if to.Departures, err = g.newRings(); err != nil {
		return err
	}
	to.queues.Close()
	to.queues, err = engine.NewArray(bpf.ShaperMapQueues, g.Queues)
	return err
}

// readLevels returns the levels of a stage's meter at now (ns of CLOCK_MONOTONIC), and the
// profile in force. The profile of a budget can differ from that of the policy.
func readLevels(maps *Maps, s *bpf.ShaperStage, now uint64) (engine.Levels, *bpf.ShaperProfile, error) {
	switch s.Table {
	case record.StoreLeased:
		return LeaseLevels(maps.Leases, s.Slot, now)
	case record.StoreShared:
		var b bpf.ShaperBudget
		if err := maps.Budgets.Lookup(s.Slot, &b); err != nil {
			return engine.Levels{}, nil, fmt.Errorf("budgets: %w", err)
		}
		return engine.LevelsAt(&bpf.ShaperState{Word: b.Word, Stamp: b.Stamp}, &b.Profile,
			now), &b.Profile, nil
	}
	var state bpf.ShaperState
	if err := maps.States.LookupWithFlags(s.Slot, &state, ebpf.LookupLock); err != nil {
		return engine.Levels{}, nil, fmt.Errorf("states: %w", err)
	}
	return engine.LevelsAt(&state, &s.Profile, now), &s.Profile, nil
}

// ReadTokens is readLevels in whole bytes or packets.
func ReadTokens(maps *Maps, s *bpf.ShaperStage, now uint64) (tc, te int64, err error) {
	l, p, err := readLevels(maps, s, now)
	if err != nil {
		return 0, 0, err
	}
	tc, te = l.Tokens(p)
	return tc, te, nil
}
