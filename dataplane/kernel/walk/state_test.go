package walk

import (
	"fmt"
	"math/big"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/bpf"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/engine"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/kerneltest"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// TestConvert compares the conversion of levels to another profile with exact arithmetic: each
// bucket keeps its bytes, rounded down to the new unit and capped at the new burst.
func TestConvert(t *testing.T) {
	t.Parallel()
	r := kerneltest.Seeded(t)
	for range 20_000 {
		var stages [2]bpf.ShaperProfile
		var params [2]meter.Params
		for i := range stages {
			params[i] = anyMeter(r, r.IntN(5)).Params
			profile, err := params[i].Profile()
			if err != nil {
				t.Fatal(err)
			}
			stages[i] = engine.EncodeProfile(integers(profile))
		}
		from, to := &stages[0], &stages[1]
		var l engine.Levels
		for i := range l {
			most := from.Buckets[i].Size
			l[i] = min(most, kerneltest.Pick(r, 0, 1, 2, most, r.Int64N(most+1)))
		}
		got := l.Convert(from, to)
		for i := range got {
			was, den := int64(from.Buckets[i].Den), int64(to.Buckets[i].Den)
			want := new(big.Rat).SetFrac64(l[i], was)
			want.Mul(want, new(big.Rat).SetInt64(den/engine.Halves)) // in units of the new profile
			units := new(big.Int).Quo(want.Num(), want.Denom())
			if most := big.NewInt(to.Buckets[i].Size / engine.Halves); units.Cmp(most) > 0 {
				units = most
			}
			if got[i] != engine.Halves*units.Int64() {
				t.Fatalf("bucket %d: %d/%d bytes of %T%+v: got %d/%d of %T%+v, want %d",
					i, l[i], was, params[0], params[0], got[i], den, params[1], params[1],
					engine.Halves*units.Int64())
			}
		}
		if same := l.Convert(from, from); same != (engine.Levels{l[0] &^ 1, l[1] &^ 1}) {
			t.Fatalf("%v of %T%+v with the same profile: got %v", l, params[0], params[0], same)
		}
	}
}

// TestLevels checks that a state yields the levels that it was made of, at once, later, while its
// lock is closed, and before its clock starts.
func TestLevels(t *testing.T) {
	t.Parallel()
	r := kerneltest.Seeded(t)
	for range 20_000 {
		m := anyMeter(r, r.IntN(5))
		profile, err := m.Params.Profile()
		if err != nil {
			t.Fatal(err)
		}
		s := engine.EncodeProfile(integers(profile))
		var l engine.Levels
		for i := range l {
			most := s.Buckets[i].Size / engine.Halves
			l[i] = engine.Halves * min(most, kerneltest.Pick(r, 0, 1, r.Int64N(most+1), most))
		}
		now := r.Uint64N(1 << 62)
		state := l.State(now, &s)
		if got := engine.LevelsAt(&state, &s, now); got != l {
			t.Fatalf("%T%+v: state at %d: got %v, want %v", m.Params, m.Params, now, got, l)
		}
		if got := engine.LevelsAt(&state, &s, now-r.Uint64N(now+1)); got != l {
			t.Fatalf("%T%+v: state of %d, read at an earlier time: got %v, want %v", m.Params, m.Params, now,
				got, l)
		}
		unstarted := l.UnstartedState(&s)
		if got := engine.LevelsAt(&unstarted, &s, now); got != l {
			t.Fatalf("%T%+v: before the clock starts: got %v, want %v", m.Params, m.Params, got, l)
		}
		dt := uint64(anyGap(r, &s, 1500))
		for i := range state.Word {
			state.Word[i] |= engine.Closed
		}
		model := newExact(m.Params, dataplane.Fraction{})
		model.Refill(0)
		for i := range l {
			model.Tokens[i].SetFrac64(l[i], int64(s.Buckets[i].Den))
		}
		model.Refill(int64(dt))
		got := engine.LevelsAt(&state, &s, now+dt)
		for i, holds := range model.Tokens {
			if want := new(big.Rat).Mul(holds, new(big.Rat).SetInt64(
				int64(s.Buckets[i].Den))); want.Cmp(new(big.Rat).SetInt64(got[i])) != 0 {
				t.Fatalf("%T%+v: %v at %d: after %d ns got %v, want %v in bucket %d", m.Params, m.Params, l,
					now, dt, got, want, i)
			}
		}
	}
}

// TestWindowConvert compares the conversion of levels from or to a window with exact arithmetic:
// the tokens are kept in whole bytes, capped at the new limit.
func TestWindowConvert(t *testing.T) {
	t.Parallel()
	r := kerneltest.Seeded(t)
	for range kerneltest.Rounds(20_000) {
		var stages [2]bpf.ShaperProfile
		var text [2]string
		windows := r.IntN(2)
		for i := range stages {
			params := anyMeter(r, r.IntN(5)).Params
			if i == windows || r.IntN(2) == 0 {
				params = anyWindow(r, r.IntN(2) == 0)
			}
			profile, err := params.Profile()
			if err != nil {
				t.Fatal(err)
			}
			stages[i], text[i] = engine.EncodeProfile(integers(profile)), fmt.Sprintf("%T%+v", params, params)
		}
		from, to := &stages[0], &stages[1]
		var l engine.Levels
		for i := range l {
			most := from.Buckets[i].Size
			l[i] = min(most, kerneltest.Pick(r, 0, 1, 2, most, r.Int64N(most+1)))
		}
		unit := int64(engine.Halves)
		if to.Window > 0 {
			unit = 1
		}
		got := l.Convert(from, to)
		for i := range got {
			was, den := from.Buckets[i].Den, to.Buckets[i].Den
			units := new(big.Int).Mul(big.NewInt(l[i]), new(big.Int).SetUint64(den))
			units.Quo(units, new(big.Int).Mul(new(big.Int).SetUint64(was), big.NewInt(unit)))
			if most := big.NewInt(to.Buckets[i].Size / unit); units.Cmp(most) > 0 {
				units = most
			}
			if got[i] != unit*units.Int64() {
				t.Fatalf("bucket %d: %d/%d bytes of %s: got %d/%d of %s, want %d", i, l[i], was, text[0],
					got[i], den, text[1], unit*units.Int64())
			}
		}
		now := r.Uint64N(1 << 61)
		state := got.State(now, to)
		if again := engine.LevelsAt(&state, to, now); again != got {
			t.Fatalf("%s: state at %d: got %v, want %v", text[1], now, again, got)
		}
		unstarted := got.UnstartedState(to)
		if again := engine.LevelsAt(&unstarted, to, now); again != got {
			t.Fatalf("%s: before the clock starts: got %v, want %v", text[1], again, got)
		}
	}
}
