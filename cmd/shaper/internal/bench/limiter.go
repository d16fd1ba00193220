package main

import (
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/a-seed-32e5a53f/shaper/meter"
)

const (
	limited = 1 << 20 // packets per run
	sharers = 2       // goroutines sharing a meter
)

// times are the stream's arrivals as time.Time, for x/time/rate.
var times = sync.OnceValue(func() []time.Time {
	base, out := time.Now(), make([]time.Time, limited)
	for i := range out {
		out[i] = base.Add(time.Duration(stream().ns[i]))
	}
	return out
})

func limiterFigures() []figure {
	short := func() arrivals { return stream().first(limited) }
	var figures []figure
	add := func(what string, bar, aim float64, ours func(k *kind) float64, other func() float64) {
		for _, k := range kinds {
			figures = append(figures, timeRatio("x/time/rate, "+k.name+": "+what, bar, aim,
				func() (float64, error) { return ours(&k), nil },
				func() (float64, error) { return other(), nil }))
		}
	}
	add("AllowN with given time", 1./8, 1./12,
		func(k *kind) float64 { return k.one(short()) },
		func() float64 { return allow(short(), times()) })
	add("2 goroutines, a packet at a time", 1./4, 1./6,
		func(k *kind) float64 { return k.shared(short(), sharers) },
		func() float64 { return allowShared(short(), times(), 1) })
	add("2 goroutines, bursts of 32", 1./8, 1./12,
		func(k *kind) float64 { return k.sharedBursts(short()) },
		func() float64 { return allowShared(short(), times(), burst) })
	return figures
}

func allow(s arrivals, at []time.Time) float64 {
	l, allowed := newLimiter(), 0
	return thread(limited, func() {
		for i, t := range at {
			if l.AllowN(t, s.lengths[i]) {
				allowed++
			}
		}
	})
}

// allowShared uses the time of a burst's first packet for the whole burst.
func allowShared(s arrivals, at []time.Time, burst int) float64 {
	l := newLimiter()
	return share(sharers, func(from int) {
		allowed := 0
		for i := from; i < limited; i += burst * sharers {
			for j := range burst {
				if l.AllowN(at[i], s.lengths[i+j]) {
					allowed++
				}
			}
		}
	}, burst)
}

func newLimiter() *rate.Limiter { return rate.NewLimiter(byteRate, bucket) }

// shared lets n goroutines meter the stream in turn.
func (k *kind) shared(s arrivals, n int) float64 {
	l := meter.NewLocked(k.profile)
	return share(n, func(from int) {
		worse := 0
		for i := from; i < limited; i += n {
			worse += int(l.Color(s.ns[i], s.lengths[i], meter.Green))
		}
	}, 1)
}

func (k *kind) sharedBursts(s arrivals) float64 {
	l := meter.NewLocked(k.profile)
	return share(sharers, func(from int) {
		var colors [burst]meter.Color
		for i := from; i < limited; i += burst * sharers {
			l.Colors(s.ns[i], s.lengths[i:i+burst], nil, colors[:])
		}
	}, burst)
}

// share runs f in each of n goroutines from its first burst on, and returns the time per packet of
// the stream, in ns.
func share(n int, f func(from int), burst int) float64 {
	start := time.Now()
	var done sync.WaitGroup
	for g := range n {
		done.Go(func() { f(g * burst) })
	}
	done.Wait()
	return since(start, limited)
}
