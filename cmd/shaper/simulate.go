package main

import (
	"cmp"
	"fmt"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/jedib0t/go-pretty/v6/progress"
	"github.com/spf13/cobra"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/budgets"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/output"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/report"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/simulate"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/meter/shared/lease"
)

// simulateFlags are the flags of shaper simulate. A given flag overrides the scenario.
type simulateFlags struct {
	hosts                       int
	budget, burst, rescue, loss string
	interval, duration, delay   time.Duration
	seed                        uint64
	scenario, picture           string
	asJSON                      bool
	given                       func(flag string) bool // reports whether a flag was given
}

const (
	defaultSimulated = 10 // hosts
	simulatedBurst   = 20 * time.Millisecond
)

func newSimulate(s cli.Streams) *cobra.Command {
	var f simulateFlags
	cmd := &cobra.Command{
		Use:     "simulate",
		GroupID: "plan",
		Short:   "Simulate hosts that share a budget on a server, with failures",
		Long: `Run many shapers that share a budget on one store, in virtual time, with the
protocol that shapers use with Redis or Valkey. Without --scenario, each host's
senders offer between nothing and three times the host's part of the budget, and
every second one host in a hundred changes to another rate. In a scenario, hosts
can crash, join and lose the network, and the store can disappear, lose its
data, or be replaced by a replica.

worst excess  bytes that could have passed beyond the budget's rate and burst;
              the bound is the one in docs/SHARING.md for the failures so far
utilization   bytes passed, divided by the smaller of the offered and the
              budget's bytes
fairness      Jain's index of each host's bytes divided by its max-min fair share

The same seed gives the same result.`,
		Example: `  shaper simulate --hosts 1000 --budget 10gbit --duration 10s
  shaper simulate --scenario docs/simulate.yaml --picture simulate.svg`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			f.given = cmd.Flags().Changed
			return f.run(cmd, s)
		},
	}
	flags := cmd.Flags()
	flags.IntVar(&f.hosts, "hosts", defaultSimulated, "simulate this `NUMBER` of hosts")
	flags.StringVar(&f.budget, "budget", "", "share `RATE`, such as 10gbit")
	flags.StringVar(&f.burst, "burst", "",
		"share a burst of `SIZE`, such as 1MiB (default 20ms at the budget's rate)")
	flags.StringVar(&f.scenario, "scenario", "", "read the scenario from `FILE` (YAML)")
	flags.Var(cli.NewTimeFlag(&f.duration, time.Minute), "duration", "simulate `TIME`")
	flags.Var(cli.NewTimeFlag(&f.interval, dataplane.DefaultInterval), "interval",
		"let each host report every `TIME`")
	flags.StringVar(&f.rescue, "rescue", "50%",
		"let all hosts together use `PART` of the budget without the store")
	flags.Var(cli.NewTimeFlag(&f.delay, time.Millisecond), "delay", "delay messages by up to `TIME`")
	flags.StringVar(&f.loss, "loss", "0%", "lose `PART` of the messages")
	flags.Uint64Var(&f.seed, "seed", 1, "seed random choices with `NUMBER`")
	flags.StringVar(&f.picture, "picture", "", "draw utilization and shares over time to `FILE.svg`")
	flags.BoolVar(&f.asJSON, "json", false, "print JSON")
	return cmd
}

func (f *simulateFlags) run(cmd *cobra.Command, s cli.Streams) error {
	if f.picture != "" && filepath.Ext(f.picture) != ".svg" {
		return cli.Usagef("picture %q: the name must end in .svg", f.picture)
	}
	c, err := f.config()
	if err != nil {
		return err
	}
	var picture *output.File
	if f.picture != "" {
		if picture, err = output.Create("picture", f.picture, s.Out, nil); err != nil {
			return err
		}
		defer picture.Abort()
	}
	var done atomic.Int64
	c.Progress = func(d time.Duration) { done.Store(int64(d / time.Second)) }
	endProgress := say.ShowProgress(s.Err, say.Work{
		Name: "simulating", Units: progress.UnitsDefault, Done: &done, All: int64(c.Duration / time.Second),
	})
	r, err := simulate.Run(cmd.Context(), c)
	endProgress()
	if err != nil {
		return err
	}
	if picture != nil {
		if err := picture.Wrap(report.WriteSimulation(picture, f.pictureData(c, r))); err != nil {
			return err
		}
		if err := picture.Commit(); err != nil {
			return err
		}
	}
	if f.asJSON {
		err = say.WriteJSON(s.Out, f.totals(c, r))
	} else {
		err = f.print(s, c, r)
	}
	if err == nil && r.Excess > r.Bound+1 {
		err = fmt.Errorf(
			"the excess is above the documented bound: please report it with the scenario and seed %d",
			c.Seed)
	}
	return err
}

