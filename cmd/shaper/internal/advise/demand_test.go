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

// lost counts the packets of each key that a token bucket drops, with a bucket for each key.
func lost(s *Stream, rate meter.Rate, burst int64) []dataplane.Count {
	buckets, out := map[int32]*exact{}, make([]dataplane.Count, len(s.keys))
	for _, a := range s.packets {
		b := buckets[a.key]
		if b == nil {
			b = newExact(rate, burst)
			buckets[a.key] = b
		}
		b.refill(a.at)
		if !b.take(int64(a.n)) {
			out[a.key] = out[a.key].Plus(dataplane.Count{Packets: 1, Bytes: int64(a.n)})
		}
	}
	return out
}

func sum(list []dataplane.Count) (n dataplane.Count) {
	for _, c := range list {
		n = n.Plus(c)
	}
	return n
}

// randomStream has bursts of packets of several sizes, at times in order, of up to eight keys, some
// of them with few packets.
func randomStream(r *rand.Rand, n int) *Stream {
	keys := []int32{1, 3, 8}[r.IntN(3)]
	s := newStream(keys > 1)
	at := int64(1_700_000_000_000_000_000)
	for i := range n {
		if r.IntN(10) == 0 {
			at += r.Int64N(20_000_000)
		} else {
			at += r.Int64N(200_000)
		}
		key := min(r.Int32N(keys), r.Int32N(keys))
		if i < int(keys) {
			key = int32(i)
		}
		size := []uint32{40, 576, 1500, 1 + r.Uint32N(9000)}[r.IntN(4)]
		if key == keys-1 {
			size = 9000 // few packets, and large ones
		}
		s.add(arrival{at, size, key}, meter.Green)
	}
	return s
}

// most returns the packets that a key may lose: a share of its packets, rounded down.
func most(s *Stream, key int, share dataplane.Fraction) int64 {
	n := int64(0)
	for _, a := range s.packets {
		if int(a.key) == key {
			n++
		}
	}
	return n * share.Num / share.Den
}

// fits reports whether no key loses more than a share of its packets.
func fits(s *Stream, lost []dataplane.Count, share dataplane.Fraction) bool {
	for key, n := range lost {
		if n.Packets > most(s, key, share) {
			return false
		}
	}
	return true
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
		d, err := s.demandAt(rate)
		if err != nil {
			t.Fatal(err)
		}
		burst := d.lossFree
		if n := sum(lost(s, rate, burst)).Packets; n != 0 {
			t.Fatalf("rate %v: a burst of %d drops %d packets, want none", rate, burst, n)
		}
		if n := sum(lost(s, rate, burst-1)).Packets; n == 0 {
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
		d, err := s.demandAt(rate)
		if err != nil {
			t.Fatal(err)
		}
		points, err := d.frontier()
		if err != nil {
			t.Fatal(err)
		}
		for i, p := range points {
			n := lost(s, rate, p.Burst)
			if want := sum(n); p.Dropped != want {
				t.Fatalf("rate %v burst %d: got %v dropped, want %v", rate, p.Burst, p.Dropped, want)
			}
			checkWorst(t, s, p, n)
			if i > 0 && p.Burst <= points[i-1].Burst {
				t.Fatalf("bursts %d and %d are not in order", points[i-1].Burst, p.Burst)
			}
		}
		if last := points[len(points)-1]; last.Burst != d.lossFree || last.Dropped.Packets != 0 {
			t.Fatalf("last point: got %+v, want no loss at %d", last, d.lossFree)
		}
	}
}

// checkWorst checks the key of a point that loses the largest share of its packets.
func checkWorst(t *testing.T, s *Stream, p Point, lost []dataplane.Count) {
	t.Helper()
	if (p.Worst != nil) != (len(s.keys) > 1) {
		t.Fatalf("got %v as the worst of %d keys", p.Worst, len(s.keys))
	}
	if p.Worst == nil {
		return
	}
	worst, found := new(big.Rat), false
	for key, n := range lost {
		share := big.NewRat(n.Packets, s.keys[key].Offered.Packets)
		if share.Cmp(worst) > 0 {
			worst = share
		}
		found = found || p.Worst.Red == n && p.Worst.Offered == s.keys[key].Offered
	}
	if got := big.NewRat(p.Worst.Red.Packets, p.Worst.Offered.Packets); got.Cmp(worst) != 0 || !found {
		t.Fatalf("burst %d: got %v as the worst key, want a loss of %v", p.Burst, p.Worst, worst)
	}
}

// TestSmallest checks that the wanted loss of each key holds with the burst, and not with one byte less.
func TestSmallest(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for range 60 {
		s, rate := randomStream(r, 300), randomRate(r)
		loss := dataplane.Fraction{Num: r.Int64N(20), Den: 100}
		s.group()
		d, err := s.demandAt(rate)
		if err != nil {
			t.Fatal(err)
		}
		burst, err := d.smallest(s.allowed(loss))
		if err != nil {
			t.Fatal(err)
		}
		if n := lost(s, rate, burst); !fits(s, n, loss) {
			t.Fatalf("rate %v: a burst of %d drops %v, want at most %v of each key", rate, burst, n, loss)
		}
		if n := lost(s, rate, burst-1); fits(s, n, loss) {
			t.Fatalf("rate %v: a burst of %d drops %v, so %d is not needed", rate, burst-1, n, burst)
		}
	}
}
