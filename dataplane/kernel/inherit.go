package kernel

import (
	"fmt"

	"github.com/cilium/ebpf"

	"github.com/a-seed-32e5a53f/shaper/bpf"
)

// Change says what became of a class when a policy took the place of another.
type Change struct {
	Class string `json:"class"`
	What  string `json:"change"` // kept, new or gone
}

// inherit gives classes and meters their slots: those of the policy before
// where the class kept its name, and free ones to the others.
func (g *image) inherit(before *About) []Change {
	var changes []Change
	usedSlots := map[uint32]bool{0: true} // slot 0 is for what no class takes
	usedStates := map[uint32]bool{}
	old := map[string]int{}
	for i, c := range before.Classes {
		old[c.Name] = i
		usedSlots[c.Slot] = true
	}
	for _, s := range before.Stages {
		usedStates[s.Slot] = true
	}
	g.from = make([]int, len(g.stages))
	for i := range g.from {
		g.from[i] = -1
	}
	kept := map[string]bool{}
	for i := range g.classes {
		name := g.policy.Classes[i].Name
		was, ok := old[name]
		if !ok {
			g.classes[i].Slot = free(usedSlots)
			changes = append(changes, Change{Class: name, What: "new"})
			continue
		}
		kept[name] = true
		g.classes[i].Slot = before.Classes[was].Slot
		changes = append(changes, Change{Class: name, What: "kept"})
		chain := before.chain(was)
		for at, k := g.classes[i].Stage, 0; at >= 0 && k < len(chain); at, k = g.stages[at].Then, k+1 {
			if g.from[at] < 0 {
				g.from[at] = chain[k]
			}
		}
	}
	taken := map[uint32]bool{}
	for i := range g.stages {
		s := &g.stages[i]
		if from := g.from[i]; from >= 0 {
			was := &before.Stages[from]
			if sameProfile(s, &was.ShaperStage) && !taken[was.Slot] {
				s.Slot = was.Slot
				taken[was.Slot] = true
				continue
			}
		}
		s.Slot = free(usedStates)
	}
	for _, c := range before.Classes {
		if !kept[c.Name] {
			changes = append(changes, Change{Class: c.Name, What: "gone"})
		}
	}
	return changes
}

// free returns the lowest slot that is not in use, and takes it. The maps have
// room for two policies.
func free(used map[uint32]bool) uint32 {
	slot := uint32(0)
	for used[slot] {
		slot++
	}
	used[slot] = true
	return slot
}

// sameProfile says whether a state means the same under both.
func sameProfile(a, b *bpf.ShaperStage) bool {
	return a.Buckets == b.Buckets && a.Den == b.Den && a.Coupled == b.Coupled && a.Packets == b.Packets
}

// settle writes the states and counters that begin: those of the meters and
// classes that have a slot of their own. A meter whose parameters changed gets
// the tokens that it has now.
func (g *image) settle(before *About, to *shared) error {
	old := map[uint32]bool{}
	for _, s := range before.Stages {
		old[s.Slot] = true
	}
	now, err := monotonic()
	if err != nil {
		return err
	}
	for i := range g.stages {
		s := &g.stages[i]
		if old[s.Slot] {
			continue
		}
		l := initial(g.meters[i], s)
		if g.from[i] >= 0 {
			was := &before.Stages[g.from[i]].ShaperStage
			var state bpf.ShaperState
			if err := to.states.LookupWithFlags(was.Slot, &state, ebpf.LookupLock); err != nil {
				return fmt.Errorf("states: %w", err)
			}
			if was.Packets == s.Packets {
				l = levelsAt(&state, was, now).carry(was, s)
			}
		}
		if err := to.states.Put(s.Slot, l.at(now, s)); err != nil {
			return fmt.Errorf("states: %w", err)
		}
	}
	known := map[uint32]bool{}
	for _, c := range before.Classes {
		known[c.Slot] = true
	}
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return err
	}
	zero := make([]bpf.ShaperCounts, cpus)
	for i := range g.classes {
		if slot := g.classes[i].Slot; !known[slot] {
			if err := to.counters.Put(slot, zero); err != nil {
				return fmt.Errorf("counters: %w", err)
			}
		}
	}
	return nil
}
