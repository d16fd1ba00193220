package tc

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"net/netip"
	"slices"
	"strings"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/routers"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/routers/form"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

const (
	etherIPv4 = 0x0800
	etherIPv6 = 0x86dd
	etherVLAN = 0x8100
	etherAll  = 0x0003 // ETH_P_ALL of linux/if_ether.h: all packets
)

// tcProtocols are names of protocols of filters.
var tcProtocols = map[string]uint32{
	"ip": etherIPv4, "ipv4": etherIPv4, "ipv6": etherIPv6, "all": etherAll, "arp": 0x0806,
	"802.1q": etherVLAN, "802.1ad": 0x88a8, "mpls_uc": 0x8847, "ppp_disc": 0x8863, "ppp_ses": 0x8864,
}

func parseTCProtocol(s string) (uint32, error) {
	if v, ok := tcProtocols[strings.ToLower(s)]; ok {
		return v, nil
	}
	return parseTCNumber(s, 16)
}

// anyLength matches every packet.
var anyLength = []dataplane.Range{{First: 0, Last: math.MaxUint32}}

func single(v uint32) []dataplane.Range {
	return []dataplane.Range{{First: uint64(v), Last: uint64(v)}}
}

// matchProtocol restricts a match to the packets of a protocol.
func matchProtocol(m *dataplane.Match, protocol uint32) {
	switch protocol {
	case etherAll:
		if len(m.Src)+len(m.Dst)+len(m.EtherType) == 0 {
			m.Length = anyLength
		}
	case etherVLAN:
		if len(m.VLAN)+len(m.PCP) == 0 {
			m.VLAN = []dataplane.Range{{First: 0, Last: 4095}}
		}
	default:
		m.EtherType = single(protocol)
	}
	routers.Plain(m)
}

// needsIP reports whether a match contains fields of IP packets only.
func needsIP(m *dataplane.Match) bool {
	return len(m.Src)+len(m.Dst)+len(m.Proto)+len(m.SPort)+len(m.DPort)+len(m.DSCP) > 0
}

// maskRange converts a value and a mask to a range, if the mask is a prefix of width bits.
func maskRange(v, mask uint32, width int) (dataplane.Range, bool) {
	full := uint32(1<<width - 1)
	rest := full &^ mask
	if mask&^full != 0 || rest&(rest+1) != 0 {
		return dataplane.Range{}, false
	}
	return dataplane.Range{First: uint64(v & mask), Last: uint64(v&mask | rest)}, true
}

// tcHeader is the part of a header compared by a u32 filter, from the network header on, or from
// the transport header on.
type tcHeader struct{ value, mask [64]byte }

// set adds a comparison of a number of bytes.
func (h *tcHeader) set(at, size int, v, mask uint32) error {
	if at < 0 || at+size > len(h.value) {
		return fmt.Errorf("match at %d is not understood", at)
	}
	for i := range size {
		shift := 8 * (size - 1 - i)
		b, m := byte(v>>shift), byte(mask>>shift)
		if (h.value[at+i]^b)&m&h.mask[at+i] != 0 {
			return fmt.Errorf("match at %d contradicts an earlier one", at)
		}
		h.value[at+i] |= b & m
		h.mask[at+i] |= m
	}
	return nil
}

// take cuts a number of bits, from the given bit on, from the comparison.
func (h *tcHeader) take(bit, width int) (v, mask uint32) {
	for i := bit; i < bit+width; i++ {
		at, b := i/8, byte(0x80)>>(i%8)
		v, mask = v<<1, mask<<1
		if h.mask[at]&b != 0 {
			mask |= 1
			h.mask[at] &^= b
		}
		if h.value[at]&b != 0 {
			v |= 1
		}
	}
	return v, mask
}

