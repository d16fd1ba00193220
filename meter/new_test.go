package meter

import (
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestRestore restores meters. They have refilled since they were saved, as the originals
// have, less a part of a byte in each bucket.
func TestRestore(t *testing.T) {
	p := compileProfile(t, SRTCM{CIR: BitRate(8e6), CBS: 5000, EBS: 3000}) // a byte per µs
	m := Restore(p, 1_000_000, 2500, 0)
	if tc, te := m.Tokens(2_234_567); tc != 3734 || te != 0 {
		t.Errorf("got %d, %d tokens, want 3734, 0: 1234.567 µs after 2500, 0", tc, te)
	}
	r := logged(t)
	for range 3000 {
		params := contractParams(r)
		m, saved := usedMeter(t, r, params)
		tc, te := m.Tokens(saved)
		again := Restore(m.profile, saved, tc, te)
		if m.profile.kind == kindTSWTCM {
			continue // an average begins anew
		}
		if got, _ := again.Tokens(saved); got > tc {
			t.Fatalf("%+v: got %d tokens, want at most the %d saved", params, got, tc)
		}
		now := nextTime(r, params, saved)
		_, _, buckets := ratesOf(params)
		if _, warm := m.profile.rule.(warmUp); warm {
			buckets = false
		}
		tc, te = m.Tokens(now)
		// E also gains the overflow of C
		if c, e := again.Tokens(now); buckets && (c > tc || c < tc-1 || e > te || e < te-2) {
			t.Fatalf("%+v: got %d, %d tokens of the restored meter, want %d, %d: %d ns later", params, c, e,
				tc, te, now-saved)
		}
	}
}

func TestAllow(t *testing.T) {
	m := New(compileProfile(t, SRTCM{CIR: BitRate(8e6), CBS: 100, EBS: 50}))
	for i, want := range []bool{true, true, false} { // green, yellow, red
		if got := m.Allow(0, 50+50*(1-i%2)-50*(i/2)); got != want {
			t.Errorf("packet %d: got %v, want %v", i, got, want)
		}
	}
	if tc, te := m.Tokens(0); tc != 0 || te != 0 {
		t.Errorf("got %d, %d tokens, want none", tc, te)
	}
	l := NewLocked(compileProfile(t, TokenBucket{Rate: Every(time.Second), Burst: 2}))
	for i, want := range []Decision{
		{Green, 1, 0, time.Second}, {Green, 0, 0, 2 * time.Second}, {Red, 0, time.Second, 2 * time.Second},
	} {
		if got := l.Decide(0, 1); got != want {
			t.Errorf("request %d: got %+v, want %+v", i, got, want)
		}
	}
	if l.Allow(999_999_999, 1) || !l.Allow(1_000_000_000, 1) {
		t.Error("a byte does not fit exactly after one second")
	}
}

// TestInputColors checks that the old contents of the result slice are not input colors.
func TestInputColors(t *testing.T) {
	p := compileProfile(t, SRTCM{CIR: BitRate(8e6), CBS: 100, EBS: 100})
	table, err := NewTable[int](p, TableConfig{Keys: 4})
	if err != nil {
		t.Fatal(err)
	}
	rule := New(compileProfile(t, FixedWindow{Limit: 200, Window: time.Second}))
	for name, colors := range map[string]func(before, colors []Color){
		"Colors":        func(before, colors []Color) { m := New(p); m.Colors(0, []int{100, 100, 100}, before, colors) },
		"Locked.Colors": func(before, colors []Color) { NewLocked(p).Colors(0, []int{100, 100, 100}, before, colors) },
		"ColorEach": func(before, colors []Color) {
			m := New(p)
			ColorEach([]*Meter{&m, &m, &m}, 0, []int{100, 100, 100}, before, colors)
		},
		"Table.ColorEach": func(before, colors []Color) {
			table, _ = NewTable[int](p, TableConfig{Keys: 4})
			table.ColorEach([]int{7, 7, 7}, 0, []int{100, 100, 100}, before, colors)
		},
	} {
		stale := []Color{Red, Yellow, Red, Yellow}
		if colors(nil, stale); fmt.Sprint(stale) != "[green yellow red yellow]" {
			t.Errorf("%s, color-blind: got %v, want [green yellow red yellow]", name, stale)
		}
		before := []Color{Yellow, Red, Green}
		if colors(before,
			stale); fmt.Sprint(stale, before) != "[yellow red green yellow] [yellow red green]" {
			t.Errorf("%s, aware: got %v for input colors %v, want [yellow red green yellow]", name, stale,
				before)
		}
		if colors(before, before); fmt.Sprint(before) != "[yellow red green]" {
			t.Errorf("%s, in place: got %v, want [yellow red green]", name, before)
		}
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s accepted 2 colors for 3 packets", name)
				}
			}()
			colors(make([]Color, 2), stale)
		}()
	}
	stale := []Color{Red, Red, Green}
	if rule.Colors(0, []int{100, 100, 100}, nil, stale); fmt.Sprint(stale) != "[green green red]" {
		t.Errorf("a window: got %v, want [green green red]", stale)
	}
}

