package routers

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// vrpExporter writes access lists and classifiers before the policy that uses them.
type vrpExporter struct {
	*exporter
	vrp
	lists  int // access lists written so far
	policy strings.Builder
}

// firstList is the number of the first advanced access list.
const firstList, mostLists = 3000, 1000

// Export writes a policy with a classifier and a behavior for each class.
func (v vrp) Export(p *dataplane.Policy, name string) *Export {
	e := &vrpExporter{exporter: newExporter(31, "default"), vrp: v}
	for _, word := range vrpReserved {
		e.names[word] = true
	}
	e.checkPolicy(p)
	name = e.unused(e.checkName("name", name))
	if v.h3c {
		fmt.Fprintf(&e.policy, "qos policy %s\n", name)
	} else {
		fmt.Fprintf(&e.policy, "traffic policy %s match-order config\n", name)
	}
	for i := range p.Classes {
		c := &p.Classes[i]
		class := e.unused(e.checkName("class", c.Name))
		if !e.whole(&e.text, func() { e.classifier(c, class) }) {
			continue
		}
		e.behavior(p, c, class)
		fmt.Fprintf(&e.policy, " classifier %s behavior %s\n", class, class)
	}
	if e.lists > mostLists {
		e.Cannot("the classes need %d access lists: there are %d numbers", e.lists, mostLists)
	}
	e.printf("%s#\nreturn\n", e.policy.String())
	e.Note("a classifier with if-match any also takes packets that are not IP")
	if !v.h3c {
		e.Note("this is for switches: on NE routers and CloudEngine some statements take IPv4 only")
	}
	return e.finish()
}

// vrpReserved are the names of classifiers and behaviors that the router defines itself.
var vrpReserved = []string{
	"default", defaultClass, "ef", "af", "be", "be-flow-based", "af1", "af2", "af3", "af4",
	"ip-prec0", "ip-prec1", "ip-prec2", "ip-prec3", "ip-prec4", "ip-prec5", "ip-prec6", "ip-prec7",
	"mpls-exp0", "mpls-exp1", "mpls-exp2", "mpls-exp3", "mpls-exp4", "mpls-exp5", "mpls-exp6", "mpls-exp7",
}

// classifier writes the condition of a class. One kind of condition may have alternatives; several
// kinds must have one value each, because classifiers combine all conditions by or, or by and.
func (e *vrpExporter) classifier(c *dataplane.Class, name string) {
	m := &c.Match
	written := []string{"DSCP", "PCP", "VLAN", "InnerVLAN"}
	var kinds [][]string
	add := func(lines []string) {
		if len(lines) > 0 {
			kinds = append(kinds, lines)
		}
	}
	words := map[bool][3]string{
		false: {"8021p", "vlan-id", "cvlan-id"}, true: {"service-dot1p", "service-vlan-id", "customer-vlan-id"},
	}[e.h3c]
	inList := inAccessList(m)
	if !inList {
		add(e.inLines("dscp", e.dscpWords(m.DSCP)))
	}
	numbers, _ := singles(m.PCP, 8)
	var pcps []string
	for _, v := range numbers {
		pcps = append(pcps, fmt.Sprint(v))
	}
	add(e.inLines(words[0], pcps))
	for i, tags := range [][]dataplane.Range{m.VLAN, m.InnerVLAN} {
		var vlans []string
		for _, v := range values(tags) {
			vlans = append(vlans, words[1+i]+" "+strings.Replace(v, "-", " to ", 1))
		}
		add(vlans)
	}
	switch {
	case inList:
		written = append(written, accessListFields(m)...)
		add(e.accessLists(c))
	case len(m.EtherType) > 0:
		written = append(written, "EtherType")
		add(e.protocols(c))
	}
	e.Unsaid("class "+c.Name, m, noCondition, written...)
	operator := "and"
	if len(kinds) == 1 && len(kinds[0]) > 1 {
		operator = "or"
	}
	var lines []string
	for _, kind := range kinds {
		if len(kinds) > 1 && len(kind) > 1 {
			e.Cannot("class %s: a classifier has no alternatives beside other conditions: split the class",
				c.Name)
		}
		lines = append(lines, kind...)
	}
	if lines == nil {
		lines = []string{"any"}
	}
	e.printf("traffic classifier %s operator %s\n if-match %s\n#\n", name, operator,
		strings.Join(lines, "\n if-match "))
}

