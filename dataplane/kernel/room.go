package kernel

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"

	"github.com/a-seed-32e5a53f/shaper/bpf"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/cause"
)

// leastSlots is how many slots a map has at least: so that most small policies
// can be replaced by any other small one in place.
const minSlots = 16

// bySlot are the maps whose size depends on the policy, with the most slots that
// two policies can need. Slot 0 of the counters is for unclassified packets.
var maxSlots = map[string]uint32{
	bpf.ShaperMapCounters: 2*MaxClasses + 1,
	bpf.ShaperMapStates:   maxStates,
	bpf.ShaperMapLeases:   maxStates,
	bpf.ShaperMapBacklogs: 2 * MaxQueues,
}

// slots returns how many slots the policy needs of each of the maps.
func (g *image) slotsNeeded() map[string]uint32 {
	out := map[string]uint32{}
	for name := range maxSlots {
		out[name] = 1
	}
	need := func(name string, slot uint32) { out[name] = max(out[name], slot+1) }
	for i := range g.classes {
		need(bpf.ShaperMapCounters, g.classes[i].Slot)
	}
	for i := range g.stages {
		switch s := &g.stages[i]; {
		case inStates(s.Table):
			need(bpf.ShaperMapStates, s.Slot)
		case s.Table == storeLeased:
			need(bpf.ShaperMapLeases, s.Slot)
		}
	}
	for i := range g.queues {
		need(bpf.ShaperMapBacklogs, g.queues[i].Slot)
	}
	return out
}

// grow replaces the maps that lack room for a policy by some of twice what it
// needs: that is room for the next policy beside it. The caller closes what it
// does not use.
//
// The counters that are replaced stay open beside the new ones, because the
// program before counts there until it is replaced. A class's count is the sum.
func (s *stateMaps) grow(g *image) error {
	spec, err := bpf.LoadShaper()
	if err != nil {
		return err
	}
	needs, all := g.slotsNeeded(), s.mapFields()
	for name, most := range maxSlots {
		at, need := all[name], needs[name]
		if *at != nil && need <= (*at).MaxEntries() {
			continue
		}
		spec.Maps[name].MaxEntries = min(max(2*need, minSlots), most)
		m, err := ebpf.NewMap(spec.Maps[name])
		if err != nil {
			return fmt.Errorf("map %s of %d entries: %w", name, spec.Maps[name].MaxEntries, cause.Of(err))
		}
		if at == &s.counters.Map && *at != nil {
			s.counters = s.counters.before()
		}
		*at = m
	}
	return nil
}

// counterMaps are the counters of a program, and those of programs before it whose
// policies needed fewer. They have the same slots.
type counterMaps struct {
	*ebpf.Map
	older []*ebpf.Map
}

// before returns the counters as those of a program before, without new ones.
func (c counterMaps) before() counterMaps {
	return counterMaps{older: append([]*ebpf.Map{c.Map}, c.older...)}
}

// add adds counters of a program, in any order: the newest are the largest.
func (c *counterMaps) add(m *ebpf.Map) {
	switch {
	case c.Map == nil:
		c.Map = m
	case c.MaxEntries() < m.MaxEntries():
		c.older = append(c.older, c.Map)
		c.Map = m
	default:
		c.older = append(c.older, m)
	}
}

// of returns what is counted in a slot, by each CPU.
func (c counterMaps) perCPU(slot uint32) ([]bpf.ShaperCounts, error) {
	var out []bpf.ShaperCounts
	for _, m := range append([]*ebpf.Map{c.Map}, c.older...) {
		if slot >= m.MaxEntries() {
			continue
		}
		var perCPU []bpf.ShaperCounts
		if err := m.Lookup(slot, &perCPU); err != nil {
			return nil, fmt.Errorf("counters: %w", err)
		}
		out = append(out, perCPU...)
	}
	return out, nil
}

// clear empties a slot that no program uses.
func (c counterMaps) clear(slot uint32) error {
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return err
	}
	zero := make([]bpf.ShaperCounts, cpus)
	for _, m := range append([]*ebpf.Map{c.Map}, c.older...) {
		if slot >= m.MaxEntries() {
			continue
		}
		if err := m.Put(slot, zero); err != nil {
			return fmt.Errorf("counters: %w", err)
		}
	}
	return nil
}

// bind keeps the older counters with the program, where others find them.
func (c counterMaps) bind(p *ebpf.Program) error {
	var errs []error
	for _, m := range c.older {
		errs = append(errs, cause.Of(p.BindMap(m)))
	}
	return errors.Join(errs...)
}
