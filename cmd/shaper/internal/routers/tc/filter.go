package tc

import (
	"cmp"
	"errors"
	"fmt"
	"math/bits"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/routers"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/routers/form"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// firstPref is the priority given by the kernel to the first filter without one. Later ones get the lowest
// priority in use from autoPref on, minus one, so they are evaluated before (tcf_auto_prio in
// net/sched/cls_api.c).
const (
	firstPref = 0xc000
	autoPref  = 0x8000
)

// filterRead is a filter that is read.
type filterRead struct {
	*tcFilter
	link     meter.Rate
	inner    uint32 // EtherType behind a VLAN tag; 0: not compared
	options  int    // parts behind the kind
	h        tcHeader
	compared bool   // it has a match
	family   uint32 // EtherType of the header that it compares
}

// filterWords are the parts of a filter command.
var filterWords = &routers.Reader[*filterRead]{
	Kinds: &kinds, Statements: slices.Concat(filterOptions, u32Words, actionWords),
}

// filterOptions are the parts without the matches of u32 and the actions.
var filterOptions = []routers.Statement[*filterRead]{
	{Form: "estimator <word> <word>"},
	{Form: "(skip_hw | verbose | no_percpu)"},
	{Form: "(index | cookie | hw_stats) <word>"},
	{Form: "(preference~ | priority~) <u16:pref>", Do: (*filterRead).take},
	{Form: "protocol~ <protocol>", Do: (*filterRead).take},
	{Form: "(root:root | ingress:ingress | egress:egress)", Do: (*filterRead).take},
	{Form: "parent <classid:parent>", Do: (*filterRead).take},
	{Form: "handle <word:handle>", Do: (*filterRead).take},
	{Form: "chain~ <number:chain>", Do: (*filterRead).take},
	{Form: "(u32:kind | flower:kind | matchall:kind | basic:kind | fw:kind)", Do: (*filterRead).take},
	{Form: "(flowid | classid~) <classid:class>", Do: (*filterRead).take},
	{Form: "<foreign:foreign> [<word>...]", Do: (*filterRead).take},
	{Form: "skip_sw", Reason: "skip_sw: only hardware would see it"},
	{Form: "vlan_ethtype <protocol:vlan_ethtype>", Do: (*filterRead).flower},
	{Form: "vlan_id <u12:vlan>", Do: (*filterRead).flower},
	{Form: "vlan_prio <u3:pcp>", Do: (*filterRead).flower},
	{Form: "ip_proto <ipproto:proto>", Do: (*filterRead).flower},
	{Form: "ip_tos <word:tos>", Do: (*filterRead).flower},
	{Form: "src_ip <prefix:src>", Do: (*filterRead).flower},
	{Form: "dst_ip <prefix:dst>", Do: (*filterRead).flower},
	{Form: "src_port <ports:sport>", Do: (*filterRead).flower},
	{Form: "dst_port <ports:dport>", Do: (*filterRead).flower},
}

// take takes the values of a part of the command.
func (f *filterRead) take(l routers.Line, v form.Values) error {
	if f.kind != "" {
		f.options++
	}
	for _, x := range v {
		switch x.Name {
		case "pref":
			if f.kind != "" {
				return fmt.Errorf("%s of an action cannot be expressed", l.Words[0])
			}
			f.pref = x.Value.(uint32)
		case "protocol":
			f.protocol = x.Value.(uint32)
		case "root":
			f.parent = tcRoot
		case "ingress":
			f.parent = tcClsactIn
		case "egress":
			f.parent = tcClsactOut
		case "parent":
			f.parent = x.Value.(uint32)
		case "handle":
			f.handle = x.Value.(string)
		case "class":
			f.class = x.Value.(uint32)
		case "kind":
			f.kind = x.Value.(string)
		case "chain":
			if n := x.Value.(uint32); n != 0 {
				return fmt.Errorf("chain %d: chains of filters cannot be expressed", n)
			}
		case "foreign":
			what := "filter"
			if f.kind != "" {
				what = "action"
			}
			return fmt.Errorf("%s %s cannot be expressed", what, l.Words[0])
		}
	}
	return nil
}

// filter reads a filter command after its verb.
func (t *tcImport) filter(d *tcDevice, c tcCommand, verb string, words routers.Line) error {
	f := &filterRead{tcFilter: &tcFilter{tcCommand: c, parent: tcRoot, protocol: etherAll}, link: t.link}
	err := filterWords.ReadEach(f, words)
	if f.parent&majorMask == ingressHandle && f.parent != tcRoot && f.parent != tcClsactOut {
		f.parent = tcClsactIn // ffff: and, of the qdisc ingress, any ffff:x (ingress_tcf_block)
	}
	for _, q := range d.qdiscs {
		if f.parent == tcRoot && q.parent == tcRoot && q.handle != 0 {
			f.parent = q.handle
		}
	}
	other := d.otherKind(f.tcFilter, f.protocol)
	switch {
	case verb == "delete" && err == nil && f.protocol != etherAll && (f.pref == 0 || other != nil):
		d.note(c.Line, "tc rejects it, and it has no effect: its protocol needs the priority of filters of this protocol")
		return nil
	case verb == "delete" && err == nil:
		return d.deleteFilters(f)
	case other != nil && verb != "delete":
		d.note(c.Line, "tc rejects it, and it has no effect: the filters of its priority have another protocol or kind, from line %d",
			other.Number)
		return nil
	case verb == "change" && f.handle == "":
		return errors.New("tc changes the filter of a handle: handle is missing")
	case err == nil:
		err = f.complete()
	}
	if err != nil {
		return err
	}
	if f.kind == "u32" && f.class == 0 && f.actions == nil {
		d.note(c.Line, "it has no effect: a u32 filter without flowid and action passes packets to the next filter")
		f.idle = true
	}
	f.bound = slices.ContainsFunc(d.classes, func(k *tcClass) bool { return k.id == f.class })
	for i, a := range f.actions {
		if a.police == nil || a.police.index == 0 {
			continue
		}
		if first := t.indexed[a.police.index]; first != nil { // the kernel keeps its parameters
			f.actions[i].police = first
		} else {
			t.indexed[a.police.index] = a.police
		}
	}
	if f.pref == 0 {
		f.pref = firstPref
		for _, o := range d.filters {
			if o.parent == f.parent && o.pref >= autoPref {
				f.pref = min(f.pref, o.pref-1)
			}
		}
		if f.pref < autoPref {
			d.note(c.Line, "tc rejects it, and it has no effect: priority %d is in use, the lowest that it gives itself", autoPref)
			return nil
		}
	}
	at := slices.IndexFunc(d.filters, f.same)
	switch {
	case at < 0 && verb == "change":
		return errors.New("there is no such filter to change")
	case at < 0:
		d.filters = append(d.filters, f.tcFilter)
	case verb == "add":
		d.note(c.Line, "tc rejects it, and it has no effect: line %d has a filter with its handle", d.filters[at].Number)
	default:
		d.filters[at] = f.tcFilter
	}
	return nil
}

// same reports whether another filter has the place and the handle of this one.
func (f *filterRead) same(o *tcFilter) bool {
	return f.handle != "" && o.parent == f.parent && o.pref == f.pref && o.handle == f.handle
}

// complete converts what was read to a match.
func (f *filterRead) complete() error {
	protocol := f.protocol
	switch f.kind {
	case "":
		return errors.New("the kind of the filter is missing")
	case "u32":
		return f.u32()
	case "fw":
		if err := f.fw(); err != nil {
			return err
		}
	case "flower":
		if protocol == etherVLAN {
			matchProtocol(&f.match, protocol)
			if f.inner == 0 {
				return nil
			}
			protocol = f.inner
		}
	}
	matchProtocol(&f.match, protocol)
	return nil
}

// otherKind returns a filter of the same parent and priority with another protocol or kind, or nil.
func (d *tcDevice) otherKind(f *tcFilter, protocol uint32) *tcFilter {
	for _, o := range d.filters {
		other := o.protocol != protocol || f.kind != "" && o.kind != f.kind
		if f.pref != 0 && o.parent == f.parent && o.pref == f.pref && other {
			return o
		}
	}
	return nil
}

// deleteFilters handles tc filter del of all filters of a parent, or of those with a priority.
func (d *tcDevice) deleteFilters(f *filterRead) error {
	if (f.options > 0 || f.handle != "" || f.compared) && len(d.filters) > 0 {
		return errors.New("the deletion of a single filter is not understood")
	}
	d.filters = slices.DeleteFunc(d.filters, func(o *tcFilter) bool {
		return o.parent == f.parent && (f.pref == 0 || o.pref == f.pref)
	})
	return nil
}

// fw reads the handle of a fw filter: a mark, with an optional mask.
func (f *filterRead) fw() error {
	number, mask, masked := strings.Cut(f.handle, "/")
	v, err := parseTCNumber(number, 32)
	m := uint32(1<<32 - 1)
	if masked && err == nil {
		m, err = parseTCNumber(mask, 32)
	}
	if err != nil {
		return err
	}
	if v&^m != 0 {
		return fmt.Errorf("handle %s matches nothing: the mark has bits outside of the mask", f.handle)
	}
	r, ok := maskRange(v, m, 32)
	if low := bits.TrailingZeros32(^m); !ok && m == 1<<low-1 { // the low bits of the mark
		f.notes = append(f.notes, fmt.Sprintf("the other bits of the mark are compared too: it must be %d", v&m))
		r, ok = dataplane.Range{First: uint64(v & m), Last: uint64(v & m)}, true
	}
	if !ok {
		return fmt.Errorf("handle %s is not a range of marks", f.handle)
	}
	f.match.Mark = []dataplane.Range{r}
	return nil
}

// flower takes an option of a flower filter.
func (f *filterRead) flower(l routers.Line, v form.Values) error {
	if f.kind != "flower" {
		return fmt.Errorf("%q is not understood", l.Words[0])
	}
	f.options++
	m := &f.match
	switch value := v[0].Value; v[0].Name {
	case "vlan_ethtype":
		f.inner = value.(uint32)
	case "vlan":
		m.VLAN = single(value.(uint32))
	case "pcp":
		m.PCP = single(value.(uint32))
	case "proto":
		m.Proto = single(value.(uint32))
	case "tos":
		return f.tos(value.(string))
	case "src":
		m.Src = prefixes(value.(netip.Prefix))
	case "dst":
		m.Dst = prefixes(value.(netip.Prefix))
	case "sport":
		m.SPort = []dataplane.Range{value.(dataplane.Range)}
	case "dport":
		m.DPort = []dataplane.Range{value.(dataplane.Range)}
	}
	return nil
}

// tos reads ip_tos of flower: a decimal number, or else hexadecimal; its mask is hexadecimal.
func (f *filterRead) tos(w string) error {
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
		return fmt.Errorf("ip_tos %s is not understood", w)
	case m&3 == 3 && v&3 == 0:
		f.notes = append(f.notes, ecnNote)
	case m&3 != 0:
		return fmt.Errorf("ip_tos %s compares the ECN bits too: write ip_tos %s/0xfc", w, text)
	}
	f.match.DSCP = append(f.match.DSCP, r)
	return nil
}

