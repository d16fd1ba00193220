package image

import (
	"testing"

	"github.com/a-seed-32e5a53f/shaper/bpf"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/record"
)

// encoded compiles and encodes a policy.
func encoded(policy *dataplane.Policy, to Entry, pacer record.Pacer) (*Image, error) {
	plan, err := compiled.Compile(policy)
	if err != nil {
		return nil, err
	}
	return Encode(plan, to, pacer)
}

// prefixesIn reads the numbers of all keys, and how they are searched.
func prefixesIn(t *testing.T, maps *Maps) (map[PrefixKey]uint32, *bpf.ShaperPrefixSearch) {
	t.Helper()
	table, err := maps.OpenPrefixes()
	if err != nil {
		t.Fatal(err)
	}
	defer table.Close()
	out := map[PrefixKey]uint32{}
	for slot := range table.Slots() {
		if slot.Customer() == NeverUsed || slot.Customer() == Removed {
			continue
		}
		if out[slot.Key()] != 0 {
			t.Fatalf("%v is in the table twice", slot.Key())
		}
		out[slot.Key()] = slot.Customer()
	}
	return out, &table.Search
}
