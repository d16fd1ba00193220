package tc

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"math/bits"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
)

// filter writes a filter. Unread attributes are written by their number, so import names them.
func (l *liveTC) filter(o *liveObject) {
	a := parseAttrs(o.options)
	protocol := fmt.Sprintf("%#04x", bits.ReverseBytes16(uint16(o.info)))
	if bits.ReverseBytes16(uint16(o.info)) == etherAll {
		protocol = "all"
	}
	parent := "parent " + handleName(o.parent)
	switch o.parent {
	case tcClsactIn:
		parent = "ingress"
	case tcClsactOut:
		parent = "egress"
	}
	s := fmt.Sprintf("filter add dev %s %s pref %d protocol %s", l.device, parent, o.info>>16, protocol)
	if o.chain > 0 {
		s += fmt.Sprintf(" chain %d", o.chain)
	}
	class := ""
	flow := func(t uint16) {
		if a[t] != nil {
			class = " flowid " + handleName(a.u32(t))
		}
	}
	switch o.kind {
	case "u32":
		flow(nl.TCA_U32_CLASSID)
		match := u32Match(a)
		if match == "" {
			return // a hash table
		}
		s += " u32" + match + l.actions(a, nl.TCA_U32_ACT, nl.TCA_U32_POLICE) +
			rest(a, nl.TCA_U32_CLASSID, nl.TCA_U32_HASH, nl.TCA_U32_SEL, nl.TCA_U32_POLICE, nl.TCA_U32_ACT,
				nl.TCA_U32_PCNT, nl.TCA_U32_MARK, u32Flags, u32Pad)
	case "flower":
		flow(nl.TCA_FLOWER_CLASSID)
		s += " flower" + flowerMatch(a) + l.actions(a, nl.TCA_FLOWER_ACT, 0)
	case "matchall": // TCA_MATCHALL_...: classid, action, flags, count, pad
		flow(1)
		s += " matchall" + l.actions(a, 2, 0) + rest(a, 1, 2, 3, 4, 5)
	case "fw": // TCA_FW_...: classid, police, interface, action, mask
		flow(1)
		mask := uint32(math.MaxUint32) // which the kernel leaves out
		if a[5] != nil {
			mask = a.u32(5)
		}
		s = strings.Replace(s, " pref", fmt.Sprintf(" handle %#x/%#x pref", o.handle, mask), 1)
		s += " fw" + l.actions(a, 4, 2) + rest(a, 1, 2, 4, 5)
	case "basic": // TCA_BASIC_...: classid, matches, action, police, count, pad
		flow(1)
		s += " basic" + l.actions(a, 3, 4) + rest(a, 1, 3, 4, 5, 6)
	default:
		s += " " + o.kind
	}
	l.line("%s", s+class)
}

// Attributes without a name in nl.
const (
	u32Flags = 11 // TCA_U32_FLAGS
	u32Pad   = 12 // TCA_U32_PAD
)

// rest writes the attributes besides the known ones.
func rest(a liveAttrs, known ...uint16) (s string) {
	for _, t := range slices.Sorted(maps.Keys(a)) {
		if !slices.Contains(known, t) {
			s += fmt.Sprintf(" attribute-%d", t)
		}
	}
	return s
}

// u32Match writes the keys of a u32 filter: struct tc_u32_sel, and struct tc_u32_key for each. It
// returns "" for a hash table.
func u32Match(a liveAttrs) (s string) {
	sel := a[nl.TCA_U32_SEL]
	if sel == nil {
		return ""
	}
	// not the table of its priority
	if table := a.u32(nl.TCA_U32_HASH); table>>20 < 0x800 || table>>12&0xff != 0 {
		s += fmt.Sprintf(" ht %x", table)
	}
	if link := a.u32(nl.TCA_U32_LINK); link != 0 {
		s += fmt.Sprintf(" link %x", link)
	}
	const size, header = 16, 16
	for n := range int(at(sel, 2, 1)[0]) {
		k := at(sel, header+n*size, size)
		offset := fmt.Sprint(int32(u32(k, 8)))
		if u32(k, 12) != 0 {
			offset = "nexthdr+" + offset
		}
		s += fmt.Sprintf(" match u32 %#x %#x at %s", binary.BigEndian.Uint32(k[4:]),
			binary.BigEndian.Uint32(k), offset)
	}
	if m := a[nl.TCA_U32_MARK]; u32(m, 4) != 0 { // struct tc_u32_mark
		s += fmt.Sprintf(" match mark %#x %#x", u32(m, 0), u32(m, 4))
	}
	if s == "" {
		s = " match u32 0 0"
	}
	return s
}

