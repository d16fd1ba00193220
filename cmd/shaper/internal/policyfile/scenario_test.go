package policyfile

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"

	"github.com/a-seed-32e5a53f/shaper/meter"
)

func TestScenario(t *testing.T) {
	t.Parallel()
	s, err := LoadScenario("s.yaml", []byte(`
hosts: 100
assumed-hosts: 50
budget: {rate: 1gbit, burst: 1MiB}
interval: 50ms
rescue: 20%
duration: 1h
seed: 7
delay: 0s
loss: 0.5%
demand: [1mbit, 2mbit]
events:
  - {at: 0s, crash: 3, for: 5s}
  - &cut {every: 1min, until: 10min, partition: 10%, ways: requests}
  - *cut
  - {at: 1s, heal: all}
  - {at: 1s, leave: host-7}
  - {at: 1s, hang: 1}
  - {at: 1s, stray: 1}
  - {at: 1s, join: 20}
  - {at: 1s, demand: 5mbit, hosts: 2}
  - {at: 1s, demand: [0bit, 5mbit]}
  - {at: 1s, store: down, for: 1s}
  - {at: 1s, store: flush}
  - {at: 1s, failover: current}
  - {at: 1s, failover: 2s, waits: no}
  - {at: 1s, clock: 5s}
  - {at: 1s, clock: -5s}
`))
	if err != nil {
		t.Fatal(err)
	}
	if s.Hosts != 100 || s.Assumed != 50 || s.Rate.Cmp(meter.BitRate(1e9)) != 0 || s.Burst != 1<<20 ||
		s.Interval != 50*time.Millisecond ||
		s.Rescue.Of(100) != 20 || s.Duration != time.Hour || *s.Seed != 7 || *s.Delay != 0 ||
		s.Loss.Of(1000) != 5 ||
		s.Demand.Least.Cmp(meter.BitRate(1e6)) != 0 || s.Demand.Most.Cmp(meter.BitRate(2e6)) != 0 {
		t.Errorf("got %+v", s)
	}
	for i, want := range []string{
		"crash", "partition", "partition", "heal", "leave", "hang", "stray", "join", "demand", "demand", "down", "flush", "failover", "failover", "clock", "clock",
	} {
		if got := s.Events[i].Does; got != want {
			t.Errorf("event %d does %s, want %s", i, got, want)
		}
	}
	e := s.Events
	switch {
	case e[0].At != 0 || e[0].Every != 0 || e[0].For != 5*time.Second || e[0].Who.Number != 3,
		e[0].Place != "s.yaml:13:5",
		e[1].At != time.Minute || e[1].Every != time.Minute || e[1].Until != 10*time.Minute ||
			e[1].Who.Part.Of(100) != 10 || e[1].Ways != [2]bool{
			true, false,
		},
		e[3].Who.Part.Of(100) != 100, e[4].Who.Name != "host-7", e[7].Who.Number != 20,
		e[8].Who.Number != 2 || e[8].Demand.Least != e[8].Demand.Most,
		e[9].Who.Part.Of(100) != 100 || e[9].Demand.Least.Bytes != 0, e[12].Behind != 0 || e[12].Blind,
		e[13].Behind != 2*time.Second || !e[13].Blind,
		e[14].Jump != 5*time.Second, e[15].Jump != -5*time.Second:
		t.Errorf("got %+v", e)
	}
}

