package routers

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/a-seed-32e5a53f/shaper/meter"
)

// ciscoBuilder makes the draft of one policy map.
type ciscoBuilder struct {
	*ciscoConfig
	Options   // with the parent's rate for percentages
	draft     *Draft
	link      int64 // bit/s; 0: unknown
	linkLine  Line  // of the parent's shape statement
	linkEntry *Entry
	queues    []*ciscoQueue
}

// ciscoParts are the statements of a class, translated.
type ciscoParts struct {
	police *ciscoPolice
	marks  map[string]string
	drop   *Line
	shape  *Line
	rate   int64
	queue  *ciscoQueue
}

// ciscoQueue is the queue of a class.
type ciscoQueue struct {
	entry    *Entry
	line     Line // of bandwidth, or of priority
	kind     string
	weight   int64
	priority int // -1: none
	limit    string
	limitAt  Line
	fair     *Line
	isRated  bool
}

func (q *ciscoQueue) onLink() bool { return q.kind != "" || q.priority >= 0 }

// policy adds all classes of a policy map.
func (b *ciscoBuilder) policy(p *ciscoPolicy) {
	var parts []*ciscoParts
	linked := b.linkLine.Number > 0
	for _, c := range p.classes {
		parts = append(parts, b.statements(c))
		linked = linked || parts[len(parts)-1].queue.onLink()
	}
	if linked && b.link == 0 {
		b.draft.Cannot(p.line,
			"its classes share the bandwidth of the interface: give --link, such as --link 1gbit")
		linked = false
	}
	last := len(p.classes) - 1
	if linked && (last < 0 || p.classes[last].name != classDefault) &&
		!(b.endsWithAll(p) && allQueued(parts)) {
		c := &ciscoClass{name: classDefault, line: Line{}}
		p = &ciscoPolicy{name: p.name, line: p.line, classes: append(slices.Clone(p.classes), c)}
		parts = append(parts, b.statements(c))
	}
	for i, c := range p.classes {
		b.class(c, parts[i], linked)
	}
	if linked {
		b.shares()
		b.linkEntry.Set("rate", BitRate(b.link), b.linkLine.Number, "")
		b.draft.Links = append(b.draft.Links, b.linkEntry)
	}
	for _, q := range b.queues {
		b.draft.Queues = append(b.draft.Queues, q.entry)
	}
}

// allQueued reports whether each class uses a queue of its own on the link.
func allQueued(parts []*ciscoParts) bool {
	return !slices.ContainsFunc(parts, func(p *ciscoParts) bool { return !p.queue.onLink() && p.drop == nil })
}

// endsWithAll reports whether the last class takes all remaining packets.
func (b *ciscoBuilder) endsWithAll(p *ciscoPolicy) bool {
	if len(p.classes) == 0 {
		return false
	}
	when, err := b.classMatch(p.classes[len(p.classes)-1].name)
	return err == nil && len(when) == 1 && len(when[0]) == 0
}

// statements translates the statements of a class one by one.
func (b *ciscoBuilder) statements(c *ciscoClass) *ciscoParts {
	p := &ciscoParts{marks: map[string]string{}, queue: &ciscoQueue{priority: -1}}
	for _, l := range c.lines {
		if err := b.statement(p, l); err != nil {
			b.draft.Cannot(l, "%v", err)
		}
	}
	return p
}

