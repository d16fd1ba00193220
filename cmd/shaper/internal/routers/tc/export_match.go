package tc

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/routers"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// exportedMatch is a filter without its actions.
type exportedMatch struct {
	protocol string // of the filter
	match    string // kind and options
	family   uint32 // etherIPv4, etherIPv6, or 0 if the packets may be others
}

// firstEtherType is the first EtherType (IEEE 802.3 §3.2.6). In policies smaller numbers are the length
// field of a frame; tc has numbers of linux/if_ether.h there.
const firstEtherType = 0x0600

// prefixLists are the lists of addresses of a match.
var prefixLists = []struct {
	name string
	list func(*dataplane.Match) *[]netip.Prefix
}{
	{"src", func(m *dataplane.Match) *[]netip.Prefix { return &m.Src }},
	{"dst", func(m *dataplane.Match) *[]netip.Prefix { return &m.Dst }},
}

// maxFilters is the maximum number of filters for a class.
const maxFilters = 1024

// matches returns the filters for a match. tc has no lists, so there is a filter for each
// combination.
func (x *tcExport) matches(what string, match dataplane.Match) (list []exportedMatch) {
	m := &match
	for _, f := range dataplane.MatchFields {
		*f.List(m) = routers.JoinRanges(slices.Clone(*f.List(m)))
	}
	for _, p := range prefixLists {
		*p.list(m) = separate(*p.list(m))
	}
	x.Unsaid(what, m, "no filter of tc is written for this condition",
		"Src", "Dst", "Proto", "SPort", "DPort", "DSCP", "VLAN", "PCP", "Mark", "EtherType", "Length",
		"Customer")
	ip := needsIP(m)
	vlan := len(m.VLAN)+len(m.PCP) > 0
	all := slices.Equal(m.Length, anyLength) && !ip && !vlan && len(m.EtherType) == 0
	switch {
	case m.Customer:
		x.Cannot("%s: customers", what)
	case len(m.Length) > 0 && !all && !x.seesLength(m, vlan):
		x.Cannot("%s: match length: tc has it for ethertype: ipv4, without ports, vlan and pcp, if packets count as l2 or l3 without mpu",
			what)
		m.Length = nil
	case vlan && len(m.Mark) > 0:
		x.Cannot("%s: match mark with vlan or pcp", what)
	}
	for _, p := range slices.Concat(m.Src, m.Dst) {
		if p.Bits() == 0 {
			x.Cannot("%s: match %v: write ethertype: ipv4 or ipv6", what, p)
		}
	}
	if !all && !vlan {
		x.Note("filters do not take packets with VLAN tags, if the interface sends any; the policy's classes do")
	}
	protocols := x.values(what, "ethertype", m.EtherType, 16)
	switch {
	case all:
		protocols = []uint32{etherAll}
	case vlan && !ip && len(protocols) == 0:
		protocols = []uint32{etherVLAN}
	case len(protocols) == 0:
		protocols = []uint32{etherIPv4, etherIPv6}
	}
	for _, p := range protocols {
		if p < firstEtherType && len(m.EtherType) > 0 {
			x.Cannot("%s: match ethertype %#x: to tc it is no EtherType, but a number of Linux such as 3, all packets",
				what, p)
		}
		if ip && p != etherIPv4 && p != etherIPv6 {
			x.Cannot("%s: match ethertype %#x with fields of IP", what, p)
		}
		list = append(list, x.family(what, m, p, vlan)...)
		if len(list) > maxFilters {
			x.Cannot("%s: match needs more than %d filters", what, maxFilters)
			return nil
		}
	}
	if len(list) == 0 {
		x.Cannot("%s: match has addresses of different families only, so it matches nothing", what)
	}
	return list
}

// seesLength reports whether a filter can compare the metered length of the packets of a match: by the
// total length in the header of IPv4.
func (x *tcExport) seesLength(m *dataplane.Match, vlan bool) bool {
	for i, t := range x.totals(m.Length) {
		if t.First < 0 || t.First == 0 && m.Length[i].First > 0 || t.Last < t.First || t.Last >= 1<<16-1 {
			return false
		}
	}
	return slices.Equal(m.EtherType, single(etherIPv4)) && !vlan &&
		len(m.SPort)+len(m.DPort)+len(m.Mark) == 0 &&
		x.rule.Base != dataplane.L1 && x.rule.MPU == 0
}

