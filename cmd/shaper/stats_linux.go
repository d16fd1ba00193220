package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/live"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// watchInterval is the interval of stats --watch.
const watchInterval = time.Second

func newStats(s cli.Streams) *cobra.Command {
	f := liveFlags{several: true}
	var all allFlag
	var customers customerFlags
	asJSON, watch := false, false
	cmd := &cobra.Command{
		Use:     "stats [IFACE]",
		GroupID: "look",
		Short:   "Show counters, rates and tokens of a running shaper",
		Long: `Show the counters of a running shaper by class and color, the current rates, and
the tokens of the meters. Bytes are counted by the policy's length rule. Without
IFACE, show all shaped interfaces.`,
		Example: `  shaper stats eth0
  shaper stats eth0 --watch
  shaper stats eth0 --customers --top 20 --by dropped`,
		Args: cli.AtMostOne,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := all.check(args); err != nil {
				return err
			}
			switch on, err := customers.given(cmd); {
			case err != nil:
				return err
			case on && watch:
				return cli.Usagef("--customers cannot be combined with --watch")
			case on:
				return f.customers(cmd.Context(), s, cli.InterfaceArg(args), customers, asJSON)
			}
			return f.stats(cmd.Context(), s, cli.InterfaceArg(args), asJSON, watch)
		},
	}
	f.add(cmd)
	all.addAll(cmd, &f, "show all shaped interfaces (the default without IFACE)")
	customers.add(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON, one line per shaper")
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "refresh every second")
	return cmd
}

// bitRate returns the rate between two samples, in bit/s. Counters may have wrapped.
func bitRate(before, after dataplane.Count, dt time.Duration) int64 {
	if dt <= 0 {
		return 0
	}
	const mask = 1<<63 - 1
	return int64(float64((after.Bytes-before.Bytes)&mask) * 8 / dt.Seconds())
}

