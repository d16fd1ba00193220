package stats

import (
	"context"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/live"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// watchInterval is the interval of stats --watch.
const watchInterval = time.Second

// BitRate returns the rate between two samples, in bit/s. Counters may have wrapped.
func BitRate(before, after dataplane.Count, dt time.Duration) int64 {
	if dt <= 0 {
		return 0
	}
	const mask = 1<<63 - 1
	return int64(float64((after.Bytes-before.Bytes)&mask) * 8 / dt.Seconds())
}

// Show prints the counters of the shapers of an interface, with watch once a second.
func Show(ctx context.Context, s cli.Streams, f *live.Flags, name string, asJSON, watch bool) error {
	pause := kernel.MinReadingAge
	if watch {
		pause = watchInterval
	}
	last := map[string]live.Sample{}
	for round := 0; ; round++ {
		list, err := f.Choose(name)
		if err != nil {
			return err
		}
		samples, ready, err := SampleAll(list, last)
		ready = ready && !watch || round > 0
		if err == nil && ready {
			err = printSamples(s, list, samples, asJSON, round, watch)
		}
		live.CloseAll(list)
		if err != nil || ready && !watch {
			return err
		}
		select {
		case <-ctx.Done():
			if !watch {
				return context.Cause(ctx) // nothing was printed
			}
			return nil
		case <-time.After(pause):
		}
	}
}

// Samples are two samples of a shaper.
type Samples struct{ Before, Now live.Sample }

// SampleAll samples all shapers. The earlier sample of a shaper is the one in last, or one kept by
// any process. ready: all shapers have an earlier sample; those without get the current one.
func SampleAll(list []live.Handle, last map[string]live.Sample) (out []Samples, ready bool, err error) {
	ready = true
	for _, sh := range list {
		now, err := sh.Sample()
		if err != nil {
			return nil, false, err
		}
		key := live.Name(sh.Info()) + sh.Info().Loaded.String()
		before, ok := last[key]
		last[key] = now
		if !ok {
			before.Reading, ok = sh.Earlier(now.Reading)
		}
		sh.Keep(now.Reading)
		if !ok {
			before, ready = now, false
		}
		out = append(out, Samples{before, now})
	}
	return out, ready, nil
}

func printSamples(s cli.Streams, list []live.Handle, of []Samples, asJSON bool, round int, watch bool) error {
	p, views := say.NewPrinter(s.Out), []View(nil)
	for i, sh := range list {
		if !asJSON {
			views = append(views, ViewOf(sh, lookAtChanges, &of[i]))
		} else if err := say.WriteJSON(s.Out, Of(sh, of[i].Before, of[i].Now, lookAtChanges)); err != nil {
			return err
		}
	}
	PrintStats(p, views, round, watch)
	return p.Err
}

// Stats is the output of stats --json, one line per shaper.
type Stats struct {
	Status
	Interval time.Duration   `json:"rate_interval_ns"` // the rates are averages over this time
	Dropped  dataplane.Count `json:"dropped"`          // by all classes and queues
	Classes  []ClassStats    `json:"classes"`
	Queues   []QueueStats    `json:"queues"`
	Lost     *Lost           `json:"lost,omitempty"` // nil for a shaper in the kernel
}

// Lost counts the packets that a shaper tap lost after the policy had passed them. Bytes are those of
// frames, except for Memory, which counts metered bytes.
type Lost struct {
	Refused dataplane.Count `json:"refused"` // by the other device
	Memory  dataplane.Count `json:"memory"`  // without memory for their queue
	Ended   dataplane.Count `json:"ended"`   // still queued at the end
}

// QueueStats are the counters of a queue.
type QueueStats struct {
	Name    string `json:"name"`
	Link    string `json:"link,omitempty"`
	Path    string `json:"link_path,omitempty"` // of links in a tree, the root first
	DelayNS int64  `json:"delay_ns"`            // current queueing delay; 0 for a queue of a link
	Bytes   int64  `json:"bytes"`               // backlog
	// packets dropped by the qdisc, which classes count as queued
	Dropped int64  `json:"dropped"`
	Sent    *int64 `json:"sent_bit_s,omitempty"` // as counted by HTB
	// class also counting these drops; "" if several classes use the queue
	Class string `json:"class"`
}

// ClassStats are the counters of a class, with its rates and meters.
type ClassStats struct {
	Name string `json:"name"`
	dataplane.Count
	Rate    int64           `json:"rate_bit_s"`
	Green   ColorStats      `json:"green"`
	Yellow  ColorStats      `json:"yellow"`
	Red     ColorStats      `json:"red"`
	Dropped dataplane.Count `json:"dropped"`
	Marked  dataplane.Count `json:"marked"`
	Queued  dataplane.Count `json:"queued"`
	CE      dataplane.Count `json:"ce"`
	Meters  []MeterStats    `json:"meters"`
}

// ColorStats are the counters of a color of a class.
type ColorStats struct {
	dataplane.Count
	Rate int64 `json:"rate_bit_s"`
	// null if several classes or colors use a link's queue
	Passed  *int64                     `json:"passed_bit_s"`
	Dropped map[string]dataplane.Count `json:"dropped"` // by reason
	Marked  dataplane.Count            `json:"marked"`
	Queued  dataplane.Count            `json:"queued"`
	// packets in which Congestion Experienced was set; not included in Marked
	CE dataplane.Count `json:"ce"`
}

// MeterStats is the state of a meter of a class.
type MeterStats struct {
	Name    string         `json:"name"`
	Type    string         `json:"type"` // plan: each customer has the meter or the queue of its plan
	Packets bool           `json:"counts_packets"`
	Per     string         `json:"per,omitempty"` // key of a per-key meter
	Budget  string         `json:"budget,omitempty"`
	Keys    *say.KeyCounts `json:"keys,omitempty"` // not counted in the kernel
	Buckets []BucketStats  `json:"buckets"`        // none for a per-key meter
}

// BucketStats is the state of a bucket.
type BucketStats struct {
	Name   string `json:"name"` // Tc, Te or Tp; left for a window; below CIR or below PIR for an average
	Tokens int64  `json:"tokens"`
	Burst  int64  `json:"burst"`
}

// Of returns the counters of a shaper, and its rates between two samples.
func Of(sh live.Handle, before, now live.Sample, look ChangesLook) Stats {
	seen := interval{sh.Info(), &before, &now}
	out := Stats{
		Status: StatusOf(sh, look), Interval: seen.dt(), Dropped: now.Dropped(), Queues: []QueueStats{},
	}
	plan := &sh.Info().Outline
	for i, q := range now.Queues {
		row := QueueStats{
			Name: q.Name, DelayNS: int64(q.Delay), Bytes: q.Bytes, Dropped: q.Dropped, Sent: seen.sent(i),
			Class: q.Class,
		}
		if link := plan.Queues[i].Link; link >= 0 {
			row.Link = plan.Links[link]
			if len(plan.Above) > 0 {
				row.Path = plan.Path(link)
			}
		}
		out.Queues = append(out.Queues, row)
	}
	if live.IsTap(sh.Info()) {
		out.Lost = new(Lost(sh.Lost()))
	}
	dt := seen.dt()
	for i := range now.Stats {
		a, b := &before.Stats[i], &now.Stats[i]
		row := ClassStats{
			Name: say.Unclassified, Count: b.Total(), Rate: BitRate(a.Total(), b.Total(), dt),
			Meters: []MeterStats{},
		}
		if i < len(plan.Classes) {
			row.Name = plan.Classes[i].Name
		}
		for color, to := range map[meter.Color]*ColorStats{
			meter.Green: &row.Green, meter.Yellow: &row.Yellow, meter.Red: &row.Red,
		} {
			to.Count, to.Rate = b.Colors[color], BitRate(a.Colors[color], b.Colors[color], dt)
			to.Passed = seen.passed(i, color)
			to.Marked, to.Queued, to.CE = b.Marked[color], b.Queued[color], b.CE[color]
			to.Dropped = map[string]dataplane.Count{}
			for cause := range dataplane.Causes {
				to.Dropped[cause.String()] = b.Drops[color][cause]
			}
		}
		row.Dropped = b.AllDropped()
		row.Marked, row.Queued, row.CE = dataplane.Sum(b.Marked[:]), dataplane.Sum(b.Queued[:]),
			dataplane.Sum(b.CE[:])
		if i < len(plan.Classes) {
			row.Meters = metersOf(plan, i, &now)
		}
		out.Classes = append(out.Classes, row)
	}
	return out
}

// metersOf returns the state of a class's chain of meters.
func metersOf(plan *compiled.Outline, class int, now *live.Sample) []MeterStats {
	out := []MeterStats{}
	for _, i := range plan.Chain(class) {
		m := &plan.Stages[i]
		row := MeterStats{
			Name: m.Name, Type: m.Kind.String(), Packets: m.Packets, Budget: m.BudgetName,
			Buckets: []BucketStats{},
		}
		if m.Customers {
			row.Type = "plan"
		}
		if m.Keyed() {
			row.Per = m.Key.String()
			if now.Keys != nil {
				row.Keys = say.NewKeyCounts(m, i, now.Keys[i])
			}
		} else {
			for b, bucket := range m.Buckets {
				row.Buckets = append(row.Buckets, BucketStats{bucket.Name, now.Tokens[i][b], bucket.Size})
			}
		}
		out = append(out, row)
	}
	return out
}
