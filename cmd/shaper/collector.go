package main

import (
	"fmt"
	"io"
	"path/filepath"
	"slices"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/bins"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/report"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// collector collects the series of the report, packet by packet.
type collector struct {
	bins.Axis
	policy          *policyfile.Compiled
	engine          engine
	offered, passed [3]*bins.Series
	unmetered       *bins.Series
	classes         []classSeries
	meters          []*meterSeries
	queues          []*queueSeries
}

// classSeries has the series to which packets of a class are added.
type classSeries struct {
	meters []*meterSeries // of the chain
}

type meterSeries struct {
	stage int
	level [2]*bins.Series
}

type queueSeries struct {
	queue   *dataplane.PlanQueue
	delay   *bins.Series
	backlog bins.Area
	// Dropped packets, by reason.
	full, early, stale dataplane.Count
}

func newCollector(policy *policyfile.Compiled, e engine) *collector {
	c := &collector{policy: policy, engine: e}
	for color := range c.offered {
		c.offered[color] = c.Add(0, bins.Sum)
		c.passed[color] = c.Add(0, bins.Sum)
	}
	c.unmetered = c.Add(0, bins.Sum)
	plan := policy.Plan
	meters := make([]*meterSeries, len(plan.Stages))
	for i := range meters {
		if plan.Stages[i].Keyed() || plan.Stages[i].Customers {
			continue // each key or customer has its own level
		}
		meters[i] = &meterSeries{i, [2]*bins.Series{c.Add(-1, bins.Lowest), c.Add(-1, bins.Lowest)}}
		c.meters = append(c.meters, meters[i])
	}
	for i := range plan.Queues {
		c.queues = append(c.queues, &queueSeries{queue: &plan.Queues[i], delay: c.Add(-1, bins.Highest), backlog: c.AddArea()})
	}
	for i := range plan.Classes {
		var s classSeries
		for at := plan.Classes[i].Stage; at >= 0; at = plan.Stages[at].Then {
			if meters[at] != nil {
				s.meters = append(s.meters, meters[at])
			}
		}
		c.classes = append(c.classes, s)
	}
	return c
}

// packet adds a packet.
func (c *collector) packet(v *dataplane.Verdict) error {
	at, n := c.Bin(v.Now), int64(v.Length)
	if v.Class < 0 {
		if !v.Done.Dropped() {
			c.unmetered.Put(at, n)
		}
		return nil
	}
	c.offered[v.Color].Put(at, n)
	class := &c.classes[v.Class]
	for _, m := range class.meters {
		tc, te, err := c.engine.Tokens(m.stage)
		if err != nil {
			return err
		}
		m.level[0].Put(at, tc)
		m.level[1].Put(at, te)
	}
	if v.Done&dataplane.Waiting == 0 {
		c.outcome(v)
	}
	return nil
}

// queueOf returns the queue for a packet with a class. It is nil if there is none, and for a
// customer's own queue, which has no series.
func (c *collector) queueOf(v *dataplane.Verdict) *queueSeries {
	a, own := c.policy.Plan.ActionOf(v)
	if own || a.Queue < 0 {
		return nil
	}
	return c.queues[a.Queue]
}

// outcome adds the outcome of a packet with a class.
func (c *collector) outcome(v *dataplane.Verdict) {
	q := c.queueOf(v)
	if v.Done.Dropped() {
		if q != nil {
			q.dropped(&c.Axis, v)
		}
		return
	}
	n := int64(v.Length)
	at := c.Bin(v.Departure)
	c.passed[v.Color].Put(at, n)
	if v.Done&dataplane.Queued != 0 && q != nil {
		q.delay.Put(at, v.Departure-v.Now)
		q.backlog.Put(&c.Axis, v.Now, v.Departure, n)
	}
}

// dropped adds a dropped packet, if the queue dropped it. On a link, CoDel drops it after it
// was queued.
func (q *queueSeries) dropped(x *bins.Axis, v *dataplane.Verdict) {
	var to *dataplane.Count
	switch v.Reason {
	case dataplane.QueueFull:
		to = &q.full
	case dataplane.WRED:
		to = &q.early
	case dataplane.CoDel:
		to = &q.stale
		if q.queue.Link >= 0 {
			q.backlog.Put(x, v.Now, v.Departure, int64(v.Length))
		}
	default:
		return
	}
	*to = to.Plus(dataplane.Count{Packets: int64(v.Packets), Bytes: int64(v.Length)})
}

// write writes the report. It first widens the bins until they have enough packets.
func (c *collector) write(w io.Writer, in, version string, n replayed) error {
	c.Fit(n.Packets)
	plan := c.policy.Plan
	outline := plan.Outline()
	t := totalsOf(outline, n)
	d := report.Data{
		Input:     filepath.Base(say.Printable(in)),
		Policy:    c.policy.Name,
		Version:   version,
		Start:     c.Start,
		BinWidth:  c.Width,
		Unmetered: c.Used(c.unmetered),
		Packets:   t.Packets,
		Bytes:     t.Bytes,
		Duration:  t.DurationNS,
		Warnings:  t.Warnings,
	}
	for color := range d.Offered {
		d.Offered[color] = c.Used(c.offered[color])
		d.Passed[color] = c.Used(c.passed[color])
	}
	for _, m := range c.meters {
		s := &plan.Stages[m.stage]
		out := report.Meter{Name: s.Name, Kind: s.Kind.String(), Params: say.Meter(s.Source)}
		for i, b := range s.Buckets {
			level := report.Bucket{Name: b.Name, Size: b.Size, Lowest: c.Used(m.level[i])}
			if i == 0 {
				out.C = level
			} else {
				out.E = level
			}
		}
		d.Meters = append(d.Meters, out)
	}
	for _, q := range c.queues {
		d.Queues = append(d.Queues, report.Queue{
			Name: q.queue.Name, Params: say.Queue(q.queue.Source),
			Delay: c.Used(q.delay), Waiting: q.backlog.Means(&c.Axis),
			Full: q.full, WRED: q.early, CoDel: q.stale,
		})
	}
	for i, class := range t.Classes {
		row := report.Class{
			Name:    class.Name,
			Green:   class.Green,
			Yellow:  class.Yellow,
			Red:     class.Red,
			Dropped: class.Dropped,
			Marked:  class.Marked,
			Queued:  class.Queued,
		}
		switch {
		case i == len(plan.Classes):
			row.Uncolored = class.Count
			if class.Packets == 0 {
				continue
			}
		case plan.Classes[i].Stage >= 0:
			chain := outline.Chain(i)
			first := &plan.Stages[chain[0]]
			row.Meter = "the meter of the customer's plan"
			if !first.Customers {
				row.Meter = first.Kind.String() + ": " + say.Meter(first.Source)
			}
			for _, k := range n.keys {
				if slices.Contains(chain, k.stage) {
					row.Meter += fmt.Sprintf("; %s: %s", k.Name, k)
				}
			}
		}
		d.Classes = append(d.Classes, row)
	}
	return report.Write(w, d)
}
