package meter

import (
	"math/rand/v2"
	"testing"
	"time"
)

// burstLengths are random, so that no branch on a verdict is predicted.
func burstLengths() []int {
	r := rand.New(rand.NewPCG(1, 2))
	lengths := make([]int, 1024)
	for i := range lengths {
		lengths[i] = 64 + r.IntN(1455)
	}
	return lengths
}

// BenchmarkColorRandom meters random lengths at about the rate of the meter.
func BenchmarkColorRandom(b *testing.B) {
	lengths := burstLengths()
	for _, c := range []compiler{
		TokenBucket{Rate: BitRate(1e9), Burst: 65536},
		SRTCM{CIR: BitRate(5e8), CBS: 65536, EBS: 65536},
		TRTCM{CIR: BitRate(5e8), CBS: 65536, PIR: BitRate(1e9), PBS: 65536},
		TRTCM4115{CIR: BitRate(5e8), CBS: 65536, EIR: BitRate(3e8), EBS: 65536},
		TRTCM4115{CIR: BitRate(5e8), CBS: 65536, EIR: BitRate(3e8), EBS: 65536, Coupling: true},
	} {
		p := compileProfile(b, c)
		b.Run(p.Kind().String(), func(b *testing.B) {
			m, now, i := New(p), int64(0), 0
			for b.Loop() {
				now += 6000
				m.Color(now, lengths[i&1023], Green)
				i++
			}
		})
	}
}

// BenchmarkColors meters bursts of 32 packets. A time is that of one packet.
func BenchmarkColors(b *testing.B) {
	lengths, colors := burstLengths(), make([]Color, 32)
	for _, c := range []compiler{
		SRTCM{CIR: BitRate(1e9), CBS: 65536, EBS: 65536},
		TRTCM{CIR: BitRate(1e9), CBS: 65536, PIR: BitRate(2e9), PBS: 65536},
		TokenBucket{Rate: BitRate(99_999_999_999), Burst: 250e6},
	} {
		p := compileProfile(b, c)
		b.Run(p.Kind().String(), func(b *testing.B) {
			m, now := New(p), int64(0)
			for i := 0; i < b.N; i += 32 {
				now += 200_000
				m.Colors(now, lengths[i&991:i&991+32], nil, colors)
			}
		})
	}
}

// BenchmarkColorEach meters bursts of 32 packets by as many meters of 4096.
func BenchmarkColorEach(b *testing.B) {
	p := compileProfile(b, TRTCM{CIR: BitRate(1e9), CBS: 65536, PIR: BitRate(2e9), PBS: 65536})
	r := rand.New(rand.NewPCG(3, 4))
	meters, picks := make([]Meter, 4096), make([]*Meter, 1<<14)
	for i := range meters {
		meters[i] = New(p)
	}
	for i := range picks {
		picks[i] = &meters[r.IntN(len(meters))]
	}
	lengths, colors, now := burstLengths(), make([]Color, 32), int64(0)
	for i := 0; i < b.N; i += 32 {
		now += 200_000
		at := i & (len(picks) - 1)
		ColorEach(picks[at:at+32], now, lengths[:32], nil, colors)
	}
}

// BenchmarkLocked meters by one goroutine, without contention.
func BenchmarkLocked(b *testing.B) {
	l, now := NewLocked(compileProfile(b, SRTCM{CIR: BitRate(1e9), CBS: 65536, EBS: 65536})), int64(0)
	for b.Loop() {
		now += 1600
		l.Color(now, 594, Green)
	}
}

// BenchmarkShards meters random keys of 10,000 by one goroutine.
func BenchmarkShards(b *testing.B) {
	s, err := NewShards[uint64](compileProfile(b, TokenBucket{Rate: BitRate(1e9), Burst: 65536}),
		TableConfig{Keys: 10_000}, 1000)
	if err != nil {
		b.Fatal(err)
	}
	r := rand.New(rand.NewPCG(5, 6))
	picks := make([]uint64, 1<<14)
	for i := range picks {
		picks[i] = r.Uint64N(5000)
	}
	now, i := int64(0), 0
	for b.Loop() {
		now += 100
		s.Color(picks[i&(len(picks)-1)], now, 100, Green)
		i++
	}
}

// BenchmarkFamily meters by the kinds that are not buckets of 64 bits.
func BenchmarkFamily(b *testing.B) {
	for _, c := range []compiler{
		FixedWindow{Limit: 125_000_000, Window: time.Second},
		SlidingWindow{Limit: 125_000_000, Window: time.Second, Slots: 10},
		SlidingCounter{Limit: 125_000_000, Window: time.Second},
		SlidingLog{Limit: 1_000_000, Window: 10 * time.Millisecond, Entries: 1 << 14},
		TSWTCM{CIR: BitRate(1e9), PIR: BitRate(2e9), Window: time.Second, Seed: 2859},
		TokenBucket{Rate: BitRate(1e9), Burst: 65536, Warmup: 2 * time.Second},
	} {
		p := compileProfile(b, c)
		name := p.Kind().String()
		if _, warm := p.rule.(warmUp); warm {
			name += "-warmup"
		}
		b.Run(name, func(b *testing.B) {
			m, now := New(p), int64(0)
			for b.Loop() {
				now += 4000
				m.Color(now, 594, Green)
			}
		})
	}
}

// BenchmarkColor meters packets of one length.
func BenchmarkColor(b *testing.B) {
	for _, c := range []compiler{
		TokenBucket{Rate: BitRate(1e9), Burst: 65536},
		SRTCM{CIR: BitRate(1e9), CBS: 65536, EBS: 65536},
		TRTCM{CIR: BitRate(1e9), CBS: 65536, PIR: BitRate(2e9), PBS: 65536},
		TRTCM4115{CIR: BitRate(5e8), CBS: 65536, EIR: BitRate(3e8), EBS: 65536},
		TRTCM4115{CIR: BitRate(5e8), CBS: 65536, EIR: BitRate(3e8), EBS: 65536, Coupling: true},
		TokenBucket{Rate: BitRate(99_999_999_999), Burst: 250e6},
		TRTCM{CIR: BitRate(999_999_999), CBS: 65536, PIR: BitRate(1e9), PBS: 1e9},
	} {
		p := compileProfile(b, c)
		name := p.Kind().String()
		if p.rule != nil {
			name += "-wide"
		}
		b.Run(name, func(b *testing.B) {
			m, now := New(p), int64(0)
			for b.Loop() {
				now += 1600
				m.Color(now, 594, Green)
			}
		})
	}
}
