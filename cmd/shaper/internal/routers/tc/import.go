package tc

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/pattern"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policywriter"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/routers"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/meter/unsaid"
)

func init() { routers.All["tc"] = Dialect{} }

// Dialect is the language of tc commands (iproute2).
type Dialect struct{}

// Import reads a shell script with tc commands, or a file for tc -batch.
func (Dialect) Import(s routers.Source) (*routers.Import, error) {
	commands, err := readScript(s.Text)
	if err != nil {
		return nil, err
	}
	t := &tcImport{Import: &routers.Import{}, link: s.Link, indexed: map[uint32]*tcPolice{}}
	for _, c := range commands {
		t.command(c)
	}
	switch {
	case !t.found && shown().MatchString(s.Text):
		return nil,
			errors.New("it is what tc prints, which lacks details: give the interface instead of a file, such as --from tc eth0, or the commands")
	case !t.found:
		return nil, errors.New("it has no tc command")
	}
	for _, d := range t.devices {
		t.drafts(d)
	}
	return t.Import, nil
}

// shown is a line of the output of tc qdisc show, tc class show or tc filter show.
var shown = pattern.Lazy(
	`(?m)^(qdisc \w+ [0-9a-f]+:|class \w+ [0-9a-f]+:|filter (parent|protocol|dev|block) )`)

// drafts makes the policies of an interface: one for its qdiscs, one for each hook of clsact.
func (t *tcImport) drafts(d *tcDevice) {
	d.checkTree()
	var root *tcQdisc
	for _, q := range d.qdiscs {
		if q.parent == tcRoot {
			root = q
		}
	}
	var drafts []*routers.Draft
	parents := []uint32{tcRoot}
	if root != nil {
		parents = append(parents, root.handle)
	}
	for _, h := range []struct {
		name    string
		root    *tcQdisc
		filters []*tcFilter
		base    dataplane.LengthBase
	}{
		{d.name, root, d.sorted(parents...), baseOf(d.name)},
		{d.name + "-egress", nil, d.sorted(tcClsactOut), baseOf(d.name)},
		{d.name + "-ingress", nil, d.sorted(tcClsactIn), dataplane.L3},
	} {
		redirects := len(h.filters) > 0 && !slices.ContainsFunc(h.filters, func(f *tcFilter) bool {
			return len(f.actions) != 1 || f.actions[0].redirect == ""
		})
		if redirects && h.root == nil { // the policy belongs to the other interface
			for _, f := range h.filters {
				if f.total == nil && len(unsaid.Fields(&f.match, "EtherType", "Length")) == 0 {
					t.Skip(f.Line)
				} else {
					t.Outside(f.Line, "the policy of the other interface is for these packets only: it has no such condition")
				}
			}
			continue
		}
		if h.root == nil && len(h.filters) == 0 {
			continue
		}
		draft := t.Draft(h.name, d.line)
		drafts = append(drafts, draft)
		b := &tcBuilder{
			tcQueues: tcQueues{
				Draft: draft, device: d, link: t.link, queues: map[uint32]*dataplane.Queue{},
				used: map[string]bool{},
			},
			root: h.root, base: h.base,
			indexed: map[string]*dataplane.Meter{},
		}
		untagged := func(f *tcFilter) bool { return f.protocol != etherAll && f.protocol != etherVLAN }
		if slices.ContainsFunc(h.filters, untagged) {
			draft.Remark("Filters of a protocol such as ip do not take packets with VLAN tags. Here these match, too.")
		}
		b.build(h.filters)
	}
	for _, f := range d.filters {
		if f.parent != tcClsactIn && f.parent != tcClsactOut && !slices.Contains(parents, f.parent) {
			d.cannot(f.Line,
				"filters of %s cannot be expressed: only those of the root qdisc, of ingress and of clsact can",
				handleName(f.parent))
		}
	}
	if len(drafts) == 0 && len(d.problems) > 0 {
		drafts = append(drafts, t.Draft(d.name, d.line))
	}
	for _, draft := range drafts { // the policy of a failed command is unknown
		draft.Problems = append(draft.Problems, d.problems...)
		draft.Notes = append(draft.Notes, d.notes...)
	}
}

// tcBuilder makes the draft of a hook.
type tcBuilder struct {
	tcQueues
	root    *tcQdisc
	base    dataplane.LengthBase // of lengths without overhead
	counted dataplane.LengthRule // length rule of the first part with a rate
	ruleSet bool
	indexed map[string]*dataplane.Meter // by the index of their police actions
}

