package compiled

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/internal/frametest"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

func compilePlan(t testing.TB, policy *dataplane.Policy) *Plan {
	t.Helper()
	plan, err := Compile(policy)
	if err != nil {
		t.Fatal(err)
	}
	return plan
}

// policyOf returns a policy of classes, each on a line "name: meter > meter". A meter may
// count packets ("meter#"), or have a budget on the host ("meter=budget") or on a server
// ("meter@budget"). Each queue gets a class of its own.
func policyOf(text string, queues ...*dataplane.Queue) *dataplane.Policy {
	p := &dataplane.Policy{}
	meters := map[string]*dataplane.Meter{}
	for line := range strings.SplitSeq(text, "\n") {
		name, chain, _ := strings.Cut(strings.TrimSpace(line), ": ")
		c := dataplane.Class{
			Name: name, Match: dataplane.Match{DSCP: frametest.Values(uint32(len(p.Classes)))},
		}
		var last *dataplane.Meter
		for word := range strings.FieldsFuncSeq(chain, func(r rune) bool { return r == '>' || r == ' ' }) {
			m := meters[word]
			if m == nil {
				m = &dataplane.Meter{
					Name: word, Params: meter.TokenBucket{Rate: frametest.Mega, Burst: 1000},
					Aware: last != nil, Packets: strings.HasSuffix(word, "#"),
				}
				if _, budget, ok := strings.Cut(word, "="); ok {
					m.Budget = &dataplane.Budget{Name: budget}
				} else if _, budget, ok := strings.Cut(word, "@"); ok {
					m.Budget = &dataplane.Budget{Name: budget, Address: dataplane.Address{URL: "redis://h"}}
				}
				meters[word] = m
			}
			if last == nil {
				c.Meter = m
			} else {
				last.Then = m
			}
			last = m
		}
		p.Classes = append(p.Classes, c)
	}
	for _, q := range queues {
		p.Classes = append(p.Classes, dataplane.Class{
			Name:  fmt.Sprint("to ", len(p.Classes)),
			Match: dataplane.Match{VLAN: frametest.Values(uint32(len(p.Classes)))},
			Green: &dataplane.Action{Queue: q},
		})
	}
	return p
}

// TestSucceed has a row for each rule of a succession.
func TestSucceed(t *testing.T) {
	for _, test := range []struct {
		name, before, after string
		classes, stages     []int
		changes             string
	}{
		{"same policy", "a: m > n\nb: o", "a: m > n\nb: o", []int{0, 1}, []int{0, 1, 2}, "a kept, b kept"},
		{"classes by name, not by position", "a: m\nb: o", "b: x\na: y", []int{1, 0}, []int{1, 0}, "b kept, a kept"},
		{"a new class and a removed one", "a: m", "b: m", []int{-1}, []int{-1}, "b new, a gone"},
		{"meters by their position in the chain", "a: m > n", "a: n > m > o", []int{0}, []int{0, 1, -1}, "a kept"},
		{"a shorter chain", "a: m > n", "a: n", []int{0}, []int{0}, "a kept"},
		{"bytes do not continue packets", "a: m > n#", "a: m# > n#", []int{0}, []int{-1, 1}, "a kept"},
		{"a meter of two classes continues that of the first", "a: m\nb: n", "a: o\nb: o", []int{0, 1}, []int{0}, "a kept, b kept"},
		{"that of the second, if the first has another unit", "a: m#\nb: n", "a: o\nb: o", []int{0, 1}, []int{1}, "a kept, b kept"},
		{"two meters continue the same one", "a: m\nb: m", "a: x\nb: y", []int{0, 1}, []int{0, 0}, "a kept, b kept"},
		{"a class without a meter", "a: m\nb", "a\nb: n", []int{0, 1}, []int{-1}, "a kept, b kept"},
		{"a budget on a server at any position", "a: m@x\nb: n@y", "c: o@y\na: p@x", []int{-1, 0}, []int{1, 0}, "c new, a kept, b gone"},
		{"another budget on a server", "a: m@x", "a: m@y", []int{0}, []int{0}, "a kept"},
		{"a budget on a server, another unit", "a: m@x", "b: m#@x", []int{-1}, []int{0}, "b new, a gone"},
		{"a budget of the host by class", "a: m=x\nb: n=y", "b: m=x\na: n=y", []int{1, 0}, []int{1, 0}, "b kept, a kept"},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := compilePlan(t, policyOf(test.after)).Succeed(compilePlan(t, policyOf(test.before)).Outline())
			var changes []string
			for _, c := range s.Changes {
				changes = append(changes, c.Class+" "+c.Effect)
			}
			if !slices.Equal(s.Classes, test.classes) || !slices.Equal(s.Stages, test.stages) ||
				strings.Join(changes, ", ") != test.changes {
				t.Errorf("classes %v, stages %v, %q: want %v, %v, %q", s.Classes, s.Stages, changes,
					test.classes, test.stages, test.changes)
			}
		})
	}
}

