package image

import (
	"fmt"
	"slices"

	"github.com/cilium/ebpf"

	"github.com/a-seed-32e5a53f/shaper/bpf"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/engine"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/qdisc"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/record"
)

// ReadBacklog returns the backlog in a slot.
func ReadBacklog(backlogs *ebpf.Map, slot uint32) (b bpf.ShaperBacklog, err error) {
	if err := backlogs.LookupWithFlags(slot, &b, ebpf.LookupLock); err != nil {
		return b, fmt.Errorf("backlogs: %w", err)
	}
	return b, nil
}

// inheritQueues assigns slots to queues, and HTB classes to queues and links. A queue or link
// continuing one of the previous policy keeps its class, except a link that moves. A queue keeps its
// slot if its parameters are the same, too, except for the rate and the times of CoDel.
func (g *Image) inheritQueues(before *record.About, ids *classIDs) error {
	slots := engine.SlotAllocator{Used: map[uint32]bool{}}
	for i := range before.Queued {
		slots.Used[before.Queued[i].Slot] = true
	}
	classOf := func(links []uint16, i int) uint16 {
		if i < 0 {
			return 0
		}
		return links[i]
	}
	outline := g.Plan.Outline()
	for i, was := range g.from.Links {
		above := classOf(g.linkIDs, outline.LinkAbove(i))
		if was >= 0 && classOf(before.Links, before.Outline.LinkAbove(was)) == above {
			g.linkIDs[i] = before.Links[was]
		} else { // HTB cannot move a class
			g.linkIDs[i] = ids.pair()
		}
	}
	for i, from := range g.from.Queues {
		q := &g.Queues[i]
		feeder := feederOf(outline, i)
		if from < 0 {
			q.ClassId, q.Slot = qdisc.Handle(ids.pair()), slots.Allocate()
		} else {
			was := &before.Queued[from]
			q.ClassId, q.FlowsId, feeder = was.ClassId, was.FlowsId, feeder.Merge(was.Feeder)
			if classOf(g.linkIDs, outline.Queues[i].Link) !=
				classOf(before.Links, before.Outline.Queues[from].Link) {
				// its packets leave the class before, which is then removed
				q.ClassId, q.FlowsId = qdisc.Handle(ids.pair()), 0
			}
			if sameQueue(q, &was.ShaperQueue) {
				q.Slot = was.Slot
				continueRate(q, &was.ShaperQueue)
			} else {
				q.Slot = slots.Allocate()
			}
		}
		switch {
		case q.Flows == 0:
			q.FlowsId = 0
		case q.FlowsId == 0:
			first, err := ids.flows()
			if err != nil {
				return err
			}
			q.FlowsId = qdisc.Handle(first)
		}
		g.feeders = append(g.feeders, feeder)
	}
	return nil
}

// sameQueue reports whether a backlog means the same with both parameters: they differ in nothing
// but the rate and the times of CoDel.
func sameQueue(a, b *bpf.ShaperQueue) bool {
	x, y := *a, *b
	if x.Target > 0 && y.Target > 0 {
		x.Target, x.Interval = y.Target, y.Interval
	}
	x.Slot, x.ClassId, x.Ring, x.Paces, x.Version = y.Slot, y.ClassId, y.Ring, y.Paces, y.Version
	x.FlowsId, x.FlowsSlot = y.FlowsId, y.FlowsSlot
	return x == y
}

// continueRate makes q, a queue with its first rate, a later version of another queue: its
// rate takes effect in the backlog of that queue.
func continueRate(q, was *bpf.ShaperQueue) {
	next := *record.PaceOf(q)
	q.Paces, q.Version = was.Paces, was.Version
	if next != *record.PaceOf(q) {
		q.Version++
		*record.PaceOf(q) = next
	}
}

// sameRings reports whether the previous policy's rings have the layout of the new one.
func (g *Image) sameRings(before *record.About) bool {
	if g.ring == 0 && before.Ring == 0 {
		return true
	}
	if len(g.Queues) != len(before.Queued) || g.ring != before.Ring {
		return false
	}
	for i, q := range g.Queues {
		if was := before.Queued[i]; g.from.Queues[i] != i || was.Ring != q.Ring || was.Mask != q.Mask {
			return false
		}
	}
	return true
}

// newRings makes the map with the rings of all queues.
func (g *Image) newRings() (*ebpf.Map, error) {
	return engine.NewMap(bpf.ShaperMapWaiting, uint32(g.ring))
}

// copyDepartures copies the rings of unchanged queues to their new offsets. A packet arriving
// meanwhile is missing in the copy.
func (g *Image) copyDepartures(before *record.About, from *Maps, to *ebpf.Map) error {
	for i := range g.Queues {
		q := &g.Queues[i]
		old := slices.IndexFunc(before.Queued, func(r record.Queue) bool { return r.Slot == q.Slot })
		if old < 0 || q.Capacity == 0 {
			continue
		}
		b, err := ReadBacklog(from.Backlogs, q.Slot)
		if err != nil {
			return err
		}
		for k := b.End - min(b.End, q.Mask+1); k < b.End; k++ {
			var d bpf.ShaperDeparture
			err := from.Departures.Lookup(before.Queued[old].Ring+uint32(k&q.Mask), &d)
			if err == nil {
				err = to.Put(q.Ring+uint32(k&q.Mask), &d)
			}
			if err != nil {
				return fmt.Errorf("departures: %w", err)
			}
		}
	}
	return nil
}

// populateBacklogs writes new backlogs, and copies the others if their map was replaced. A
// queue whose parameters changed is free at the time at which it would have been free
// before.
func (g *Image) populateBacklogs(before *record.About, from, to *Maps) error {
	slots := map[uint32]bool{}
	for _, q := range before.Queued {
		slots[q.Slot] = true
	}
	for i := range g.Queues {
		q := &g.Queues[i]
		if slots[q.Slot] {
			if err := copySlot[bpf.ShaperBacklog](from.Backlogs, to.Backlogs, q.Slot); err != nil {
				return err
			}
			continue
		}
		var b bpf.ShaperBacklog
		if old := g.from.Queues[i]; old >= 0 {
			was, err := ReadBacklog(from.Backlogs, before.Queued[old].Slot)
			if err != nil {
				return err
			}
			b.Next, b.Begun = was.Next+uint64(engine.Flag(was.Frac > 0)), was.Begun
		}
		if err := to.Backlogs.Put(q.Slot, b); err != nil {
			return fmt.Errorf("backlogs: %w", err)
		}
	}
	return nil
}
