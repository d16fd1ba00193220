package image

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/iface"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/kerneltest"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/qdisc"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/record"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// policyOf returns a policy with a class for each queue. Queues without a limit have one of 10 kB.
func policyOf(queues ...*dataplane.Queue) *dataplane.Policy {
	policy := &dataplane.Policy{}
	for _, q := range queues {
		if q.Bytes == 0 {
			q.Bytes = 10_000
		}
		policy.Classes = append(policy.Classes,
			dataplane.Class{Name: q.Name, Green: &dataplane.Action{Queue: q}})
	}
	return policy
}

// mbit returns a rate of n Mbit/s.
func mbit(n int64) meter.Rate { return meter.BitRate(n * 1_000_000) }

// TestLinkTree checks the classes of a tree. Inner links have the rate that they can count on. So have queues
// beside links; other queues have their guarantee, if it fits. Priorities of links come before those of
// queues.
func TestLinkTree(t *testing.T) {
	t.Parallel()
	site := &dataplane.Link{Name: "site", Rate: mbit(80)}
	fast := &dataplane.Link{Name: "fast", Link: site, Rate: mbit(48), Guarantee: mbit(8), Weight: 2}
	slow := &dataplane.Link{Name: "slow", Link: site, Weight: 1}
	last := &dataplane.Link{Name: "last", Link: site, Priority: 3}
	deep := &dataplane.Link{Name: "deep", Link: slow, Rate: mbit(4)}
	flat := &dataplane.Link{Name: "flat", Rate: mbit(8)}
	g, err := encoded(policyOf(
		&dataplane.Queue{Name: "a", Link: fast, Priority: 1},
		&dataplane.Queue{Name: "b", Link: fast, Priority: 5, Guarantee: mbit(16), Weight: 4},
		&dataplane.Queue{Name: "c", Link: fast, Config: queue.Config{Rate: mbit(2)}, Priority: 5},
		&dataplane.Queue{Name: "d", Link: deep},
		&dataplane.Queue{Name: "e", Link: slow},
		&dataplane.Queue{Name: "f", Link: last, Priority: 1},
		&dataplane.Queue{Name: "g", Link: site, Weight: 1, Priority: 1},
		&dataplane.Queue{Name: "h", Link: flat, Priority: 6, Guarantee: mbit(8)},
	), EgressEntry, record.HTB)
	if err != nil {
		t.Fatal(err)
	}
	g.Inherit(&record.About{}, nil)
	got := g.Tree(&iface.Device{MTU: 1500, LinkType: dataplane.LinkEthernet})
	names, link := map[uint16]string{}, map[string]qdisc.Link{}
	leaf, linkOf := map[string]qdisc.Leaf{}, map[string]string{}
	for i, l := range got.Links {
		name := g.Plan.Links[i].Name
		names[l.ID], link[name] = name, l
	}
	for i, l := range got.Leaves {
		q := &g.Plan.Queues[i]
		leaf[q.Name], linkOf[q.Name] = l, q.Source.Link.Name
	}
	const mb = 1_000_000 / 8
	for name, want := range map[string]qdisc.Link{
		// fast gets 8 + 2/3 of 72 Mbit/s, limited to 48; slow the rest, as last and g have lower priorities
		"site": {Rate: 80 * mb, Credit: LeafCredit},
		"fast": {Rate: 48 * mb, Guarantee: 48 * mb},
		"slow": {Guarantee: 32 * mb},
		"last": {},
		"deep": {Rate: 4 * mb, Guarantee: 4 * mb},
		"flat": {Rate: 8 * mb, Credit: LeafCredit},
	} {
		above := map[string]string{"fast": "site", "slow": "site", "last": "site", "deep": "slow"}[name]
		l := link[name]
		if names[l.Parent] != above {
			t.Errorf("link %s is below %q, want %q", name, names[l.Parent], above)
		}
		if l.ID, l.Parent = 0, 0; l != want {
			t.Errorf("link %s: got %+v, want %+v", name, l, want)
		}
	}
	for name, want := range map[string]qdisc.Leaf{
		"a": {Priority: 1, Quantum: 1514},
		"b": {Priority: 2, Quantum: 4 * 1514, Guarantee: 16 * mb},
		"c": {Priority: 2, Quantum: 1514, Rate: 2 * mb},
		"d": {Priority: 0, Quantum: 1514}, // alone on its link
		"e": {Priority: 0, Quantum: 1514, Guarantee: 28 * mb},
		"f": {Priority: 4, Quantum: 1514},
		"g": {Priority: 3, Quantum: 1514},
		"h": {Priority: 6, Quantum: 1514, Guarantee: 8 * mb},
	} {
		l := leaf[name]
		if l.Parent != link[linkOf[name]].ID {
			t.Errorf("queue %s is below %q, want %q", name, names[l.Parent], linkOf[name])
		}
		want.Limit, l.ID, l.Parent = 10_000, 0, 0
		if l != want {
			t.Errorf("queue %s: got %+v, want %+v", name, l, want)
		}
	}
}

