package kernel

import (
	"testing"

	"github.com/a-seed-32e5a53f/shaper/bpf"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// encoded compiles and encodes a policy.
func encoded(policy *dataplane.Policy, to entry, pacer Pacer) (*image, error) {
	plan, err := dataplane.Compile(policy)
	if err != nil {
		return nil, err
	}
	return encode(plan, to, pacer)
}

// programClock reads the clock of the programs, ns.
func programClock(t *testing.T) int64 {
	t.Helper()
	now, err := monotonic()
	if err != nil {
		t.Fatal(err)
	}
	return int64(now)
}

// prefixesIn reads the numbers of all keys, and how they are searched.
func prefixesIn(t *testing.T, maps *stateMaps) (map[prefixKey]uint32, *bpf.ShaperPrefixSearch) {
	t.Helper()
	table, err := maps.openPrefixes()
	if err != nil {
		t.Fatal(err)
	}
	defer table.close()
	out := map[prefixKey]uint32{}
	for slot := range table.slots() {
		if slot.number() == neverUsed || slot.number() == removed {
			continue
		}
		if out[slot.key()] != 0 {
			t.Fatalf("%v is in the table twice", slot.key())
		}
		out[slot.key()] = slot.number()
	}
	return out, &table.search
}
