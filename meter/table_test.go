package meter

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"
)

type fiveTuple struct {
	Src          [16]byte
	Proto        uint8
	Sport, Dport uint16
}

func number(n uint64) uint64 { return n }

func keyText(n uint64) string { return string(binary.AppendUvarint(nil, n)) }

func tuple(n uint64) fiveTuple {
	return fiveTuple{Src: [16]byte{15: byte(n)}, Proto: 17, Sport: uint16(n), Dport: 53}
}

func TestTable(t *testing.T) {
	r := logged(t)
	for range 150 {
		compareTable(t, r, number, 400)
		compareTable(t, r, keyText, 100)
		compareTable(t, r, tuple, 100)
	}
}

func FuzzTable(f *testing.F) {
	for seed := range uint64(4) {
		f.Add(seed, uint8(seed))
	}
	f.Add(uint64(527), uint8('Z')) // the same log again
	f.Fuzz(func(t *testing.T, seed uint64, kind uint8) {
		r := rand.New(rand.NewPCG(seed, uint64(kind)))
		switch kind % 3 {
		case 0:
			compareTable(t, r, number, 300)
		case 1:
			compareTable(t, r, keyText, 300)
		case 2:
			compareTable(t, r, tuple, 300)
		}
	})
}

// TestTableLRU compares the keys that a large table evicts with the exact order of use, in
// several patterns of use.
func TestTableLRU(t *testing.T) {
	r := logged(t)
	const keys = 5000
	p := compileProfile(t, TokenBucket{Rate: BitRate(8e6), Burst: 100})
	table, err := NewTable[uint64](p, TableConfig{Keys: keys})
	if err != nil {
		t.Fatal(err)
	}
	lastUse := map[uint64]int{}
	order := []uint64{} // keys by use; a key may be in it more than once
	oldest := 0
	use := func(key uint64) {
		_, known := lastUse[key]
		if !known && len(lastUse) == keys {
			for lastUse[order[oldest]] != oldest {
				oldest++
			}
			gone := order[oldest]
			delete(lastUse, gone)
			table.Color(key, 0, 1, Green)
			if _, _, known := table.Tokens(gone, 0); known {
				t.Fatalf("the least recently used key %d was not evicted", gone)
			}
			if _, _, known := table.Tokens(order[len(order)-1], 0); !known {
				t.Fatal("the most recently used key was evicted")
			}
		} else {
			table.Color(key, 0, 1, Green)
		}
		lastUse[key] = len(order)
		order = append(order, key)
	}
	next := uint64(0)
	for round := range 12 {
		for range keys {
			use(next)
			next++
			if round > 2 && r.IntN(2) == 0 {
				use(next - 1 - r.Uint64N(min(next, keys)))
			}
		}
		for i := range uint64(keys) { // use the keys in groups
			if i%uint64(2+round%4) == 0 && next > keys {
				use(next - keys + i)
			}
		}
	}
	if got := table.Stats(); got.Keys != keys || got.Refused != 0 || got.Evicted < 10*keys {
		t.Errorf("got %+v, want %d keys, none refused, many evicted", got, keys)
	}
}

// TestTableAllocatesNothing adds, evicts and uses keys, at last those with even numbers, so
// that the order of all of them has changed.
func TestTableAllocatesNothing(t *testing.T) {
	const keys = 1 << 17
	p := compileProfile(t, TokenBucket{Rate: BitRate(8e6), Burst: 1000})
	var tables []*Table[uint64]
	for range 6 { // for all calls of allocations
		table, err := NewTable[uint64](p, TableConfig{Keys: keys})
		if err != nil {
			t.Fatal(err)
		}
		tables = append(tables, table)
	}
	if n := allocations(func() {
		table := tables[0]
		tables = tables[1:]
		for key := range uint64(keys) {
			table.Color(key, 0, 1, Green)
		}
		for step := uint64(64); step > 0; step /= 4 {
			for key := uint64(0); key < keys; key += step {
				table.Color(key, 1, 1, Green)
			}
			for key := range uint64(keys / 16) {
				table.Decide(keys*step+key, 2, 1)
				table.Peek(key, 2, 1, Green)
				table.RetryAfter(key, 2, 1)
				table.Delete(keys*step + key/2)
			}
		}
	}); n != 0 {
		t.Errorf("got %v allocations, want 0", n)
	}
}

