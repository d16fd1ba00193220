package main

import (
	"fmt"
	"io"
	"path/filepath"
	"slices"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/report"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// Bins start narrow and double in width whenever the capture outgrows them, so
// that memory does not grow with it.
const (
	maxBins       = 512
	fewBins       = 96
	firstBin      = 10_000 // ns
	packetsPerBin = 8
)

// axis is the time axis that all series of a report share.
type axis struct {
	begun  bool
	start  int64 // ns
	width  int64 // ns
	n      int   // bins in use
	series []*series
}

// series is one value a bin.
type series struct {
	values []int64
	blank  int64
	merge  func(a, b int64) int64
}

func sum(a, b int64) int64 { return a + b }

// lowest and highest take -1 for no value.
func lowest(a, b int64) int64 {
	if a < 0 || b >= 0 && b < a {
		return b
	}
	return a
}

func highest(a, b int64) int64 { return max(a, b) }

func (x *axis) add(blank int64, merge func(a, b int64) int64) *series {
	s := &series{make([]int64, maxBins), blank, merge}
	for i := range s.values {
		s.values[i] = blank
	}
	x.series = append(x.series, s)
	return s
}

// bin returns the bin of a time, which is not before the first one's.
func (x *axis) bin(t int64) int {
	if !x.begun {
		x.begun, x.start, x.width = true, t, firstBin
	}
	since := uint64(t) - uint64(x.start)
	for since/uint64(x.width) >= maxBins {
		x.widen()
	}
	i := int(since / uint64(x.width))
	x.n = max(x.n, i+1)
	return i
}

// widen doubles the width of a bin.
func (x *axis) widen() {
	for _, s := range x.series {
		s.halve()
	}
	x.width *= 2
	x.n = (x.n + 1) / 2
}

func (s *series) halve() {
	for i := range maxBins / 2 {
		s.values[i] = s.merge(s.values[2*i], s.values[2*i+1])
	}
	for i := maxBins / 2; i < maxBins; i++ {
		s.values[i] = s.blank
	}
}

func (s *series) put(bin int, v int64) { s.values[bin] = s.merge(s.values[bin], v) }

// collector gathers what the report shows, packet by packet.
type collector struct {
	axis
	policy          *compiled
	engine          engine
	offered, passed [3]*series
	unmetered       *series
	classes         []classSeries
	meters          []*meterSeries
	queues          []*queueSeries
}

// classSeries are the series that a class's packets add to.
type classSeries struct {
	chain  []*meterSeries
	queues [3]*queueSeries // by color
}

type meterSeries struct {
	stage int
	level [2]*series
}

type queueSeries struct {
	queue   *dataplane.PlanQueue
	delay   *series
	waiting area
	// What the queue dropped, by reason.
	full, early, stale dataplane.Count
}

// area is what bytes times waits comes to in each bin. It keeps two sums of the
// bytes that come, less those that leave: plain, and times when that was. Those
// up to the end of a bin tell what had waited by then. So a long wait costs no
// more than a short one, and the order of packets does not matter. The second
// sum may wrap; differences between bins do so only where 1 GB waits for hours.
type area struct{ bytes, moment *series }

func (x *axis) addArea() area { return area{x.add(0, sum), x.add(0, sum)} }

// micros is a time on the axis.
func (x *axis) micros(t int64) int64 { return int64((uint64(t) - uint64(x.start)) / 1000) }

// put adds n bytes that wait between two times.
func (a area) put(x *axis, from, to, n int64) {
	for _, end := range [2]struct{ at, n int64 }{{from, n}, {to, -n}} {
		i := x.bin(end.at)
		a.bytes.put(i, end.n)
		a.moment.put(i, end.n*x.micros(end.at))
	}
}

// means are the bytes that waited in each bin, averaged over it.
func (a area) means(x *axis) []int64 {
	out := make([]int64, x.n)
	width := x.width / 1000 // whole, as firstBin is
	var bytes, moment, before int64
	for i := range out {
		bytes += a.bytes.values[i]
		moment += a.moment.values[i]
		upTo := bytes*int64(i+1)*width - moment
		out[i] = (upTo - before + width/2) / width
		before = upTo
	}
	return out
}

func newCollector(policy *compiled, e engine) *collector {
	c := &collector{policy: policy, engine: e}
	for color := range c.offered {
		c.offered[color] = c.add(0, sum)
		c.passed[color] = c.add(0, sum)
	}
	c.unmetered = c.add(0, sum)
	plan := policy.plan
	meters := make([]*meterSeries, len(plan.Stages))
	for i := range meters {
		if plan.Stages[i].Keyed() {
			continue // there are as many levels as keys
		}
		meters[i] = &meterSeries{i, [2]*series{c.add(-1, lowest), c.add(-1, lowest)}}
		c.meters = append(c.meters, meters[i])
	}
	for i := range plan.Queues {
		c.queues = append(c.queues, &queueSeries{queue: &plan.Queues[i], delay: c.add(-1, highest), waiting: c.addArea()})
	}
	for i := range plan.Classes {
		var s classSeries
		for at := plan.Classes[i].Stage; at >= 0; at = plan.Stages[at].Then {
			if meters[at] != nil {
				s.chain = append(s.chain, meters[at])
			}
		}
		for color, a := range plan.Classes[i].Actions {
			if a.Queue >= 0 {
				s.queues[color] = c.queues[a.Queue]
			}
		}
		c.classes = append(c.classes, s)
	}
	return c
}

// packet adds one packet.
func (c *collector) packet(v *dataplane.Verdict) error {
	now, n := v.Now, int64(v.Length)
	if v.Class < 0 {
		if at := c.bin(now); !v.Done.Dropped() {
			c.unmetered.put(at, n)
		}
		return nil
	}
	at := c.bin(now)
	c.offered[v.Color].put(at, n)
	class := &c.classes[v.Class]
	for _, m := range class.chain {
		tc, te, err := c.engine.Tokens(m.stage)
		if err != nil {
			return err
		}
		m.level[0].put(at, tc)
		m.level[1].put(at, te)
	}
	if v.Done&dataplane.Waiting == 0 {
		c.left(v)
	}
	return nil
}

// left adds what became of a packet that a class took.
func (c *collector) left(v *dataplane.Verdict) {
	q := c.classes[v.Class].queues[v.Color]
	if v.Done.Dropped() {
		if q != nil {
			q.dropped(&c.axis, v)
		}
		return
	}
	n := int64(v.Length)
	left := c.bin(v.Departure)
	c.passed[v.Color].put(left, n)
	if v.Done&dataplane.Queued != 0 {
		q.delay.put(left, v.Departure-v.Now)
		q.waiting.put(&c.axis, v.Now, v.Departure, n)
	}
}

// dropped adds a packet that a queue may have dropped. On a link, CoDel drops it
// after it has waited.
func (q *queueSeries) dropped(x *axis, v *dataplane.Verdict) {
	var to *dataplane.Count
	switch v.Reason {
	case dataplane.QueueFull:
		to = &q.full
	case dataplane.WRED:
		to = &q.early
	case dataplane.CoDel:
		to = &q.stale
		if q.queue.Link >= 0 {
			q.waiting.put(x, v.Now, v.Departure, int64(v.Length))
		}
	default:
		return
	}
	*to = to.Plus(dataplane.Count{Packets: int64(v.Packets), Bytes: int64(v.Length)})
}

// write renders the report, in bins wide enough to have some packets each.
func (c *collector) write(w io.Writer, in, version string, n replayed) error {
	for c.n > fewBins && n.Packets < packetsPerBin*int64(c.n) {
		c.widen()
	}
	plan := c.policy.plan
	t := totalsOf(plan.Outline(), n)
	d := report.Data{
		Input:     filepath.Base(say.Printable(in)),
		Policy:    c.policy.Name,
		Version:   version,
		Start:     c.start,
		BinWidth:  c.width,
		Unmetered: c.unmetered.values[:c.n],
		Packets:   t.Packets,
		Bytes:     t.Bytes,
		Duration:  t.DurationNS,
		Warnings:  t.Warnings,
	}
	for color := range d.Offered {
		d.Offered[color] = c.offered[color].values[:c.n]
		d.Passed[color] = c.passed[color].values[:c.n]
	}
	for _, m := range c.meters {
		s := &plan.Stages[m.stage]
		out := report.Meter{Name: s.Name, Kind: s.Kind.String(), Params: say.Meter(s.Source)}
		for i, b := range s.Buckets {
			level := report.Bucket{Name: b.Name, Size: b.Size, Lowest: m.level[i].values[:c.n]}
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
			Delay: q.delay.values[:c.n], Waiting: q.waiting.means(&c.axis),
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
			chain := plan.Outline().Chain(i)
			first := &plan.Stages[chain[0]]
			row.Meter = first.Kind.String() + ": " + say.Meter(first.Source)
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