// totalRange is a range of the total length of IPv4 packets, which the metered lengths may exceed.
type totalRange struct{ First, Last int64 }

// totals converts ranges of the metered length.
func (x *tcExport) totals(ranges []dataplane.Range) (out []totalRange) {
	shift := int64(x.rule.Overhead)
	if x.rule.Base == dataplane.L2 {
		shift += routers.EthernetHeader
	}
	for _, r := range ranges {
		t := totalRange{int64(r.First) - shift, int64(r.Last) - shift}
		if r.First == 0 {
			t.First = 0
		}
		out = append(out, t)
	}
	return out
}

// separate sorts prefixes and removes those that others contain. Filters for the same packets would
// meter those that continue twice.
func separate(list []netip.Prefix) (out []netip.Prefix) {
	list = slices.Clone(list)
	slices.SortFunc(list, netip.Prefix.Compare) // a prefix is before those that it contains
	for _, p := range list {
		if n := len(out); n == 0 || !out[n-1].Overlaps(p) {
			out = append(out, p)
		}
	}
	return out
}

// values returns the values of ranges.
func (x *tcExport) values(what, field string, ranges []dataplane.Range, width int) (out []uint32) {
	for _, r := range ranges {
		if r.Last-r.First >= maxFilters {
			x.Cannot("%s: match %s %d-%d needs more than %d filters", what, field, r.First, r.Last,
				maxFilters)
			return nil
		}
		for v := r.First; v <= r.Last; v++ {
			out = append(out, uint32(v))
		}
	}
	return out
}

// family returns the filters for the packets of a protocol.
func (x *tcExport) family(what string, m *dataplane.Match, protocol uint32, vlan bool) []exportedMatch {
	ports := len(m.SPort)+len(m.DPort) > 0
	flower := vlan || ports || protocol == etherIPv6 && len(m.Proto) > 0
	name := map[uint32]string{
		etherAll: "all", etherVLAN: "802.1q", etherIPv4: "ip", etherIPv6: "ipv6",
	}[protocol]
	if name == "" {
		name = fmt.Sprintf("0x%04x", protocol)
	}
	key := "match ip"
	if protocol == etherIPv6 {
		key = "match ip6"
	}
	if len(m.Mark) > 0 && !vlan && !needsIP(m) {
		return marked(m.Mark, name)
	}
	var fields [][]string // alternatives of each field
	add := func(values []string) { fields = append(fields, values) }
	for _, p := range prefixLists {
		var values []string
		for _, v := range *p.list(m) {
			if v.Addr().Is4() != (protocol == etherIPv4) {
				continue
			}
			if flower {
				values = append(values, fmt.Sprintf("%s_ip %v", p.name, v))
			} else {
				values = append(values, fmt.Sprintf("%s %s %v", key, p.name, v))
			}
		}
		if len(*p.list(m)) > 0 {
			if len(values) == 0 {
				return nil // the other family
			}
			add(values)
		}
	}
	dscp := "dsfield"
	if protocol == etherIPv6 {
		dscp = "priority"
	}
	if flower {
		x.flower(what, m, ports, add)
	} else {
		var protos []string
		for _, v := range x.values(what, "proto", m.Proto, 8) {
			protos = append(protos, fmt.Sprintf("match ip protocol %d 0xff", v))
		}
		add(protos)
		add(masked(m.Mark, 32,
			func(v, mask uint32) string { return fmt.Sprintf("match mark %#x %#x", v, mask) }))
		if len(m.Mark) > 0 {
			x.Note("%s: a kernel without CONFIG_CLS_U32_MARK ignores match mark", what)
		}
	}
	add(masked(m.DSCP, 6, func(v, mask uint32) string {
		if flower {
			return fmt.Sprintf("ip_tos 0x%02x/0x%02x", v<<2, mask<<2)
		}
		return fmt.Sprintf("%s %s 0x%02x 0x%02x", key, dscp, v<<2, mask<<2)
	}))
	if protocol == etherIPv4 {
		var lengths []dataplane.Range
		for _, t := range x.totals(m.Length) {
			lengths = append(lengths, dataplane.Range{First: uint64(t.First), Last: uint64(t.Last)})
		}
		add(masked(lengths, 16,
			func(v, mask uint32) string { return fmt.Sprintf("match u16 %#x %#x at 2", v, mask) }))
	}
	family := protocol
	if family != etherIPv4 && family != etherIPv6 {
		family = 0
	}
	start := "u32"
	switch {
	case vlan && protocol != etherVLAN:
		start, name = "flower vlan_ethtype "+name, "802.1q"
	case flower:
		start = "flower"
	}
	var list []exportedMatch
	all, ok := routers.Combinations(fields)
	if !ok {
		x.Cannot("%s: match needs more than %d filters", what, maxFilters)
	}
	for _, s := range all {
		if !flower && s == "" {
			s = "match u32 0 0"
		}
		list = append(list, exportedMatch{name, strings.TrimSpace(start + " " + s), family})
	}
	return list
}

