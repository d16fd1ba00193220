package image

import (
	"math"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/qdisc"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/record"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// feederOf returns the feeder of a queue under one policy.
func feederOf(plan *compiled.Outline, queue int) (out record.Feeder) {
	fed := false
	for i := range plan.Classes {
		c := &plan.Classes[i]
		for color := meter.Green; color <= meter.Red; color++ {
			if c.Queues[color] != queue {
				continue
			}
			this := record.Feeder{Class: c.Name, Color: &color}
			if !fed {
				out, fed = this, true
			}
			out = out.Merge(this)
		}
	}
	return out
}

// CountQdiscDrops adds HTB's drops to the counters of the classes feeding its queues. HTB counts
// packets, no bytes, and counts a GSO packet as one.
//
// If one class only has customers, the drops of their leaves are its drops.
func CountQdiscDrops(a *record.About, stats []dataplane.ClassStats, leaves map[uint16]qdisc.Counts) {
	ofCustomers := int64(a.RetiredDrops)
	if a.Leaves {
		for _, leaf := range leaves {
			ofCustomers += int64(leaf.Drops)
		}
	}
	for _, q := range a.Queued {
		dropped := int64(CountsOf(leaves, &q.ShaperQueue).Drops)
		ofCustomers -= dropped
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
	if !a.Leaves {
		return
	}
	only := -1
	for i := range a.Outline.Classes {
		switch {
		case !a.Outline.OfCustomers(i):
		case only >= 0:
			return
		default:
			only = i
		}
	}
	if only >= 0 {
		to := &stats[only].Behind
		to.Packets = (to.Packets + ofCustomers) & math.MaxInt64
	}
}
