package tc

import (
	"cmp"
	"fmt"
	"math/bits"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// firstPref is the priority given by the kernel to the first filter without one. Later ones get the
// lowest priority in use minus one, so they are evaluated before (tcf_auto_prio in
// net/sched/cls_api.c).
const firstPref = 0xc000

// filter reads a filter command after its verb.
func (t *tcImport) filter(d *tcDevice, c tcCommand, verb string, a *tcArgs) {
	f := &tcFilter{tcCommand: c, parent: tcRoot}
	protocol, handle, kind := uint32(etherAll), "", ""
	for kind == "" && a.more() {
		w := a.next()
		switch {
		case w == "root":
			f.parent = tcRoot
		case w == "ingress":
			f.parent = tcClsactIn
		case w == "egress":
			f.parent = tcClsactOut
		case w == "parent":
			f.parent = a.handle()
		case w == "handle":
			handle = a.next()
		case complete(w, []string{"preference", "priority"}) != "" && w != "p":
			f.pref = a.number(16)
		case complete(w, []string{"protocol"}) != "":
			protocol = value(a, parseTCProtocol)
		case complete(w, []string{"chain"}) != "":
			if n := a.number(32); n != 0 {
				a.fail("chain %d: chains of filters cannot be expressed", n)
			}
		case complete(w, []string{"estimator"}) != "":
			a.next()
			a.next()
		default:
			kind = w
		}
	}
	if f.parent&majorMask == ingressHandle && f.parent != tcRoot && f.parent != tcClsactOut {
		f.parent = tcClsactIn // ffff: and, of the qdisc ingress, any ffff:x (ingress_tcf_block)
	}
	if verb == "delete" {
		d.deleteFilters(f, a)
		return
	}
	if other := d.otherProtocol(f, protocol); other != nil {
		d.note(c.Line, "tc rejects it, and it has no effect: the filters of its priority have another protocol, from line %d",
			other.Number)
		return
	}
	f.protocol = protocol
	switch kind {
	case "u32":
		f.u32(a, protocol, t)
	case "flower":
		f.flower(a, protocol, t)
	case "matchall", "basic", "fw":
		if kind == "fw" {
			f.fw(handle, a)
		}
		for a.more() {
			f.common(a.next(), a, t)
		}
		matchProtocol(&f.match, protocol)
	case "":
		a.fail("the kind of the filter is missing")
	default:
		a.fail("filter %s cannot be expressed", kind)
	}
	if a.err != nil {
		return
	}
	if f.pref == 0 {
		f.pref = firstPref
		for _, o := range d.filters {
			if o.parent == f.parent {
				f.pref = min(f.pref, max(o.pref, 1)-1)
			}
		}
	}
	d.filters = append(d.filters, f)
}

// otherProtocol returns a filter of the same parent and priority whose protocol is another one, or nil.
func (d *tcDevice) otherProtocol(f *tcFilter, protocol uint32) *tcFilter {
	for _, o := range d.filters {
		if f.pref != 0 && o.parent == f.parent && o.pref == f.pref && o.protocol != protocol {
			return o
		}
	}
	return nil
}

// deleteFilters handles tc filter del of all filters of a parent, or of those with a priority.
func (d *tcDevice) deleteFilters(f *tcFilter, a *tcArgs) {
	if len(a.words) > 0 && len(d.filters) > 0 {
		a.fail("the deletion of a single filter is not understood")
		return
	}
	d.filters = slices.DeleteFunc(d.filters, func(o *tcFilter) bool {
		return o.parent == f.parent && (f.pref == 0 || o.pref == f.pref)
	})
}

// common reads an option common to all kinds of filters.
func (f *tcFilter) common(w string, a *tcArgs, t *tcImport) {
	switch {
	case complete(w, []string{"classid"}) != "", complete(w, []string{"flowid"}) != "" && len(w) > 1:
		f.class = a.handle()
	case w == "action":
		f.readActions(a, t)
	case w == "police":
		f.actions = append(f.actions, a.police(t))
	case w == "skip_hw", w == "verbose":
	case w == "skip_sw":
		a.fail("skip_sw: only hardware would see it")
	default:
		a.unknown(w)
	}
}

// fw reads the handle of a fw filter: a mark, with an optional mask.
func (f *tcFilter) fw(handle string, a *tcArgs) {
	number, mask, masked := strings.Cut(handle, "/")
	v, err := parseTCNumber(number, 32)
	a.check(err)
	m := uint32(1<<32 - 1)
	if masked {
		m, err = parseTCNumber(mask, 32)
		a.check(err)
	}
	r, ok := maskRange(v, m, 32)
	if low := bits.TrailingZeros32(^m); !ok && m == 1<<low-1 { // the low bits of the mark
		f.notes = append(f.notes, fmt.Sprintf("the other bits of the mark are compared too: it must be %d", v&m))
		r, ok = dataplane.Range{First: uint64(v & m), Last: uint64(v & m)}, true
	}
	if !ok {
		a.fail("handle %s is not a range of marks", handle)
	}
	f.match.Mark = []dataplane.Range{r}
}

// flower reads the options of a flower filter.
func (f *tcFilter) flower(a *tcArgs, protocol uint32, t *tcImport) {
	m, inner := &f.match, protocol
	for a.more() {
		switch w := a.next(); w {
		case "vlan_id":
			m.VLAN = one(a.number(12))
		case "vlan_prio":
			m.PCP = one(a.number(3))
		case "vlan_ethtype":
			inner = value(a, parseTCProtocol)
		case "ip_proto":
			m.Proto = one(value(a, parseIPProto))
		case "ip_tos":
			m.DSCP = append(m.DSCP, a.dscp(f))
		case "src_ip":
			m.Src = a.prefixes()
		case "dst_ip":
			m.Dst = a.prefixes()
		case "src_port":
			m.SPort = []dataplane.Range{value(a, parseTCPorts)}
		case "dst_port":
			m.DPort = []dataplane.Range{value(a, parseTCPorts)}
		default:
			f.common(w, a, t)
		}
	}
	if protocol == etherVLAN {
		matchProtocol(m, protocol)
		if inner == protocol {
			return
		}
	}
	matchProtocol(m, inner)
}

// dscp reads ip_tos of flower: a decimal number, or else hexadecimal; its mask is hexadecimal.
func (a *tcArgs) dscp(f *tcFilter) (r dataplane.Range) {
	w := a.next()
	text, mask, masked := strings.Cut(w, "/")
	v, err := strconv.ParseUint(text, 10, 8)
	if err != nil {
		v, err = strconv.ParseUint(strings.TrimPrefix(text, "0x"), 16, 8)
	}
	m := uint64(0xff)
	if masked && err == nil {
		m, err = strconv.ParseUint(strings.TrimPrefix(mask, "0x"), 16, 8)
	}
	r, ok := maskRange(uint32(v)>>2, uint32(m)>>2, 6)
	switch {
	case err != nil || !ok:
		a.fail("ip_tos %s is not understood", w)
	case m&3 == 3 && v&3 == 0:
		f.notes = append(f.notes, ecnNote)
	case m&3 != 0:
		a.fail("ip_tos %s compares the ECN bits too: write ip_tos %s/0xfc", w, text)
	}
	return r
}

func (a *tcArgs) prefixes() (list []netip.Prefix) {
	if p := value(a, parseTCPrefix); p.IsValid() && p.Bits() > 0 {
		list = append(list, p)
	}
	return list
}

// parseTCPorts reads a port, or a range.
func parseTCPorts(s string) (r dataplane.Range, err error) {
	first, last, isRange := strings.Cut(s, "-")
	from, err := parseTCNumber(first, 16)
	if err != nil {
		return r, err
	}
	to := from
	if isRange {
		to, err = parseTCNumber(last, 16)
	}
	r.First, r.Last = uint64(from), uint64(to)
	if err == nil && r.Last < r.First {
		err = fmt.Errorf("range %s is empty", s)
	}
	return r, err
}

// parseIPProto reads a protocol of IP for flower: a name, or a number, hexadecimal even without 0x
// (flower_parse_ip_proto).
func parseIPProto(s string) (uint32, error) {
	names := map[string]uint32{
		"tcp": 6, "udp": 17, "sctp": 132, "icmp": 1, "icmpv6": 58, "l2tp": 115, "esp": 50, "ah": 51,
	}
	if v, ok := names[s]; ok {
		return v, nil
	}
	return parseTCNumber("0x"+strings.TrimPrefix(s, "0x"), 8)
}

// sorted returns the filters of a parent in the order of evaluation.
func (d *tcDevice) sorted(parents ...uint32) (list []*tcFilter) {
	for _, f := range d.filters {
		if slices.Contains(parents, f.parent) {
			list = append(list, f)
		}
	}
	slices.SortStableFunc(list, func(a, b *tcFilter) int { return cmp.Compare(a.pref, b.pref) })
	return list
}
