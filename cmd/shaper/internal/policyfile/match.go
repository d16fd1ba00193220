package policyfile

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/marker"
)

// Names of protocols (IANA) and EtherTypes (IEEE) that policies may use.
var (
	protocols = map[string]uint32{
		"icmp": 1, "igmp": 2, "ipip": 4, "tcp": 6, "udp": 17, "dccp": 33, "rsvp": 46, "gre": 47,
		"esp": 50, "ah": 51, "icmpv6": 58, "eigrp": 88, "ospf": 89, "pim": 103, "vrrp": 112,
		"l2tp": 115, "sctp": 132, "udplite": 136,
	}
	etherTypes = map[string]uint32{
		"ipv4": 0x0800, "arp": 0x0806, "ipv6": 0x86dd, "mpls": 0x8847, "pppoe-discovery": 0x8863,
		"pppoe": 0x8864, "lldp": 0x88cc,
	}
)

func (l *loader) match(m *dataplane.Match, n *yaml.Node) {
	l.where[m] = n
	numbers := func(list *[]dataplane.Range, what string, value func(string) (uint32, error)) func(*yaml.Node) {
		return func(n *yaml.Node) {
			l.list(n, func(n *yaml.Node) {
				if r, ok := parsed(l, n, what, rangeOf(value)); ok {
					*list = append(*list, r)
				}
			})
		}
	}
	prefixes := func(list *[]netip.Prefix, what string) func(*yaml.Node) {
		return func(n *yaml.Node) {
			l.list(n, func(n *yaml.Node) {
				if p, ok := parsed(l, n, what, parsePrefix); ok {
					*list = append(*list, p)
				}
			})
		}
	}
	dscp := func(s string) (uint32, error) { v, err := marker.ParseDSCP(s); return uint32(v), err }
	l.mapping(n, "match", keys{
		"src":       prefixes(&m.Src, "src"),
		"dst":       prefixes(&m.Dst, "dst"),
		"proto":     numbers(&m.Proto, "proto", named(protocols)),
		"sport":     numbers(&m.SPort, "sport", named(nil)),
		"dport":     numbers(&m.DPort, "dport", named(nil)),
		"dscp":      numbers(&m.DSCP, "dscp", dscp),
		"vlan":      numbers(&m.VLAN, "vlan", named(nil)),
		"pcp":       numbers(&m.PCP, "pcp", named(nil)),
		"mark":      numbers(&m.Mark, "mark", named(nil)),
		"ethertype": numbers(&m.EtherType, "ethertype", named(etherTypes)),
		"length":    numbers(&m.Length, "length", named(nil)),
	})
}

// named reads a number, decimal or 0x hexadecimal, or one of the names.
func named(names map[string]uint32) func(string) (uint32, error) {
	return func(s string) (uint32, error) {
		if v, ok := names[s]; ok {
			return v, nil
		}
		v, err := strconv.ParseUint(s, 0, 32)
		if err == nil {
			return uint32(v), nil
		}
		if names == nil {
			return 0, fmt.Errorf("%q is not a number or a range such as 5000-5999", s)
		}
		return 0, fmt.Errorf("%q is not a number or one of %s", s, strings.Join(sorted(names), " "))
	}
}

// rangeOf reads a value, or two with a dash between.
func rangeOf(value func(string) (uint32, error)) func(string) (dataplane.Range, error) {
	return func(s string) (dataplane.Range, error) {
		if v, err := value(s); err == nil {
			return dataplane.Range{First: v, Last: v}, nil
		}
		first, last, dash := strings.Cut(s, "-")
		if !dash {
			_, err := value(s)
			return dataplane.Range{}, err
		}
		a, err := value(strings.TrimSpace(first))
		if err != nil {
			return dataplane.Range{}, err
		}
		b, err := value(strings.TrimSpace(last))
		return dataplane.Range{First: a, Last: b}, err
	}
}

// parsePrefix reads a prefix, or an address as a prefix of its full length.
func parsePrefix(s string) (netip.Prefix, error) {
	if a, err := netip.ParseAddr(s); err == nil && a.Zone() == "" {
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	p, err := netip.ParsePrefix(s)
	if err != nil {
		return p, fmt.Errorf("%q is not an address or a prefix such as 192.0.2.0/24", s)
	}
	if m := p.Masked(); m != p {
		return p, fmt.Errorf("%v has bits beyond its length: write %v, or %v for the one address", p, m, p.Addr())
	}
	return p, nil
}
