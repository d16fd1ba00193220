package main

import (
	"context"
	"sync"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/simulate"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/meter/shared/lease"
)

const hour = `
events:
  - {every: 1s, demand: [0bit, 30mbit], hosts: 1%}
  - {every: 1min, crash: 1, for: 5s}
  - {every: 1min, at: 30s, partition: 1, for: 20s}
`

// simulateFigures simulates once, because that takes more than a minute and the result is
// always the same.
func simulateFigures() []figure {
	run := sync.OnceValues(func() (*simulate.Result, error) {
		s, err := policyfile.LoadScenario("hour", []byte(hour))
		if err != nil {
			return nil, err
		}
		return simulate.Run(context.Background(), simulate.Config{
			Hosts: 1000, Duration: time.Hour, Seed: 1, Delay: 2 * time.Millisecond,
			Demand: policyfile.Demand{Least: meter.Rate{Period: 1}, Most: meter.BitRate(30e6)},
			Terms: lease.Terms{
				Size: lease.Amounts{Rate: [2]int64{10e9}, Burst: [2]int64{16 << 20}}, Weight: 1, Floor: 3028,
				Rescue: 100_000, Hosts: 16, Interval: int64(100 * time.Millisecond),
				Deadline: int64(50 * time.Millisecond),
			},
			Events: s.Events,
		})
	})
	of := func(value func(*simulate.Result) float64) side {
		return onSource(run, func(r *simulate.Result) (float64, error) { return value(r), nil })
	}
	const what = "1,000 simulated hosts, 1 h, a crash and a partition every minute: "
	beyond := func(r *simulate.Result) float64 { return max(r.Excess-r.Bound, 0) }
	utilized := func(r *simulate.Result) float64 { return 100 * r.Utilization }
	used := amount(what+"utilization", 98, 99, " %", of(utilized), nil)
	used.more = true
	return []figure{amount(what+"excess beyond the documented bound", 0, 0, " B", of(beyond), nil), used}
}
