package oracle

import (
	"errors"
	"fmt"
	"slices"
	"strconv"

	"go.yaml.in/yaml/v3"
)

type policy struct {
	classes   []*class
	customers *customers // nil: none
	envelopes map[string]*envelope
	queues    map[string]*queue
	links     map[string]*node
	trees     []*tree
	length    lengthRule
	closed    bool // unclassified packets are dropped
	ingress   bool // as Site.Ingress
}

type class struct {
	name        string
	match       match
	perCustomer bool
	chain       []*meter
	actions     [3]action // by color
}

// action is the action for packets of one color. A mark of -1 is none.
type action struct {
	drop                  bool
	ecn, elseDrop         bool
	dscp, pcp, mpls, mark int
	queue                 string
}

var pass = action{dscp: -1, pcp: -1, mpls: -1, mark: -1}

// at adds the place in the policy to an error.
func at(n *yaml.Node, err error) error {
	return fmt.Errorf("line %d: %w", n.Line, err)
}

// mapping returns the entries of a YAML mapping. If names are given, other keys are errors.
func mapping(n *yaml.Node, names ...string) (map[string]*yaml.Node, error) {
	if n.Kind != yaml.MappingNode {
		return nil, at(n, errors.New("not a map"))
	}
	entries := map[string]*yaml.Node{}
	for i := 0; i < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if entries[key.Value] != nil {
			return nil, at(key, fmt.Errorf("%q twice", key.Value))
		}
		if len(names) > 0 && !slices.Contains(names, key.Value) {
			return nil, at(key, fmt.Errorf("%q is unknown here", key.Value))
		}
		entries[key.Value] = value
	}
	return entries, nil
}

func scalar(n *yaml.Node) (string, error) {
	if n.Kind != yaml.ScalarNode {
		return "", at(n, errors.New("not a single value"))
	}
	return n.Value, nil
}

// optional returns the scalar of a key, or otherwise if the key is missing.
func optional(entries map[string]*yaml.Node, key, otherwise string) (string, error) {
	if entries[key] == nil {
		return otherwise, nil
	}
	return scalar(entries[key])
}

func (s Site) parse(text []byte) (*policy, error) {
	var document yaml.Node
	if err := yaml.Unmarshal(text, &document); err != nil {
		return nil, err
	}
	if len(document.Content) == 0 {
		return nil, errors.New("empty policy")
	}
	top, err := mapping(document.Content[0], "classes", "meters", "envelopes", "queues", "links", "length",
		"otherwise", "customers", "plans")
	if err != nil {
		return nil, err
	}
	p := &policy{
		ingress:   s.Ingress,
		envelopes: map[string]*envelope{},
		queues:    map[string]*queue{},
		links:     map[string]*node{},
		length:    lengthRule{base: "l3"},
	}

	otherwise, err := optional(top, "otherwise", "pass")
	if err != nil || otherwise != "pass" && otherwise != "drop" {
		return nil, errors.Join(err, fmt.Errorf("otherwise: %q is not pass or drop", otherwise))
	}
	p.closed = otherwise == "drop"
	if n := top["length"]; n != nil {
		if p.length, err = parseLength(n); err != nil {
			return nil, err
		}
	}
	if n := top["links"]; n != nil {
		if err := p.parseLinks(n); err != nil {
			return nil, err
		}
	}
	if n := top["queues"]; n != nil {
		entries, err := mapping(n)
		if err != nil {
			return nil, err
		}
		for name, n := range entries {
			q, err := parseQueue(n, p.links, false)
			if err != nil {
				return nil, err
			}
			p.queues[name] = q
			if q.link != nil && q.rate != nil {
				p.trees = append(p.trees, q.link.tree)
			}
		}
	}
	if n := top["envelopes"]; n != nil {
		entries, err := mapping(n)
		if err != nil {
			return nil, err
		}
		for name, n := range entries {
			if p.envelopes[name], err = parseEnvelope(n); err != nil {
				return nil, err
			}
		}
	}
	meters := map[string]*meter{}
	if n := top["meters"]; n != nil {
		entries, err := mapping(n)
		if err != nil {
			return nil, err
		}
		for name, n := range entries {
			if meters[name], err = parseMeter(n, p.envelopes); err != nil {
				return nil, err
			}
		}
	}
	if top["classes"] == nil || top["classes"].Kind != yaml.SequenceNode {
		return nil, errors.New("classes is not a list")
	}
	seen := map[string]bool{}
	for _, n := range top["classes"].Content {
		c, err := p.parseClass(n, meters)
		if err != nil {
			return nil, err
		}
		if c.name == "" || seen[c.name] {
			return nil, at(n, errors.New("a class needs a name of its own"))
		}
		seen[c.name] = true
		p.classes = append(p.classes, c)
		for _, a := range c.actions {
			if a.queue != "" {
				p.queues[a.queue].share()
			}
		}
	}
	for name, e := range p.envelopes {
		if err := e.flags(); err != nil {
			return nil, fmt.Errorf("envelope %s: %w", name, err)
		}
	}
	return p, p.parseTable(top, s)
}

// mostAdded is the maximum of overhead, in both directions, and of mpu, in bytes.
const mostAdded = 32768

