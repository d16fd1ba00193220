package routers

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/routers/form"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// ciscoBuilder makes the draft of one policy map.
type ciscoBuilder struct {
	*ciscoConfig
	Options    // with the parent's rate for percentages
	draft      *Draft
	link       *dataplane.Link  // nil: the rate is unknown
	rest       *dataplane.Queue // of class-default on the link
	linkLine   Line             // of the parent's shape statement
	policyLine Line
	queues     []*ciscoQueue
	shapesRest bool // class-default has a rate of its own
}

// ciscoParts are the statements of a class, translated.
type ciscoParts struct {
	*ciscoBuilder
	police *ciscoPolice
	marks  []dataplane.Mark
	marks4 *Line // a mark of IPv4 only
	drop   *Line
	shape  *Line
	rate   int64
	queue  *ciscoQueue
}

// ciscoQueue is the queue of a class.
type ciscoQueue struct {
	queue    *dataplane.Queue
	line     Line // of bandwidth, or of priority
	kind     string
	weight   int64
	priority int // -1: none
	limit    func(*dataplane.Queue)
	limitAt  Line
	shown    bool // limit is what show policy-map prints
	fair     *Line
	isRated  bool
}

func (q *ciscoQueue) onLink() bool { return q.kind != "" || q.priority >= 0 }

// unshared returns an error if the class has a share or priority.
func (q *ciscoQueue) unshared() error {
	if !q.onLink() {
		return nil
	}
	return fmt.Errorf("the class has a share or priority already, in line %d: a queue of a policy has one", q.line.Number)
}

// ciscoStatements are the statements of a class of a policy map.
var ciscoStatements = &Reader[*ciscoParts]{Kinds: &ciscoKinds, Statements: []Statement[*ciscoParts]{
	{Form: "police [rate | cir] <rate:cir> [<burst:bc> [<burst:be>]]" +
		" {(bc | burst | burst-size) <burst:bc> | (pir | peak-rate) <rate:pir> | (be | peak-burst) <burst:be>}" +
		" [<action>] [<color> <action>...]...", Do: (*ciscoParts).readPolice},
	{Form: "police [cir | rate] <rate> (bc | burst-size) <burst> action set (drop-precedence | dscp) <word>...", Reason: "the algorithm of EOS for two rates is not documented"},
	{Form: "police (aggregate | flow) <word>...", Reason: "a policer of several classes or of flows is not supported"},
	{Form: "police <word>... account <word>...", Reason: accountReason},
	{Form: "<color> <action>...", Do: (*ciscoParts).readActions},
	{Form: "(conform-color | exceed-color) <word>...", Reason: "color-aware policing by class is not supported"},
	{Form: "set [ip:ip] dscp <dscp>", Do: setting(dataplane.DSCP)},
	{Form: "set cos <0-7>", Do: setting(dataplane.PCP)},
	{Form: "set mpls (experimental | exp) topmost <0-7>", Do: setting(dataplane.MPLSTC)},
	{Form: "set [ip] precedence <word>", Reason: precedenceReason},
	{Form: "set (qos-group | discard-class | drop-precedence | traffic-class) <word>", Reason: internalReason},
	{Form: "set mpls (experimental | exp) [imposition] <0-7>", Reason: impositionReason},
	{Form: "set (dscp | cos) (cos | dscp | qos-group) [table <word>]", Reason: "only a fixed value can be set"},
	{Form: "drop", Do: func(p *ciscoParts, l Line, _ form.Values) error { p.drop = &l; return nil }},
	{Form: "shape [average | rate] <rate> [[bc] <burst> [[be] <burst>]]", Do: (*ciscoParts).readShape},
	{Form: "cir <rate> {bc <burst> | be <burst>}", Do: (*ciscoParts).readShape}, // show policy-map
	{Form: "average rate traffic shaping"},
	{Form: "shape peak <word>...", Reason: "shape peak adds the excess burst in each interval: a queue has one rate"},
	{Form: "shape <word>... account <word>...", Reason: accountReason},
	{Form: "bandwidth [remaining:share] [percent:share | ratio:share] <number>" +
		" [percent:share | %:share | kbps:unit | mbps:unit | gbps:unit]", Do: (*ciscoParts).readBandwidth},
	{Form: "priority [level <number>]", Do: (*ciscoParts).readPriority},
	{Form: "priority (percent | <number> | <rate> | level <number> <word>) [<word>...]", Reason: "the router polices it only while the interface is congested: a policy has no such meter, so use police"},
	{Form: "[" + shownWord + ":shown] queue-limit <number> [packets:unit | ms:unit | us:unit | bytes:unit | kbytes:unit | mbytes:unit]", Do: (*ciscoParts).readLimit},
	{Form: "queue-limit (dscp | cos | precedence | qos-group | discard-class | atm) <word>...", Reason: "only one limit for all packets is supported"},
	{Form: "fair-queue", Do: func(p *ciscoParts, l Line, _ form.Values) error {
		p.queue.fair = &l
		return nil
	}},
	{Form: "random-detect [<word>...]", Reason: "WRED by DSCP with an average backlog is another algorithm: add wred by color to the queue"},
	{Form: "service-policy <word>...", Reason: "a policy inside a class is supported only if class-default shapes everything and has no other statements, and if its policy map is there"},
	{Form: "overhead accounting <word>", Reason: accountReason}, // these two are of show policy-map interface
	{Form: "fair-queue per-flow <word>...", Reason: "each flow has a limit of its own, and a queue of a policy has one for all flows"},
	{Form: "exit"},
	{Form: "count"}, // NX-OS and EOS: counters
}}

