package changes

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"
)

// flag returns a value of Terms.Off.
func flag(off bool) *bool { return &off }

// model is a book as the list of its changes.
type model []Change

// terms returns the terms of a target: permanent changes come first, then those of a quota, then
// those with an end. Another plan discards earlier parameters.
func (m model) terms(t Target, now time.Time) (out Terms) {
	var last [3][]Change // changes in force, by layer
	for _, c := range m {
		switch {
		case c.Target != t:
		case c.Reset:
			last = [3][]Change{}
		case c.By == ByQuota:
			last[1] = []Change{c}
		case !c.Until.IsZero():
			last[2] = []Change{c}
		default:
			last[0], last[2] = append(last[0], c), nil
			if c.Plan != "" {
				last[1] = nil
			}
		}
	}
	for _, layer := range last {
		for _, c := range layer {
			if !c.Until.IsZero() && !now.Before(c.Until) {
				continue
			}
			if c.Plan != "" {
				out.Plan, out.Parameters = c.Plan, nil
			}
			if len(c.Parameters) > 0 {
				next := map[string]string{}
				maps.Copy(next, out.Parameters)
				maps.Copy(next, c.Parameters)
				out.Parameters = next
			}
			if c.Off != nil {
				out.Off = c.Off
			}
		}
	}
	return out
}

// randomChange returns a change that Check accepts. Its end is within 100 s of now.
func randomChange(r *rand.Rand, now time.Time) Change {
	c := Change{Target: Target{Customer, fmt.Sprint("c", r.IntN(5))}}
	if r.IntN(8) == 0 {
		c.Kind = []TargetKind{Link, Queue}[r.IntN(2)]
		c.Parameters = map[string]string{"rate": fmt.Sprint(r.IntN(100), "mbit")}
		return c
	}
	for c.empty() {
		if r.IntN(3) == 0 {
			c.Plan = fmt.Sprint("plan", r.IntN(3))
		}
		if r.IntN(2) == 0 {
			c.Parameters = map[string]string{
				[]string{"rate", "cir", "burst"}[r.IntN(3)]: fmt.Sprint(r.IntN(100)),
			}
		}
		if r.IntN(3) == 0 {
			c.Off = flag(r.IntN(2) == 0)
		}
		if r.IntN(9) == 0 {
			return Change{Target: c.Target, Reset: true}
		}
	}
	if r.IntN(3) == 0 {
		c.Until = now.Add(time.Duration(1+r.IntN(100)) * time.Second)
		if r.IntN(3) == 0 {
			c.By = ByQuota
		}
	}
	return c
}

// TestBook compares random changes with the model, while time passes. A copy stays as it is.
func TestBook(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for range 300 {
		now, b, m := time.Unix(1e9, 0), Book{}, model{}
		var copied Book
		var before []Change // of copied
		for range r.IntN(40) {
			if got := slices.Collect(copied.All()); !reflect.DeepEqual(got, before) {
				t.Fatalf("a copy has changed: got %+v, want %+v", got, before)
			}
			copied, before = maps.Clone(b), slices.Collect(b.All())
			c := randomChange(r, now)
			if err := c.Check(); err != nil {
				t.Fatalf("%+v: %v", c, err)
			}
			if r.IntN(3) == 0 {
				b.apply([]Change{c, randomChange(r, now)})()
			}
			b.Apply(c)
			m = append(m, c)
			now = now.Add(time.Duration(r.IntN(10)) * time.Second)
			again := Book{}
			for c := range b.All() {
				again.Apply(c)
			}
			for i := range 5 {
				for _, kind := range []TargetKind{Customer, Link, Queue} {
					target := Target{kind, fmt.Sprint("c", i)}
					want := m.terms(target, now)
					for _, b := range []Book{b, again} {
						if got := b.Terms(target, now); !reflect.DeepEqual(got, want) {
							t.Fatalf("%v after %+v: got %+v, want %+v", target, m, got, want)
						}
					}
				}
			}
			if r.IntN(3) > 0 {
				continue
			}
			next := b.Next()
			for _, c := range b.Ends(now) {
				if reflect.DeepEqual(m.terms(c.Target, now), m.terms(c.Target, next.Add(-1))) && len(m) == 1 {
					t.Fatalf("%v did not end", c.Target)
				}
				b.Apply(c)
			}
			if left := b.Next(); !left.IsZero() && !now.Before(left) {
				t.Fatalf("a change that ended at %v is left at %v", left, now)
			}
		}
	}
}

