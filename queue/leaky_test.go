package queue

import (
	"math"
	"math/big"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/meter"
)

func open(t testing.TB, cfg Config) *Leaky {
	t.Helper()
	q, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return q
}

// Rows by hand: 8 Mbit/s is one byte per microsecond.
func TestTrace(t *testing.T) {
	const µs = 1000
	mega := meter.BitRate(8e6)
	type row struct {
		at   int64
		n    int
		want int64 // -1: dropped
	}
	for _, test := range []struct {
		name string
		cfg  Config
		rows []row
	}{
		{"paced at the rate", Config{Rate: mega, Time: time.Second}, []row{
			{0, 100, 0},
			{0, 100, 100 * µs},
			{50 * µs, 100, 200 * µs},
			{300 * µs, 100, 300 * µs},
			{1000 * µs, 1, 1000 * µs},
		}},
		{"the fraction is rounded up when used and never carried", Config{Rate: meter.Rate{Bytes: 3, Period: 10}, Time: time.Second}, []row{
			{0, 1, 0},
			{0, 1, 4},  // 3 1/3
			{0, 1, 7},  // 6 2/3
			{0, 1, 10}, // 10
			{0, 1, 14},
		}},
		{"wait equal to the limit is admitted", Config{Rate: mega, Time: 100 * time.Microsecond}, []row{
			{0, 100, 0},
			{0, 1, 100 * µs},
			{0, 1, -1},
			{1 * µs, 1, 101 * µs},
		}},
		{"a fraction of a ns over the limit is over it", Config{Rate: meter.Rate{Bytes: 3, Period: 10}, Time: 3}, []row{
			{0, 1, 0},
			{0, 1, -1},
			{1, 1, 4},
		}},
		{"bytes waiting, this one included", Config{Rate: mega, Bytes: 150}, []row{
			{0, 151, -1},
			{0, 150, 0}, // departs at once
			{0, 100, 150 * µs},
			{0, 51, -1},
			{0, 50, 250 * µs},
			{149 * µs, 1, -1},
			{150 * µs, 100, 300 * µs},
		}},
		{"packets waiting, this one included", Config{Rate: mega, Packets: 2}, []row{
			{0, 100, 0},
			{0, 100, 100 * µs},
			{0, 100, 200 * µs},
			{0, 100, -1},
			{99 * µs, 100, -1},
			{100 * µs, 100, 300 * µs},
		}},
		{"a clock that begins below zero", Config{Rate: mega, Time: time.Second}, []row{
			{-1000 * µs, 100, -1000 * µs},
			{-1000 * µs, 100, -900 * µs},
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			q := open(t, test.cfg)
			for i, r := range test.rows {
				got, ok := q.Admit(r.at, r.n)
				if !ok {
					got = -1
				}
				if got != r.want {
					t.Fatalf("row %d: %d B at %d leaves at %d, want %d", i, r.n, r.at, got, r.want)
				}
			}
		})
	}
}

// model is the rule in exact arithmetic.
type model struct {
	cfg     Config
	next    *big.Rat
	waiting []struct {
		at *big.Rat
		n  int64
	}
}

func (m *model) admit(now int64, n int) (int64, bool) {
	at := new(big.Rat).SetInt64(now)
	if m.next != nil && m.next.Cmp(at) > 0 {
		at.Set(m.next)
	}
	wait := new(big.Rat).Sub(at, new(big.Rat).SetInt64(now))
	if m.cfg.Time > 0 && wait.Cmp(new(big.Rat).SetInt64(int64(m.cfg.Time))) > 0 {
		return 0, false
	}
	packets, bytes := int64(1), int64(n)
	for _, w := range m.waiting {
		if w.at.Cmp(new(big.Rat).SetInt64(now)) > 0 {
			packets++
			bytes += w.n
		}
	}
	if m.cfg.Bytes > 0 && bytes > m.cfg.Bytes || m.cfg.Packets > 0 && packets > m.cfg.Packets {
		return 0, false
	}
	m.waiting = append(m.waiting, struct {
		at *big.Rat
		n  int64
	}{at, int64(n)})
	m.next = big.NewRat(int64(n)*int64(m.cfg.Rate.Period), m.cfg.Rate.Bytes)
	m.next.Add(m.next, at)
	up := new(big.Int).Div(new(big.Int).Sub(new(big.Int).Add(at.Num(), at.Denom()), big.NewInt(1)), at.Denom())
	return up.Int64(), true
}

func TestAgainstModel(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for range 300 {
		cfg := Config{Rate: meter.Rate{Bytes: 1 + r.Int64N(2000), Period: time.Duration(1 + r.IntN(1e6))}}
		for cfg.Time+time.Duration(cfg.Bytes+cfg.Packets) == 0 {
			cfg.Time = time.Duration(r.IntN(1e6)) * time.Duration(r.IntN(2))
			cfg.Bytes, cfg.Packets = r.Int64N(10_000)*r.Int64N(2), r.Int64N(20)*r.Int64N(2)
		}
		q, m := open(t, cfg), &model{cfg: cfg}
		now := r.Int64N(1e18)
		for i := range 200 {
			n := r.IntN(1600)
			got, ok := q.Admit(now, n)
			want, wantOK := m.admit(now, n)
			if got != want || ok != wantOK {
				t.Fatalf("%+v packet %d: %d B at %d leaves at %d, %v; model %d, %v", cfg, i, n, now, got, ok, want, wantOK)
			}
			now += r.Int64N(1 + []int64{0, 1000, 1e6}[r.IntN(3)])
		}
	}
}

func TestRefusals(t *testing.T) {
	ok := meter.BitRate(1e6)
	for _, test := range []struct {
		cfg  Config
		want string
	}{
		{Config{Time: 1}, "rate must be above zero"},
		{Config{Rate: ok}, "limit is missing"},
		{Config{Rate: ok, Bytes: -1}, "limit is negative"},
		{Config{Rate: meter.Rate{Bytes: math.MaxInt64, Period: 1}, Time: 1}, "too fine"},
	} {
		if _, err := New(test.cfg); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%+v: %v, want %q", test.cfg, err, test.want)
		}
	}
}

func TestEndOfTime(t *testing.T) {
	q := open(t, Config{Rate: meter.BitRate(1), Time: math.MaxInt64})
	for range 3 {
		q.Admit(math.MaxInt64-10, math.MaxInt64) // must not overflow
	}
	if at, ok := q.Admit(math.MaxInt64-10, 0); !ok || at != math.MaxInt64-10 {
		t.Errorf("%d, %v", at, ok)
	}
}

func TestAllocations(t *testing.T) {
	q := open(t, Config{Rate: meter.BitRate(8e6), Packets: 100})
	var now int64
	admit := func() {
		for range 100 {
			now += 500_000
			q.Admit(now, 1000)
		}
	}
	admit()
	if n := testing.AllocsPerRun(100, admit); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkAdmit(b *testing.B) {
	q, now := open(b, Config{Rate: meter.BitRate(1e9), Time: time.Second}), int64(0)
	for b.Loop() {
		now += 12_000
		q.Admit(now, 1500)
	}
}
