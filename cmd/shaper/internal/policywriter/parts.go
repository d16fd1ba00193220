package policywriter

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/meter/unsaid"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

func (w *writer) policy(p *dataplane.Policy) {
	w.only("policy", p, "Length", "Classes", "DropUnclassified", "Meters", "Queues", "Links", "Customers")
	w.queues, w.links = p.Queues, p.Links
	w.value(0, p, "length", LengthRule(p.Length))
	if p.DropUnclassified {
		w.value(0, p, "otherwise", "drop")
	}
	w.key(0, p, "classes", "classes")
	for i := range p.Classes {
		w.class(&p.Classes[i], p.Meters)
	}
	if len(p.Meters) > 0 {
		w.key(0, p, "meters", "meters")
	}
	for _, m := range p.Meters {
		w.key(1, m, "", Quote(m.Name))
		w.meter(2, m)
	}
	if len(p.Queues) > 0 {
		w.key(0, p, "queues", "queues")
	}
	for _, q := range p.Queues {
		w.key(1, q, "", Quote(q.Name))
		w.queue(2, q, q)
		if q.Fair.By == dataplane.NoKey && q.Link == nil {
			w.value(2, q, "fair", "false")
		}
	}
	links := slices.DeleteFunc(slices.Clone(p.Links), func(l *dataplane.Link) bool {
		return slices.ContainsFunc(p.Queues, func(q *dataplane.Queue) bool { return own(q) && q.Link == l })
	})
	if len(links) > 0 {
		w.key(0, p, "links", "links")
	}
	for _, l := range links {
		w.link(l)
	}
	if p.Customers != nil {
		w.plans(p.Customers)
	}
}

// plans writes the plans of customers. The file of customers is not part of the text.
func (w *writer) plans(c *dataplane.Customers) {
	w.only("customers", c, "Plans")
	w.key(0, c, "plans", "plans")
	for _, p := range c.Plans {
		w.plan(p)
	}
}

// plan writes a plan with a queue.
func (w *writer) plan(p *dataplane.ServicePlan) {
	what := "plan " + p.Name
	w.only(what, p, "Name", "Queue", "Link", "Guarantee", "Priority", "Weight", "Fair", "Hosts", "Up")
	if p.Queue == nil {
		w.fail("%s: a meter cannot be written to a policy file", what)
		return
	}
	q := &dataplane.Queue{
		Name: p.Name, Config: *p.Queue, Link: p.Link, Guarantee: p.Guarantee, Priority: p.Priority,
		Weight: p.Weight, Fair: p.Fair, Hosts: p.Hosts, TargetAtRate: true, IntervalAtRate: true,
	}
	if p.Up != nil && p.Up.Queue != nil {
		w.only(what, p.Up, "Queue", "Guarantee")
		q.Up = dataplane.Upward{Rate: p.Up.Queue.Rate, Guarantee: p.Up.Guarantee}
	}
	w.key(1, p, "", Quote(p.Name))
	w.key(2, p, "queue", "queue")
	w.queue(3, p, q)
}

// LengthRule writes a length rule; "" for the default.
func LengthRule(r dataplane.LengthRule) string {
	switch {
	case r == dataplane.LengthRule{}:
		return ""
	case r.Overhead == 0 && r.MPU == 0:
		return r.Base.String()
	}
	return fmt.Sprintf("{base: %v, overhead: %d, mpu: %d}", r.Base, r.Overhead, r.MPU)
}

func (w *writer) class(c *dataplane.Class, shared []*dataplane.Meter) {
	w.only("class "+c.Name, c, "Name", "Match", "Meter", "Green", "Yellow", "Red")
	w.line(1, "- name: "+Quote(c.Name), w.comments[c][""])
	w.match(c)
	switch {
	case c.Meter == nil:
	case c.Match.Customer && c.Meter.Params == nil:
		w.only("class "+c.Name, c.Meter)
		w.value(2, c, "meter", "plan")
	case slices.Contains(shared, c.Meter):
		w.value(2, c, "meter", Quote(c.Meter.Name))
	default:
		w.key(2, c, "meter", "meter")
		w.meter(3, c.Meter)
	}
	for color, a := range []*dataplane.Action{c.Green, c.Yellow, c.Red} {
		if a != nil {
			w.value(2, c, meter.Color(color).String(), w.action(c, a))
		}
	}
}

