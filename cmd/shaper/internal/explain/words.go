package explain

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/marker"
)

// headersOf describes the headers of a parsed packet, outermost first.
func headersOf(p *dataplane.Packet) string {
	var parts []string
	add := func(format string, args ...any) { parts = append(parts, fmt.Sprintf(format, args...)) }
	if p.Link != dataplane.LinkEthernet {
		add("link type %v", p.Link)
	}
	if p.Tags > 0 {
		id, _ := p.VLAN()
		pcp, _ := p.PCP()
		add("vlan %d pcp %d dei %d", id, pcp, marker.DEI(p.Data[p.Tag:]))
	}
	if p.Tags > 1 {
		add("the outer of %d tags", p.Tags)
	}
	if p.MPLS > 0 {
		add("mpls label %d tc %d", binary.BigEndian.Uint32(p.Data[p.MPLS:])>>12, marker.TC(p.Data[p.MPLS:]))
	}
	if !p.IsIP() {
		kind := map[dataplane.PacketKind]string{
			dataplane.Other:     "not IP",
			dataplane.Malformed: "malformed: a header is truncated or contradicts the one before it",
		}[p.Kind]
		add("%s, %s", kind, hasOf(p, "ethertype", 0))
		return strings.Join(parts, ", ")
	}
	src, dst := p.Addresses()
	from, to := src.String(), dst.String()
	if p.HasPorts {
		from, to = netip.AddrPortFrom(src, p.SrcPort).String(), netip.AddrPortFrom(dst, p.DstPort).String()
	}
	version := map[dataplane.PacketKind]string{dataplane.IPv4: "IPv4", dataplane.IPv6: "IPv6"}[p.Kind]
	add("%s %s > %s %s", version, from, to, dataplane.AppendProto(nil, p.Proto))
	add("%s", hasOf(p, "dscp", 0))
	add("%s", ecnText(p))
	switch {
	case p.Fragment:
		add("fragment, not the first")
	case p.Fragmented:
		add("first fragment")
	}
	return strings.Join(parts, ", ")
}

// ecnText returns the ECN field of a packet with an IP header (RFC 3168 §5).
func ecnText(p *dataplane.Packet) string {
	ecn := uint8(marker.NotECT)
	switch p.Kind {
	case dataplane.IPv4:
		ecn = marker.ECNv4(p.Data[p.L3:])
	case dataplane.IPv6:
		ecn = marker.ECNv6(p.Data[p.L3:])
	}
	return [...]string{
		marker.NotECT: "not-ect", marker.ECT1: "ect(1)", marker.ECT0: "ect(0)", marker.CE: "ce",
	}[ecn]
}

// hasOf writes a packet's value for a key of a match, or the reason for its absence.
func hasOf(p *dataplane.Packet, key string, n int) string {
	switch key {
	case "customer":
		return "no customer"
	case "cgroup":
		return "no cgroup in user space"
	}
	for _, f := range dataplane.MatchFields {
		if f.Name != key {
			continue
		}
		v, ok := f.Value(p, n)
		if !ok {
			return missingHeader(p, key)
		}
		return key + " " + say.Value(key, v)
	}
	if !p.IsIP() {
		return missingHeader(p, key)
	}
	src, dst := p.Addresses()
	if key == "src" {
		return "src " + src.String()
	}
	return "dst " + dst.String()
}

// missingHeader names the header that a packet lacks for a key of a match.
func missingHeader(p *dataplane.Packet, key string) string {
	switch {
	case key == "ethertype":
		return "no ethertype"
	case key == "vlan" || key == "pcp":
		return "no VLAN tag"
	case key == "inner-vlan":
		return "no second VLAN tag"
	case key == "mac" || key == "src-mac" || key == "dst-mac":
		return "no Ethernet header"
	case !p.IsIP():
		return "no IP header"
	}
	missing := "no ports"
	switch key {
	case "tcp-flags":
		missing = "no TCP flags"
	case "icmp-type":
		missing = "no ICMP header"
	case "vni":
		missing = "no header of VXLAN or GENEVE"
	case "teid":
		missing = "no header of GTP-U"
	}
	if p.Fragment {
		missing += ": not the first fragment"
	}
	return missing
}

// fieldText writes a field with its value, or names the missing header.
func fieldText(p *dataplane.Packet, f dataplane.Field) string {
	v, ok := p.Field(f)
	switch {
	case ok:
		return f.String() + " " + say.Value(f.String(), v)
	case f == dataplane.DSCP:
		return "no IP header"
	case f == dataplane.MPLSTC:
		return "no MPLS label"
	}
	return "no VLAN tag"
}

// list is the list of one key of a match. Each entry is a match of its own.
type list struct {
	key     string
	entries []dataplane.Match
	set     func(m *dataplane.Match, entries []dataplane.Match) // replaces the list of m
}

// listOf returns the list of a match selected by pick.
func listOf[T any](m *dataplane.Match, key string, pick func(*dataplane.Match) *[]T) list {
	l := list{key: key, set: func(m *dataplane.Match, entries []dataplane.Match) {
		*pick(m) = nil
		for i := range entries {
			*pick(m) = append(*pick(m), *pick(&entries[i])...)
		}
	}}
	for _, e := range *pick(m) {
		var one dataplane.Match
		*pick(&one) = []T{e}
		l.entries = append(l.entries, one)
	}
	return l
}

// lists returns the lists of a match.
func lists(m *dataplane.Match) []list {
	out := []list{
		listOf(m, "src", func(m *dataplane.Match) *[]netip.Prefix { return &m.Src }),
		listOf(m, "dst", func(m *dataplane.Match) *[]netip.Prefix { return &m.Dst }),
		listOf(m, "cgroup", func(m *dataplane.Match) *[]string { return &m.Cgroups }),
	}
	for _, f := range dataplane.MatchFields {
		out = append(out, listOf(m, f.Name, f.List))
	}
	return out
}

// narrowed returns a match reduced to the list entries which match a packet.
func narrowed(m *dataplane.Match, p *dataplane.Packet, n int) *dataplane.Match {
	out := *m
	for _, l := range lists(m) {
		var matching []dataplane.Match
		for _, e := range l.entries {
			if l.key == "sport" || l.key == "dport" {
				e.Proto = []dataplane.Range{{Last: 255}} // ports without proto match only TCP and UDP
			}
			if key := e.Misses(p, n); key != l.key {
				matching = append(matching, e)
			}
		}
		l.set(&out, matching)
	}
	return &out
}

// mostWanted is the maximum number of list entries shown.
const mostWanted = 3

// wantsOf writes the requirement of a match for a key returned by Misses.
func wantsOf(m *dataplane.Match, key string) string {
	switch key {
	case "ip":
		return "an IP header"
	case "customer":
		return "a packet of a customer"
	}
	for _, l := range lists(m) {
		if l.key != key || l.entries == nil {
			continue
		}
		var only dataplane.Match
		most := min(len(l.entries), mostWanted)
		l.set(&only, l.entries[:most])
		if more := len(l.entries) - most; more > 0 {
			return fmt.Sprintf("%s or %d more", say.Match(&only), more)
		}
		return say.Match(&only)
	}
	return "tcp or udp, to match ports"
}
