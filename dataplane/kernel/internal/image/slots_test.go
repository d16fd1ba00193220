package image

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/bpf"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/engine"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/kerneltest"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/qdisc"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/record"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// largestImage is the image of a policy with the most classes and meters.
func largestImage(t *testing.T, name string) *Image {
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
	g, err := encoded(policy, EgressEntry, "")
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// TestSlots checks that the slots suffice for a policy beside its predecessor, after any history,
// and that no slot is used twice.
func TestSlots(t *testing.T) {
	var about record.About
	for _, name := range []string{"a", "b", "c", "c", "a"} {
		g := largestImage(t, name)
		changes, _ := g.Inherit(&about, nil)
		slots, states := map[uint32]bool{0: true}, map[uint32]bool{}
		for _, c := range g.classes {
			if slots[c.Slot] || c.Slot >= MaxSlots[bpf.ShaperMapCounters] {
				t.Fatalf("%s: got slot %d of the counters, want a free one within the map", name, c.Slot)
			}
			slots[c.Slot] = true
		}
		for _, s := range g.Stages {
			if states[s.Slot] || s.Slot >= MaxSlots[bpf.ShaperMapStates] {
				t.Fatalf("%s: got slot %d of the states, want a free one within the map", name, s.Slot)
			}
			states[s.Slot] = true
		}
		old := map[uint32]bool{}
		for _, slot := range about.Slots {
			old[slot] = true
		}
		for i, c := range g.classes {
			if kept := len(about.Slots) > 0 &&
				about.Outline.Classes[i].Name == g.Plan.Classes[i].Name; old[c.Slot] != kept {
				t.Fatalf("%s: class %d has a slot of the previous policy: got %v, want %v", name, i,
					old[c.Slot], kept)
			}
		}
		if want := map[bool]int{
			true: MaxClasses, false: MaxClasses + len(about.Slots),
		}[len(about.Slots) > 0 && about.Outline.Classes[0].Name == name+"0"]; len(changes) != want {
			t.Fatalf("%s: got %d changes, want %d", name, len(changes), want)
		}
		g.Describe(&about)
	}
}

// TestTableSlots checks that the slots suffice for the most tables of a policy beside those of its
// predecessor, and that no slot is used twice.
func TestTableSlots(t *testing.T) {
	t.Parallel()
	spec, err := engine.ShaperSpec()
	if err != nil {
		t.Fatal(err)
	}
	var about record.About
	old := map[string]int32{}
	for step, change := range []struct {
		kept   int // number of classes with the same name in all steps
		shared bool
		burst  int64
	}{
		{0, false, 3000},
		{MaxTables, false, 3000},
		{MaxTables / 2, false, 3000},
		{MaxTables, false, 4000},
		{MaxTables, true, 4000},
		{MaxTables, false, 4000},
		{0, false, 4000},
	} {
		policy := &dataplane.Policy{}
		one := &dataplane.Meter{
			Name: "one", Params: meter.TokenBucket{Rate: meter.BitRate(1e6), Burst: change.burst},
			Per: dataplane.Key{By: dataplane.BySrc}, Keys: 7,
		}
		for i := range MaxTables {
			m := *one
			name := fmt.Sprint("class ", i)
			if i >= change.kept {
				name = fmt.Sprint("step ", step, " class ", i)
			}
			policy.Classes = append(policy.Classes, dataplane.Class{Name: name, Meter: &m})
			if change.shared {
				policy.Classes[i].Meter = one
			}
		}
		g, err := encoded(policy, EgressEntry, "")
		if err != nil {
			t.Fatal(err)
		}
		g.Inherit(&about, nil)
		seen, now := map[int32]bool{}, map[string]int32{}
		for i, c := range g.classes {
			table, name := g.Stages[c.Stage].Table, policy.Classes[i].Name
			if table < 0 || uint32(table) >= spec.Maps[bpf.ShaperMapKnownKeys].MaxEntries || seen[table] &&
				!change.shared {
				t.Fatalf("step %d, %s: got table %d, want a free one within the map", step, name, table)
			}
			seen[table], now[name] = true, table
		}
		for name, was := range old {
			table, kept := now[name]
			same := step == 1 || step == 2 // before the other steps the burst or the sharing changed
			if kept && same && table != was {
				t.Errorf("step %d, %s: got table %d, want %d as before", step, name, table, was)
			}
			if step == 3 && seen[was] {
				t.Errorf("step %d: table %d is kept, want a new one for another burst", step, was)
			}
		}
		old = now
		g.Describe(&about)
	}
}

// TestQueueSlots checks that a queue keeps its slot and HTB class as long as it can, and that no
// two queues share one.
func TestQueueSlots(t *testing.T) {
	t.Parallel()
	link := &dataplane.Link{Name: "l", Rate: kerneltest.EightMbit}
	policyOf := func(names ...string) *dataplane.Policy {
		policy := &dataplane.Policy{}
		for _, name := range names {
			q := &dataplane.Queue{Name: strings.TrimRight(name, "+-/")}
			q.Packets, q.Rate = 10, kerneltest.EightMbit
			switch {
			case strings.HasSuffix(name, "+"):
				q.Packets = 100
			case strings.HasSuffix(name, "-"):
				q.Rate = meter.BitRate(1e6)
			case strings.HasSuffix(name, "/"):
				q.Link, q.Rate, q.Packets, q.Bytes = link, meter.Rate{}, 0, 10_000
			}
			policy.Classes = append(policy.Classes,
				dataplane.Class{Name: q.Name, Green: &dataplane.Action{Queue: q}})
		}
		return policy
	}
	var about record.About
	slots, classes, linked := map[string]uint32{}, map[string]uint32{}, map[string]bool{}
	for i, step := range []struct {
		names string // suffix +: another limit, -: another rate, /: of a link
		slots string // queues that keep their slot
	}{
		{"a b c", ""},
		{"a b c", "a b c"},
		{"a b- c", "a b c"},
		{"a b- c", "a b c"},
		{"c a b-", "a b c"}, // rings in another order
		{"c a+ b-", "b c"},
		{"c a+ d", "a c"},
		{"c a/ d", "c d"},
		{"c a/ d", "a c d"},
		{"x y z", ""},
		{"a", ""},
	} {
		g, err := encoded(policyOf(strings.Fields(step.names)...), EgressEntry, record.HTB)
		if err != nil {
			t.Fatal(err)
		}
		g.Inherit(&about, nil)
		usedSlots, usedClasses := map[uint32]string{}, map[uint32]string{}
		for _, q := range about.Queued {
			usedSlots[q.Slot] = "the previous policy"
		}
		for at, id := range g.linkIDs {
			usedClasses[qdisc.Handle(id)] = g.Plan.Links[at].Name
		}
		kept := strings.Fields(step.slots)
		for j := range g.Queues {
			q, name := &g.Queues[j], g.Plan.Queues[j].Name
			if slices.Contains(kept, name) {
				if q.Slot != slots[name] {
					t.Errorf("step %d, %s: got slot %d, want %d as before", i, name, q.Slot, slots[name])
				}
			} else if other, ok := usedSlots[q.Slot]; ok {
				t.Errorf("step %d, %s: got slot %d of %s, want a free one", i, name, q.Slot, other)
			}
			usedSlots[q.Slot] = name
			if other, ok := usedClasses[q.ClassId]; ok || q.ClassId>>16 != qdisc.Major ||
				q.ClassId&0xffff == 0 {
				t.Errorf("step %d, %s: got class %#x (also of %q), want a free one of major %#x", i, name,
					q.ClassId, other, qdisc.Major)
			}
			usedClasses[q.ClassId] = name
			was := slices.ContainsFunc(about.Outline.Queues,
				func(q compiled.QueueOutline) bool { return q.Name == name })
			onLink := g.Plan.Queues[j].Link >= 0
			if was && (q.ClassId == classes[name]) != (onLink == linked[name]) {
				t.Errorf("step %d, %s: got class %#x after %#x, want the same unless it moves to a link or from one", i,
					name, q.ClassId, classes[name])
			}
			slots[name], classes[name], linked[name] = q.Slot, q.ClassId, onLink
		}
		g.Describe(&about)
	}
	// The slots suffice for the most queues beside those of the previous policy.
	about = record.About{}
	for _, prefix := range []string{"a", "b", "a", "b"} {
		var names []string
		for i := range MaxQueues {
			names = append(names, fmt.Sprint(prefix, i))
		}
		g, err := encoded(policyOf(names...), EgressEntry, record.HTB)
		if err != nil {
			t.Fatal(err)
		}
		g.Inherit(&about, nil)
		used := map[uint32]bool{}
		for _, q := range g.Queues {
			if q.Slot >= MaxSlots[bpf.ShaperMapBacklogs] || used[q.Slot] {
				t.Fatalf("%s: got slot %d, want a free one within the map", prefix, q.Slot)
			}
			used[q.Slot] = true
		}
		g.Describe(&about)
	}
}
