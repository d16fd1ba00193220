package advise

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// BenchmarkAdvise measures all answers for 4,000,000 packets at a quarter above their average rate.
func BenchmarkAdvise(b *testing.B) {
	r := rand.New(rand.NewPCG(9, 10))
	s, at := &Stream{}, int64(0)
	for range 4_000_000 {
		at += int64(r.ExpFloat64() * 5_000)
		if r.IntN(5000) == 0 {
			at += 20_000_000
		}
		s.packets = append(s.packets, arrival{at, []int32{40, 40, 576, 1500}[r.IntN(4)], 0})
	}
	total := s.Total()
	average := float64(total.Bytes) * 8e9 / float64(at)
	o := Options{Rate: meter.BitRate(twoDigits(average * 1.25)), Peak: meter.BitRate(2 * twoDigits(average*1.25))}
	o.Loss = dataplane.Fraction{Den: 1}
	o.Excess = dataplane.Fraction{Num: 5, Den: 100}
	for b.Loop() {
		a := &Advice{Capture: &Capture{Count: total, DurationNS: at}}
		begin := time.Now()
		d, _ := s.at(o.Rate)
		b.Log("at", len(d.periods), d.lossFree, time.Since(begin))
		begin = time.Now()
		f, _ := d.frontier()
		b.Log("frontier", len(f), time.Since(begin))
		begin = time.Now()
		if err := s.whole(a, o); err != nil {
			b.Fatal(err)
		}
		b.Log("all", time.Since(begin))
	}
}

func BenchmarkClosedLoop(b *testing.B) {
	for b.Loop() {
		c, err := closedLoop(Options{Rate: meter.BitRate(50_000_000), RTT: 40 * time.Millisecond}, 0)
		if err != nil {
			b.Fatal(err)
		}
		for _, g := range c.Gates {
			b.Log(g)
		}
	}
}
