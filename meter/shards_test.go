package meter

import (
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"
)

// TestShards has several goroutines with a common clock, each of which meters all keys. No key
// gets more than its burst and rate; with fewer keys than fit in each shard none gets
// less.
func TestShards(t *testing.T) {
	const keys, burst, packets = 50, 1000, 20_000
	p := compileProfile(t, TokenBucket{Rate: BitRate(8e6), Burst: burst}) // a byte per µs
	shards, err := NewShards[uint64](p, TableConfig{Keys: 8 * keys * 4}, 8)
	if err != nil {
		t.Fatal(err)
	}
	var clock atomic.Int64
	var green [keys]atomic.Int64
	var wg sync.WaitGroup
	for g := range uint64(4) {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(g, 0))
			for range packets {
				key, n := r.Uint64N(keys), r.IntN(200)
				if shards.Color(key, clock.Add(10), n, Green) == Green {
					green[key].Add(int64(n))
				}
				if r.IntN(100) == 0 {
					shards.Do(key, func(t *Table[uint64]) { t.Tokens(key, clock.Load()) })
					shards.Stats()
				}
			}
		})
	}
	wg.Wait()
	most := burst + clock.Load()/1000
	for key := range green {
		if got := green[key].Load(); got > most || got < most-burst {
			t.Errorf("key %d: got %d green bytes, want %d to %d", key, got, most-burst, most)
		}
	}
	if got := shards.Stats(); got != (TableStats{Keys: keys}) {
		t.Errorf("got %+v, want %d keys", got, keys)
	}
	if shards.Color(1000, 0, 0, Red) != Red || shards.Stats().Keys != keys {
		t.Error("a packet with the input color Red added a key")
	}
}

// TestShardsBound has more keys than fit. At most Keys are in the table, and all shards are
// used. With Idle, keys are refused instead of evicted: no meter is as good as new.
func TestShardsBound(t *testing.T) {
	p := compileProfile(t, TokenBucket{Rate: BitRate(8e6), Burst: 10})
	for _, c := range []struct{ keys, shards int }{{10, 4}, {1, 1}, {7, 7}, {1000, 16}, {5, 3}} {
		shards, err := NewShards[string](p, TableConfig{Keys: c.keys}, c.shards)
		if err != nil {
			t.Fatal(err)
		}
		idle, err := NewShards[string](p, TableConfig{Keys: c.keys, Idle: true}, c.shards)
		if err != nil {
			t.Fatal(err)
		}
		for key := range uint64(20 * c.keys) {
			shards.Color(keyText(key), 0, 1, Green)
			idle.Color(keyText(key), 0, 1, Green)
		}
		got := shards.Stats()
		if got.Keys > c.keys || got.Keys < c.keys/c.shards*c.shards ||
			got.Keys+int(got.Evicted) != 20*c.keys {
			t.Errorf("%+v: got %+v, want full shards and %d keys in all", c, got, 20*c.keys)
		}
		got = idle.Stats()
		if got.Keys > c.keys || got.Evicted != 0 || got.Keys+int(got.Refused) != 20*c.keys {
			t.Errorf("%+v with Idle: got %+v", c, got)
		}
	}
}

