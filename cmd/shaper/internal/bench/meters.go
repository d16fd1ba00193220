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
	byteRate  = 1e9 / 8 // bytes in a second
	bucket    = 64 << 10
)

// imix is what of twelve packets has which length.
var imix = [12]int{64, 64, 64, 64, 64, 64, 64, 594, 594, 594, 594, 1518}

// arrivals is a stream of packets.
type arrivals struct {
	ns      []int64
	lengths []int
	pick    []uint32 // a meter for each
}

// stream is random IMIX of 3 Gbit/s. The picks are those of rte_meter.c.
var stream = sync.OnceValue(func() arrivals {
	r := rand.New(rand.NewPCG(2697, 2698))
	s := arrivals{make([]int64, streamLen), make([]int, streamLen), make([]uint32, streamLen)}
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

// first is the first n packets.
func (s *arrivals) first(n int) arrivals { return arrivals{s.ns[:n], s.lengths[:n], s.pick[:n]} }

// kind is a meter to compare.
type kind struct {
	name    string
	profile *meter.Profile
}

var kinds = [2]kind{
	{"srtcm", must(meter.SRTCM{CIR: meter.BitRate(1e9), CBS: bucket, EBS: bucket}.Profile())},
	{"trtcm", must(meter.TRTCM{CIR: meter.BitRate(1e9), CBS: bucket, PIR: meter.BitRate(2e9), PBS: bucket}.Profile())},
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// tally counts packets by color; a fourth place spares a bounds check.
type tally [4]int

// one meters a packet at a time.
func (k *kind) one(s arrivals) (ns float64, t tally) {
	m := meter.New(k.profile)
	lengths := s.lengths[:len(s.ns)]
	ns = perPacket(len(s.ns), func() {
		for i, now := range s.ns {
			t[m.Color(now, lengths[i], meter.Green)&3]++
		}
	})
	return ns, t
}

// bursts meters 32 packets with one time.
func (k *kind) bursts(s arrivals) (ns float64, t tally) {
	m := meter.New(k.profile)
	var colors [burst]meter.Color
	ns = perPacket(len(s.ns), func() {
		for i := 0; i < len(s.ns); i += burst {
			colors = [burst]meter.Color{}
			m.Colors(s.ns[i], s.lengths[i:i+burst], colors[:])
			for _, c := range colors {
				t[c&3]++
			}
		}
	})
	return ns, t
}

// many meters 32 packets with one time, each by another meter at random.
func (k *kind) many(s arrivals, all []meter.Meter) (ns float64, t tally) {
	for i := range all {
		all[i] = meter.New(k.profile)
		all[i].Color(s.ns[0], s.lengths[0], meter.Green)
	}
	var colors [burst]meter.Color
	var meters [burst]*meter.Meter
	ns = perPacket(len(s.ns), func() {
		for i := 0; i < len(s.ns); i += burst {
			colors = [burst]meter.Color{}
			for j, p := range s.pick[i : i+burst] {
				meters[j] = &all[p]
			}
			meter.ColorEach(meters[:], s.ns[i], s.lengths[i:i+burst], colors[:])
			for _, c := range colors {
				t[c&3]++
			}
		}
	})
	return ns, t
}
