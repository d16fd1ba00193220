package kernel

import (
	"math"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/qdisc"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// feeder is the only class, and its only color, whose packets ever entered a
// queue. HTB counts what it drops by queue, so only for them is it known whose
// packets it dropped.
type feeder struct {
	Class string       `json:",omitempty"` // "" where there were several
	Color *meter.Color `json:",omitempty"` // nil where there were several
}

// feederOf returns the feeder of a queue.
func feederOf(plan *dataplane.Outline, queue int) (out feeder) {
	fed := false
	for i := range plan.Classes {
		c := &plan.Classes[i]
		for color := meter.Green; color <= meter.Red; color++ {
			if c.Queues[color] != queue {
				continue
			}
			this := feeder{c.Name, &color}
			if !fed {
				out, fed = this, true
			}
			out = out.merge(this)
		}
	}
	return out
}

// and is the feeder of a queue that had both.
func (f feeder) merge(other feeder) feeder {
	switch {
	case f.Class != other.Class:
		return feeder{}
	case f.Color == nil || other.Color == nil || *f.Color != *other.Color:
		return feeder{Class: f.Class}
	}
	return f
}

// countBehind adds to counters what HTB dropped of packets that the program let
// into its queues. The kernel counts packets there and no bytes; one that is
// still to be segmented is one.
func (a *About) countQdiscDrops(stats []dataplane.ClassStats, leaves map[uint16]qdisc.Counts) {
	for _, q := range a.Queued {
		dropped := int64(leaves[uint16(q.ClassId)].Drops)
		for i := range a.Outline.Classes {
			if a.Outline.Classes[i].Name != q.Class {
				continue
			}
			to := &stats[i].Behind
			if q.Color != nil {
				to = &stats[i].Drops[*q.Color][dataplane.CauseQueue]
			}
			to.Packets = (to.Packets + dropped) & math.MaxInt64
		}
	}
}
