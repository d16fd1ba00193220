package routers

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// familyMatch returns the condition for packets of a family.
func familyMatch(l Line, family string) []Conditions {
	switch family {
	case "inet":
		return Keyed(l, "ethertype", "ipv4")
	case "inet6":
		return Keyed(l, "ethertype", "ipv6")
	}
	return []Conditions{{}}
}

// match returns the conditions of a term.
func (c *junosConfig) match(t *junosTerm, family string) ([]Conditions, error) {
	v6 := family == "inet6"
	all := []Conditions{{}}
	type group struct {
		keys []string // alternatives
		cond Cond
	}
	var groups []*group
	addressed := false
	for _, l := range t.from {
		a := &args{l.Words}
		word := a.peek()
		a.next()
		keys, values, err := c.condition(word, a, v6)
		if err != nil {
			return nil, fmt.Errorf("line %d: from %s: %w", l.Number, l.Text(), err)
		}
		addressed = addressed || keys[0] == "src" || keys[0] == "dst"
		var g *group
		for _, other := range groups {
			if strings.Join(other.keys, " ") == strings.Join(keys, " ") {
				g = other
			}
		}
		if g == nil {
			g = &group{keys, Cond{Line: l.Number, Comment: l.Text()}}
			groups = append(groups, g)
		} else if len(g.cond.Comment) < maxComment {
			g.cond.Comment += "; " + l.Text()
		}
		g.cond.Values = append(g.cond.Values, values...)
	}
	for _, g := range groups {
		var one []Conditions
		for _, key := range g.keys {
			cond := g.cond
			cond.Key = key
			one = append(one, Conditions{cond})
		}
		ok := false
		if all, ok = Both(all, one); !ok {
			return nil, errors.New("its conditions restrict the same field twice")
		}
	}
	if !addressed {
		both, ok := Both(all,
			familyMatch(Line{Number: t.line.Number, Words: []string{"family", family}}, family))
		if !ok {
			return nil, errors.New("ether-type and family contradict each other")
		}
		all = both
	}
	return all, nil
}

// condition reads a statement of from. A condition with several keys matches if one of them does.
func (c *junosConfig) condition(word string, a *args, v6 bool) (keys, values []string, err error) {
	value := a.next()
	if a.peek() == "except" || strings.HasSuffix(word, "-except") {
		return nil, nil, errors.New("a policy has no negation")
	}
	switch word {
	case "source-address", "destination-address", "address":
		keys = map[string][]string{
			"source-address": {"src"}, "destination-address": {"dst"}, "address": {"src", "dst"},
		}[word]
		v, err := prefixText(value, v6)
		if err == nil && v == "" {
			v = map[bool]string{false: "0.0.0.0/0", true: `"::/0"`}[v6]
		}
		return keys, []string{v}, err
	case "source-prefix-list", "destination-prefix-list", "prefix-list":
		keys = map[string][]string{
			"source-prefix-list": {"src"}, "destination-prefix-list": {"dst"}, "prefix-list": {"src", "dst"},
		}[word]
		for _, p := range c.prefixes[value] {
			if strings.Contains(p, ":") != v6 {
				continue // a list can have both
			}
			v, err := prefixText(p, v6)
			if err != nil {
				return nil, nil, err
			}
			values = append(values, v)
		}
		if values == nil {
			return nil, nil, errors.New("the prefix list has no prefix of this family")
		}
		return keys, values, nil
	case "protocol", "next-header", "payload-protocol":
		v, ok := protocol(value)
		if !ok {
			return nil, nil, fmt.Errorf("%q is not a protocol that is supported", value)
		}
		if v6 && value == "icmp" {
			v = "icmpv6"
		}
		return []string{"proto"}, []string{v}, nil
	case "source-port", "destination-port", "port":
		keys = map[string][]string{
			"source-port": {"sport"}, "destination-port": {"dport"}, "port": {"sport", "dport"},
		}[word]
		first, last, dash := strings.Cut(value, "-")
		x, err := port(value)
		if err == nil {
			return keys, []string{strconv.Itoa(x)}, nil
		}
		x, err = port(first)
		y, err2 := port(last)
		if !dash || err != nil || err2 != nil || x > y {
			return nil, nil, fmt.Errorf("%q is not a port", value)
		}
		return keys, []string{fmt.Sprintf("%d-%d", x, y)}, nil
	case "dscp", "traffic-class", "precedence", "ip-precedence":
		v, err := dscpValue(value, strings.Contains(word, "precedence"))
		return []string{"dscp"}, []string{v}, err
	case "packet-length":
		v, err := ranges(&args{[]string{value}}, 65535)
		return []string{"length"}, v, err
	case "vlan", "vlan-id", "user-vlan-id", "learn-vlan-id":
		v, err := ranges(&args{[]string{value}}, 4095)
		return []string{"vlan"}, v, err
	case "user-vlan-1p-priority", "learn-vlan-1p-priority":
		v, err := ranges(&args{[]string{value}}, 7)
		return []string{"pcp"}, v, err
	case "ether-type":
		switch value {
		case "ipv4", "ipv6", "arp":
			return []string{"ethertype"}, []string{value}, nil
		}
	}
	return nil, nil, errors.New("a policy has no such condition")
}