func (b *ciscoBuilder) statement(p *ciscoParts, l Line) (err error) {
	q := p.queue
	switch word := strings.ToLower(l.Words[0]); word {
	case "police":
		if p.police != nil {
			b.draft.Cannot(p.police.line, "the police statement in line %d replaces it", l.Number)
		}
		p.police, err = parsePolice(l, b.Options)
		p.police.broken = err != nil
		return err
	case "conform-action", "exceed-action", "violate-action":
		if p.police == nil {
			return errors.New("it belongs to no police statement")
		}
		a := &args{l.Words}
		sub := &ciscoPolice{line: l}
		if err := sub.inline(a); err != nil {
			return err
		}
		for color, lines := range sub.actions {
			p.police.actions[color] = append(p.police.actions[color], lines...)
		}
		p.police.violate = p.police.violate || sub.violate
	case "conform-color", "exceed-color":
		return errors.New("color-aware policing by class is not supported")
	case "set":
		return setMark(p.marks, l.Words[1:])
	case "drop":
		p.drop = &l
	case "average", "cir": // show policy-map prints two lines: Average Rate Traffic Shaping, and cir
		if word == "average" {
			return nil
		}
		fallthrough
	case "shape":
		p.shape = &l
		p.rate, err = b.shapeRate(l)
	case "bandwidth":
		q.line = l
		return q.bandwidth(&args{l.Words[1:]}, b.Link)
	case "priority":
		q.line = l
		return q.setPriority(&args{l.Words[1:]})
	case "queue-limit":
		q.limitAt = l
		return q.setLimit(&args{l.Words[1:]})
	case "fair-queue":
		q.fair = &l
	case "random-detect":
		return errors.New(
			"WRED by DSCP with an average backlog is another algorithm: add wred by color to the queue")
	case "service-policy":
		return errors.New("a policy inside a class is supported only if class-default shapes everything and has no other statements")
	case "no", "exit", "count":
	default:
		return errors.New("it is not understood")
	}
	return err
}

// setMark reads set dscp ef, set cos 5 and others.
func setMark(marks map[string]string, words []string) (err error) {
	a := &args{words}
	a.take("ip")
	field := ""
	switch w := strings.ToLower(a.next()); w {
	case "dscp":
		field = "dscp"
	case "cos":
		field = "pcp"
	case "mpls":
		if a.take("experimental", "exp") != "" && a.take("topmost") != "" {
			field = "mpls"
		}
	}
	if field == "" {
		return errors.New(noSuchAction(strings.Join(words, " ")))
	}
	if len(a.words) != 1 {
		return errors.New("only a fixed value can be set")
	}
	marks[field], err = markValue(field, a.next())
	return err
}

// shapeRate reads the rate of shape average. The burst is not read: a queue of a policy sends
// packet by packet, so it never bursts.
func (b *ciscoBuilder) shapeRate(l Line) (int64, error) {
	a := &args{l.Words}
	a.take("shape", "cir")
	if a.take("peak") != "" {
		return 0, errors.New("shape peak adds the excess burst in each interval: a queue has one rate")
	}
	a.take("average")
	factor := rateUnits[a.peek()] // NX-OS: shape kbps 5000
	if factor > 0 {
		a.next()
	}
	p := &ciscoPolice{}
	rate, err := p.ciscoRate(a, b.Link)
	if err == nil && p.packets {
		err = errors.New("shaping in packets is not supported")
	}
	for err == nil && !a.done() {
		if _, burst := a.number(); !burst && !slices.Contains(burstWords, a.peek()) {
			err = a.unread()
		} else if !burst {
			a.next()
		}
	}
	return rate.value * max(factor, 1), err
}

// burstWords are the words beside numbers in the bursts of a shaper, as in the configuration or in show.
var burstWords = []string{
	"bc", "be", "burst", "bps", "(bps)", "(bits)", "bits", "bytes", "(bytes)", "kbytes", "mbytes", "ms", "us",
	"(ms)", "packets",
}

// bandwidth reads a guaranteed share.
func (q *ciscoQueue) bandwidth(a *args, link meter.Rate) error {
	q.kind = "kbps"
	if a.take("remaining") != "" {
		q.kind = "remaining"
	}
	if w := a.take("percent", "ratio"); w != "" {
		q.kind += " " + w
	}
	n, ok := a.number()
	if !ok || n == 0 || n > 1e9 {
		q.kind = ""
		return errors.New("its share is not understood")
	}
	if a.take("(%)", "%") != "" {
		q.kind += " percent"
	} else {
		a.take("kbps", "(kbps)")
	}
	q.weight = n
	return a.unread()
}

// setPriority reads priority, and priority level 2.
func (q *ciscoQueue) setPriority(a *args) error {
	q.priority = 0
	if a.take("level") != "" {
		n, ok := a.number()
		if !ok || n < 1 || n > 6 {
			return errors.New("its level is not understood")
		}
		q.priority = int(n) - 1
	}
	if !a.done() {
		return errors.New("the router polices it only while the interface is congested: a policy has no such meter, so use police")
	}
	return nil
}

