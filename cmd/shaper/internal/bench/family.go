package main

import (
	"context"
	"fmt"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/throttled/throttled/v2"
	"github.com/throttled/throttled/v2/store/memstore"

	"github.com/a-seed-32e5a53f/shaper/meter"
)

// window is the time of about 10,000 packets of the stream, a third of which pass.
const window = 10 * time.Millisecond

// windowLimit is the number of bytes of byteRate in a window.
const windowLimit = int64(byteRate * window / time.Second)

// family lists every kind of meter missing in kinds, at a third of the stream's rate.
var family = []kind{
	{"token-bucket", must(meter.TokenBucket{Rate: meter.BitRate(1e9), Burst: bucket}.Profile())},
	{"gcra", must(meter.TokenBucket{Rate: meter.BitRate(1e9), Burst: bucket, GCRA: true}.Profile())},
	{"fixed-window", must(meter.FixedWindow{Limit: windowLimit, Window: window}.Profile())},
	{
		"sliding-window of 10 slots",
		must(meter.SlidingWindow{Limit: windowLimit, Window: window, Slots: 10}.Profile()),
	},
	{"sliding-counter", must(meter.SlidingCounter{Limit: windowLimit, Window: window}.Profile())},
	{"sliding-log", must(meter.SlidingLog{Limit: windowLimit, Window: window, Entries: 1 << 14}.Profile())},
	{"tswtcm", must(meter.TSWTCM{
		CIR: meter.BitRate(1e9), PIR: meter.BitRate(2e9), Window: window, Seed: 2859,
	}.Profile())},
	// Half of the stream arrives during the warm-up.
	{
		"token-bucket with a warm-up",
		must(meter.TokenBucket{Rate: meter.BitRate(1e9), Burst: bucket, Warmup: 2 * time.Second}.Profile()),
	},
}

// thread returns the CPU time of f per packet, in ns. CPU time does not depend on other
// processes.
func thread(n int, f func()) float64 {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	start := threadTime()
	f()
	return float64(threadTime()-start) / float64(n)
}

const ranks = 3

func newEnvelope() *meter.Envelope {
	limit := meter.BitRate(1e9)
	flow := meter.EnvelopeFlow{
		Buckets: meter.TRTCM4115{
			CIR: meter.BitRate(333e6), CBS: bucket, EIR: meter.BitRate(333e6), EBS: bucket,
		},
		CIRMax: &limit, EIRMax: &limit,
	}
	return must(meter.NewEnvelope(meter.EnvelopeParams{Flows: []meter.EnvelopeFlow{flow, flow, flow}}))
}

func enveloped(s arrivals) {
	e := newEnvelope()
	lengths, colors := s.lengths[:len(s.ns)], s.colors[:len(s.ns)]
	for i, now := range s.ns {
		colors[i] = e.Color(i%ranks, now, lengths[i], meter.Green)
	}
}

// decides reports whether a meter matters: neither green nor other colors are rare.
func decides(what string, colors []meter.Color) error {
	n := count(colors)
	if green := float64(n[meter.Green]) / float64(len(colors)); green < 0.1 || green > 0.9 {
		return fmt.Errorf("%s: %.3g of the packets were green", what, green)
	}
	return nil
}

func familyFigures() []figure {
	var figures []figure
	add := func(name string, f func(arrivals)) {
		figures = append(figures,
			amount("meter: "+name+", a packet at a time", 30, 10, " ns", func() (float64, error) {
				s := stream()
				ns := thread(len(s.ns), func() { f(s) })
				return ns, decides(name, s.colors)
			}, nil))
	}
	for i := range family {
		add(family[i].name, func(s arrivals) { family[i].one(s) })
	}
	add("envelope of 3 flows", enveloped)
	figures = append(figures,
		amount("meter: all of these, allocations a packet", 0, noAim, "", allocated, nil))
	return append(figures, throttledFigures()...)
}

// allocated returns the number of allocations of all meters of the family per packet.
func allocated() (float64, error) {
	const packets = 1 << 14
	s := stream()
	var meters []meter.Meter
	for _, k := range family {
		meters = append(meters, meter.New(k.profile))
	}
	e, i := newEnvelope(), 0
	return testing.AllocsPerRun(packets, func() {
		for j := range meters {
			meters[j].Color(s.ns[i], s.lengths[i], meter.Green)
		}
		e.Color(i%ranks, s.ns[i], s.lengths[i], meter.Green)
		i++
	}), nil
}

const (
	fewNames       = 8
	manyNames      = 10_000
	numAsked       = 1 << 20 // requests per run
	requestsAtOnce = 1 << 20
)

// requests holds a million names and a random sequence of them.
type requests struct {
	all  []string // all names
	each []string
}

