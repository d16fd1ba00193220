package meter

import (
	"encoding"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

var (
	_ encoding.BinaryAppender    = (*Table[int])(nil)
	_ encoding.BinaryUnmarshaler = (*Table[int])(nil)
	_ encoding.BinaryAppender    = (*Shards[int])(nil)
	_ encoding.BinaryUnmarshaler = (*Shards[int])(nil)
)

// restoredTable returns a table restored from the saved state of another.
func restoredTable[K comparable](t testing.TB, table *Table[K], p *Profile) *Table[K] {
	t.Helper()
	data, err := table.AppendBinary([]byte("prefix"))
	if err != nil {
		t.Fatal(err)
	}
	out, err := NewTable[K](p, table.config)
	if err != nil {
		t.Fatal(err)
	}
	if err := out.UnmarshalBinary(data[len("prefix"):]); err != nil {
		t.Fatal(err)
	}
	if out.profile.params != table.profile.params || out.profile.params == p.params && out.profile != p {
		t.Fatalf("got the parameters %+v, want %+v and the same Profile if it has them", out.profile.params,
			table.profile.params)
	}
	return out
}

// TestTableRestoreSmaller restores into a table with fewer keys. The most recently used keys and
// those that were set stay.
func TestTableRestoreSmaller(t *testing.T) {
	p := compileProfile(t, TokenBucket{Rate: ByteRate(1), Burst: 1000})
	own := compileProfile(t, SRTCM{CIR: ByteRate(1), CBS: 100, EBS: 100})
	table, _ := NewTable[int](p, TableConfig{Keys: 10})
	for key := range 10 {
		table.Color(key, 0, 10, Green)
	}
	for _, key := range []int{3, 4} {
		if err := table.Set(key, 0, own); err != nil {
			t.Fatal(err)
		}
	}
	table.Color(0, 0, 10, Green)
	data, _ := table.AppendBinary(nil)
	for _, config := range []TableConfig{{Keys: 5}, {Keys: 5, Idle: true}, {Keys: 2}} {
		small, _ := NewTable[int](own, config)
		for key := range config.Keys + 3 {
			small.Color(key+70, 0, 1, Green)
		}
		if err := small.UnmarshalBinary(data); err != nil {
			t.Fatal(err)
		}
		if got, want := small.Stats(), (TableStats{
			Keys: config.Keys, Evicted: uint64(3 + 10 - config.Keys),
		}); !config.Idle && got != want {
			t.Errorf("%+v: got %+v, want %+v", config, got, want)
		}
		var got []int
		for key := range small.All() {
			got = append(got, key)
		}
		slices.Sort(got)
		if want := []int{0, 3, 4, 8, 9}; config.Keys == 5 && !slices.Equal(got, want) || config.Keys == 2 &&
			!slices.Equal(got, []int{3, 4}) {
			t.Errorf("%+v: got the keys %v, want %v", config, got, want)
		}
		if small.profile.params != p.params {
			t.Errorf("got %+v", small.profile.params)
		}
	}
	small, _ := NewTable[int](own, TableConfig{Keys: 1})
	small.Color(77, 0, 1, Green)
	if err := small.UnmarshalBinary(data); err == nil ||
		err.Error() != "keys 1 all have a profile of their own" {
		t.Errorf("got %v", err)
	}
	if tc, _, _ := small.Tokens(77, 0); tc != 99 || small.Len() != 1 {
		t.Errorf("the table changed: got %d tokens of key 77 and %d keys", tc, small.Len())
	}
}

// TestTableRestoreErrors has data that are not a saved table. The table stays as it was.
func TestTableRestoreErrors(t *testing.T) {
	p := compileProfile(t, SlidingLog{Limit: 3000, Window: time.Second, Entries: 10})
	table, _ := NewTable[uint16](p, TableConfig{Keys: 3})
	if err := table.Set(2, 0, compileProfile(t, TokenBucket{Rate: ByteRate(1), Burst: 1000})); err != nil {
		t.Fatal(err)
	}
	table.Color(1, 0, 10, Green)
	table.Color(2, 0, 10, Green)
	good, _ := table.AppendBinary(nil)
	check := func(data []byte, want string) {
		t.Helper()
		err := table.UnmarshalBinary(data)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
		again, _ := table.AppendBinary(nil)
		if !slices.Equal(again, good) {
			t.Errorf("%v: the table changed", err)
		}
	}
	for i := range good {
		bad := slices.Clone(good)
		bad[i] ^= 1 << (i % 8)
		check(bad, "")
		check(good[:i], "")
	}
	check([]byte("mtr\x01 a meter of no key"), "not a saved table")
	resum := func(at int, value byte) []byte { // at counts from the end
		b := slices.Clone(good[:len(good)-4])
		b[len(b)-at] = value
		return appendChecksum(b, 0)
	}
	check(resum(2, 1), "corrupt")       // the same key twice
	check(resum(6, 3), "corrupt")       // a key of another length
	check(resum(6, 1), "corrupt")       //
	check(resum(6+8+1, 128), "corrupt") // a negative debt
	large, _ := NewTable[uint16](p, TableConfig{Keys: 65})
	log := compileProfile(t, SlidingLog{Limit: 3000, Window: time.Second, Entries: 1 << 19})
	if err := large.Set(1, 0, log); err != nil {
		t.Fatal(err)
	}
	logs, _ := large.AppendBinary(nil)
	tooMany, _ := NewTable[uint16](p, TableConfig{Keys: 1 << 10})
	if err := tooMany.UnmarshalBinary(logs); err == nil || tooMany.Len() != 0 {
		t.Errorf("a log that is too large for the table: got %v", err)
	}
}

// TestShardsSaved restores Shards into another number of them, and into a Table and back.
func TestShardsSaved(t *testing.T) {
	r := logged(t)
	p := compileProfile(t, TokenBucket{Rate: ByteRate(1), Burst: 1000})
	own := compileProfile(t, SlidingLog{Limit: 100, Window: time.Second, Entries: 5})
	newShards := func(n int) *Shards[string] {
		shards, err := NewShards[string](p, TableConfig{Keys: 4000}, n)
		if err != nil {
			t.Fatal(err)
		}
		return shards
	}
	shards, model := newShards(16), map[string]*Meter{}
	for i := range 1000 {
		key := fmt.Sprint(i)
		m := New(p)
		if i%7 == 0 {
			m = New(own)
			if err := shards.Set(key, 0, own); err != nil {
				t.Fatal(err)
			}
		}
		n := r.IntN(90)
		m.Color(int64(i), n, Green)
		shards.Color(key, int64(i), n, Green)
		model[key] = &m
	}
	shards.Do("5", func(t *Table[string]) { t.Rest().Color(5, 300, Green) })
	rests := func(shards *Shards[string]) (taken int64) {
		for i := range shards.shards {
			tc, _ := shards.shards[i].table.Rest().Tokens(5)
			taken += 1000 - tc
		}
		return taken
	}
	check := func(shards *Shards[string], saved []byte, err error, taken int64) {
		t.Helper()
		if err == nil {
			err = shards.UnmarshalBinary(saved)
		}
		if err != nil {
			t.Fatal(err)
		}
		if shards.Len() != len(model) || rests(shards) != taken {
			t.Fatalf("got %d keys and %d bytes taken from shared meters, want %d and %d", shards.Len(),
				rests(shards), len(model), taken)
		}
		for key, m := range shards.All() {
			want := model[key].Clone()
			if got, want := m.Decide(2000, 50), want.Decide(2000, 50); got != want ||
				m.Profile().Params() != model[key].Profile().Params() {
				t.Fatalf("key %s: got %+v, want %+v", key, got, want)
			}
		}
	}
	saved, err := shards.AppendBinary(nil)
	same := newShards(16)
	check(same, saved, err, 300)
	check(newShards(5), saved, err, 0)
	table, _ := NewTable[string](p, TableConfig{Keys: 1000})
	if err := table.UnmarshalBinary(saved); err != nil {
		t.Fatal(err)
	}
	saved, err = table.AppendBinary(nil)
	check(newShards(9), saved, err, 0)
	shards.Do("5", func(shard *Table[string]) {
		if err := shard.SetProfile(0,
			compileProfile(t, TokenBucket{Rate: ByteRate(2), Burst: 1000})); err != nil {
			t.Error(err)
		}
	})
	if b, err := shards.AppendBinary(nil); err != errMixed || len(b) > 0 {
		t.Errorf("shards with two profiles: got %d bytes and %v", len(b), err)
	}
	before := same.Len()
	if err := same.UnmarshalBinary(saved[:100]); err == nil || same.Len() != before {
		t.Errorf("got %v and %d keys, want an error and %d", err, same.Len(), before)
	}
}

// TestShardsRestoreSmaller restores Shards into a table with room for the only key that was set.
// The keys of other shards come after it.
func TestShardsRestoreSmaller(t *testing.T) {
	p := compileProfile(t, TokenBucket{Rate: ByteRate(1), Burst: 1000})
	shards, err := NewShards[int](p, TableConfig{Keys: 1000}, 10)
	if err != nil {
		t.Fatal(err)
	}
	for key := range 500 {
		shards.Color(key, 0, 1, Green)
	}
	for key := range shards.All() { // of the first shard
		if err := shards.Set(key, 0, p); err != nil {
			t.Fatal(err)
		}
		saved, _ := shards.AppendBinary(nil)
		table, _ := NewTable[int](p, TableConfig{Keys: 1})
		if err := table.UnmarshalBinary(saved); err != nil || table.Len() != 1 || !table.Unset(key, 0) {
			t.Errorf("got %d keys and %v, want key %d", table.Len(), err, key)
		}
		return
	}
}

// TestShardsSavedMeanwhile saves and restores Shards while other goroutines use it.
func TestShardsSavedMeanwhile(t *testing.T) {
	p := compileProfile(t, TokenBucket{Rate: ByteRate(1000), Burst: 1000})
	shards, err := NewShards[uint64](p, TableConfig{Keys: 1000}, 10)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for g := range uint64(3) {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(g, 1))
			for i := range int64(5000) {
				switch key := r.Uint64N(300); r.IntN(8) {
				case 0:
					shards.Delete(key)
				case 1:
					if err := shards.Set(key, i, p); err != nil {
						t.Error(err)
					}
				case 2:
					shards.Unset(key, i)
				default:
					shards.Color(key, i, 100, Green)
				}
			}
		})
	}
	for range 100 {
		saved, err := shards.AppendBinary(nil)
		if err == nil {
			err = shards.UnmarshalBinary(saved)
		}
		if err != nil {
			t.Error(err)
		}
	}
	wg.Wait()
}

