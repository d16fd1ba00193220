package compiled

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/internal/frametest"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// budgeted returns a policy of one meter with a budget.
func budgeted(p meter.Params, b dataplane.Budget) *dataplane.Policy {
	return &dataplane.Policy{
		Classes: []dataplane.Class{{Name: "a", Meter: &dataplane.Meter{Name: "m", Params: p, Budget: &b}}},
	}
}

// TestBudgetErrors has rows at and next to each bound of a budget, with the fields that have
// an error.
func TestBudgetErrors(t *testing.T) {
	bucket := meter.TokenBucket{Rate: frametest.Mega, Burst: 1000}
	on := func(edit func(*dataplane.Budget)) *dataplane.Policy {
		b := dataplane.Budget{Name: "b", Address: frametest.Server}
		edit(&b)
		return budgeted(bucket, b)
	}
	with := func(p *dataplane.Policy, edit func(*dataplane.Meter)) *dataplane.Policy {
		edit(p.Classes[0].Meter)
		return p
	}
	host := func(p meter.Params) *dataplane.Policy { return budgeted(p, dataplane.Budget{Name: "b"}) }
	remote := func(p meter.Params) *dataplane.Policy {
		return budgeted(p, dataplane.Budget{Name: "b", Address: frametest.Server})
	}
	warm := bucket
	warm.Warmup = time.Second
	for name, test := range map[string]struct {
		policy *dataplane.Policy
		want   string // fields
	}{
		"no name":                    {budgeted(bucket, dataplane.Budget{}), "budget"},
		"default values":             {on(func(*dataplane.Budget) {}), ""},
		"interval below the minimum": {on(func(b *dataplane.Budget) { b.Interval = 10*time.Millisecond - 1 }), "interval"},
		"minimum interval":           {on(func(b *dataplane.Budget) { b.Interval = 10 * time.Millisecond }), ""},
		"maximum interval":           {on(func(b *dataplane.Budget) { b.Interval = 10 * time.Second }), ""},
		"interval above the maximum": {on(func(b *dataplane.Budget) { b.Interval = 10*time.Second + 1 }), "interval"},
		"negative interval":          {on(func(b *dataplane.Budget) { b.Interval = -1 }), "interval"},
		"negative rescue":            {on(func(b *dataplane.Budget) { b.Rescue = dataplane.Fraction{Num: -1, Den: 2} }), "rescue"},
		"rescue 0":                   {on(func(b *dataplane.Budget) { b.Rescue = dataplane.Fraction{Num: 0, Den: 2} }), ""},
		"rescue 1":                   {on(func(b *dataplane.Budget) { b.Rescue = dataplane.Fraction{Num: 2, Den: 2} }), ""},
		"rescue above 1":             {on(func(b *dataplane.Budget) { b.Rescue = dataplane.Fraction{Num: 3, Den: 2} }), "rescue"},
		"negative weight":            {on(func(b *dataplane.Budget) { b.Weight = -1 }), "weight"},
		"maximum weight":             {on(func(b *dataplane.Budget) { b.Weight = dataplane.MaxWeight }), ""},
		"weight above the maximum":   {on(func(b *dataplane.Budget) { b.Weight = dataplane.MaxWeight + 1 }), "weight"},
		"negative hosts":             {on(func(b *dataplane.Budget) { b.Hosts = -1 }), "hosts"},
		"maximum hosts":              {on(func(b *dataplane.Budget) { b.Hosts = dataplane.MaxHosts }), ""},
		"hosts above the maximum":    {on(func(b *dataplane.Budget) { b.Hosts = dataplane.MaxHosts + 1 }), "hosts"},

		"options of a server on the host": {budgeted(bucket, dataplane.Budget{Name: "b", Interval: -1, Weight: -1, Hosts: -1}), "interval weight hosts"},
		"once on the host":                {budgeted(bucket, dataplane.Budget{Name: "b", Once: true}), ""},
		"once on a server":                {on(func(b *dataplane.Budget) { b.Once = true }), "count"},
		"keys":                            {with(host(bucket), func(m *dataplane.Meter) { m.Per = dataplane.Key{By: dataplane.BySrc} }), "share"},
		"envelope":                        {with(host(meter.TRTCM4115{CIR: frametest.Mega, CBS: 1000}), func(m *dataplane.Meter) { m.Envelope, m.Rank = &dataplane.Envelope{Name: "e"}, 1 }), "share"},
		"window on the host":              {host(meter.FixedWindow{Limit: 1000, Window: time.Second}), ""},
		"counter on the host":             {host(meter.SlidingCounter{Limit: 1000, Window: time.Second}), ""},
		"log on the host":                 {host(meter.SlidingLog{Limit: 1000, Window: time.Second, Entries: 10}), "share"},
		"average on the host":             {host(meter.TSWTCM{CIR: frametest.Mega, PIR: frametest.Mega, Window: time.Second}), "share"},
		"buckets on a server":             {remote(meter.TRTCM{CIR: frametest.Mega, CBS: 1000, PIR: frametest.Mega, PBS: 1000}), ""},
		"window on a server":              {remote(meter.FixedWindow{Limit: 1000, Window: time.Second}), "share"},
		"log on a server":                 {remote(meter.SlidingLog{Limit: 1000, Window: time.Second, Entries: 10}), "share"},
		"warm-up on the host":             {host(warm), ""},
		"warm-up on a server":             {remote(warm), "warmup"},
		"initial tokens, host":            {with(host(bucket), func(m *dataplane.Meter) { m.Initial = dataplane.Fraction{Num: 1, Den: 2} }), ""},
		"initial tokens, server":          {with(remote(bucket), func(m *dataplane.Meter) { m.Initial = dataplane.Fraction{Num: 1, Den: 2} }), "initial"},
		"zero initial tokens, host":       {with(host(bucket), func(m *dataplane.Meter) { m.Initial = dataplane.Fraction{Num: 0, Den: 1} }), ""},
	} {
		_, err := Compile(test.policy)
		var fields []string
		if err != nil {
			for _, e := range frametest.FieldErrors(t, err) {
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
	if _, err := Compile(policyOf("a: m=x\nb: n=x")); err == nil ||
		!strings.Contains(err.Error(), "another meter") {
		t.Errorf("a budget of two meters: got %v, want an error", err)
	}
	if _, err := Compile(policyOf("a: m=x\nb: m=x\nc: n=y")); err != nil {
		t.Error(err)
	}
}

// TestBudgetOnceChain checks that a chain has at most one budget that charges a packet once, wherever the
// chain begins. Classes with different ones are fine.
func TestBudgetOnceChain(t *testing.T) {
	m := func(name string, once bool, then *dataplane.Meter) *dataplane.Meter {
		return &dataplane.Meter{
			Name: name, Params: meter.TokenBucket{Rate: frametest.Mega, Burst: 1000}, Aware: true, Then: then,
			Budget: &dataplane.Budget{Name: name, Once: once},
		}
	}
	total := m("total", true, nil)
	plain := m("plain", false, total)
	for name, test := range map[string]struct {
		meters []*dataplane.Meter
		want   int
	}{
		"one of a chain":          {[]*dataplane.Meter{m("a", false, m("b", true, nil))}, 0},
		"two of a chain":          {[]*dataplane.Meter{m("a", true, m("b", true, nil))}, 1},
		"with one between":        {[]*dataplane.Meter{m("a", true, plain)}, 1},
		"a chain known before":    {[]*dataplane.Meter{plain, m("a", true, plain)}, 1},
		"the same of two chains":  {[]*dataplane.Meter{m("a", true, total), m("b", true, total)}, 1},
		"three of a chain":        {[]*dataplane.Meter{m("a", true, m("b", true, m("c", true, nil)))}, 2},
		"two classes, two meters": {[]*dataplane.Meter{m("a", true, nil), m("b", true, nil)}, 0},
	} {
		p := &dataplane.Policy{}
		for i, m := range test.meters {
			p.Classes = append(p.Classes, dataplane.Class{Name: string(rune('a' + i)), Meter: m})
		}
		_, err := Compile(p)
		found := 0
		if err != nil {
			for _, e := range frametest.FieldErrors(t, err) {
				if e.Field == "count" && strings.Contains(e.Reason, "in a chain with budget") {
					found++
				}
			}
		}
		if found != test.want {
			t.Errorf("%s: %d errors, want %d: %v", name, found, test.want, err)
		}
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
	want := dataplane.Budget{
		Name: "b", Address: frametest.Server, Interval: 100 * time.Millisecond,
		Rescue: dataplane.Fraction{Num: 50, Den: 100}, Weight: 1, Hosts: 16,
	}
	if got := (dataplane.Budget{Name: "b", Address: frametest.Server}).Resolved(); got != want {
		t.Errorf("defaults %+v, want %+v", got, want)
	}
	own := dataplane.Budget{
		Name: "b", Interval: time.Second, Rescue: dataplane.Fraction{Num: 0, Den: 1}, Weight: 2, Hosts: 3,
	}
	if got := own.Resolved(); got != own {
		t.Errorf("Resolved returned %+v, want %+v unchanged", got, own)
	}
	p := compilePlan(t, policyOf("a: m=x > n\nb: o@y"))
	if got := p.Budgets(); !slices.Equal(got, []int{0, 2}) {
		t.Errorf("stages with a budget %v, want 0 and 2", got)
	}
	if a, b := p.Stages[0], p.Stages[2]; a.Leased || !b.Leased || a.BudgetName != "x" ||
		b.BudgetName != "y" ||
		*b.Budget != (&dataplane.Budget{Name: "y", Address: frametest.Server}).Resolved() {
		t.Errorf("got stages %+v and %+v, want budget x without a lease and budget y with one", a, b)
	}
}