// flowerMatch writes the match of a flower filter.
func flowerMatch(a liveAttrs) (s string) {
	known := []uint16{
		nl.TCA_FLOWER_CLASSID, nl.TCA_FLOWER_ACT, nl.TCA_FLOWER_FLAGS, nl.TCA_FLOWER_IN_HW_COUNT,
		nl.TCA_FLOWER_KEY_ETH_TYPE,
	}
	number := func(t uint16, format string) {
		known = append(known, t)
		switch len(a[t]) {
		case 1:
			s += fmt.Sprintf(" "+format, a.u8(t))
		case 2:
			s += fmt.Sprintf(" "+format, a.be16(t))
		}
	}
	number(nl.TCA_FLOWER_KEY_VLAN_ETH_TYPE, "vlan_ethtype %#04x")
	known = append(known, nl.TCA_FLOWER_KEY_VLAN_ID)
	if id := a[nl.TCA_FLOWER_KEY_VLAN_ID]; id != nil { // in the host's order, unlike all other numbers
		s += fmt.Sprintf(" vlan_id %d", binary.NativeEndian.Uint16(at(id, 0, 2)))
	}
	number(nl.TCA_FLOWER_KEY_VLAN_PRIO, "vlan_prio %d")
	number(nl.TCA_FLOWER_KEY_IP_PROTO, "ip_proto %#02x")
	for _, p := range []struct {
		key  uint16
		name string
	}{
		{nl.TCA_FLOWER_KEY_IPV4_SRC, "src_ip"},
		{nl.TCA_FLOWER_KEY_IPV4_DST, "dst_ip"},
		{nl.TCA_FLOWER_KEY_IPV6_SRC, "src_ip"},
		{nl.TCA_FLOWER_KEY_IPV6_DST, "dst_ip"},
	} {
		known = append(known, p.key, p.key+1) // the mask follows
		if addr, ok := netip.AddrFromSlice(a[p.key]); ok {
			s += fmt.Sprintf(" %s %s", p.name, maskedAddress(addr, a[p.key+1]))
		}
	}
	for _, p := range [][2]uint16{
		{nl.TCA_FLOWER_KEY_TCP_SRC, nl.TCA_FLOWER_KEY_TCP_SRC_MASK},
		{nl.TCA_FLOWER_KEY_UDP_SRC, nl.TCA_FLOWER_KEY_UDP_SRC_MASK},
		{nl.TCA_FLOWER_KEY_SCTP_SRC, nl.TCA_FLOWER_KEY_SCTP_SRC_MASK},
	} {
		for i, name := range []string{"src_port", "dst_port"} {
			port, mask := p[0]+uint16(i), p[1]+uint16(i)
			known = append(known, port)
			if a[port] != nil {
				s += fmt.Sprintf(" %s %d", name, a.be16(port))
			}
			if m := a[mask]; m == nil || a.be16(mask) == 0xffff {
				known = append(known, mask)
			}
		}
	}
	for i, name := range []string{"src_port", "dst_port"} {
		first := uint16(nl.TCA_FLOWER_KEY_PORT_SRC_MIN + 2*i)
		known = append(known, first, first+1)
		if a[first] != nil {
			s += fmt.Sprintf(" %s %d-%d", name, a.be16(first), a.be16(first+1))
		}
	}
	known = append(known, nl.TCA_FLOWER_KEY_IP_TOS, nl.TCA_FLOWER_KEY_IP_TOS_MASK)
	if a[nl.TCA_FLOWER_KEY_IP_TOS] != nil {
		s += fmt.Sprintf(" ip_tos %#02x/%#02x", a.u8(nl.TCA_FLOWER_KEY_IP_TOS),
			a.u8(nl.TCA_FLOWER_KEY_IP_TOS_MASK))
	}
	return s + rest(a, known...)
}

// maskedAddress writes an address with its mask, as a prefix if it is one.
func maskedAddress(a netip.Addr, mask []byte) string {
	length, ended := 0, false
	for _, b := range mask {
		ones := bits.LeadingZeros8(^b)
		if b<<ones != 0 || ended && b != 0 {
			return fmt.Sprintf("%v/%x", a, mask) // import names it
		}
		ended = ended || ones < 8
		length += ones
	}
	return fmt.Sprintf("%v/%d", a, length)
}