func (w *writer) match(c *dataplane.Class) {
	rest := c.Match
	if rest.Customer {
		w.line(2, "per: customer", w.comments[c]["per"])
		rest.Customer = false
	}
	if c.Match.MatchesAllIP() {
		w.only("class "+c.Name, &rest)
		return
	}
	w.key(2, c, "match", "match")
	values := func(key string, values []string) {
		if len(values) > 0 {
			w.line(3, key+": "+list(values), w.comments[c]["match."+key])
		}
	}
	values("src", prefixes(c.Match.Src))
	values("dst", prefixes(c.Match.Dst))
	for _, f := range dataplane.MatchFields {
		values(f.Name, say.Ranges(f.Name, *f.List(&c.Match)))
		*f.List(&rest) = nil
	}
	w.only("class "+c.Name, &rest, "Src", "Dst")
}

func (w *writer) meter(depth int, m *dataplane.Meter) {
	what := "meter " + m.Name
	if m.Params == nil {
		w.fail("%s: it has no parameters", what)
		return
	}
	w.only(what, m, "Name", "Params", "Aware", "Packets")
	info := m.Params.Kind().Info()
	w.value(depth, m, "type", info.Name)
	defaults := info.Defaults
	for _, name := range slices.Concat(info.Required, info.Optional) {
		v := meter.Field(m.Params, name)
		if slices.Contains(info.Optional, name) && v == meter.Field(defaults, name) {
			continue
		}
		w.value(depth, m, name, w.parameter(what, v, m.Packets))
	}
	if m.Packets {
		w.value(depth, m, "count", "packets")
	}
	if m.Aware {
		w.value(depth, m, "color", "aware")
	}
}

// parameter writes the value of a parameter of a meter.
func (w *writer) parameter(what string, v any, packets bool) string {
	switch v := v.(type) {
	case meter.Rate:
		if packets {
			return fmt.Sprintf("%dp/%s", v.Bytes, duration(v.Period))
		}
		return rate(v)
	case time.Duration:
		return duration(v)
	case int64, int, uint64, bool:
		return fmt.Sprint(v)
	}
	w.fail("%s: a parameter of type %T cannot be written", what, v)
	return ""
}

// rate writes a rate as ParseRate reads it.
func rate(r meter.Rate) string {
	if _, whole := r.Bits(); whole {
		return r.String()
	}
	return fmt.Sprintf("%dB/%s", r.Bytes, duration(r.Period))
}

// duration writes a time in the longest unit, up to seconds, of which it is a multiple.
func duration(d time.Duration) string { return policyfile.FormatDuration(d, time.Second) }

// action writes an action of a class.
func (w *writer) action(c *dataplane.Class, a *dataplane.Action) string {
	w.only("class "+c.Name, a, "Drop", "ECN", "Marks", "Queue")
	if a.Drop {
		return "drop"
	}
	var parts []string
	if a.ECN != dataplane.NoECN {
		parts = append(parts, "ecn: ce")
	}
	if a.ECN == dataplane.CEOrDrop {
		parts = append(parts, "else: drop")
	}
	for _, m := range a.Marks {
		w.only("class "+c.Name, m, "Field", "Value")
		parts = append(parts, fmt.Sprintf("%v: %s", m.Field, say.Value(m.Field.String(), m.Value)))
	}
	if a.Queue != nil {
		if !slices.Contains(w.queues, a.Queue) {
			w.fail("class %s: queue %s is not among those of the policy", c.Name, a.Queue.Name)
		}
		parts = append(parts, "queue: "+Quote(a.Queue.Name))
	}
	if parts == nil {
		return "pass"
	}
	return "{" + strings.Join(parts, ", ") + "}"
}

// own reports whether a queue has a link only because it is fair at a rate of its own.
func own(q *dataplane.Queue) bool {
	return q.Link != nil && q.Link.Name == q.Name && q.Link.Link == nil && q.Fair.By != dataplane.NoKey &&
		unsaid.Fields(q, "Name", "Link", "Fair", "Hosts", "Time", "Bytes", "Packets", "CoDel", "ECN", "TargetAtRate",
			"IntervalAtRate") == nil
}