// TestShardsRestoredInAll restores fewer keys in the body of a loop over all keys, which then ends.
func TestShardsRestoredInAll(t *testing.T) {
	shards, err := NewShards[int](compileProfile(t, TokenBucket{Rate: ByteRate(1), Burst: 1000}),
		TableConfig{Keys: 10}, 1)
	if err != nil {
		t.Fatal(err)
	}
	shards.Color(0, 0, 1, Green)
	saved, _ := shards.AppendBinary(nil)
	for key := range 5 {
		shards.Color(key, 0, 1, Green)
	}
	seen := 0
	for range shards.All() {
		if seen++; seen == 3 {
			if err := shards.UnmarshalBinary(saved); err != nil {
				t.Fatal(err)
			}
		}
	}
	if seen != 3 || shards.Len() != 1 {
		t.Errorf("got %d keys of the loop and %d of the table, want 3 and 1", seen, shards.Len())
	}
}

// TestShardsChangedTogether has goroutines that each change the profile of all shards, save and
// restore. All shards always have the same profile.
func TestShardsChangedTogether(t *testing.T) {
	p := compileProfile(t, TokenBucket{Rate: ByteRate(1), Burst: 1000})
	shards, err := NewShards[int](p, TableConfig{Keys: 100}, 100)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for g := range int64(3) {
		own := compileProfile(t, TokenBucket{Rate: ByteRate(g + 2), Burst: 1000})
		wg.Go(func() {
			for range 300 {
				if err := shards.SetProfile(0, own); err != nil {
					t.Error(err)
				}
				saved, err := shards.AppendBinary(nil)
				if err == nil {
					err = shards.UnmarshalBinary(saved)
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	if _, err := shards.AppendBinary(nil); err != nil {
		t.Error(err)
	}
}

// FuzzRestoreTable restores a table from any bytes, with their checksum. If that succeeds, all
// calls work, and the table can be saved and restored again.
func FuzzRestoreTable(f *testing.F) {
	for i, saved := range savedMeters {
		p, own := compileProfile(f, saved.params),
			compileProfile(f, savedMeters[(i+1)%len(savedMeters)].params)
		table, _ := NewTable[string](p, TableConfig{Keys: 4})
		for _, key := range []string{"a", "b", "c"} {
			if err := table.Set(key, 0, own); err != nil {
				f.Fatal(err)
			}
			table.Color(key, 5, 500, Green)
		}
		table.Unset("b", 10)
		data, _ := table.AppendBinary(nil)
		f.Add(data[:len(data)-4], int64(2000), 700)
	}
	p := compileProfile(f, TokenBucket{Rate: ByteRate(1000), Burst: 1000})
	f.Fuzz(func(t *testing.T, data []byte, now int64, n int) {
		table, _ := NewTable[string](p, TableConfig{Keys: 4})
		table.Color("z", 0, 300, Green)
		if err := table.UnmarshalBinary(appendChecksum(slices.Clone(data), 0)); err != nil {
			if tc, _, _ := table.Tokens("z", 0); tc != 700 {
				t.Errorf("%v: the table changed", err)
			}
			return
		}
		same := restoredTable(t, table, p)
		if same.Len() != table.Len() {
			t.Fatalf("saved again: got %d keys, want %d", same.Len(), table.Len())
		}
		for key, m := range table.All() {
			useRestored(t, m, now, n)
			if got, want := same.Explain(key, now, n, Green), table.Explain(key, now, n, Green); got != want {
				t.Fatalf("key %q: got %+v after the table was saved again, want %+v", key, got, want)
			}
		}
		for i := range uint64(8) {
			key := string(binary.AppendUvarint(nil, i+'a'))
			if got, want := same.Color(key, now, n, Green), table.Color(key, now, n, Green); got != want ||
				same.Stats().Keys != table.Stats().Keys {
				t.Fatalf("key %q: got %v and %+v after the table was saved again, want %v and %+v", key, got,
					same.Stats(), want, table.Stats())
			}
			same.Delete(key)
			table.Delete(key)
		}
	})
}

// FuzzRestoreShards restores shards from any bytes, with their checksum: each key is in the shard that
// looks it up, and an error changes nothing.
func FuzzRestoreShards(f *testing.F) {
	p := compileProfile(f, TokenBucket{Rate: ByteRate(1000), Burst: 1000})
	newShards := func(keys int) *Shards[string] {
		s, err := NewShards[string](p, TableConfig{Keys: keys}, 2)
		if err != nil {
			f.Fatal(err)
		}
		return s
	}
	full := newShards(8)
	for _, key := range []string{"a", "b", "c", "d"} {
		full.Color(key, 5, 500, Green)
	}
	data, _ := full.AppendBinary(nil)
	f.Add(data[:len(data)-4], int64(2000), 700)
	f.Fuzz(func(t *testing.T, data []byte, now int64, n int) {
		shards := newShards(8)
		shards.Color("z", 0, 300, Green)
		before, _ := shards.AppendBinary(nil)
		if err := shards.UnmarshalBinary(appendChecksum(slices.Clone(data), 0)); err != nil {
			if after, _ := shards.AppendBinary(nil); !slices.Equal(before, after) {
				t.Errorf("%v: the shards changed", err)
			}
			return
		}
		// With other seeds, other keys share a shard. A shard for all keys evicts none.
		room := 2 * (len(data) + 8)
		shards = newShards(room)
		if err := shards.UnmarshalBinary(appendChecksum(slices.Clone(data), 0)); err != nil {
			t.Fatalf("error %v in larger shards only", err)
		}
		keys := shards.Stats().Keys
		saved, err := shards.AppendBinary(nil)
		if err != nil {
			t.Fatal(err)
		}
		same := newShards(room)
		if err := same.UnmarshalBinary(saved); err != nil || same.Stats().Keys != keys {
			t.Fatalf("saved again: %v, %d keys, want %d", err, same.Stats().Keys, keys)
		}
		for i := range uint64(8) {
			key := string(binary.AppendUvarint(nil, i+'a'))
			if got, want := same.Color(key, now, n, Green), shards.Color(key, now, n, Green); got != want {
				t.Fatalf("key %q: got %v after the shards were saved again, want %v", key, got, want)
			}
		}
	})
}
