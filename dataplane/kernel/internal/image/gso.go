package image

import (
	"math"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/qdisc"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

const (
	// gsoMaxTime is the desired transmission time of a GSO packet at the rate of the
	// slowest queue, since other packets are queued behind it. TCP's own pacing has the
	// same aim (sk_pacing_shift).
	gsoMaxTime = time.Millisecond
	// gsoMinInterval is the minimum time between GSO packets of all queues together. It bounds the
	// CPU time of smaller packets, and takes precedence over gsoMaxTime.
	gsoMinInterval = 50 * time.Microsecond
	gsoMinSegments = 2 // as tcp_min_tso_segs
)

// GsoSize returns the GSO packet size for the rates of the queues, in bytes; 0 if no size fits,
// because default traffic bypasses the queues.
func (g *Image) GsoSize(mtu int) int64 {
	if !queuesDefault(g.Plan) {
		return 0
	}
	slowest, sum := int64(math.MaxInt64), int64(0)
	addRate := func(r meter.Rate) {
		bytes := int64(min(bytesPerSecond(r), qdisc.Fastest))
		slowest, sum = min(slowest, bytes), sum+bytes
	}
	for i := range g.Plan.Links {
		if g.Plan.Links[i].Above < 0 {
			addRate(g.Plan.Links[i].Rate)
		}
	}
	for i := range g.Plan.Queues {
		q := &g.Plan.Queues[i]
		if q.Link < 0 {
			addRate(q.Drain)
		}
		slowest = min(slowest, int64(min(bytesPerSecond(q.Drain), qdisc.Fastest)))
	}
	return max(slowest/int64(time.Second/gsoMaxTime), sum/int64(time.Second/gsoMinInterval),
		int64(gsoMinSegments*mtu))
}

// queuesDefault reports whether the default traffic, which only a class without
// conditions matches, is queued or dropped. If it bypasses the queues, it may be much
// faster than they are, and a limit that suits them would be too small for it.
func queuesDefault(plan *compiled.Plan) bool {
	for i := range plan.Classes {
		c := &plan.Classes[i]
		if !c.Source.Match.Covers(&dataplane.Match{}) {
			continue
		}
		for color, a := range c.Actions {
			if (meter.Color(color) == meter.Green || c.Stage >= 0) && a.Queue < 0 && !a.Drop {
				return false
			}
		}
		return true
	}
	return plan.DropUnclassified
}