// field cuts a field and adds it to a list.
func (h *tcHeader) field(name string, list *[]dataplane.Range, bit, width int) error {
	v, mask := h.take(bit, width)
	if mask == 0 {
		return nil
	}
	r, ok := maskRange(v, mask, width)
	if !ok {
		return fmt.Errorf("%s %#x with mask %#x is not a range", name, v, mask)
	}
	*list = append(*list, r)
	return nil
}

// address cuts an address and adds it to a list.
func (h *tcHeader) address(name string, list *[]netip.Prefix, at, size int) error {
	var length int
	ended := false
	addr := slices.Clone(h.value[at : at+size])
	for _, m := range h.mask[at : at+size] {
		ones := bits.LeadingZeros8(^m)
		if ones < 8 && m<<ones != 0 || ended && m != 0 {
			return fmt.Errorf("the mask of %s is not a prefix", name)
		}
		ended = ended || ones < 8
		length += ones
	}
	clear(h.mask[at : at+size])
	if length > 0 {
		a, _ := netip.AddrFromSlice(addr)
		*list = append(*list, netip.PrefixFrom(a, length).Masked())
	}
	return nil
}

// rest fails if comparisons are left.
func (h *tcHeader) rest(from string) error {
	if i := slices.IndexFunc(h.mask[:], func(m byte) bool { return m != 0 }); i >= 0 {
		return fmt.Errorf("a match of byte %d of the %s header cannot be expressed", i, from)
	}
	return nil
}

const ecnNote = "packets with ECN bits match too: mask 0xff compares these bits, 0xfc does not"

// match converts the comparisons of a u32 filter.
func (h *tcHeader) match(f *tcFilter, protocol uint32) error {
	m := &f.match
	var transport int // bit of the transport header, without options
	var errs []error
	if ecn := map[uint32]int{etherIPv4: 14, etherIPv6: 10}[protocol]; ecn > 0 {
		switch v, mask := h.take(ecn, 2); {
		case mask == 3 && v == 0:
			f.notes = append(f.notes, ecnNote)
		case mask != 0:
			return fmt.Errorf("it compares the ECN bits with the DSCP: with mask 0xfc it would not")
		}
	}
	switch {
	case protocol == etherIPv4:
		v, mask := h.take(4, 4) // header length: 5 means no options
		if mask != 0 && (v != 5 || mask != 15) {
			return fmt.Errorf("a match of the header length cannot be expressed")
		}
		errs = append(errs, h.field("dsfield", &m.DSCP, 8, 6), h.field("length", &f.total, 16, 16),
			h.field("protocol", &m.Proto, 72, 8),
			h.address("src", &m.Src, 12, 4), h.address("dst", &m.Dst, 16, 4))
		transport = 160
	case protocol == etherIPv6:
		errs = append(errs, h.field("priority", &m.DSCP, 4, 6), h.field("protocol", &m.Proto, 48, 8),
			h.address("src", &m.Src, 8, 16), h.address("dst", &m.Dst, 24, 16))
		transport = 320
	}
	if transport > 0 {
		errs = append(errs, h.upper(f, protocol, transport))
	}
	if err := h.rest("IP"); err != nil && transport == 0 {
		return fmt.Errorf("%w: without protocol ip or ipv6 the header is not known", err)
	}
	errs = append(errs, h.rest("IP"))
	i := slices.IndexFunc(errs, func(err error) bool { return err != nil })
	if i >= 0 {
		return errs[i]
	}
	return nil
}

// upper converts comparisons behind the header of IP, of ports or of types of ICMP.
func (h *tcHeader) upper(f *tcFilter, protocol uint32, at int) error {
	m := &f.match
	proto, any := uint64(0), true
	if len(m.Proto) == 1 && m.Proto[0].First == m.Proto[0].Last {
		proto, any = m.Proto[0].First, false
	}
	icmp := map[uint32]uint64{etherIPv4: 1, etherIPv6: 58}[protocol]
	switch {
	case proto == icmp:
		err := h.field("icmp_type and icmp_code", &m.ICMPType, at, 16)
		if m.ICMPType != nil && protocol == etherIPv6 {
			m.ICMPType[0].First += dataplane.ICMPv6Type
			m.ICMPType[0].Last += dataplane.ICMPv6Type
		}
		return err
	case any, slices.Contains([]uint64{6, 17, 33, 132, 136}, proto):
		err := errors.Join(h.field("sport", &m.SPort, at, 16), h.field("dport", &m.DPort, at+16, 16))
		if any && len(m.SPort)+len(m.DPort) > 0 {
			f.notes = append(f.notes, "packets of any protocol with these bytes match, and in the policy those of TCP and UDP")
		}
		return err
	}
	return nil
}

