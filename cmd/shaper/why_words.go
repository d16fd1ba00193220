package main

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/marker"
)

// Names of protocols (IANA) and EtherTypes (IEEE) that people know.
var (
	protoNames = map[uint8]string{
		1: "icmp", 2: "igmp", 4: "ipip", 6: "tcp", 17: "udp", 33: "dccp", 47: "gre", 50: "esp", 51: "ah", 58: "icmpv6",
		89: "ospf", 103: "pim", 112: "vrrp", 132: "sctp", 136: "udplite",
	}
	etherNames = map[uint16]string{
		0x0800: "ipv4", 0x0806: "arp", 0x86dd: "ipv6", 0x8847: "mpls", 0x8848: "mpls", 0x8863: "pppoe-discovery", 0x8864: "pppoe",
		0x88cc: "lldp",
	}
)

// headersOf is what a parsed packet is, outermost header first.
func headersOf(p *dataplane.Packet) string {
	var parts []string
	add := func(format string, args ...any) { parts = append(parts, fmt.Sprintf(format, args...)) }
	if p.Link != dataplane.LinkEthernet {
		add("link type %v", p.Link)
	}
	if p.Tags > 0 {
		add("vlan %d pcp %d dei %d", vlanOf(p), marker.PCP(p.Data[p.Tag:]), marker.DEI(p.Data[p.Tag:]))
	}
	if p.Tags > 1 {
		add("the outer of %d tags", p.Tags)
	}
	if p.MPLS > 0 {
		add("mpls label %d tc %d", binary.BigEndian.Uint32(p.Data[p.MPLS:])>>12, marker.TC(p.Data[p.MPLS:]))
	}
	if !p.IsIP() {
		kind := map[dataplane.Kind]string{dataplane.Other: "not IP", dataplane.Malformed: "malformed: a header is cut short or contradicts the one before"}[p.Kind]
		add("%s, %s", kind, hasOf(p, "ethertype", 0))
		return strings.Join(parts, ", ")
	}
	src, dst := addresses(p)
	from, to := src.String(), dst.String()
	if p.HasPorts {
		from, to = netip.AddrPortFrom(src, p.SrcPort).String(), netip.AddrPortFrom(dst, p.DstPort).String()
	}
	version := map[dataplane.Kind]string{dataplane.IPv4: "IPv4", dataplane.IPv6: "IPv6"}[p.Kind]
	add("%s %s > %s %s", version, from, to, cmp.Or(protoNames[p.Proto], fmt.Sprintf("proto %d", p.Proto)))
	add("%s", hasOf(p, "dscp", 0))
	add("%s", ecnText(p))
	switch {
	case p.Fragment:
		add("a later fragment")
	case p.Fragmented:
		add("a first fragment")
	}
	return strings.Join(parts, ", ")
}

func addresses(p *dataplane.Packet) (src, dst netip.Addr) {
	from, size := p.L3+12, 4
	if p.Kind == dataplane.IPv6 {
		from, size = p.L3+8, 16
	}
	src, _ = netip.AddrFromSlice(p.Data[from : from+size])
	dst, _ = netip.AddrFromSlice(p.Data[from+size : from+2*size])
	return src, dst
}

func vlanOf(p *dataplane.Packet) uint16 { return binary.BigEndian.Uint16(p.Data[p.Tag:]) & 0xfff }

// ecnText is the ECN field of a packet with an IP header (RFC 3168 §5).
func ecnText(p *dataplane.Packet) string {
	ecn := uint8(marker.NotECT)
	switch p.Kind {
	case dataplane.IPv4:
		ecn = marker.ECNv4(p.Data[p.L3:])
	case dataplane.IPv6:
		ecn = marker.ECNv6(p.Data[p.L3:])
	}
	return [...]string{marker.NotECT: "not-ect", marker.ECT1: "ect(1)", marker.ECT0: "ect(0)", marker.CE: "ce"}[ecn]
}

// hasOf is what a packet has where a match asks for a key.
func hasOf(p *dataplane.Packet, key string, n int) string {
	switch {
	case key == "length":
		return fmt.Sprintf("length %d", n)
	case key == "mark":
		return fmt.Sprintf("mark %d", p.Mark)
	case key == "ethertype" && etherNames[p.EtherType] != "" && p.HasEtherType:
		return fmt.Sprintf("ethertype 0x%04x (%s)", p.EtherType, etherNames[p.EtherType])
	case key == "ethertype" && p.HasEtherType:
		return fmt.Sprintf("ethertype 0x%04x", p.EtherType)
	case key == "ethertype":
		return "no ethertype"
	case (key == "vlan" || key == "pcp") && p.Tags == 0:
		return "no VLAN tag"
	case key == "vlan":
		return fmt.Sprintf("vlan %d", vlanOf(p))
	case key == "pcp":
		return fmt.Sprintf("pcp %d", marker.PCP(p.Data[p.Tag:]))
	case !p.IsIP():
		return "no IP header"
	case key == "proto" && protoNames[p.Proto] != "":
		return fmt.Sprintf("proto %d (%s)", p.Proto, protoNames[p.Proto])
	case key == "proto":
		return fmt.Sprintf("proto %d", p.Proto)
	case key == "dscp":
		v, _ := p.DSCP()
		return "dscp " + marker.DSCPName(v)
	case (key == "sport" || key == "dport") && !p.HasPorts && p.Fragment:
		return "no ports: a later fragment"
	case (key == "sport" || key == "dport") && !p.HasPorts:
		return "no ports"
	case key == "sport":
		return fmt.Sprintf("sport %d", p.SrcPort)
	case key == "dport":
		return fmt.Sprintf("dport %d", p.DstPort)
	}
	src, dst := addresses(p)
	if key == "src" {
		return "src " + src.String()
	}
	return "dst " + dst.String()
}

