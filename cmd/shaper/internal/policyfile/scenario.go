package policyfile

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// Scenario is a simulation of hosts that share a budget. Keys absent from the file are zero.
type Scenario struct {
	Hosts    int
	Rate     meter.Rate // rate of the budget
	Burst    int64      // burst of the budget, bytes
	Interval time.Duration
	Rescue   *dataplane.Fraction
	Assumed  int           // number of hosts assumed by a host before its first reply
	Duration time.Duration // simulated time
	Seed     *uint64
	Delay    *time.Duration      // maximum delay of a message between a host and the store
	Loss     *dataplane.Fraction // part of the messages to be lost
	Demand   *Demand             // demand of each host at the start
	Events   []Event
}

// Demand is a range of rates. Each host draws one, which its senders offer.
type Demand struct{ Least, Most meter.Rate }

// Event is an event of a simulation.
type Event struct {
	Place  string        // place in the file
	At     time.Duration // time of the first occurrence
	Every  time.Duration // interval of further occurrences; 0: none
	Until  time.Duration // time of the last occurrence; 0: the end of the simulation
	For    time.Duration // time after which the event is undone; 0: never
	Does   string        // action, such as crash
	Who    Who
	Demand Demand
	Ways   [2]bool       // partition: lost requests, lost replies
	Behind time.Duration // failover: lag of the replica
	Blind  bool          // failover: hosts used increases unknown to the replica
	Jump   time.Duration // jump of the store's clock
}

// Who selects the hosts of an event: a number or a part of them, at random, or one by its
// name.
type Who struct {
	Number int
	Part   *dataplane.Fraction
	Name   string
}

// LoadScenario reads a scenario. The returned error joins all errors, with their places.
func LoadScenario(name string, text []byte) (*Scenario, error) {
	l, root, err := read(name, text, "scenario")
	if err != nil {
		return nil, err
	}
	s := &Scenario{}
	if l.checkAliases(root) {
		l.scenario(s, root)
	}
	if err := l.joined(); err != nil {
		return nil, err
	}
	return s, nil
}

func (l *loader) scenario(s *Scenario, root *yaml.Node) {
	l.mapping(root, "a scenario", keys{
		{"hosts", func(n *yaml.Node) { s.Hosts = l.positive(n, "hosts", dataplane.MaxHosts) }},
		{
			"assumed-hosts",
			func(n *yaml.Node) { s.Assumed = l.positive(n, "assumed-hosts", dataplane.MaxHosts) },
		},
		{"budget", func(n *yaml.Node) { l.size(s, n) }},
		{"interval", func(n *yaml.Node) { s.Interval, _ = parsed(l, n, "interval", ParseDuration) }},
		{"rescue", func(n *yaml.Node) { s.Rescue = pointer(parsed(l, n, "rescue", ParsePart)) }},
		{"duration", func(n *yaml.Node) { s.Duration, _ = parsed(l, n, "duration", ParseDuration) }},
		{"seed", func(n *yaml.Node) { s.Seed = pointer(parsed(l, n, "seed", parseSeed)) }},
		{"delay", func(n *yaml.Node) { s.Delay = pointer(parsed(l, n, "delay", ParseDuration)) }},
		{"loss", func(n *yaml.Node) { s.Loss = pointer(parsed(l, n, "loss", ParsePart)) }},
		{"demand", func(n *yaml.Node) { s.Demand = pointer(l.demand(n)) }},
		{"events", func(n *yaml.Node) {
			if n.Kind != yaml.SequenceNode {
				l.fail(n, "events must be a list, not %s", kindName(n))
				return
			}
			for _, n := range n.Content {
				s.Events = append(s.Events, l.event(target(n)))
			}
		}},
	})
}

// pointer returns a pointer to v, or nil if ok is false.
func pointer[T any](v T, ok bool) *T {
	if !ok {
		return nil
	}
	return &v
}

// ParsePart reads a part of a whole, such as 10%.
func ParsePart(s string) (dataplane.Fraction, error) {
	share, err := parseShare(s)
	if err != nil || !strings.HasSuffix(s, "%") {
		return share, fmt.Errorf("%q is not a part from 0%% to 100%%, such as 10%%", s)
	}
	return share, nil
}

// size reads the size of a budget: a rate, or a mapping with rate and burst.
func (l *loader) size(s *Scenario, n *yaml.Node) {
	rate := func(n *yaml.Node) { s.Rate, _ = parsed(l, n, "rate", ParseRate) }
	if n.Kind == yaml.ScalarNode {
		rate(n)
		return
	}
	l.mapping(n, "budget", keys{
		{"rate", rate},
		{"burst", func(n *yaml.Node) { s.Burst, _ = parsed(l, n, "burst", ParseSize) }},
	})
}

// demand reads a rate, or a list of the lowest and the highest rate.
func (l *loader) demand(n *yaml.Node) (d Demand, ok bool) {
	if n.Kind != yaml.SequenceNode {
		d.Least, ok = parsed(l, n, "demand", ParseRate)
		return Demand{d.Least, d.Least}, ok
	}
	if len(n.Content) != 2 {
		l.fail(n, "demand: want a rate, or [least, most]")
		return d, false
	}
	least, ok := parsed(l, n.Content[0], "demand", ParseRate)
	most, ok2 := parsed(l, n.Content[1], "demand", ParseRate)
	if ok && ok2 && most.Cmp(least) < 0 {
		l.fail(n, "demand: %s is less than %s", n.Content[1].Value, n.Content[0].Value)
		return d, false
	}
	return Demand{least, most}, ok && ok2
}