// queue writes the parameters of a queue. part is the queue or the plan that has it.
func (w *writer) queue(depth int, part any, q *dataplane.Queue) {
	w.only("queue "+q.Name, q, "Name", "Rate", "Time", "Bytes", "Packets", "CoDel", "ECN", "TargetAtRate",
		"IntervalAtRate", "Link", "Guarantee", "Priority", "Weight", "Up", "Fair", "Hosts")
	if own(q) {
		w.only("link "+q.Name, q.Link, "Name", "Rate", "Up")
		w.value(depth, part, "rate", w.rates(q.Link.Rate, q.Link.Up.Rate))
	} else {
		if q.Link != nil {
			w.above(depth, part, q.Link)
		}
		w.value(depth, part, "rate", w.rates(q.Rate, q.Up.Rate))
		w.share(depth, part, q.Guarantee, q.Up.Guarantee, q.Priority, q.Weight)
	}
	var limits []string
	if q.Time != 0 {
		limits = append(limits, duration(q.Time))
	}
	if q.Bytes != 0 {
		limits = append(limits, fmt.Sprintf("%dB", q.Bytes))
	}
	if q.Packets != 0 {
		limits = append(limits, fmt.Sprintf("%dp", q.Packets))
	}
	if len(limits) > 1 {
		w.fail("queue %s: %d limits cannot be written to a policy file", q.Name, len(limits))
	}
	w.value(depth, part, "limit", strings.Join(limits, ""))
	switch {
	case q.Hosts.By != dataplane.NoKey:
		w.value(depth, part, "fair", list([]string{Quote(q.Hosts.String()), Quote(q.Fair.String())}))
	case q.Fair.By != dataplane.NoKey:
		w.value(depth, part, "fair", q.Fair.String())
	}
	w.codel(depth, part, q)
	if q.ECN {
		w.value(depth, part, "ecn", "true")
	}
}

// codel writes codel unless it is the default, which fair queues have and others not.
func (w *writer) codel(depth int, part any, q *dataplane.Queue) {
	fair := q.Fair.By != dataplane.NoKey
	if q.CoDel == (queue.CoDel{}) {
		if fair {
			w.value(depth, part, "codel", "false")
		}
		return
	}
	byRate := queue.CoDelAt(q.Drain())
	if q.TargetAtRate && q.CoDel.Target != byRate.Target ||
		q.IntervalAtRate && (!q.TargetAtRate || q.CoDel.Interval != byRate.Interval) {
		w.fail("queue %s: its CoDel is not that of its rate", q.Name)
	}
	var own []string
	if !q.TargetAtRate {
		own = append(own, "target: "+duration(q.CoDel.Target))
	}
	if !q.IntervalAtRate {
		own = append(own, "interval: "+duration(q.CoDel.Interval))
	}
	switch {
	case own != nil:
		w.value(depth, part, "codel", "{"+strings.Join(own, ", ")+"}")
	case !fair:
		w.value(depth, part, "codel", "true")
	}
}

func (w *writer) link(l *dataplane.Link) {
	what := "link " + l.Name
	w.only(what, l, "Name", "Rate", "Link", "Guarantee", "Priority", "Weight", "Up")
	w.key(1, l, "", Quote(l.Name))
	if l.Link != nil {
		w.above(2, l, l.Link)
	}
	w.value(2, l, "rate", w.rates(l.Rate, l.Up.Rate))
	w.share(2, l, l.Guarantee, l.Up.Guarantee, l.Priority, l.Weight)
}

// above writes the link of a queue or link.
func (w *writer) above(depth int, part any, l *dataplane.Link) {
	if !slices.Contains(w.links, l) {
		w.fail("link %s is not among those of the policy", l.Name)
	}
	w.value(depth, part, "link", Quote(l.Name))
}

// share writes the place of a queue or link among the others of its link.
func (w *writer) share(depth int, part any, guarantee, up meter.Rate, priority, weight int) {
	w.value(depth, part, "guarantee", w.rates(guarantee, up))
	for _, n := range []struct {
		key string
		v   int
	}{{"priority", priority}, {"weight", weight}} {
		if n.v != 0 {
			w.value(depth, part, n.key, strconv.Itoa(n.v))
		}
	}
}

// rates writes a rate, or those of both directions; "" for none.
func (w *writer) rates(down, up meter.Rate) string {
	switch {
	case up == meter.Rate{} && down == meter.Rate{}:
		return ""
	case up == meter.Rate{}:
		return rate(down)
	case down == meter.Rate{}:
		w.fail("a rate in one direction only cannot be written to a policy file")
	}
	return fmt.Sprintf("{down: %s, up: %s}", rate(down), rate(up))
}
