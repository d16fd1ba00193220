package meter

import (
	"math"
	"testing"
)

// TestTableSetSpray has a sender that uses ever new keys. It can evict neither the keys that were
// set, nor change their verdicts, also if there is only one place for all others, or none.
func TestTableSetSpray(t *testing.T) {
	slow := compileProfile(t, TokenBucket{Rate: ByteRate(1000), Burst: 1000})
	plans := []*Profile{
		slow,
		compileProfile(t, TokenBucket{Rate: ByteRate(5000), Burst: 2000}),
		compileProfile(t, SRTCM{CIR: ByteRate(500), CBS: 300, EBS: 700}),
	}
	for _, config := range []TableConfig{
		{Keys: 100}, {Keys: 100, Idle: true}, {Keys: 11}, {Keys: 10}, {Keys: 10, Idle: true},
	} {
		table, err := NewTable[uint64](slow, config)
		if err != nil {
			t.Fatal(err)
		}
		spray, now := uint64(1000), int64(0)
		for range 2 * config.Keys { // fill the table before the keys are set
			spray++
			table.Color(spray, now, 1000, Green)
		}
		var want []Meter
		for key := range uint64(10) {
			p := plans[key%3]
			if err := table.Set(key, now, p); err != nil {
				t.Fatalf("%+v: Set of key %d: %v", config, key, err)
			}
			want = append(want, New(p))
		}
		for i := range 2000 {
			now += 1_000_000
			for range 300 {
				spray++
				table.Color(spray, now, 100, Green)
			}
			key := uint64(i % 10)
			if got, want := table.Color(key, now, 100, Green), want[key].Color(now, 100, Green); got != want {
				t.Fatalf("%+v: packet %d of key %d: got %v, want %v", config, i, key, got, want)
			}
		}
		if table.Len() != config.Keys {
			t.Errorf("%+v: got %d keys, want a full table", config, table.Len())
		}
		known := 0
		for key, m := range table.All() {
			if key < 10 {
				known++
				if m.Profile() != plans[key%3] {
					t.Errorf("%+v: key %d has another profile", config, key)
				}
			}
		}
		if known != 10 {
			t.Errorf("%+v: got %d keys that were set, want 10", config, known)
		}
	}
}