// TestNoProfile checks the panic of a meter that New has not made.
func TestNoProfile(t *testing.T) {
	for name, f := range map[string]func(){
		"New":           func() { New(nil) },
		"NewWithTokens": func() { NewWithTokens(nil, 1, 1) },
		"Restore":       func() { Restore(nil, 0, 1, 1) },
		"NewLocked":     func() { NewLocked(nil) },
		"NewTable":      func() { NewTable[int](nil, TableConfig{Keys: 1}) },
		"Color":         func() { new(Meter).Color(0, 1, Green) },
		"Allow":         func() { new(Locked).Allow(0, 1) },
		"Colors":        func() { new(Meter).Colors(0, nil, nil, nil) },
		"ColorEach":     func() { ColorEach([]*Meter{{}}, 0, []int{1}, nil, make([]Color, 1)) },
		"Tokens":        func() { new(Meter).Tokens(0) },
		"Peek":          func() { new(Meter).Peek(0, 1, Green) },
		"TakeUpTo":      func() { new(Meter).TakeUpTo(0, 1) },
		"RetryAfter":    func() { new(Meter).RetryAfter(0, 1) },
		"ResetAfter":    func() { new(Meter).ResetAfter(0) },
		"Reserve":       func() { new(Meter).Reserve(0, 1, 0) },
		"Decide":        func() { new(Meter).Decide(0, 1) },
		"Explain":       func() { new(Meter).Explain(0, 1, Green) },
		"Clone":         func() { m := new(Meter).Clone(); m.Profile() },
		"SetProfile":    func() { new(Meter).SetProfile(0, nil) },
		"SetProfile to": func() { m := New(compileProfile(t, allKinds[0])); m.SetProfile(0, nil) },
	} {
		if got := panicOf(f); got != noProfile {
			t.Errorf("%s: got panic %v, want %q", name, got, noProfile)
		}
	}
}

func panicOf(f func()) (message any) {
	defer func() { message = recover() }()
	f()
	return nil
}

