package routers

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/pattern"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/routers/form"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

func init() {
	All["huawei"] = vrp{}
	All["h3c"] = vrp{h3c: true}
}

// vrp is the language of Huawei VRP and, with other words, of H3C Comware: classifiers,
// behaviors and policies, and car, gts and lr of interfaces.
type vrp struct{ h3c bool }

func (v vrp) language() string { return map[bool]string{false: "huawei", true: "h3c"}[v.h3c] }

// vrpPrompt is <Sysname>, [Sysname] or [~Sysname-behavior-b].
var vrpPrompt = pattern.Lazy(`^\s*(?:<[^<>\s]+>|\[[*~]?(?P<level>[^\s\[\]]+)\]) ?`)

// vrpConfig holds the parts of a configuration, by name.
type vrpConfig struct {
	vrp
	Options
	in          *Import
	platform    string // that the configuration shows, or ""
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
	lines, err := ReadLines(src.Text, vrpPrompt)
	if err != nil {
		return nil, err
	}
	c := &vrpConfig{
		vrp: v, Options: src.Options, in: &Import{}, classifiers: map[string]*vrpClassifier{},
		behaviors: map[string]*vrpView{}, byName: map[string]*vrpView{}, profiles: map[string]*vrpProfile{},
		lists: map[string]*vrpList{},
	}
	for _, l := range lines {
		if c.platform == "" && !l.Has("description") {
			c.platform = platformNamed(v.language(), l.Text())
		}
	}
	r := &vrpReader{vrpConfig: c}
	for _, l := range lines {
		if !v.h3c && c.platform == "" && cloudEngine().MatchString(l.Text()) {
			c.platform = "ce"
		}
		r.read(l)
	}
	if r.fail != nil {
		return nil, r.fail
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

// cloudEngine matches statements with units, which only CloudEngine switches have.
var cloudEngine = pattern.Lazy(
	`(?i)^(?:qos )?(?:car|lr|gts) .*\b\d+ (?:[kmg]bps|[km]?bytes)\b`)

// vrpOutside matches statements outside of behaviors that limit, shape or queue packets.
var vrpOutside = pattern.Lazy(`(?i)^(?:undo )?(?:` + strings.Join([]string{
	`car`, `gts`, `qos (?:car|lr|gts|queue|max-bandwidth|bandwidth|reserved-bandwidth|wrr|wfq|sp|pq|drr|wred|carl)`,
	`traffic-limit`, `traffic-shape`, `traffic-remark`, `qos (?:trust|priority|map-table)`, `trust`, `port priority`,
	`remark`, `line-rate`, `user-queue`, `flow-queue`, `port-queue`, `port shaping`,
	`share-shaping`, `queue-shaping`, `\S+-suppression`, `storm[ -](?:suppression|control|constrain)`, `packet-rate`,
	`icmp rate-limit`, `arp speed-limit`,
}, "|") + `)\b|\bqos (?:\S+ )?(?:car|lr|gts) |\bcir \d`)

// vrpNoise matches what the router prints between commands.
var vrpNoise = pattern.Lazy(`^(?:Info|Warning|Error): |^\w{3} +\d+ .*%%\d`)

// vrpLost matches statements that are of classifiers, behaviors, policies and access lists only.
var vrpLost = pattern.Lazy(`(?i)^(?:if-match .*|rule (?:\d+ )?(?:permit|deny)(?: .*)?|classifier \S+ behavior .*|filter (?:deny|permit)|deny|permit)$`)

// vrpUndo matches a statement that removes a part which a policy may use.
var vrpUndo = pattern.Lazy(`(?i)^undo (?:traffic (?:classifier|behavior|policy)|qos (?:policy|car) \S|acl (?:number|name|ipv6|basic|advanced|\d)|rule|if-match)`)

// vrpReader is in at most one view.
type vrpReader struct {
	*vrpConfig
	view       *vrpView
	classifier *vrpClassifier
	list       *vrpList
	member     bool // the view is a policy or a behavior
	foreign    bool // the view is another one
	fail       error
}

func (r *vrpReader) read(l Line) {
	switch {
	case l.Has("undo") && r.view == nil && vrpUndo().MatchString(l.Text()):
		r.fail = cmp.Or(r.fail, fmt.Errorf(
			"line %d: %s: undo changes the configuration before it: paste what display current-configuration prints afterwards", l.Number, l.Text()))
		return
	case vrpNoise().MatchString(l.Text()), l.is("commit"):
		r.in.Skip(l)
		return
	case l.is("quit"), l.is("return"):
		r.leave()
		return
	case strings.HasPrefix(l.Words[0], "#"), strings.HasPrefix(l.Words[0], "!"):
		if l.Indent == 0 {
			r.leave()
		}
		return
	case r.begins(l), r.inside(l):
		return
	case l.Indent == 0:
		r.leave()
	}
	switch {
	case l.Has("description"):
	case vrpOutside().MatchString(l.Text()):
		r.in.Outside(l, outsideReason)
		return
	case r.lost(l):
		r.in.Cannot(l, "it is in no classifier, behavior, policy or list: is a line before it not understood?")
		return
	}
	r.in.Skip(l)
}

// lost reports whether a line is of a part that was left because of a line before it.
func (r *vrpReader) lost(l Line) bool {
	isLost := vrpLost().MatchString(l.Text())
	r.foreign = vrpForeign().MatchString(l.Text()) || r.foreign && (l.Indent > 0 || isLost)
	if r.view != nil || r.foreign || !isLost {
		return false
	}
	return l.Prompt == "" && l.Indent == 0 || vrpMode().MatchString(l.Prompt)
}

var (
	// vrpMode matches the prompts of classifiers, behaviors, policies and access lists.
	vrpMode = pattern.Lazy(`-(?:classifier|behavior|trafficpolicy|qospolicy|acl\S*)-`)
	// vrpForeign matches the heads of other views with such statements.
	vrpForeign = pattern.Lazy(`(?i)^(?:route-policy|policy-based-route|role|cpu-defend|authentication-profile)\b`)
)

func (r *vrpReader) leave() {
	r.view, r.classifier, r.list, r.member = nil, nil, nil, false
}

// begins reads the first line of a view.
func (r *vrpReader) begins(l Line) bool {
	a := &args{l.Words}
	kind := ""
	switch a.take("traffic", "qos", "acl", "interface", "user-profile", "qos-profile") {
	case "traffic":
		kind = a.take("classifier", "behavior", "policy")
	case "qos":
		switch kind = a.take("policy", "car"); {
		case kind == "car" && (r.h3c || slices.Contains([]string{"inbound", "outbound", "cir"}, a.peek())):
			return false
		case kind == "policy" && !r.h3c:
			return false
		}
	case "acl":
		if vrpOtherACL().MatchString(l.Text()) {
			return false
		}
		r.leave()
		r.list = r.beginsList(l, a)
		return r.list != nil
	case "interface", "user-profile", "qos-profile":
		r.leave()
		r.view = &vrpView{name: cmp.Or(strings.Join(a.words, " "), l.Text()), line: l}
		r.views = append(r.views, r.view)
		r.in.Skip(l)
		return true
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
		if a.take("operator", "type") != "" {
			operator := a.take("or", "and", "logic-or", "logic-and")
			if operator == "" {
				r.in.Cannot(l, "the operator is not understood")
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
			r.in.Cannot(l, "the router sorts the classifiers: only match-order config is that of the policy")
			a.next()
		}
		r.unread(l, a)
		r.view, r.member = r.byName[name], true
	case "car":
		if a.peek() != "cir" {
			r.in.Cannot(l, "the cir of the profile is missing")
			return true
		}
		r.profiles[name] = &vrpProfile{line: Line{Number: l.Number, Words: append([]string{"car"}, a.words...)}}
	}
	return true
}

// unread adds the statement if words of it have not been read.
func (r *vrpReader) unread(l Line, a *args) {
	if err := a.unread(); err != nil {
		r.in.Cannot(l, "%v", err)
	}
}

// inside reads a line of the view.
func (r *vrpReader) inside(l Line) bool {
	switch {
	case r.classifier != nil && (l.Has("if-match") || l.Has("undo", "if-match") || l.Indent > 0 && !l.Has("description")):
		r.classifier.lines = append(r.classifier.lines, l)
	case r.classifier != nil && l.Has("description"):
	case r.list != nil && (l.Has("description") || l.Has("step") || l.Has("rule") && vrpRemark().MatchString(l.Text())):
	case r.list != nil && (l.Has("rule") || l.Has("undo", "rule") || l.Indent > 0):
		r.list.lines = append(r.list.lines, l)
	case r.view == nil, l.Has("description"):
		return r.view != nil && r.member
	case r.member:
		if l.Indent == 0 && !vrpAction(l) {
			return false
		}
		r.view.lines = append(r.view.lines, l)
	case l.Has("qos", "car"), l.Has("qos", "lr"), l.Has("qos", "gts"),
		l.Has("car") && !r.view.line.Has("interface"):
		r.view.lines = append(r.view.lines, l)
	default:
		return false
	}
	return true
}

// vrpOtherACL matches statements that begin like the head of a list: of a terminal, and of the system.
var vrpOtherACL = pattern.Lazy(`(?i)^acl (?:.* )?(?:inbound|outbound)$|^acl (?:logging|copy|threshold-alarm|(?:ip|ipv6|port)-pool|hardware-mode|trap)\b`)

// vrpRemark matches a comment of an access list.
var vrpRemark = pattern.Lazy(`(?i)^rule (?:\d+ )?(?:description|comment|remark)\b`)

// vrpAction reports whether a line begins with a keyword of a behavior or of a policy.
func vrpAction(l Line) bool {
	return slices.Contains([]string{
		"car", "gts", "remark", "filter", "permit", "deny", "queue", "classifier", "statistic", "statistics",
		"accounting", "redirect", "undo", "traffic-statistic", "share-mode",
	}, strings.ToLower(l.Words[0]))
}

// defaultClass is the classifier of the packets that no other one takes.
const defaultClass = "default-class"

// vrpClass is a line of a policy.
type vrpClass struct {
	line                 Line
	classifier, behavior string
	precedence           int64
}

// vrpClasses are the lines of a policy.
var vrpClasses = &Reader[*vrpClass]{Kinds: &vrpKinds, Statements: []Statement[*vrpClass]{
	{Form: "classifier <word:classifier> behavior <word:behavior> [precedence <number>]", Do: (*vrpClass).take},
	{Form: "(statistic | statistics) enable"},
	{Form: "undo share-mode"},
	{Form: "share-mode", Reason: vrpShare},
}}

func (c *vrpClass) take(l Line, v form.Values) error {
	c.line, c.classifier, c.behavior = l, v.Get("classifier").(string), v.Get("behavior").(string)
	if n := v.Get("number"); n != nil {
		c.precedence = n.(int64)
	}
	return nil
}

// policy makes the draft of a policy.
func (c *vrpConfig) policy(p *vrpView) {
	d := c.draft(p.name, p.line)
	d.Remark("If the router counts Ethernet headers, import with --length l2.")
	var classes []*vrpClass
	seen := map[string]*vrpClass{} // by classifier
	last := int64(0)
	for _, l := range p.lines {
		class := &vrpClass{precedence: last} // without a precedence it follows the class before it
		if err := vrpClasses.Read(class, l); err != nil {
			d.Cannot(l, "%v", err)
			continue
		}
		if class.classifier != "" {
			last = class.precedence
			if old := seen[class.classifier]; old != nil {
				d.Cannot(old.line, "line %d replaces it: a classifier has one behavior", l.Number)
				old.classifier = ""
			}
			seen[class.classifier] = class
			classes = append(classes, class)
		}
	}
	classes = slices.DeleteFunc(classes, func(c *vrpClass) bool { return c.classifier == "" })
	for _, l := range classes {
		if l.classifier == defaultClass && c.classifiers[defaultClass] == nil {
			l.precedence = math.MaxInt64 // wherever it is written
		}
	}
	slices.SortStableFunc(classes,
		func(a, b *vrpClass) int { return cmp.Compare(a.precedence, b.precedence) })
	for _, l := range classes {
		when, err := c.classMatch(l.classifier)
		behavior := c.behaviors[l.behavior]
		switch {
		case err != nil || behavior != nil:
		case c.h3c && l.behavior == "be":
			behavior = &vrpView{line: l.line} // no actions
		case c.h3c && slices.Contains([]string{"ef", "af", "be-flow-based"}, l.behavior):
			err = errors.New("the router defines this behavior, a queue with a share of the interface, which is not imported")
		default:
			err = errors.New("there is no such behavior")
		}
		if err != nil {
			d.Omit(l.line, 0, err)
			continue
		}
		class := d.NewClass(l.classifier, l.line, "%s", l.line.Text())
		c.behavior(d, class, behavior)
		d.Class(class, when)
	}
}

// draft returns a draft that names the platform if the defaults depend on it.
func (c *vrpConfig) draft(name string, l Line) *Draft {
	d := c.in.Draft(name, l.Number)
	if p := cmp.Or(c.Platform, c.platform); p != "" {
		d.Remark("Read as a configuration of %s (--platform %s).", platformNames[p], p)
	}
	return d
}

// vrpBehavior is a behavior that is read.
type vrpBehavior struct {
	*vrpConfig
	d     *Draft
	class *dataplane.Class
	marks []dataplane.Mark
	queue *dataplane.Queue
	car   *vrpLimit
	drop  *Line
}

// vrpStatements are the statements of a behavior.
var vrpStatements = &Reader[*vrpBehavior]{Kinds: &vrpKinds, Statements: []Statement[*vrpBehavior]{
	{Form: "car <word>...", Do: (*vrpBehavior).readCar},
	{Form: "gts <word>...", Do: (*vrpBehavior).readGTS},
	{Form: "remark dscp <dscp>", Do: vrpMarking(dataplane.DSCP)},
	{Form: "remark (8021p | dot1p) <0-7>", Do: vrpMarking(dataplane.PCP)},
	{Form: "remark ip-precedence <word>", Reason: precedenceReason},
	{Form: "remark (local-precedence | qos-local-id | drop-precedence | lp | qos-group) <word>...", Reason: internalReason},
	{Form: "[filter] deny", Do: func(b *vrpBehavior, l Line, _ form.Values) error { b.drop = &l; return nil }},
	{Form: "[filter] permit", Do: func(b *vrpBehavior, _ Line, _ form.Values) error { b.drop = nil; return nil }},
	{Form: "(statistic | statistics | traffic-statistic) [enable]"},
	{Form: "accounting [packet | byte]"},
	{Form: "queue <word>...", Reason: "the queues of the interface are not imported"},
}}

// vrpMarking marks all packets of a class.
func vrpMarking(f dataplane.Field) func(*vrpBehavior, Line, form.Values) error {
	return func(b *vrpBehavior, _ Line, v form.Values) error {
		b.marks = setMark(b.marks, dataplane.Mark{Field: f, Value: v[0].Value.(uint32)})
		return nil
	}
}

func (b *vrpBehavior) readCar(l Line, _ form.Values) (err error) {
	if b.car != nil {
		b.d.Cannot(b.car.line, "the car statement in line %d replaces it", l.Number)
	}
	if profile := b.profiles[l.Word(1)]; profile != nil {
		profile.used = true
	}
	p, err := b.limit(l)
	if b.car = nil; err == nil {
		b.car = p
	}
	return err
}

func (b *vrpBehavior) readGTS(l Line, _ form.Values) error {
	p, err := b.limit(l)
	if err == nil && b.queue != nil {
		err = errors.New("the behavior shapes twice")
	}
	if err == nil {
		b.queue = p.shaper(b.d, b.class.Name)
	}
	return err
}

// behavior adds the actions of a behavior to a class.
func (c *vrpConfig) behavior(d *Draft, class *dataplane.Class, view *vrpView) {
	b := &vrpBehavior{vrpConfig: c, d: d, class: class}
	for _, l := range view.lines {
		if err := vrpStatements.Read(b, l); err != nil {
			d.Cannot(l, "%v", err)
		}
	}
	switch {
	case b.drop != nil && b.car != nil:
		d.Cannot(b.car.line, "the behavior drops all packets")
	case b.drop != nil:
		t := treatment{line: b.drop.Number, drop: true, text: b.drop.Text()}
		d.setAction(class, meter.Green, t, nil, nil)
	case b.car != nil:
		if err := b.car.meter(d, class, b.marks, b.queue); err != nil {
			d.Cannot(b.car.line, "%v", err)
		}
	case b.marks != nil || b.queue != nil:
		t := treatment{line: view.line.Number, text: view.line.Text()}
		d.setAction(class, meter.Green, t, b.marks, b.queue)
	}
}

// view makes the draft of a car, gts or lr statement of an interface.
func (c *vrpConfig) view(v *vrpView, l Line) {
	p, err := c.limit(l)
	if err != nil {
		c.in.Cannot(l, "%v", err)
		return
	}
	d := c.draft(strings.TrimSpace(v.name+" "+p.way), l)
	if d.Classes != nil {
		d.Cannot(l, "it is a second limit for the same packets: a policy has one")
		return
	}
	class := d.NewClass("all", l, "%s", l.Text())
	if l.Has("qos", "gts") || l.Has("qos", "lr") && p.way != "inbound" {
		d.setAction(class, meter.Green, treatment{line: l.Number, text: l.Text()}, nil, p.shaper(d, "all"))
	} else if err := p.carClass(d, class); err != nil {
		d.Cannot(l, "%v", err)
	}
	d.Class(class, all)
}

// unusedProfiles fills the drafts of profiles that no interface uses.
func (c *vrpConfig) unusedProfiles() {
	for name, profile := range c.profiles {
		if profile.used {
			continue
		}
		d := c.draft(name, profile.line)
		class := d.NewClass(name, profile.line, "qos car %s", name)
		p, err := c.limit(profile.line)
		if err == nil {
			err = p.meter(d, class, nil, nil)
		}
		if err != nil {
			d.Cannot(profile.line, "%v", err)
		}
		d.Class(class, all)
	}
	slices.SortStableFunc(c.in.Drafts, func(a, b *Draft) int { return a.Line - b.Line })
}
