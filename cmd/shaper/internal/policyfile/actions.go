package policyfile

import (
	"go.yaml.in/yaml/v3"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// action reads pass, drop, or a mapping of several actions.
func (l *loader) action(n *yaml.Node) *dataplane.Action {
	a := &dataplane.Action{}
	l.keepPlaces(a, n)
	if n.Kind == yaml.ScalarNode {
		s, ok := l.text(n, "an action")
		if a.Drop = s == "drop"; ok && !a.Drop && s != "pass" {
			l.fail(n, "unknown action %q: want pass, drop or a map such as {dscp: af12}", s)
		}
		return a
	}
	var otherwise *yaml.Node
	known := keys{
		{"ecn", func(n *yaml.Node) {
			if _, ok := l.word(n, "ecn", "ce"); ok {
				a.ECN = dataplane.CE
			}
		}},
		{"else", func(n *yaml.Node) { otherwise = n }},
		{"queue", func(n *yaml.Node) { a.Queue = l.namedQueue(n) }},
	}
	for _, f := range fields {
		known = append(known, entry{f.String(), func(n *yaml.Node) {
			v, ok := parsed(l, n, f.String(), func(s string) (uint32, error) { return fieldValue(f, s) })
			if ok {
				a.Marks = append(a.Marks, dataplane.Mark{Field: f, Value: v})
			}
		}})
	}
	l.mapping(n, "an action", known)
	if otherwise != nil {
		drop := l.second(otherwise, "else", "pass", "drop")
		switch {
		case a.ECN == dataplane.NoECN:
			l.fail(otherwise, "else is the action for packets that are not ECN-capable: it needs ecn: ce")
		case drop:
			a.ECN = dataplane.CEOrDrop
		}
	}
	return a
}

// namedQueue returns the queue of a name.
func (l *loader) namedQueue(n *yaml.Node) *dataplane.Queue {
	name, ok := l.text(n, "queue")
	if !ok {
		return nil
	}
	q := l.queues[name]
	if q == nil {
		l.fail(n, "no queue named %q%s: %s", name,
			l.didYouMean("queue", name, func() []string { return sorted(l.queues) }), l.queueHint)
	}
	return q
}