// TestShardsKeys compares all calls for one key, and for all keys, with a map of meters.
func TestShardsKeys(t *testing.T) {
	r := logged(t)
	p := compileProfile(t, TokenBucket{Rate: BitRate(8e6), Burst: 1000})
	shards, err := NewShards[string](p, TableConfig{Keys: 16 * 300}, 16)
	if err != nil {
		t.Fatal(err)
	}
	model := map[string]*Meter{}
	get := func(key string, makes bool) *Meter {
		m := model[key]
		if m == nil {
			fresh := New(p)
			if m = &fresh; makes {
				model[key] = m
			}
		}
		return m
	}
	now := int64(0)
	for i := range 20_000 {
		now += r.Int64N(3000)
		key, n := keyText(r.Uint64N(100)), r.IntN(1100)
		if got, want := shards.Peek(key, now, n, Green), get(key, false).Peek(now, n, Green); got != want {
			t.Fatalf("step %d: Peek %v, want %v", i, got, want)
		}
		after, ever := shards.RetryAfter(key, now, n)
		if wantAfter, wantEver := get(key, false).RetryAfter(now, n); after != wantAfter || ever != wantEver {
			t.Fatalf("step %d: RetryAfter %v, %v, want %v, %v", i, after, ever, wantAfter, wantEver)
		}
		switch r.IntN(8) {
		case 0:
			_, want := model[key]
			delete(model, key)
			if got := shards.Delete(key); got != want {
				t.Fatalf("step %d: Delete %v, want %v", i, got, want)
			}
		case 1, 2, 3:
			if got, want := shards.Decide(key, now, n), get(key, true).Decide(now, n); got != want {
				t.Fatalf("step %d: got %+v, want %+v", i, got, want)
			}
		default:
			if got, want := shards.Color(key, now, n, Green),
				get(key, true).Color(now, n, Green); got != want {
				t.Fatalf("step %d: got %v, want %v", i, got, want)
			}
		}
		if i%500 > 0 {
			continue
		}
		seen := map[string]bool{}
		for key, m := range shards.All() {
			if want := model[key]; seen[key] || want == nil || tokensOf(m, now) != tokensOf(want, now) {
				t.Fatalf("step %d: key %q: got %v, seen before: %v, want %+v", i, key, tokensOf(m, now),
					seen[key], want)
			}
			seen[key] = true
			shards.Peek(key, now, 1, Green) // would deadlock if a lock were held
			if len(seen) == 90 {
				break
			}
		}
		if len(seen) != min(len(model), 90) || shards.Len() != len(model) ||
			shards.Stats().Keys != len(model) {
			t.Fatalf("step %d: got %d keys seen, Len %d, %+v, want %d", i, len(seen), shards.Len(),
				shards.Stats(), len(model))
		}
	}
	if n := testing.AllocsPerRun(100, func() {
		shards.Decide("new", now, 100)
		shards.Peek("new", now, 100, Green)
		shards.RetryAfter("new", now, 100)
		shards.Delete("new")
	}); n != 0 {
		t.Errorf("got %v allocations, want 0", n)
	}
}

// TestShardsConcurrent makes all calls for the same keys from several goroutines. At the end All
// returns the keys that are in the table, and they can be deleted.
func TestShardsConcurrent(t *testing.T) {
	p := compileProfile(t, SlidingLog{Limit: 1000, Window: 1e9, Entries: 5})
	shards, err := NewShards[uint64](p, TableConfig{Keys: 64}, 4)
	if err != nil {
		t.Fatal(err)
	}
	var clock atomic.Int64
	var wg sync.WaitGroup
	for g := range uint64(4) {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(g, 1))
			for range 5000 {
				key, now := r.Uint64N(100), clock.Add(1000)
				switch r.IntN(6) {
				case 0:
					shards.Delete(key)
				case 1:
					shards.Peek(key, now, 100, Green)
				case 2:
					shards.RetryAfter(key, now, 100)
				case 3:
					shards.Color(key, now, 100, Green)
				default:
					shards.Decide(key, now, 100)
				}
				if r.IntN(100) == 0 {
					for key, m := range shards.All() {
						if m.Color(now, 1, Green); key >= 100 {
							t.Errorf("All returned key %d, want below 100", key)
						}
					}
				}
				if n := shards.Len(); n > 64 {
					t.Errorf("got %d keys, want at most 64", n)
				}
			}
		})
	}
	wg.Wait()
	n := shards.Len()
	for key := range shards.All() {
		if !shards.Delete(key) {
			t.Errorf("All returned key %d, which is not in the table", key)
		}
		n--
	}
	if n != 0 || shards.Len() != 0 {
		t.Errorf("All missed %d keys; got %d keys left, want 0", n, shards.Len())
	}
}