// inLines returns a condition with all values. Huawei takes 8 in each line; H3C refuses several in one with
// operator and.
func (e *vrpExporter) inLines(key string, words []string) (lines []string) {
	for len(words) > 0 {
		n := min(len(words), map[bool]int{false: 8, true: 1}[e.h3c])
		lines = append(lines, key+" "+strings.Join(words[:n], " "))
		words = words[n:]
	}
	return lines
}

// protocols returns the conditions for EtherTypes.
func (e *vrpExporter) protocols(c *dataplane.Class) (lines []string) {
	for _, r := range JoinRanges(slices.Clone(c.Match.EtherType)) {
		name, ok := map[uint64]string{0x0800: "ip", 0x86dd: "ipv6", 0x0806: "arp"}[r.First]
		if !ok || r.First != r.Last {
			e.Cannot("class %s: ethertype: the router has ipv4, ipv6 and arp", c.Name)
			continue
		}
		key := "protocol"
		if name == "arp" && !e.h3c {
			key = "l2-protocol"
		}
		lines = append(lines, key+" "+name)
	}
	return lines
}

// accessLists writes access lists for addresses, protocols, ports and DSCPs.
func (e *vrpExporter) accessLists(c *dataplane.Class) (lines []string) {
	e.checkProtocols(&c.Match, c.Name, 6, 17)
	for _, family := range e.families(c) {
		var codepoints []string
		for _, w := range e.dscpWords(c.Match.DSCP) {
			codepoints = append(codepoints, "dscp "+w)
		}
		rules, ok := vrpSides.permits(&c.Match, family == 6, codepoints)
		if !ok {
			e.Cannot("class %s: its addresses, protocols and ports need more than %d rules", c.Name,
				maxAlternatives)
			return nil
		}
		n := firstList + e.lists
		e.lists++
		head, use := fmt.Sprintf("acl number %d", n), fmt.Sprintf("acl %d", n)
		switch {
		case e.h3c && family == 6:
			head, use = fmt.Sprintf("acl ipv6 advanced %d", n), fmt.Sprintf("acl ipv6 %d", n)
		case e.h3c:
			head = fmt.Sprintf("acl advanced %d", n)
		case family == 6:
			head, use = fmt.Sprintf("acl ipv6 number %d", n), fmt.Sprintf("ipv6 acl %d", n)
		}
		e.printf("%s\n", head)
		for i, rule := range rules {
			e.printf(" rule %d permit %s\n", 5*i, rule)
		}
		e.printf("#\n")
		lines = append(lines, use)
	}
	return lines
}

// vrpSides are the words of access lists.
var vrpSides = sides{
	address: func(side string, p netip.Prefix) string { return side + " " + vrpPrefix(p) },
	port:    func(side, condition string) string { return side + "-port " + condition },
}

// vrpPrefix writes a prefix: with a wildcard mask for IPv4.
func vrpPrefix(p netip.Prefix) string {
	switch {
	case p.Addr().Is6():
		return p.String()
	case p.IsSingleIP():
		return p.Addr().String() + " 0"
	}
	return ciscoPrefix(p)
}

// behavior writes the actions of a class.
func (e *vrpExporter) behavior(p *dataplane.Policy, c *dataplane.Class, name string) {
	e.printf("traffic behavior %s\n", name)
	defer e.printf("#\n")
	m, metered := e.policerOf(c)
	if !metered {
		m.colors = []meter.Color{meter.Green}
	}
	queue := e.queueOf(c, m.colors)
	if metered {
		e.printf(" %s\n", e.car(c, m))
	} else if a := c.Action(meter.Green); a.Drop {
		e.printf(" %s\n", map[bool]string{false: "deny", true: "filter deny"}[e.h3c])
	} else {
		pcp := map[bool]string{false: "remark 8021p %s", true: "remark dot1p %s"}[e.h3c]
		for _, mark := range sortedMarks(a) {
			e.printf(" %s\n", e.mark(c, mark,
				map[dataplane.Field]string{dataplane.DSCP: "remark dscp %s", dataplane.PCP: pcp}))
		}
		e.checkAction(c, a)
		if len(a.Marks) == 0 && queue == nil {
			e.printf(" %s\n", map[bool]string{false: "permit", true: "filter permit"}[e.h3c])
		}
	}
	if queue != nil {
		e.gts(p, queue)
	}
}

