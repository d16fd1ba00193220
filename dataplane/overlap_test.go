package dataplane_test

import (
	"slices"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/dataplane/internal/frametest"
)

// TestMayCover checks that no match that covers another is left out, and that most others are.
func TestMayCover(t *testing.T) {
	r := frametest.Seeded(t)
	covers, candidates, pairs := 0, 0, 0
	for range 100 {
		list := make([]dataplane.Match, 1+r.IntN(150))
		for i := range list {
			// an earlier one without some of its lists
			if list[i] = frametest.RandomMatch(r, 2+r.IntN(12)); i > 0 && r.IntN(3) == 0 {
				list[i] = list[r.IntN(i)]
				for _, values := range frametest.Lists(&list[i]) {
					if r.IntN(3) == 0 {
						*values = nil
					}
				}
				if r.IntN(3) == 0 {
					list[i].Src = nil
				}
				if r.IntN(3) == 0 {
					list[i].Customer = false
				}
			}
		}
		c := compiled.NewClassifier(list)
		for i := range list {
			found := slices.Collect(c.MayCover(&list[i]))
			if !slices.IsSorted(found) {
				t.Fatalf("not in order: %v", found)
			}
			for j := range list {
				if list[j].Covers(&list[i]) {
					covers++
					if !slices.Contains(found, j) {
						t.Fatalf("%+v covers %+v, but is left out", list[j], list[i])
					}
				}
			}
			candidates, pairs = candidates+len(found), pairs+len(list)
		}
	}
	if covers < 10_000 || candidates > pairs/2 {
		t.Errorf("%d covers, %d candidates of %d pairs", covers, candidates, pairs)
	}
}
