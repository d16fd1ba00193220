package kernel

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/a-seed-32e5a53f/shaper/bpf"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// keyedChain is as long as a chain may be, of meters for each key.
func keyedChain() *dataplane.Meter {
	first := chained(MaxChain)
	for m, k := first, 0; m != nil; m, k = m.Then, k+1 {
		m.Per, m.Keys = keyKinds[k%len(keyKinds)], 1
		if k%2 == 0 {
			m.Params = meter.SlidingCounter{Limit: maximal, Window: year}
		}
	}
	return first
}

// TestStack holds that the stack of each program fits older kernels, too, which
// round the frame of each function up to 32 bytes.
func TestStack(t *testing.T) {
	needRoot(t)
	t.Parallel()
	for _, hook := range allEntries {
		policy := oneClass(dataplane.Class{Meter: keyedChain(), Red: &dataplane.Action{ECN: dataplane.CEOrDrop, Marks: []dataplane.Mark{{Field: dataplane.DSCP, Value: 1}, {Field: dataplane.PCP, Value: 1}}}})
		if hook != xdpEntry {
			policy.Classes[0].Yellow = &dataplane.Action{Queue: &dataplane.Queue{Config: askingAll}}
		}
		g, err := encodePolicy(policy, hook, "")
		if err != nil {
			t.Fatal(err)
		}
		spec, err := bpf.LoadShaper()
		if err != nil {
			t.Fatal(err)
		}
		g.constants.Link = uint8(dataplane.LinkEthernet)
		if err := spec.Variables[bpf.ShaperVarPolicy].Set(g.constants); err != nil {
			t.Fatal(err)
		}
		for name := range spec.Programs {
			if name != programs[hook] {
				delete(spec.Programs, name)
			}
		}
		c, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{Programs: ebpf.ProgramOptions{LogLevel: ebpf.LogLevelStats}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		log := c.Programs[programs[hook]].VerifierLog
		_, list, _ := strings.Cut(log, "stack depth ")
		list, _, _ = strings.Cut(list, "\n")
		deepest, own := 0, 0
		for i, text := range strings.Split(list, "+") { // of the program, then of what it calls, which calls nothing
			n, err := strconv.Atoi(strings.TrimSpace(text))
			if err != nil {
				t.Fatalf("%v in %q", err, log)
			}
			if n = (n + 31) &^ 31; i == 0 {
				own = n
			} else {
				deepest = max(deepest, n)
			}
		}
		t.Logf("hook %d: %s, %d of 512 bytes", hook, list, own+deepest)
		if own+deepest > 512 {
			t.Errorf("hook %d: %d and %d bytes of stack: kernels before 6.9 take 512", hook, own, deepest)
		}
	}
}

// TestKeyRefusals holds that what has more state than the kernel plane keeps is
// refused by the field that asks for it, with what to do.
func TestKeyRefusals(t *testing.T) {
	t.Parallel()
	rate := bps(1e6)
	tables := &dataplane.Policy{}
	for i := range MaxTables + 1 {
		m := &dataplane.Meter{Name: fmt.Sprint(i), Params: meter.TokenBucket{Rate: rate, Burst: 9000}, Per: dataplane.Key{By: dataplane.ByFlow}, Keys: 1}
		tables.Classes = append(tables.Classes, dataplane.Class{Name: m.Name, Meter: m, Match: dataplane.Match{Length: []dataplane.Range{{First: uint32(i), Last: uint32(i)}}}})
	}
	one := func(m dataplane.Meter) *dataplane.Policy { return oneClass(dataplane.Class{Meter: &m}) }
	flow := meter.TRTCM4115{CIR: rate, CBS: 9000, EIR: rate, EBS: 9000}
	for _, test := range []struct {
		name, field, reason string
		policy              *dataplane.Policy
	}{
		{"sliding-window", "type", "sliding-window cannot run in the kernel", one(dataplane.Meter{Params: meter.SlidingWindow{Limit: 1, Window: time.Second, Slots: 10}})},
		{"sliding-log", "type", "sliding-log cannot run in the kernel", one(dataplane.Meter{Params: meter.SlidingLog{Limit: 1, Window: time.Second, Entries: 10}})},
		{"tswtcm", "type", "tswtcm cannot run in the kernel", one(dataplane.Meter{Params: meter.TSWTCM{CIR: rate, PIR: rate, Window: time.Second}})},
		{"warmup", "warmup", "cannot run in the kernel", one(dataplane.Meter{Params: meter.TokenBucket{Rate: rate, Burst: 9000, Warmup: time.Second}})},
		{"burst", "burst", "of 1073741824 bytes exceeds the largest burst that 64 bits count exactly at this rate, 437256155 bytes", one(dataplane.Meter{Params: meter.TokenBucket{Rate: meter.Per(1<<30, 24*time.Hour), Burst: 1 << 30}})},
		{"pbs", "pbs", "of 72057595 bytes", one(dataplane.Meter{Params: meter.TRTCM{CIR: rate, CBS: 9000, PIR: bps(1e9 + 1), PBS: 72057595}})},
		{"unlimited", "ebs", "has an unlimited rate", one(dataplane.Meter{Params: meter.TRTCM4115{CIR: rate, CBS: 9000, EIR: meter.Unlimited, EBS: 1}})},
		{"envelope", "envelope", "cannot run in the kernel", one(dataplane.Meter{Params: flow, Envelope: &dataplane.Envelope{Name: "e"}, Rank: 1})},
		{"idle", "evict", "evict: lru", one(dataplane.Meter{Params: flow, Per: dataplane.Key{By: dataplane.BySrc}, Idle: true})},
		{"tables", "meters", "65 with a meter for each key are more than the 64", tables},
	} {
		for _, hook := range allEntries {
			_, err := encodePolicy(test.policy, hook, "")
			faults := fieldErrors(err)
			if len(faults) != 1 || faults[0].Field != test.field || !strings.Contains(faults[0].Reason, test.reason) {
				t.Errorf("%s at hook %d: %v: want one fault in %s, %q", test.name, hook, err, test.field, test.reason)
				continue
			}
			if r := remedyOf(err); test.name != "tables" && r != UseUserSpace {
				t.Errorf("%s: %v: remedy %q", test.name, err, r)
			}
		}
	}
	tables.Classes = tables.Classes[1:]
	if _, err := encodePolicy(tables, xdpEntry, ""); err != nil {
		t.Errorf("%d tables: %v", MaxTables, err)
	}
}

// TestTableSlots holds that there are slots for as many tables as a policy may
// have, beside those of the policy before, and that none is used twice.
func TestTableSlots(t *testing.T) {
	t.Parallel()
	spec, err := bpf.LoadShaper()
	if err != nil {
		t.Fatal(err)
	}
	var about About
	old := map[string]int32{}
	for step, change := range []struct {
		kept   int // of the classes
		shared bool
		burst  int64
	}{{0, false, 3000}, {MaxTables, false, 3000}, {MaxTables / 2, false, 3000}, {MaxTables, false, 4000}, {MaxTables, true, 4000}, {MaxTables, false, 4000}, {0, false, 4000}} {
		policy := &dataplane.Policy{}
		one := &dataplane.Meter{Name: "one", Params: meter.TokenBucket{Rate: bps(1e6), Burst: change.burst}, Per: dataplane.Key{By: dataplane.BySrc}, Keys: 7}
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
		g, err := encodePolicy(policy, egressEntry, "")
		if err != nil {
			t.Fatal(err)
		}
		g.inherit(&about)
		seen, now := map[int32]bool{}, map[string]int32{}
		for i, c := range g.classes {
			table, name := g.stages[c.Stage].Table, policy.Classes[i].Name
			if table < 0 || uint32(table) >= spec.Maps[bpf.ShaperMapKnownKeys].MaxEntries || seen[table] && !change.shared {
				t.Fatalf("step %d: class %s has table %d", step, name, table)
			}
			seen[table], now[name] = true, table
		}
		for name, was := range old {
			table, kept := now[name]
			same := step == 1 || step == 2 // the others have another burst, or shared one
			if kept && same && table != was {
				t.Errorf("step %d: %s had table %d and has %d", step, name, was, table)
			}
			if step == 3 && seen[was] {
				t.Errorf("step %d: table %d stays, and its keys have another burst", step, was)
			}
		}
		old = now
		about.recordImage(g)
	}
}
