package routers

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
)

func init() {
	All["huawei"] = vrp{}
	All["h3c"] = vrp{h3c: true}
}

// vrp is the language of Huawei VRP and, with other words, of H3C Comware: classifiers,
// behaviors and policies, and car, gts and lr of interfaces.
type vrp struct{ h3c bool }

// vrpConfig holds the parts of a configuration, by name.
type vrpConfig struct {
	vrp
	Options
	in          *Import
	classifiers map[string]*vrpClassifier
	behaviors   map[string]*vrpView
	policies    []*vrpView
	byName      map[string]*vrpView // policies
	profiles    map[string]*vrpProfile
	lists       map[string]*vrpList
	views       []*vrpView // interfaces and others with car, gts or lr
}

// vrpView is a view with its lines.
type vrpView struct {
	name  string
	line  Line
	lines []Line
}

type vrpClassifier struct {
	or    bool
	lines []Line
}

// vrpProfile is a qos car profile of Huawei.
type vrpProfile struct {
	line Line
	used bool
}

// Import reads policies, and the car, gts and lr statements of interfaces.
func (v vrp) Import(src Source) (*Import, error) {
	lines, err := ReadLines(src.Text)
	if err != nil {
		return nil, err
	}
	c := &vrpConfig{
		vrp: v, Options: src.Options, in: &Import{}, classifiers: map[string]*vrpClassifier{},
		behaviors: map[string]*vrpView{}, byName: map[string]*vrpView{}, profiles: map[string]*vrpProfile{},
		lists: map[string]*vrpList{},
	}
	r := &vrpReader{vrpConfig: c}
	for _, l := range lines {
		r.read(l)
	}
	for _, p := range c.policies {
		c.policy(p)
	}
	for _, view := range c.views {
		for _, l := range view.lines {
			c.view(view, l)
		}
	}
	c.unusedProfiles()
	return c.in, nil
}

// vrpReader is in at most one view.
type vrpReader struct {
	*vrpConfig
	view       *vrpView
	classifier *vrpClassifier
	list       *vrpList
	member     bool // the view is a policy or a behavior
}

func (r *vrpReader) read(l Line) {
	text := l.Words[0]
	switch {
	case strings.HasPrefix(text, "#"), strings.HasPrefix(text, "!"), strings.EqualFold(l.Text(), "quit"),
		strings.EqualFold(l.Text(), "return"):
		if l.Indent == 0 {
			r.leave()
		}
		return
	case r.begins(l), r.inside(l):
		return
	case l.Indent == 0:
		r.leave()
		if name := l.Text(); l.Has("interface") || l.Has("user-profile") || l.Has("qos-profile") {
			r.view = &vrpView{name: strings.Join(l.Words[1:], " "), line: l}
			if r.view.name == "" {
				r.view.name = name
			}
			r.views = append(r.views, r.view)
		}
	}
	if l.Has("car") || l.Has("qos", "car") || l.Has("qos", "gts") || l.Has("qos", "lr") {
		r.in.Problems = append(r.in.Problems,
			Problem{Line: l.Number, Text: l.Text(), Reason: "it belongs to no behavior and no interface"})
		return
	}
	r.in.Skip(l)
}

func (r *vrpReader) leave() {
	r.view, r.classifier, r.list, r.member = nil, nil, nil, false
}

// begins reads the first line of a view.
func (r *vrpReader) begins(l Line) bool {
	a := &args{l.Words}
	first := a.take("traffic", "qos", "acl")
	kind := ""
	switch first {
	case "traffic":
		kind = a.take("classifier", "behavior", "policy")
	case "qos":
		switch kind = a.take("policy", "car"); {
		case kind == "car" && (r.h3c || a.peek() == "inbound" || a.peek() == "outbound"):
			return false
		case kind == "policy" && !r.h3c:
			return false
		}
	case "acl":
		r.leave()
		r.list = r.beginsList(l, a)
		return r.list != nil
	}
	if kind == "" || a.done() {
		return false
	}
	name := a.next()
	r.leave()
	switch kind {
	case "classifier":
		c := r.classifiers[name]
		if c == nil {
			c = &vrpClassifier{or: !r.h3c}
			r.classifiers[name] = c
		}
		if a.take("operator") != "" {
			operator := a.take("or", "and", "logic-or", "logic-and")
			if operator == "" {
				r.outside(l, "the operator is not understood")
			}
			c.or = strings.HasSuffix(operator, "or")
		}
		r.unread(l, a)
		r.classifier = c
	case "behavior":
		if r.behaviors[name] == nil {
			r.behaviors[name] = &vrpView{name: name, line: l}
		}
		r.unread(l, a)
		r.view, r.member = r.behaviors[name], true
	case "policy":
		if r.byName[name] == nil {
			r.byName[name] = &vrpView{name: name, line: l}
			r.policies = append(r.policies, r.byName[name])
		}
		if a.take("match-order") != "" && a.take("config") == "" {
			r.outside(l, "the router sorts the classifiers: only match-order config is that of the policy")
			a.next()
		}
		r.unread(l, a)
		r.view, r.member = r.byName[name], true
	case "car":
		r.profiles[name] = &vrpProfile{
			line: Line{Number: l.Number, Words: append([]string{"car"}, a.words...)},
		}
	}
	return true
}