// TestTableSpray has a sender that uses ever new keys. With Idle it cannot evict keys whose
// meters lack tokens; without Idle it can.
func TestTableSpray(t *testing.T) {
	p := compileProfile(t, TokenBucket{Rate: ByteRate(1000), Burst: 1000})
	for _, idle := range []bool{true, false} {
		table, err := NewTable[uint64](p, TableConfig{Keys: 100, Idle: idle})
		if err != nil {
			t.Fatal(err)
		}
		now := int64(0)
		var busy int64
		spray := uint64(1000)
		for range 2000 { // one second
			now += 500_000
			for key := range uint64(10) {
				if table.Color(key, now, 100, Green) == Green {
					busy += 100
				}
			}
			for range 200 {
				spray++
				table.Color(spray, now, 100, Green)
			}
		}
		most := int64(10 * 1900) // whole packets of burst and rate
		switch got := table.Stats(); {
		case idle && (busy != most || got.Refused == 0 || got.Keys != 100):
			t.Errorf("idle: got %d green of %d and %+v, want all and 100 keys", busy, most, got)
		case !idle && busy <= 10*most:
			t.Errorf(
				"LRU: got %d green, want more than 10 times %d: the spray did not evict the busy keys, %+v",
				busy, most, got)
		}
	}
	// Without Idle, a key stays if fewer than Keys other keys come between two of its packets.
	table, _ := NewTable[uint64](p, TableConfig{Keys: 100})
	spray := uint64(1000)
	for i := range 1000 {
		if got := table.Color(1, 0, 100, Green); (got == Green) != (i < 10) {
			t.Fatalf("packet %d: got %v, want the first 10 green", i, got)
		}
		for range 99 {
			spray++
			table.Color(spray, 0, 1, Green)
		}
	}
}

func TestTableNaN(t *testing.T) {
	table, _ := NewTable[float64](compileProfile(t, TokenBucket{Rate: BitRate(8e6), Burst: 10}),
		TableConfig{Keys: 4})
	green := 0
	for range 100 {
		if table.Color(math.NaN(), 0, 1, Green) == Green {
			green++
		}
	}
	if got := table.Stats(); green != 10 || got.Keys != 0 || got.Refused != 100 {
		t.Errorf("got %d green and %+v, want 10, no keys and 100 refused", green, got)
	}
}

func tokensOf(m *Meter, now int64) [2]int64 {
	tc, te := m.Tokens(now)
	return [2]int64{tc, te}
}

// TestTableColorEach compares bursts with single packets. Some keys are in a burst twice, and
// some are evicted and added again within it.
func TestTableColorEach(t *testing.T) {
	r := logged(t)
	for range 300 {
		p := compileProfile(t, tableParams(r))
		config := TableConfig{Keys: 1 + r.IntN(40), Idle: r.IntN(2) == 0}
		one, err := NewTable[uint64](p, config)
		if err != nil {
			t.Fatal(err)
		}
		each, _ := NewTable[uint64](p, config)
		c, _ := p.Bursts()
		now := int64(0)
		for range 20 {
			n := r.IntN(100)
			keys, lengths, colors, want := make([]uint64, n), make([]int, n), make([]Color, n),
				make([]Color, n)
			now += r.Int64N(1e9)
			for i := range keys {
				keys[i], lengths[i] = r.Uint64N(50), int(r.Int64N(min(c, 1e9)+2))
				colors[i] = Color(r.IntN(3))
				want[i] = one.Color(keys[i], now, lengths[i], colors[i])
			}
			each.Prefetch(keys)
			each.ColorEach(keys, now, lengths, colors, colors)
			for i := range want {
				if colors[i] != want[i] {
					t.Fatalf("%v, %+v, packet %d of key %d: got %v, want %v", p.Kind(), config, i, keys[i],
						colors[i], want[i])
				}
			}
			if one.Stats() != each.Stats() {
				t.Fatalf("%v: got %+v, want %+v", p.Kind(), each.Stats(), one.Stats())
			}
		}
	}
	table, _ := NewTable[uint64](compileProfile(t, TokenBucket{Rate: BitRate(1e6), Burst: 3000}),
		TableConfig{Keys: 8})
	keys, lengths, colors := []uint64{1, 2, 3, 1}, []int{100, 100, 100, 100}, make([]Color, 4)
	if n := testing.AllocsPerRun(100, func() { table.ColorEach(keys, 5, lengths, nil, colors) }); n != 0 {
		t.Errorf("got %v allocations, want 0", n)
	}
}

// TestTableColorEachZeroKey meters a burst of the zero key. It is also the key of a deleted
// slot, which must not be taken for that of the key.
func TestTableColorEachZeroKey(t *testing.T) {
	table, _ := NewTable[int](compileProfile(t, TokenBucket{Rate: BitRate(1e6), Burst: 10}),
		TableConfig{Keys: 4})
	for _, key := range []int{7, 8, 0} {
		table.Color(key, 0, 10, Green)
	}
	table.Delete(7)
	colors := make([]Color, 1)
	if table.ColorEach([]int{0}, 0, []int{1}, nil, colors); colors[0] != Red {
		t.Errorf("got %v, want red: all tokens of the key were taken", colors[0])
	}
}
