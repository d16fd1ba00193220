package shared

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/meter/shared/storetest"
)

// handed are the scripts with the time as an argument, and keys that expire one
// day later, because the server's time does not follow the test's.
var handed = makeScripts(strings.NewReplacer(
	"call('TIME')", "{ARGV[#ARGV - 1], ARGV[#ARGV]}",
	"ARGV[5]", "(#ARGV > 6 and ARGV[5] or nil)", // a unit, not the time
	"ARGV[#KEYS + 4]", "(#ARGV > #KEYS + 5 and ARGV[#KEYS + 4] or nil)",
	"'PX', ", "'PX', 86400000 + ",
	"call('PEXPIRE', key, ", "call('PEXPIRE', key, 86400000 + ",
))

// virtual is a store whose time the test sets.
type virtual struct {
	*Backend
	t      *testing.T
	server *storetest.Server
	us     int64
}

func newVirtual(t *testing.T, server *storetest.Server, us int64) *virtual {
	t.Helper()
	v := &virtual{t: t, server: server, us: us}
	store, err := newStore(server.Client(), Config{Deadline: 10 * time.Second}, handed,
		func() int64 { return v.us })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(store.Close)
	v.Backend = store
	return v
}

func (v *virtual) limiter(name string, p LimitParams) *Limiter {
	v.t.Helper()
	l, err := v.Limiter(Limit{Name: name, Params: p})
	if err != nil {
		v.t.Fatalf("%+v: %v", p, err)
	}
	return l
}

// twin is a limit at the store and a meter with the same parameters.
type twin struct {
	params LimitParams
	l      *Limiter
	m      meter.Meter
	key    string
	full   int64 // µs: time at which the state is empty
}

// amount returns the limit, at most 2^40. A meter takes an amount as an int, which has
// 32 bits on some processors.
func (tw *twin) amount() int64 { return min(tw.l.most, 1<<40, math.MaxInt-1) }

func (v *virtual) twin(name string, p LimitParams) *twin {
	profile, err := p.Profile()
	if err != nil {
		v.t.Fatal(err)
	}
	return &twin{params: p, l: v.limiter(name, p), m: meter.New(profile), key: name}
}

// passTime advances time for a twin: its key expires some ms after its state is
// empty, or earlier.
func (v *virtual) passTime(tw *twin, random *rand.Rand) {
	if v.us > tw.full && (v.us > tw.full+2000 || random.IntN(2) == 0) {
		if err := v.server.Client().Del(context.Background(), tw.l.key("b", tw.key)).Err(); err != nil {
			v.t.Fatal(err)
		}
	}
}

// sameDecision compares a decision with the meter's, and makes the meter take the same
// amount.
func (tw *twin) sameDecision(d Decision, us, n int64, part bool) error {
	now := us * 1000
	var want Decision
	if part {
		want.Taken = int64(tw.m.TakeUpTo(now, int(n)))
	} else if tw.m.Color(now, int(n), meter.Green) == meter.Green {
		want.Taken = n
	}
	return tw.sameAfter(d, want, us, n)
}

// sameAfter compares all fields of a decision with the meter's state after it.
func (tw *twin) sameAfter(d, want Decision, us, n int64) error {
	now := us * 1000
	after := tw.m.Decide(now, 0)
	want.Allowed = want.Taken == n
	want.Remaining = after.Remaining
	if rest := n - want.Taken; rest > 0 {
		want.RetryAfter = micro(tw.m.RetryAfter(now, int(rest)))
	}
	want.ResetAfter = micro(after.ResetAfter, true)
	want.Time = time.UnixMicro(us)
	tw.full = us + d.ResetAfter.Microseconds()
	if d != want {
		return fmt.Errorf("at %d µs, n %d, %+v:\ngot  %+v\nwant %+v", us, n, tw.params, d, want)
	}
	return nil
}

// micro rounds up to a microsecond.
func micro(d time.Duration, ever bool) time.Duration {
	if !ever || d == meter.Never {
		return meter.Never
	}
	return (d + time.Microsecond - 1).Truncate(time.Microsecond)
}