// config combines flags and scenario.
func (f *simulateFlags) config() (c simulate.Config, err error) {
	fail := func(flag string, err error) (simulate.Config, error) {
		return c, cli.Usagef("--%s: %w", flag, err)
	}
	file := &policyfile.Scenario{}
	if f.scenario != "" {
		text, err := cli.ReadText("scenario", f.scenario)
		if err == nil {
			file, err = policyfile.LoadScenario(say.Printable(f.scenario), text)
		}
		if err != nil {
			return c, &cli.UsageError{Err: err}
		}
	}
	c = simulate.Config{
		Hosts: f.hosts, Duration: f.duration, Seed: f.seed, Delay: f.delay, Events: file.Events,
	}
	override(f.given("hosts"), &c.Hosts, file.Hosts)
	override(f.given("duration"), &c.Duration, file.Duration)
	override(f.given("interval"), &f.interval, file.Interval)
	overrideBy(f.given("seed"), &c.Seed, file.Seed)
	overrideBy(f.given("delay"), &c.Delay, file.Delay)
	part, err := policyfile.ParsePart(f.loss)
	if err != nil {
		return fail("loss", err)
	}
	overrideBy(f.given("loss"), &part, file.Loss)
	c.Loss = float64(part.Of(million)) / million
	rescue, err := policyfile.ParsePart(f.rescue)
	if err != nil {
		return fail("rescue", err)
	}
	overrideBy(f.given("rescue"), &rescue, file.Rescue)

	rate, burst := file.Rate, file.Burst
	if f.budget != "" {
		if rate, err = policyfile.ParseRate(f.budget); err != nil {
			return fail("budget", err)
		}
		burst = 0
	}
	if f.burst != "" {
		if burst, err = policyfile.ParseSize(f.burst); err != nil {
			return fail("burst", err)
		}
	}
	switch {
	case rate.Period == 0:
		return c, cli.Usagef(
			"a budget is missing: give --budget RATE, such as 10gbit, or a scenario that has one")
	case rate.Bytes == 0:
		return c, cli.Usagef("the budget is 0: give a rate above zero")
	case c.Hosts < 1 || c.Hosts > dataplane.MaxHosts:
		return c, cli.Usagef("--hosts: %d is not between 1 and %d", c.Hosts, dataplane.MaxHosts)
	case f.interval < dataplane.MinInterval || f.interval > dataplane.MaxInterval:
		return c, cli.Usagef("--interval: %v is not between %v and %v", f.interval, dataplane.MinInterval,
			dataplane.MaxInterval)
	case c.Duration <= 0 || c.Duration > maxSimulated:
		return c, cli.Usagef("--duration: %v is not between 0 and %v", c.Duration, maxSimulated)
	case c.Delay > 10*f.interval:
		return c, cli.Usagef("--delay: %v is more than ten intervals", c.Delay)
	}
	if burst == 0 {
		burst, _ = rate.Burst(simulatedBurst)
	}
	bits, _ := rate.Burst(8 * time.Second)
	c.Terms = lease.Terms{
		Size:   lease.Amounts{Rate: [2]int64{bits}, Burst: [2]int64{burst}},
		Weight: 1, Floor: budgets.InBytes.Floor(), Rescue: rescue.Of(million),
		Hosts: int64(cmp.Or(file.Assumed, dataplane.DefaultHosts)), Interval: int64(f.interval),
		Deadline: int64(f.interval / 2),
	}
	if err := c.Terms.Check(); err != nil {
		return c, cli.Usagef("the budget: %w", err)
	}
	f.demand(&c, file, rate)
	return c, nil
}

const (
	million      = 1_000_000
	maxSimulated = 30 * 24 * time.Hour
)

// demand sets the demand of the scenario, or one that goes up and down.
func (f *simulateFlags) demand(c *simulate.Config, file *policyfile.Scenario, rate meter.Rate) {
	most := rate
	most.Bytes, most.Period = 3*rate.Bytes, rate.Period*time.Duration(c.Hosts)
	c.Demand = policyfile.Demand{Least: meter.Rate{Period: 1}, Most: most}
	if file.Demand != nil {
		c.Demand = *file.Demand
	}
	if f.scenario == "" {
		c.Events = []policyfile.Event{{
			At: time.Second, Every: time.Second, Does: "demand", Demand: c.Demand,
			Who: policyfile.Who{Part: &dataplane.Fraction{Num: 1, Den: 100}},
		}}
	}
}

// override sets to from the scenario, unless the flag was given or the scenario omits it.
func override[T comparable](flag bool, to *T, scenario T) {
	if !flag {
		*to = cmp.Or(scenario, *to)
	}
}

// overrideBy is override for values that are nil if the scenario omits them.
func overrideBy[T any](flag bool, to *T, scenario *T) {
	if !flag && scenario != nil {
		*to = *scenario
	}
}
