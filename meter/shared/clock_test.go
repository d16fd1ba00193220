package shared

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/meter/shared/storetest"
)

// TestClockGoesBack sets the server's clock back. Nothing is gained, and no key
// is refused for longer than its limit needs to become full.
func TestClockGoesBack(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, server *storetest.Server) {
		for i, p := range family {
			for _, back := range []time.Duration{
				time.Microsecond, time.Second, 10 * time.Second, 25 * time.Second, time.Hour,
			} {
				v := newVirtual(t, server, 1_795_000_000_000_000)
				l := v.limiter(fmt.Sprint("limit", i), p)
				budget := "back-" + back.String()
				decide := func() Decision {
					d, err := l.Decide(ctx, budget, 1)
					noError(t, err)
					return d
				}
				for range 5 {
					if d := decide(); !d.Allowed {
						t.Fatalf("%T: got %+v, want it allowed", p, d)
					}
				}
				v.us -= back.Microseconds()
				d := decide()
				if d.Allowed || d.Remaining != 0 || d.ResetAfter > 30*time.Second {
					t.Errorf("%T, %v back: got %+v, want a refusal for at most 30 s", p, back, d)
				}
				v.us += d.RetryAfter.Microseconds() - 1
				if d := decide(); d.Allowed {
					t.Errorf("%T, %v back: got %+v 1 µs before RetryAfter, want a refusal", p, back, d)
				}
				v.us++
				if d := decide(); !d.Allowed {
					t.Errorf("%T, %v back: got %+v after RetryAfter, want it allowed", p, back, d)
				}
			}
		}
	})
}

// TestClockGoesBackALittle sets the clock back by less than a window: as for a
// meter, no time has passed.
func TestClockGoesBackALittle(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	storetest.Each(t, func(t *testing.T, server *storetest.Server) {
		random := rand.New(rand.NewPCG(seed, 2))
		for i, p := range []LimitParams{
			meter.FixedWindow{Limit: 1000, Window: time.Second},
			meter.SlidingCounter{Limit: 1000, Window: time.Second},
			meter.SlidingLog{Limit: 1000, Window: time.Second, Entries: 10},
		} {
			v := newVirtual(t, server, 1_795_000_000_000_000)
			tw := v.twin(fmt.Sprint("little", i), p)
			for range 100 {
				v.passTime(tw, random)
				d, err := tw.l.one(ctx,
					Request{Limiter: tw.l, Budget: "b", Key: tw.key, N: 1 + random.Int64N(400), Part: true})
				noError(t, err)
				if d.Taken > 0 {
					if took := tw.m.TakeUpTo(v.us*1000, int(d.Taken)); int64(took) != d.Taken {
						t.Fatalf("seed %d, %T: got %d taken, want %d as by the meter", seed, p, d.Taken, took)
					}
					tw.full = v.us + d.ResetAfter.Microseconds()
					back := random.Int64N(1_000_000)
					v.us -= back
					n := random.Int64N(1001)
					d, err = tw.l.one(ctx, Request{Limiter: tw.l, Budget: "b", Key: tw.key, N: n})
					noError(t, err)
					if err := tw.sameDecision(d, v.us, n, false); err != nil {
						t.Fatalf("seed %d: %v", seed, err)
					}
					v.us += back
					tw.full += back
				}
				v.us += random.Int64N(1_500_000)
			}
		}
	})
}