func newRequests(n int) *requests {
	r := &requests{each: make([]string, numAsked)}
	for i := range n {
		r.all = append(r.all, "198.51.100."+strconv.Itoa(i))
	}
	pick := stream().pick
	for i := range r.each {
		r.each[i] = r.all[int(pick[i])%n]
	}
	return r
}

// perRequest is the time per request of a rate which rejects few. throttled counts requests in
// whole ns.
const perRequest = 10 * time.Nanosecond

var requestRate = kind{
	"gcra",
	must(meter.TokenBucket{Rate: meter.Rate{Bytes: 1, Period: perRequest}, Burst: requestsAtOnce}.Profile()),
}

// given meters requests whose times are given.
func (r *requests) given() (float64, error) {
	m, passed := meter.New(requestRate.profile), 0
	times := stream().ns[:len(r.each)]
	ns := thread(len(times), func() {
		for _, now := range times {
			if m.Color(now, 1, meter.Green) == meter.Green {
				passed++
			}
		}
	})
	return ns, r.check(passed)
}

// locked reads the clock.
func (r *requests) locked(clock func() int64) (float64, error) {
	m, passed := meter.NewLocked(requestRate.profile), 0
	ns := thread(len(r.each), func() {
		for range r.each {
			if m.Color(clock(), 1, meter.Green) == meter.Green {
				passed++
			}
		}
	})
	return ns, r.check(passed)
}

// sharded reads the clock and looks up the name.
func (r *requests) sharded(clock func() int64) (float64, error) {
	m, err := meter.NewShards[string](requestRate.profile, meter.TableConfig{Keys: 2 * manyNames}, 8)
	if err != nil {
		return 0, err
	}
	passed := 0
	for _, name := range r.all {
		m.Color(name, clock(), 1, meter.Green)
	}
	ns := thread(len(r.each), func() {
		for _, name := range r.each {
			if m.Color(name, clock(), 1, meter.Green) == meter.Green {
				passed++
			}
		}
	})
	return ns, r.check(passed)
}

// throttled meters requests with throttled. Its store holds at most as many names as ours, or no
// bound if bound is 0.
func (r *requests) throttled(bound int) (float64, error) {
	store, err := memstore.NewCtx(bound)
	if err != nil {
		return 0, err
	}
	l, err := throttled.NewGCRARateLimiterCtx(store,
		throttled.RateQuota{MaxRate: throttled.PerDuration(1, perRequest), MaxBurst: requestsAtOnce - 1})
	if err != nil {
		return 0, err
	}
	ctx, passed := context.Background(), 0
	for _, name := range r.all {
		if _, _, err := l.RateLimitCtx(ctx, name, 1); err != nil {
			return 0, err
		}
	}
	ns := thread(len(r.each), func() {
		for _, name := range r.each {
			if limited, _, err := l.RateLimitCtx(ctx, name, 1); err == nil && !limited {
				passed++
			}
		}
	})
	return ns, r.check(passed)
}

// check reports whether most requests passed, which is more work for throttled than rejecting
// them.
func (r *requests) check(passed int) error {
	if passed < len(r.each)/2 {
		return fmt.Errorf("only %d of %d requests passed", passed, len(r.each))
	}
	return nil
}

func throttledFigures() []figure {
	few := sync.OnceValue(func() *requests { return newRequests(fewNames) })
	many := sync.OnceValue(func() *requests { return newRequests(manyNames) })
	add := func(what string, r func() *requests, bound int, f func(*requests) (float64, error)) figure {
		return timeRatio("throttled, gcra: "+what, 1./5, 1./15,
			func() (float64, error) { return f(r()) },
			func() (float64, error) { return r().throttled(bound) })
	}
	figures := []figure{add("a meter, given time, against 8 keys", few, 0, (*requests).given)}
	for _, clock := range []string{"clock read", "coarse clock"} {
		by := func(f func(*requests, func() int64) (float64, error)) func(*requests) (float64, error) {
			return func(r *requests) (float64, error) {
				if clock == "clock read" {
					return f(r, meter.Now)
				}
				c := meter.NewCoarseClock(time.Millisecond)
				defer c.Stop()
				return f(r, c.Now)
			}
		}
		locked, sharded := by((*requests).locked), by((*requests).sharded)
		figures = append(
			figures,
			add("a Locked, "+clock+", against 8 keys", few, 0, locked),
			add("Shards of 8 keys, "+clock+", against its LRU store", few, 2*manyNames, sharded),
			add("Shards of 8 keys, "+clock+", against its store without a bound", few, 0, sharded),
			add("Shards of 10,000 keys, "+clock+", against its LRU store", many, 2*manyNames, sharded),
			add("Shards of 10,000 keys, "+clock+", against its store without a bound", many, 0, sharded),
		)
	}
	return figures
}
