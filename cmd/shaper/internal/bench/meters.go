package main

import (
	"math/rand/v2"
	"sync"

	"github.com/a-seed-32e5a53f/shaper/meter"
)

const (
	streamLen = 4 << 20
	numMeters = 1 << 20
	burst     = 32
	byteRate  = 1e9 / 8 // bytes per second
	bucket    = 64 << 10
)

// imix holds the number of packets per length, of twelve packets.
var imix = [12]int{64, 64, 64, 64, 64, 64, 64, 594, 594, 594, 594, 1518}

// arrivals is a stream of packets.
type arrivals struct {
	ns      []int64
	lengths []int
	pick    []uint32      // index of a meter for each packet
	colors  []meter.Color // results
}

// stream returns random IMIX of 3 Gbit/s. The picks are those of rte_meter.c.
var stream = sync.OnceValue(func() arrivals {
	r := rand.New(rand.NewPCG(2697, 2698))
	s := arrivals{
		make([]int64, streamLen), make([]int, streamLen), make([]uint32, streamLen),
		make([]meter.Color, streamLen),
	}
	now, x := int64(1e6), uint64(88172645463325252)
	for i := range streamLen {
		n := imix[r.IntN(len(imix))]
		s.ns[i], s.lengths[i] = now, n
		now += int64(float64(n) * 8 / 3 * 2 * r.Float64())
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		s.pick[i] = uint32(x % numMeters)
	}
	return s
})

// first returns the first n packets.
func (s arrivals) first(n int) arrivals {
	return arrivals{s.ns[:n], s.lengths[:n], s.pick[:n], s.colors[:n]}
}

// kind is a kind of meter to compare.
type kind struct {
	name    string
	profile *meter.Profile
}

var kinds = [2]kind{
	{"srtcm", must(meter.SRTCM{CIR: meter.BitRate(1e9), CBS: bucket, EBS: bucket}.Profile())},
	{"trtcm", must(
		meter.TRTCM{CIR: meter.BitRate(1e9), CBS: bucket, PIR: meter.BitRate(2e9), PBS: bucket}.Profile())},
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// count returns the numbers of green, yellow and red packets.
func count(colors []meter.Color) (n [3]int) {
	for _, c := range colors {
		n[c]++
	}
	return n
}

// one meters one packet at a time. All times are CPU times: the runtime of Go wakes a thread every
// 80 µs for some ms after a process waited, which wall time on one core would include.
func (k *kind) one(s arrivals) float64 {
	m := meter.New(k.profile)
	lengths, colors := s.lengths[:len(s.ns)], s.colors[:len(s.ns)]
	return thread(len(s.ns), func() {
		for i, now := range s.ns {
			colors[i] = m.Color(now, lengths[i], meter.Green)
		}
	})
}

// bursts meters 32 packets with the same time.
func (k *kind) bursts(s arrivals) float64 {
	m := meter.New(k.profile)
	return thread(len(s.ns), func() {
		for i := 0; i < len(s.ns); i += burst {
			m.Colors(s.ns[i], s.lengths[i:i+burst], nil, s.colors[i:i+burst])
		}
	})
}

// touched returns a million meters, each of which has metered one packet.
func (k *kind) touched(s arrivals, all []meter.Meter) []meter.Meter {
	for i := range all {
		all[i] = meter.New(k.profile)
		all[i].Color(s.ns[0], s.lengths[0], meter.Green)
	}
	return all
}

// many meters 32 packets with the same time, each with a random meter.
func (k *kind) many(s arrivals, all []meter.Meter) float64 {
	all = k.touched(s, all)
	return thread(len(s.ns), func() {
		var meters [burst]*meter.Meter
		for i := 0; i < len(s.ns); i += burst {
			for j, p := range s.pick[i : i+burst] {
				meters[j] = &all[p]
			}
			meter.ColorEach(meters[:], s.ns[i], s.lengths[i:i+burst], nil, s.colors[i:i+burst])
		}
	})
}

// manyOne meters one packet at a time, each with a random meter.
func (k *kind) manyOne(s arrivals, all []meter.Meter) float64 {
	all = k.touched(s, all)
	lengths, colors, pick := s.lengths[:len(s.ns)], s.colors[:len(s.ns)], s.pick[:len(s.ns)]
	return thread(len(s.ns), func() {
		for i, now := range s.ns {
			colors[i] = all[pick[i]].Color(now, lengths[i], meter.Green)
		}
	})
}
