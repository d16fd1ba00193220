package routers

import (
	"errors"
	"fmt"
	"math/bits"
	"net/netip"
	"strconv"
	"strings"
)

// ciscoList is an access list.
type ciscoList struct {
	v6       bool
	standard bool
	lines    []Line // beginning with permit or deny
}

// beginsList reads the first line of an access list, or a line of a numbered list.
func (r *ciscoReader) beginsList(l Line) bool {
	a := &args{l.Words}
	ip := a.take("ip", "ipv6")
	if a.take("access-list") == "" {
		return false
	}
	kind := a.take("standard", "extended")
	name := a.next()
	number, err := strconv.Atoi(name)
	list := r.lists[name]
	if list == nil {
		list = &ciscoList{
			v6:       ip == "ipv6",
			standard: kind == "standard" || err == nil && (number < 100 || 1300 <= number && number < 2000),
		}
		r.lists[name] = list
	}
	if ip == "" { // access-list 101 permit ...
		if name == "" || !list.add(Line{l.Number, l.Indent, a.words}, true) {
			r.in.Skip(l)
		}
		return true
	}
	if !a.done() { // of the list as a whole, such as resequence
		r.in.Skip(l)
	}
	r.leave()
	r.indent, r.list = l.Indent, list
	return true
}

// add adds a line. It returns false if the line is not one of an access list.
func (c *ciscoList) add(l Line, inside bool) bool {
	a := &args{l.Words}
	a.number()
	if a.take("sequence") != "" {
		a.number()
	}
	switch a.peek() {
	case "remark":
		return true
	case "permit", "deny":
	default:
		if !inside || a.done() {
			return false
		}
	}
	c.lines = append(c.lines, Line{l.Number, l.Indent, a.words})
	return true
}

// match returns the conditions of the permitted packets.
func (c *ciscoList) match() ([]Conditions, error) {
	return permitted(c.lines, "entries", func(l Line) (permit bool, m Conditions, err error) {
		a := &args{l.Words}
		permit = a.next() == "permit"
		m, err = c.entry(l, a)
		return permit, m, err
	})
}

// permitted returns the conditions of the packets permitted by an access list. It must only permit,
// but its last line may deny all. read reads a line; what names the lines.
func permitted(
	lines []Line, what string, read func(l Line) (permit bool, m Conditions, err error),
) (all []Conditions, err error) {
	for i, l := range lines {
		permit, m, err := read(l)
		if err != nil {
			return nil, fmt.Errorf("line %d: %s: %w", l.Number, l.Text(), err)
		}
		switch {
		case permit:
			all = append(all, m)
		case i < len(lines)-1 || len(m) > 1:
			return nil, fmt.Errorf("line %d: %s: a policy has no negation", l.Number, l.Text())
		}
		if len(all) > maxAlternatives {
			return nil, fmt.Errorf("it has more than %d %s", maxAlternatives, what)
		}
	}
	if all == nil {
		return nil, errors.New("the access list permits nothing")
	}
	return all, nil
}

// entry reads the condition of an entry, behind permit or deny.
func (c *ciscoList) entry(l Line, a *args) (m Conditions, err error) {
	set := func(key string, values ...string) { m = append(m, Cond{key, values, l.Number, l.Text()}) }
	ports := false
	if !c.standard {
		word := a.peek()
		a.next()
		switch p, ok := protocol(word); {
		case word == "ip", word == "ipv4", word == "ipv6":
		case !ok:
			return nil, fmt.Errorf("%q is not a protocol that is supported", word)
		default:
			if c.v6 && word == "icmp" {
				p = "icmpv6"
			}
			ports = p == "tcp" || p == "udp" || p == "sctp"
			set("proto", p)
		}
	}
	addressed := false
	for _, side := range []struct{ address, port string }{{"src", "sport"}, {"dst", "dport"}} {
		if side.address == "dst" && c.standard {
			break
		}
		prefix, err := address(a, c.v6)
		if err != nil {
			return nil, err
		}
		if prefix != "" {
			set(side.address, prefix)
			addressed = true
		}
		if !ports {
			continue
		}
		values, err := portValues(a)
		if err != nil {
			return nil, err
		}
		if values != nil {
			set(side.port, values...)
		}
	}
	for !a.done() {
		switch word := a.peek(); word {
		case "log", "log-input":
			a.next()
		case "dscp", "precedence":
			a.next()
			v, err := dscpValue(a.next(), word == "precedence")
			if err != nil {
				return nil, err
			}
			set("dscp", v)
		default:
			return nil, fmt.Errorf("a policy has no condition %q", a.next())
		}
	}
	if !addressed {
		set("ethertype", map[bool]string{false: "ipv4", true: "ipv6"}[c.v6])
	}
	return m, nil
}