// fieldOf reads a field that colors come from and marks go to.
func fieldOf(p *dataplane.Packet, f dataplane.Field) (v uint32, ok bool) {
	switch {
	case f == dataplane.SKBMark:
		return p.Mark, true
	case f == dataplane.DSCP:
		dscp, ok := p.DSCP()
		return uint32(dscp), ok
	case f == dataplane.PCP && p.Tags > 0:
		return uint32(marker.PCP(p.Data[p.Tag:])), true
	case f == dataplane.DEI && p.Tags > 0:
		return uint32(marker.DEI(p.Data[p.Tag:])), true
	case f == dataplane.MPLSTC && p.MPLS > 0:
		return uint32(marker.TC(p.Data[p.MPLS:])), true
	}
	return 0, false
}

func fieldValue(f dataplane.Field, v uint32) string {
	if f == dataplane.DSCP {
		return marker.DSCPName(uint8(v))
	}
	return fmt.Sprint(v)
}

// fieldText is a field with its value, or says that the packet lacks it.
func fieldText(p *dataplane.Packet, f dataplane.Field) string {
	v, ok := fieldOf(p, f)
	switch {
	case ok:
		return f.String() + " " + fieldValue(f, v)
	case f == dataplane.DSCP:
		return "no IP header"
	case f == dataplane.MPLSTC:
		return "no MPLS label"
	}
	return "no VLAN tag"
}

// list is one key of a match, with its entries as a match each.
type list struct {
	key     string
	entries []dataplane.Match
	set     func(m *dataplane.Match, entries []dataplane.Match) // gives m these alone
}

// listOf is a list of a match, found by pick.
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

// lists are those of a match, by key.
func lists(m *dataplane.Match) []list {
	type (
		match    = dataplane.Match
		ranges   = []dataplane.Range
		prefixes = []netip.Prefix
	)
	return []list{
		listOf(m, "src", func(m *match) *prefixes { return &m.Src }),
		listOf(m, "dst", func(m *match) *prefixes { return &m.Dst }),
		listOf(m, "proto", func(m *match) *ranges { return &m.Proto }),
		listOf(m, "sport", func(m *match) *ranges { return &m.SPort }),
		listOf(m, "dport", func(m *match) *ranges { return &m.DPort }),
		listOf(m, "dscp", func(m *match) *ranges { return &m.DSCP }),
		listOf(m, "vlan", func(m *match) *ranges { return &m.VLAN }),
		listOf(m, "pcp", func(m *match) *ranges { return &m.PCP }),
		listOf(m, "mark", func(m *match) *ranges { return &m.Mark }),
		listOf(m, "ethertype", func(m *match) *ranges { return &m.EtherType }),
		listOf(m, "length", func(m *match) *ranges { return &m.Length }),
	}
}

// narrowed is a match that takes a packet, without the entries of its lists that
// do not.
func narrowed(m *dataplane.Match, p *dataplane.Packet, n int) *dataplane.Match {
	out := *m
	for _, l := range lists(m) {
		var takes []dataplane.Match
		for _, e := range l.entries {
			if l.key == "sport" || l.key == "dport" {
				e.Proto = []dataplane.Range{{Last: 255}} // otherwise ports ask for TCP or UDP
			}
			if key := e.Misses(p, n); key != l.key {
				takes = append(takes, e)
			}
		}
		l.set(&out, takes)
	}
	return &out
}

// mostWanted is how many entries of a list are told.
const mostWanted = 3

// wantsOf is what a match asks for by a key that Misses names.
func wantsOf(m *dataplane.Match, key string) string {
	if key == "ip" {
		return "an IP header"
	}
	for _, l := range lists(m) {
		if l.key != key || l.entries == nil {
			continue
		}
		var only dataplane.Match
		most := min(len(l.entries), mostWanted)
		l.set(&only, l.entries[:most])
		if more := len(l.entries) - most; more > 0 {
			return fmt.Sprintf("%s or %d more", describeMatch(&only), more)
		}
		return describeMatch(&only)
	}
	return "tcp or udp, by its ports"
}