// outside adds a statement that is not understood.
func (r *vrpReader) outside(l Line, reason string) {
	r.in.Problems = append(r.in.Problems, Problem{Line: l.Number, Text: l.Text(), Reason: reason})
}

// unread adds the statement if words of it have not been read.
func (r *vrpReader) unread(l Line, a *args) {
	if err := a.unread(); err != nil {
		r.outside(l, err.Error())
	}
}

// inside reads a line of the view.
func (r *vrpReader) inside(l Line) bool {
	switch {
	case r.classifier != nil && l.Has("if-match"):
		r.classifier.lines = append(r.classifier.lines, l)
	case r.list != nil && l.Has("rule"):
		r.list.lines = append(r.list.lines, l)
	case r.list != nil && (l.Has("description") || l.Has("step")):
	case r.view == nil, l.Has("description"):
		return r.view != nil && r.member
	case r.member:
		if l.Indent == 0 && !vrpAction(l) {
			return false
		}
		r.view.lines = append(r.view.lines, l)
	case l.Has("qos", "car"), l.Has("qos", "lr"), l.Has("qos", "gts"), l.Has("car"):
		r.view.lines = append(r.view.lines, l)
	default:
		return false
	}
	return true
}

// vrpAction reports whether a line begins with a keyword of a behavior or of a policy.
func vrpAction(l Line) bool {
	return slices.Contains([]string{
		"car", "gts", "remark", "filter", "permit", "deny", "queue", "classifier", "statistic", "accounting",
		"redirect",
	}, strings.ToLower(l.Words[0]))
}

// policy makes the draft of a policy.
func (c *vrpConfig) policy(p *vrpView) {
	d := c.in.Draft(p.name, p.line.Number)
	d.Remark("If the router counts Ethernet headers, import with --length l2.")
	for _, l := range c.byPrecedence(p.lines) {
		a := &args{l.Words}
		if a.take("classifier") == "" {
			d.Cannot(l, "it is not understood")
			continue
		}
		name := a.next()
		a.take("behavior")
		behavior := c.behaviors[a.next()]
		when, err := c.classMatch(name)
		if a.take("precedence") != "" {
			a.number()
		}
		if err == nil {
			err = a.unread()
		}
		switch {
		case err != nil:
			d.Omit(l, 0, err)
			continue
		case behavior == nil:
			d.Omit(l, 0, errors.New("there is no such behavior"))
			continue
		}
		class := NewEntry(name, l.Number, "%s", l.Text())
		c.behavior(d, class, behavior)
		d.Class(class, when)
	}
}

// byPrecedence sorts the lines of a policy by their precedence. A line without one follows the
// line before it.
func (c *vrpConfig) byPrecedence(lines []Line) []Line {
	last, order := int64(0), map[int]int64{}
	for _, l := range lines {
		if i := slices.Index(l.Words, "precedence"); i >= 0 {
			last, _ = (&args{l.Words[i+1:]}).number()
		}
		order[l.Number] = last
	}
	return slices.SortedStableFunc(slices.Values(lines),
		func(a, b Line) int { return cmp.Compare(order[a.Number], order[b.Number]) })
}

// behavior adds the actions of a behavior to a class.
func (c *vrpConfig) behavior(d *Draft, class *Entry, b *vrpView) {
	marks := map[string]string{}
	queue := ""
	var car *Line
	for _, l := range b.lines {
		var err error
		switch a := (&args{l.Words}); a.take("car", "gts", "remark", "filter", "permit", "deny", "statistic",
			"accounting", "traffic-statistic") {
		case "car":
			if car != nil {
				d.Cannot(*car, "the car statement in line %d replaces it", l.Number)
			}
			car = &l
		case "gts":
			queue, err = class.Name(), c.shaper(d, class.Name(), l, a)
		case "remark":
			err = c.remark(marks, a)
		case "deny":
			class.Set("green", "drop", l.Number, "deny")
			err = a.unread()
		case "filter":
			switch a.take("deny", "permit") {
			case "deny":
				class.Set("green", "drop", l.Number, "filter deny")
			case "":
				err = errors.New("it is not understood")
			}
			if err == nil {
				err = a.unread()
			}
		case "permit":
			err = a.unread()
		case "statistic", "accounting", "traffic-statistic":
		default:
			err = errors.New("it is not understood")
		}
		if err != nil {
			d.Cannot(l, "%v", err)
		}
	}
	switch action := actionText(false, marks, queue); {
	case class.Get("green") != nil:
		if car != nil {
			d.Cannot(*car, "the behavior drops all packets")
		}
	case car != nil:
		p, err := c.car(*car, &args{car.Words[1:]})
		if err == nil {
			err = c.meter(class, p, marks, queue)
		}
		if err != nil {
			d.Cannot(*car, "%v", err)
		}
	case action != "pass":
		class.Set("green", action, b.line.Number, "%s", b.line.Text())
	}
}