// marked returns the filters for a match of marks alone.
func marked(marks []dataplane.Range, protocol string) (list []exportedMatch) {
	for _, handle := range masked(marks, 32,
		func(v, mask uint32) string { return fmt.Sprintf("%#x/%#x", v, mask) }) {
		list = append(list, exportedMatch{protocol + " handle " + handle, "fw", tcProtocols[protocol]})
	}
	return list
}

// flower adds the fields that only flower has.
func (x *tcExport) flower(what string, m *dataplane.Match, ports bool, add func([]string)) {
	if len(m.Mark) > 0 {
		x.Cannot("%s: match mark with ports, vlan or an IPv6 protocol", what)
	}
	for _, f := range []struct {
		option string
		values []uint32
	}{{"vlan_id", x.values(what, "vlan", m.VLAN, 12)}, {"vlan_prio", x.values(what, "pcp", m.PCP, 3)}} {
		var values []string
		for _, v := range f.values {
			values = append(values, fmt.Sprintf("%s %d", f.option, v))
		}
		add(values)
	}
	protos := x.values(what, "proto", m.Proto, 8)
	if ports && len(protos) == 0 {
		protos = []uint32{6, 17}
	}
	var values []string
	for _, v := range protos {
		name := fmt.Sprintf("0x%02x", v)
		switch v {
		case 6, 17, 132:
			name = map[uint32]string{6: "tcp", 17: "udp", 132: "sctp"}[v]
		default:
			if ports {
				x.Cannot("%s: match ports of protocol %d: tc has those of TCP, UDP and SCTP", what, v)
			}
		}
		values = append(values, "ip_proto "+name)
	}
	add(values)
	if ports {
		x.Note("%s: tc matches ports of unfragmented packets only; here first fragments have ports too", what)
	}
	for _, f := range []struct {
		option string
		list   []dataplane.Range
	}{{"src_port", m.SPort}, {"dst_port", m.DPort}} {
		var values []string
		for _, r := range f.list {
			values = append(values, f.option+" "+portRange(r))
		}
		add(values)
	}
}

// portRange writes a range of ports.
func portRange(r dataplane.Range) string {
	if r.First == r.Last {
		return fmt.Sprint(r.First)
	}
	return fmt.Sprintf("%d-%d", r.First, r.Last)
}

// masked splits ranges into values with prefix masks.
func masked(ranges []dataplane.Range, width int, text func(v, mask uint32) string) (out []string) {
	full := uint32(1<<width - 1)
	for _, r := range ranges {
		for first := uint64(r.First); first <= uint64(r.Last); {
			size := 0 // bits
			for size < width && first&(1<<size) == 0 && first+1<<(size+1)-1 <= uint64(r.Last) {
				size++
			}
			out = append(out, text(uint32(first), full&^uint32(1<<size-1)))
			first += 1 << size
		}
	}
	return out
}
