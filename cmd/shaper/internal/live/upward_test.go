package live

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/changes"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
)

// directedShaper is a fakeShaper with rates of customers, and of link ap.
type directedShaper struct {
	*fakeShaper
	rates map[string]string
}

// show returns the rates of customers a and b, and that of the link.
func (s *directedShaper) show() string {
	return fmt.Sprintf("a %s, b %s, ap %s", s.rates["a"], s.rates["b"], s.rates["ap"])
}

func (s *directedShaper) use(plan *compiled.Plan) {
	plan = plan.For(s.about.Direction)
	for i := range plan.Customers.Of {
		service := plan.Customers.Service(uint32(i + 1))
		s.rates[plan.Customers.Source.List[i].Name] = service.LinkQueue.Rate.String()
	}
	_ = s.SetRates(plan)
}

func (s *directedShaper) SetRates(plan *compiled.Plan) error {
	s.rates["ap"] = plan.For(s.about.Direction).Links[0].Rate.String()
	return nil
}

func (s *directedShaper) SetCustomerPlans(
	list []compiled.CustomerService, amended func() *compiled.Plan,
) error {
	for _, c := range list {
		s.rates[c.Name] = c.Plan.LinkQueue.Rate.String()
	}
	return s.fakeShaper.SetCustomerPlans(list, amended)
}

// TestDirections changes the rates of customers and of a link in one direction, and in both, and uses up the
// one quota of both directions.
func TestDirections(t *testing.T) {
	dir := t.TempDir()
	const rows = "customer,address,plan,down,up\na,10.0.0.1,home,,\nb,10.0.0.2,home,40mbit,\n"
	if err := os.WriteFile(filepath.Join(dir, "c.csv"), []byte(rows), 0o600); err != nil {
		t.Fatal(err)
	}
	policy, err := policyfile.Source{Name: "policy", Path: filepath.Join(dir, "policy.yaml"), Text: `
customers: {file: c.csv}
classes: [{name: customers, per: customer, meter: plan}]
links: {ap: {rate: {down: 90mbit, up: 9mbit}}}
plans:
  home:
    queue: {link: ap, rate: {down: 50mbit, up: 5mbit}, limit: 50ms}
    quota: {limit: 1kB, every: hour, then: slow}
  slow: {queue: {link: ap, rate: {down: 2mbit, up: 1mbit}, limit: 50ms}}
`}.Compile()
	if err != nil {
		t.Fatal(err)
	}
	var both [2]*directedShaper
	for d := range both {
		both[d] = &directedShaper{newFakeShaper(policy), map[string]string{}}
		both[d].about.Direction = dataplane.Direction(d)
		both[d].use(policy.Plan)
	}
	down, up := both[kernel.Egress], both[kernel.Ingress]
	file, err := changes.Open(filepath.Join(t.TempDir(), "changes"))
	if err != nil {
		t.Fatal(err)
	}
	c := NewChanger(file, func() []Changeable { return []Changeable{down, up} })
	want := func(when, wantDown, wantUp string) {
		t.Helper()
		if got := down.show(); got != wantDown {
			t.Errorf("%s: down %s, want %s", when, got, wantDown)
		}
		if got := up.show(); got != wantUp {
			t.Errorf("%s: up %s, want %s", when, got, wantUp)
		}
		amended, stale := policy.Amended(c.Path, c.Book, time.Now())
		for _, s := range both { // as a reload makes them
			after := &directedShaper{newFakeShaper(policy), map[string]string{}}
			after.about.Direction = s.about.Direction
			if after.use(amended.Plan); after.show() != s.show() || stale != nil {
				t.Errorf("%s: a reload gives %s, want %s; %v", when, after.show(), s.show(), stale)
			}
		}
	}
	set := func(kind changes.TargetKind, name string, parameters ...string) {
		t.Helper()
		change := changes.Change{Target: changes.Target{Kind: kind, Name: name}, Terms: changes.Terms{
			Parameters: map[string]string{},
		}}
		for i := 0; i < len(parameters); i += 2 {
			change.Parameters[parameters[i]] = parameters[i+1]
		}
		change.Reset = len(parameters) == 0
		if err := change.Check(); err != nil {
			t.Fatal(err)
		}
		if err := c.Set([]changes.Change{change}); err != nil {
			t.Fatal(err)
		}
	}
	want("policy", "a 50mbit, b 40mbit, ap 90mbit", "a 5mbit, b 5mbit, ap 9mbit")
	set(changes.Customer, "a", "down", "30mbit", "up", "3mbit")
	want("both of a", "a 30mbit, b 40mbit, ap 90mbit", "a 3mbit, b 5mbit, ap 9mbit")
	set(changes.Customer, "a", "up", "4mbit")
	want("up of a", "a 30mbit, b 40mbit, ap 90mbit", "a 4mbit, b 5mbit, ap 9mbit")
	set(changes.Customer, "b", "up", "2mbit")
	want("up of b", "a 30mbit, b 40mbit, ap 90mbit", "a 4mbit, b 2mbit, ap 9mbit")
	set(changes.Customer, "b", "rate", "7mbit")
	want("rate of b", "a 30mbit, b 7mbit, ap 90mbit", "a 4mbit, b 7mbit, ap 9mbit")
	set(changes.Link, "ap", "down", "80mbit")
	want("down of the link", "a 30mbit, b 7mbit, ap 80mbit", "a 4mbit, b 7mbit, ap 9mbit")
	set(changes.Link, "ap", "rate", "20mbit")
	want("rate of the link", "a 30mbit, b 7mbit, ap 20mbit", "a 4mbit, b 7mbit, ap 20mbit")
	set(changes.Link, "ap", "up", "6mbit")
	want("up of the link", "a 30mbit, b 7mbit, ap 20mbit", "a 4mbit, b 7mbit, ap 6mbit")
	set(changes.Link, "ap")
	set(changes.Customer, "a")
	set(changes.Customer, "b")
	want("reset", "a 50mbit, b 40mbit, ap 90mbit", "a 5mbit, b 5mbit, ap 9mbit")

	restarted(c)
	now := wholeHour()
	down.counters, up.counters = map[string]int64{"a": 600}, map[string]int64{"a": 399}
	advance(t, c, now)
	down.counters["a"]++
	now = now.Add(time.Minute)
	advance(t, c, now)
	if got := down.show() + "; " + up.show(); got !=
		"a 2mbit, b 40mbit, ap 90mbit; a 1mbit, b 5mbit, ap 9mbit" {
		t.Errorf("quota used up: %s", got)
	}
}
