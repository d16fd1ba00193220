package routers

import (
	"slices"
	"strings"

	"github.com/a-seed-32e5a53f/shaper/meter"
)

func init() { All["cisco"] = cisco{} }

// cisco is the modular QoS command line (MQC) of IOS, IOS XE, NX-OS and EOS, as in the running
// configuration or in show policy-map.
type cisco struct{}

// ciscoConfig holds the parts of a configuration, by name.
type ciscoConfig struct {
	Options
	in        *Import
	policies  []*ciscoPolicy
	byName    map[string]*ciscoPolicy
	children  map[string]bool // names of policies inside classes of others
	classMaps map[string]*ciscoClassMap
	lists     map[string]*ciscoList
}

type ciscoPolicy struct {
	name    string
	line    Line
	classes []*ciscoClass
	byName  map[string]*ciscoClass
}

// ciscoClass is a class of a policy map.
type ciscoClass struct {
	name  string
	line  Line
	lines []Line
}

// ciscoClassMap holds its match statements.
type ciscoClassMap struct {
	any   bool // match-any
	lines []Line
}

// Import reads policy maps. Class maps and access lists may be before or after them.
func (cisco) Import(src Source) (*Import, error) {
	c, err := readCisco(src)
	if err != nil {
		return nil, err
	}
	c.findChildren()
	for _, p := range c.policies {
		c.importPolicy(p)
	}
	return c.in, nil
}

// otherTypes are types of policy maps without meters and queues, or for other chips.
var otherTypes = []string{
	"inspect", "pbr", "network-qos", "packet-service", "performance-monitor", "control", "access-control",
	"epbr", "appnav", "redirect",
}

func newCiscoConfig(src Source) ciscoConfig {
	return ciscoConfig{
		Options: src.Options, in: &Import{}, byName: map[string]*ciscoPolicy{}, children: map[string]bool{},
		classMaps: map[string]*ciscoClassMap{}, lists: map[string]*ciscoList{},
	}
}

// addPolicy adds a policy map, and removes an earlier one with its name.
func (c *ciscoConfig) addPolicy(p *ciscoPolicy) {
	p.byName = map[string]*ciscoClass{}
	if old := c.byName[p.name]; old != nil {
		c.policies = slices.DeleteFunc(c.policies, func(other *ciscoPolicy) bool { return other == old })
	}
	c.policies = append(c.policies, p)
	c.byName[p.name] = p
}

// add adds a class. class-default is the last one, wherever it is written.
func (p *ciscoPolicy) add(c *ciscoClass) {
	n := len(p.classes)
	p.classes = append(p.classes, c)
	p.byName[c.name] = c
	if n > 0 && p.classes[n-1].name == classDefault {
		p.classes[n-1], p.classes[n] = p.classes[n], p.classes[n-1]
	}
}

// readCisco splits a configuration into its parts. Blocks are recognized by their keywords,
// because outputs of show commands and excerpts have any indentation.
func readCisco(src Source) (*ciscoConfig, error) {
	lines, err := ReadLines(src.Text)
	if err != nil {
		return nil, err
	}
	r := &ciscoReader{ciscoConfig: newCiscoConfig(src)}
	for _, l := range lines {
		r.read(l)
	}
	return &r.ciscoConfig, nil
}

// ciscoReader is in at most one block.
type ciscoReader struct {
	ciscoConfig
	policy   *ciscoPolicy
	class    *ciscoClass
	classMap *ciscoClassMap
	list     *ciscoList
	other    bool // a block without meters and queues
	indent   int  // of the first line of the block
}

func (r *ciscoReader) leave() {
	r.policy, r.class, r.classMap, r.list, r.other = nil, nil, nil, nil, false
}

func (r *ciscoReader) read(l Line) {
	if strings.HasPrefix(l.Words[0], "!") || strings.EqualFold(l.Text(), "end") {
		if l.Indent == 0 {
			r.leave()
		}
		return
	}
	if r.begins(l) {
		return
	}
	inside := l.Indent > r.indent
	switch {
	case r.other && inside:
	case r.policy != nil && r.policyLine(l, inside):
		return
	case r.classMap != nil && (l.Has("match") || l.Has("description")):
		r.classMap.lines = append(r.classMap.lines, l)
		return
	case r.list != nil && r.list.add(l, inside):
		return
	case !inside:
		r.leave()
		r.indent = l.Indent
	}
	outside := func(reason string) {
		r.in.Problems = append(r.in.Problems, Problem{Line: l.Number, Text: l.Text(), Reason: reason})
	}
	switch {
	case l.Has("rate-limit"):
		outside("CAR is another algorithm: its extended burst drops at random, and no meter of a policy does that")
		return
	case l.Has("police"):
		outside("it belongs to no policy-map")
		return
	}
	r.in.Skip(l)
}