// TestShardsSavedAtChange saves while another goroutine changes the profile of all shards. All saved
// shards have the same profile.
func TestShardsSavedAtChange(t *testing.T) {
	p, q := compileProfile(t, TokenBucket{Rate: ByteRate(1), Burst: 1000}),
		compileProfile(t, TokenBucket{Rate: ByteRate(2), Burst: 1000})
	shards, err := NewShards[int](p, TableConfig{Keys: 1000}, 100)
	if err != nil {
		t.Fatal(err)
	}
	for key := range 500 {
		shards.Color(key, 0, 1, Green)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := range 300 {
			if err := shards.SetProfile(0, []*Profile{q, p}[i%2]); err != nil {
				t.Error(err)
			}
		}
	})
	failed := 0
	for range 150 {
		if _, err := shards.AppendBinary(nil); err != nil {
			failed++
		}
	}
	wg.Wait()
	if failed > 0 {
		t.Errorf("%d of 150 times saving failed", failed)
	}
}

// TestTableErrors has each error of a table.
func TestTableErrors(t *testing.T) {
	bucket := compileProfile(t, TokenBucket{Rate: BitRate(8e6), Burst: 10})
	log := compileProfile(t, SlidingLog{Limit: 10, Window: 1e9, Entries: 1 << 20})
	for _, test := range []struct {
		p      *Profile
		config TableConfig
		shards int
		want   string
	}{
		{bucket, TableConfig{}, 0, "keys 0 are not between 1 and 4194304"},
		{bucket, TableConfig{Keys: MaxKeys + 1}, 0, "keys 4194305 are not between 1 and 4194304"},
		{log, TableConfig{Keys: 65}, 0, "keys 65 with a log of 1048576 entries each exceed 67108864 entries in total"},
		{bucket, TableConfig{Keys: 1, Idle: true, Empty: true}, 0, "new must be full if only idle keys are evicted: an evicted key would return with fewer tokens"},
		{bucket, TableConfig{Keys: 4}, 5, "shards 5 are not between 1 and the number of keys"},
		{bucket, TableConfig{Keys: 4}, -1, "shards -1 are not between 1 and the number of keys"},
	} {
		var err error
		if test.shards == 0 {
			_, err = NewTable[int](test.p, test.config)
		} else {
			_, err = NewShards[int](test.p, test.config, test.shards)
		}
		if err == nil || err.Error() != test.want {
			t.Errorf("got %v, want %q", err, test.want)
		}
	}
	for p, keys := range map[*Profile]int{bucket: MaxKeys, log: 64} {
		if err := (TableConfig{Keys: keys}).Validate(p); err != nil {
			t.Errorf("%v with the largest number of keys: got %v", p.Kind(), err)
		}
	}
	table, err := NewTable[int](bucket, TableConfig{Keys: 10})
	if err != nil {
		t.Fatal(err)
	}
	table.Color(1, 0, 4, Green)
	otherLog := compileProfile(t, SlidingLog{Limit: 10, Window: 1e9, Entries: 5})
	const want = "type of a table cannot change to or from a kind with a log"
	if err := table.SetProfile(0, otherLog); err == nil || err.Error() != want {
		t.Error(err)
	}
	if tc, _, _ := table.Tokens(1, 0); tc != 6 {
		t.Errorf("got %d tokens after a refused SetProfile, want 6", tc)
	}
}

