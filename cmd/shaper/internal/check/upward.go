package check

import (
	"bytes"
	"reflect"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// directedTrees are the trees of a policy for packets of one direction.
type directedTrees struct {
	*say.Trees
	policy *dataplane.Policy
}

func newDirectedTrees(p *dataplane.Policy) *directedTrees { return &directedTrees{say.NewTrees(p), p} }

// bothTrees are the trees of a policy for packets to the customers and from them.
type bothTrees struct{ down, up *directedTrees } // up is nil if it is the same

func newBothTrees(policy *policyfile.Compiled) bothTrees {
	t := bothTrees{down: newDirectedTrees(policy.Policy)}
	if up := policy.Plan.Up; up != nil {
		t.up = newDirectedTrees(up.Source)
	}
	return t
}

// service describes the service of queue i.
func (t bothTrees) service(i int, mtu int64) []say.Part {
	parts := t.down.service(i, mtu)
	if t.up != nil {
		parts = say.Both(parts, t.up.service(i, mtu))
	}
	return parts
}

func (t *directedTrees) service(i int, mtu int64) []say.Part {
	q := t.policy.Queues[i]
	switch n := t.Nodes[q]; {
	case n == nil:
		return nil
	case t.Root(n).Flat():
		return say.ServiceOf(q, t.policy.Queues, mtu).Parts(q)
	default:
		return []say.Part{n.Service()}
	}
}

// trees prints the trees: those for packets from the customers too, if they differ.
func (p policyPrinter) trees(t bothTrees) {
	for i := range t.down.Roots {
		down := t.down.text(i)
		p.Printf("\nlink %s\n%s", t.down.Roots[i].Name(), down)
		if t.up == nil {
			continue
		}
		if up := t.up.text(i); up != down {
			p.Printf("\nlink %s,%s\n%s", t.up.Roots[i].Name(), say.Up, up)
		}
	}
}

// text describes tree i.
func (t *directedTrees) text(i int) string {
	var out bytes.Buffer
	p := policyPrinter{say.NewPrinter(&out)}
	if root := t.Roots[i]; root.Flat() {
		p.link(root.Link, t.policy.Queues)
	} else {
		p.tree(root)
	}
	return out.String()
}

// queuesJSON returns all queues.
func (t bothTrees) queuesJSON(mtu int64) []checkQueueJSON {
	list := t.down.queuesJSON(mtu)
	if t.up == nil {
		return list
	}
	for i, up := range t.up.queuesJSON(mtu) {
		if !reflect.DeepEqual(up, list[i]) {
			list[i].Up = &up
		}
	}
	return list
}

func (t *directedTrees) queuesJSON(mtu int64) (list []checkQueueJSON) {
	for _, q := range t.policy.Queues {
		list = append(list, queueJSON(q, t.policy.Queues, t.Trees, mtu))
	}
	return list
}

// linksJSON returns all links.
func (t bothTrees) linksJSON() []checkLinkJSON {
	list := t.down.linksJSON()
	if t.up == nil {
		return list
	}
	for i, up := range t.up.linksJSON() {
		if !reflect.DeepEqual(up, list[i]) {
			list[i].Up = &up
		}
	}
	return list
}

func (t *directedTrees) linksJSON() (list []checkLinkJSON) {
	for _, root := range t.Roots {
		list = append(list, linksJSON(root)...)
	}
	return list
}