func (f *liveFlags) stats(ctx context.Context, s cli.Streams, name string, asJSON, watch bool) error {
	pause := kernel.MinReadingAge
	if watch {
		pause = watchInterval
	}
	last := map[string]live.Sample{}
	for round := 0; ; round++ {
		list, err := f.choose(name)
		if err != nil {
			return err
		}
		samples, ready, err := sampleAll(list, last)
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

// samples are two samples of a shaper.
type samples struct{ before, now live.Sample }

// sampleAll samples all shapers. The earlier sample of a shaper is the one in last, or one
// that any process kept. ready reports that every shaper has an earlier sample; those
// without get the current one.
func sampleAll(list []live.Handle, last map[string]live.Sample) (out []samples, ready bool, err error) {
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
		out = append(out, samples{before, now})
	}
	return out, ready, nil
}

func printSamples(s cli.Streams, list []live.Handle, of []samples, asJSON bool, round int, watch bool) error {
	p := newPrinter(s.Out)
	for i, sh := range list {
		if asJSON {
			if err := say.WriteJSON(s.Out, statsOf(sh, of[i].before, of[i].now, lookAtChanges)); err != nil {
				return err
			}
			continue
		}
		if i == 0 && watch && say.IsTerminal(s.Out) {
			p.Printf("\x1b[H\x1b[2J")
		} else if i > 0 || round > 1 {
			p.Printf("\n")
		}
		p.stats(sh, of[i].before, of[i].now)
	}
	return p.Err
}

// statsJSON is the output of stats --json, one line per shaper.
type statsJSON struct {
	statusJSON
	Interval time.Duration    `json:"rate_interval_ns"` // the rates are averages over this time
	Dropped  dataplane.Count  `json:"dropped"`          // by all classes and queues
	Classes  []classStatsJSON `json:"classes"`
	Queues   []queueStatJSON  `json:"queues"`
}

type queueStatJSON struct {
	Name    string `json:"name"`
	DelayNS int64  `json:"delay_ns"`             // current queueing delay; 0 for a queue of a link
	Bytes   int64  `json:"bytes"`                // backlog
	Dropped int64  `json:"dropped"`              // packets dropped by the qdisc, which classes count as queued
	Sent    *int64 `json:"sent_bit_s,omitempty"` // as counted by HTB
	Class   string `json:"class"`                // class that also counts these drops; "" if several classes use the queue
}

type classStatsJSON struct {
	Name string `json:"name"`
	dataplane.Count
	Rate    int64           `json:"rate_bit_s"`
	Green   colorStatsJSON  `json:"green"`
	Yellow  colorStatsJSON  `json:"yellow"`
	Red     colorStatsJSON  `json:"red"`
	Dropped dataplane.Count `json:"dropped"`
	Marked  dataplane.Count `json:"marked"`
	Queued  dataplane.Count `json:"queued"`
	CE      dataplane.Count `json:"ce"`
	Meters  []meterStatJSON `json:"meters"`
}

type colorStatsJSON struct {
	dataplane.Count
	Rate    int64                      `json:"rate_bit_s"`
	Passed  *int64                     `json:"passed_bit_s"` // null if several classes or colors use a link's queue
	Dropped map[string]dataplane.Count `json:"dropped"`      // by reason
	Marked  dataplane.Count            `json:"marked"`
	Queued  dataplane.Count            `json:"queued"`
	CE      dataplane.Count            `json:"ce"` // packets in which Congestion Experienced was set; not included in Marked
}

type meterStatJSON struct {
	Name    string           `json:"name"`
	Type    string           `json:"type"`
	Packets bool             `json:"counts_packets"`
	Per     string           `json:"per,omitempty"` // key of a per-key meter
	Budget  string           `json:"budget,omitempty"`
	Keys    *say.KeyCounts   `json:"keys,omitempty"` // not counted in the kernel
	Buckets []bucketStatJSON `json:"buckets"`        // none for a per-key meter
}

type bucketStatJSON struct {
	Name   string `json:"name"` // Tc, Te or Tp; left for a window; below CIR or below PIR for an average
	Tokens int64  `json:"tokens"`
	Burst  int64  `json:"burst"`
}

// statsOf returns the counters of a shaper, and its rates between two samples.
func statsOf(sh live.Handle, before, now live.Sample, look changesLook) statsJSON {
	seen := interval{sh.Info(), &before, &now}
	out := statsJSON{statusJSON: statusOf(sh, look), Interval: seen.dt(), Dropped: now.Dropped(), Queues: []queueStatJSON{}}
	plan := &sh.Info().Outline
	for i, q := range now.Queues {
		out.Queues = append(out.Queues, queueStatJSON{q.Name, int64(q.Delay), q.Bytes, q.Dropped, seen.sent(i), q.Class})
	}
	dt := seen.dt()
	for i := range now.Stats {
		a, b := &before.Stats[i], &now.Stats[i]
		row := classStatsJSON{Name: say.Unclassified, Count: b.Total(), Rate: bitRate(a.Total(), b.Total(), dt), Meters: []meterStatJSON{}}
		if i < len(plan.Classes) {
			row.Name = plan.Classes[i].Name
		}
		for color, to := range map[meter.Color]*colorStatsJSON{meter.Green: &row.Green, meter.Yellow: &row.Yellow, meter.Red: &row.Red} {
			to.Count, to.Rate = b.Colors[color], bitRate(a.Colors[color], b.Colors[color], dt)
			to.Passed = seen.passed(i, color)
			to.Marked, to.Queued, to.CE = b.Marked[color], b.Queued[color], b.CE[color]
			to.Dropped = map[string]dataplane.Count{}
			for cause := range dataplane.Causes {
				to.Dropped[cause.String()] = b.Drops[color][cause]
			}
		}
		row.Dropped = b.AllDropped()
		row.Marked, row.Queued, row.CE = dataplane.Sum(b.Marked[:]), dataplane.Sum(b.Queued[:]), dataplane.Sum(b.CE[:])
		if i < len(plan.Classes) {
			row.Meters = metersOf(plan, i, &now)
		}
		out.Classes = append(out.Classes, row)
	}
	return out
}

// metersOf returns the state of a class's chain of meters.
func metersOf(plan *dataplane.Outline, class int, now *live.Sample) []meterStatJSON {
	out := []meterStatJSON{}
	for _, i := range plan.Chain(class) {
		m := &plan.Stages[i]
		row := meterStatJSON{Name: m.Name, Type: m.Kind.String(), Packets: m.Packets, Budget: m.BudgetName, Buckets: []bucketStatJSON{}}
		if m.Keyed() {
			row.Per = m.Key.String()
			if now.Keys != nil {
				row.Keys = say.NewKeyCounts(m, i, now.Keys[i])
			}
		} else {
			for b, bucket := range m.Buckets {
				row.Buckets = append(row.Buckets, bucketStatJSON{bucket.Name, now.Tokens[i][b], bucket.Size})
			}
		}
		out = append(out, row)
	}
	return out
}
