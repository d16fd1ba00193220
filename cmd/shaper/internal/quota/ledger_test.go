package quota

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

const hour = 3600

// span returns the n-th window of an hour after clockSet.
func span(n int64) Span { return Span{clockSet + n*hour, clockSet + (n+1)*hour} }

func at(seconds int64) time.Time { return time.Unix(clockSet+seconds, 0) }

// TestObserve checks the count after each observation by hand. Both sources are known.
func TestObserve(t *testing.T) {
	l := New()
	l.Restarted(0)
	l.Restarted(1)
	for i, step := range []struct {
		customer     string
		source       int
		all, dropped int64
		window       Span
		want         int64
	}{
		{"a", 0, 100, 0, span(0), 100}, // the first value counts as a whole
		{"a", 0, 100, 0, span(0), 100},
		{"a", 0, 300, 50, span(0), 250},
		{"b", 0, 7, 0, span(0), 7},
		{"a", 1, 1007, 7, span(0), 1250}, // the other direction
		{"a", 1, 1008, 7, span(0), 1251},
		{"a", 0, 40, 0, span(0), 1291},         // smaller than 300: removed and added again
		{"a", 0, 45, 0, span(1), 5},            // another window begins at 0
		{"a", 1, 1018, 7, span(1), 15},         // and so does the other direction, once
		{"a", 0, 50, 0, span(0), 5},            // the clock was set back
		{"b", 0, 8, 0, Span{0, 60}, 8},         // a clock that was not set since the start keeps the window
		{"b", 0, 9, 0, span(0), 9},             // until it is
		{"b", 0, 10, 0, span(400), 1},          // 400 windows later
		{"b", 0, 10, 4, span(401), -4},         // packets of the last window are dropped
		{"c", 0, 3, 0, Span{0, 60}, 3},         // never seen with a clock
		{"c", 0, 5, 0, span(1), 2},             // so its window begins now
		{"d", 0, 0, 0, span(0), 0},             // without traffic
		{"e", 0, 1 << 62, 0, span(0), 1 << 62}, // large
	} {
		if got := l.Observe(step.customer, step.source, Counters{step.all, step.dropped},
			step.window); got != step.want {
			t.Errorf("step %d, %+v: got %d", i, step, got)
		}
	}
}

// TestKnown checks what does not count: bytes before the first pass of a source with unknown
// counters, and those of a customer without a quota.
func TestKnown(t *testing.T) {
	l := New()
	pass := func(source int, customers map[string]int64, skipped ...string) {
		for name, n := range customers {
			if !slices.Contains(skipped, name) {
				l.Observe(name, source, Counters{All: n}, span(0))
			} else {
				l.Skip(name, source, Counters{All: n})
			}
		}
		l.End(source, at(0))
	}
	want := func(what, customer string, used int64) {
		t.Helper()
		if got := l.accounts[customer].used; got != used {
			t.Errorf("%s: got %d, want %d", what, got, used)
		}
	}
	l.Restarted(1)
	pass(0, map[string]int64{"a": 1000, "b": 500, "c": 0}, "b", "c")
	pass(1, map[string]int64{"a": 3})
	want("counters of before", "a", 3)
	pass(0, map[string]int64{"a": 1010, "b": 600, "c": 0, "new": 6}, "b", "c")
	want("from the first pass on", "a", 13)
	want("added later", "new", 6)
	pass(0, map[string]int64{"a": 1010, "b": 601, "c": 5, "new": 7})
	want("a quota since", "b", 1)
	want("a quota since, and no traffic before", "c", 5)
	pass(0, map[string]int64{"a": 2010, "b": 602, "c": 5, "new": 8}, "a")
	pass(0, map[string]int64{"a": 2011, "b": 603, "c": 5, "new": 9})
	want("no quota for some time", "a", 14)
	l.Unknown(0)
	pass(0, map[string]int64{"a": 9000, "b": 0})
	want("unknown again", "a", 14)
	pass(0, map[string]int64{"a": 9001, "b": 1})
	want("known again", "a", 15)
	l.Restarted(0)
	pass(0, map[string]int64{"a": 9005})
	want("restarted", "a", 15+9005)
}

