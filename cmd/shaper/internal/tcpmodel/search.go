package tcpmodel

import (
	"time"

	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// longest is the largest burst tried, as time at the rate, and the largest queueing delay. Larger
// ones would hide a rate for seconds, or delay packets for seconds.
const longest = time.Second

// SmallestBurst returns the smallest burst of a token bucket with a rate, in bytes, with which the
// flows reach a goodput of target bit/s, and its result. Throughput does not always grow with the
// burst: all larger bursts tried, in steps of a fifth up to one second at the rate, also reach the
// target. It returns 0 if there is none.
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
	return smallest(packet, max(most, 16*packet), target, func(burst int64) (Result, error) {
		profile, err := meter.TokenBucket{Rate: rate, Burst: burst}.Profile()
		if err != nil {
			return Result{}, err
		}
		return Run(p, Policer(profile))
	})
}

// SmallestQueue is SmallestBurst for a queue with a rate, and with CoDel if it is set: it returns the
// smallest limit, as queueing delay.
func SmallestQueue(p Path, c queue.Config, target int64) (limit time.Duration, r Result, err error) {
	const least = 10 * time.Microsecond
	d, r, err := smallest(int64(least), int64(longest), target, func(limit int64) (Result, error) {
		c.Time = time.Duration(limit)
		return Run(p, Queue(c))
	})
	return time.Duration(d), r, err
}

// smallest goes down from most in steps of 2^(1/4) until the target is missed, and then bisects
// the last step to a fiftieth.
func smallest(
	least, most, target int64, run func(size int64) (Result, error),
) (size int64, best Result, err error) {
	missed := int64(0)
	for at := most; missed == 0 || size-missed > max(1, size/50); {
		r, err := run(at)
		switch {
		case err != nil:
			return 0, Result{}, err
		case r.Goodput >= target:
			size, best = at, r
		default:
			missed = at
		}
		switch {
		case missed > 0:
			at = (size + missed) / 2
		case at == least:
			return size, best, nil
		default:
			at = max(least, at*1000/1189)
		}
	}
	return size, best, nil
}
