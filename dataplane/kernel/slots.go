package kernel

import (
	"github.com/a-seed-32e5a53f/shaper/bpf"
)

// minSlots is the minimum number of slots of a map. With it, most small policies can be
// replaced by another small one without new maps.
const minSlots = 16

// maxSlots lists the maps whose size depends on the policy, with the maximum number of slots
// that two policies need. Slot 0 of the counters is for unclassified packets.
var maxSlots = map[string]uint32{
	bpf.ShaperMapCounters: 2*MaxClasses + 1,
	bpf.ShaperMapStates:   maxStates,
	bpf.ShaperMapLeases:   maxStates,
	bpf.ShaperMapBacklogs: 2 * MaxQueues,
}

// slotsNeeded returns the number of slots that the policy needs in each of the maps.
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

// grow replaces maps with too few slots for a policy by maps with twice the slots that it
// needs, so the next policy has room beside it. The caller closes unused maps.
//
// Replaced counters stay open beside the new ones, because the attached program uses them
// until it is replaced. The count of a class is the sum.
func (s *stateMaps) grow(g *image) error {
	needs, fields := g.slotsNeeded(), s.mapFields()
	for name, most := range maxSlots {
		field, need := fields[name], needs[name]
		if *field != nil && need <= (*field).MaxEntries() {
			continue
		}
		m, err := newMap(name, min(max(2*need, minSlots), most))
		if err != nil {
			return err
		}
		if field == &s.counters.Map && *field != nil {
			s.counters.older = s.counters.newestFirst()
		}
		*field = m
	}
	return nil
}
