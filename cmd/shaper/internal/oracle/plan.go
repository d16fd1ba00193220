package oracle

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// plan holds the parameters of a meter, or of a queue (a paced plan), and actions.
type plan struct {
	name    string
	kind    string // meter type; "queue" if paced
	values  *yaml.Node
	actions [3]*action // by color; nil: the action of the class
}

// planKeys lists the parameters of each type of plan.
var planKeys = map[string]string{
	"srtcm":           "cir cbs ebs",
	"trtcm":           "cir cbs pir pbs",
	"trtcm4115":       "cir cbs eir ebs coupling",
	"token-bucket":    "rate burst",
	"gcra":            "rate burst",
	"fixed-window":    "limit window",
	"sliding-counter": "limit window",
	"queue":           "rate limit codel ecn link guarantee priority weight fair",
}

// ownParameters are the parameters that a customer can have of its own.
var ownParameters = []string{"rate", "burst", "cir", "cbs", "pir", "pbs", "eir", "ebs", "limit", "window", "link",
	"guarantee", "weight"}

// build returns a new state of the plan for a customer: a meter's state, or a queue. The customer's
// own parameters replace those of the plan.
func (p *plan) build(own map[string]string, packets bool, links map[string]*node) (state, *queue, error) {
	if given, _ := mapping(p.values); own["link"] != "" && given["link"] != nil {
		return nil, nil, fmt.Errorf("plan %s has a link already", p.name)
	}
	keys := strings.Fields(planKeys[p.kind])
	n := &yaml.Node{Kind: yaml.MappingNode, Line: p.values.Line}
	for i := 0; i < len(p.values.Content); i += 2 {
		if own[p.values.Content[i].Value] == "" {
			n.Content = append(n.Content, p.values.Content[i:i+2]...)
		}
	}
	for key, value := range own {
		if !slices.Contains(keys, key) {
			return nil, nil, fmt.Errorf("plan %s has no %s", p.name, key)
		}
		for _, s := range []string{key, value} {
			n.Content = append(n.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: s})
		}
	}
	entries, err := mapping(n, keys...)
	if err != nil {
		return nil, nil, err
	}

	if p.kind == "queue" {
		q, err := parseQueue(n, links, true)
		if limit := entries["limit"]; err == nil && limit != nil && !isTime(limit.Value) {
			err = errors.New("the limit of a paced plan is not a time")
		}
		return nil, q, err
	}
	o := &options{kind: p.kind, packets: packets, share: whole(1), entries: entries}
	fresh := meterKinds[p.kind].parse(o)
	if o.err != nil {
		return nil, nil, o.err
	}
	return fresh(), nil, nil
}

// parsePlans reads `plans`, in their order.
func (p *policy) parsePlans(n *yaml.Node) (plans []*plan, err error) {
	if _, err := mapping(n); err != nil {
		return nil, err
	}
	for i := 0; i < len(n.Content); i += 2 {
		one, err := p.parsePlan(n.Content[i].Value, n.Content[i+1])
		if err != nil {
			return nil, err
		}
		plans = append(plans, one)
	}
	return plans, nil
}

func (p *policy) parsePlan(name string, n *yaml.Node) (*plan, error) {
	entries, err := mapping(n)
	if err != nil {
		return nil, err
	}
	out := &plan{name: name, values: &yaml.Node{Kind: yaml.MappingNode, Line: n.Line}}
	for i := 0; i < len(n.Content); i += 2 {
		switch key := n.Content[i].Value; key {
		case "green", "yellow", "red":
			a, err := p.parseAction(n.Content[i+1])
			if err != nil {
				return nil, err
			}
			out.actions[slices.Index([]string{"green", "yellow", "red"}, key)] = &a
		case "type":
			out.kind = n.Content[i+1].Value
		case "queue":
		default:
			out.values.Content = append(out.values.Content, n.Content[i:i+2]...)
		}
	}
	if q := entries["queue"]; q != nil {
		if out.kind != "" || len(out.values.Content) > 0 {
			return nil, at(n, errors.New("a paced plan has a meter"))
		}
		out.kind, out.values = "queue", q
	} else if out.kind == "queue" || planKeys[out.kind] == "" {
		return nil, at(n, fmt.Errorf("type %q of a plan is unknown", out.kind))
	}
	return out, nil
}

// parseStage reads `meter` of a class if it is the customer's plan. The result holds the options of
// the class and no state.
func parseStage(n *yaml.Node) (*meter, error) {
	m := &meter{kind: "plan", precolor: defaultPrecolor()}
	if n.Kind == yaml.ScalarNode {
		return m, nil
	}
	entries, err := mapping(n, "type", "color", "precolor", "count", "then")
	if err != nil {
		return nil, err
	}
	o := &options{entries: entries}
	m.aware = o.choice("color", "blind", "aware") == "aware"
	m.packets = o.choice("count", "bytes", "packets") == "packets"
	m.then = o.text("then", "")
	if o.has("precolor") {
		if m.precolor, err = parsePrecolor(entries["precolor"]); err != nil {
			return nil, err
		}
	}
	if o.err != nil {
		return nil, at(n, o.err)
	}
	return m, nil
}

// isStage reports whether `meter` of a class is the customer's plan.
func isStage(n *yaml.Node) bool {
	if n == nil || n.Kind == yaml.ScalarNode {
		return n != nil && n.Value == "plan"
	}
	entries, err := mapping(n)
	return err == nil && entries["type"] != nil && entries["type"].Value == "plan"
}

// meter returns the first stage of a class for the customer. It uses the options of the class.
func (who *customer) meter(options *meter) *meter {
	m := *options
	m.kind, m.state = who.plan.kind, who.state
	return &m
}

// isTime reports whether a limit is a time.
func isTime(limit string) bool {
	axis, _, err := parseLevel(limit, nil)
	return err == nil && axis == inTime
}

// has reports whether a plan says something.
func (p *plan) has(key string) bool {
	entries, err := mapping(p.values)
	return err == nil && entries[key] != nil
}

// alone returns a plan without the share of a link if it has no link: rows of customers may name one.
func (p *plan) alone() *plan {
	if p.kind != "queue" || p.has("link") {
		return p
	}
	out := *p
	out.values = &yaml.Node{Kind: yaml.MappingNode, Line: p.values.Line}
	for i := 0; i < len(p.values.Content); i += 2 {
		if key := p.values.Content[i].Value; !slices.Contains([]string{"guarantee", "priority", "weight"}, key) {
			out.values.Content = append(out.values.Content, p.values.Content[i:i+2]...)
		}
	}
	return &out
}