// begins reads the first line of a block.
func (r *ciscoReader) begins(l Line) bool {
	text := strings.ToLower(l.Text())
	a := &args{l.Words}
	switch {
	case strings.HasPrefix(text, "policy-map "), strings.HasPrefix(text, "policy map "):
		if a.next(); strings.HasPrefix(text, "policy map") {
			a.next()
		}
		r.leave()
		r.indent = l.Indent
		kind := r.blockType(a)
		if slices.Contains(otherTypes, kind) {
			r.other = true
			r.in.Skip(l)
			return true
		}
		name := rest(a)
		if r.policy = r.byName[name]; r.policy == nil { // a policy map can be continued
			r.policy = &ciscoPolicy{name: name, line: l}
			r.addPolicy(r.policy)
		}
	case strings.HasPrefix(text, "class-map "):
		a.next()
		r.leave()
		r.indent = l.Indent
		kind := r.blockType(a)
		m := &ciscoClassMap{}
		m.any = a.take("match-any", "match-all") == "match-any"
		if slices.Contains(otherTypes, kind) || a.done() || a.peek() == "match-none" {
			r.other = true
			r.in.Skip(l)
			return true
		}
		name := rest(a)
		if r.classMap = r.classMaps[name]; r.classMap == nil {
			r.classMap = m
			r.classMaps[name] = m
		}
	default:
		return r.beginsList(l)
	}
	return true
}

// blockType reads the type of a map.
func (*ciscoReader) blockType(a *args) string {
	if a.take("type") == "" {
		return ""
	}
	return strings.ToLower(a.next())
}

// rest reads all remaining words as a name. Names have no blanks, except in outputs of show.
func rest(a *args) string {
	name := strings.Join(a.words, " ")
	a.words = nil
	return name
}

// policyLine reads a line of a policy map. It returns false for a line behind it.
func (r *ciscoReader) policyLine(l Line, inside bool) bool {
	a := &args{l.Words}
	switch {
	case a.take("class") != "":
		r.blockType(a)
		if a.peek() == "built-in" { // EOS
			a.next()
		}
		name := strings.TrimSuffix(a.next(), ",")
		if err := a.unread(); err != nil {
			r.in.Problems = append(r.in.Problems,
				Problem{Line: l.Number, Text: l.Text(), Reason: err.Error()})
		}
		if r.class = r.policy.byName[name]; r.class == nil {
			r.class = &ciscoClass{name: name, line: l}
			r.policy.add(r.class)
		}
		return true
	case l.Has("description"), l.Has("exit"):
		return true
	case r.class == nil && inside:
		r.in.Skip(l)
		return true
	case r.class != nil && (inside || ciscoAction(l)):
		r.class.lines = append(r.class.lines, l)
		return true
	}
	return false
}

// ciscoAction reports whether a line begins with a keyword of a class in a policy map.
func ciscoAction(l Line) bool {
	return slices.Contains([]string{
		"police", "conform-action", "exceed-action", "violate-action", "conform-color", "exceed-color",
		"shape", "bandwidth", "priority", "queue-limit", "random-detect", "set", "fair-queue",
		"service-policy", "drop", "cir", "average", "queue-buffers",
	}, strings.ToLower(l.Words[0]))
}

// importPolicy makes the draft of a policy map.
func (c *ciscoConfig) importPolicy(p *ciscoPolicy) {
	d := c.in.Draft(p.name, p.line.Number)
	d.Remark("class-default and match any also take packets that are not IP on the router. Here these pass.")
	d.Remark("Most Cisco routers count the Ethernet header too. If yours does, import with --length l2.")
	d.Part = c.children[p.name]
	b := &ciscoBuilder{ciscoConfig: c, Options: c.Options, draft: d}
	if rate, line, child := b.parent(p); child != nil {
		b.link, b.linkLine, b.linkEntry = rate, line, NewEntry(linkName, line.Number, "%s", line.Text())
		b.Link = meter.BitRate(rate) // percentages in the child are of this rate
		p = child
	} else if bits, ok := c.Link.Bits(); ok && bits > 0 {
		b.link, b.linkEntry = bits, NewEntry(linkName, 0, "--link")
	}
	b.policy(p)
}

// linkName is the name of the link in imported policies.
const linkName = "link"

// findChildren finds the policies inside classes of others.
func (c *ciscoConfig) findChildren() {
	for _, p := range c.policies {
		for _, class := range p.classes {
			for _, l := range class.lines {
				if name, ok := childOf(l); ok && name != p.name {
					c.children[name] = true
				}
			}
		}
	}
}

// childOf returns the name of the policy in a service-policy statement.
func childOf(l Line) (string, bool) {
	a := &args{l.Words}
	if a.take("service-policy") == "" {
		return "", false
	}
	if a.take("type") != "" {
		a.next()
	}
	a.take("input", "output")
	name := a.next()
	return name, name != "" && a.done()
}

// parent returns the child of a policy which shapes all traffic, and the rate with its line.
func (b *ciscoBuilder) parent(p *ciscoPolicy) (rate int64, line Line, child *ciscoPolicy) {
	if len(p.classes) != 1 || p.classes[0].name != classDefault || len(p.classes[0].lines) != 2 {
		return 0, line, nil
	}
	for _, l := range p.classes[0].lines {
		if name, ok := childOf(l); ok && name != p.name {
			child = b.byName[name]
		}
		if l.Has("shape") {
			line = l
			var err error
			if rate, err = b.shapeRate(l); err != nil {
				return 0, line, nil // the policy is imported without its child, which reports the error
			}
		}
	}
	if rate == 0 {
		child = nil
	}
	return rate, line, child
}

const classDefault = "class-default"
