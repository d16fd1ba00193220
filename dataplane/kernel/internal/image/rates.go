package image

import (
	"errors"
	"fmt"

	"github.com/a-seed-32e5a53f/shaper/bpf"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/engine"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/record"
	"github.com/cilium/ebpf"
)

// EncodeRates returns an image with the queues and links of a plan, which is for both directions, at their
// new rates. They keep their places in the maps of the program.
func EncodeRates(a *record.About, plan *compiled.Plan) (*Image, error) {
	if len(a.Queued) == 0 && !a.Leaves {
		return nil, fmt.Errorf("%s %v: the active policy has no queues, so no rate can be set", a.Interface,
			a.Direction)
	}
	plan = plan.For(a.Direction)
	e := encoder{Image: &Image{Plan: plan, Pacer: a.Pacer, fair: a.Fair, linkIDs: a.Links}}
	e.checkTrees()
	for i := range plan.Queues {
		e.queue(&plan.Queues[i])
	}
	if e.faults != nil {
		return nil, errors.Join(e.faults...)
	}
	same := len(e.Queues) == len(a.Queued) && len(plan.Links) == len(a.Outline.Links)
	for i := 0; same && i < len(plan.Links); i++ {
		same = plan.Links[i].Name == a.Outline.Links[i] && plan.Links[i].Above == a.Outline.LinkAbove(i)
	}
	for i := 0; same && i < len(e.Queues); i++ {
		q, was := &e.Queues[i], a.Queued[i].ShaperQueue
		q.Slot, q.ClassId, q.FlowsId = was.Slot, was.ClassId, was.FlowsId
		continueRate(q, &was)
		if q.Linked != 0 {
			was.Bytes = q.Bytes // follows from the rate of the link
		}
		same = plan.Queues[i].QueueOutline == a.Outline.Queues[i] && q.Ring == was.Ring && sameQueue(q, &was)
	}
	if !same {
		return nil,
			fmt.Errorf("%s %v: the queues and links of the plan differ from the active ones in more than rates and the times of codel: reload the plan",
				a.Interface, a.Direction)
	}
	return e.Image, nil
}

// WriteRates writes queues with new rates to the map of the program. Programs read the rate of a
// queue under the lock of its backlog, so taking the lock waits until no program uses the
// overwritten rate, and orders the writes.
func (s *Maps) WriteRates(a *record.About, queues []bpf.ShaperQueue) error {
	for i := range queues {
		q, was := &queues[i], &a.Queued[i].ShaperQueue
		if *q == *was {
			continue
		}
		if q.Version != was.Version {
			staged := *q
			staged.Version, staged.Target, staged.Interval = was.Version, was.Target, was.Interval
			if _, err := ReadBacklog(s.Backlogs, q.Slot); err != nil {
				return err
			}
			if err := s.putQueue(i, &staged); err != nil {
				return err
			}
			if _, err := ReadBacklog(s.Backlogs, q.Slot); err != nil {
				return err
			}
		}
		if err := s.putQueue(i, q); err != nil {
			return err
		}
		*was = *q
	}
	return nil
}

func (s *Maps) putQueue(i int, q *bpf.ShaperQueue) error {
	if err := s.queues.Update(uint32(i), q, ebpf.UpdateExist); err != nil {
		return fmt.Errorf("queues: %w", err)
	}
	return nil
}

// ReadQueues updates the parameters of the queues: SetRates of any process changes them in the map
// of the program, not in the record.
func (s *Maps) ReadQueues(a *record.About) error {
	if len(a.Queued) == 0 {
		return nil
	}
	if n := s.queues.MaxEntries(); int(n) != len(a.Queued) {
		return &record.DamageError{Err: fmt.Errorf("it has %d queues, the program has %d", len(a.Queued), n)}
	}
	queues, err := engine.ReadArray[bpf.ShaperQueue](s.queues, 0)
	if err != nil {
		return err
	}
	for i := range queues {
		a.Queued[i].ShaperQueue = queues[i]
	}
	return nil
}
