package quota

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"math"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"
)

const hour = 3600

// span returns the n-th window of an hour after clockSet.
func span(n int64) Span { return Span{clockSet + n*hour, clockSet + (n+1)*hour} }

func at(seconds int64) time.Time { return time.Unix(clockSet+seconds, 0) }

// TestObserve checks the count after each observation by hand.
func TestObserve(t *testing.T) {
	l := New()
	for i, step := range []struct {
		customer string
		source   int
		counter  uint64
		window   Span
		want     int64
	}{
		{"a", 0, 100, span(0), 100}, // the first value counts as a whole
		{"a", 0, 100, span(0), 100},
		{"a", 0, 250, span(0), 250},
		{"b", 0, 7, span(0), 7},
		{"a", 1, 1000, span(0), 1250}, // the other direction
		{"a", 1, 1001, span(0), 1251},
		{"a", 0, 40, span(0), 1291}, // smaller than 250: removed and added again
		{"a", 0, 45, span(1), 5},    // another window begins at 0
		{"a", 1, 1011, span(1), 15}, // and so does the other direction, once
		{"a", 0, 50, span(0), 5},    // the clock was set back
		{"b", 0, 8, Span{0, 60}, 8}, // a clock that was not set since the start keeps the window
		{"b", 0, 9, span(0), 9},     // until it is
		{"b", 0, 10, span(400), 1},  // 400 windows later
		{"c", 0, 3, Span{0, 60}, 3}, // never seen with a clock
		{"c", 0, 5, span(1), 2},     // so its window begins now
		{"d", 0, 0, span(0), 0},     // without traffic
		{"e", 0, math.MaxUint64, span(0), math.MaxInt64},
		{"e", 1, math.MaxUint64, span(0), math.MaxInt64}, // no overflow
	} {
		if got := l.Observe(step.customer, step.source, step.counter, step.window); got != step.want {
			t.Errorf("step %d, %+v: got %d", i, step, got)
		}
	}
}

// TestUsed checks counts at the ends of windows, and Add, Reset, Restarted and Prune.
func TestUsed(t *testing.T) {
	l := New()
	l.Observe("a", 0, 100, span(0))
	if got := l.Add("a", 11, span(0)); got != 111 {
		t.Errorf("Add: got %d, want 111", got)
	}
	for seconds, want := range map[int64]int64{0: 111, hour - 1: 111, hour: 0, 2 * hour: 0, -1: 111} {
		if got := l.Used("a", at(seconds)); got != want {
			t.Errorf("after %d s: got %d, want %d", seconds, got, want)
		}
	}
	if got := l.Used("b", at(0)); got != 0 {
		t.Errorf("unknown customer: got %d", got)
	}
	l.Reset("a")
	l.Reset("b")
	if got := l.Observe("a", 0, 130, span(0)); got != 30 {
		t.Errorf("after Reset: got %d, want 30", got)
	}
	l.Restarted(0)
	if got := l.Observe("a", 0, 150, span(0)); got != 180 {
		t.Errorf("after Restarted: got %d, want 180", got)
	}
	l.Observe("gone", 0, 1, span(0))
	l.Observe("a", 0, 150, span(1))
	l.Prune(time.Unix(0, 0))
	l.Prune(at(hour - 1))
	if l.Len() != 2 {
		t.Errorf("Prune has removed a customer of the current window")
	}
	l.Prune(at(hour))
	if l.Len() != 1 || l.accounts["a"] == nil {
		t.Errorf("Prune left %d customers, want a", l.Len())
	}
}

// TestRandomLedger compares a Ledger with a list of all packets. Counters begin at 0 again at
// times, the Ledger is saved and restored, and windows end.
func TestRandomLedger(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	type packet struct {
		customer string
		window   int64
		bytes    int64
	}
	var seen []packet
	l := New()
	counters := map[string]*[Sources]uint64{}
	window := int64(0)
	for step := range 20_000 {
		customer, source := fmt.Sprint(random.IntN(20)), random.IntN(Sources)
		c := counters[customer]
		if c == nil {
			c = &[Sources]uint64{}
			counters[customer] = c
		}
		switch random.IntN(100) {
		case 0:
			window++
		case 1: // the customer is removed and added again
			if c[source] > 0 {
				c[source] = uint64(random.Int64N(int64(c[source])))
				seen = append(seen, packet{customer, window, int64(c[source])})
				l.Observe(customer, source, c[source], span(window))
			}
		case 2:
			b, err := l.AppendBinary(nil)
			if err != nil {
				t.Fatal(err)
			}
			if l = New(); l.UnmarshalBinary(b) != nil {
				t.Fatal("a saved ledger cannot be restored")
			}
		case 3: // all counters of a source are new, and may be larger than before
			l.Restarted(source)
			for name, c := range counters {
				c[source] = uint64(random.Int64N(1e6))
				seen = append(seen, packet{name, window, int64(c[source])})
				l.Observe(name, source, c[source], span(window))
			}
		case 4:
			l.Prune(at(window * hour))
			l.Restarted(0)
			l.Restarted(1)
			clear(counters)
			continue
		}
		if c = counters[customer]; c == nil {
			continue
		}
		bytes := random.Int64N(1e9)
		c[source] += uint64(bytes)
		seen = append(seen, packet{customer, window, bytes})
		want := int64(0)
		for i := len(seen) - 1; i >= 0 && seen[i].window == window; i-- {
			if seen[i].customer == customer {
				want += seen[i].bytes
			}
		}
		if got := l.Observe(customer, source, c[source], span(window)); got != want || l.Used(customer, at(window*hour+1)) != want {
			t.Fatalf("step %d: customer %s: got %d, want %d", step, customer, got, want)
		}
	}
}

