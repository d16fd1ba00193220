package kernel

import (
	"fmt"

	"github.com/cilium/ebpf"

	"github.com/a-seed-32e5a53f/shaper/bpf"
)

// initialize makes the maps that depend on the policy, and writes the states of all meters.
// Their clocks start at their first packets.
func (g *image) initialize(to *stateMaps) (err error) {
	if err := to.grow(g); err != nil {
		return err
	}
	for i := range g.stages {
		s := &g.stages[i]
		if !inStates(s.Table) {
			continue
		}
		if err := to.states.Put(s.Slot, initialLevels(&g.plan.Stages[i], &s.Profile).unstartedState(&s.Profile)); err != nil {
			return fmt.Errorf("states: %w", err)
		}
	}
	if err := g.populateTables(&About{}, to); err != nil {
		return err
	}
	if err := g.populateLeases(&About{}, to, to); err != nil {
		return err
	}
	if g.customerImage != nil {
		for _, unused := range []*ebpf.Map{to.prefixes, to.searches, to.customers, to.plans} {
			unused.Close()
		}
	}
	if err := to.makeCustomerMaps(g); err != nil {
		return err
	}
	if err := g.populateCustomers(to, nil); err != nil {
		return err
	}
	to.departures.Close()
	if to.departures, err = g.newRings(); err != nil {
		return err
	}
	to.queues.Close()
	to.queues, err = newArray(bpf.ShaperMapQueues, g.queues)
	return err
}

// readLevels returns the levels of a stage's meter at now (ns of CLOCK_MONOTONIC), and the
// profile in force. The profile of a budget can differ from that of the policy.
func readLevels(maps *stateMaps, s *bpf.ShaperStage, now uint64) (levels, *bpf.ShaperProfile, error) {
	switch s.Table {
	case storeLeased:
		return leaseLevels(maps.leases, s.Slot, now)
	case storeShared:
		var b bpf.ShaperBudget
		if err := maps.budgets.Lookup(s.Slot, &b); err != nil {
			return levels{}, nil, fmt.Errorf("budgets: %w", err)
		}
		return levelsAt(&bpf.ShaperState{Word: b.Word, Stamp: b.Stamp}, &b.Profile, now), &b.Profile, nil
	}
	var state bpf.ShaperState
	if err := maps.states.LookupWithFlags(s.Slot, &state, ebpf.LookupLock); err != nil {
		return levels{}, nil, fmt.Errorf("states: %w", err)
	}
	return levelsAt(&state, &s.Profile, now), &s.Profile, nil
}

// readTokens is readLevels in whole bytes or packets.
func readTokens(maps *stateMaps, s *bpf.ShaperStage, now uint64) (tc, te int64, err error) {
	l, p, err := readLevels(maps, s, now)
	if err != nil {
		return 0, 0, err
	}
	tc, te = l.tokens(p)
	return tc, te, nil
}
