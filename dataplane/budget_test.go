package dataplane

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/meter"
)

// budgeted returns a policy of one meter with a budget.
func budgeted(p Params, b Budget) *Policy {
	return &Policy{Classes: []Class{{Name: "a", Meter: &Meter{Name: "m", Params: p, Budget: &b}}}}
}

// TestBudgetErrors has rows at and next to each bound of a budget, with the fields that have
// an error.
func TestBudgetErrors(t *testing.T) {
	bucket := meter.TokenBucket{Rate: mega, Burst: 1000}
	on := func(edit func(*Budget)) *Policy {
		b := Budget{Name: "b", Store: server}
		edit(&b)
		return budgeted(bucket, b)
	}
	with := func(p *Policy, edit func(*Meter)) *Policy {
		edit(p.Classes[0].Meter)
		return p
	}
	host := func(p Params) *Policy { return budgeted(p, Budget{Name: "b"}) }
	remote := func(p Params) *Policy { return budgeted(p, Budget{Name: "b", Store: server}) }
	warm := bucket
	warm.Warmup = time.Second
	for name, test := range map[string]struct {
		policy *Policy
		want   string // fields
	}{
		"no name":                    {budgeted(bucket, Budget{}), "budget"},
		"default values":             {on(func(*Budget) {}), ""},
		"interval below the minimum": {on(func(b *Budget) { b.Interval = 10*time.Millisecond - 1 }), "interval"},
		"minimum interval":           {on(func(b *Budget) { b.Interval = 10 * time.Millisecond }), ""},
		"maximum interval":           {on(func(b *Budget) { b.Interval = 10 * time.Second }), ""},
		"interval above the maximum": {on(func(b *Budget) { b.Interval = 10*time.Second + 1 }), "interval"},
		"negative interval":          {on(func(b *Budget) { b.Interval = -1 }), "interval"},
		"negative rescue":            {on(func(b *Budget) { b.Rescue = Fraction{-1, 2} }), "rescue"},
		"rescue 0":                   {on(func(b *Budget) { b.Rescue = Fraction{0, 2} }), ""},
		"rescue 1":                   {on(func(b *Budget) { b.Rescue = Fraction{2, 2} }), ""},
		"rescue above 1":             {on(func(b *Budget) { b.Rescue = Fraction{3, 2} }), "rescue"},
		"negative weight":            {on(func(b *Budget) { b.Weight = -1 }), "weight"},
		"maximum weight":             {on(func(b *Budget) { b.Weight = MaxWeight }), ""},
		"weight above the maximum":   {on(func(b *Budget) { b.Weight = MaxWeight + 1 }), "weight"},
		"negative hosts":             {on(func(b *Budget) { b.Hosts = -1 }), "hosts"},
		"maximum hosts":              {on(func(b *Budget) { b.Hosts = MaxHosts }), ""},
		"hosts above the maximum":    {on(func(b *Budget) { b.Hosts = MaxHosts + 1 }), "hosts"},

		"options of a server on the host": {budgeted(bucket, Budget{Name: "b", Interval: -1, Weight: -1, Hosts: -1}), ""},
		"keys":                            {with(host(bucket), func(m *Meter) { m.Per = Key{By: BySrc} }), "share"},
		"envelope":                        {with(host(meter.TRTCM4115{CIR: mega, CBS: 1000}), func(m *Meter) { m.Envelope, m.Rank = &Envelope{Name: "e"}, 1 }), "share"},
		"window on the host":              {host(meter.FixedWindow{Limit: 1000, Window: time.Second}), ""},
		"counter on the host":             {host(meter.SlidingCounter{Limit: 1000, Window: time.Second}), ""},
		"log on the host":                 {host(meter.SlidingLog{Limit: 1000, Window: time.Second, Entries: 10}), "share"},
		"average on the host":             {host(meter.TSWTCM{CIR: mega, PIR: mega, Window: time.Second}), "share"},
		"buckets on a server":             {remote(meter.TRTCM{CIR: mega, CBS: 1000, PIR: mega, PBS: 1000}), ""},
		"window on a server":              {remote(meter.FixedWindow{Limit: 1000, Window: time.Second}), "share"},
		"log on a server":                 {remote(meter.SlidingLog{Limit: 1000, Window: time.Second, Entries: 10}), "share"},
		"warm-up on the host":             {host(warm), ""},
		"warm-up on a server":             {remote(warm), "warmup"},
		"initial tokens, host":            {with(host(bucket), func(m *Meter) { m.Initial = Fraction{1, 2} }), ""},
		"initial tokens, server":          {with(remote(bucket), func(m *Meter) { m.Initial = Fraction{1, 2} }), "initial"},
		"zero initial tokens, host":       {with(host(bucket), func(m *Meter) { m.Initial = Fraction{0, 1} }), ""},
	} {
		_, err := Compile(test.policy)
		var fields []string
		if err != nil {
			for _, e := range fieldErrors(t, err) {
				fields = append(fields, e.Field)
			}
		}
		if !slices.Equal(fields, strings.Fields(test.want)) {
			t.Errorf("%s: errors of %q, want %q: %v", name, fields, test.want, err)
		}
	}
}

// TestBudgetTwice checks that a policy cannot contain a budget in two meters, but one meter
// of two classes.
func TestBudgetTwice(t *testing.T) {
	if _, err := Compile(policyOf("a: m=x\nb: n=x")); err == nil || !strings.Contains(err.Error(), "another meter") {
		t.Errorf("a budget of two meters: got %v, want an error", err)
	}
	if _, err := Compile(policyOf("a: m=x\nb: m=x\nc: n=y")); err != nil {
		t.Error(err)
	}
}

// TestBudgetName tries every byte as the first and as a later character of a name.
func TestBudgetName(t *testing.T) {
	const first, later = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789", "._-:@"
	for r := rune(0); r < 0x180; r++ {
		for prefix, valid := range map[string]string{"": first, "a": first + later} {
			reason := invalidName(prefix + string(r))
			if want := strings.ContainsRune(valid, r); (reason == "") != want {
				t.Errorf("name %q: got %q, want valid %v", prefix+string(r), reason, want)
			}
		}
	}
	for n, want := range map[int]bool{0: false, 1: true, 64: true, 65: false} {
		if reason := invalidName(strings.Repeat("a", n)); (reason == "") != want {
			t.Errorf("%d characters: got %q, want valid %v", n, reason, want)
		}
	}
}

// TestResolved checks the defaults of a budget.
func TestResolved(t *testing.T) {
	want := Budget{Name: "b", Store: server, Interval: 100 * time.Millisecond, Rescue: Fraction{50, 100}, Weight: 1, Hosts: 16}
	if got := (Budget{Name: "b", Store: server}).Resolved(); got != want {
		t.Errorf("defaults %+v, want %+v", got, want)
	}
	own := Budget{Name: "b", Interval: time.Second, Rescue: Fraction{0, 1}, Weight: 2, Hosts: 3}
	if got := own.Resolved(); got != own {
		t.Errorf("Resolved returned %+v, want %+v unchanged", got, own)
	}
	p := compilePlan(t, policyOf("a: m=x > n\nb: o@y"))
	if got := p.Budgets(); !slices.Equal(got, []int{0, 2}) {
		t.Errorf("stages with a budget %v, want 0 and 2", got)
	}
	if a, b := p.Stages[0], p.Stages[2]; a.Leased || !b.Leased || a.BudgetName != "x" || b.BudgetName != "y" || *b.Budget != (&Budget{Name: "y", Store: server}).Resolved() {
		t.Errorf("got stages %+v and %+v, want budget x without a lease and budget y with one", a, b)
	}
}
