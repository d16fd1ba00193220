package routers

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/marker"
)

// classMatch returns the conditions of a class.
func (c *ciscoConfig) classMatch(name string) ([]Conditions, error) {
	if name == classDefault {
		return []Conditions{{}}, nil
	}
	return c.mapMatch(name, 0)
}

// maxNested is the maximum depth of class maps in class maps.
const maxNested = 8

func (c *ciscoConfig) mapMatch(name string, depth int) ([]Conditions, error) {
	m := c.classMaps[name]
	switch {
	case m == nil:
		return nil, fmt.Errorf("there is no class-map %s", name)
	case depth > maxNested:
		return nil, fmt.Errorf("class-map %s contains itself", name)
	}
	var all []Conditions
	first := true
	for _, l := range m.lines {
		if l.Has("description") {
			continue
		}
		one, err := c.match(l, depth)
		if err != nil {
			return nil, fmt.Errorf("line %d: %s: %w", l.Number, l.Text(), err)
		}
		ok := true
		switch {
		case first:
			all = one
		case m.any:
			all = append(all, one...)
			ok = len(all) <= maxAlternatives
		default:
			all, ok = Both(all, one)
		}
		if !ok {
			return nil, fmt.Errorf(
				"line %d: %s: a policy cannot combine it with the other conditions of class-map %s", l.Number,
				l.Text(), name)
		}
		first = false
	}
	if first {
		return nil, fmt.Errorf("class-map %s has no match statement", name)
	}
	return all, nil
}

// match reads one match statement.
func (c *ciscoConfig) match(l Line, depth int) ([]Conditions, error) {
	a := &args{l.Words[1:]}
	out, err := c.condition(l, a, depth)
	if err == nil {
		err = a.unread()
	}
	return out, err
}

// condition reads the words behind match.
func (c *ciscoConfig) condition(l Line, a *args, depth int) ([]Conditions, error) {
	if a.take("not") != "" {
		return nil, errors.New("a policy has no negation")
	}
	only4 := a.take("ip") != ""
	switch word := a.take("any", "dscp", "precedence", "cos", "vlan", "protocol", "access-group", "class-map",
		"packet"); word {
	case "any":
		return []Conditions{{}}, nil
	case "dscp", "precedence":
		return matchDSCP(l, a, word, only4)
	case "cos", "vlan":
		key := map[string]string{"cos": "pcp", "vlan": "vlan"}[word]
		a.take("inner")
		values, err := ranges(a, map[string]uint64{"cos": 7, "vlan": 4095}[word])
		return Keyed(l, key, values...), err
	case "protocol":
		return matchProtocol(l, a)
	case "access-group":
		a.take("name")
		list := c.lists[a.next()]
		if list == nil {
			return nil, errors.New("there is no such access list")
		}
		return list.match()
	case "class-map":
		return c.mapMatch(a.next(), depth+1)
	case "packet":
		if a.take("length") == "" || a.take("min") == "" {
			return nil, errors.New("want a range of lengths")
		}
		least, ok := a.number()
		a.take("max")
		most, ok2 := a.number()
		if !ok || !ok2 || least > most {
			return nil, errors.New("want a range of lengths")
		}
		both, _ := Both(Keyed(l, "length", fmt.Sprintf("%d-%d", least, most)),
			Keyed(l, "ethertype", "ipv4", "ipv6"))
		return both, nil
	}
	return nil, errors.New("a policy has no such condition")
}

// ipv4 restricts conditions to IPv4.
func ipv4(l Line, list []Conditions) []Conditions {
	both, _ := Both(list, Keyed(l, "ethertype", "ipv4"))
	return both
}

// matchDSCP reads codepoints, or precedences, each of which is eight codepoints.
func matchDSCP(l Line, a *args, word string, only4 bool) ([]Conditions, error) {
	var values []string
	for !a.done() {
		v, err := dscpValue(a.next(), word == "precedence")
		if err != nil {
			return nil, err
		}
		values = append(values, v)
	}
	if values == nil {
		return nil, errors.New("a value is missing")
	}
	out := Keyed(l, "dscp", values...)
	if only4 {
		out = ipv4(l, out)
	}
	return out, nil
}

// precedences are the names of precedences (RFC 791 §3.1).
var precedences = []string{
	"routine", "priority", "immediate", "flash", "flash-override", "critical", "internet", "network",
}

// dscpValue returns a value of the key dscp.
func dscpValue(word string, precedence bool) (string, error) {
	if !precedence {
		v, err := ciscoDSCP(word)
		return marker.DSCPName(v), err
	}
	n := slices.Index(precedences, strings.ToLower(word))
	if n < 0 {
		v, err := strconv.ParseUint(word, 10, 8)
		if err != nil || v > 7 {
			return "", fmt.Errorf("%q is not a precedence", word)
		}
		n = int(v)
	}
	return fmt.Sprintf("%d-%d", 8*n, 8*n+7), nil
}

// ranges reads numbers and ranges with dashes, up to a maximum.
func ranges(a *args, most uint64) (values []string, err error) {
	for !a.done() {
		for _, word := range strings.Split(strings.Trim(a.next(), ","), ",") {
			first, last, dash := strings.Cut(word, "-")
			if !dash {
				last = first
			}
			x, err := strconv.ParseUint(first, 10, 32)
			y, err2 := strconv.ParseUint(last, 10, 32)
			if err != nil || err2 != nil || x > y || y > most {
				return nil, fmt.Errorf("%q is not a number or a range up to %d", word, most)
			}
			values = append(values, word)
		}
	}
	if values == nil {
		return nil, errors.New("a value is missing")
	}
	return values, nil
}

// matchProtocol reads a protocol. Those of NBAR need the contents of packets.
func matchProtocol(l Line, a *args) ([]Conditions, error) {
	word := a.next()
	switch word {
	case "ip":
		return Keyed(l, "ethertype", "ipv4"), nil
	case "ipv6", "arp":
		return Keyed(l, "ethertype", word), nil
	}
	if v, ok := protocol(word); ok {
		return Keyed(l, "proto", v), nil
	}
	return nil, fmt.Errorf(
		"protocol %s is recognized by the contents of packets: a policy has no such condition", word)
}

// protocol returns a value of the key proto, for a name or a number.
func protocol(word string) (string, bool) {
	if n, err := strconv.ParseUint(word, 10, 8); err == nil {
		if name := policyfile.ValueName("proto", uint64(n)); name != "" {
			return name, true
		}
		return strconv.Itoa(int(n)), true
	}
	names := map[string]string{
		"ospfigp": "ospf", "ahp": "ah", "ipinip": "ipip", "icmp6": "icmpv6", "ipv6-icmp": "icmpv6",
	}
	if name, ok := names[word]; ok {
		return name, true
	}
	known := []string{
		"icmp", "igmp", "tcp", "udp", "gre", "esp", "ah", "ospf", "eigrp", "pim", "vrrp", "sctp", "icmpv6",
		"rsvp",
	}
	return word, slices.Contains(known, word)
}
