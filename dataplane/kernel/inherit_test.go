package kernel

import (
	"fmt"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/bpf"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// generation is a policy with as many classes and meters as there may be.
func generation(t *testing.T, name string) *image {
	t.Helper()
	policy := &dataplane.Policy{}
	for i := range MaxClasses {
		params := meter.TokenBucket{Rate: meter.BitRate(8000), Burst: 1500}
		then := &dataplane.Meter{Name: fmt.Sprint("then ", i), Params: params, Aware: true}
		policy.Classes = append(policy.Classes, dataplane.Class{
			Name:  fmt.Sprint(name, i),
			Meter: &dataplane.Meter{Name: fmt.Sprint(name, i), Params: params, Then: then},
		})
	}
	g, err := encodePolicy(policy, egressEntry, "")
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// TestSlots holds that there are slots for a policy beside the one before,
// whatever came before that, and that no two share one.
func TestSlots(t *testing.T) {
	var about About
	for _, name := range []string{"a", "b", "c", "c", "a"} {
		g := generation(t, name)
		changes := g.inherit(&about)
		slots, states := map[uint32]bool{0: true}, map[uint32]bool{}
		for _, c := range g.classes {
			if slots[c.Slot] || c.Slot >= maxSlots[bpf.ShaperMapCounters] {
				t.Fatalf("%s: slot %d of the counters is taken, or beyond their end", name, c.Slot)
			}
			slots[c.Slot] = true
		}
		for _, s := range g.stages {
			if states[s.Slot] || s.Slot >= maxSlots[bpf.ShaperMapStates] {
				t.Fatalf("%s: slot %d of the states is taken, or beyond their end", name, s.Slot)
			}
			states[s.Slot] = true
		}
		old := map[uint32]bool{}
		for _, c := range about.Classes {
			old[c.Slot] = true
		}
		for i, c := range g.classes {
			if kept := len(about.Classes) > 0 && about.Outline.Classes[i].Name == g.plan.Classes[i].Name; old[c.Slot] != kept {
				t.Fatalf("%s: class %d has a slot of the policy before: %v, want %v", name, i, old[c.Slot], kept)
			}
		}
		if want := map[bool]int{true: MaxClasses, false: MaxClasses + len(about.Classes)}[len(about.Classes) > 0 && about.Outline.Classes[0].Name == name+"0"]; len(changes) != want {
			t.Fatalf("%s: %d changes: want %d", name, len(changes), want)
		}
		about.recordImage(g)
	}
}
