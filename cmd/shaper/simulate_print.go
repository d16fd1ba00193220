package main

import (
	"fmt"
	"math"
	"path/filepath"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/report"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/simulate"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// simulateTotals is the output of simulate --json.
type simulateTotals struct {
	Hosts       int     `json:"hosts"`
	Rate        int64   `json:"budget_bit_s"`
	Burst       int64   `json:"burst_bytes"`
	IntervalNS  int64   `json:"interval_ns"`
	DurationNS  int64   `json:"duration_ns"`
	Seed        uint64  `json:"seed"`
	Excess      int64   `json:"worst_excess_bytes"`
	Bound       int64   `json:"bound_bytes"`
	Passed      int64   `json:"passed_bytes"`
	Utilization float64 `json:"utilization"`
	Fairness    float64 `json:"fairness"`
	Calls       int64   `json:"store_calls"`
	PerSecond   float64 `json:"store_calls_per_second"`
	Lost        int64   `json:"lost_calls"`
	Refused     int64   `json:"refused_calls"`
}

func (f *simulateFlags) totals(c simulate.Config, r *simulate.Result) simulateTotals {
	return simulateTotals{
		Hosts: r.Hosts, Rate: c.Terms.Size.Rate[0], Burst: c.Terms.Size.Burst[0],
		IntervalNS: c.Terms.Interval, DurationNS: int64(c.Duration), Seed: c.Seed,
		Excess: wholeBytes(r.Excess), Bound: wholeBytes(r.Bound), Passed: wholeBytes(r.Passed),
		Utilization: round6(r.Utilization), Fairness: round6(r.Fairness), Calls: r.Calls,
		PerSecond: round6(r.CallsPerSecond()), Lost: r.Lost, Refused: r.Refused,
	}
}

// wholeBytes rounds bytes up, ignoring errors of floating point.
func wholeBytes(v float64) int64 { return int64(math.Ceil(v - 1e-3)) }

func round6(v float64) float64 { return math.Round(v*1e6) / 1e6 }

// print prints the result for people.
func (f *simulateFlags) print(s cli.Streams, c simulate.Config, r *simulate.Result) error {
	t := say.NewTable(2, "measure", "value", "bound")
	t.AppendRow([]any{
		"worst excess", say.Grouped(wholeBytes(r.Excess)) + " B", say.Grouped(wholeBytes(r.Bound)) + " B",
	})
	t.AppendRow([]any{"utilization", fmt.Sprintf("%.2f %%", 100*r.Utilization)})
	t.AppendRow([]any{"fairness (Jain)", fmt.Sprintf("%.4f", r.Fairness)})
	t.AppendRow([]any{"store calls per second", say.Grouped(int64(math.Round(r.CallsPerSecond())))})
	t.AppendRow([]any{"lost calls", percentOf(r.Lost, r.Calls)})
	if r.Refused > 0 {
		t.AppendRow([]any{"refused calls", percentOf(r.Refused, r.Calls)})
	}
	t.SuppressTrailingSpaces()
	_, err := fmt.Fprintf(s.Out, "%s, %s bytes of burst, %v of virtual time, seed %d\n\n%s\n",
		titleOf(c, r), say.Grouped(c.Terms.Size.Burst[0]), c.Duration, c.Seed, t.Render())
	return err
}

// titleOf returns the title of a simulation, such as 10 hosts on 1gbit.
func titleOf(c simulate.Config, r *simulate.Result) string {
	return say.Count(r.Hosts, "host") + " on " + budgetRate(c)
}

// budgetRate writes the rate of the budget, such as 1gbit.
func budgetRate(c simulate.Config) string { return meter.BitRate(c.Terms.Size.Rate[0]).String() }

func percentOf(part, whole int64) string {
	if whole == 0 {
		return "-"
	}
	return fmt.Sprintf("%.2f %%", 100*float64(part)/float64(whole))
}

// pictureData returns the data of the picture.
func (f *simulateFlags) pictureData(c simulate.Config, r *simulate.Result) report.Simulation {
	name := titleOf(c, r)
	if f.scenario != "" {
		name = filepath.Base(say.Printable(f.scenario)) + ": " + name
	}
	p := report.Simulation{
		Name: name, Rate: float64(c.Terms.Size.Rate[0]), RateText: budgetRate(c),
		Width: r.Series.Width.Seconds(), Offered: r.Series.Offered, Passed: r.Series.Passed,
		Allowed: r.Series.Allowed, Least: r.Series.Least, Median: r.Series.Median, Most: r.Series.Most,
		Used: fmt.Sprintf("utilization %.2f %%", 100*r.Utilization),
		Excess: fmt.Sprintf("worst excess %s B, bound %s B", say.Grouped(wholeBytes(r.Excess)),
			say.Grouped(wholeBytes(r.Bound))),
		Shares: fmt.Sprintf("fairness %.4f", r.Fairness),
	}
	for _, m := range r.Series.Marks {
		p.Marks = append(p.Marks, report.Mark{At: float64(m.At) / float64(time.Second), What: m.What})
	}
	return p
}