// u32 converts the comparisons of a u32 filter.
func (f *filterRead) u32() error {
	if !f.compared {
		return errors.New("it has no match, so it matches nothing")
	}
	family := f.protocol
	switch {
	case f.h.mask == [64]byte{}: // it compares nothing
	case f.family == 0 || f.family == f.protocol:
	case f.protocol != etherAll:
		return errors.New("match of another protocol than that of the filter")
	default:
		f.notes = append(f.notes, "with protocol all, packets of other protocols with the same bytes match, too")
		family = f.family
	}
	if err := f.h.match(f.tcFilter, family); err != nil {
		return err
	}
	matchProtocol(&f.match, family)
	return nil
}

// tcFields are fields of headers by the names of u32: offset and size in bytes.
var tcFields = map[string]map[string][2]int{
	"ip": {
		"tos": {1, 1}, "dsfield": {1, 1}, "precedence": {1, 1}, "ihl": {0, 1}, "protocol": {9, 1},
		"sport": {20, 2}, "dport": {22, 2}, "icmp_type": {20, 1}, "icmp_code": {21, 1},
	},
	"ip6": {
		"protocol": {6, 1}, "sport": {40, 2}, "dport": {42, 2}, "icmp_type": {40, 1}, "icmp_code": {41, 1},
	},
	"tcp": {"src": {0, 2}, "dst": {2, 2}}, "udp": {"src": {0, 2}, "dst": {2, 2}},
	"icmp": {"type": {0, 1}, "code": {1, 1}},
}

// parseField reads the name of a field in any header.
func parseField(s string) (string, error) {
	for _, fields := range tcFields {
		if _, ok := fields[s]; ok {
			return s, nil
		}
	}
	return "", fmt.Errorf("match of %s cannot be expressed", s)
}

// u32Words are the options of a u32 filter.
var u32Words = []routers.Statement[*filterRead]{
	{Form: "match~ (u32:size | u16:size | u8:size) <number:value> <hex:mask> [at <offset>]", Do: (*filterRead).selector},
	{Form: "match~ mark <number:mark> <number:mask>", Do: (*filterRead).selector},
	{Form: "match~ (ip:header | ip6:header) (src:side | dst:side) <prefix>", Do: (*filterRead).selector},
	{Form: "match~ ip6:header priority:field <u8:value> <hex:mask>", Do: (*filterRead).selector},
	{Form: "match~ (ip:header | ip6:header | tcp:header | udp:header | icmp:header) <field> <number:value> <hex:mask>" +
		" [at <offset>]", Do: (*filterRead).selector},
	{Form: "(ht:hash | link:hash | hashkey:hash | divisor:hash | sample:hash | offset:hash) [<word>...]", Do: func(_ *filterRead, l routers.Line, _ form.Values) error {
		return fmt.Errorf("%s: hash tables cannot be expressed", l.Words[0])
	}},
	{Form: "order <number>"},
}

