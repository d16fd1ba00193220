package kernel

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"

	"github.com/a-seed-32e5a53f/shaper/bpf"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// SetRates changes the rates of queues and links, and the times of their CoDel, to those of a plan, such as
// one of dataplane.Plan.WithRates, and writes only what differs. The plan may differ from the active
// policy in nothing else; SetRates checks that for queues and links. It is far cheaper than
// Reload, which would have the same result: the program stays, and so do queued packets and
// their order.
//
// With fq, queued packets keep their departures. With HTB, they are sent at the new rate. A queue
// is free for later packets at the time at which it would have been free. Limits in time stay
// times: a slower queue or link that contains more than its limit accepts packets again when the
// excess has been sent, and a fair queue drops the excess. The GSO limit is adjusted, as by Reload.
//
// The record of the shaper does not change, except for the GSO limit: pass plans with the new rates to later calls of
// Reload and Repair.
//
// After an error some rates may have changed; SetRates can be called again. The error wraps
// ErrDetached if the shaper is no longer attached, and joins dataplane.FieldErrors if the kernel
// plane rejects a rate. For the owner of the shaper it may be an *UnlockedError: then all rates have changed, but
// not the GSO limit.
func (s *Shaper) SetRates(plan *dataplane.Plan) error {
	change, unlocked, err := s.lockToSet()
	if err != nil {
		return err
	}
	st, err := lockedSite(s.iface(), change)
	if err != nil {
		return err
	}
	defer st.close()
	st.guard = s.guard
	if err := s.Refresh(); err != nil {
		return err
	}
	g, err := s.encodeRates(plan)
	if err != nil {
		return err
	}
	if s.Pacer == "" {
		if err := s.writeRates(g.queues); err != nil {
			return err
		}
		return unlocked
	}
	d, err := deviceByIndex(s.iface())
	if err != nil {
		return err
	}
	if err := g.tree(d).Change(s.Place.Index); err != nil {
		return err
	}
	if err := s.writeRates(g.queues); err != nil {
		return err
	}
	if unlocked != nil {
		return unlocked
	}
	return s.setGSOLimit(st, g, d.mtu)
}

// setGSOLimit gives the device the GSO limit that suits new rates. The record has it, for all processes.
func (s *Shaper) setGSOLimit(st *site, g *image, mtu int) error {
	limit, err := st.gsoLimit(&s.About, g, mtu)
	if err != nil || limit == s.GSOLimit {
		return err
	}
	if err := st.setGSO(s.Direction, limit); err != nil {
		return err
	}
	s.GSOLimit = limit
	return writeAbout(s.about, &s.About)
}

// encodeRates returns an image with the queues and links of a plan, as new rates of those in
// the maps of the program.
func (a *About) encodeRates(plan *dataplane.Plan) (*image, error) {
	if len(a.Queued) == 0 {
		return nil, fmt.Errorf("%s %v: the active policy has no queues, so no rate can be set", a.Interface, a.Direction)
	}
	e := encoder{image: &image{plan: plan, pacer: a.Pacer, fair: a.Fair, linkIDs: a.Links}}
	for i := range plan.Queues {
		e.queue(&plan.Queues[i])
	}
	if e.faults != nil {
		return nil, errors.Join(e.faults...)
	}
	same := len(e.queues) == len(a.Queued) && len(plan.Links) == len(a.Outline.Links)
	for i := 0; same && i < len(plan.Links); i++ {
		same = plan.Links[i].Name == a.Outline.Links[i]
	}
	for i := 0; same && i < len(e.queues); i++ {
		q, was := &e.queues[i], a.Queued[i].ShaperQueue
		q.Slot, q.ClassId, q.FlowsId = was.Slot, was.ClassId, was.FlowsId
		continueRate(q, &was)
		if q.Linked != 0 {
			was.Bytes = q.Bytes // follows from the rate of the link
		}
		same = plan.Queues[i].QueueOutline == a.Outline.Queues[i] && q.Ring == was.Ring && sameQueue(q, &was)
	}
	if !same {
		return nil, fmt.Errorf("%s %v: the queues and links of the plan differ from the active ones in more than rates and the times of codel: reload the plan", a.Interface, a.Direction)
	}
	return e.image, nil
}

// writeRates writes queues with new rates to the map of the program. Programs read the rate of a
// queue under the lock of its backlog, so taking the lock waits until no program uses the
// rate that is overwritten, and orders the writes.
func (s *Shaper) writeRates(queues []bpf.ShaperQueue) error {
	for i := range queues {
		q, was := &queues[i], &s.Queued[i].ShaperQueue
		if *q == *was {
			continue
		}
		if q.Version != was.Version {
			staged := *q
			staged.Version, staged.Target, staged.Interval = was.Version, was.Target, was.Interval
			if _, err := readBacklog(s.maps.backlogs, q.Slot); err != nil {
				return err
			}
			if err := s.maps.putQueue(i, &staged); err != nil {
				return err
			}
			if _, err := readBacklog(s.maps.backlogs, q.Slot); err != nil {
				return err
			}
		}
		if err := s.maps.putQueue(i, q); err != nil {
			return err
		}
		*was = *q
	}
	return nil
}

func (s *stateMaps) putQueue(i int, q *bpf.ShaperQueue) error {
	if err := s.queues.Update(uint32(i), q, ebpf.UpdateExist); err != nil {
		return fmt.Errorf("queues: %w", err)
	}
	return nil
}

// readQueues updates the parameters of the queues: SetRates of any process changes them in the map
// of the program, not in the record.
func (s *Shaper) readQueues() error {
	if len(s.Queued) == 0 {
		return nil
	}
	if n := s.maps.queues.MaxEntries(); int(n) != len(s.Queued) {
		return &DamageError{fmt.Errorf("it has %d queues, the program has %d", len(s.Queued), n)}
	}
	queues, err := readArray[bpf.ShaperQueue](s.maps.queues, 0)
	if err != nil {
		return err
	}
	for i := range queues {
		s.Queued[i].ShaperQueue = queues[i]
	}
	return nil
}