// TestTableSet has the rules of Set, Unset, Delete and SetProfile one at a time.
func TestTableSet(t *testing.T) {
	small := compileProfile(t, TokenBucket{Rate: ByteRate(1000), Burst: 1000})
	large := compileProfile(t, TokenBucket{Rate: ByteRate(2000), Burst: 5000})
	srtcm := compileProfile(t, SRTCM{CIR: ByteRate(1000), CBS: 3000, EBS: 3000})
	table, _ := NewTable[string](small, TableConfig{Keys: 3})
	has := func(key string, now, want int64) {
		t.Helper()
		if tc, _, known := table.Tokens(key, now); !known || tc != want {
			t.Errorf("key %s has %d tokens at %d (known: %v), want %d", key, tc, now, known, want)
		}
	}
	set := func(key string, now int64, p *Profile) {
		t.Helper()
		if err := table.Set(key, now, p); err != nil {
			t.Error(err)
		}
	}
	const second = 1e9
	set("new", 0, large)
	has("new", 0, 5000)
	table.Color("known", 0, 400, Green)
	set("known", 0, large)
	has("known", 0, 600)          // the tokens are kept
	has("known", second, 2600)    // and refill at the new rate
	set("known", second, srtcm)   // a profile of another kind
	has("known", 2*second, 3000)  // capped at its burst
	set("known", 2*second, small) // the same profile as that of the table
	has("known", 2*second, 1000)
	if err := table.SetProfile(2*second, large); err != nil {
		t.Fatal(err)
	}
	has("known", 10*second, 1000) // SetProfile does not change it
	table.Color("known", 10*second, 500, Green)
	if !table.Unset("known", 10*second) || table.Unset("known", 10*second) || table.Unset("unknown", 0) {
		t.Error("Unset must return true for the first call of a key that was set")
	}
	has("known", 12*second, 4500)
	if x := table.Explain("new", 0, 1, Red); x.Clause.String() != "token-bucket-pre-red" {
		t.Errorf("got %v", x.Clause)
	}
	set("new", 10*second, srtcm)
	if x := table.Explain("new", 0, 1, Red); x.Clause.String() != "rfc2697-pre-red" {
		t.Errorf("got %v, want the clause of the key's own profile", x.Clause)
	}
	// Known and new use two of three places. Only a key without a profile of its own is evicted.
	set("c", 0, small)
	set("d", 0, small)
	if _, _, known := table.Tokens("known", 0); known || table.Stats().Evicted != 1 {
		t.Errorf("key known is in the table: %v, %+v; want it evicted", known, table.Stats())
	}
	if err := table.Set("e", 0, small); err == nil ||
		err.Error() != "keys 3 all have a profile of their own" {
		t.Errorf("Set in a table of set keys: got %v", err)
	}
	set("d", 0, large) // a known key needs no room
	if got := table.Color("e", 0, 1, Green); got != Green || table.Stats().Refused != 1 {
		t.Errorf("got %v and %+v, want a packet that the shared meter colors green", got, table.Stats())
	}
	if !table.Delete("d") || table.Len() != 2 {
		t.Errorf("Delete: got %d keys, want 2", table.Len())
	}
	table.Color("d", 0, 100, Green)
	has("d", 0, 4900) // a new key with the profile of the table
	floats, _ := NewTable[float64](small, TableConfig{Keys: 3})
	if err := floats.Set(math.NaN(), 0, small); err == nil || floats.Len() != 0 {
		t.Errorf("Set of a NaN: got %v and %d keys", err, floats.Len())
	}
	logs, _ := NewTable[int](small, TableConfig{Keys: 65})
	long := compileProfile(t, SlidingLog{Limit: 10, Window: 1e9, Entries: 1 << 20})
	if err := logs.Set(1, 0, long); err == nil || logs.Len() != 0 {
		t.Errorf("Set of a log that is too large: got %v and %d keys", err, logs.Len())
	}
	if panicOf(func() { _ = table.Set("f", 0, nil) }) != noProfile {
		t.Error("Set of no Profile must panic")
	}
}

// TestTableSetEmpty has new keys that begin empty: their clocks begin with Set.
func TestTableSetEmpty(t *testing.T) {
	p := compileProfile(t, TokenBucket{Rate: ByteRate(1000), Burst: 1000})
	table, _ := NewTable[int](p, TableConfig{Keys: 3, Empty: true})
	if err := table.Set(1, 1e9, p); err != nil {
		t.Fatal(err)
	}
	if d := table.Decide(1, 1.5e9, 500); d.Color != Green || d.Remaining != 0 {
		t.Errorf("got %+v, want green: 500 bytes arrived since Set", d)
	}
}

// TestTableSetEach compares bursts with single packets in a table with several profiles.
func TestTableSetEach(t *testing.T) {
	r := logged(t)
	for range 100 {
		p, own := compileProfile(t, tableParams(r)), []*Profile{
			compileProfile(t, tableParams(r)), compileProfile(t, tableParams(r)),
		}
		one, _ := NewTable[uint64](p, TableConfig{Keys: 40})
		each, _ := NewTable[uint64](p, TableConfig{Keys: 40})
		now := int64(0)
		for range 20 {
			key := r.Uint64N(50)
			for _, table := range []*Table[uint64]{one, each} {
				if err := table.Set(key, now, own[key%2]); err != nil {
					t.Fatal(err)
				}
			}
			n := r.IntN(100)
			keys, lengths, colors, want := make([]uint64, n), make([]int, n), make([]Color, n),
				make([]Color, n)
			now += r.Int64N(1e9)
			for i := range keys {
				keys[i], lengths[i], colors[i] = r.Uint64N(50), r.IntN(2000), Color(r.IntN(3))
				want[i] = one.Color(keys[i], now, lengths[i], colors[i])
			}
			each.Prefetch(keys)
			each.ColorEach(keys, now, lengths, colors, colors)
			for i := range want {
				if colors[i] != want[i] {
					t.Fatalf("%v, packet %d of key %d: got %v, want %v", p.Kind(), i, keys[i], colors[i],
						want[i])
				}
			}
		}
	}
}

