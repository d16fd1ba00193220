package routers

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// vrpList is an access list.
type vrpList struct {
	v6, basic bool
	lines     []Line
}

// beginsList reads the head of an access list: acl number 3000, acl ipv6 advanced name x. The
// name of an IPv6 list begins with "ipv6 ".
func (r *vrpReader) beginsList(head Line, a *args) *vrpList {
	l := &vrpList{}
	name := ""
	refuse := func(word string) { r.outside(head, fmt.Sprintf("%q is not understood", word)) }
	for !a.done() {
		switch w := a.next(); strings.ToLower(w) {
		case "ipv6":
			l.v6 = true
		case "number", "advanced", "advance":
		case "name": // acl number 3000 name x also has a number
			if w = a.next(); name == "" {
				name = w
			}
		case "basic":
			l.basic = true
		case "match-order":
			if order := a.next(); order != "config" {
				refuse("match-order " + order)
			}
		default:
			if n, err := strconv.Atoi(w); err == nil && 2000 <= n && n < 3000 {
				l.basic = true
			}
			if name != "" {
				refuse(w)
				continue
			}
			name = w
		}
	}
	if name == "" {
		return nil
	}
	if l.v6 {
		name = "ipv6 " + name
	}
	if r.lists[name] == nil {
		r.lists[name] = l
	}
	return r.lists[name]
}

// classMatch returns the conditions of a classifier.
func (c *vrpConfig) classMatch(name string) ([]Conditions, error) {
	m := c.classifiers[name]
	if m == nil {
		if name == "default-class" {
			return []Conditions{{}}, nil
		}
		return nil, fmt.Errorf("there is no traffic classifier %s", name)
	}
	var all []Conditions
	for i, l := range m.lines {
		a := &args{l.Words[1:]}
		one, err := c.ifMatch(l, a)
		if err == nil {
			err = a.unread()
		}
		if err != nil {
			return nil, fmt.Errorf("line %d: %s: %w", l.Number, l.Text(), err)
		}
		ok := true
		switch {
		case i == 0:
			all = one
		case m.or:
			all = append(all, one...)
			ok = len(all) <= maxAlternatives
		default:
			all, ok = Both(all, one)
		}
		if !ok {
			return nil, fmt.Errorf(
				"line %d: %s: a policy cannot combine it with the other conditions of classifier %s",
				l.Number, l.Text(), name)
		}
	}
	if all == nil {
		return nil, fmt.Errorf("classifier %s has no condition", name)
	}
	return all, nil
}

// ifMatch reads one condition.
func (c *vrpConfig) ifMatch(l Line, a *args) ([]Conditions, error) {
	v6 := a.take("ipv6") != ""
	switch word := a.peek(); word {
	case "any":
		a.next()
		return []Conditions{{}}, nil
	case "acl":
		a.next()
		if a.take("ipv6") != "" {
			v6 = true
		}
		a.take("name", "number")
		name := a.next()
		if v6 {
			name = "ipv6 " + name
		}
		list := c.lists[name]
		if list == nil {
			return nil, errors.New("there is no such access list")
		}
		return c.listMatch(list)
	case "dscp", "ip-precedence":
		a.next()
		out, err := matchDSCP(l, a, map[string]string{"dscp": "dscp", "ip-precedence": "precedence"}[word],
			false)
		if err == nil && v6 {
			out, _ = Both(out, Keyed(l, "ethertype", "ipv6"))
		}
		return out, err
	case "8021p", "dot1p", "service-dot1p", "customer-dot1p":
		a.next()
		v, err := ranges(a, 7)
		return Keyed(l, "pcp", v...), err
	case "vlan-id", "service-vlan-id", "customer-vlan-id":
		a.next()
		v, err := vlanRanges(a)
		return Keyed(l, "vlan", v...), err
	case "protocol", "l2-protocol":
		a.next()
		switch v := a.peek(); v {
		case "ip":
			a.next()
			return Keyed(l, "ethertype", "ipv4"), nil
		case "ipv6", "arp":
			a.next()
			return Keyed(l, "ethertype", v), nil
		}
	}
	return nil, errors.New("a policy has no such condition")
}

// vlanRanges reads 10 20 to 30.
func vlanRanges(a *args) (values []string, err error) {
	for !a.done() {
		w := a.next()
		if a.take("to") != "" {
			w += "-" + a.next()
		}
		v, err := ranges(&args{[]string{w}}, 4095)
		if err != nil {
			return nil, err
		}
		values = append(values, v...)
	}
	if values == nil {
		return nil, errors.New("a value is missing")
	}
	return values, nil
}

// listMatch returns the conditions of the permitted packets.
func (c *vrpConfig) listMatch(list *vrpList) ([]Conditions, error) {
	return permitted(list.lines, "rules", func(l Line) (permit bool, m Conditions, err error) {
		a := &args{l.Words[1:]}
		a.number()
		kind := a.take("permit", "deny")
		m, err = list.rule(l, a)
		if err == nil && kind == "" {
			err = errors.New("it neither permits nor denies")
		}
		return kind == "permit", m, err
	})
}

// rule reads the condition of a rule, behind permit or deny.
func (list *vrpList) rule(l Line, a *args) (m Conditions, err error) {
	set := func(key string, values ...string) { m = append(m, Cond{key, values, l.Number, l.Text()}) }
	if !list.basic {
		word := a.peek()
		p, ok := protocol(word)
		switch {
		case word == "ip", word == "ipv6", a.done(), word == "source", word == "destination":
			a.take("ip", "ipv6")
		case !ok:
			return nil, fmt.Errorf("%q is not a protocol that is supported", word)
		default:
			a.next()
			if list.v6 && word == "icmp" {
				p = "icmpv6"
			}
			set("proto", p)
		}
	}
	addressed := false
	for !a.done() {
		switch word := a.peek(); word {
		case "source", "destination":
			a.next()
			prefix, err := vrpAddress(a, list.v6)
			if err != nil {
				return nil, err
			}
			if prefix != "" {
				set(map[string]string{"source": "src", "destination": "dst"}[word], prefix)
				addressed = true
			}
		case "source-port", "destination-port":
			a.next()
			v, err := portValues(a)
			if err == nil && v == nil {
				err = errors.New("a port is missing")
			}
			if err != nil {
				return nil, err
			}
			set(map[string]string{"source-port": "sport", "destination-port": "dport"}[word], v...)
		case "dscp", "precedence":
			a.next()
			v, err := dscpValue(a.next(), word == "precedence")
			if err != nil {
				return nil, err
			}
			set("dscp", v)
		case "logging", "counting":
			a.next()
		default:
			return nil, fmt.Errorf("a policy has no condition %q", a.next())
		}
	}
	if !addressed {
		set("ethertype", map[bool]string{false: "ipv4", true: "ipv6"}[list.v6])
	}
	return m, nil
}

// vrpAddress reads an address of a rule: any, A W, A 0, A/n, or A n for IPv6.
func vrpAddress(a *args, v6 bool) (string, error) {
	if slices.Contains([]string{"any", "ip-address"}, a.peek()) {
		a.next()
		return "", nil
	}
	word := a.next()
	ip, err := netip.ParseAddr(word)
	if err != nil {
		return prefixText(word, v6)
	}
	if v6 {
		if n, ok := a.number(); ok && n <= 128 {
			return prefixText(fmt.Sprintf("%v/%d", ip, n), true)
		}
		return prefixText(word, true)
	}
	if a.take("0") != "" {
		return prefixText(word, false)
	}
	return address(&args{[]string{word, a.next()}}, false)
}