// actions writes the actions of a filter: those of a list, and one of the old police attribute.
func (l *liveTC) actions(a liveAttrs, list, police uint16) (s string) {
	if police != 0 && a[police] != nil {
		s += livePolice(a.nested(police))
	}
	actions := a.nested(list)
	for _, order := range slices.Sorted(maps.Keys(actions)) {
		action := actions.nested(order)
		options := action.nested(nl.TCA_ACT_OPTIONS)
		kind := action.text(nl.TCA_ACT_KIND)
		s += " action"
		switch kind {
		case "police":
			s += livePolice(options)
		case "gact": // TCA_GACT_PARMS, and the random part as TCA_GACT_PROB
			s += " " + liveVerdict(int32(u32(options[2], 8))) + rest(options, 1, 2, 4)
		case "skbedit":
			s += " skbedit"
			if options[5] != nil { // TCA_SKBEDIT_MARK
				s += fmt.Sprintf(" mark %d", options.u32(5))
			}
			s += " " + liveVerdict(int32(u32(options[2], 8)))
			if m := options[8]; m != nil && options.u32(8) != 1<<32-1 { // TCA_SKBEDIT_MASK
				s += " attribute-8"
			}
			s += rest(options, 1, 2, 5, 6, 8)
		case "mirred": // struct tc_mirred
			verb := map[uint32]string{
				1: "egress redirect", 2: "egress mirror", 3: "ingress redirect", 4: "ingress mirror",
			}[u32(options[2], 20)]
			name := fmt.Sprint(u32(options[2], 24))
			if link, err := netlink.LinkByIndex(int(u32(options[2], 24))); err == nil {
				name = link.Attrs().Name
			}
			s += fmt.Sprintf(" mirred %s dev %s", verb, name)
		case "csum":
			s += " csum ip4h " + liveVerdict(int32(u32(options[1], 8)))
		case "pedit":
			s += livePedit(options)
		default:
			s += " " + kind
		}
	}
	return s
}

// liveVerdict writes a control (TC_ACT_... in linux/pkt_cls.h).
func liveVerdict(v int32) string {
	if i := int(v) + 1; i >= 0 && i < 5 {
		return []string{"continue", "ok", "reclassify", "drop", "pipe"}[i]
	}
	return fmt.Sprintf("verdict-%d", v)
}

// Attributes of police without a name in nl.
const (
	policeTime       = 6 // TCA_POLICE_TM
	policePad        = 7
	policeRate64     = 8
	policePeak64     = 9
	policePackets    = 10 // TCA_POLICE_PKTRATE64
	policePacketsMax = 11 // TCA_POLICE_PKTBURST64, in ticks
)

// livePolice writes a police action: struct tc_police.
func livePolice(a liveAttrs) string {
	b := a[nl.TCA_POLICE_TBF]
	rate, peak := a.rate(b, 20, policeRate64), a.rate(b, 32, policePeak64)
	s := fmt.Sprintf(" police index %d", u32(b, 0))
	if rate.bytes > 0 {
		s += fmt.Sprintf(" rate %v burst %d%s", rate, bytesOfTicks(int64(rate.bytes), int64(u32(b, 12))),
			rate.sizes())
	}
	if n := a.u64(policePackets); n > 0 {
		s += fmt.Sprintf(" pkts_rate %d pkts_burst %d", n,
			bytesOfTicks(int64(n), int64(a.u64(policePacketsMax))))
	}
	if mtu := u32(b, 16); mtu > 0 {
		s += fmt.Sprintf(" mtu %d", mtu)
	}
	if peak.bytes > 0 {
		s += fmt.Sprintf(" peakrate %v", peak)
	}
	if v := a.u32(nl.TCA_POLICE_AVRATE); v > 0 {
		s += fmt.Sprintf(" avrate %dbps", v)
	}
	return s + fmt.Sprintf(" conform-exceed %s/%s", liveVerdict(int32(u32(b, 4))),
		liveVerdict(int32(a.u32(nl.TCA_POLICE_RESULT))))
}

// livePedit writes a pedit action on the DSCP, as export writes it: struct tc_pedit_sel and one
// struct tc_pedit_key, with the type of the header in TCA_PEDIT_KEYS_EX.
func livePedit(a liveAttrs) string {
	// TCA_PEDIT_PARMS_EX, ..._KEYS_EX, ..._KEY_EX, ..._KEY_EX_HTYPE
	const parms, keys, key, header = 4, 5, 6, 1
	b := a[parms]
	verdict := liveVerdict(int32(u32(b, 8)))
	kind := binary.NativeEndian.Uint16(at(a.nested(keys).nested(key)[header], 0, 2))
	mask, value := binary.BigEndian.Uint32(at(b, 24, 4)), binary.BigEndian.Uint32(at(b, 28, 4))
	if at(b, 20, 1)[0] == 1 && u32(b, 32) == 0 { // one key, at offset 0
		switch {
		case kind == 2 && mask == 0xff03ffff: // TCA_PEDIT_KEY_EX_HDR_TYPE_IP4, and below ..._IP6
			return fmt.Sprintf(" pedit ex munge ip dsfield set %#02x retain 0xfc %s", value>>16, verdict)
		case kind == 3 && mask == 0xf03fffff:
			return fmt.Sprintf(" pedit ex munge ip6 traffic_class set %#02x retain 0xfc %s", value>>20,
				verdict)
		}
	}
	return " pedit with other keys"
}
