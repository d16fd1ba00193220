package live

import (
	"errors"
	"fmt"
	"maps"
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

// fakeShaper has the plans of customers that it was given, and counters.
type fakeShaper struct {
	about    kernel.About
	policy   *policyfile.Compiled
	plans    map[string]string // of the policy, or as SetCustomerPlans changed them
	counters map[string]int64  // passed bytes
	dropped  int64             // bytes of each customer
	err      error             // of the next SetCustomerPlans
	replaced int
}

func newFakeShaper(policy *policyfile.Compiled) *fakeShaper {
	s := &fakeShaper{counters: map[string]int64{}}
	s.use(policy)
	return s
}

// use gives the shaper a policy, as a reload does.
func (s *fakeShaper) use(policy *policyfile.Compiled) {
	s.policy, s.plans = policy, map[string]string{}
	from := policy.Plan.Customers
	for i := range from.Of {
		s.plans[from.Source.List[i].Name] = from.Service(uint32(i + 1)).Name
	}
}

func (s *fakeShaper) Info() *kernel.About                   { return &s.about }
func (s *fakeShaper) Policy() (*policyfile.Compiled, error) { return s.policy.Current(), nil }
func (s *fakeShaper) Roster() (*policyfile.Roster, error)   { return s.policy.Roster(), nil }
func (s *fakeShaper) HasRules() bool                        { return s.policy.HasRules() }
func (s *fakeShaper) SetRates(*compiled.Plan) error         { return nil }

func (s *fakeShaper) SetCustomerPlans(list []compiled.CustomerService, _ func() *compiled.Plan) error {
	if err := s.err; err != nil {
		s.err = nil
		return err
	}
	for _, c := range list {
		s.plans[c.Name] = c.Plan.Name
	}
	return nil
}

func (s *fakeShaper) ChangeCustomers(list []compiled.CustomerChange) error {
	if err := s.err; err != nil {
		s.err = nil
		return err
	}
	for _, c := range list {
		if delete(s.plans, c.Name); c.After != nil {
			s.plans[c.Name] = c.Plan.Name
		}
	}
	return nil
}

func (s *fakeShaper) Replace(policy *policyfile.Compiled) error {
	s.replaced++
	s.use(policy)
	return nil
}

func (s *fakeShaper) CountersOf(plan *compiled.Customers) ([]dataplane.CustomerStats, error) {
	out := make([]dataplane.CustomerStats, len(plan.Of))
	for i := range out {
		n := s.counters[plan.Source.List[i].Name]
		out[i].Colors[0].Bytes, out[i].Dropped.Bytes = n+s.dropped, s.dropped
	}
	return out, nil
}

// changerPolicy compiles a policy with these plans and customers.
func changerPolicy(t *testing.T, plans, customers string) *policyfile.Compiled {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "c.csv"), []byte("customer,address,plan,quota\n"+customers),
		0o600); err != nil {
		t.Fatal(err)
	}
	policy, err := policyfile.Source{Name: "policy", Path: filepath.Join(dir, "policy.yaml"), Text: `
customers: {file: c.csv}
classes: [{name: customers, per: customer, meter: plan}]
plans:
  slow: {type: token-bucket, rate: 1mbit, burst: 10kB}
  fast: {type: token-bucket, rate: 9mbit, burst: 10kB}
` + plans}.Compile()
	if err != nil {
		t.Fatal(err)
	}
	return policy
}

// newTestChanger returns a Changer of fake shapers with an empty file, and the file's path.
func newTestChanger(t *testing.T, list ...*fakeShaper) *Changer {
	t.Helper()
	file, err := changes.Open(filepath.Join(t.TempDir(), "changes"))
	if err != nil {
		t.Fatal(err)
	}
	return NewChanger(file, func() (out []Changeable) {
		for _, s := range list {
			out = append(out, s)
		}
		return out
	})
}

func advance(t *testing.T, c *Changer, now time.Time) {
	t.Helper()
	if err := c.Advance(now); err != nil {
		t.Fatal(err)
	}
}

func wantPlans(t *testing.T, what string, s *fakeShaper, want map[string]string) {
	t.Helper()
	if !maps.Equal(s.plans, want) {
		t.Errorf("%s: plans %v, want %v", what, s.plans, want)
	}
}

