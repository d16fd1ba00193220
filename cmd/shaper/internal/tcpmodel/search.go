package tcpmodel

import (
	"time"

	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// longest is the largest burst, as time at the rate, and the largest queueing delay that are
// tried. Larger ones would hide a rate for seconds, or delay packets for seconds.
const longest = time.Second

// SmallestBurst returns the smallest burst of a token bucket with a rate, in bytes, with which
// the flows reach a goodput of target bit/s, and its result. Throughput does not always grow with
// the burst, so all larger bursts that are tried, in steps of a fifth up to one second at the
// rate, reach the target too. It returns 0 if there is none.
func SmallestBurst(p Path, rate meter.Rate, target int64) (burst int64, r Result, err error) {
	p, err = p.withDefaults()
	if err != nil {
		return 0, r, err
	}
	most, ok := rate.Burst(longest)
	if !ok {
		return 0, r, ErrTooFast
	}
	packet := int64(p.packet())
	return smallest(p, packet, max(most, 16*packet), target, func(burst int64) (Bottleneck, error) {
		profile, err := meter.TokenBucket{Rate: rate, Burst: burst}.Profile()
		return Policer(profile), err
	})
}

// SmallestQueue is SmallestBurst for a queue with a rate: it returns the smallest limit, as
// queueing delay.
func SmallestQueue(p Path, rate meter.Rate, target int64) (limit time.Duration, r Result, err error) {
	const least = 10 * time.Microsecond
	d, r, err := smallest(p, int64(least), int64(longest), target, func(limit int64) (Bottleneck, error) {
		return Queue(queue.Config{Rate: rate, Time: time.Duration(limit)}), nil
	})
	return time.Duration(d), r, err
}

// smallest goes down from most in steps of 2^(1/4) until the target is missed, and then bisects
// the last step to a fiftieth.
func smallest(p Path, least, most, target int64, bottleneck func(size int64) (Bottleneck, error)) (size int64, best Result, err error) {
	try := func(at int64) (bool, error) {
		b, err := bottleneck(at)
		if err != nil {
			return false, err
		}
		r, err := Run(p, b)
		if err == nil && r.Goodput >= target {
			size, best = at, r
			return true, nil
		}
		return false, err
	}
	missed := int64(0)
	for at := most; ; at = max(least, at*1000/1189) {
		ok, err := try(at)
		if err != nil {
			return 0, Result{}, err
		}
		if !ok {
			missed = at
			break
		}
		if at == least {
			return size, best, nil
		}
	}
	for size > 0 && size-missed > size/50 {
		middle := (size + missed) / 2
		ok, err := try(middle)
		if err != nil {
			return 0, Result{}, err
		}
		if !ok {
			missed = middle
		}
	}
	return size, best, nil
}
