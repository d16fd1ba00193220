package summary

import (
	"hash/maphash"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/bins"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/episodes"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/report"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
)

// Collector collects the series of the report, packet by packet.
type Collector struct {
	bins.Axis
	policy          *policyfile.Compiled
	engine          TokenReader
	offered, passed [3]*bins.Series
	unmetered       *bins.Series
	classes         []classSeries
	meters          []*meterSeries
	queues          []*queueSeries
	recorder        recorder
	levels          []report.Level // of the latest packet

	flows   episodes.Top[dataplane.Flow]
	keys    episodes.Top[string]
	key     []byte
	waiting map[int64]queuedPacket // packets in queues of links, by number
}

// TokenReader is an engine of a replay, of which the collector reads the tokens.
type TokenReader interface {
	// Tokens returns the tokens of a stage of the plan.
	Tokens(stage int) (tc, te int64, err error)
}

// queuedPacket is what a drop by a link needs to know.
type queuedPacket struct {
	flow dataplane.Flow
	key  string
}

// classSeries holds the series for the packets of a class.
type classSeries struct {
	meters  []*meterSeries // of the chain
	offered [3]*bins.Series
	passed  *bins.Series
}

type meterSeries struct {
	stage, index int
	lowest, sum  [2]*bins.Series
	packets      *bins.Series
}

type queueSeries struct {
	queue   *compiled.Queue
	delay   *bins.Series
	backlog bins.Area
	// Dropped packets, by reason.
	full, early, stale dataplane.Count
}

const (
	manySeries = 64      // classes and meters, above which there are 512 bins
	topSets    = 128     // sets of the tables of flows and keys
	maxMean    = 1 << 38 // bucket size, B, below which the sum of the levels of 2^25 packets fits an int64
)

var seed = maphash.MakeSeed()

// NewCollector returns a collector.
func NewCollector(policy *policyfile.Compiled, e TokenReader) *Collector {
	c := &Collector{
		policy: policy, engine: e, waiting: map[int64]queuedPacket{},
		flows: episodes.NewTop(topSets, dataplane.Flow.Hash),
		keys:  episodes.NewTop(topSets, func(key string) uint64 { return maphash.String(seed, key) }),
	}
	if len(policy.Plan.Classes)+len(policy.Plan.Stages) <= manySeries {
		c.Max = report.MaxBins
	}
	for color := range c.offered {
		c.offered[color] = c.Add(0, bins.Sum)
		c.passed[color] = c.Add(0, bins.Sum)
	}
	c.unmetered = c.Add(0, bins.Sum)
	plan := policy.Plan
	meters := make([]*meterSeries, len(plan.Stages))
	for i := range meters {
		if plan.Stages[i].Keyed() || plan.Stages[i].Customers {
			continue // levels are per key or customer
		}
		m := &meterSeries{stage: i, index: len(c.meters), packets: c.Add(0, bins.Sum)}
		for b, bucket := range plan.Stages[i].Buckets {
			m.lowest[b] = c.Add(-1, bins.Lowest)
			if bucket.Size < maxMean {
				m.sum[b] = c.Add(0, bins.Sum)
			}
		}
		meters[i] = m
		c.meters = append(c.meters, m)
	}
	for i := range plan.Queues {
		c.queues = append(c.queues,
			&queueSeries{queue: &plan.Queues[i], delay: c.Add(-1, bins.Highest), backlog: c.AddArea()})
	}
	for i := range plan.Classes {
		s := classSeries{passed: c.Add(0, bins.Sum)}
		for color := range s.offered {
			s.offered[color] = c.Add(0, bins.Sum)
		}
		for at := plan.Classes[i].Stage; at >= 0; at = plan.Stages[at].Then {
			if meters[at] != nil {
				s.meters = append(s.meters, meters[at])
			}
		}
		c.classes = append(c.classes, s)
	}
	return c
}

// Packet adds a packet.
func (c *Collector) Packet(p *dataplane.Packet, v *dataplane.Verdict) error {
	at, n := c.Bin(v.Now), int64(v.Length)
	tiled := report.TilePacket{
		Number: v.ID, At: v.Now, Length: v.Length, Class: v.Class, Color: uint8(v.Color),
		Levels: c.levels[:0],
	}
	tiled.SetOutcome(v)
	if v.Class < 0 {
		if !v.Done.Dropped() {
			c.unmetered.Put(at, n)
		}
	} else {
		class := &c.classes[v.Class]
		c.offered[v.Color].Put(at, n)
		class.offered[v.Color].Put(at, n)
		for _, m := range class.meters {
			tc, te, err := c.engine.Tokens(m.stage)
			if err != nil {
				return err
			}
			m.packets.Put(at, 1)
			for b, level := range [2]int64{tc, te} {
				if m.lowest[b] != nil {
					m.lowest[b].Put(at, level)
				}
				if m.sum[b] != nil {
					m.sum[b].Put(at, level)
				}
			}
			tiled.Levels = append(tiled.Levels, report.Level{Meter: m.index, C: tc, E: te})
		}
		if v.Done&dataplane.Waiting == 0 {
			c.outcome(v)
		}
	}
	c.levels = tiled.Levels
	c.recorder.packet(tiled)
	c.count(p, v)
	return nil
}

// count adds a packet to the tables of flows and keys.
func (c *Collector) count(p *dataplane.Packet, v *dataplane.Verdict) {
	dataplane.ParseOnce(p)
	w := queuedPacket{flow: dataplane.FlowOf(p)}
	n := dataplane.Count{Packets: int64(v.Packets), Bytes: int64(v.Length)}
	dropped := dataplane.Count{}
	if v.Done.Dropped() {
		dropped = n
	}
	if item := c.flows.Add(w.flow, n); item != nil {
		item.Dropped = item.Dropped.Plus(dropped)
	}
	if c.key = c.policy.Plan.AppendKey(c.key[:0], p, v); len(c.key) > 0 {
		w.key = string(c.key)
		if item := c.keys.Add(w.key, n); item != nil {
			item.Dropped = item.Dropped.Plus(dropped)
		}
	}
	if v.Done&dataplane.Waiting != 0 {
		c.waiting[v.ID] = w
	}
}

// Settled adds the decision of a link about a packet.
func (c *Collector) Settled(v *dataplane.Verdict) {
	c.outcome(v)
	c.recorder.settled(v)
	w := c.waiting[v.ID]
	delete(c.waiting, v.ID)
	if !v.Done.Dropped() {
		return
	}
	n := dataplane.Count{Packets: int64(v.Packets), Bytes: int64(v.Length)}
	if item := c.flows.Find(w.flow); item != nil {
		item.Dropped = item.Dropped.Plus(n)
	}
	if item := c.keys.Find(w.key); item != nil {
		item.Dropped = item.Dropped.Plus(n)
	}
}

// Begin starts to keep the packets around an episode.
func (c *Collector) Begin(e *episodes.Episode) { c.recorder.begin(e) }

// queueOf returns the queue for a packet with a class. It is nil if there is none, and for a
// customer's own queue, which has no series.
func (c *Collector) queueOf(v *dataplane.Verdict) *queueSeries {
	a, own := c.policy.Plan.ActionOf(v)
	if own || a.Queue < 0 {
		return nil
	}
	return c.queues[a.Queue]
}

// outcome adds the outcome of a packet with a class.
func (c *Collector) outcome(v *dataplane.Verdict) {
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
	c.classes[v.Class].passed.Put(at, n)
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