// remark reads remark dscp af11 and others.
func (c *vrpConfig) remark(marks map[string]string, a *args) (err error) {
	field := map[string]string{
		"dscp": "dscp", "8021p": "pcp", "dot1p": "pcp",
	}[a.take("dscp", "8021p", "dot1p")]
	if field == "" || len(a.words) != 1 {
		return errors.New(noSuchAction(strings.Join(a.words, " ")))
	}
	marks[field], err = markValue(field, a.next())
	return err
}

// view makes the draft of a car, gts or lr statement of an interface.
func (c *vrpConfig) view(v *vrpView, l Line) {
	a := &args{l.Words}
	a.take("qos")
	kind := a.take("car", "gts", "lr")
	direction := a.take("inbound", "outbound")
	name := v.name
	if direction == "" && slices.Contains(l.Words, "outbound") {
		direction = "outbound"
	} else if direction == "" && slices.Contains(l.Words, "inbound") {
		direction = "inbound"
	}
	if direction != "" {
		name += " " + direction
	}
	d := c.in.Draft(name, l.Number)
	class := NewEntry("all", l.Number, "%s", l.Text())
	a.take("any")
	var err error
	switch {
	case d.Classes != nil:
		d.Cannot(l, "it is a second limit for the same packets: a policy has one")
		return
	case a.peek() != "cir" && kind == "car" && c.profiles[a.peek()] != nil:
		profile := c.profiles[a.next()]
		profile.used = true
		err = c.carClass(class, profile.line)
	case a.peek() == "acl" || a.peek() == "carl":
		err = errors.New("a limit for an access list of the interface: use a classifier")
	case kind == "car", kind == "lr" && direction == "inbound":
		err = c.carClass(class, Line{Number: l.Number, Words: append([]string{"car"}, a.words...)})
	default:
		if err = c.shaper(d, "all", l, a); err == nil {
			class.Set("green", "{queue: all}", l.Number, "%s", l.Text())
		}
	}
	if err != nil {
		d.Cannot(l, "%v", err)
	}
	d.Class(class, []Conditions{{}})
}

// carClass adds the meter and the actions of a car statement to a class.
func (c *vrpConfig) carClass(class *Entry, l Line) error {
	p, err := c.car(l, &args{l.Words[1:]})
	if err != nil {
		return err
	}
	return c.meter(class, p, nil, "")
}

// unusedProfiles fills the drafts of profiles that no interface uses.
func (c *vrpConfig) unusedProfiles() {
	for name, p := range c.profiles {
		if p.used {
			continue
		}
		d := c.in.Draft(name, p.line.Number)
		class := NewEntry(name, p.line.Number, "qos car %s", name)
		if err := c.carClass(class, p.line); err != nil {
			d.Cannot(p.line, "%v", err)
		}
		d.Class(class, []Conditions{{}})
	}
	slices.SortStableFunc(c.in.Drafts, func(a, b *Draft) int { return a.Line - b.Line })
}

// shaper adds a queue for gts, or for lr of an outgoing interface.
func (c *vrpConfig) shaper(d *Draft, name string, l Line, a *args) error {
	p, err := c.car(l, a)
	if err != nil {
		return err
	}
	q := NewEntry(name, l.Number, "%s", l.Text())
	q.Set("rate", BitRate(p.cir.value), l.Number, "cir %s; sent packet by packet, without burst", p.cir.text)
	switch {
	case p.length.given:
		q.Set("limit", fmt.Sprintf("%dp", p.length.value), l.Number, "queue-length %s", p.length.text)
	case l.Has("qos", "lr"):
		q.Set("limit", "100ms", l.Number, "assumed: the buffer of the interface is not in the configuration")
	case c.h3c:
		q.Set("limit", "50p", l.Number, "queue-length left out; default: 50 packets")
	default:
		q.Set("limit", "64p", l.Number, "queue-length left out; default: 64 packets")
	}
	d.Queues = append(d.Queues, q)
	return nil
}