// randomParams returns random parameters of any limit, often small ones, near
// their bounds or unusual.
func randomParams(random *rand.Rand) LimitParams {
	pick := func(v ...int64) int64 { return v[random.IntN(len(v))] }
	limit := pick(1, 2, 3, 5, 10, 100, 1+random.Int64N(1000), 1+random.Int64N(1_000_000))
	window := time.Duration(
		pick(1, 2, 10, 1000, 999_983, 1e6, 6e7, 36e8, 1+random.Int64N(1e7))) * time.Microsecond
	switch random.IntN(5) {
	case 0:
		return meter.FixedWindow{Limit: pick(limit, 1<<47), Window: window}
	case 1:
		return meter.SlidingCounter{Limit: pick(limit, 1_000_000_000), Window: min(window, 24*time.Hour)}
	case 2:
		return meter.SlidingLog{Limit: limit, Window: window, Entries: int(pick(1, 2, 3, 10, 50))}
	}
	rate := meter.Per(pick(1, 3, 7, 10, 997, 1000, 12345, 1_000_000, 1+random.Int64N(1e6)),
		time.Duration(pick(1e9, 6e10, 36e11, 1e6, 1+random.Int64N(1e10))))
	return meter.TokenBucket{Rate: rate, Burst: limit, GCRA: random.IntN(2) == 0}
}

// TestSameAsMeter compares every decision of the store with package meter at
// the same microsecond: allowed, partly allowed, remaining, retry after and
// reset after.
func TestSameAsMeter(t *testing.T) {
	t.Parallel()
	seed := time.Now().UnixNano()
	storetest.Each(t, func(t *testing.T, server *storetest.Server) {
		random := rand.New(rand.NewPCG(uint64(seed), 0))
		counted := map[string]int{}
		lacking := func() (lacking []string) {
			for _, p := range []LimitParams{
				meter.TokenBucket{}, meter.FixedWindow{}, meter.SlidingCounter{}, meter.SlidingLog{},
			} {
				for _, kind := range []string{"allowed", "in part", "refused"} {
					if name := fmt.Sprintf("%T %s", p, kind); counted[name] < 10 {
						lacking = append(lacking, name)
					}
				}
			}
			return lacking
		}
		for i := 0; i < 150 || len(lacking()) > 0; i++ {
			if i == 5000 {
				t.Fatalf("seed %d: fewer than 10 decisions were %q: %v", seed, lacking(), counted)
			}
			v := newVirtual(t, server, 1_795_000_000_000_000+random.Int64N(1e12))
			var tw *twin
			for tw == nil {
				p := randomParams(random)
				if _, err := v.Limiter(Limit{Name: "try", Params: p}); err == nil {
					tw = v.twin(fmt.Sprint("limit", i), p)
				}
			}
			if tw.l.kind == bucketKind && random.IntN(2) == 0 {
				cycle := tw.l.args[2]
				v.us += cycle - v.us%cycle - random.Int64N(100)
			}
			for range 60 {
				if v.us > 4e15 { // the year 2096
					break
				}
				n := random.Int64N(tw.amount() + 2)
				if random.IntN(2) == 0 {
					n = random.Int64N(3)
				}
				part := random.IntN(3) == 0
				v.passTime(tw, random)
				d, err := v.Each(context.Background(),
					[]Request{{Limiter: tw.l, Budget: "b", Key: tw.key, N: n, Part: part}})
				if err != nil {
					t.Fatal(err)
				}
				if err := tw.sameDecision(d[0], v.us, n, part); err != nil {
					t.Fatalf("seed %d, limit %d: %v", seed, i, err)
				}
				if d[0].Allowed {
					counted[fmt.Sprintf("%T allowed", tw.params)]++
				} else if d[0].Taken > 0 {
					counted[fmt.Sprintf("%T in part", tw.params)]++
				} else {
					counted[fmt.Sprintf("%T refused", tw.params)]++
				}
				v.us += randomWait(d[0], tw.l, random)
			}
		}
		t.Log(counted)
	})
}

// randomWait returns a waiting time: often exactly until a change, or one microsecond
// to each side of it.
func randomWait(d Decision, l *Limiter, random *rand.Rand) int64 {
	at := int64(0)
	switch random.IntN(6) {
	case 0:
		return 0
	case 1:
		at = random.Int64N(1000)
	case 2:
		at = d.ResetAfter.Microseconds()
	case 3:
		at = random.Int64N(l.window + l.args[0]/max(l.per, 1) + 1)
	default:
		if d.RetryAfter != meter.Never {
			at = d.RetryAfter.Microseconds()
		}
	}
	return max(at+random.Int64N(3)-1, 0)
}