// TestSucceedQueues checks that queues and links continue those of the same name, each
// only once.
func TestSucceedQueues(t *testing.T) {
	wan, lan := &dataplane.Link{Name: "wan", Rate: frametest.Mega},
		&dataplane.Link{Name: "lan", Rate: frametest.Mega}
	own := func(name string) *dataplane.Queue {
		return &dataplane.Queue{Name: name, Config: queue.Config{Rate: frametest.Mega, Time: time.Second}}
	}
	of := func(name string, l *dataplane.Link) *dataplane.Queue {
		return &dataplane.Queue{Name: name, Link: l, Config: queue.Config{Time: time.Second}}
	}
	before := compilePlan(t, policyOf("a", own("x"), own("x"), of("y", wan), own("z"))).Outline()
	after := compilePlan(t, policyOf("a", of("z", lan), of("y", wan), own("x"), own("x"), own("x"), own("w")))
	s := after.Succeed(before)
	if !slices.Equal(s.Queues, []int{3, 2, 0, 1, -1, -1}) || !slices.Equal(s.Links, []int{-1, 0}) {
		t.Errorf("got queues %v and links %v, want [3 2 0 1 -1 -1] and [-1 0]", s.Queues, s.Links)
	}
}

// TestSucceedNone checks that all parts of a first plan start anew.
func TestSucceedNone(t *testing.T) {
	s := compilePlan(t, policyOf("a: m > n\nb", &dataplane.Queue{
		Name: "q", Link: &dataplane.Link{Name: "l", Rate: frametest.Mega}, Config: queue.Config{Bytes: 9000},
	})).Succeed(&Outline{})
	if !slices.Equal(s.Classes, []int{-1, -1, -1}) || !slices.Equal(s.Stages, []int{-1, -1}) ||
		!slices.Equal(s.Queues, []int{-1}) || !slices.Equal(s.Links, []int{-1}) {
		t.Errorf("succession %+v, want -1 for each part", s)
	}
}

