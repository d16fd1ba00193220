package meter

import (
	"math"
	"testing"
	"time"
)

// TestShift compares a meter with another one whose clock begins anew, once or several times.
func TestShift(t *testing.T) {
	r := logged(t)
	for range 2000 {
		params := contractParams(r)
		p := compileProfile(t, params)
		c, e := p.Bursts()
		m, n := New(p), New(p)
		if r.IntN(2) == 0 {
			m = NewWithTokens(p, c/2, e/2)
			n = m.Clone()
		}
		now, diff := r.Int64N(1e18), int64(0) // the time of m, and how much n's is later
		for i := range 60 {
			length, in := nextLength(r, params, c, e, c+1), Color(r.IntN(3))
			if got, want := n.Explain(now+diff, length, in), m.Explain(now, length, in); got != want {
				t.Fatalf("%+v: packet %d: got %+v, want %+v", params, i, got, want)
			}
			if r.IntN(5) == 0 {
				by := r.Int64N(1e18) - 5e17
				by -= by % period(params) // windows are aligned
				n.Shift(now+diff+max(by, 0), time.Duration(by))
				diff += by
			}
			now = min(nextTime(r, params, now), 2e18)
		}
	}
}

// TestShiftTable shifts the meters of all keys, and the shared one.
func TestShiftTable(t *testing.T) {
	p := compileProfile(t, TokenBucket{Rate: ByteRate(1000), Burst: 5000})
	own := compileProfile(t, SlidingLog{Limit: 5000, Window: time.Second, Entries: 5})
	table, _ := NewTable[int](p, TableConfig{Keys: 3, Idle: true})
	shards, err := NewShards[int](p, TableConfig{Keys: 400}, 4)
	if err != nil {
		t.Fatal(err)
	}
	if table.Set(1, 0, own) != nil || shards.Set(1, 0, own) != nil {
		t.Fatal("no room")
	}
	const then, now = 1e18, 5e9
	for key := range 4 { // the last one finds no room
		table.Color(key, then, 4000, Green)
		shards.Color(key, then, 4000, Green)
	}
	table.Delete(2)
	table.Shift(now, now-then-1e9) // a second passed
	shards.Shift(now, now-then-1e9)
	for key, want := range map[int]int64{0: 2000, 1: 5000} {
		if tc, _, _ := table.Tokens(key, now); tc != want {
			t.Errorf("key %d: got %d tokens, want %d", key, tc, want)
		}
		if d := shards.Decide(key, now, 0); d.Remaining != want {
			t.Errorf("Shards: key %d: got %d tokens, want %d", key, d.Remaining, want)
		}
	}
	if tc, _ := table.Rest().Tokens(now); tc != 2000 {
		t.Errorf("got %d tokens of the shared meter, want 2000", tc)
	}
	if got := table.Decide(2, now, 0); got.Remaining != 5000 {
		t.Errorf("got %+v for a new key in the place of a deleted one, want 5000 left", got)
	}
}

// TestShiftBounds moves meters too far. No time becomes later than now, and the meters
// stay as they would be restored.
func TestShiftBounds(t *testing.T) {
	r := logged(t)
	for range 3000 {
		params := contractParams(r)
		p := compileProfile(t, params)
		m := New(p)
		at := pick(r, 0, math.MinInt64, math.MaxInt64, r.Int64()-r.Int64())
		for range 3 {
			m.Color(at, 1, Green)
		}
		before := m.Clone()
		if m.Shift(max(at, 0), 0); m.Begun() && at >= firstWindow &&
			p.latest(m.state) != p.latest(before.state) {
			t.Fatalf("%+v: a shift by 0 moved the time from %d to %d", params, p.latest(before.state),
				p.latest(m.state))
		}
		now := pick(r, 0, math.MaxInt64, r.Int64()-r.Int64())
		m.Shift(now, time.Duration(pick(r, math.MaxInt64, math.MinInt64, r.Int64()-r.Int64())))
		if m.state.epoch > notBegun && p.latest(m.state) > max(now, firstWindow) {
			t.Fatalf("%+v: got the time %d, want at most %d", params, p.latest(m.state), now)
		}
		restored(t, r, &m)
		useRestored(t, &m, now, 100)
	}
	// Sums beyond 64 bits.
	for _, test := range []struct{ at, by, now, want int64 }{
		{5e18, 8e18, 6e18, 6e18},
		{5e18, math.MaxInt64, math.MaxInt64, math.MaxInt64},
		{-5e18, -8e18, 0, firstWindow},
	} {
		m := NewWithTokens(compileProfile(t, TokenBucket{Rate: ByteRate(1000), Burst: 5000}), 0, 0)
		m.Color(test.at, 0, Green)
		if m.Shift(test.now, time.Duration(test.by)); m.state.epoch != test.want {
			t.Errorf("%+v: got %d", test, m.state.epoch)
		}
	}
	// The wall clock was an hour slow: the tokens that were saved are there, and refill.
	m := New(compileProfile(t, TokenBucket{Rate: ByteRate(1000), Burst: 5000}))
	m.Color(0, 4000, Green)
	m.Shift(1e9, time.Hour)
	if got := tokensOf(&m, 1e9); got[0] != 1000 {
		t.Errorf("got %d tokens, want 1000", got[0])
	}
	if got := tokensOf(&m, 2e9); got[0] != 2000 {
		t.Errorf("got %d tokens a second later, want 2000", got[0])
	}
}