// TestTableSetAllocatesNothing makes all calls for keys that were set. Set allocates only with
// its first call, and if it needs a longer log.
func TestTableSetAllocatesNothing(t *testing.T) {
	p := compileProfile(t, TokenBucket{Rate: BitRate(8e6), Burst: 1000})
	own := []*Profile{
		compileProfile(t, TRTCM{CIR: BitRate(8e6), CBS: 1000, PIR: BitRate(9e6), PBS: 1000}),
		compileProfile(t, SlidingLog{Limit: 1000, Window: 1e9, Entries: 3}),
	}
	table, _ := NewTable[uint64](p, TableConfig{Keys: 3000})
	shards, err := NewShards[uint64](p, TableConfig{Keys: 3000}, 3)
	if err != nil {
		t.Fatal(err)
	}
	set := func(key uint64, now int64, p *Profile) {
		if table.Set(key, now, p) != nil || shards.Set(key, now, p) != nil {
			t.Fatal("no room")
		}
	}
	for key := range uint64(500) {
		set(key, 0, own[key%2])
	}
	keys, lengths, colors := []uint64{1, 2, 3, 4}, make([]int, 4), make([]Color, 4)
	var now int64
	key := uint64(0)
	if n := allocations(func() {
		for range 5000 {
			now += 1000
			key++
			set(key%1000, now, own[key%2])
			table.Color(key%1000, now, 100, Green)
			table.Color(key, now, 100, Green)
			table.ColorEach(keys, now, lengths, nil, colors)
			table.Decide(key%1000, now, 100)
			table.Peek(key%1000, now, 100, Green)
			table.RetryAfter(key%1000, now, 100)
			table.Explain(key%1000, now, 100, Green)
			table.Tokens(key%1000, now)
			table.Unset(key%300, now)
			table.Delete(key % 400)
			shards.Color(key%1000, now, 100, Green)
			shards.Unset(key%300, now)
			shards.Delete(key % 400)
		}
	}); n != 0 {
		t.Errorf("got %v allocations, want 0", n)
	}
}

// TestTableSetMemory checks that a table pays for profiles and logs of keys with the first Set.
func TestTableSetMemory(t *testing.T) {
	p := compileProfile(t, TokenBucket{Rate: BitRate(8e6), Burst: 10})
	table, _ := NewTable[uint64](p, TableConfig{Keys: 1000})
	plain := table.Memory()
	if most := 1000*(8+24+8+15*4/8+1) + 100; plain > most {
		t.Errorf("got %d bytes before Set, want at most %d", plain, most)
	}
	for i, test := range []struct {
		p    *Profile
		want int // bytes
	}{
		{p, plain + 1000*pointerSize},
		{
			compileProfile(t, SlidingLog{Limit: 10, Window: 1e9, Entries: 7}),
			plain + 1000*pointerSize + 1001*7*16,
		},
		{
			compileProfile(t, SlidingLog{Limit: 10, Window: 1e9, Entries: 3}),
			plain + 1000*pointerSize + 1001*7*16,
		},
		{
			compileProfile(t, SlidingLog{Limit: 10, Window: 1e9, Entries: 8}),
			plain + 1000*pointerSize + 1001*8*16,
		},
	} {
		if err := table.Set(uint64(i), 0, test.p); err != nil {
			t.Fatal(err)
		}
		if got := table.Memory(); got != test.want {
			t.Errorf("after Set of profile %d: got %d bytes, want %d", i, got, test.want)
		}
	}
}

const pointerSize = 4 << (^uintptr(0) >> 63)