// prefixes returns a list of a prefix, or nil for all addresses.
func prefixes(p netip.Prefix) []netip.Prefix {
	if p.Bits() == 0 {
		return nil
	}
	return []netip.Prefix{p}
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
		if slices.Contains(parents, f.parent) && !f.idle {
			list = append(list, f)
		}
	}
	var masks []string // of flower, in the order of their first filters: the kernel looks them up one by one
	place := func(f *tcFilter) int {
		if f.kind != "flower" {
			return 0
		}
		mask := flowerMask(&f.match)
		if !slices.Contains(masks, mask) {
			masks = append(masks, mask)
		}
		return slices.Index(masks, mask)
	}
	places := map[*tcFilter]int{}
	for _, f := range list {
		places[f] = place(f)
	}
	slices.SortStableFunc(list, func(a, b *tcFilter) int {
		return cmp.Or(cmp.Compare(a.pref, b.pref), places[a]-places[b])
	})
	return list
}

// flowerMask tells which bits a match compares.
func flowerMask(m *dataplane.Match) (s string) {
	for _, p := range slices.Concat(m.Src, m.Dst) {
		s += fmt.Sprintf("%v/%d ", p.Addr().Is6(), p.Bits())
	}
	for _, f := range dataplane.MatchFields {
		for _, r := range *f.List(m) {
			size := r.Last - r.First
			if strings.HasSuffix(f.Name, "port") { // ranges of ports have one mask
				size = min(size, 1)
			}
			s += fmt.Sprintf("%s:%d ", f.Name, size)
		}
	}
	return fmt.Sprint(len(m.Src), s)
}