// TestLinkRefusals checks that trees beyond HTB's limits are rejected.
func TestLinkRefusals(t *testing.T) {
	t.Parallel()
	chain := func(links int) *dataplane.Policy {
		l := &dataplane.Link{Name: "0", Rate: kerneltest.EightMbit}
		for i := range links - 1 {
			l = &dataplane.Link{Name: fmt.Sprint(i + 1), Link: l}
		}
		return policyOf(&dataplane.Queue{Name: "q", Link: l})
	}
	ranked := func(n int) *dataplane.Policy {
		root := &dataplane.Link{Name: "root", Rate: kerneltest.EightMbit}
		list := []*dataplane.Queue{{Name: "own", Link: root}}
		for i := range n - 1 {
			l := &dataplane.Link{Name: fmt.Sprint(i), Link: root, Priority: 1 + i%2}
			list = append(list, &dataplane.Queue{Name: l.Name, Link: l, Priority: i / 2})
		}
		return policyOf(list...)
	}
	wide := func(n int) *dataplane.Policy { // in rows of 5 links, each row with a queue
		root := &dataplane.Link{Name: "root", Rate: kerneltest.EightMbit}
		var list []*dataplane.Queue
		above := root
		for i := range n - 1 {
			l := &dataplane.Link{Name: fmt.Sprint("l", i), Link: above}
			if above = l; i%5 == 4 || i == n-2 {
				list = append(list, &dataplane.Queue{Name: l.Name, Link: l})
				above = root
			}
		}
		return policyOf(list...)
	}
	for _, test := range []struct {
		name, field, reason string
		policy              *dataplane.Policy
	}{
		{"most levels", "", "", chain(qdisc.MaxLevels - 1)},
		{"levels", "link", "makes a tree of 8 levels with its queues", chain(qdisc.MaxLevels)},
		{"most priorities", "", "", ranked(8)},
		{"priorities", "priority", "has 9 combinations: HTB has 8 priorities", ranked(9)},
		{"many links", "", "", wide(1200)},
		{"links", "links", "1501 exceed the kernel plane's limit of 1500", wide(1501)},
	} {
		_, err := encoded(test.policy, EgressEntry, record.HTB)
		if test.field == "" {
			if err != nil {
				t.Errorf("%s: %v", test.name, err)
			}
			continue
		}
		errs := kerneltest.FieldErrors(err)
		if !slices.ContainsFunc(errs, func(e *dataplane.FieldError) bool {
			return e.Field == test.field && strings.Contains(e.Reason, test.reason)
		}) {
			t.Errorf("%s: got error %v, want %q of %q", test.name, err, test.reason, test.field)
		}
	}
}

// TestLinkMoves checks that links keep their classes in a new policy, except those that move, with all links
// below them.
func TestLinkMoves(t *testing.T) {
	t.Parallel()
	var about record.About
	classes := map[string]uint16{}
	for i, step := range []struct {
		links string // link:above ...
		keep  string
	}{
		{"a: b:a c:b d:a", ""},
		{"a: b:a c:b d:a", "a b c d"},
		{"a: d:a c:b b:a e:d", "a b c d"},
		{"a: b:d c:b d:a", "a d"},
		{"a: b: c:b d:a", "a d"},
		{"a: b: c:b d:a", "a b c d"},
		{"b: a:b d:a c:b", "b c"},
	} {
		links := map[string]*dataplane.Link{}
		get := func(name string) *dataplane.Link {
			if links[name] == nil {
				links[name] = &dataplane.Link{Name: name}
			}
			return links[name]
		}
		var queues []*dataplane.Queue
		for _, text := range strings.Fields(step.links) {
			name, above, _ := strings.Cut(text, ":")
			if get(name).Rate = mbit(1); above != "" {
				get(name).Link = get(above)
			}
			queues = append(queues, &dataplane.Queue{Name: name, Link: get(name)})
		}
		g, err := encoded(policyOf(queues...), EgressEntry, record.HTB)
		if err != nil {
			t.Fatal(err)
		}
		g.Inherit(&about, nil)
		seen := map[uint16]string{}
		for k, id := range g.linkIDs {
			name := g.Plan.Links[k].Name
			kept := strings.Contains(step.keep, name)
			if kept != (id == classes[name]) || id == 0 || seen[id] != "" {
				t.Errorf("step %d: link %s has class %d, before %d: kept: %v; also of %q", i, name, id,
					classes[name], kept, seen[id])
			}
			if !kept {
				for _, before := range about.Links {
					if before == id {
						t.Errorf("step %d: link %s has class %d of the previous policy", i, name, id)
					}
				}
			}
			seen[id] = name
		}
		for k, id := range g.linkIDs {
			classes[g.Plan.Links[k].Name] = id
		}
		g.Describe(&about)
	}
}