// TestExpire checks what ends, and when.
func TestExpire(t *testing.T) {
	now := time.Unix(1e9, 0)
	b := Book{}
	a, c := Target{Customer, "a"}, Target{Customer, "c"}
	b.Apply(Change{Target: a, Terms: Terms{Plan: "slow"}})
	b.Apply(Change{Target: a, Terms: Terms{Plan: "fast"}, Until: now.Add(2)})
	b.Apply(Change{Target: c, Terms: Terms{Off: flag(true)}, Until: now.Add(1)})
	if got := b.Next(); got != now.Add(1) {
		t.Errorf("the next end is %v", got)
	}
	if got := b.Ends(now); got != nil {
		t.Errorf("%v ended too early", got)
	}
	got := b.Ends(now.Add(2))
	if len(got) != 2 || got[0].Target != a || got[1].Target != c {
		t.Errorf("%v ended", got)
	}
	b.Expire(now.Add(2))
	if got := b.Terms(a, now); got.Plan != "slow" || len(b) != 1 || !b.Next().IsZero() {
		t.Errorf("left: %+v", b)
	}
}

// TestMerge sets rates of one direction after rates of both, and the reverse.
func TestMerge(t *testing.T) {
	type words = map[string]string
	for _, test := range []struct{ into, next, want words }{
		{words{}, words{"down": "1"}, words{"down": "1"}},
		{words{"down": "1"}, words{"up": "2"}, words{"down": "1", "up": "2"}},
		{words{"rate": "3"}, words{"up": "2"}, words{"down": "3", "up": "2"}},
		{words{"rate": "3"}, words{"down": "1", "up": "2"}, words{"down": "1", "up": "2"}},
		{words{"down": "1", "up": "2"}, words{"rate": "3"}, words{"rate": "3"}},
		{words{"up": "2"}, words{"rate": "3"}, words{"rate": "3"}},
		{
			words{"rate": "3", "guarantee": "4"},
			words{"down-guarantee": "5"},
			words{"rate": "3", "down-guarantee": "5", "up-guarantee": "4"},
		},
		{words{"down": "1", "down-guarantee": "5"}, words{"guarantee": "6"}, words{"down": "1", "guarantee": "6"}},
		{words{"rate": "3"}, words{"burst": "9"}, words{"rate": "3", "burst": "9"}},
	} {
		got := maps.Clone(test.into)
		if Merge(got, test.next); !maps.Equal(got, test.want) {
			t.Errorf("%v with %v: got %v, want %v", test.into, test.next, got, test.want)
		}
	}
}

func TestCheck(t *testing.T) {
	customer, link := Target{Customer, "a"}, Target{Link, "l"}
	rate := Terms{Parameters: map[string]string{"rate": "1mbit"}}
	for _, test := range []struct {
		change Change
		want   string
	}{
		{Change{Target: customer, Terms: rate}, ""},
		{Change{Target: customer, Reset: true}, ""},
		{Change{Target: link, Terms: rate}, ""},
		{Change{Target: Target{Queue, "q"}, Terms: rate, Until: time.Unix(1, 0)}, ""},
		{Change{Target: Target{"class", "a"}, Terms: rate}, `"class": want customer, link or queue`},
		{Change{Target: Target{Customer, ""}, Terms: rate}, "customer: the name is missing"},
		{Change{Target: customer}, `customer "a": nothing to change`},
		{Change{Target: customer, Terms: rate, Reset: true}, `customer "a": reset cannot be combined with other changes`},
		{Change{Target: customer, Reset: true, Until: time.Unix(1, 0)}, `customer "a": reset cannot be combined with other changes`},
		{Change{Target: customer, Ended: true, Until: time.Unix(1, 0)}, ""},
		{Change{Target: customer, Ended: true}, `customer "a": an end needs a time, and nothing else`},
		{Change{Target: customer, Ended: true, Terms: rate, Until: time.Unix(1, 0)}, `customer "a": an end needs a time, and nothing else`},
		{Change{Target: customer, Ended: true, Reset: true}, `customer "a": reset cannot be combined with other changes`},
		{Change{Target: customer, Terms: rate, By: temporarily}, "the cause is unknown"},
		{Change{Target: link, Terms: Terms{Plan: "p"}}, `link "l": want a rate, such as rate=35mbit`},
		{Change{Target: link, Terms: Terms{Off: flag(true)}}, `link "l": want a rate, such as rate=35mbit`},
		{Change{Target: link, Terms: Terms{Parameters: map[string]string{"burst": "1kB"}}}, `link "l": burst cannot be changed, only rate, guarantee, priority, weight, down, up, down-guarantee, up-guarantee`},
		{Change{Target: link, Terms: Terms{Parameters: map[string]string{"down": "2mbit", "up": "1mbit"}}}, ""},
		{Change{Target: link, Terms: Terms{Parameters: map[string]string{"rate": "2mbit", "up": "1mbit"}}}, `link "l": rate is for both directions, and up for one: give one of them`},
		{Change{Target: customer, Terms: Terms{Parameters: map[string]string{"guarantee": "2mbit", "down-guarantee": "1mbit"}}}, `customer "a": guarantee is for both directions, and down-guarantee for one: give one of them`},
	} {
		got := ""
		if err := test.change.Check(); err != nil {
			got = err.Error()
		}
		if got != test.want {
			t.Errorf("%+v: got %q, want %q", test.change, got, test.want)
		}
	}
}