// TestEnd checks which customers are forgotten, and when.
func TestEnd(t *testing.T) {
	l := New()
	empty := l.Empty()
	if l.Restarted(0); !empty || l.Empty() {
		t.Error("a new Ledger is not empty, or one that knows a source is")
	}
	l.Restarted(1)
	names := func() []string { return slices.Sorted(maps.Keys(l.accounts)) }
	want := func(what string, want ...string) {
		t.Helper()
		if got := names(); !slices.Equal(got, want) {
			t.Errorf("%s: got %v, want %v", what, got, want)
		}
	}
	for _, name := range []string{"stays", "goes", "half"} {
		l.Observe(name, 0, Counters{All: 100}, span(0))
	}
	l.Observe("half", 1, Counters{All: 100}, span(0))
	l.End(0, at(1))
	l.End(1, at(1))
	for _, now := range []time.Time{at(2), time.Unix(60, 0), at(hour - 1)} {
		l.Observe("stays", 0, Counters{All: 100}, span(0))
		l.End(0, now)
		want("in the window", "goes", "half", "stays")
	}
	if got := l.Observe("goes", 0, Counters{All: 300}, span(0)); got != 400 {
		t.Errorf("added again: got %d, want 400", got)
	}
	// of which the first is a clock that is not set
	for _, now := range []time.Time{time.Unix(60, 0), at(hour)} {
		want("before the end", "goes", "half", "stays")
		l.Skip("stays", 0, Counters{All: 100}) // its counters are needed
		l.End(0, now)
	}
	want("after the window", "half", "stays")
	l.End(1, at(hour))
	want("gone at both sources", "stays")
	l.Skip("idle", 0, Counters{})
	want("a customer without traffic", "stays")
	if got := l.Observe("stays", 0, Counters{All: 101}, span(1)); got != 1 {
		t.Errorf("the one that stays: got %d, want 1", got)
	}
}

// TestRandomLedger compares a Ledger with a list of all packets. Customers are removed and added
// again, maps are new, the Ledger is saved and restored, and windows end.
func TestRandomLedger(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	l, window := New(), int64(0)
	var at [Sources]map[string]*Counters
	for source := range at {
		at[source] = map[string]*Counters{}
		l.Restarted(source)
	}
	used, usedIn := map[string]int64{}, map[string]int64{} // bytes and their window
	for step := range 20_000 {
		source := random.IntN(Sources)
		switch random.IntN(50) {
		case 0:
			window++
		case 1:
			b, err := l.AppendBinary(nil)
			if err != nil {
				t.Fatal(err)
			}
			if l = New(); l.UnmarshalBinary(b) != nil {
				t.Fatal("a saved ledger cannot be restored")
			}
		case 2: // all counters are new, and may be larger than before
			l.Restarted(source)
			for _, c := range at[source] {
				*c = Counters{}
			}
		}
		if name := fmt.Sprint(random.IntN(20)); at[source][name] == nil {
			at[source][name] = &Counters{}
		} else if random.IntN(2) == 0 {
			delete(at[source], name)
		}
		known := random.IntN(30) > 0
		if !known {
			l.Unknown(source)
		}
		for name, c := range at[source] {
			all := random.Int64N(1e9)
			dropped := random.Int64N(all + 1)
			c.All, c.Dropped = c.All+all, c.Dropped+dropped
			if random.IntN(10) == 0 {
				l.Skip(name, source, *c)
				continue
			}
			if usedIn[name] != window {
				used[name], usedIn[name] = 0, window
			}
			if known {
				used[name] += all - dropped
			}
			if got := l.Observe(name, source, *c, span(window)); got != used[name] {
				t.Fatalf("step %d: customer %s: got %d, want %d", step, name, got, used[name])
			}
		}
		l.End(source, time.Unix(span(window).Start+1, 0))
		for name, a := range l.accounts {
			if at[0][name] == nil && at[1][name] == nil && a.End <= span(window).Start &&
				a.last == [Sources]Counters{} {
				t.Fatalf("step %d: customer %s is not forgotten", step, name)
			}
		}
	}
}

