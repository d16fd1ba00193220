package meter

import (
	"fmt"
	"hash/maphash"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

const manyKeys = 1_000_000

// manyTable is a table with room for a million keys.
func manyTable(tb testing.TB, seed maphash.Seed) *Table[uint64] {
	t := &Table[uint64]{}
	if err := t.init(compileProfile(tb, TokenBucket{Rate: BitRate(1e9), Burst: 65536}),
		TableConfig{Keys: manyKeys}, seed); err != nil {
		tb.Fatal(err)
	}
	return t
}

func fillTable(t *Table[uint64]) {
	for key := range uint64(manyKeys) {
		t.Color(key, 0, 0, Green)
	}
}

func manyPicks() []uint64 {
	r := rand.New(rand.NewPCG(1, 2))
	picks := make([]uint64, 1<<20)
	for i := range picks {
		picks[i] = r.Uint64N(manyKeys)
	}
	return picks
}

// BenchmarkTable has a million keys: random hits a packet at a time and in bursts
// of 32, and new keys, each of which evicts one.
func BenchmarkTable(b *testing.B) {
	t := manyTable(b, maphash.MakeSeed())
	fillTable(t)
	benchmarkTable(b, t)
}

// BenchmarkTableSet is BenchmarkTable after a Set of three quarters of the keys, with a
// thousand profiles.
func BenchmarkTableSet(b *testing.B) {
	t := manyTable(b, maphash.MakeSeed())
	fillTable(t)
	var own []*Profile
	for i := range int64(1000) {
		own = append(own, compileProfile(b, TokenBucket{Rate: BitRate(1e9 + i*1e6), Burst: 65536}))
	}
	for key := range uint64(manyKeys * 3 / 4) {
		if err := t.Set(key, 0, own[key%1000]); err != nil {
			b.Fatal(err)
		}
	}
	benchmarkTable(b, t)
	now := int64(0)
	b.Run("set", func(b *testing.B) { // another profile for a key
		for i := range b.N {
			now += 100
			key := uint64(i*7919) % (manyKeys * 3 / 4)
			if err := t.Set(key, now, own[i%1000]); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func benchmarkTable(b *testing.B, t *Table[uint64]) {
	picks := manyPicks()
	now := int64(0)
	b.Run("hits", func(b *testing.B) {
		for i := range b.N {
			now += 100
			t.Color(picks[i&(len(picks)-1)], now, 100, Green)
		}
	})
	b.Run("bursts", func(b *testing.B) {
		lengths, colors := slices.Repeat([]int{100}, 32), make([]Color, 32)
		for i := 0; i < b.N; i += 32 {
			now += 3200
			at := i & (len(picks) - 1)
			t.ColorEach(picks[at:at+32], now, lengths, nil, colors)
		}
	})
	b.Run("new", func(b *testing.B) {
		next := uint64(manyKeys)
		for range b.N {
			now += 100
			t.Color(next, now, 100, Green)
			next++
		}
	})
}

// BenchmarkTableSlowest reports the slowest call of Color among a million that fill a
// table, a million random hits, and a million that evict a key each. It makes the same calls
// to several tables and counts the fastest of each, to exclude interruptions by other work
// of the machine.
func BenchmarkTableSlowest(b *testing.B) {
	picks := manyPicks()[:manyKeys]
	names := []string{"fill", "hit", "new"}
	for range b.N {
		seed := maphash.MakeSeed()
		fastest := make([]time.Duration, len(names)*manyKeys)
		for round := range 7 {
			t := manyTable(b, seed)
			call := 0
			each := func(key uint64) {
				start := time.Now()
				t.Color(key, int64(call), 100, Green)
				if d := time.Since(start); round == 0 || d < fastest[call] {
					fastest[call] = d
				}
				call++
			}
			for key := range uint64(manyKeys) {
				each(key)
			}
			for _, key := range picks {
				each(key)
			}
			for key := range uint64(manyKeys) {
				each(manyKeys + key)
			}
		}
		for i, name := range names {
			part := fastest[i*manyKeys : (i+1)*manyKeys]
			slices.Sort(part)
			b.ReportMetric(float64(part[manyKeys-1]), fmt.Sprintf("ns/%s-slowest", name))
			b.ReportMetric(float64(part[manyKeys/2]), fmt.Sprintf("ns/%s-median", name))
		}
	}
}

// BenchmarkTableSaved saves and restores a million keys.
func BenchmarkTableSaved(b *testing.B) {
	t := manyTable(b, maphash.MakeSeed())
	fillTable(t)
	var data []byte
	b.Run("save", func(b *testing.B) {
		for range b.N {
			var err error
			if data, err = t.AppendBinary(data[:0]); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(len(data))/manyKeys, "B/key")
	})
	b.Run("restore", func(b *testing.B) {
		for range b.N {
			if err := t.UnmarshalBinary(data); err != nil {
				b.Fatal(err)
			}
		}
	})
}