// shownWord begins a limit of a queue that show policy-map prints of each class, also without a queue.
const shownWord = "shown"

// xrPacket is the length of a packet in limits of IOS XR, bytes (Cisco CRS QoS command reference).
const xrPacket = 256

const burstReason = "the router sends a burst at once, and a queue of a policy sends packet by packet at its rate"

const accountReason = "account adds bytes to the length of packets: set length in the policy"

// setting marks all packets of a class.
func setting(f dataplane.Field) func(*ciscoParts, Line, form.Values) error {
	return func(p *ciscoParts, l Line, v form.Values) error {
		if v.Has("ip") {
			p.marks4 = &l
		}
		p.marks = setMark(p.marks, dataplane.Mark{Field: f, Value: v[len(v)-1].Value.(uint32)})
		return nil
	}
}

// statements translates the statements of a class one by one.
func (b *ciscoBuilder) statements(c *ciscoClass) *ciscoParts {
	p := &ciscoParts{ciscoBuilder: b, queue: &ciscoQueue{priority: -1}}
	for _, l := range c.lines {
		if err := ciscoStatements.Read(p, l); err != nil {
			b.draft.Cannot(l, "%v", err)
		}
	}
	return p
}

// readShape reads the rate of a shaper.
func (p *ciscoParts) readShape(l Line, v form.Values) error {
	rate := v[0].Value.(ciscoRate)
	p.shape = &l
	if rate.packets {
		return errors.New("shaping in packets is not supported")
	}
	a, err := rate.of(p.Link)
	p.rate = a.value
	if err == nil && len(v) > 1 && p.draft != nil {
		p.draft.Note(l, "burst %s: %s", strings.Join(v[1].Words, " "), burstReason)
	}
	return err
}

// readBandwidth reads a guaranteed share.
func (p *ciscoParts) readBandwidth(l Line, v form.Values) error {
	n := v.Get("number").(int64)
	if n == 0 || n > 1e9 {
		return errors.New("its share is not understood")
	}
	q := p.queue
	if err := q.unshared(); err != nil {
		return err
	}
	if unit, ok := v.Get("unit").(string); ok {
		n *= rateUnits[unit] / 1000
	}
	var kind []string
	for _, x := range v {
		if x.Name == "share" {
			kind = append(kind, strings.ReplaceAll(x.Value.(string), "%", "percent"))
		}
	}
	if len(kind) == 1 && kind[0] == "remaining" {
		return errors.New("percent or ratio is missing")
	}
	q.line, q.weight, q.kind = l, n, cmp.Or(strings.Join(kind, " "), "kbps")
	return nil
}

func (p *ciscoParts) readPriority(l Line, v form.Values) error {
	level := int64(1)
	if n := v.Get("number"); n != nil {
		level = n.(int64)
	}
	if level < 1 || level > 7 {
		return errors.New("its level is not understood")
	}
	if err := p.queue.unshared(); err != nil {
		return err
	}
	p.queue.line, p.queue.priority = l, int(level)-1
	return nil
}

// readLimit reads queue-limit.
func (p *ciscoParts) readLimit(l Line, v form.Values) error {
	n := v.Get("number").(int64)
	if n == 0 || n > 1e9 {
		return errors.New("its limit is not supported")
	}
	if p.queue.shown = v.Has("shown"); p.queue.shown {
		l.Words = l.Words[1:]
	}
	p.queue.limitAt = l
	unit, _ := v.Get("unit").(string)
	if (unit == "" || unit == "packets") && n > queue.MaxPackets && !p.isXR() {
		return fmt.Errorf("it is above %d packets, the maximum of a policy", queue.MaxPackets)
	}
	if isKBytes(unit) {
		p.draft.Note(l, "%s", kbyteNote)
	}
	p.queue.limit = func(q *dataplane.Queue) {
		switch unit {
		case "ms":
			q.Time = time.Duration(n) * time.Millisecond
		case "us":
			q.Time = time.Duration(n) * time.Microsecond
		case "bytes", "kbytes", "mbytes":
			q.Bytes = n * burstUnits[unit]
		default:
			if q.Packets = n; p.isXR() {
				q.Packets, q.Bytes = 0, n*xrPacket
			}
		}
	}
	return nil
}

