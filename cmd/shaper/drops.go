package main

import (
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
)

// allDropped is what all classes and queues dropped.
func allDropped(s *sample) (sum dataplane.Count) {
	for i := range s.stats {
		sum = sum.Plus(s.stats[i].AllDropped())
	}
	sum.Packets += unassigned(s.queues)
	return sum
}

// unassigned counts the packets that the qdisc dropped in queues that several
// classes feed: no class counts them.
func unassigned(queues []dataplane.QueueState) (packets int64) {
	for _, q := range queues {
		if q.Class == "" {
			packets += q.Dropped
		}
	}
	return packets
}

// uncolored is what the qdisc dropped of packets of unknown color.
type uncolored struct {
	class   string // "" where that is not known either
	packets int64
}

// behind returns, for a shaper whose queues are in HTB, what that dropped by
// class where the color is not known, and last where the class is not known.
func behind(about *kernel.About, stats []dataplane.ClassStats, queues []dataplane.QueueState) (out []uncolored) {
	if about.Pacer != kernel.HTB {
		return nil
	}
	for i, c := range about.Outline.Classes {
		out = append(out, uncolored{c.Name, stats[i].Behind.Packets})
	}
	return append(out, uncolored{"", unassigned(queues)})
}
