package image

import (
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/bpf"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/kerneltest"
)

// newPrefixTable returns a table in memory with room for n keys.
func newPrefixTable(n int) *prefixTable {
	t := &prefixTable{Buckets: make([]bpf.ShaperPrefixBucket, bucketsFor(n)), used: -1}
	t.Search.Seed = rand.Uint64()
	return t
}

// TestPrefixTableModel inserts, finds and removes random keys, and compares with a map. The table
// is as full as it may be.
func TestPrefixTableModel(t *testing.T) {
	r := kerneltest.Seeded(t)
	for range kerneltest.Rounds(10) {
		table, model := newPrefixTable(r.IntN(300)), map[PrefixKey]uint32{}
		var keys []PrefixKey // in the model
		for range 10_000 {
			key := PrefixKey{
				bpf.ShaperAddr{Hi: uint64(r.IntN(5)), Lo: uint64(r.IntN(50))},
				kerneltest.Pick[uint8](r, 0, 64, 128, IPv4Prefix, number),
			}
			slot, has := table.find(key)
			if has != (model[key] != 0) || has && slot.Customer() != model[key] {
				t.Fatalf("key %v: found %v, want %d", key, has, model[key])
			}
			switch number := 1 + r.Uint32N(Taken-1); {
			case has && r.IntN(2) == 0:
				slot.SetNumber(number)
				model[key] = number
			case !has && len(keys) < table.mostUsed():
				slot, err := table.Take(key)
				if err != nil {
					t.Fatal(err)
				}
				if _, has := table.find(key); has {
					t.Fatalf("key %v is found before it has a number", key)
				}
				slot.SetNumber(number)
				model[key], keys = number, append(keys, key)
			case len(keys) > 0:
				i := r.IntN(len(keys))
				slot, has := table.find(keys[i])
				if !has {
					t.Fatalf("key %v is lost", keys[i])
				}
				table.remove(slot)
				delete(model, keys[i])
				keys[i] = keys[len(keys)-1]
				keys = keys[:len(keys)-1]
			}
		}
		for _, key := range keys {
			if slot, has := table.find(key); !has || slot.Customer() != model[key] {
				t.Fatalf("key %v is lost", key)
			}
		}
	}
}

// TestPrefixChurn replaces keys at random for long. Removed keys must not fill the table.
func TestPrefixChurn(t *testing.T) {
	r := kerneltest.Seeded(t)
	const n = 2000
	table := newPrefixTable(n)
	table.countUsed()
	var keys []PrefixKey
	for i := range 200_000 {
		key := PrefixKey{bpf.ShaperAddr{Hi: r.Uint64(), Lo: uint64(i)}, 128}
		slot, err := table.Take(key)
		if err != nil {
			t.Fatal(err)
		}
		slot.SetNumber(1)
		if keys = append(keys, key); len(keys) <= n {
			continue
		}
		k := r.IntN(len(keys))
		slot, has := table.find(keys[k])
		if !has {
			t.Fatalf("key %v is lost", keys[k])
		}
		table.remove(slot)
		keys[k] = keys[n]
		keys = keys[:n]
	}
	used := table.countUsed()
	if table.used = -1; used != table.countUsed() {
		t.Errorf("counted %d used slots, there are %d", used, table.countUsed())
	}
	if most := n + n/4; used > most { // without tidying the table is full after 10,000 keys
		t.Errorf("%d slots are used for %d keys, want at most %d", used, n, most)
	}
	for _, key := range keys {
		if _, has := table.find(key); !has {
			t.Fatalf("key %v is lost", key)
		}
	}
}

// TestPrefixSearchesAreShort checks the hash: of the addresses that operators assign in order, few
// are not in the first bucket.
func TestPrefixSearchesAreShort(t *testing.T) {
	const n = 50_000
	for name, key := range map[string]func(i uint64) PrefixKey{
		"addresses in order": func(i uint64) PrefixKey { return PrefixKey{bpf.ShaperAddr{Lo: 10<<24 + i}, IPv4Prefix + 32} },
		"each 256th address": func(i uint64) PrefixKey { return PrefixKey{bpf.ShaperAddr{Lo: i << 8}, IPv4Prefix + 24} },
		"/48 in order":       func(i uint64) PrefixKey { return PrefixKey{bpf.ShaperAddr{Hi: 0x20010db8<<32 + i<<16}, 48} },
		"/64 in order":       func(i uint64) PrefixKey { return PrefixKey{bpf.ShaperAddr{Hi: 0x20010db8<<32 + i}, 64} },
		"/128 in order":      func(i uint64) PrefixKey { return PrefixKey{bpf.ShaperAddr{Hi: 0x20010db8 << 32, Lo: i}, 128} },
		"a /128 in each /64": func(i uint64) PrefixKey { return PrefixKey{bpf.ShaperAddr{Hi: 0x20010db8<<32 + i, Lo: 1}, 128} },
		"both halves alike":  func(i uint64) PrefixKey { return PrefixKey{bpf.ShaperAddr{Hi: i, Lo: i}, 128} },
		"VLANs":              func(i uint64) PrefixKey { return PrefixKey{bpf.ShaperAddr{Lo: i}, number} },
	} {
		table, longest, total := newPrefixTable(n), 0, 0
		for i := range uint64(n) {
			slot, err := table.Take(key(i))
			if err != nil {
				t.Fatal(err)
			}
			slot.SetNumber(1)
		}
		for i := range uint64(n) {
			slots := 0
			for slot := range table.probes(key(i)) {
				slots++
				if slot.Key() == key(i) {
					break
				}
			}
			buckets := (slots + bucketPrefixes - 1) / bucketPrefixes
			longest, total = max(longest, buckets), total+buckets
		}
		mean := float64(total) / n
		t.Logf("%s: %.3f buckets, at most %d", name, mean, longest)
		if mean > 1.25 || longest > 40 { // a random function needs 1.13
			t.Errorf("%s: %.3f buckets, at most %d", name, mean, longest)
		}
	}
}

// TestFullPrefixTable checks that a full table takes no key, and that fits says so before.
func TestFullPrefixTable(t *testing.T) {
	table := newPrefixTable(0)
	list := []dataplane.Customer{{IDs: nil}}
	for id := range uint64(len(table.Buckets) * bucketPrefixes) {
		list[0].IDs = append(list[0].IDs, id)
	}
	list[0].IDs = list[0].IDs[:table.mostUsed()]
	if !table.fits(list, nil) {
		t.Error("the table has room")
	}
	list[0].IDs = append(list[0].IDs, 1<<23)
	if table.fits(list, nil) {
		t.Error("the table has no room")
	}
	for i := range uint64(len(table.Buckets) * bucketPrefixes) {
		if _, err := table.Take(PrefixKey{bpf.ShaperAddr{Lo: i}, number}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := table.Take(PrefixKey{}); !errors.Is(err, ErrNoRoom) {
		t.Errorf("got error %v", err)
	}
	if _, has := table.find(PrefixKey{}); has {
		t.Error("found a key that the table does not have")
	}
}