// parseWho reads a selection of hosts: 3, 10%, all, or host-7.
func parseWho(s string) (Who, error) {
	var w Who
	switch n, err := strconv.ParseUint(s, 10, 16); {
	case err == nil && n > 0:
		w.Number = int(n)
		return w, nil
	case s == "all":
		w.Part = &dataplane.Fraction{Num: 1, Den: 1}
		return w, nil
	case strings.HasSuffix(s, "%"):
		part, err := ParsePart(s)
		w.Part = &part
		return w, err
	}
	if rest, ok := strings.CutPrefix(s, "host-"); ok {
		if _, err := strconv.ParseUint(rest, 10, 16); err == nil {
			w.Name = s
			return w, nil
		}
	}
	return w, fmt.Errorf(
		"%q selects no hosts: write a number, a part such as 10%%, all, or a name such as host-7", s)
}

// event reads an event.
func (l *loader) event(n *yaml.Node) Event {
	e := Event{Place: l.label(placeOf(n))}
	options := map[string]*yaml.Node{}
	does := func(word string, n *yaml.Node) bool {
		if e.Does != "" {
			l.fail(n, "an event does one thing: %s or %s", e.Does, word)
			return false
		}
		e.Does = word
		return true
	}
	hosts := func(word string) func(*yaml.Node) {
		return func(n *yaml.Node) {
			if does(word, n) {
				e.Who, _ = parsed(l, n, word, parseWho)
			}
		}
	}
	span := func(to *time.Duration, what string) func(*yaml.Node) {
		return func(n *yaml.Node) {
			options[what] = n
			d, ok := parsed(l, n, what, ParseDuration)
			switch {
			case !ok:
			case d == 0 && what != "at":
				l.fail(n, "%s must be above zero", what)
			case what == "every" && d < time.Millisecond:
				l.fail(n, "every: %s is less than 1ms", n.Value)
			}
			*to = d
		}
	}
	known := keys{
		{"at", span(&e.At, "at")},
		{"every", span(&e.Every, "every")},
		{"until", span(&e.Until, "until")},
		{"for", span(&e.For, "for")},
		{"hosts", func(n *yaml.Node) { options["hosts"] = n; e.Who, _ = parsed(l, n, "hosts", parseWho) }},
		{"demand", func(n *yaml.Node) { does("demand", n); e.Demand, _ = l.demand(n) }},
		{"join", func(n *yaml.Node) {
			if does("join", n) {
				e.Who.Number = l.positive(n, "join", dataplane.MaxHosts)
			}
		}},
		{"store", func(n *yaml.Node) {
			word, _ := l.word(n, "store", "down", "flush")
			does(cmp.Or(word, "store"), n)
		}},
		{"failover", func(n *yaml.Node) {
			does("failover", n)
			if n.Value != "current" {
				e.Behind, _ = parsed(l, n, "failover (current, or the lag of the replica)", ParseDuration)
			}
		}},
		{"clock", func(n *yaml.Node) {
			does("clock", n)
			e.Jump, _ = parsed(l, n, "clock", parseJump)
		}},
		{"ways", func(n *yaml.Node) {
			options["ways"] = n
			word, _ := l.word(n, "ways", "both", "requests", "replies")
			e.Ways = [2]bool{word != "replies", word != "requests"}
		}},
		{"waits", func(n *yaml.Node) {
			options["waits"] = n
			e.Blind = l.second(n, "waits", "yes", "no")
		}},
	}
	for _, word := range []string{"crash", "leave", "hang", "partition", "heal", "stray"} {
		known = append(known, entry{word, hosts(word)})
	}
	if !l.mapping(n, "an event", known) {
		return e
	}
	l.checkEvent(n, &e, options)
	return e
}

// actionsOf lists the actions for each option. at, every and until can be combined with all.
var actionsOf = map[string]string{
	"hosts": "demand",
	"for":   "demand, crash, hang, partition, stray, down",
	"ways":  "partition",
	"waits": "failover",
}

func (l *loader) checkEvent(n *yaml.Node, e *Event, options map[string]*yaml.Node) {
	if e.Does == "" {
		l.fail(n,
			"an event needs an action: one of clock, crash, demand, failover, hang, heal, join, leave, partition, store, stray")
		return
	}
	if options["at"] == nil && options["every"] == nil {
		l.fail(n, "an event needs a time: at or every")
	}
	if options["at"] == nil {
		e.At = e.Every
	}
	if options["until"] != nil && options["every"] == nil {
		l.fail(options["until"], "until needs every")
	}
	for _, option := range sorted(actionsOf) {
		if at := options[option]; at != nil &&
			!strings.Contains(", "+actionsOf[option]+",", ", "+e.Does+",") {
			l.fail(at, "%s cannot be combined with %s", option, e.Does)
		}
	}
	if e.Does == "demand" && options["hosts"] == nil {
		e.Who.Part = &dataplane.Fraction{Num: 1, Den: 1}
	}
	if e.Does == "partition" && options["ways"] == nil {
		e.Ways = [2]bool{true, true}
	}
	if options["waits"] != nil && e.Behind == 0 {
		l.fail(options["waits"], "waits needs a failover to a replica that is behind")
	}
}

// parseJump reads a jump of a clock, such as 5s or -5s.
func parseJump(s string) (time.Duration, error) {
	rest, back := strings.CutPrefix(s, "-")
	d, err := ParseDuration(strings.TrimPrefix(rest, "+"))
	if back {
		d = -d
	}
	return d, err
}