// TestSave checks that a ledger is restored exactly, and that an error changes nothing.
func TestSave(t *testing.T) {
	l := New()
	l.Observe("4711", 0, Counters{1 << 62, 5}, span(0))
	l.Restarted(1)
	l.Observe("Müller, Inc.", 1, Counters{12, 1}, Span{-5, 1 << 40})
	l.Observe("", 0, Counters{}, span(2))
	l.Skip("skipped", 0, Counters{7, 7})
	l.End(0, time.Unix(0, 0))
	l.End(1, time.Unix(0, 0))
	saved, err := l.AppendBinary([]byte("before"))
	if err != nil || string(saved[:6]) != "before" {
		t.Fatal(err)
	}
	saved = saved[6:]
	restored := New()
	restored.Observe("other", 0, Counters{}, span(0))
	before := maps.Clone(restored.accounts)
	refuse := func(what string, b []byte) {
		t.Helper()
		if err := restored.UnmarshalBinary(b); err == nil || !reflect.DeepEqual(restored.accounts, before) {
			t.Errorf("%s: got %v, want an error and no change", what, err)
		}
	}
	for i := range saved {
		refuse("cut", saved[:i])
	}
	refuse("longer", append(bytes.Clone(saved), 0))
	number := bytes.Clone(saved)
	number[1]++
	refuse("a customer too many", number)
	refuse("an unknown source", append([]byte{1 << Sources}, saved[1:]...))
	refuse("too many customers", binary.AppendUvarint([]byte{0}, 1<<60))
	refuse("a long name", binary.AppendUvarint([]byte{0, 1}, 1<<60))
	one := "\x01a" + strings.Repeat("\x00", 3+2*Sources)
	refuse("a customer twice", []byte("\x00\x02"+one+one))
	if err := restored.UnmarshalBinary(saved); err != nil || !reflect.DeepEqual(restored, l) {
		t.Errorf("got %v %v, want %v", err, restored, l)
	}
	empty, _ := New().AppendBinary(nil)
	if err := restored.UnmarshalBinary(empty); err != nil || !reflect.DeepEqual(restored, New()) {
		t.Errorf("an empty ledger: %v", err)
	}
}

// FuzzLedger reads any bytes as a ledger: it is refused without a change, or writes and reads
// itself.
func FuzzLedger(f *testing.F) {
	l := New()
	l.Observe("4711", 0, Counters{1 << 40, 3}, span(0))
	saved, _ := l.AppendBinary(nil)
	f.Add(saved)
	f.Add([]byte("\x03\x01"))
	f.Fuzz(func(t *testing.T, b []byte) {
		l, again := New(), New()
		if err := l.UnmarshalBinary(b); err != nil {
			if !reflect.DeepEqual(l, New()) {
				t.Error("an error has changed the ledger")
			}
			return
		}
		saved, _ := l.AppendBinary(nil)
		if err := again.UnmarshalBinary(saved); err != nil || !reflect.DeepEqual(l, again) {
			t.Errorf("%q: %v", b, err)
		}
	})
}

// TestObserveAllocs checks that a pass with known customers allocates nothing.
func TestObserveAllocs(t *testing.T) {
	l := New()
	names := []string{"a", "b", "c"}
	n := int64(0)
	if got := testing.AllocsPerRun(100, func() {
		for _, name := range names {
			n++
			l.Observe(name, 1, Counters{n, n}, span(n/50))
			l.Skip(name, 0, Counters{n, n})
		}
		l.End(1, at(n/50*hour))
	}); got > 0 {
		t.Errorf("%v allocations", got)
	}
}

// BenchmarkObserve observes 100,000 customers in each round; an operation is a customer.
func BenchmarkObserve(b *testing.B) {
	l, names := large()
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		l.Observe(names[i%len(names)], 0, Counters{All: int64(i)}, span(0))
	}
}

// BenchmarkSave saves and restores 100,000 customers.
func BenchmarkSave(b *testing.B) {
	l, names := large()
	for i, name := range names {
		l.Observe(name, 0, Counters{int64(i) << 20, 0}, span(0))
		l.Observe(name, 1, Counters{int64(i) << 20, 0}, span(0))
	}
	var saved []byte
	b.Run("append", func(b *testing.B) {
		for b.Loop() {
			saved, _ = l.AppendBinary(saved[:0])
		}
		b.ReportMetric(float64(len(saved))/float64(len(names)), "B/customer")
	})
	b.Run("unmarshal", func(b *testing.B) {
		for b.Loop() {
			if err := New().UnmarshalBinary(saved); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func large() (*Ledger, []string) {
	l, names := New(), make([]string, 100_000)
	for i := range names {
		names[i] = fmt.Sprintf("customer-%06d", i)
		l.Observe(names[i], 0, Counters{}, span(0))
	}
	return l, names
}