// selector takes a match of u32.
func (f *filterRead) selector(l routers.Line, v form.Values) (err error) {
	if f.kind != "u32" {
		return fmt.Errorf("%q is not understood", l.Words[0])
	}
	f.compared = true
	text := func(name string) string { s, _ := v.Get(name).(string); return s }
	n := func(name string) uint32 { n, _ := v.Get(name).(uint32); return n }
	header := text("header")
	if family := map[string]uint32{"ip": etherIPv4, "ip6": etherIPv6}[header]; family != 0 {
		if f.family != 0 && f.family != family {
			return errors.New("match of another protocol than that of the filter")
		}
		f.family = family
	}
	switch {
	case v.Has("mark"):
		r, ok := maskRange(n("mark"), n("mask"), 32)
		if !ok {
			return fmt.Errorf("mark %#x with mask %#x is not a range", n("mark"), n("mask"))
		}
		f.match.Mark = []dataplane.Range{r}
		return nil
	case v.Has("prefix"):
		return f.h.setPrefix(v.Get("prefix").(netip.Prefix), header, text("side"))
	case text("field") == "priority":
		return f.h.set(0, 4, n("value")<<20, n("mask")<<20)
	}
	where := [2]int{0, map[string]int{"u32": 4, "u16": 2, "u8": 1}[text("size")]}
	from := false // the transport header, which only a hash table can find
	if header != "" {
		var ok bool
		if where, ok = tcFields[header][text("field")]; !ok {
			return fmt.Errorf("match %s %s cannot be expressed", header, text("field"))
		}
		from = header != "ip" && header != "ip6"
	}
	if p, ok := v.Get("offset").(place); ok {
		where[0], from = p.at, p.next
	}
	if width := 8 * where[1]; uint64(n("value")|n("mask")) >= 1<<width {
		return fmt.Errorf("%q has values above %d bits", l.Text(), width)
	}
	if where[1] == 2 && where[0]%2 != 0 {
		return fmt.Errorf("at %d is odd", where[0])
	}
	if from {
		f.notes = append(f.notes, l.Text()+": without a hash table tc compares these bytes of the IP header")
	}
	return f.h.set(where[0], where[1], n("value"), n("mask"))
}

// setPrefix adds a comparison of an address.
func (h *tcHeader) setPrefix(p netip.Prefix, header, side string) error {
	start := map[string]map[string]int{"ip": {"src": 12, "dst": 16}, "ip6": {"src": 8, "dst": 24}}[header][side]
	if p.Addr().Is4() != (header == "ip") && p.Bits() > 0 {
		return fmt.Errorf("match %s %s with %v", header, side, p)
	}
	for i, b := range p.Addr().AsSlice() {
		n := min(max(p.Bits()-8*i, 0), 8)
		if err := h.set(start+i, 1, uint32(b), 0xff<<(8-n)&0xff); err != nil {
			return err
		}
	}
	return nil
}

// parseTCPrefix reads an address with an optional length, or any.
func parseTCPrefix(s string) (netip.Prefix, error) {
	if s == "any" || s == "all" || s == "default" {
		return netip.PrefixFrom(netip.IPv4Unspecified(), 0), nil
	}
	if p, err := netip.ParsePrefix(s); err == nil {
		return p.Masked(), nil
	}
	address, mask, ok := strings.Cut(s, "/")
	if dots := strings.Count(address, "."); ok && dots < 3 && !strings.Contains(address, ":") { // 10/8
		address += strings.Repeat(".0", 3-dots)
		if p, err := netip.ParsePrefix(address + "/" + mask); err == nil {
			return p.Masked(), nil
		}
	}
	if ok { // with a mask such as 255.0.0.0
		a, err := netip.ParseAddr(address)
		m, masked := netip.ParseAddr(mask)
		if err == nil && masked == nil && a.Is4() && m.Is4() {
			four := m.As4()
			free := ^binary.BigEndian.Uint32(four[:])
			if free&(free+1) == 0 {
				return netip.PrefixFrom(a, 32-bits.Len32(free)).Masked(), nil
			}
		}
	}
	a, err := netip.ParseAddr(s)
	if err != nil || a.Zone() != "" {
		return netip.Prefix{}, fmt.Errorf("%q is not an address or a prefix", s)
	}
	return netip.PrefixFrom(a, a.BitLen()), nil
}
