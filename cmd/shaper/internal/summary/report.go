package summary

import (
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/bins"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/episodes"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/report"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// topRows are the rows of the tables of flows and keys.
const topRows = 10

// Write writes the report. It first widens the bins until they have enough packets.
func (c *Collector) Write(w io.Writer, in, version string, n Replay) error {
	c.Fit(n.Packets)
	outline := c.policy.Plan.Outline()
	t := TotalsOf(outline, n)
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
		Flows:     topOf(&c.flows, dataplane.Flow.String),
		Keys:      topOf(&c.keys, func(key string) string { return key }),
	}
	for color := range d.Offered {
		d.Offered[color] = c.Used(c.offered[color])
		d.Passed[color] = c.Used(c.passed[color])
	}
	c.addEpisodes(&d, n)
	c.addRates(&d)
	c.addMeters(&d)
	c.addQueues(&d)
	d.Links = c.sharedLinks(n.Links)
	for i := range t.Classes {
		class := &t.Classes[i]
		row := report.Class{
			Name:    class.Name,
			Green:   class.Green,
			Yellow:  class.Yellow,
			Red:     class.Red,
			Dropped: class.Dropped,
			Marked:  class.Marked,
			Queued:  class.Queued,
		}
		if i < len(outline.Classes) {
			row.Meter = c.meterOf(outline.Chain(i), n.Keys)
		} else if row.Uncolored = class.Count; class.Packets == 0 {
			continue
		}
		d.Classes = append(d.Classes, row)
	}
	return report.Write(w, d)
}

// addRates adds the traffic of each class over time.
func (c *Collector) addRates(d *report.Data) {
	plan := c.policy.Plan
	for i := range c.classes {
		s := &c.classes[i]
		rates := report.Rates{Name: plan.Classes[i].Name, Sent: c.Used(s.passed), Limits: limitsOf(plan, i)}
		for color := range rates.Offered {
			rates.Offered[color] = c.Used(s.offered[color])
		}
		d.Rates = append(d.Rates, rates)
	}
}

// addMeters adds the levels of each meter over time.
func (c *Collector) addMeters(d *report.Data) {
	for _, m := range c.meters {
		s := &c.policy.Plan.Stages[m.stage]
		out := report.MeterSeries{
			Name: s.Name, Kind: s.Kind.String(), Params: say.Meter(s.Source), Packets: c.Used(m.packets),
		}
		for i, b := range s.Buckets {
			level := report.BucketSeries{
				Name: b.Name, Size: b.Size, Lowest: c.Used(m.lowest[i]), Mean: c.means(m.sum[i], m.packets),
			}
			if i == 0 {
				out.C = level
			} else {
				out.E = level
			}
		}
		d.Meters = append(d.Meters, out)
	}
}

// addQueues adds the delay, the backlog and the drops of each queue.
func (c *Collector) addQueues(d *report.Data) {
	for _, q := range c.queues {
		d.Queues = append(d.Queues, report.QueueSeries{
			Name: q.queue.Name, Params: say.Queue(q.queue.Source, c.policy.Policy.Queues),
			Delay: c.Used(q.delay), Waiting: q.backlog.Means(&c.Axis),
			Full: q.full, WRED: q.early, CoDel: q.stale,
		})
	}
}

// sharedLinks returns the states of links, without the own ones of fair queues.
func (c *Collector) sharedLinks(states []dataplane.LinkState) (out []dataplane.LinkState) {
	own := map[*dataplane.Link]bool{}
	for _, q := range c.policy.Policy.Queues {
		if say.OwnLink(q, c.policy.Policy.Queues) {
			own[q.Link] = true
		}
	}
	at := make([]int, len(states)) // index in out
	for i, s := range states {
		if own[c.policy.Plan.Links[i].Source] {
			continue
		}
		if s.Above >= 0 { // listed before
			s.Above = at[s.Above]
		}
		at[i] = len(out)
		out = append(out, s)
	}
	return out
}

// meterOf describes the meter of a class in the table, with the keys of the meters of its chain; "" for no
// meter.
func (c *Collector) meterOf(chain []int, keys []*say.KeyCounts) string {
	if len(chain) == 0 {
		return ""
	}
	text := "the meter of the customer's plan"
	if first := &c.policy.Plan.Stages[chain[0]]; !first.Customers {
		text = first.Kind.String() + ": " + say.Meter(first.Source)
	}
	for _, k := range keys {
		if slices.Contains(chain, k.Stage()) {
			text += fmt.Sprintf("; %s: %s", k.Name, k)
		}
	}
	return text
}

// means divides the sum of each bin by its packets. It is -1 without packets, or without sums.
func (c *Collector) means(sum, packets *bins.Series) []int64 {
	if sum == nil {
		return slices.Repeat([]int64{-1}, len(c.Used(packets)))
	}
	out := slices.Clone(c.Used(sum))
	for i, n := range c.Used(packets) {
		if n == 0 {
			out[i] = -1
			continue
		}
		out[i] /= n
	}
	return out
}

// addEpisodes adds the worst episodes and the packets around them.
func (c *Collector) addEpisodes(d *report.Data, n Replay) {
	for i, e := range n.Worst {
		t := &n.Lists.Episodes[i]
		d.Episodes = append(d.Episodes, report.Episode{
			Kind: t.Kind, Class: t.Class, By: t.by, Reason: t.reasons(), At: t.when(),
			Length: say.Time(t.DurationNS), Count: t.Count, Lack: t.lack(), Flow: t.Flow.text(), Why: t.Why,
			From: e.First, To: e.Last,
		})
	}
	d.Tiles = c.recorder.tiles(n.Worst)
}

// topOf returns the first rows of a table.
func topOf[K comparable](top *episodes.Top[K], name func(K) string) (out []report.Top) {
	sorted := top.Sorted()
	for _, item := range sorted[:min(len(sorted), topRows)] {
		out = append(out,
			report.Top{Name: name(item.Key), Count: item.Count, Dropped: item.Dropped, AtLeast: item.Partial})
	}
	return out
}

// limitsOf returns the rates of the first meter shared by all packets of a class: CIR, and PIR or
// CIR + EIR. For a window it is the mean of its limit.
func limitsOf(plan *compiled.Plan, class int) (out []report.RateLine) {
	at := plan.Classes[class].Stage
	for at >= 0 && (plan.Stages[at].Keyed() || plan.Stages[at].Customers) {
		at = plan.Stages[at].Then
	}
	if at < 0 || plan.Stages[at].Packets {
		return nil
	}
	source := plan.Stages[at].Source
	add := func(name string, rate meter.Rate) {
		if rate.Period > 0 && rate.Bytes > 0 {
			out = append(out, report.RateLine{
				Text:    name + " " + say.Rate(rate, false),
				BitRate: float64(rate.Bytes) * 8e9 / float64(rate.Period),
			})
		}
	}
	info := source.Params.Kind().Info()
	for _, field := range info.Required {
		rate, ok := meter.Field(source.Params, field).(meter.Rate)
		switch {
		case !ok:
		case field == "eir" && info.Beside && len(out) > 0:
			add("EIR", rate)
			if last := &out[len(out)-1]; strings.HasPrefix(last.Text, "EIR") {
				last.Text, last.BitRate = "CIR + "+last.Text, last.BitRate+out[0].BitRate
			}
		case field == "rate":
			add(field, rate)
		default:
			add(strings.ToUpper(field), rate)
		}
	}
	return out
}