func TestMemory(t *testing.T) {
	const state = 24 + int(unsafe.Sizeof(uintptr(0)))
	for _, test := range []struct {
		params compiler
		want   int
	}{
		{TokenBucket{Rate: BitRate(8e6), Burst: 10}, state},
		{FixedWindow{Limit: 10, Window: 1e9}, state},
		{SlidingWindow{Limit: 10, Window: 1e9, Slots: 10}, state + 160},
		{SlidingLog{Limit: 10, Window: 1e9, Entries: 1000}, state + 16000},
		// The largest rates of which 64 bits per bucket are enough, and those above.
		{SRTCM{CIR: Rate{1 << 50, 1}, CBS: 10, EBS: 10}, state},
		{SRTCM{CIR: Rate{1<<50 + 1, 1}, CBS: 10, EBS: 10}, state + 16},
		{TRTCM{CIR: Rate{1, 1}, CBS: 10, PIR: Rate{1 << 50, 1}, PBS: 10}, state},
		{TRTCM{CIR: Rate{1, 1}, CBS: 10, PIR: Rate{1<<50 + 1, 1}, PBS: 10}, state + 16},
	} {
		if got := compileProfile(t, test.params).Memory(); got != test.want {
			t.Errorf("%+v: got %d, want %d", test.params, got, test.want)
		}
	}
	table, _ := NewTable[uint64](compileProfile(t, TokenBucket{Rate: BitRate(8e6), Burst: 10}),
		TableConfig{Keys: 30_000})
	if got := table.Memory(); got < 30_000*(8+24+8+5) || got > 30_000*(8+24+8+6+2)+100 {
		t.Errorf("table of 30,000 keys: got %d bytes, want %d to %d", got, 30_000*(8+24+8+5),
			30_000*(8+24+8+6+2)+100)
	}
	table, _ = NewTable[uint64](compileProfile(t, SlidingLog{Limit: 10, Window: 1e9, Entries: 7}),
		TableConfig{Keys: 1000})
	if got := table.Memory(); got < 1000*(8+24+8+5+7*16) || got > 1000*(8+24+8+6+2+7*16)+100 {
		t.Errorf("table of 1000 logs: got %d bytes, want %d to %d", got, 1000*(8+24+8+5+7*16),
			1000*(8+24+8+6+2+7*16)+100)
	}
}

// TestFamilyAllocatesNothing meters by each kind, in tables with evictions.
func TestFamilyAllocatesNothing(t *testing.T) {
	for _, params := range []compiler{
		TokenBucket{Rate: BitRate(8e6), Burst: 1000},
		TokenBucket{Rate: BitRate(8e6), Burst: 1000, Warmup: 1e6},
		FixedWindow{Limit: 1000, Window: 1e6},
		SlidingWindow{Limit: 1000, Window: 1e6, Slots: 10},
		SlidingCounter{Limit: 1000, Window: 1e6},
		SlidingLog{Limit: 1000, Window: 1e6, Entries: 10},
		TSWTCM{CIR: BitRate(8e6), PIR: BitRate(8e6), Window: 1e6, Seed: 1},
	} {
		p := compileProfile(t, params)
		m := New(p)
		table, err := NewTable[uint64](p, TableConfig{Keys: 3000})
		if err != nil {
			t.Fatal(err)
		}
		shards, err := NewShards[string](p, TableConfig{Keys: 100}, 4)
		if err != nil {
			t.Fatal(err)
		}
		names := make([]string, 500)
		for i := range names {
			names[i] = keyText(uint64(i))
		}
		lengths, colors := make([]int, 8), make([]Color, 8)
		var now int64
		var key uint64
		if n := allocations(func() {
			for range 20_000 {
				now += 1000
				key++
				m.Color(now, 100, Green)
				m.Colors(now, lengths, nil, colors)
				m.Peek(now, 100, Green)
				m.Explain(now, 100, Green)
				table.Color(key, now, 100, Green)
				table.Color(key/2, now, 100, Green)
				shards.Color(names[key%500], now, 100, Green)
			}
		}); n != 0 {
			t.Errorf("%+v: got %v allocations, want 0", params, n)
		}
	}
}

// allocations returns the number of allocations in the second of two calls, the least of up
// to three attempts: the runtime allocates if it starts a thread. The garbage collector, which
// allocates as well, does not run meanwhile.
func allocations(f func()) float64 {
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	runtime.GC() // ends a running cycle
	least := testing.AllocsPerRun(1, f)
	for attempt := 1; attempt < 3 && least > 0; attempt++ {
		least = min(least, testing.AllocsPerRun(1, f))
	}
	return least
}