// build makes the classes, meters and queues.
func (b *tcBuilder) build(filters []*tcFilter) {
	var rules []*tcRule
	for _, f := range filters {
		if !b.resolve(f) {
			continue
		}
		r, err := f.rule()
		if err != nil {
			b.Cannot(f.Line, "%v", err)
			continue
		}
		for _, note := range f.notes {
			b.Note(f.Line, "%s", note)
		}
		rules = append(rules, r)
	}
	if b.root != nil {
		b.checkQdiscs()
		if !slices.ContainsFunc(rules, (*tcRule).takesAll) {
			if rest := b.rest(); rest != nil {
				rules = append(rules, rest)
			}
		}
	}
	for _, r := range rules {
		b.frameLength(r)
	}
	for _, r := range mergeRules(followRules(rules)) {
		b.class(r)
	}
	if b.root != nil && b.root.kind == "htb" {
		b.tree(b.root)
	}
	if !b.ruleSet {
		b.setLength(routers.Line{}, tcLength{})
	}
	b.Policy.Length = b.counted
}

// rest returns the rule of packets without a matching filter, or nil if they pass.
func (b *tcBuilder) rest() *tcRule {
	r := &tcRule{lines: []routers.Line{b.root.Line}, match: dataplane.Match{Length: anyLength}}
	r.name = cmp.Or(b.root.labels.class, "all")
	for i := range r.outcomes {
		r.outcomes[i].verdict = tcOK
		if b.root.wash {
			r.outcomes[i].marks = []dataplane.Mark{{Field: dataplane.DSCP}}
		}
	}
	switch b.root.kind {
	case "htb":
		r.name = "rest"
		r.class = b.root.handle&majorMask | b.root.defaultClass
		if k := b.device.find(r.class); b.root.defaultClass == 0 || k == nil ||
			len(b.device.leaves(k.id)) > 0 {
			return nil
		}
	case "prio":
		b.Cannot(b.root.Line,
			"packets that no filter matches go to the bands of priomap, by the priority of the socket or the TOS")
		return nil
	}
	return r
}

// checkQdiscs checks the length rules and the options of qdiscs and classes.
func (b *tcBuilder) checkQdiscs() {
	for _, k := range b.device.classes {
		b.length(k.Line, k.length)
	}
	for _, q := range b.device.qdiscs {
		if q == b.root && q.kind != "htb" && q.kind != "prio" {
			b.length(q.Line, q.length)
		}
		if q != b.root && q.length.stab != 0 {
			b.Cannot(q.Line, "stab below the root cannot be expressed")
		}
		if q != b.root && q.kind == "cake" && q.rate != nil && q.length != (tcLength{}) {
			b.Cannot(q.Line, "overhead and mpu of cake below a class: a policy has one length rule")
		}
		if frame := b.longest(); q.kind == "tbf" && q.burst+1 < frame { // a burst is rounded down
			b.Cannot(q.Line, "burst %d: tbf drops all packets that are longer", q.burst)
		}
		for _, lost := range q.lost {
			b.Cannot(q.Line, "%s", lost)
		}
	}
}

// longest returns the length of the longest packets of the interface, bytes.
func (b *tcBuilder) longest() int64 {
	if baseOf(b.device.name) == dataplane.L3 {
		return fullFrame - routers.EthernetHeader
	}
	return fullFrame
}

// length records the length rule of a part with a rate. All must have the same.
func (b *tcBuilder) length(line routers.Line, l tcLength) {
	before, set := b.counted, b.ruleSet
	b.setLength(line, l)
	if set && before != b.counted {
		b.Cannot(line, "its length rule is %s, and that of an earlier part is %s: a policy has one",
			policywriter.LengthRule(b.counted), policywriter.LengthRule(before))
		b.counted = before
	}
}

// setLength sets the length rule: the frame, or the IP packet, plus the overheads. 14 is the
// length of an Ethernet header.
func (b *tcBuilder) setLength(line routers.Line, l tcLength) {
	if b.root != nil {
		l.stab = b.root.length.stab
	}
	rule := dataplane.LengthRule{Base: b.base, Overhead: l.stab + l.overhead, MPU: l.mpu}
	switch {
	case l.network:
		rule = dataplane.LengthRule{Base: dataplane.L3, Overhead: l.overhead, MPU: l.mpu}
	case b.base == dataplane.L2 && l.stab <= -routers.EthernetHeader:
		rule.Base, rule.Overhead = dataplane.L3, rule.Overhead+routers.EthernetHeader
	}
	if limit := 1 << 15; rule.Overhead > limit || rule.MPU > limit {
		b.Cannot(line, "overhead and mpu above %d bytes cannot be expressed", limit)
		rule.Overhead, rule.MPU = min(rule.Overhead, limit), min(rule.MPU, limit)
	}
	if rule == (dataplane.LengthRule{Base: dataplane.L2, Overhead: 24, MPU: 84}) {
		rule = dataplane.LengthRule{Base: dataplane.L1} // max(60, frame) + 24
	}
	b.counted, b.ruleSet = rule, true
}

