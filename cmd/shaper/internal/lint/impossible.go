package lint

import (
	"net/netip"
	"slices"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// Protocols (IANA) and EtherTypes (IEEE) used by impossible.
const (
	icmp, igmp, icmpv6 = 1, 2, 58

	etherIPv4, etherIPv6  = 0x0800, 0x86dd
	etherMPLS, etherPPPoE = 0x8847, 0x8864
	etherMPLSMulticast    = 0x8848
)

// withPorts are the protocols whose ports are read ("Headers" in go doc ./dataplane).
var withPorts = []uint64{6, 17, 33, 132, 136}

// impossible finds classes whose match contradicts itself, so that no packet can match.
func (l *linter) impossible() {
	for i := range l.Policy.Classes {
		c := &l.Policy.Classes[i]
		if key, why := contradiction(&c.Match); why != "" {
			l.add(Warning, &c.Match, key, "class %s matches no packet: %s", c.Name, why)
			continue
		}
		if l.NoMarks != "" && len(c.Match.Mark) > 0 && !includes(c.Match.Mark, 0) {
			l.add(Warning, &c.Match, "mark",
				"class %s matches no packet here: the mark of every packet is 0 in %s", c.Name, l.NoMarks)
		}
	}
}

// absentMarks finds meters reading the skb mark, and actions setting it, in a plane whose packets have
// none.
func (l *linter) absentMarks() {
	if l.NoMarks == "" {
		return
	}
	for _, m := range l.plan.Meters() {
		if m.Aware && m.PreColor.From == dataplane.SKBMark {
			l.add(Warning, m, "precolor",
				"meter %s reads input colors from the mark, which is 0 for every packet in %s", m.Name,
				l.NoMarks)
		}
	}
	find := func(owner string, actions ...*dataplane.Action) {
		for _, a := range actions {
			if a != nil && slices.ContainsFunc(a.Marks, isSKBMark) {
				l.add(Warning, a, "mark", "%s sets the mark of packets, which nothing reads in %s", owner, l.NoMarks)
			}
		}
	}
	for i := range l.Policy.Classes {
		c := &l.Policy.Classes[i]
		find("class "+c.Name, c.Green, c.Yellow, c.Red)
	}
	if l.Policy.Customers != nil {
		for _, p := range l.Policy.Customers.Plans {
			find("plan "+p.Name, p.Green, p.Yellow, p.Red)
		}
	}
}

func isSKBMark(m dataplane.Mark) bool { return m.Field == dataplane.SKBMark }

// contradiction returns the key of a match in contradiction to others, and the reason, or "" and
// "".
func contradiction(m *dataplane.Match) (key, why string) {
	for _, list := range []struct {
		key      string
		prefixes []netip.Prefix
	}{{"src", m.Src}, {"dst", m.Dst}} {
		wire := func(p netip.Prefix) bool { return !p.Addr().Is4In6() || p.Bits() < 96 }
		if len(list.prefixes) > 0 && !slices.ContainsFunc(list.prefixes, wire) {
			return list.key,
				"packets on the wire do not have IPv4-mapped addresses: write " +
					list.prefixes[0].Addr().Unmap().String()
		}
	}
	v4, v6 := versions(m.Src)
	dst4, dst6 := versions(m.Dst)
	if v4, v6 = v4 && dst4, v6 && dst6; !v4 && !v6 {
		return "dst", "src and dst have different IP versions"
	}
	needsIP := len(m.Src)+len(m.Dst)+len(m.Proto)+len(m.SPort)+len(m.DPort)+len(m.DSCP)+len(m.TCPFlags)+
		len(m.ICMPType)+len(m.VNI)+len(m.TEID)+len(m.Cgroups) > 0
	if types := m.EtherType; len(types) > 0 {
		either := includes(types, etherMPLS) || includes(types, etherMPLSMulticast) ||
			includes(types, etherPPPoE)
		v4 = v4 && (either || includes(types, etherIPv4))
		v6 = v6 && (either || includes(types, etherIPv6))
		if needsIP && !v4 && !v6 {
			return "ethertype", "the other keys are those of IP packets, which have none of these EtherTypes"
		}
	}
	switch {
	case len(m.Proto) == 0:
	case !v6 && onlyOf(m.Proto, icmpv6):
		return "proto", "IPv4 packets do not have the protocol icmpv6, but icmp"
	case !v4 && onlyOf(m.Proto, icmp, igmp):
		return "proto", "IPv6 packets do not have the protocols icmp and igmp, but icmpv6"
	case len(m.SPort)+len(m.DPort) > 0 &&
		!slices.ContainsFunc(withPorts, func(p uint64) bool { return includes(m.Proto, p) }):
		return "proto", "ports are only those of tcp, udp, dccp, sctp and udplite"
	case len(m.TCPFlags) > 0 && !includes(m.Proto, 6):
		return "proto", "tcp-flags are only those of tcp"
	case len(m.VNI)+len(m.TEID) > 0 && !includes(m.Proto, 17):
		return "proto", "packets with a VNI or TEID are those of udp"
	case len(m.ICMPType) > 0 && !icmpOfProtocols(m):
		return "proto", "the types of icmp-type are of another protocol: icmp or icmpv6"
	}
	switch {
	case len(m.TCPFlags) > 0 && len(m.ICMPType) > 0:
		return "icmp-type", "no packet has TCP flags and a type of ICMP"
	case len(m.VNI) > 0 && len(m.TEID) > 0:
		return "teid", "no packet has both a VNI and a TEID"
	case len(m.VNI)+len(m.TEID) > 0 && len(m.TCPFlags) > 0:
		return "tcp-flags", "packets with a VNI or TEID are those of udp"
	case len(m.VNI)+len(m.TEID) > 0 && len(m.ICMPType) > 0:
		return "icmp-type", "packets with a VNI or TEID are those of udp"
	case len(m.VNI) > 0 && !toPort(m.DPort, 4789, 8472, 6081):
		return "dport", "packets with a VNI are to port 4789, 8472 or 6081"
	case len(m.TEID) > 0 && !toPort(m.DPort, 2152):
		return "dport", "packets with a TEID are to port 2152"
	case len(m.ICMPType) > 0 && len(m.SPort)+len(m.DPort) > 0:
		return "icmp-type", "no packet has ports and a type of ICMP"
	}
	return "", ""
}

// toPort reports whether a list of ports is empty or contains one of some ports.
func toPort(list []dataplane.Range, ports ...uint64) bool {
	return len(list) == 0 || slices.ContainsFunc(ports, func(p uint64) bool { return includes(list, p) })
}

// icmpOfProtocols reports whether a type of ICMP in a match is of one of its protocols.
func icmpOfProtocols(m *dataplane.Match) bool {
	return slices.ContainsFunc(m.ICMPType, func(r dataplane.Range) bool {
		return r.First < dataplane.ICMPv6Type && includes(m.Proto, icmp) ||
			r.Last >= dataplane.ICMPv6Type && includes(m.Proto, icmpv6)
	})
}

// versions reports whether IPv4 and IPv6 packets can match a list of prefixes.
func versions(list []netip.Prefix) (v4, v6 bool) {
	for _, p := range list {
		v4, v6 = v4 || p.Addr().Is4(), v6 || !p.Addr().Is4()
	}
	return v4 || len(list) == 0, v6 || len(list) == 0
}

func includes(list []dataplane.Range, v uint64) bool {
	return slices.ContainsFunc(list, func(r dataplane.Range) bool { return r.First <= v && v <= r.Last })
}

// onlyOf reports whether a list contains only these values.
func onlyOf(list []dataplane.Range, values ...uint64) bool {
	return !slices.ContainsFunc(list, func(r dataplane.Range) bool {
		return r.First != r.Last || !slices.Contains(values, r.First)
	})
}
