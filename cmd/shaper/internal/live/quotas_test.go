package live

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/changes"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
)

// restarted tells c that the counters of both directions began at 0.
func restarted(c *Changer) {
	c.Restarted(kernel.Egress)
	c.Restarted(kernel.Ingress)
}

// wholeHour returns the beginning of the next hour. Changes that end before the present are refused.
func wholeHour() time.Time { return time.Now().UTC().Truncate(time.Hour).Add(time.Hour) }

// TestQuota lets customers use their quotas in both directions.
func TestQuota(t *testing.T) {
	const plan = "  home: {type: token-bucket, rate: 5mbit, burst: 10kB, quota: {limit: 1kB, every: hour, then: slow}}\n"
	policy := changerPolicy(t, plan, "a,10.0.0.1,home,\nb,10.0.0.2,home,2kB\nc,10.0.0.3,fast,\n")
	down, up := newFakeShaper(policy), newFakeShaper(policy)
	up.about.Direction = kernel.Ingress
	c := newTestChanger(t, down, up)
	restarted(c)
	now := wholeHour()
	home := map[string]string{"a": "home", "b": "home", "c": "fast"}
	down.counters = map[string]int64{"a": 600, "b": 999, "c": 1e9}
	down.dropped = 5000 // does not count
	up.counters = map[string]int64{"a": 399, "b": 1000}
	advance(t, c, now)
	wantPlans(t, "below the quota", down, home)
	up.counters["a"]++
	advance(t, c, now.Add(time.Second/2))
	wantPlans(t, "before the next count", down, home)
	now = now.Add(time.Minute)
	advance(t, c, now)
	slow := map[string]string{"a": "slow", "b": "home", "c": "fast"}
	wantPlans(t, "used up, down", down, slow)
	wantPlans(t, "used up, up", up, slow)
	up.counters["b"] = 1001
	now = now.Add(time.Minute)
	advance(t, c, now)
	wantPlans(t, "own quota", up, map[string]string{"a": "slow", "b": "slow", "c": "fast"})

	// Another plan set by a user counts from then on; reset does not reset the count.
	b := changes.Target{Kind: changes.Customer, Name: "b"}
	for _, set := range []struct{ plan, want string }{{"fast", "fast"}, {"home", "slow"}} {
		if err := c.Set([]changes.Change{{Target: b, Terms: changes.Terms{Plan: set.plan}}}); err != nil {
			t.Fatal(err)
		}
		now = now.Add(time.Minute)
		advance(t, c, now)
		if down.plans["b"] != set.want {
			t.Errorf("after plan=%s: %s", set.plan, down.plans["b"])
		}
	}
	if err := c.Set([]changes.Change{{Target: b, Reset: true}}); err != nil {
		t.Fatal(err)
	}
	now = now.Add(time.Minute)
	advance(t, c, now)
	wantPlans(t, "after reset", down, map[string]string{"a": "slow", "b": "slow", "c": "fast"})

	// The file has the changes, for a reload by another process.
	book, _, err := changes.Read(c.Path)
	if err != nil {
		t.Fatal(err)
	}
	if amended, stale := policy.Amended(c.Path, book, now); stale != nil ||
		amended.Plan.Customers.Service(1).Name != "slow" {
		t.Errorf("a reload gives %s, %v", amended.Plan.Customers.Service(1).Name, stale)
	}

	// A higher limit ends it; so does the end of the window.
	higher := changerPolicy(t,
		"  home: {type: token-bucket, rate: 5mbit, burst: 10kB, quota: {limit: 1001B, every: hour, then: slow}}\n",
		"a,10.0.0.1,home,\nb,10.0.0.2,home,2kB\nc,10.0.0.3,fast,\n")
	down.policy, up.policy = higher, higher
	now = now.Add(time.Minute)
	advance(t, c, now)
	wantPlans(t, "higher limit", down, map[string]string{"a": "home", "b": "slow", "c": "fast"})
	advance(t, c, now.Truncate(time.Hour).Add(time.Hour-1))
	wantPlans(t, "just before the end", down, map[string]string{"a": "home", "b": "slow", "c": "fast"})
	advance(t, c, now.Truncate(time.Hour).Add(time.Hour))
	wantPlans(t, "next hour", down, home)
	advance(t, c, now.Truncate(time.Hour).Add(time.Hour+time.Minute))
	wantPlans(t, "later in the next hour", up, home)
}