// setLimit reads queue-limit.
func (q *ciscoQueue) setLimit(a *args) error {
	n, ok := a.number()
	if !ok || n == 0 {
		return errors.New("only one limit for all packets is supported")
	}
	units := map[string]string{"": "p", "packets": "p", "ms": "ms", "bytes": "B", "us": "us"}
	unit, known := units[a.peek()]
	if !known {
		return errors.New("its unit is not understood")
	}
	a.next()
	if err := a.unread(); err != nil {
		return err
	}
	q.limit = fmt.Sprintf("%d%s", n, unit)
	return nil
}

// class adds a class to the draft.
func (b *ciscoBuilder) class(c *ciscoClass, p *ciscoParts, linked bool) {
	when, err := b.classMatch(c.name)
	if err != nil {
		last := 0
		for _, l := range c.lines {
			last = max(last, l.Number)
		}
		b.draft.Omit(c.line, last, err)
		return
	}
	class := NewEntry(c.name, c.line.Number, "%s", c.line.Text())
	queue := b.queueOf(c, p, linked)
	if p.drop != nil {
		class.Set("green", "drop", p.drop.Number, "drop")
		b.draft.Class(class, when)
		return
	}
	if p.police == nil || p.police.broken {
		if action := actionText(false, p.marks, queue); action != "pass" {
			class.Set("green", action, c.line.Number, "set and queueing of the class")
		}
		b.draft.Class(class, when)
		return
	}
	b.police(class, p, queue)
	b.draft.Class(class, when)
}

// actionText writes an action.
func actionText(drop bool, marks map[string]string, queue string) string {
	if drop {
		return "drop"
	}
	var parts []string
	for _, field := range []string{"dscp", "pcp", "mpls"} {
		if v, ok := marks[field]; ok {
			parts = append(parts, field+": "+v)
		}
	}
	if queue != "" {
		parts = append(parts, "queue: "+Quote(queue))
	}
	if parts == nil {
		return "pass"
	}
	return "{" + strings.Join(parts, ", ") + "}"
}

// queueOf returns the name of the queue of a class, which it adds, or "".
func (b *ciscoBuilder) queueOf(c *ciscoClass, p *ciscoParts, linked bool) string {
	q := p.queue
	switch {
	case p.shape != nil && linked:
		if p.rate > 0 {
			b.draft.Cannot(*p.shape,
				"a queue has a rate of its own or shares that of the link: this one shares it")
		}
	case p.shape != nil && p.rate > 0:
		q.isRated = true
	case !linked:
		if q.limit != "" || q.fair != nil {
			b.draft.Cannot(c.line,
				"its queue has no rate: only shape, or bandwidth with --link, gives it one")
		}
		return ""
	}
	if linked && !q.onLink() && c.name != classDefault {
		return classDefault // classes without bandwidth use the queue of class-default
	}
	if !linked && !q.isRated {
		return ""
	}
	q.entry = NewEntry(c.name, c.line.Number, "queue of class %s", c.name)
	if q.isRated {
		q.entry.Set("rate", BitRate(p.rate), p.shape.Number, "%s; sent packet by packet, without burst",
			p.shape.Text())
	} else {
		q.entry.Set("link", linkName, 0, "")
	}
	limit := NewEntry("limit", 0, "default: 64 packets")
	limit.Value = defaultQueueLimit
	if q.limit != "" {
		limit.Value, limit.Line, limit.Comment = q.limit, q.limitAt.Number, q.limitAt.Text()
	}
	q.entry.Set("limit", limit.Value, limit.Line, "%s", limit.Comment)
	if q.fair != nil {
		q.entry.Set("fair", "flow", q.fair.Number, "%s", q.fair.Text())
		q.entry.Set("codel", "false", 0, "")
	}
	b.queues = append(b.queues, q)
	return c.name
}

// defaultQueueLimit is the default of queue-limit (IOS XE QoS Congestion Management).
const defaultQueueLimit = "64p"
