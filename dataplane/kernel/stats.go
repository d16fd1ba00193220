package kernel

import (
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/engine"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/image"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/qdisc"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/record"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// Queues returns the state of each queue of the policy, like pipeline.Pipeline.Queues.
func (s *Shaper) Queues() ([]dataplane.QueueState, error) {
	leaves, err := s.leafCounts()
	if err != nil {
		return nil, err
	}
	return s.queues(leaves)
}

func (s *Shaper) queues(leaves map[uint16]qdisc.Counts) ([]dataplane.QueueState, error) {
	now := engine.Monotonic()
	out := make([]dataplane.QueueState, len(s.Queued))
	for i, q := range s.Queued {
		out[i].Name = s.Outline.Queues[i].Name
		leaf := image.CountsOf(leaves, &q.ShaperQueue)
		out[i].Sent = dataplane.Count{Packets: int64(leaf.Packets), Bytes: int64(leaf.Bytes)}
		out[i].Dropped, out[i].Class = int64(leaf.Drops), q.Class
		if q.Linked != 0 {
			out[i].Bytes = int64(leaf.Backlog)
			continue
		}
		b, err := image.ReadBacklog(s.maps.Backlogs, q.Slot)
		if err != nil {
			return nil, err
		}
		if delay := int64(b.Next - now); b.Begun != 0 && delay > 0 {
			out[i].Delay = time.Duration(delay)
			p := record.PaceOf(&q.ShaperQueue)
			out[i].Bytes, _ = meter.Rate{
				Bytes: int64(p.Den), Period: time.Duration(p.Ns*p.Den + p.Rest),
			}.Burst(out[i].Delay)
		}
	}
	return out, nil
}

// leafCounts returns the counters of HTB's leaves, by class ID. After Detach they are the
// last ones; without HTB there are none.
func (s *Shaper) leafCounts() (map[uint16]qdisc.Counts, error) {
	if s.Pacer != HTB {
		return s.finalLeafCounts, nil
	}
	return qdisc.LeafCounts(s.Place.Index)
}

// Stats returns the counters of each class, in the order of the policy, followed by
// those of unclassified packets, as pipeline.Pipeline.Stats does.
func (s *Shaper) Stats() ([]dataplane.ClassStats, error) {
	leaves, err := s.leafCounts()
	if err != nil {
		return nil, err
	}
	return s.stats(leaves)
}

func (s *Shaper) stats(leaves map[uint16]qdisc.Counts) ([]dataplane.ClassStats, error) {
	out, err := image.ReadStats(s.maps.Counters, s.Slots)
	if err != nil {
		return nil, err
	}
	image.CountQdiscDrops(&s.About, out, leaves)
	return out, nil
}

// Tokens returns the current tokens of both buckets of each meter, in whole bytes or
// packets, indexed by stage of the Outline.
func (s *Shaper) Tokens() (out [][2]int64, err error) {
	now := engine.Monotonic()
	out = make([][2]int64, len(s.Stages))
	for i := range s.Stages {
		if out[i][0], out[i][1], err = image.ReadTokens(s.maps, &s.Stages[i].ShaperStage, now); err != nil {
			return nil, err
		}
	}
	return out, nil
}
