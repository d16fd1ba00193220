package routers

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// Maximum numbers of values in a statement (IOS Quality of Service Command Reference).
const (
	mostDSCP = 8
	mostCoS  = 4
)

// classMap writes the condition of a class. Parts with alternatives get a class map of their own.
func (e *ciscoExporter) classMap(c *dataplane.Class, name string) {
	m := &c.Match
	written := []string{"DSCP", "PCP", "VLAN", "InnerVLAN", "Length"}
	var lines []string
	if words := e.dscpWords(m.DSCP); len(words) > 0 {
		lines = append(lines, e.either(name+"-DSCP", "match dscp", words, mostDSCP))
	}
	if numbers, _ := singles(m.PCP, 8); len(numbers) > 0 {
		var words []string
		for _, v := range numbers {
			words = append(words, fmt.Sprint(v))
		}
		lines = append(lines, e.either(name+"-COS", "match cos", words, mostCoS))
	}
	if len(m.VLAN) > 0 {
		lines = append(lines, "match vlan "+strings.Join(values(m.VLAN), " "))
	}
	if len(m.InnerVLAN) > 0 {
		lines = append(lines, "match vlan inner "+strings.Join(values(m.InnerVLAN), " "))
	}
	e.checkLength(c)
	if len(m.Length) > 0 {
		if len(m.Length) > 1 {
			e.Cannot("class %s: length: the router has one range", c.Name)
		}
		lines = append(lines, e.packetLength(c.Name, m.Length[0]))
	}
	switch {
	case inAccessList(m):
		written = append(written, accessListFields(m)...)
		lines = append(lines, e.lists(c, name)...)
	case len(m.EtherType) > 0:
		written = append(written, "EtherType")
		if v, ok := ipVersion(m.EtherType); !ok || v != 0 || len(m.Length) == 0 { // a length implies IP
			lines = append(lines, e.etherType(c, name))
		}
	}
	e.Unsaid("class "+c.Name, m, noCondition, written...)
	if lines == nil {
		lines = []string{"match any"}
	}
	fmt.Fprintf(&e.maps, "class-map match-all %s\n %s\n!\n", name, strings.Join(lines, "\n "))
}

// packetLength returns the statement for a range of lengths. The router has lengths of 1 to 2000 bytes.
func (e *ciscoExporter) packetLength(class string, r dataplane.Range) string {
	text := "match packet length"
	lengths := span{1, 2000, 1}
	if r.First > 0 || r.Last >= maxLength {
		e.fits("class "+class+": length", int64(max(r.First, 1)), lengths)
		text += fmt.Sprintf(" min %d", max(r.First, 1))
	}
	if r.Last < maxLength {
		e.fits("class "+class+": length", int64(r.Last), lengths)
		text += fmt.Sprintf(" max %d", r.Last)
	}
	return text
}

const maxLength = 1<<16 - 1 // of IP packets, bytes

// either returns a statement for alternatives. If they do not fit in one statement, they get a
// class map.
func (e *ciscoExporter) either(name, statement string, words []string, most int) string {
	if len(words) <= most {
		return statement + " " + strings.Join(words, " ")
	}
	name = e.unused(name)
	fmt.Fprintf(&e.maps, "class-map match-any %s\n", name)
	for len(words) > 0 {
		n := min(most, len(words))
		fmt.Fprintf(&e.maps, " %s %s\n", statement, strings.Join(words[:n], " "))
		words = words[n:]
	}
	e.maps.WriteString("!\n")
	return "match class-map " + name
}

// etherType returns the statement for EtherTypes.
func (e *ciscoExporter) etherType(c *dataplane.Class, name string) string {
	names := map[uint64]string{0x0800: "ip", 0x86dd: "ipv6", 0x0806: "arp"}
	var words []string
	numbers, ok := singles(c.Match.EtherType, len(names))
	for _, v := range numbers {
		words = append(words, names[v])
	}
	if !ok || slices.Contains(words, "") {
		e.Cannot("class %s: ethertype: the router has ipv4, ipv6 and arp", c.Name)
		return "match any"
	}
	return e.either(name+"-TYPE", "match protocol", words, 1)
}

// lists writes the access lists for addresses, protocols and ports, and returns the statements
// that refer to them.
func (e *ciscoExporter) lists(c *dataplane.Class, name string) []string {
	e.checkProtocols(&c.Match, c.Name, 6, 17, 132)
	var groups []string
	for _, family := range e.families(c) {
		entries, ok := ciscoSides.permits(&c.Match, family == 6)
		if !ok {
			e.Cannot("class %s: its addresses, protocols and ports need more than %d lines", c.Name,
				maxAlternatives)
			return nil
		}
		list := fmt.Sprintf("%s-%d", name, family)
		if '0' <= list[0] && list[0] <= '9' { // the names of numbered lists
			list = "acl-" + list
		}
		list = e.unused(list)
		head := "ip access-list extended " + list
		if family == 6 {
			head = "ipv6 access-list " + list
		}
		fmt.Fprintf(&e.maps, "%s\n", head)
		for _, entry := range entries {
			fmt.Fprintf(&e.maps, " permit %s\n", entry)
		}
		e.maps.WriteString("!\n")
		groups = append(groups, list)
	}
	if len(groups) == 0 {
		return nil
	}
	return []string{e.either(name+"-IP", "match access-group name", groups, 1)}
}

// ciscoSides are the words of access lists.
var ciscoSides = sides{
	address: func(_ string, p netip.Prefix) string { return ciscoPrefix(p) }, any: "any",
	port: func(_, condition string) string { return condition },
}

// protocolWords returns the protocols of a condition. Ports alone mean TCP and UDP.
func protocolWords(m *dataplane.Match, v6 bool) (words []string) {
	if len(m.Proto) == 0 && len(m.SPort)+len(m.DPort) > 0 {
		return []string{"tcp", "udp"}
	}
	numbers, _ := singles(m.Proto, 256)
	for _, n := range numbers {
		word, named := map[uint64]string{1: "icmp", 6: "tcp", 17: "udp", 132: "sctp"}[n]
		if v6 && n == 1 || !named { // the languages differ in the names of others
			word = fmt.Sprint(n)
		}
		words = append(words, word)
	}
	if words == nil {
		return []string{map[bool]string{false: "ip", true: "ipv6"}[v6]}
	}
	return words
}

// ciscoPrefix writes a prefix: with a wildcard mask for IPv4.
func ciscoPrefix(p netip.Prefix) string {
	switch {
	case p.IsSingleIP():
		return "host " + p.Addr().String()
	case p.Addr().Is6():
		return p.String()
	}
	mask := uint32(1)<<(32-p.Bits()) - 1
	return fmt.Sprintf("%v %d.%d.%d.%d", p.Addr(), mask>>24, mask>>16&255, mask>>8&255, mask&255)
}