// TestShardsSet sets as many keys as the documentation of Set promises room for, while a sender uses
// other keys.
func TestShardsSet(t *testing.T) {
	p := compileProfile(t, TokenBucket{Rate: ByteRate(1000), Burst: 1000})
	own := compileProfile(t, TokenBucket{Rate: ByteRate(2000), Burst: 2000})
	for _, shards := range []int{1, 16, 1000} {
		keys := 50 * shards
		table, err := NewShards[int](p, TableConfig{Keys: 2 * keys}, shards)
		if err != nil {
			t.Fatal(err)
		}
		for i := range 10 * keys {
			table.Color(-i, 0, 1, Green)
		}
		for key := range keys {
			if err := table.Set(key+1, 0, own); err != nil {
				t.Fatalf("%d shards: Set of key %d: %v", shards, key+1, err)
			}
			table.Color(-10*keys-key, 0, 1, Green)
		}
		for key := range keys {
			if d := table.Decide(key+1, 0, 500); d.Remaining != 1500 {
				t.Fatalf("%d shards: key %d: got %+v, want 1500 tokens left", shards, key+1, d)
			}
		}
		if err := table.SetProfile(0, own); err != nil {
			t.Fatal(err)
		}
		if d := table.Decide(-20*keys, 0, 500); d.Remaining != 1500 {
			t.Errorf("after SetProfile: got %+v for a new key, want 1500 left", d)
		}
		if !table.Unset(1, 0) || table.Unset(1, 0) || table.Unset(-1, 0) {
			t.Error("Unset must return true for the first call of a key that was set")
		}
	}
	table, _ := NewShards[int](p, TableConfig{Keys: 2}, 2)
	if err := table.SetProfile(0,
		compileProfile(t, SlidingLog{Limit: 10, Window: 1e9, Entries: 3})); err == nil {
		t.Error("SetProfile to a log succeeded")
	}
}

// TestShardsLogs has logs that fit a shard, but not all shards. A key cannot get one, and saved data
// cannot bring one, unless all keys have had such logs from the beginning.
func TestShardsLogs(t *testing.T) {
	bucket := compileProfile(t, TokenBucket{Rate: ByteRate(1000), Burst: 1000})
	log := func(entries int) *Profile {
		return compileProfile(t, SlidingLog{Limit: 1000, Window: 1e9, Entries: entries})
	}
	shards, err := NewShards[int](bucket, TableConfig{Keys: 1 << 20}, 1024)
	if err != nil {
		t.Fatal(err)
	}
	check := func(what string, err error) {
		t.Helper()
		if err == nil ||
			err.Error() != "keys 1048576 with a log of 65 entries each exceed 67108864 entries in total" {
			t.Errorf("%s: got %v", what, err)
		}
	}
	saved := func(p, own *Profile) []byte {
		table, _ := NewTable[int](p, TableConfig{Keys: 1})
		if err := table.Set(1, 0, own); err != nil {
			t.Fatal(err)
		}
		b, _ := table.AppendBinary(nil)
		return b
	}
	check("Set", shards.Set(1, 0, log(65)))
	check("saved logs of all keys", shards.UnmarshalBinary(saved(log(65), bucket)))
	check("a saved log of one key", shards.UnmarshalBinary(saved(bucket, log(65))))
	if shards.Len() != 0 {
		t.Errorf("got %d keys after errors, want 0", shards.Len())
	}
	if err := shards.UnmarshalBinary(saved(bucket, log(64))); err != nil || shards.Len() != 1 {
		t.Errorf("a saved log that fits: got %v and %d keys", err, shards.Len())
	}
	check("Set after UnmarshalBinary", shards.Set(1, 0, log(65)))

	table, _ := NewTable[int](log(3), TableConfig{Keys: 4})
	table.beside = maxTableEntries
	if err := table.Set(1, 0, log(3)); err != nil {
		t.Errorf("Set of a log as long as those of all keys: %v", err)
	}
	if err := table.UnmarshalBinary(saved(log(3), log(2))); err != nil {
		t.Errorf("saved logs as long as those of all keys: %v", err)
	}
	strings := Rekey(table, func(int) string { return "1" })
	if table.Set(1, 0, log(4)) == nil || strings.Set("1", 0, log(4)) == nil {
		t.Error("Set of a longer log succeeded")
	}
}