// policy adds all classes of a policy map.
func (b *ciscoBuilder) policy(p *ciscoPolicy) {
	b.policyLine = p.line
	var parts []*ciscoParts
	linked := b.linkLine.Number > 0
	for _, c := range p.classes {
		s := b.statements(c)
		parts = append(parts, s)
		alone := (s.queue.fair != nil || s.queue.limit != nil && !s.queue.shown) && s.shape == nil
		b.shapesRest = b.shapesRest || c.name == classDefault && s.shape != nil && s.rate > 0
		linked = linked || s.queue.onLink() || alone && b.link != nil // in the queue of the interface
	}
	if linked && b.link == nil {
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
		b.draft.Policy.Links = append(b.draft.Policy.Links, b.link)
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
	when, err := b.classMatch(p.classes[len(p.classes)-1])
	return err == nil && len(when) == 1 && when[0].MatchesAllIP()
}

// class adds a class to the draft.
func (b *ciscoBuilder) class(c *ciscoClass, p *ciscoParts, linked bool) {
	when, err := b.classMatch(c)
	if err != nil {
		last := 0
		for _, l := range c.lines {
			last = max(last, l.Number)
		}
		b.draft.Omit(c.line, last, err)
		return
	}
	not4 := func(c Condition) bool { return !slices.Equal(Family(&c.Match), single(etherIPv4)) }
	if p.marks4 != nil && slices.ContainsFunc(when, not4) {
		b.draft.Note(*p.marks4, "the router marks IPv4 only, and the policy IPv6 too: restrict its class to one of them")
	}
	class := b.draft.NewClass(c.name, c.line, "%s", c.line.Text())
	queue := b.queueOf(c, p, linked)
	switch {
	case p.drop != nil:
		b.draft.setAction(class, meter.Green, treatment{line: p.drop.Number, drop: true, text: "drop"}, nil, nil)
	case p.police != nil && !p.police.broken:
		b.police(class, p, queue)
	case p.marks != nil || queue != nil:
		b.draft.setAction(class, meter.Green, treatment{line: c.line.Number, text: "set and queueing of the class"},
			p.marks, queue)
	}
	b.draft.Class(class, when)
}

// queueOf returns the queue of a class, which it adds, or nil.
func (b *ciscoBuilder) queueOf(c *ciscoClass, p *ciscoParts, linked bool) *dataplane.Queue {
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
		if q.limit != nil && !q.shown || q.fair != nil {
			b.draft.Cannot(c.line,
				"its queue has no rate: only shape, or bandwidth with --link, gives it one")
		}
		if !b.shapesRest {
			return nil
		}
	}
	if (linked && !q.onLink() || b.shapesRest && !q.isRated) && c.name != classDefault {
		return b.defaultQueue() // classes without bandwidth use the queue of class-default
	}
	if !linked && !q.isRated {
		return nil
	}
	if q.queue = (&dataplane.Queue{Name: c.name}); c.name == classDefault {
		q.queue = b.defaultQueue()
	}
	b.draft.Queue(q.queue, c.line, "queue of class %s", c.name)
	if q.isRated {
		q.queue.Rate = meter.BitRate(p.rate)
		b.draft.From(q.queue, "rate", *p.shape, "%s; sent packet by packet, without burst", p.shape.Text())
	} else {
		q.queue.Link = b.link
	}
	if q.limit != nil {
		q.limit(q.queue)
		b.draft.From(q.queue, "limit", q.limitAt, "%s", q.limitAt.Text())
	} else {
		b.defaultLimit(q, p.rate, c.line)
	}
	if q.fair != nil {
		q.queue.Fair.By = dataplane.ByFlow
		b.draft.From(q.queue, "fair", *q.fair, "%s", q.fair.Text())
	}
	b.queues = append(b.queues, q)
	return q.queue
}

// defaultQueue returns the queue of class-default on the link.
func (b *ciscoBuilder) defaultQueue() *dataplane.Queue {
	if b.rest == nil {
		b.rest = &dataplane.Queue{Name: classDefault}
	}
	return b.rest
}

// fullPacket is the length of packets in the default of queue-limit, bytes.
const fullPacket = 1500

// defaultLimit sets the limit of a queue without queue-limit.
func (b *ciscoBuilder) defaultLimit(of *ciscoQueue, rate int64, l Line) {
	q := of.queue
	if q.Link != nil {
		rate = b.linkBits()
	}
	a, err := defaultOf("cisco", b.platformOf(), "class", "queue-limit", rate, 0)
	if err == nil {
		switch n := max(a.value/fullPacket, 64); {
		case of.priority >= 0:
			q.Packets = 512
		case n > queue.MaxPackets:
			q.Time = 50 * time.Millisecond
		default:
			q.Packets = n
		}
		b.draft.From(q, "limit", Line{}, "queue-limit %s", a.text)
		b.draft.Note(b.policyLine, "queue-limit is left out: its default is that of IOS XE, and older IOS has 64 packets")
		return
	}
	q.Time = AssumedLimit
	b.draft.From(q, "limit", Line{}, "assumed")
	if l.Number == 0 {
		l = b.policyLine
	}
	b.draft.Note(l, "queue-limit is left out, and assumed to be %v: its default depends on the line card", AssumedLimit)
}
