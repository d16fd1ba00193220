package advise

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// millions returns 4,000,000 packets, with pauses and bursts, and a rate a quarter above their average.
func millions() (s *Stream, a *Advice, o Options) {
	r := rand.New(rand.NewPCG(9, 10))
	s = newStream(false)
	at := int64(0)
	for range 4_000_000 {
		at += int64(r.ExpFloat64() * 5_000)
		if r.IntN(5000) == 0 {
			at += 20_000_000
		}
		s.add(arrival{at, []uint32{40, 40, 576, 1500}[r.IntN(4)], 0}, meter.Green)
	}
	a = &Advice{Capture: &Capture{Count: s.Total(), DurationNS: at}}
	bits := twoDigits(a.Capture.Rate() * 1.25)
	o.Rate, o.Peak = meter.BitRate(bits), meter.BitRate(2*bits)
	o.Loss, o.Excess = dataplane.Fraction{Den: 1}, dataplane.Fraction{Num: 5, Den: 100}
	return s, a, o
}

// BenchmarkFrontier measures the frontier of 4,000,000 packets: about 100 bursts.
func BenchmarkFrontier(b *testing.B) {
	s, _, o := millions()
	for b.Loop() {
		d, err := s.demandAt(o.Rate)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := d.frontier(); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkWhole measures all answers about 4,000,000 packets: also the bursts of four meters, and
// those at eight rates for three losses.
func BenchmarkWhole(b *testing.B) {
	s, a, o := millions()
	for b.Loop() {
		if err := s.whole(a, o); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkKeys measures the answers for 4,000,000 packets of 100,000 keys: the frontier, and the bursts
// of an srTCM with which no key loses more than 1 %.
func BenchmarkKeys(b *testing.B) {
	whole, _, o := millions()
	r := rand.New(rand.NewPCG(11, 12))
	s := newStream(true)
	for i, a := range whole.packets {
		if a.key = r.Int32N(100_000); i < 100_000 {
			a.key = int32(i)
		}
		s.add(a, meter.Green)
	}
	o.Loss = dataplane.Fraction{Num: 1, Den: 100}
	rate := meter.BitRate(20_000)
	for b.Loop() {
		s.group()
		if _, err := s.class(meter.SRTCM{CIR: rate}, o); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkClosedLoop measures what TCP gets at 50 Mbit/s.
func BenchmarkClosedLoop(b *testing.B) {
	for b.Loop() {
		if _, err := closedLoop(Options{Rate: meter.BitRate(50_000_000), RTT: 40 * time.Millisecond},
			0); err != nil {
			b.Fatal(err)
		}
	}
}
