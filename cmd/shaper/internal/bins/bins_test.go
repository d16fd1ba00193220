package bins

import (
	"math/big"
	"math/rand/v2"
	"testing"
	"time"
)

// TestArea compares the backlog in each bin with its definition: the sum over all packets of
// the bytes times the part of the bin during which the packet is queued.
func TestArea(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for _, span := range []int64{1e3, 1e6, 1e9, 1e15, 9e18} { // ns; the last makes sums wrap
		type wait struct{ from, to, n int64 }
		start := -r.Int64N(1e18)
		x := Axis{}
		a := x.AddArea()
		x.Bin(start)
		var waits []wait
		for range 200 {
			from := start + r.Int64N(span)
			w := wait{from, from + r.Int64N(start+span-from+1), r.Int64N(1e3)}
			waits = append(waits, w)
			a.Put(&x, w.from, w.to, w.n)
		}
		width := x.Width / 1000
		for i, got := range a.Means(&x) {
			from, area := int64(i)*width, new(big.Int)
			for _, w := range waits {
				if part := min(x.micros(w.to), from+width) - max(x.micros(w.from), from); part > 0 {
					area.Add(area, new(big.Int).Mul(big.NewInt(part), big.NewInt(w.n)))
				}
			}
			area.Add(area, big.NewInt(width/2)).Quo(area, big.NewInt(width))
			if got != area.Int64() {
				t.Fatalf("span %d, bin %d of %d: got %d, want %v", span, i, x.n, got, area)
			}
		}
	}
}
