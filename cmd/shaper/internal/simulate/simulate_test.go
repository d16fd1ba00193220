package simulate

import (
	"context"
	"errors"
	"math"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/meter/shared/lease"
)

// config returns a simulation of hosts that share 1 Gbit/s, with the events of a scenario.
func config(t *testing.T, events string) Config {
	t.Helper()
	c := Config{
		Hosts: 20, Duration: 20 * time.Second, Seed: 1, Delay: time.Millisecond,
		Demand: policyfile.Demand{Least: meter.BitRate(100e6), Most: meter.BitRate(100e6)},
		Terms: lease.Terms{
			Size: lease.Amounts{Rate: [2]int64{1e9}, Burst: [2]int64{1 << 20}}, Weight: 1, Floor: 3028,
			Rescue: 100_000, Hosts: 16, Interval: 100e6, Deadline: 50e6,
		},
	}
	if events != "" {
		s, err := policyfile.LoadScenario("test", []byte("events:\n"+events))
		if err != nil {
			t.Fatal(err)
		}
		c.Events = s.Events
	}
	return c
}

func mustRun(t *testing.T, c Config) *Result {
	t.Helper()
	r, err := Run(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestEvents checks the effect of each event on the series.
func TestEvents(t *testing.T) {
	t.Parallel()
	const at = 10 // time of the event, s
	for _, tt := range []struct {
		event string
		sees  func(r *Result, before, after func([]float64) float64) bool
	}{
		{"", func(r *Result, before, after func([]float64) float64) bool {
			return r.Utilization > 0.999 && r.Fairness > 0.9999 && r.Excess == 0 && r.Bound == 0 &&
				after(r.Series.Median) > 49e6 && len(r.Series.Marks) == 0
		}},
		{"- {at: 10s, crash: 50%}", func(r *Result, _, after func([]float64) float64) bool {
			return r.Series.Up[len(r.Series.Up)-1] == 10 && after(r.Series.Median) > 80e6
		}},
		{"- {at: 10s, crash: 50%, for: 1s}", func(r *Result, _, after func([]float64) float64) bool {
			return r.Series.Up[len(r.Series.Up)-1] == 20 && after(r.Series.Median) > 49e6
		}},
		{"- {at: 10s, leave: 50%}", func(r *Result, _, after func([]float64) float64) bool {
			// no rescue share is reserved
			return r.Series.Up[len(r.Series.Up)-1] == 10 && after(r.Series.Median) > 95e6
		}},
		{"- {at: 10s, join: 20}", func(r *Result, _, after func([]float64) float64) bool {
			return r.Hosts == 40 && r.Series.Up[len(r.Series.Up)-1] == 40 && after(r.Series.Median) < 26e6
		}},
		{"- {at: 10s, partition: host-3}", func(r *Result, before, after func([]float64) float64) bool {
			return before(r.Series.Least) > 49e6 && after(r.Series.Least) == 5e6 &&
				r.Series.Rescued[len(r.Series.Rescued)-1] == 1
		}},
		{"- {at: 10s, partition: all, ways: replies}\n- {at: 11s, heal: all}", func(r *Result, _, after func([]float64) float64) bool {
			return r.Utilization < 0.97 && after(r.Series.Least) > 49e6
		}},
		{"- {at: 10s, hang: 50%}", func(r *Result, _, after func([]float64) float64) bool {
			return r.Series.Rescued[len(r.Series.Rescued)-1] == 10 && after(r.Series.Most) > 90e6
		}},
		{"- {at: 10s, store: down}", func(r *Result, _, after func([]float64) float64) bool {
			return math.Abs(after(r.Series.Passed)-1e8) < 1e6 && r.Lost > 1000
		}},
		{"- {at: 10s, store: down, for: 2s}", func(r *Result, _, after func([]float64) float64) bool {
			return after(r.Series.Passed) > 0.99e9 && r.Lost > 100
		}},
		{"- {at: 10s, store: flush}\n- {at: 10s, demand: 0bit, hosts: 50%}", func(r *Result, _, after func([]float64) float64) bool {
			return r.Excess == 0 && after(r.Series.Passed) > 0.99e9 && r.Utilization < 0.99
		}},
		{"- {at: 10s, failover: current}", func(r *Result, _, after func([]float64) float64) bool {
			return r.Excess == 0 && r.Bound == 0 && after(r.Series.Passed) > 0.99e9
		}},
		{"- {at: 10s, failover: 3s, waits: no}", func(r *Result, _, _ func([]float64) float64) bool {
			return r.Bound > 40e6 && r.Excess <= r.Bound
		}},
		{"- {at: 5s, failover: 3s, waits: no}\n- {at: 5s, stray: 50%, for: 5s}", func(r *Result, before, after func([]float64) float64) bool {
			return r.Excess > 10e6 && r.Excess <= r.Bound && before(r.Series.Passed) > 1.4e9 &&
				after(r.Series.Passed) < 1.01e9
		}},
		{"- {at: 10s, clock: -5s}", func(r *Result, _, after func([]float64) float64) bool {
			return r.Bound > 10e6 && r.Excess == 0 && after(r.Series.Passed) > 0.99e9
		}},
		{"- {at: 10s, demand: 1mbit, hosts: 50%}", func(r *Result, _, after func([]float64) float64) bool {
			return after(r.Series.Offered) == 1.01e9 && after(r.Series.Most) > 98e6
		}},
		{"- {at: 10s, demand: 1mbit, hosts: 50%, for: 1s}", func(r *Result, _, after func([]float64) float64) bool {
			return after(r.Series.Offered) == 2e9
		}},
		{"- {every: 1s, until: 10s, demand: 10mbit, hosts: 1}", func(r *Result, _, after func([]float64) float64) bool {
			return after(r.Series.Offered) < 1.4e9 && after(r.Series.Offered) >= 1.1e9
		}},
	} {
		c := config(t, tt.event)
		r := mustRun(t, c)
		mean := func(from, to int, v []float64) float64 {
			if from, to = min(from, len(v)-1), min(to, len(v)); from < to {
				v = v[from:to]
			}
			sum := 0.0
			for _, x := range v {
				sum += x
			}
			return math.Round(sum / float64(len(v)))
		}
		n := len(r.Series.Passed)
		before := func(v []float64) float64 { return mean(n*8/20, n*at/20-1, v) }
		after := func(v []float64) float64 { return mean(n*17/20, n, v) }
		if !tt.sees(r, before, after) {
			t.Errorf("%q: utilization %.4f, fairness %.4f, excess %.0f of %.0f, lost %d; passed %.0f, offered %.0f, least %.0f, median %.0f, most %.0f, up %d, rescued %d",
				tt.event,
				r.Utilization, r.Fairness, r.Excess, r.Bound, r.Lost, after(r.Series.Passed),
				after(r.Series.Offered), after(r.Series.Least), after(r.Series.Median), after(r.Series.Most),
				r.Series.Up[n-1], r.Series.Rescued[n-1])
		}
	}
}

// TestSameSeed checks that the same seed gives the same result, and another seed another one.
func TestSameSeed(t *testing.T) {
	t.Parallel()
	c := config(t, "- {every: 1s, crash: 2, for: 1s}\n- {every: 1s, demand: [0bit, 200mbit], hosts: 3}")
	c.Loss = 0.01
	first := mustRun(t, c)
	if again := mustRun(t, c); !reflect.DeepEqual(first, again) {
		t.Errorf("got %+v, then %+v with the same seed", first, again)
	}
	c.Seed++
	if other := mustRun(t, c); other.Passed == first.Passed {
		t.Error("got the same result for another seed")
	}
}

func TestRunErrors(t *testing.T) {
	t.Parallel()
	if _, err := Run(t.Context(), config(t, "- {at: 1s, crash: host-20}")); err == nil ||
		err.Error() != "test:2:3: no host is named host-20 at 1s" {
		t.Errorf("got %v, want that no host is named host-20", err)
	}
	if _, err := Run(t.Context(), config(t, "- {every: 1ms, join: 4096}")); err == nil ||
		err.Error() != "test:2:3: more than 16384 hosts at 4ms" {
		t.Errorf("got %v, want more than 16384 hosts", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("enough")
	c := config(t, "")
	c.Duration = 1000 * time.Hour
	c.Progress = func(d time.Duration) {
		if d > time.Second {
			cancel(why)
		}
	}
	if _, err := Run(ctx, c); !errors.Is(err, why) {
		t.Errorf("got %v, want %v", err, why)
	}
}

// TestFairness checks hosts of which some pass nothing.
func TestFairness(t *testing.T) {
	t.Parallel()
	c := config(t, "- {at: 0s, partition: 50%}")
	c.Terms.Rescue = 0
	if r := mustRun(t, c); math.Abs(r.Fairness-0.5) > 0.02 {
		t.Errorf("got fairness %.4f, want 0.5: half of the hosts have no share", r.Fairness)
	}
	for _, tt := range []struct {
		wants       []int64
		rate, level int64
	}{
		{[]int64{10, 10}, 10, 5},
		{[]int64{100, 2, 100}, 100, 49},
		{[]int64{60, 90}, 160, math.MaxInt64},
		{[]int64{30, 30, 30}, 90, 30},
		{nil, 90, math.MaxInt64},
	} {
		if got := level(tt.wants, tt.rate); got != tt.level {
			t.Errorf("%v of %d: level %d, want %d", tt.wants, tt.rate, got, tt.level)
		}
	}
}

// TestPartOfHosts checks that a part of the hosts is at least one host.
func TestPartOfHosts(t *testing.T) {
	t.Parallel()
	c := config(t, "- {at: 1s, crash: 1%}\n- {at: 2s, crash: 0%}")
	if r := mustRun(t, c); r.Series.Up[len(r.Series.Up)-1] != 19 {
		t.Errorf("got %d hosts, want 19", r.Series.Up[len(r.Series.Up)-1])
	}
	if r := mustRun(t, c); len(r.Series.Marks) != 2 || !strings.HasPrefix(r.Series.Marks[0].What, "crash") {
		t.Errorf("got %v, want two marks, first a crash", r.Series.Marks)
	}
}

// FuzzScenario runs any scenario briefly and checks that the excess is within its bound.
func FuzzScenario(f *testing.F) {
	docs, err := os.ReadFile("../../../../docs/simulate.yaml")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(string(docs))
	f.Add("events:\n- {every: 50ms, crash: 1, for: 30ms}\n- {every: 70ms, until: 1s, partition: all, ways: replies, for: 60ms}\n- {at: 300ms, store: flush}")
	f.Add("events:\n- {at: 1s, failover: 500ms, waits: no}\n- {at: 1s, stray: 50%, for: 300ms}\n- {at: 1.5s, clock: -1s}\n- {at: 10ms, join: 3}\n- {at: 20ms, leave: host-2}")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := policyfile.LoadScenario("fuzz", []byte(text))
		if err != nil || len(s.Events) > 20 {
			return
		}
		c := config(t, "")
		c.Hosts, c.Duration, c.Events = 5, 2*time.Second, s.Events
		for i := range c.Events {
			e := &c.Events[i]
			e.Every = max(e.Every, time.Duration(min(e.Every, 1))*20*time.Millisecond)
			if e.Does == "join" {
				e.Who.Number = min(e.Who.Number, 5)
			}
		}
		r, err := Run(t.Context(), c)
		if err != nil && strings.HasPrefix(err.Error(), "fuzz:") {
			return
		}
		if err != nil || r.Excess > r.Bound+1 {
			t.Errorf("got %v and %.0f bytes beyond the budget, want at most %.0f", err, r.Excess, r.Bound)
		}
	})
}