func parseLength(n *yaml.Node) (lengthRule, error) {
	rule := lengthRule{base: "l3"}
	base := n
	if n.Kind == yaml.MappingNode {
		entries, err := mapping(n, "base", "overhead", "mpu")
		if err != nil {
			return rule, err
		}
		for key, into := range map[string]*int64{"overhead": &rule.overhead, "mpu": &rule.mpu} {
			s, err := optional(entries, key, "0")
			if err != nil {
				return rule, err
			}
			if *into, err = strconv.ParseInt(s, 10, 32); err != nil {
				return rule, at(n, err)
			}
		}
		if max(rule.overhead, -rule.overhead, rule.mpu) > mostAdded || rule.mpu < 0 {
			return rule, at(n, fmt.Errorf("overhead %d, mpu %d: out of range", rule.overhead, rule.mpu))
		}
		if base = entries["base"]; base == nil {
			return rule, nil
		}
	}
	var err error
	if rule.base, err = scalar(base); err != nil {
		return rule, err
	}
	if !slices.Contains([]string{"l3", "l2", "l1"}, rule.base) {
		return rule, at(base, fmt.Errorf("%q is not a length rule", rule.base))
	}
	return rule, nil
}

func (p *policy) parseClass(n *yaml.Node, meters map[string]*meter) (*class, error) {
	entries, err := mapping(n, "name", "match", "per", "meter", "then", "green", "yellow", "red")
	if err != nil {
		return nil, err
	}
	c := &class{actions: [3]action{green: pass, yellow: pass, red: {drop: true}}}
	if c.name, err = optional(entries, "name", ""); err != nil {
		return nil, err
	}
	if m := entries["match"]; m != nil {
		if c.match, err = parseMatch(m); err != nil {
			return nil, err
		}
	}
	for color, name := range []string{"green", "yellow", "red"} {
		if a := entries[name]; a != nil {
			if c.actions[color], err = p.parseAction(a); err != nil {
				return nil, err
			}
		}
	}

	then, err := optional(entries, "then", "")
	if err != nil {
		return nil, err
	}
	per, err := optional(entries, "per", "")
	if err != nil || per != "" && per != "customer" {
		return nil, at(n, errors.Join(err, fmt.Errorf("per %q of a class is unknown", per)))
	}
	if c.perCustomer = per != ""; c.perCustomer != isStage(entries["meter"]) {
		return nil, at(n, errors.New("per: customer and meter: plan need each other"))
	}
	if entries["meter"] == nil {
		if then != "" {
			return nil, at(n, errors.New("then without a meter"))
		}
		return c, nil
	}
	var first *meter
	if c.perCustomer {
		first, err = parseStage(entries["meter"])
	} else {
		first, err = parseMeter(entries["meter"], p.envelopes)
	}
	if err != nil {
		return nil, err
	}
	c.chain = []*meter{first}
	if then == "" {
		then = first.then
	}
	for then != "" {
		next := meters[then]
		if next == nil {
			return nil, at(n, fmt.Errorf("then: no meter %q", then))
		}
		if !next.aware {
			return nil, at(n, fmt.Errorf("then: meter %q is blind", then))
		}
		if slices.Contains(c.chain, next) {
			return nil, at(n, fmt.Errorf("then: meter %q comes round again", then))
		}
		c.chain = append(c.chain, next)
		then = next.then
	}
	for _, m := range c.chain {
		if flow, ok := m.state.(*member); ok {
			if err := flow.join(); err != nil {
				return nil, at(n, err)
			}
		}
	}
	return c, nil
}

func (p *policy) parseAction(n *yaml.Node) (action, error) {
	a := pass
	if n.Kind == yaml.ScalarNode {
		switch n.Value {
		case "pass":
			return a, nil
		case "drop":
			return action{drop: true}, nil
		}
		return a, at(n, fmt.Errorf("action %q is unknown", n.Value))
	}
	entries, err := mapping(n, "dscp", "pcp", "mpls", "mark", "ecn", "else", "queue")
	if err != nil {
		return a, err
	}
	for key, into := range map[string]*int{"dscp": &a.dscp, "pcp": &a.pcp, "mpls": &a.mpls, "mark": &a.mark} {
		if entries[key] == nil {
			continue
		}
		s, err := scalar(entries[key])
		if err != nil {
			return a, err
		}
		number, err := parseNumber(key, s)
		if err != nil {
			return a, at(n, err)
		}
		*into = int(number)
	}
	if ecn := entries["ecn"]; ecn != nil {
		if ecn.Value != "ce" {
			return a, at(ecn, fmt.Errorf("ecn: %q is not ce", ecn.Value))
		}
		a.ecn = true
	}
	if other := entries["else"]; other != nil {
		if !a.ecn || other.Value != "drop" && other.Value != "pass" {
			return a, at(other, errors.New("else is drop or pass, beside ecn"))
		}
		a.elseDrop = other.Value == "drop"
	}
	if name := entries["queue"]; name != nil {
		if p.queues[name.Value] == nil {
			return a, at(name, fmt.Errorf("no queue %q", name.Value))
		}
		a.queue = name.Value
	}
	return a, nil
}