// TestZeroTable checks that the panics of the zero Table and Shards name their functions.
func TestZeroTable(t *testing.T) {
	var table Table[int]
	var shards Shards[int]
	p := compileProfile(t, TokenBucket{Rate: BitRate(8e6), Burst: 10})
	for name, f := range map[string]func(){
		"Color":      func() { table.Color(1, 0, 1, Green) },
		"ColorEach":  func() { table.ColorEach([]int{1}, 0, []int{1}, nil, make([]Color, 1)) },
		"Decide":     func() { table.Decide(1, 0, 1) },
		"Explain":    func() { table.Explain(1, 0, 1, Green) },
		"Peek":       func() { table.Peek(1, 0, 1, Green) },
		"Prefetch":   func() { table.Prefetch([]int{1}) },
		"RetryAfter": func() { table.RetryAfter(1, 0, 1) },
		"Tokens":     func() { table.Tokens(1, 0) },
		"Delete":     func() { table.Delete(1) },
		"Set":        func() { _ = table.Set(1, 0, p) },
		"Unset":      func() { table.Unset(1, 0) },
		"Append":     func() { _, _ = table.AppendBinary(nil) },
		"Unmarshal":  func() { _ = table.UnmarshalBinary(nil) },
	} {
		if got := panicOf(f); got != zeroTable {
			t.Errorf("Table.%s: got panic %v, want %q", name, got, zeroTable)
		}
	}
	for name, f := range map[string]func(){
		"Color":      func() { shards.Color(1, 0, 1, Green) },
		"Decide":     func() { shards.Decide(1, 0, 1) },
		"Peek":       func() { shards.Peek(1, 0, 1, Green) },
		"RetryAfter": func() { shards.RetryAfter(1, 0, 1) },
		"Delete":     func() { shards.Delete(1) },
		"Set":        func() { _ = shards.Set(1, 0, p) },
		"Unset":      func() { shards.Unset(1, 0) },
		"SetProfile": func() { _ = shards.SetProfile(0, p) },
		"Shift":      func() { shards.Shift(0, 0) },
		"Append":     func() { _, _ = shards.AppendBinary(nil) },
		"Unmarshal":  func() { _ = shards.UnmarshalBinary(nil) },
		"Do":         func() { shards.Do(1, func(*Table[int]) {}) },
	} {
		if got := panicOf(f); got != zeroShards {
			t.Errorf("Shards.%s: got panic %v, want %q", name, got, zeroShards)
		}
	}
	if n := table.Len() + shards.Len(); n != 0 {
		t.Errorf("got %d keys, want 0", n)
	}
	for range table.All() {
		t.Error("the zero Table has a key")
	}
}

func TestUnlimited(t *testing.T) {
	if Unlimited.Cmp(Rate{math.MaxInt64, 2}) <= 0 || Unlimited.String() != "unlimited" {
		t.Errorf("got %v, want the largest rate with the name unlimited", Unlimited)
	}
	if Per(5, time.Second) != ByteRate(5) || Every(time.Minute) != (Rate{1, time.Minute}) {
		t.Errorf("got %v and %v, want 5 bytes per second and 1 per minute", Per(5, time.Second),
			Every(time.Minute))
	}
	for _, params := range []compiler{
		TokenBucket{Rate: Unlimited, Burst: 1500, GCRA: true},
		TokenBucket{Rate: Unlimited, Burst: 1500},
		SRTCM{CIR: Unlimited, CBS: 1500, EBS: 0},
		SRTCM{CIR: Unlimited, CBS: 1500, EBS: 1 << 59},
		TRTCM{CIR: Unlimited, CBS: 1500, PIR: Unlimited, PBS: 1500},
		TRTCM4115{CIR: Unlimited, CBS: 1500, EIR: BitRate(7), EBS: 100, Coupling: true},
	} {
		p := compileProfile(t, params)
		m := NewWithTokens(p, 0, 0)
		for _, now := range []int64{5, 5, 5, 1e18, -1e18} {
			if got := m.Color(now, 1500, Green); got != Green {
				t.Errorf("%+v: got %v at %d, want green", params, got, now)
			}
		}
		if tc, _ := m.Tokens(5); tc != 1500 || m.Peek(5, 1501, Green) == Green {
			t.Errorf("%+v: got %d tokens, want 1500", params, tc)
		}
		if d := m.Decide(5, 1500); d.RetryAfter != 0 || d.Remaining != 1500 {
			t.Errorf("%+v: got %+v, want 1500 remaining now", params, d)
		}
	}
	// No packet is red by the peak rate, and none is green beyond CIR.
	m := New(compileProfile(t, TRTCM{CIR: BitRate(8e6), CBS: 1500, PIR: Unlimited, PBS: 9000}))
	for i, want := range []Color{Green, Yellow, Yellow} {
		if got := m.Color(0, 1500, Green); got != want {
			t.Errorf("packet %d: got %v, want %v", i, got, want)
		}
	}
	slow := compileProfile(t, TokenBucket{Rate: BitRate(8e6), Burst: 1000})
	plan := New(compileProfile(t, TokenBucket{Rate: Unlimited, Burst: 1500}))
	plan.SetProfile(0, slow)
	if tc, _ := plan.Tokens(0); tc != 1000 {
		t.Errorf("got %d tokens, want 1000", tc)
	}
}