// address reads an address of an access list: any, host A, A/n, or A and a wildcard mask. It
// returns "" for any.
func address(a *args, v6 bool) (string, error) {
	switch word := a.next(); {
	case strings.EqualFold(word, "any"), strings.EqualFold(word, "any4"), strings.EqualFold(word, "any6"):
		return "", nil
	case strings.EqualFold(word, "host"):
		return prefixText(a.next(), v6)
	case strings.Contains(word, "/"):
		return prefixText(word, v6)
	default:
		ip, err := netip.ParseAddr(word)
		if err != nil || !ip.Is4() {
			return "", fmt.Errorf("%q is not an address", word)
		}
		wildcard, err := netip.ParseAddr(a.peek())
		if err != nil || !wildcard.Is4() {
			return prefixText(word, v6) // addresses in a standard list may come without a mask
		}
		a.next()
		b := wildcard.As4()
		mask := uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
		if mask&(mask+1) != 0 {
			return "", fmt.Errorf("wildcard %v is not that of a prefix", wildcard)
		}
		p := netip.PrefixFrom(ip, 32-bits.OnesCount32(mask)).Masked()
		if p.Bits() == 0 {
			return "", nil
		}
		return plainPrefix(p), nil
	}
}

// prefixText checks an address or a prefix, and clears the bits beyond its length.
func prefixText(s string, v6 bool) (string, error) {
	p, err := netip.ParsePrefix(s)
	if err != nil {
		ip, err := netip.ParseAddr(s)
		if err != nil || ip.Zone() != "" {
			return "", fmt.Errorf("%q is not an address or a prefix", s)
		}
		p = netip.PrefixFrom(ip, ip.BitLen())
	}
	if p.Addr().Is6() != v6 {
		return "", fmt.Errorf("%s is not an address of this list's family", s)
	}
	if p.Bits() == 0 {
		return "", nil
	}
	return plainPrefix(p.Masked()), nil
}

// plainPrefix writes a prefix of full length as an address. IPv6 is quoted: it may end in a colon.
func plainPrefix(p netip.Prefix) string {
	s := p.String()
	if p.IsSingleIP() {
		s = p.Addr().String()
	}
	if p.Addr().Is6() {
		return `"` + s + `"`
	}
	return s
}

// portNames are ports by their names in configurations (IANA).
var portNames = map[string]int{
	"ftp-data": 20, "ftp": 21, "ssh": 22, "telnet": 23, "smtp": 25, "tacacs": 49, "domain": 53, "dns": 53,
	"bootps": 67, "dhcp": 67, "bootpc": 68, "tftp": 69, "www": 80, "http": 80, "pop3": 110, "sunrpc": 111,
	"ntp": 123, "netbios-ns": 137, "netbios-dgm": 138, "netbios-ssn": 139, "imap": 143, "snmp": 161,
	"snmptrap": 162, "bgp": 179, "ldap": 389, "https": 443, "isakmp": 500, "syslog": 514, "rip": 520,
	"radius": 1812, "radacct": 1813, "ldp": 646, "snmp-trap": 162,
	"snmp-agent": 161,
}

func port(word string) (int, error) {
	if n, ok := portNames[strings.ToLower(word)]; ok {
		return n, nil
	}
	n, err := strconv.ParseUint(word, 10, 16)
	if err != nil {
		return 0, fmt.Errorf("%q is not a port", word)
	}
	return int(n), nil
}

// portValues reads the condition of a port: eq, range, gt or lt.
func portValues(a *args) ([]string, error) {
	op := a.take("eq", "range", "gt", "lt", "neq")
	if op == "" {
		return nil, nil
	}
	first, err := port(a.next())
	if err != nil {
		return nil, err
	}
	switch op {
	case "eq":
		values := []string{strconv.Itoa(first)}
		for !a.done() { // eq 80 443
			n, err := port(a.peek())
			if err != nil {
				break
			}
			a.next()
			values = append(values, strconv.Itoa(n))
		}
		return values, nil
	case "range":
		last, err := port(a.next())
		if err != nil || last < first {
			return nil, errors.New("its range of ports is not understood")
		}
		return []string{fmt.Sprintf("%d-%d", first, last)}, nil
	case "gt":
		if first < 65535 {
			return []string{fmt.Sprintf("%d-65535", first+1)}, nil
		}
	case "lt":
		if first > 0 {
			return []string{fmt.Sprintf("0-%d", first-1)}, nil
		}
	}
	return nil, fmt.Errorf("a policy has no condition %s %d", op, first)
}
