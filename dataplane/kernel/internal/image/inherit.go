package image

import (
	"errors"
	"fmt"

	"github.com/a-seed-32e5a53f/shaper/bpf"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/engine"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/record"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/registry"
	"github.com/cilium/ebpf"
)

// Inherit assigns slots to classes, meters and queues. A part continuing one of the previous policy
// gets its slot, the others get free slots. there are the classes on the device; nil for none.
func (g *Image) Inherit(before *record.About, there *Leaves) ([]compiled.ClassChange, error) {
	if there == nil {
		there = &Leaves{}
	}
	g.from = g.Plan.Succeed(&before.Outline)
	counters := engine.SlotAllocator{Used: map[uint32]bool{0: true}} // slot 0 is for unclassified packets
	for _, slot := range before.Slots {
		counters.Used[slot] = true
	}
	for i, was := range g.from.Classes {
		if was >= 0 {
			g.classes[i].Slot = before.Slots[was]
		} else {
			g.classes[i].Slot = counters.Allocate()
		}
	}
	ids := newClassIDs(before, there)
	if err := errors.Join(g.inheritQueues(before, ids), g.inheritLeaves(ids, there)); err != nil {
		return nil, err
	}
	g.inheritTables(before)
	g.inheritLeases(before)
	g.inheritStates(before)
	return g.from.Changes, nil
}

// inheritStates assigns the slots of meter states. If several meters continue the same
// one, the first gets its slot.
func (g *Image) inheritStates(before *record.About) {
	states := engine.SlotAllocator{Used: map[uint32]bool{}}
	for _, s := range before.Stages {
		if record.InStates(s.Table) {
			states.Used[s.Slot] = true
		}
	}
	taken := map[uint32]bool{}
	for i, from := range g.from.Stages {
		s := &g.Stages[i]
		if !record.InStates(s.Table) {
			continue // inheritLeases or the claim of its budget assigns its slot
		}
		if from >= 0 {
			was := &before.Stages[from]
			if record.InStates(was.Table) && sameProfile(s, &was.ShaperStage) && !taken[was.Slot] {
				s.Slot = was.Slot
				taken[was.Slot] = true
				continue
			}
		}
		s.Slot = states.Allocate()
	}
}

// sameProfile reports whether both meters interpret a state in the same way.
func sameProfile(a, b *bpf.ShaperStage) bool {
	p, q := &a.Profile, &b.Profile
	return p.Buckets == q.Buckets && p.Coupled == q.Coupled && a.Packets == b.Packets &&
		p.Window == q.Window && p.Sliding == q.Sliding
}

// Populate writes the initial states and counters of all meters and classes without an inherited
// slot. A meter whose parameters changed starts with its current tokens. If a map was replaced by a
// larger one, Populate copies the inherited slots. restored is the state of customers if before has
// none, or nil.
func (g *Image) Populate(
	before *record.About, from, to *Maps, c *registry.Claims, restored *CustomerTable,
) error {
	if err := g.populateTables(before, to); err != nil { // first, because it takes long
		return err
	}
	inherited := map[uint32]bool{}
	for _, slot := range before.Slots {
		inherited[slot] = true
	}
	for i := range g.classes {
		if slot := g.classes[i].Slot; !inherited[slot] {
			if err := from.Counters.clear(slot); err != nil { // a new map holds zeros
				return err
			}
		}
	}
	if err := g.copyCustomers(before, from, to, restored); err != nil {
		return err
	}
	if err := g.populateBacklogs(before, from, to); err != nil {
		return err
	}
	if err := g.populateLeases(before, from, to); err != nil {
		return err
	}
	// last: packets until the swap are not charged to copied states
	return g.populateStates(before, from, to, c)
}

// populateStates writes the states of meters, see Populate.
func (g *Image) populateStates(before *record.About, from, to *Maps, c *registry.Claims) error {
	old := map[uint32]bool{}
	for _, s := range before.Stages {
		if record.InStates(s.Table) {
			old[s.Slot] = true
		}
	}
	now := engine.Monotonic()
	for i := range g.Stages {
		s := &g.Stages[i]
		fresh := c.NewBudgetOf(i)
		if !record.InStates(s.Table) && fresh == nil {
			continue // the state exists, or populateLeases writes it
		}
		if old[s.Slot] && fresh == nil {
			if err := copySlot[bpf.ShaperState](from.States, to.States, s.Slot); err != nil {
				return err
			}
			continue
		}
		state := engine.InitialLevels(&g.Plan.Stages[i], &s.Profile).State(now, &s.Profile)
		if fresh != nil {
			state = fresh.Initial
		}
		if at := g.from.Stages[i]; at >= 0 {
			previous, p, err := readLevels(from, &before.Stages[at].ShaperStage, now)
			if err != nil {
				return err
			}
			state = previous.Convert(p, &s.Profile).State(now, &s.Profile)
		}
		var err error
		if fresh != nil {
			err = c.WriteInitialState(fresh, now, state)
		} else if err = to.States.Put(s.Slot, state); err != nil {
			err = fmt.Errorf("states: %w", err)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// copySlot copies a slot of the previous policy if its map was replaced.
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