// TestQuotaTakenOver checks that counters of an earlier process do not count at once.
func TestQuotaTakenOver(t *testing.T) {
	policy := changerPolicy(t,
		"  home: {type: token-bucket, rate: 5mbit, burst: 10kB, quota: {limit: 1kB, every: hour, then: slow}}\n",
		"a,10.0.0.1,home,\n")
	s := newFakeShaper(policy)
	c := newTestChanger(t, s)
	s.counters["a"] = 1e6
	now := wholeHour()
	for i, want := range []string{"home", "home", "slow"} {
		advance(t, c, now)
		if s.plans["a"] != want {
			t.Errorf("round %d: plan %s, want %s", i, s.plans["a"], want)
		}
		s.counters["a"] += []int64{999, 1, 0}[i]
		now = now.Add(time.Minute)
	}
}

// TestQuotaDirections counts while the other direction has a policy without quotas, and after it is
// gone. A process that ends before its first count keeps no bytes that were counted before it.
func TestQuotaDirections(t *testing.T) {
	policy := changerPolicy(t,
		"  home: {type: token-bucket, rate: 5mbit, burst: 10kB, quota: {limit: 1kB, every: hour, then: slow}}\n",
		"a,10.0.0.1,home,\n")
	other := changerPolicy(t, "", "a,10.0.0.1,fast,\n")
	for _, ruled := range []dataplane.Direction{kernel.Egress, kernel.Ingress} {
		list := []*fakeShaper{newFakeShaper(other), newFakeShaper(other)}
		list[1].about.Direction = kernel.Ingress
		list[ruled].use(policy)
		c := newTestChanger(t, list...)
		restarted(c)
		now := wholeHour()
		list[ruled].counters["a"] = 600
		advance(t, c, now)
		c.shapers = func() []Changeable { return []Changeable{list[ruled]} }
		list[ruled].counters["a"] = 900
		advance(t, c, now.Add(time.Minute))
		wantPlans(t, "below the quota", list[ruled], map[string]string{"a": "home"})
		list[ruled].counters["a"] = 1000
		advance(t, c, now.Add(2*time.Minute))
		wantPlans(t, "used up", list[ruled], map[string]string{"a": "slow"})
	}
	list := []*fakeShaper{newFakeShaper(policy), newFakeShaper(other)}
	list[1].about.Direction = kernel.Ingress
	c := newTestChanger(t, list...)
	restarted(c)
	list[0].counters["a"] = 1000
	advance(t, c, wholeHour())
	wantPlans(t, "used up beside a direction without quotas", list[0], map[string]string{"a": "slow"})

	// A direction whose policy has only schedules has no quotas either.
	list[0].use(policy)
	list[1].use(changerPolicy(t,
		"  home: {type: token-bucket, rate: 5mbit, burst: 10kB, when: {at: \"00:00-00:01\", plan: slow}}\n",
		"a,10.0.0.1,fast,\n"))
	c = newTestChanger(t, list...)
	restarted(c)
	for range 2 {
		advance(t, c, wholeHour())
		wantPlans(t, "used up beside a direction with schedules", list[0], map[string]string{"a": "slow"})
	}

	c, next := newTestChanger(t, list...), newTestChanger(t, list...)
	if err := errors.Join(c.CountNow(), next.RestoreQuotas(c.SaveQuotas())); err != nil {
		t.Fatal(err)
	}
	now := wholeHour()
	for _, used := range []int64{999, 1000} {
		list[0].use(policy)
		list[0].counters["a"] = 1000 + used
		advance(t, next, now)
		wantPlans(t, "restored", list[0],
			map[string]string{"a": map[int64]string{999: "home", 1000: "slow"}[used]})
		now = now.Add(time.Minute)
	}
}

