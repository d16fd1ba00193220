package kernel

import (
	"fmt"

	"github.com/cilium/ebpf"

	"github.com/a-seed-32e5a53f/shaper/bpf"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// inherit gives classes, meters and queues their slots: those of what they continue, and
// free ones to the others.
func (g *image) inherit(before *About) []dataplane.Change {
	g.from = g.plan.Succeed(&before.Outline)
	counters := slotAllocator{used: map[uint32]bool{0: true}} // slot 0 is for unclassified packets
	for _, c := range before.Classes {
		counters.used[c.Slot] = true
	}
	for i, was := range g.from.Classes {
		if was >= 0 {
			g.classes[i].Slot = before.Classes[was].Slot
		} else {
			g.classes[i].Slot = counters.take()
		}
	}
	g.inheritQueues(before)
	g.inheritTables(before)
	g.inheritLeases(before)
	g.inheritStates(before)
	return g.from.Changes
}

// inheritStates gives meters their slots among the states. Several meters may continue
// one: the first has its slot.
func (g *image) inheritStates(before *About) {
	states := slotAllocator{used: map[uint32]bool{}}
	for _, s := range before.Stages {
		if inStates(s.Table) {
			states.used[s.Slot] = true
		}
	}
	taken := map[uint32]bool{}
	for i, from := range g.from.Stages {
		s := &g.stages[i]
		if !inStates(s.Table) {
			continue // it has a slot
		}
		if from >= 0 {
			was := &before.Stages[from]
			if inStates(was.Table) && sameProfile(s, &was.ShaperStage) && !taken[was.Slot] {
				s.Slot = was.Slot
				taken[was.Slot] = true
				continue
			}
		}
		s.Slot = states.take()
	}
}

// slots are those of a map, which has room for two policies.
type slotAllocator struct {
	used map[uint32]bool
	next uint32 // all before it are taken
}

// free returns the lowest slot that is not in use, and takes it.
func (s *slotAllocator) take() uint32 {
	for s.used[s.next] {
		s.next++
	}
	s.next++
	return s.next - 1
}

// sameProfile says whether a state means the same under both.
func sameProfile(a, b *bpf.ShaperStage) bool {
	p, q := &a.Profile, &b.Profile
	return p.Buckets == q.Buckets && p.Coupled == q.Coupled && a.Packets == b.Packets &&
		p.Window == q.Window && p.Sliding == q.Sliding
}

// settle writes the states and counters that begin: those of the meters and
// classes that have a slot of their own. A meter whose parameters changed gets
// the tokens that it has now. Where the maps of the policy before lacked room,
// what goes on is copied from them.
func (g *image) populate(before *About, from, to *stateMaps, c *budgetClaims) error {
	if err := g.populateTables(before, to); err != nil { // first: it takes long
		return err
	}
	known := map[uint32]bool{}
	for _, c := range before.Classes {
		known[c.Slot] = true
	}
	for i := range g.classes {
		if slot := g.classes[i].Slot; !known[slot] {
			if err := to.counters.clear(slot); err != nil {
				return err
			}
		}
	}
	if err := g.populateBacklogs(before, from, to); err != nil {
		return err
	}
	if err := g.populateLeases(before, from, to); err != nil {
		return err
	}
	return g.populateStates(before, from, to, c) // last: packets from here to the swap take no tokens of what is copied
}

func (g *image) populateStates(before *About, from, to *stateMaps, c *budgetClaims) error {
	old := map[uint32]bool{}
	for _, s := range before.Stages {
		if inStates(s.Table) {
			old[s.Slot] = true
		}
	}
	now, err := monotonic()
	if err != nil {
		return err
	}
	for i := range g.stages {
		s := &g.stages[i]
		fresh := c.newBudgetOf(i)
		if !inStates(s.Table) && fresh == nil {
			continue // its state is there, or settleLeases writes it
		}
		if old[s.Slot] && fresh == nil {
			if err := copySlot[bpf.ShaperState](from.states, to.states, s.Slot); err != nil {
				return err
			}
			continue
		}
		state := initialLevels(&g.plan.Stages[i], &s.Profile).state(now, &s.Profile)
		if fresh != nil {
			state = fresh.initial
		}
		if at := g.from.Stages[i]; at >= 0 {
			kept, p, err := readLevels(from, &before.Stages[at].ShaperStage, now)
			if err != nil {
				return err
			}
			state = kept.convert(p, &s.Profile).state(now, &s.Profile)
		}
		if fresh != nil {
			err = c.writeInitialState(fresh, now, state)
		} else if err = to.states.Put(s.Slot, state); err != nil {
			err = fmt.Errorf("states: %w", err)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// copySlot copies what the policy before has in a slot where its map was replaced.
func copySlot[T any](from, to *ebpf.Map, slot uint32) error {
	if from == to {
		return nil
	}
	var v T
	err := from.LookupWithFlags(slot, &v, ebpf.LookupLock)
	if err == nil {
		err = to.Put(slot, &v)
	}
	if err != nil {
		return fmt.Errorf("slot %d of %v: %w", slot, to, err)
	}
	return nil
}
