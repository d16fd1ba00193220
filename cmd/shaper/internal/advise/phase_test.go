package advise

import (
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/meter"
)

// TestProgress checks that the reported parts of the work reach 1 in several steps, with and without packets.
func TestProgress(t *testing.T) {
	var lock sync.Mutex
	var parts []float64
	o := Options{
		Rate: meter.BitRate(10_000_000), Peak: meter.BitRate(20_000_000), RTT: 10 * time.Millisecond,
		Progress: func(done float64) {
			lock.Lock()
			defer lock.Unlock()
			parts = append(parts, done)
		},
	}
	check := func(what string, steps int) {
		t.Helper()
		most := 0.0
		for _, part := range parts {
			if most = max(most, part); part <= 0 || part > 1 {
				t.Errorf("%s: part %v", what, part)
			}
		}
		if len(parts) < steps || most != 1 {
			t.Errorf("%s: %d parts up to %v, want at least %d up to 1", what, len(parts), most, steps)
		}
		parts = nil
	}
	if _, err := Without(o); err != nil {
		t.Fatal(err)
	}
	check("without a capture", 10)

	s := randomStream(rand.New(rand.NewPCG(1, 2)), 200)
	s.group()
	o.phase = phase{o.Progress, 0, 1}
	if err := s.whole(&Advice{Capture: &Capture{Count: s.Total(), DurationNS: 1e9}}, o); err != nil {
		t.Fatal(err)
	}
	check("a capture", 8)
}
