package oracle

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// span is a range of numbers, inclusive.
type span struct{ low, high uint64 }

func contains(spans []span, n int) bool {
	for _, s := range spans {
		if uint64(n) >= s.low && uint64(n) <= s.high {
			return true
		}
	}
	return false
}

// match holds the conditions of a class by key. All keys must match; of each key, one span or
// prefix must match.
type match struct {
	numbers  map[string][]span
	prefixes map[string][]netip.Prefix
}

// takesNonIP reports whether packets without a valid IP header can match.
func (m match) takesNonIP() bool {
	for _, key := range []string{"ethertype", "vlan", "pcp", "length", "inner-vlan", "mac", "src-mac", "dst-mac"} {
		if _, ok := m.numbers[key]; ok {
			return true
		}
	}
	return false
}

// classify returns the first class to match, or nil. who is the packet's customer, or nil.
func (p *policy) classify(f frame, length int64, who *customer) *class {
	for _, c := range p.classes {
		if c.perCustomer && who == nil {
			continue
		}
		if !f.isIP() && !c.match.takesNonIP() {
			continue
		}
		if c.match.fits(f, length) {
			return c
		}
	}
	return nil
}

func (m match) fits(f frame, length int64) bool {
	for key, prefixes := range m.prefixes {
		addr := f.src
		if key == "dst" {
			addr = f.dst
		}
		if !f.isIP() || !inAny(prefixes, addr) {
			return false
		}
	}
	for key, spans := range m.numbers {
		n, ok := f.field(key, length)
		if !ok || !contains(spans, n) {
			return false
		}
	}
	// Ports without proto match TCP and UDP.
	_, sport := m.numbers["sport"]
	_, dport := m.numbers["dport"]
	_, proto := m.numbers["proto"]
	if (sport || dport) && !proto && f.proto != protocols["tcp"] && f.proto != protocols["udp"] {
		return false
	}
	return true
}

func inAny(prefixes []netip.Prefix, addr netip.Addr) bool {
	for _, p := range prefixes {
		if p.Contains(addr) {
			return true
		}
	}
	return false
}

// field returns the packet's value for a key, or false for none.
func (f frame) field(key string, length int64) (int, bool) {
	switch key {
	case "proto":
		return f.proto, f.isIP()
	case "dscp":
		return f.dscp(), f.isIP()
	case "sport":
		return f.sport, f.hasPorts
	case "dport":
		return f.dport, f.hasPorts
	case "vlan":
		return f.vlan, f.hasVLAN
	case "pcp":
		return f.pcp, f.hasVLAN
	case "ethertype":
		return f.ethertype, f.hasEthertype
	case "length":
		return int(length), true
	}
	if key == "mark" {
		return 0, true // in a replay
	}
	return f.rareField(key)
}

// Names of values, by key.
var (
	protocols = map[string]int{
		"icmp": 1, "igmp": 2, "ipip": 4, "tcp": 6, "udp": 17, "dccp": 33, "rsvp": 46, "gre": 47, "esp": 50,
		"ah": 51, "icmpv6": 58, "eigrp": 88, "ospf": 89, "pim": 103, "vrrp": 112, "l2tp": 115, "sctp": 132,
		"udplite": 136,
	}
	ethertypes = map[string]int{"ipv4": etherIPv4, "arp": 0x0806, "ipv6": etherIPv6}
	codepoints = dscpNames()
)

func dscpNames() map[string]int {
	names := map[string]int{"ef": 46}
	for class := range 8 {
		names[fmt.Sprintf("cs%d", class)] = 8 * class
	}
	for class := 1; class <= 4; class++ {
		for drop := 1; drop <= 3; drop++ {
			names[fmt.Sprintf("af%d%d", class, drop)] = 8*class + 2*drop
		}
	}
	return names
}

// keyRange holds the largest value and the names of each key with numbers.
var keyRange = map[string]struct {
	largest uint64
	names   map[string]int
}{
	"proto":     {255, protocols},
	"sport":     {65535, nil},
	"dport":     {65535, nil},
	"dscp":      {63, codepoints},
	"vlan":      {4095, nil},
	"pcp":       {7, nil},
	"mpls":      {7, nil},
	"mark":      {1<<32 - 1, nil},
	"ethertype": {65535, ethertypes},
	"length":    {1<<32 - 1, nil},
	"vni":       {1<<24 - 1, nil},
	"teid":      {1<<32 - 1, nil},
}

// parseNumber reads one value of a key: a name, decimal, or hexadecimal with 0x.
func parseNumber(key, s string) (uint64, error) {
	if n, ok := keyRange[key].names[s]; ok {
		return uint64(n), nil
	}
	base, digits := 10, s
	if hex, ok := strings.CutPrefix(s, "0x"); ok {
		base, digits = 16, hex
	}
	n, err := strconv.ParseUint(digits, base, 64)
	if err != nil || n > keyRange[key].largest {
		return 0, fmt.Errorf("%s: %q is none", key, s)
	}
	return n, nil
}

func parseSpan(key, s string) (span, error) {
	low, high, isRange := strings.Cut(s, "-")
	if !isRange {
		high = low
	}
	a, err := parseNumber(key, strings.TrimSpace(low))
	if err != nil {
		return span{}, err
	}
	b, err := parseNumber(key, strings.TrimSpace(high))
	if err != nil {
		return span{}, err
	}
	if a > b {
		return span{}, fmt.Errorf("%s: %q runs backwards", key, s)
	}
	return span{a, b}, nil
}

func parsePrefix(s string) (netip.Prefix, error) {
	if addr, err := netip.ParseAddr(s); err == nil {
		return addr.Prefix(addr.BitLen())
	}
	p, err := netip.ParsePrefix(s)
	return p.Masked(), err
}

func parseMatch(n *yaml.Node) (match, error) {
	m := match{numbers: map[string][]span{}, prefixes: map[string][]netip.Prefix{}}
	keys, err := mapping(n, "src", "dst", "proto", "sport", "dport", "dscp", "vlan", "pcp", "mark",
		"ethertype", "length", "inner-vlan", "tcp-flags", "icmp-type", "mac", "src-mac", "dst-mac",
		"vni", "teid")
	if err != nil {
		return m, err
	}
	for key, value := range keys {
		values := []*yaml.Node{value}
		if value.Kind == yaml.SequenceNode {
			values = value.Content
		}
		for _, v := range values {
			s, err := scalar(v)
			if err != nil {
				return m, err
			}
			if key == "src" || key == "dst" {
				p, err := parsePrefix(s)
				if err != nil {
					return m, at(v, err)
				}
				m.prefixes[key] = append(m.prefixes[key], p)
				continue
			}
			if _, common := keyRange[key]; !common {
				spans, err := parseRare(key, s)
				if err != nil {
					return m, at(v, err)
				}
				m.numbers[key] = append(m.numbers[key], spans...)
				continue
			}
			r, err := parseSpan(key, s)
			if err != nil {
				return m, at(v, err)
			}
			m.numbers[key] = append(m.numbers[key], r)
		}
	}
	return m, nil
}