// TestOutline checks the parts of an outline, and invalid outlines.
func TestOutline(t *testing.T) {
	q := &dataplane.Queue{Name: "q", Config: queue.Config{Rate: frametest.Mega, Time: time.Second}}
	policy := policyOf("a: m > n\nb")
	policy.Classes[0].Yellow, policy.Classes[1].Green, policy.Classes[1].Red = &dataplane.Action{Queue: q},
		&dataplane.Action{Queue: q}, &dataplane.Action{Queue: q}
	o := compilePlan(t, policy).Outline()
	if got := o.Chain(0); !slices.Equal(got, []int{0, 1}) || o.Chain(1) != nil {
		t.Errorf("chains %v and %v, want [0 1] and none", got, o.Chain(1))
	}
	if o.Classes[0].Queues != [3]int{-1, 0, -1} || o.Classes[1].Queues != [3]int{0, -1, -1} ||
		o.Feeds(0) != 2 {
		t.Errorf("classes %+v, %d colors feed the queue, want 2", o.Classes, o.Feeds(0))
	}
	if b := o.Stages[0].Buckets; len(b) != 1 || b[0] != (BucketOutline{"Tc", 1000}) {
		t.Errorf("buckets %+v, want Tc of 1000", b)
	}
	links := Outline{Links: []string{"site", "ap", "dish"}, Above: []int{-1, 0, 1}}
	if got := links.Path(2); got != "site/ap/dish" || links.Path(0) != "site" || !links.Valid() {
		t.Errorf("path %s and %s, want site/ap/dish and site", got, links.Path(0))
	}
	if flat := (Outline{Links: []string{"wan"}}); flat.Path(0) != "wan" || !flat.Valid() {
		t.Errorf("path %s without a tree, want wan", flat.Path(0))
	}
	for name, bad := range map[string]Outline{
		"class":     {Classes: []ClassOutline{{Stage: 0}}},
		"queue":     {Classes: []ClassOutline{{Stage: -1, Queues: [3]int{0, -1, -1}}}},
		"stage":     {Stages: []StageOutline{{Then: 1}}},
		"then -2":   {Stages: []StageOutline{{Then: -2}}},
		"loop of 1": {Stages: []StageOutline{{Then: 0}}},
		"loop of 3": {Stages: []StageOutline{{Then: 1}, {Then: 2}, {Then: 0}}},
		"link":      {Queues: []QueueOutline{{Link: 0}}},
		"link -2":   {Queues: []QueueOutline{{Link: -2}}},
		"above -2":  {Links: []string{"a"}, Above: []int{-2}},
		"above 0":   {Links: []string{"a"}, Above: []int{0}},
		"above 1":   {Links: []string{"a", "b"}, Above: []int{1, -1}},
		"above":     {Links: []string{"a", "b"}, Above: []int{-1}},
	} {
		if bad.Valid() {
			t.Errorf("invalid %s: %+v is valid", name, bad)
		}
	}
}

// TestUnusedParts checks that a meter, a queue and a link that no class uses are compiled
// for their errors, but are not part of the plan.
func TestUnusedParts(t *testing.T) {
	good := &dataplane.Meter{Name: "good", Params: meter.TokenBucket{Rate: frametest.Mega, Burst: 1}}
	policy := policyOf("a: m")
	policy.Meters = []*dataplane.Meter{policy.Classes[0].Meter, good}
	policy.Queues = []*dataplane.Queue{{Name: "q", Config: queue.Config{Rate: frametest.Mega, Bytes: 1}}}
	policy.Links = []*dataplane.Link{{Name: "l", Rate: frametest.Mega}}
	if plan := compilePlan(t, policy); len(plan.Stages) != 1 || len(plan.Queues)+len(plan.Links) != 0 ||
		plan.Stage(good) != -1 {
		t.Errorf("got %+v, want one stage and no unused part", plan.Outline())
	}
	bad := *policy
	m, q, l := &dataplane.Meter{Name: "m", Params: meter.TokenBucket{Rate: frametest.Mega}},
		&dataplane.Queue{Name: "q"}, &dataplane.Link{Name: "l"}
	bad.Meters, bad.Queues, bad.Links = []*dataplane.Meter{m}, []*dataplane.Queue{q}, []*dataplane.Link{l}
	_, err := Compile(&bad)
	var objects []any
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, err := range joined.Unwrap() {
			var e *dataplane.FieldError
			if errors.As(err, &e) && !slices.Contains(objects, e.Object) {
				objects = append(objects, e.Object)
			}
		}
	}
	if !slices.Equal(objects, []any{m, q, l}) {
		t.Errorf("errors of %v, want those of meter, queue and link: %v", objects, err)
	}
}