// TestScenarioErrors checks the place and the text of each error of a scenario.
func TestScenarioErrors(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                                       "s.yaml:1:1: the scenario is empty",
		"hosts: 1\n---\nhosts: 2":                "s.yaml:3:1: a second document begins: a scenario is one document",
		"- 1":                                    "s.yaml:1:1: a scenario must be a mapping, not a list",
		"host: 3":                                `s.yaml:1:1: unknown key "host" in a scenario: want one of assumed-hosts, budget, delay, demand, duration, events, hosts, interval, loss, rescue, seed`,
		"hosts: 0":                               "s.yaml:1:8: hosts: 0 is not between 1 and 4096",
		"budget: 10mbps":                         `s.yaml:1:9: rate: "mbps" is ambiguous`,
		"budget: {rate: 1gbit, burst: 1mb}":      "s.yaml:1:30: burst: ",
		"rescue: full":                           `s.yaml:1:9: rescue: "full" is not a part from 0% to 100%, such as 10%`,
		"demand: [1mbit]":                        "s.yaml:1:9: demand: want a rate, or [least, most]",
		"demand: [2mbit, 1mbit]":                 "s.yaml:1:9: demand: 1mbit is less than 2mbit",
		"events: 3":                              `s.yaml:1:9: events must be a list, not "3"`,
		"events:\n- 3":                           `s.yaml:2:3: an event must be a mapping, not "3"`,
		"events:\n- {at: 1s}":                    "s.yaml:2:3: an event needs an action: one of clock, ",
		"events:\n- {crash: 1}":                  "s.yaml:2:3: an event needs a time: at or every",
		"events:\n- {at: 1s, crash: 1, hang: 1}": "s.yaml:2:28: an event does one thing: crash or hang",
		"events:\n- {at: 1s, crash: some}":       `s.yaml:2:19: crash: "some" selects no hosts: write a number, a part such as 10%, all, or a name such as host-7`,
		"events:\n- {at: 1s, crash: 0}":          `s.yaml:2:19: crash: "0" selects no hosts`,
		"events:\n- {at: 1s, crash: 101%}":       `s.yaml:2:19: crash: "101%" is not a part`,
		"events:\n- {at: 1s, until: 2s, crash: 1}":          "s.yaml:2:19: until needs every",
		"events:\n- {every: 999us, crash: 1}":               "s.yaml:2:11: every: 999us is less than 1ms",
		"events:\n- {every: 0s, crash: 1}":                  "s.yaml:2:11: every must be above zero",
		"events:\n- {at: 1s, join: 2, for: 1s}":             "s.yaml:2:26: for cannot be combined with join",
		"events:\n- {at: 1s, crash: 2, ways: both}":         "s.yaml:2:28: ways cannot be combined with crash",
		"events:\n- {at: 1s, crash: 2, hosts: 3}":           "s.yaml:2:29: hosts cannot be combined with crash",
		"events:\n- {at: 1s, store: gone}":                  `s.yaml:2:19: store: "gone" is not one of down, flush`,
		"events:\n- {at: 1s, failover: now}":                `s.yaml:2:22: failover (current, or the lag of the replica): "now" is not a time`,
		"events:\n- {at: 1s, failover: current, waits: no}": "s.yaml:2:38: waits needs a failover to a replica that is behind",
		"events:\n- {at: 1s, clock: soon}":                  `s.yaml:2:19: clock: "soon" is not a time`,
		"hosts: [\n":                                        "s.yaml:",
	} {
		_, err := LoadScenario("s.yaml", []byte(text))
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q: got %v, want %s", text, err, want)
		}
	}
}

// TestScenarioOfDocs loads the example of docs/SHARING.md.
func TestScenarioOfDocs(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../../../docs/simulate.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := LoadScenario("simulate.yaml", text); err != nil {
		t.Error(err)
	}
}

// FuzzWho parses the hosts of events and the parts of replies. A part is from 0 to 1.
func FuzzWho(f *testing.F) {
	for _, s := range []string{"1", "all", "10%", "0.5%", "host-7", "100%", "1e3%", "-1%", "65536"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		part := func(p dataplane.Fraction) {
			if p.Den == 0 || p.Num > p.Den {
				t.Errorf("%q is %d/%d", s, p.Num, p.Den)
			}
		}
		if p, err := ParsePart(s); err == nil {
			part(p)
		}
		w, err := parseWho(s)
		if err != nil {
			return
		}
		if w.Part != nil {
			part(*w.Part)
		}
		if w.Part == nil && w.Name == "" && w.Number <= 0 {
			t.Errorf("%q selects %+v", s, w)
		}
	})
}