func TestNow(t *testing.T) {
	a := Now()
	time.Sleep(time.Millisecond)
	if b := Now(); b-a < 1e6 || a < 0 {
		t.Errorf("got %d, and %d at least 1 ms later", a, b)
	}
	if n := testing.AllocsPerRun(100, func() { Now() }); n != 0 {
		t.Errorf("got %v allocations, want 0", n)
	}
}

// TestVetFindsCopies checks that go vet reports copies of meters.
func TestVetFindsCopies(t *testing.T) {
	if testing.Short() {
		t.Skip("runs go vet")
	}
	file := filepath.Join(t.TempDir(), "main.go")
	const program = `package main

import "github.com/a-seed-32e5a53f/shaper/meter"

func main() {
	meters := make([]meter.Meter, 3)
	for i := range meters {
		meters[i] = meter.New(nil) // not a copy
	}
	for _, m := range meters {
		m.Color(0, 1, meter.Green)
	}
	one := meters[0]
	one.Color(0, 1, meter.Green)
}
`
	if err := os.WriteFile(file, []byte(program), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("go", "vet", "-copylocks", file).CombinedOutput()
	if got := string(out); err == nil || !strings.Contains(got, "range var m copies lock") ||
		!strings.Contains(got, "assignment copies lock value to one") || strings.Contains(got, "main.go:8") {
		t.Errorf("got %v from go vet, want warnings about copied locks: %s", err, got)
	}
}

// TestShortSlices passes slices that are too short but have capacity behind their ends. The
// calls panic before anything is metered.
func TestShortSlices(t *testing.T) {
	p := compileProfile(t, TokenBucket{Rate: BitRate(8), Burst: 10})
	three := []int{1, 1, 1}
	m, locked := New(p), NewLocked(p) // a panic must not leave it locked
	table, err := NewTable[int](p, TableConfig{Keys: 4})
	if err != nil {
		t.Fatal(err)
	}
	for name, call := range map[string]func(lengths []int, before, colors []Color){
		"Colors":          func(_ []int, before, colors []Color) { m.Colors(0, three, before, colors) },
		"Locked.Colors":   func(_ []int, before, colors []Color) { locked.Colors(0, three, before, colors) },
		"ColorEach":       func(n []int, before, colors []Color) { ColorEach([]*Meter{&m, &m, &m}, 0, n, before, colors) },
		"Table.ColorEach": func(n []int, before, colors []Color) { table.ColorEach(three, 0, n, before, colors) },
	} {
		for short := range 3 {
			if short == 2 && name != "ColorEach" && name != "Table.ColorEach" {
				continue
			}
			lengths, before, colors := []int{1, 1, 1}, []Color{Red, Red, Red}, make([]Color, 3)
			switch short {
			case 0:
				before = before[:0]
			case 1:
				colors = colors[:1]
			case 2:
				lengths = lengths[:2]
			}
			func() {
				defer func() {
					if recover() == nil {
						t.Errorf("%s accepted a slice that is too short (%d)", name, short)
					}
				}()
				call(lengths, before, colors)
			}()
		}
	}
	if tc, _ := m.Tokens(0); tc != 10 || table.Len() != 0 {
		t.Errorf("got %d tokens and %d keys after refused calls, want 10 and 0", tc, table.Len())
	}
}
