package stats

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/live"
)

// TestFirsts compares the first customers of random lists with those of a sorted list.
func TestFirsts(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for range 2000 {
		f := firsts{most: r.IntN(10)}
		values := 1 + r.Int64N(100)
		var want []ranked
		for range r.IntN(100) {
			c := ranked{new(live.Customer), r.Int64N(values)}
			want = append(want, c)
			f.add(c)
		}
		slices.SortStableFunc(want, func(a, b ranked) int { return cmp.Compare(b.by, a.by) })
		if f.most > 0 && len(want) > f.most {
			want = want[:f.most]
		}
		if got := f.sorted(); !slices.Equal(got, want) {
			t.Fatalf("first %d: %v, want %v", f.most, got, want)
		}
	}
}
