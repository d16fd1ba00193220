package image

import (
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/record"
)

// Describe writes to a record the parts of the image needed by other processes: names, slots,
// profiles and qdisc classes.
func (g *Image) Describe(a *record.About) {
	a.Outline, a.Slots, a.Stages, a.Queued = *g.Plan.Outline(), g.CounterSlots(), nil, nil
	a.Links, a.Ring, a.Pacer, a.Fair = g.linkIDs, g.ring, g.Pacer, g.fair
	a.MQ, a.Leaves, a.TreeChanges = g.MQ, g.hasLeaves(), 0
	a.Customers, a.Cgroups = g.Constants.Customers, g.named
	for i, q := range g.Queues {
		a.Queued = append(a.Queued, record.Queue{ShaperQueue: q, Feeder: g.feeders[i]})
	}
	for i, s := range g.Stages {
		r := record.Stage{ShaperStage: s}
		if s.Table >= 0 {
			r.Room = TableSize(&g.Plan.Stages[i])
		}
		a.Stages = append(a.Stages, r)
	}
}

// CounterSlots returns the slots of the counters, by class.
func (g *Image) CounterSlots() []uint32 {
	out := make([]uint32, len(g.classes))
	for i := range g.classes {
		out[i] = g.classes[i].Slot
	}
	return out
}