// TestSchedule follows a schedule through a day, with a customer whose plan a user has set.
func TestSchedule(t *testing.T) {
	policy := changerPolicy(t,
		"  home: {type: token-bucket, rate: 5mbit, burst: 10kB, when: {at: \"08:00-10:00\", plan: fast}}\n",
		"a,10.0.0.1,home,\nb,10.0.0.2,slow,\nc,10.0.0.3,home,\n")
	s := newFakeShaper(policy)
	c := newTestChanger(t, s)
	if err := c.Set([]changes.Change{
		{Target: changes.Target{Kind: changes.Customer, Name: "b"}, Terms: changes.Terms{Plan: "home"}},
		{Target: changes.Target{Kind: changes.Customer, Name: "c"}, Terms: changes.Terms{Plan: "slow"}},
	}); err != nil {
		t.Fatal(err)
	}
	day := time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC)
	for at, want := range map[time.Duration]string{
		8*time.Hour - 1: "home", 8 * time.Hour: "fast", 10*time.Hour - 1: "fast", 10 * time.Hour: "home",
		24 * time.Hour: "home", 33 * time.Hour: "fast",
	} {
		advance(t, c, day.Add(at))
		wantPlans(t, at.String(), s, map[string]string{"a": want, "b": want, "c": "slow"})
		reloaded, _ := policy.Amended(c.Path, c.Book, day.Add(at))
		again := newFakeShaper(reloaded)
		wantPlans(t, "reload at "+at.String(), again, s.plans)
	}
}

// TestSetFails checks that a change that one shaper refuses is undone in the others.
func TestSetFails(t *testing.T) {
	policy := changerPolicy(t, "", "a,10.0.0.1,slow,\n")
	first, second := newFakeShaper(policy), newFakeShaper(policy)
	c := newTestChanger(t, first, second)
	fast := []changes.Change{
		{Target: changes.Target{Kind: changes.Customer, Name: "a"}, Terms: changes.Terms{Plan: "fast"}},
	}
	second.err = errors.New("refused")
	if err := c.Set(fast); err == nil || len(c.Book) != 0 {
		t.Fatalf("got %v, book %v", err, c.Book)
	}
	wantPlans(t, "first", first, map[string]string{"a": "slow"})
	wantPlans(t, "second", second, map[string]string{"a": "slow"})

	second.err = kernel.ErrNoRoom
	if err := c.Set(fast); err != nil || second.replaced != 1 || first.replaced != 0 {
		t.Fatalf("got %v, %d and %d reloads", err, first.replaced, second.replaced)
	}
	wantPlans(t, "second after a reload", second, map[string]string{"a": "fast"})

	unknown := changes.Change{
		Target: changes.Target{Kind: changes.Customer, Name: "x"}, Terms: changes.Terms{Plan: "fast"},
	}
	err := c.Set([]changes.Change{{Target: fast[0].Target, Reset: true}, unknown})
	if !errors.As(err, new(*policyfile.UnknownError)) {
		t.Errorf("got %v", err)
	}
	wantPlans(t, "after an unknown customer", first, map[string]string{"a": "fast"})
}

// TestAmendLater amends a policy in another goroutine while changes are made.
func TestAmendLater(t *testing.T) {
	policy := changerPolicy(t, "", "a,10.0.0.1,slow,\nb,10.0.0.2,slow,\n")
	s := newFakeShaper(policy)
	c := newTestChanger(t, s)
	set := func(customer, plan string) {
		t.Helper()
		terms := changes.Terms{Plan: plan, Parameters: map[string]string{"rate": "3mbit"}}
		if err := c.Set([]changes.Change{
			{Target: changes.Target{Kind: changes.Customer, Name: customer}, Terms: terms},
		}); err != nil {
			t.Fatal(err)
		}
	}
	set("a", "fast")
	amend, done := c.AmendLater(policy), make(chan *policyfile.Compiled)
	go func() { done <- amend() }()
	set("a", "slow")
	set("b", "fast")
	wantPlans(t, "then", newFakeShaper(<-done), map[string]string{"a": "fast", "b": "slow"})
	wantPlans(t, "now", newFakeShaper(c.AmendLater(policy)()), map[string]string{"a": "slow", "b": "fast"})
}