// kbits returns a rate in kbit/s.
func (e *vrpExporter) kbits(what string, bits int64) int64 {
	if bits%1000 != 0 {
		e.Cannot("%s: rate %d bit/s is not a whole number of kbit/s", what, bits)
	}
	return bits / 1000
}

// car returns the car statement of a class.
func (e *vrpExporter) car(c *dataplane.Class, m boxMeter) string {
	what := "class " + c.Name
	cir := e.kbits(what, m.cir)
	var words string
	switch {
	case e.h3c && m.pir > 0:
		words = fmt.Sprintf("car cir %d cbs %d pir %d ebs %d", cir, m.bc, e.kbits(what, m.pir), m.be)
	case e.h3c:
		words = fmt.Sprintf("car cir %d cbs %d ebs %d", cir, m.bc, m.be)
	case m.pir > 0:
		words = fmt.Sprintf("car cir %d pir %d cbs %d pbs %d", cir, e.kbits(what, m.pir), m.bc, m.be)
	case m.twoBuckets:
		words = fmt.Sprintf("car cir %d cbs %d pbs %d", cir, m.bc, m.be)
		e.Cannot("%s: srtcm: the router has one rate with one bucket, or two rates: write a trtcm with pir: %v", what, meter.BitRate(m.cir))
	default: // two equal buckets have two colors
		words = fmt.Sprintf("car cir %d pir %d cbs %d pbs %d", cir, cir, m.bc, m.bc)
	}
	if e.h3c {
		// command reference of S6812, car
		e.policerFits(c, m, 1000, span{8, 160e6, 8}, span{512, mostH3CBurst, 512})
		e.Note(
			"H3C platforms differ in the values that they accept: compare with display qos policy interface")
	} else {
		// command reference of S, car
		e.policerFits(c, m, 1000, span{64, 1<<32 - 1, 1}, span{4000, mostHuaweiBurst, 1})
		e.Note("Huawei platforms round rates and bursts to steps of their own: compare with display traffic policy statistics")
	}
	formats := map[dataplane.Field]string{
		dataplane.DSCP: "pass remark-dscp %s", dataplane.PCP: "pass remark-8021p %s",
	}
	if e.h3c {
		formats = map[dataplane.Field]string{
			dataplane.DSCP: "remark-dscp-pass %s", dataplane.PCP: "remark-dot1p-pass %s",
		}
	}
	for _, color := range m.colors {
		a := c.Action(color)
		action := "pass"
		switch {
		case a.Drop:
			action = "discard"
		case len(a.Marks) > 1:
			e.Cannot("%s: %v: the router writes one field", what, color)
			fallthrough
		case len(a.Marks) == 1:
			action = e.mark(c, a.Marks[0], formats)
			if action == "transmit" {
				action = "pass"
			}
		}
		words += fmt.Sprintf(" %v %s", color, action)
		e.checkAction(c, a)
	}
	return words
}

// gts writes the queue of a class.
func (e *vrpExporter) gts(p *dataplane.Policy, q *dataplane.Queue) {
	e.checkQueue(q)
	e.oneClass(p, q)
	if !ownRate(q) {
		e.Cannot("queue %s: the shares of a link are not exported", q.Name)
	}
	if q.Fair.By != dataplane.NoKey {
		e.Cannot("queue %s: fair: a shaper of the router is first in, first out: write fair: false", q.Name)
	}
	rate := e.kbits("queue "+q.Name, e.bits("queue "+q.Name, q.Drain()))
	if q.Packets == 0 || q.Bytes > 0 || q.Time > 0 {
		e.Cannot("queue %s: the router limits a queue by packets: write a limit such as 100p", q.Name)
	}
	e.printf(" gts cir %d queue-length %d\n", rate, q.Packets)
	e.Note("routers send bursts when they shape, and a queue of a policy does not")
}
