package image

import (
	"github.com/a-seed-32e5a53f/shaper/bpf"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/engine"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/record"
)

// MinSlots is the minimum number of slots of a map. With it, most small policies can be
// replaced by another small one without new maps.
const MinSlots = 16

// MaxSlots lists the maps whose size depends on the policy, with the maximum number of slots for
// two policies. Slot 0 of the counters is for unclassified packets.
var MaxSlots = map[string]uint32{
	bpf.ShaperMapCounters: 2*MaxClasses + 1,
	bpf.ShaperMapStates:   MaxStates,
	bpf.ShaperMapLeases:   MaxStates,
	bpf.ShaperMapBacklogs: 2 * MaxQueues,
}

// slotsNeeded returns the policy's number of slots in each of the maps.
func (g *Image) slotsNeeded() map[string]uint32 {
	out := map[string]uint32{}
	for name := range MaxSlots {
		out[name] = 1
	}
	need := func(name string, slot uint32) { out[name] = max(out[name], slot+1) }
	for i := range g.classes {
		need(bpf.ShaperMapCounters, g.classes[i].Slot)
	}
	for i := range g.Stages {
		switch s := &g.Stages[i]; {
		case record.InStates(s.Table):
			need(bpf.ShaperMapStates, s.Slot)
		case s.Table == record.StoreLeased:
			need(bpf.ShaperMapLeases, s.Slot)
		}
	}
	for i := range g.Queues {
		need(bpf.ShaperMapBacklogs, g.Queues[i].Slot)
	}
	return out
}

// grow replaces maps with too few slots for a policy by maps with twice its slots, leaving room for
// the next policy. The caller closes unused maps.
//
// Replaced counters stay open beside the new ones, because the attached program uses them
// until it is replaced. The count of a class is the sum.
func (s *Maps) grow(g *Image) error {
	needs, fields := g.slotsNeeded(), s.MapFields()
	for name, most := range MaxSlots {
		field, need := fields[name], needs[name]
		if *field != nil && need <= (*field).MaxEntries() {
			continue
		}
		m, err := engine.NewMap(name, min(max(2*need, MinSlots), most))
		if err != nil {
			return err
		}
		if field == &s.Counters.Map && *field != nil {
			s.Counters.older = s.Counters.newestFirst()
		}
		*field = m
	}
	return nil
}