// sealed replaces the checksum.
func sealed(b []byte) []byte {
	b = b[:len(b)-4]
	return binary.BigEndian.AppendUint32(bytes.Clone(b), crc32.Checksum(b, castagnoli))
}

// TestSave checks that a ledger is restored exactly, and that an error changes nothing.
func TestSave(t *testing.T) {
	l := New()
	l.Observe("4711", 0, 1<<63, span(0))
	l.Observe("Müller, Inc.", 1, 12, Span{-5, 1 << 40})
	l.Observe("", 0, 0, span(2))
	saved, err := l.AppendBinary([]byte("before"))
	if err != nil || string(saved[:6]) != "before" {
		t.Fatal(err)
	}
	saved = saved[6:]
	restored := New()
	restored.Observe("other", 0, 1, span(0))
	before := maps.Clone(restored.accounts)
	refuse := func(what string, b []byte, want error) {
		t.Helper()
		if err := restored.UnmarshalBinary(b); !errors.Is(err, want) || !reflect.DeepEqual(restored.accounts, before) {
			t.Errorf("%s: got %v, want %v and no change", what, err, want)
		}
	}
	for i := range saved {
		want := errDamaged
		if i < len(magic) {
			want = errVersion
		}
		refuse("cut", saved[:i], want)
		damaged := bytes.Clone(saved)
		damaged[i] ^= 1
		refuse("damaged", damaged, want)
	}
	refuse("longer", append(bytes.Clone(saved), 0), errDamaged)
	// With a right checksum.
	refuse("a byte after the end", sealed(append(bytes.Clone(saved[:len(saved)-4]), 0, 0, 0, 0, 0)), errDamaged)
	refuse("a byte less", sealed(saved[:len(saved)-1]), errDamaged)
	number := bytes.Clone(saved)
	number[len(magic)]++
	refuse("a customer too many", sealed(number), errDamaged)
	refuse("too many customers", sealed(append(binary.AppendUvarint([]byte(magic), 1<<60), 0, 0, 0, 0)), errDamaged)
	refuse("a long name", sealed(append(binary.AppendUvarint([]byte(magic+"\x01"), 1<<60), 0, 0, 0, 0)), errDamaged)
	refuse("a customer twice", sealed([]byte(magic+"\x02\x01a\x00\x00\x00\x00\x00\x01a\x00\x00\x00\x00\x00----")), errDamaged)
	if err := restored.UnmarshalBinary(saved); err != nil || !reflect.DeepEqual(restored, l) {
		t.Errorf("got %v %v, want %v", err, restored, l)
	}
	empty, _ := New().AppendBinary(nil)
	if err := restored.UnmarshalBinary(empty); err != nil || restored.Len() != 0 {
		t.Errorf("an empty ledger: %v", err)
	}
}

// FuzzLedger reads any bytes as a ledger: it is refused without a change, or writes and reads
// itself.
func FuzzLedger(f *testing.F) {
	l := New()
	l.Observe("4711", 0, 1<<40, span(0))
	saved, _ := l.AppendBinary(nil)
	f.Add(saved)
	f.Add([]byte(magic + "----"))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, b := range [][]byte{b, sealed(append(bytes.Clone(b), 0, 0, 0, 0))} {
			l, again := New(), New()
			if err := l.UnmarshalBinary(b); err != nil {
				if l.Len() != 0 {
					t.Error("an error has changed the ledger")
				}
				continue
			}
			saved, _ := l.AppendBinary(nil)
			if err := again.UnmarshalBinary(saved); err != nil || !reflect.DeepEqual(l, again) {
				t.Errorf("%q: %v", b, err)
			}
		}
	})
}

// TestObserveAllocs checks that observing known customers allocates nothing.
func TestObserveAllocs(t *testing.T) {
	l := New()
	names := []string{"a", "b", "c"}
	n := uint64(0)
	if got := testing.AllocsPerRun(100, func() {
		for _, name := range names {
			n++
			l.Observe(name, 1, n, span(int64(n)/50))
		}
	}); got > 0 {
		t.Errorf("%v allocations", got)
	}
}

// BenchmarkObserve observes 100,000 customers in each round; an operation is a customer.
func BenchmarkObserve(b *testing.B) {
	l, names := large()
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		l.Observe(names[i%len(names)], 0, uint64(i), span(0))
	}
}

// BenchmarkSave saves and restores 100,000 customers.
func BenchmarkSave(b *testing.B) {
	l, names := large()
	for i, name := range names {
		l.Observe(name, 0, uint64(i)<<20, span(0))
		l.Observe(name, 1, uint64(i)<<20, span(0))
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
		l.Observe(names[i], 0, 0, span(0))
	}
	return l, names
}