// TestQuotaOneDirection has customers in one direction only: their quotas count too.
func TestQuotaOneDirection(t *testing.T) {
	const home = "  home: {type: token-bucket, rate: 5mbit, burst: 10kB, quota: {limit: 1kB, every: hour, then: slow}}\n"
	list := []*fakeShaper{
		newFakeShaper(changerPolicy(t, home, "a,10.0.0.1,home,\nboth,10.0.0.3,home,\n")),
		newFakeShaper(changerPolicy(t, home, "b,10.0.0.2,home,\nboth,10.0.0.3,home,\n")),
	}
	list[1].about.Direction = kernel.Ingress
	c := newTestChanger(t, list...)
	restarted(c)
	list[0].counters = map[string]int64{"a": 1000, "both": 500}
	list[1].counters = map[string]int64{"b": 1000, "both": 499}
	now := wholeHour()
	advance(t, c, now)
	wantPlans(t, "egress", list[0], map[string]string{"a": "slow", "both": "home"})
	wantPlans(t, "ingress", list[1], map[string]string{"b": "slow", "both": "home"})
	list[0].counters["both"]++
	advance(t, c, now.Add(time.Minute))
	for i := range list {
		if list[i].plans["both"] != "slow" {
			t.Errorf("direction %d: plan %s of the customer of both", i, list[i].plans["both"])
		}
	}
	advance(t, c, now.Add(time.Hour))
	wantPlans(t, "next hour", list[0], map[string]string{"a": "home", "both": "home"})
}

// TestQuotaLater gives customers a quota after they had traffic: by a change, by a reload of a policy
// that had quotas for others, and of one that had none.
func TestQuotaLater(t *testing.T) {
	const home = "  home: {type: token-bucket, rate: 5mbit, burst: 10kB, quota: {limit: 1kB, every: hour, then: slow}}\n"
	before := map[string]string{
		"a change":   home,
		"a reload":   home,
		"first rule": "",
		"a schedule": "  day: {type: token-bucket, rate: 5mbit, burst: 10kB, when: {at: \"08:00-10:00\", plan: fast}}\n",
	}
	policy := changerPolicy(t, home, "a,10.0.0.1,home,\n")
	for what, plans := range before {
		s := newFakeShaper(changerPolicy(t, plans, "a,10.0.0.1,fast,\n"))
		c := newTestChanger(t, s)
		restarted(c)
		now := wholeHour()
		s.counters["a"] = 5000
		advance(t, c, now)
		if what == "a change" {
			if err := c.Set([]changes.Change{{
				Target: changes.Target{Kind: changes.Customer, Name: "a"}, Terms: changes.Terms{Plan: "home"},
			}}); err != nil {
				t.Fatal(err)
			}
		} else {
			s.use(policy)
		}
		for _, want := range []string{"home", "home", "slow"} {
			now = now.Add(time.Minute)
			advance(t, c, now)
			wantPlans(t, what, s, map[string]string{"a": want})
			s.counters["a"] += map[int64]int64{5000: 999, 5999: 1}[s.counters["a"]]
		}
	}
}

// TestQuotaThen reloads policies in which another plan follows a quota that a customer has used. The
// plan of before may not exist any more.
func TestQuotaThen(t *testing.T) {
	const home = "  home: {type: token-bucket, rate: 5mbit, burst: 10kB, quota: {limit: 1kB, every: month, then: "
	const old = "  old: {type: token-bucket, rate: 1mbit, burst: 10kB}\n"
	s := newFakeShaper(changerPolicy(t, home+"old}}\n"+old, "a,10.0.0.1,home,\n"))
	c := newTestChanger(t, s)
	restarted(c)
	now := wholeHour()
	s.counters["a"] = 1000
	advance(t, c, now)
	wantPlans(t, "used up", s, map[string]string{"a": "old"})
	for _, rest := range []string{old, ""} {
		for _, then := range []string{"slow", "fast"} {
			next := changerPolicy(t, home+then+"}}\n"+rest, "a,10.0.0.1,home,\n")
			amended, _ := c.Amend(next)
			s.use(amended)
			for range 2 {
				now = now.Add(time.Minute)
				advance(t, c, now)
				wantPlans(t, then, s, map[string]string{"a": then})
			}
		}
	}
}

