package advise

import (
	"math/big"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// exact is a token bucket in exact fractions.
type exact struct {
	rate          *big.Rat // bytes per ns
	burst, tokens *big.Rat
	last          int64
	begun         bool
}

func newExact(rate meter.Rate, burst int64) *exact {
	b := new(big.Rat).SetInt64(burst)
	return &exact{rate: big.NewRat(rate.Bytes, int64(rate.Period)), burst: b, tokens: new(big.Rat).Set(b)}
}

func (e *exact) refill(at int64) {
	if e.begun {
		gained := new(big.Rat).Mul(e.rate, new(big.Rat).SetInt64(at-e.last))
		if e.tokens.Add(e.tokens, gained); e.tokens.Cmp(e.burst) > 0 {
			e.tokens.Set(e.burst)
		}
	}
	e.begun, e.last = true, at
}

func (e *exact) take(n int64) bool {
	cost := new(big.Rat).SetInt64(n)
	if e.tokens.Cmp(cost) < 0 {
		return false
	}
	e.tokens.Sub(e.tokens, cost)
	return true
}

// dropped counts the packets that a token bucket drops, with a bucket for each key.
func dropped(s *Stream, rate meter.Rate, burst int64) (packets, bytes int64) {
	buckets := map[int32]*exact{}
	for _, a := range s.packets {
		b := buckets[a.key]
		if b == nil {
			b = newExact(rate, burst)
			buckets[a.key] = b
		}
		b.refill(a.at)
		if !b.take(int64(a.n)) {
			packets++
			bytes += int64(a.n)
		}
	}
	return packets, bytes
}

// randomStream has bursts of packets of several sizes, at times in order, of up to three keys.
func randomStream(r *rand.Rand, n int) *Stream {
	keys := 1 + 2*r.Int32N(2)
	s := newStream(keys > 1)
	at := int64(1_700_000_000_000_000_000)
	for range n {
		if r.IntN(10) == 0 {
			at += r.Int64N(20_000_000)
		} else {
			at += r.Int64N(200_000)
		}
		s.packets = append(s.packets, arrival{at, []int32{40, 576, 1500, 1 + r.Int32N(9000)}[r.IntN(4)], r.Int32N(keys)})
	}
	return s
}

func randomRate(r *rand.Rand) meter.Rate {
	if r.IntN(3) == 0 {
		return meter.Per(1+r.Int64N(1_000_000), time.Duration(1+r.Int64N(1e9)))
	}
	return meter.BitRate(1_000_000 * (1 + r.Int64N(200)))
}

// TestLossFree checks that the loss-free burst drops nothing, and one byte less drops a packet.
func TestLossFree(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 100 {
		s, rate := randomStream(r, 300), randomRate(r)
		s.group()
		d, err := s.at(rate)
		if err != nil {
			t.Fatal(err)
		}
		burst := d.lossFree
		if n, _ := dropped(s, rate, burst); n != 0 {
			t.Fatalf("rate %v: a burst of %d drops %d packets, want none", rate, burst, n)
		}
		if n, _ := dropped(s, rate, burst-1); n == 0 {
			t.Fatalf("rate %v: a burst of %d drops nothing, so %d is not the smallest", rate, burst-1, burst)
		}
	}
}

// TestFrontier compares all points with exact fractions.
func TestFrontier(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 15 {
		s, rate := randomStream(r, 200), randomRate(r)
		s.group()
		d, err := s.at(rate)
		if err != nil {
			t.Fatal(err)
		}
		points, err := d.frontier()
		if err != nil {
			t.Fatal(err)
		}
		for i, p := range points {
			packets, bytes := dropped(s, rate, p.Burst)
			if want := (dataplane.Count{Packets: packets, Bytes: bytes}); p.Dropped != want {
				t.Fatalf("rate %v burst %d: got %v dropped, want %v", rate, p.Burst, p.Dropped, want)
			}
			if i > 0 && p.Burst <= points[i-1].Burst {
				t.Fatalf("bursts %d and %d are not in order", points[i-1].Burst, p.Burst)
			}
		}
		if last := points[len(points)-1]; last.Burst != d.lossFree || last.Dropped.Packets != 0 {
			t.Fatalf("last point: got %+v, want no loss at %d", last, d.lossFree)
		}
	}
}

// TestSmallest checks that the wanted loss holds with the burst, and not with one byte less.
func TestSmallest(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for range 60 {
		s, rate := randomStream(r, 300), randomRate(r)
		loss := dataplane.Fraction{Num: r.Int64N(20), Den: 100}
		s.group()
		d, err := s.at(rate)
		if err != nil {
			t.Fatal(err)
		}
		most := 300 * loss.Num / loss.Den
		burst, err := d.smallest(most)
		if err != nil {
			t.Fatal(err)
		}
		if n, _ := dropped(s, rate, burst); n > most {
			t.Fatalf("rate %v: a burst of %d drops %d packets, want at most %d", rate, burst, n, most)
		}
		if n, _ := dropped(s, rate, burst-1); n <= most {
			t.Fatalf("rate %v: a burst of %d drops %d packets, so %d is not needed", rate, burst-1, n, burst)
		}
	}
}