// frameLength converts the total length that a rule compares to the metered length.
func (b *tcBuilder) frameLength(r *tcRule) {
	if len(r.total) == 0 {
		return
	}
	shift := int64(b.counted.Overhead)
	if b.counted.Base == dataplane.L1 {
		b.Cannot(r.lines[0], "total length: packets are counted as they occupy the wire")
		return
	}
	if b.counted.Base == dataplane.L2 {
		shift += routers.EthernetHeader
		b.Note(r.lines[0], "the total length of the packet is compared as that of the frame, %d bytes more without VLAN tags",
			routers.EthernetHeader)
	}
	metered := func(total int64) int64 { return max(total+shift, int64(b.counted.MPU), 0) }
	for _, t := range r.total {
		first, last := metered(int64(t.First)), metered(int64(t.Last))
		if t.First == 0 {
			first = 0
		}
		if t.First > 0 && first == metered(int64(t.First)-1) || last == metered(int64(t.Last)+1) {
			b.Cannot(r.lines[0], "total length %d-%d: all packets up to mpu %d have one length", t.First, t.Last,
				b.counted.MPU)
		}
		r.match.Length = append(r.match.Length, dataplane.Range{First: uint64(first), Last: uint64(last)})
	}
}

// resolve completes police actions naming one of an earlier filter by its index, and checks the
// others.
func (b *tcBuilder) resolve(f *tcFilter) bool {
	for _, a := range f.actions {
		p := a.police
		if p == nil {
			continue
		}
		known := p.rate != nil || p.packets > 0
		for _, lost := range p.lost {
			b.Cannot(f.Line, "%s", lost)
		}
		if !known {
			b.Cannot(f.Line, "police without a rate cannot be expressed")
			return false
		}
		if p.rate != nil && p.burst == 0 {
			b.Cannot(f.Line, "police without a burst: tc rejects that")
			return false
		}
		if p.rate != nil {
			b.length(f.Line, p.length)
		}
	}
	return true
}

// class adds a rule to the draft as a class.
func (b *tcBuilder) class(r *tcRule) {
	line := r.lines[0]
	name := r.name
	if name == "" {
		name = strings.TrimSuffix(handleName(r.class), ":")
		if r.class&0xffff == 0 || b.root == nil {
			name = fmt.Sprintf("line-%d", line.Number)
		}
	}
	c := b.NewClass(b.name("class", "", name), line, "%s", whichLines(r.lines))
	if len(r.meters) > 0 {
		b.meter(c, r)
	}
	var queue *dataplane.Queue
	if b.root != nil {
		queue = b.queue(b.root, r.class)
	}
	for color, at := range []**dataplane.Action{&c.Green, &c.Yellow, &c.Red} {
		o := r.outcomes[color]
		to := queue
		if o.verdict == tcContinue {
			to = b.continued(r, &o)
		}
		if len(r.meters) == 0 && color > 0 || len(r.meters) == 1 && color == int(meter.Yellow) {
			continue
		}
		a := action(o, to)
		if plain := !a.Drop && a.Marks == nil && a.Queue == nil; plain && color != int(meter.Red) {
			continue // the default
		}
		*at = a
		b.From(c, meter.Color(color).String(), routers.Line{Number: line.Number}, "")
	}
	when := routers.ConditionOf(routers.Line{Number: line.Number}, r.match)
	if slices.Equal(r.match.Length, anyLength) {
		when.Say("length", line, "all packets, also those that are not IP")
	}
	b.Class(c, []routers.Condition{when})
}

// continued returns the queue of packets going on to another rule, and sets their outcome.
func (b *tcBuilder) continued(r *tcRule, o *tcOutcome) *dataplane.Queue {
	if r.next == nil {
		b.Cannot(r.lines[0],
			"continue: the next filter for these packets has a meter, or matches only some of them")
		return nil
	}
	next := r.next.outcomes[meter.Green]
	*o = tcOutcome{verdict: next.verdict, marks: slices.Concat(o.marks, next.marks)}
	if b.root == nil || r.next == passRule && b.root.kind != "htb" || o.verdict == tcDrop {
		return nil
	}
	return b.queue(b.root, r.next.class)
}

// action returns an outcome as an action.
func action(o tcOutcome, q *dataplane.Queue) *dataplane.Action {
	if o.verdict == tcDrop {
		return &dataplane.Action{Drop: true}
	}
	return &dataplane.Action{Marks: o.marks, Queue: q}
}