// TestQuotaRemoved reloads policies without the quota that a customer has used: its own plan is in
// force again.
func TestQuotaRemoved(t *testing.T) {
	const home, limit = "  home: {type: token-bucket, rate: 5mbit, burst: 10kB",
		", quota: {limit: 1kB, every: month, then: slow}}\n"
	policy := changerPolicy(t, home+limit, "a,10.0.0.1,home,\n")
	for _, rest := range []string{"}\n", ", when: {at: \"00:00-24:00\", plan: fast}}\n"} {
		s := newFakeShaper(policy)
		c := newTestChanger(t, s)
		restarted(c)
		now := wholeHour()
		s.counters["a"] = 1000
		advance(t, c, now)
		wantPlans(t, "used up", s, map[string]string{"a": "slow"})
		list := c.shapers
		c.shapers = func() []Changeable { return nil }
		advance(t, c, now.Add(time.Second))
		c.shapers = list
		if len(c.Book) != 1 {
			t.Errorf("without a shaper: %v", c.Book)
		}
		next := changerPolicy(t, home+rest, "a,10.0.0.1,home,\n")
		amended, _ := c.Amend(next)
		s.use(amended)
		s.policy = next
		want := "home"
		if next.HasRules() {
			want = "fast"
		}
		for range 2 {
			now = now.Add(time.Minute)
			advance(t, c, now)
			wantPlans(t, rest, s, map[string]string{"a": want})
		}
		if len(c.Book) != 0 {
			t.Errorf("%s: left %v", rest, c.Book)
		}
	}
}

// TestManyQuotas lets many customers use their quotas at the same moment.
func TestManyQuotas(t *testing.T) {
	const n = 3*changesAtOnce - 1
	var rows strings.Builder
	for i := range n {
		fmt.Fprintf(&rows, "%d,,home,\n", i)
	}
	s := newFakeShaper(changerPolicy(t,
		"  home: {type: token-bucket, rate: 5mbit, burst: 10kB, quota: {limit: 1kB, every: hour, then: slow}}\n",
		rows.String()))
	c := newTestChanger(t, s)
	restarted(c)
	now := wholeHour()
	for i := range n {
		s.counters[fmt.Sprint(i)] = 1000
	}
	for _, want := range []int{changesAtOnce, 2 * changesAtOnce, n, n} {
		advance(t, c, now)
		slow := 0
		for _, plan := range s.plans {
			if plan == "slow" {
				slow++
			}
		}
		if slow != want {
			t.Fatalf("%d customers have used their quotas, want %d", slow, want)
		}
	}
}

// TestChangesThatNoLongerFit has changes of one customer that its plan does not allow any more: after
// a quota has begun or ended, and after a reload. Other customers change all the same, and a reload
// gives the same plans.
func TestChangesThatNoLongerFit(t *testing.T) {
	const home = "  home: {type: trtcm, cir: 5mbit, cbs: 10kB, pir: 6mbit, pbs: 10kB, quota: {limit: 1kB, every: hour, then: slow}, when: {at: \"12:00-13:00\", plan: fast}}\n"
	const customers = "a,10.0.0.1,home,\nb,10.0.0.2,home,\n"
	policy := changerPolicy(t, home, customers)
	a := changes.Target{Kind: changes.Customer, Name: "a"}
	day := time.Now().UTC().Truncate(24*time.Hour).AddDate(0, 0, 1)
	s := newFakeShaper(policy)
	c := newTestChanger(t, s)
	restarted(c)
	set := func(terms changes.Terms, until time.Time) {
		t.Helper()
		if err := c.Set([]changes.Change{{Target: a, Terms: terms, Until: until}}); err != nil {
			t.Fatal(err)
		}
	}
	want := func(what string, now time.Time, plan string) {
		t.Helper()
		advance(t, c, now)
		all := map[string]string{"a": plan, "b": plan}
		wantPlans(t, what, s, all)
		reloaded, _ := s.policy.Amended(c.Path, c.Book, now)
		wantPlans(t, what+", after a reload", newFakeShaper(reloaded), all)
	}
	want("before", day, "home")
	set(changes.Terms{Parameters: map[string]string{"cir": "3mbit"}}, day.Add(48*time.Hour))
	s.counters = map[string]int64{"a": 1000, "b": 1000}
	want("used up", day.Add(time.Minute), "slow")
	set(changes.Terms{Parameters: map[string]string{"rate": "3mbit"}}, day.Add(48*time.Hour))
	want("in the next hour", day.Add(time.Hour), "home")
	want("in the schedule", day.Add(12*time.Hour), "fast")
	want("after the schedule", day.Add(13*time.Hour), "home")

	// A reload removes the plan that a user has set.
	s.use(changerPolicy(t, home+"  gone: {type: token-bucket, rate: 1mbit, burst: 10kB}\n", customers))
	set(changes.Terms{Plan: "gone"}, time.Time{})
	set(changes.Terms{Parameters: map[string]string{"rate": "3mbit"}}, day.Add(20*time.Hour))
	s.use(policy)
	want("without the plan of the user", day.Add(20*time.Hour), "home")
}