// TestSetEnds lets a change end.
func TestSetEnds(t *testing.T) {
	s := newFakeShaper(changerPolicy(t, "", "a,10.0.0.1,slow,\n"))
	c := newTestChanger(t, s)
	end := time.Now().Add(time.Hour)
	change := changes.Change{
		Target: changes.Target{Kind: changes.Customer, Name: "a"}, Terms: changes.Terms{Plan: "fast"},
		Until: end,
	}
	if err := c.Set([]changes.Change{change}); err != nil {
		t.Fatal(err)
	}
	advance(t, c, end.Add(-1))
	wantPlans(t, "before the end", s, map[string]string{"a": "fast"})
	advance(t, c, end)
	wantPlans(t, "at the end", s, map[string]string{"a": "slow"})

	// If the shaper cannot end it now, it does later.
	if err := c.Set([]changes.Change{change}); err != nil {
		t.Fatal(err)
	}
	s.err = errors.New("busy")
	if err := c.Advance(end); err == nil || s.plans["a"] != "fast" {
		t.Errorf("got %v, plans %v", err, s.plans)
	}
	advance(t, c, end.Add(1))
	wantPlans(t, "at the second attempt", s, map[string]string{"a": "slow"})
	change.Until = time.Now().Add(-1)
	if err := c.Set([]changes.Change{change}); err == nil {
		t.Error("a change that has ended was accepted")
	}
}

// TestVolatile checks which changes must be on the disk before Set returns: those that outlive a
// restart of the host.
func TestVolatile(t *testing.T) {
	for path, want := range map[string]bool{
		kernel.StateDir + "/1-2-changes-both":   true,
		"/var/lib/shaper/eth0-both.changes":     false,
		kernel.StateDir + "/state/eth0.changes": false,
		"":                                      false,
	} {
		if got := NewChanger(&changes.File{Path: path}, nil).Volatile; got != want {
			t.Errorf("%q: got %v, want %v", path, got, want)
		}
	}
}

// TestStaleChange checks that a change which a later policy has no use for does not keep others from
// ending, nor schedules from being followed.
func TestStaleChange(t *testing.T) {
	policy := func(two string) *policyfile.Compiled {
		return changerPolicy(t,
			"  two: {"+two+"}\n  home: {type: token-bucket, rate: 5mbit, burst: 10kB, when: {at: \"08:00-10:00\", plan: fast}}\n",
			"stale,10.0.0.1,two,\nother,10.0.0.2,slow,\nhome,10.0.0.3,home,\n")
	}
	s := newFakeShaper(policy("type: token-bucket, rate: 1mbit, burst: 10kB"))
	c := newTestChanger(t, s)
	now := time.Now()
	set := func(name string, terms changes.Terms, until time.Time) {
		t.Helper()
		if err := c.Set([]changes.Change{
			{Target: changes.Target{Kind: changes.Customer, Name: name}, Terms: terms, Until: until},
		}); err != nil {
			t.Fatal(err)
		}
	}
	set("stale", changes.Terms{Parameters: map[string]string{"burst": "20kB"}}, time.Time{})
	set("stale", changes.Terms{Plan: "fast"}, now.Add(time.Hour))
	set("other", changes.Terms{Plan: "fast"}, now.Add(time.Hour))
	amended, _ := c.Amend(policy("type: srtcm, cir: 1mbit, cbs: 10kB, ebs: 10kB"))
	s.use(amended)
	for hour, home := range map[int]string{7: "home", 9: "fast", 11: "home"} {
		advance(t, c, time.Date(now.Year(), now.Month(), now.Day()+2, hour, 0, 0, 0, time.UTC))
		wantPlans(t, fmt.Sprint(hour, ":00"), s,
			map[string]string{"stale": "two", "other": "slow", "home": home})
	}

	reset := changes.Change{Target: changes.Target{Kind: changes.Customer, Name: "stale"}, Reset: true}
	again := changes.Change{
		Target: reset.Target, Terms: changes.Terms{Parameters: map[string]string{"burst": "20kB"}},
	}
	if err := c.Set([]changes.Change{reset, again}); !errors.As(err, new(*policyfile.TermsError)) {
		t.Errorf("got %v: want an error", err)
	}
}
