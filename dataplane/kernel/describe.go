package kernel

// describe writes to a record the parts of the image that other processes need: names, slots,
// profiles and qdisc classes.
func (g *image) describe(a *About) {
	a.Outline, a.Slots, a.Stages, a.Queued = *g.plan.Outline(), g.counterSlots(), nil, nil
	a.Links, a.Ring, a.Pacer, a.Fair = g.linkIDs, g.ring, g.pacer, g.fair
	a.Customers = g.constants.Customers
	for i, q := range g.queues {
		a.Queued = append(a.Queued, queueRecord{q, g.feeders[i]})
	}
	for i, s := range g.stages {
		r := stageRecord{ShaperStage: s}
		if s.Table >= 0 {
			r.Room = tableSize(&g.plan.Stages[i])
		}
		a.Stages = append(a.Stages, r)
	}
}

// counterSlots returns the slots of the counters, by class.
func (g *image) counterSlots() []uint32 {
	out := make([]uint32, len(g.classes))
	for i := range g.classes {
		out[i] = g.classes[i].Slot
	}
	return out
}
