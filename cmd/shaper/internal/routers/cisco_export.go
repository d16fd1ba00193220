package routers

import (
	"fmt"
	"slices"
	"strings"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// ciscoExporter writes access lists and class maps before the policy map that uses them.
type ciscoExporter struct {
	*exporter
	maps strings.Builder // access lists and class maps
	link *dataplane.Link // of all queues, or nil
	rank map[int]int     // priority of queues on the link: level from 0
}

// Export writes a policy map with its class maps and access lists.
func (cisco) Export(p *dataplane.Policy, name string) *Export {
	e := &ciscoExporter{exporter: newExporter(40, "default")}
	e.checkPolicy(p)
	name = e.checkName("name", name)
	e.findLink(p)
	for i := range p.Classes {
		e.names[p.Classes[i].Name] = true
	}
	child := name
	if e.link != nil {
		child = e.unused(name + "-CHILD")
	}
	e.printf("policy-map %s\n", child)
	for i := range p.Classes {
		e.class(p, i)
	}
	if e.link != nil {
		e.printf("!\npolicy-map %s\n class class-default\n  shape average %d\n  service-policy %s\n", name,
			e.bits("link "+e.link.Name, e.link.Reach()), child)
	}
	e.printf("!\nend\n")
	e.Note("class maps with match any, and class-default, also take packets that are not IP")
	policies := e.text.String()
	e.text.Reset()
	e.printf("%s%s", e.maps.String(), policies)
	return e.finish()
}

// findLink finds the link that all queues share.
func (e *ciscoExporter) findLink(p *dataplane.Policy) {
	levels := map[int]int{}
	for _, q := range allQueues(p) {
		if ownRate(q) {
			continue
		}
		if e.link != nil && e.link != q.Link {
			e.Cannot("links %s and %s: an interface has one", e.link.Name, q.Link.Name)
		}
		e.link = q.Link
		levels[q.Priority]++
	}
	if e.link == nil {
		return
	}
	for _, q := range allQueues(p) {
		if ownRate(q) {
			e.Cannot("queue %s has a rate of its own beside link %s, which all queues of the policy share",
				q.Name, e.link.Name)
		}
	}
	e.rank = map[int]int{}
	for i, priority := range sortedKeys(levels) {
		e.rank[priority] = i
		if i < len(levels)-1 && levels[priority] > 1 {
			e.Cannot("%d queues of link %s have priority %d: only the last priority can be shared",
				levels[priority], e.link.Name, priority)
		}
	}
	if last := p.Classes[len(p.Classes)-1]; !matchesAll(&last.Match) {
		e.Cannot(
			"link %s: the last class must match all remaining packets, because the router shapes those too",
			e.link.Name)
	}
}

func sortedKeys(m map[int]int) (keys []int) {
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// class writes the class map of a class, and its statements in the policy map.
func (e *ciscoExporter) class(p *dataplane.Policy, i int) {
	c := &p.Classes[i]
	name := e.checkName("class", c.Name)
	if !e.whole(&e.maps, func() {
		if slices.Contains([]string{"type", "built-in", "match-any", "match-all", "match-none"}, name) {
			e.Cannot("class %s: it is a keyword of the router: rename it", name)
		} else if name != classDefault {
			e.classMap(c, name)
		} else if !matchesAll(&c.Match) {
			e.Cannot("class %s: the router has a class of this name for all remaining packets: rename it", c.Name)
		}
	}) {
		return
	}
	e.printf(" class %s\n", name)
	m, metered := e.policerOf(c)
	if !metered {
		m.colors = []meter.Color{meter.Green}
	}
	queue := e.queueOf(c, m.colors)
	rest := restQueue(p)
	passes := func(color meter.Color) bool { return !c.Action(color).Drop }
	switch {
	case queue != nil || !slices.ContainsFunc(m.colors, passes):
	case e.link == nil && rest != nil:
		e.Cannot("class %s: the router puts its packets into queue %s, that of %s: rename %s",
			c.Name, rest.Name, classDefault, classDefault)
	case e.link != nil:
		e.Cannot("class %s: its packets bypass link %s: the router shapes all packets", c.Name, e.link.Name)
	}
	if !metered {
		switch a := c.Action(meter.Green); {
		case a.Drop:
			e.printf("  drop\n")
		default:
			for _, mark := range sortedMarks(a) {
				e.printf("  set %s\n", e.mark(c, mark, map[dataplane.Field]string{
					dataplane.DSCP: "dscp %s", dataplane.PCP: "cos %s",
					dataplane.MPLSTC: "mpls experimental topmost %s",
				}))
			}
			e.checkAction(c, a)
		}
	} else {
		e.police(c, m)
	}
	if queue != nil && (queue != rest || name == classDefault) {
		e.queue(p, queue)
	}
}

// restQueue returns the queue of class-default, in which the router puts the packets of all classes without
// one, or nil.
func restQueue(p *dataplane.Policy) *dataplane.Queue {
	last := &p.Classes[len(p.Classes)-1]
	if last.Name != classDefault {
		return nil
	}
	for color := range meter.Red + 1 {
		if a := last.Action(color); a.Queue != nil {
			return a.Queue
		}
	}
	return nil
}

// police writes a police statement.
func (e *ciscoExporter) police(c *dataplane.Class, m boxMeter) {
	line := fmt.Sprintf("police cir %d bc %d", m.cir, m.bc)
	switch {
	case m.pir > 0:
		line += fmt.Sprintf(" pir %d be %d", m.pir, m.be)
	case m.twoBuckets:
		line += fmt.Sprintf(" be %d", m.be)
	}
	e.printf("  %s\n", line)
	e.policerFits(c, m, 1, span{8000, 64e9, 1}, span{1000, 512e6, 1}) // IOS 15.1M command reference, police
	e.Note(
		"IOS platforms round rates and bursts to steps of their own: compare with show policy-map interface")
	for i, color := range m.colors {
		what := []string{"conform", "exceed", "violate"}[i]
		a := c.Action(color)
		switch {
		case a.Drop:
			e.printf("   %s-action drop\n", what)
		case len(a.Marks) == 0:
			e.printf("   %s-action transmit\n", what)
		}
		for _, mark := range sortedMarks(a) {
			e.printf("   %s-action %s\n", what, e.mark(c, mark, map[dataplane.Field]string{
				dataplane.DSCP: "set-dscp-transmit %s", dataplane.PCP: "set-cos-transmit %s",
				dataplane.MPLSTC: "set-mpls-exp-topmost-transmit %s",
			}))
		}
		e.checkAction(c, a)
	}
}

// queue writes the statements of a queue.
func (e *ciscoExporter) queue(p *dataplane.Policy, q *dataplane.Queue) {
	e.checkQueue(q)
	if q != restQueue(p) {
		e.oneClass(p, q)
	}
	if ownRate(q) {
		e.printf("  shape average %d\n", e.bits("queue "+q.Name, q.Drain()))
		e.Note("IOS sends bursts when it shapes, and a queue of a policy does not")
	} else if level := e.rank[q.Priority]; level < len(e.rank)-1 {
		if q == restQueue(p) {
			e.Cannot("queue %s: the router gives %s no priority over others", q.Name, classDefault)
		}
		if q.Fair.By != dataplane.NoKey {
			e.Note("queue %s: IOS has no fair-queue in a class with priority", q.Name)
		}
		if level > 1 {
			e.Note("queue %s: IOS has priority levels 1 and 2 only; other systems have up to 7", q.Name)
		}
		e.printf("  priority level %d\n", level+1)
	} else {
		e.printf("  bandwidth remaining ratio %d\n", max(q.Weight, 1))
	}
	switch {
	case q.Time > 0:
		unit, n := "ms", q.Time.Milliseconds()
		if q.Time%1e6 != 0 {
			unit, n = "us", q.Time.Microseconds()
		}
		if q.Time%1e3 != 0 {
			e.Cannot("queue %s: limit %v is not a whole number of microseconds", q.Name, q.Time)
		}
		e.printf("  queue-limit %d %s\n", n, unit)
	case q.Bytes > 0:
		e.printf("  queue-limit %d bytes\n", q.Bytes)
	default:
		e.printf("  queue-limit %d packets\n", q.Packets)
	}
	switch {
	case q.Fair == dataplane.Key{}:
	case q.Fair == dataplane.Key{By: dataplane.ByFlow}:
		e.printf("  fair-queue\n")
	default:
		e.Cannot("queue %s: fair: %v: the router has queues for flows only", q.Name, q.Fair)
	}
}
