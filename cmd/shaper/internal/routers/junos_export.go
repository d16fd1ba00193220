package routers

import (
	"fmt"
	"slices"
	"strings"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// Export writes firewall filters with policers: one of family any if no class looks at the IP
// header, otherwise one for each IP version.
func (junos) Export(p *dataplane.Policy, name string) *Export {
	e := &junosExporter{newExporter(64, "be")}
	e.checkPolicy(p)
	for _, q := range allQueues(p) {
		e.Cannot("queue %s: the router shapes by class-of-service, which is not exported", q.Name)
	}
	name = e.checkName("name", name)
	type term struct {
		class    *dataplane.Class
		families []int
	}
	var terms []term
	all := true // classes match all packets, and only police
	for i := range p.Classes {
		c := &p.Classes[i]
		families := []int{4, 6}
		if !matchesAll(&c.Match) {
			all = false
			if !e.whole(&e.text, func() {
				families = e.families(c)
				e.checkLength(c)
				e.from(&c.Match, c.Name, "inet")
			}) {
				continue
			}
		} else if c.Meter == nil && len(c.Action(meter.Green).Marks) > 0 {
			all = false
		}
		terms = append(terms, term{c, families})
	}
	e.printf("firewall {\n")
	for _, t := range terms {
		e.policer(t.class, !all)
	}
	kinds := []string{"inet", "inet6"}
	if all {
		kinds = []string{"any"}
	}
	for i, kind := range kinds {
		e.printf("    family %s {\n        filter %s {\n", kind, name)
		ends := false
		for _, t := range terms {
			for _, family := range t.families {
				if family == 4+2*i {
					e.term(t.class, kind)
					ends = ends || matchesAll(&t.class.Match)
				}
			}
		}
		if !ends {
			e.printf("            term %s {\n                then accept;\n            }\n", unclassifiedTerm)
		}
		e.printf("        }\n    }\n")
	}
	e.printf("}\n")
	if all {
		e.Note("the filter of family any also takes packets that are not IP")
	} else {
		e.Note("attach both filters, of inet and of inet6: their policers are those of the logical interface, for both together")
	}
	return e.finish()
}

type junosExporter struct{ *exporter }

// policer writes the policer of a class.
func (e *junosExporter) policer(c *dataplane.Class, both bool) {
	m, ok := e.policerOf(c)
	if !ok {
		return
	}
	for i, color := range m.colors {
		a := c.Action(color)
		if a.Drop && i < len(m.colors)-1 || len(a.Marks) > 0 {
			e.Cannot("class %s: %v: the router forwards packets within a limit unchanged; it drops red ones or forwards them",
				c.Name, color)
		}
		e.checkAction(c, a)
	}
	// Junos CLI reference, bandwidth-limit and burst-size-limit
	e.policerFits(c, m, 1, span{8000, 100e9, 1}, span{1500, 100e9, 1})
	e.Note("line cards round rates and bursts to steps of their own: compare with show policer")
	name := e.checkName("class", c.Name)
	shared := ""
	if both {
		shared = "        logical-interface-policer;\n"
	}
	drops := c.Action(meter.Red).Drop
	if !m.twoBuckets {
		then := "loss-priority high"
		if drops {
			then = "discard"
		}
		e.printf("    policer %s {\n%s        if-exceeding {\n            bandwidth-limit %d;\n            burst-size-limit %d;\n        }\n        then %s;\n    }\n",
			name, shared, m.cir, m.bc, then)
		return
	}
	e.printf("    three-color-policer %s {\n%s", name, shared)
	if drops {
		e.printf("        action {\n            loss-priority high then discard;\n        }\n")
	}
	rate, excess := "single-rate", fmt.Sprintf("            excess-burst-size %d;\n", m.be)
	if m.pir > 0 {
		rate, excess = "two-rate", fmt.Sprintf(
			"            peak-information-rate %d;\n            peak-burst-size %d;\n", m.pir, m.be)
	}
	e.printf("        %s {\n            color-blind;\n            committed-information-rate %d;\n            committed-burst-size %d;\n%s        }\n    }\n",
		rate, m.cir, m.bc, excess)
}

// term writes the term of a class in the filter of a family.
func (e *junosExporter) term(c *dataplane.Class, family string) {
	name := e.checkName("class", c.Name)
	if name == unclassifiedTerm {
		e.Cannot("class %s: export has a term of this name: rename it", name)
	}
	e.printf("            term %s {\n", name)
	if from := e.from(&c.Match, c.Name, family); from != nil {
		e.printf("                from {\n                    %s\n                }\n",
			strings.Join(from, "\n                    "))
	}
	then := []string{"accept;"}
	if m, ok := e.policerOf(c); ok {
		policer := fmt.Sprintf("policer %s;", name)
		if m.twoBuckets {
			rate := map[bool]string{false: "single-rate", true: "two-rate"}[m.pir > 0]
			policer = fmt.Sprintf("three-color-policer {\n                        %s %s;\n                    }", rate, name)
		}
		then = []string{policer, "accept;"}
	} else if a := c.Action(meter.Green); a.Drop {
		then = []string{"discard;"}
	} else {
		field := map[string]string{"inet6": "traffic-class"}[family]
		if field == "" {
			field = "dscp"
		}
		for _, mark := range sortedMarks(a) {
			then = append(
				[]string{e.mark(c, mark, map[dataplane.Field]string{dataplane.DSCP: field + " %s;"})},
				then...)
		}
		e.checkAction(c, a)
	}
	e.printf("                then {\n                    %s\n                }\n            }\n",
		strings.Join(then, "\n                    "))
}

// from returns the conditions of a term.
func (e *junosExporter) from(m *dataplane.Match, class, family string) (lines []string) {
	for _, part := range []struct {
		key  string
		list []string
	}{{"source-address", prefixWords(m.Src)}, {"destination-address", prefixWords(m.Dst)}} {
		if part.list != nil {
			lines = append(lines, part.key+" {\n                        "+strings.Join(part.list,
				";\n                        ")+";\n                    }")
		}
	}
	add := func(key string, words []string) {
		switch len(words) {
		case 0:
		case 1:
			lines = append(lines, fmt.Sprintf("%s %s;", key, words[0]))
		default:
			lines = append(lines, fmt.Sprintf("%s [ %s ];", key, strings.Join(words, " ")))
		}
	}
	protocolKey, dscpKey := "protocol", "dscp"
	if family == "inet6" {
		protocolKey, dscpKey = "next-header", "traffic-class"
	}
	if len(m.Proto)+len(m.SPort)+len(m.DPort) > 0 {
		add(protocolKey, protocolWords(m, family == "inet6"))
	}
	add("source-port", values(m.SPort))
	add("destination-port", values(m.DPort))
	add(dscpKey, e.dscpWords(m.DSCP))
	add("packet-length", values(m.Length))
	e.checkProtocols(m, class, 6, 17, 132)
	written := append(accessListFields(m), "DSCP", "Length")
	if len(m.EtherType) > 0 && !slices.Contains(written, "EtherType") {
		e.Cannot("class %s: ethertype: a filter of an IP family has ipv4 and ipv6 only", class)
		written = append(written, "EtherType")
	}
	e.Unsaid("class "+class, m, "no condition of a filter of an IP family is written for it", written...)
	return lines
}
