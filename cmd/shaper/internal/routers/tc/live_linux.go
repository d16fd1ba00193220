package tc

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/routers"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// Live returns the qdiscs, classes and filters of an interface as tc commands. Values are in the
// units of the kernel: bytes, µs, and bursts rounded to its ticks.
func (Dialect) Live(device string) (routers.Source, error) {
	link, err := netlink.LinkByName(device)
	if err != nil {
		return routers.Source{}, err
	}
	l := &liveTC{device: link.Attrs().Name, index: link.Attrs().Index}
	parents := []uint32{tcClsactIn, tcClsactOut}
	err = l.dump(unix.RTM_GETQDISC, 0, func(o *liveObject) {
		if o.handle == 0 { // the kernel's default
			return
		}
		if o.parent == tcIngress {
			l.line("qdisc add dev %s %s", l.device, o.kind)
			return
		}
		parents = append(parents, o.handle)
		l.qdisc(o)
	})
	if err != nil {
		return routers.Source{}, err
	}
	var classes []*liveObject
	if err := l.dump(unix.RTM_GETTCLASS, 0, func(o *liveObject) {
		if o.kind == "htb" {
			classes = append(classes, o)
		}
	}); err != nil {
		return routers.Source{}, err
	}
	l.classes(classes)
	for _, p := range parents {
		if err := l.dump(unix.RTM_GETTFILTER, p, func(o *liveObject) {
			if len(o.options) > 0 { // others are headers of their priority
				l.filter(o)
			}
		}); err != nil {
			return routers.Source{}, err
		}
	}
	if l.text.Len() == 0 {
		return routers.Source{}, errors.New("it has no qdisc, class or filter besides the kernel's default")
	}
	fmt.Fprintf(&l.text, "ip link set dev %s txqueuelen %d\n", l.device, link.Attrs().TxQLen)
	return routers.Source{Name: "interface " + l.device, Text: l.text.String()}, nil
}

// liveTC writes the traffic control of an interface.
type liveTC struct {
	device string
	index  int
	text   strings.Builder
}

// liveObject is a qdisc, a class or a filter in netlink's representation.
type liveObject struct {
	parent, handle, info uint32 // struct tcmsg
	kind                 string
	chain                uint32
	options              []byte
	stab                 liveAttrs
}

// dump calls f for each object of the interface.
func (l *liveTC) dump(message int, parent uint32, f func(*liveObject)) error {
	var list [][]byte
	var err error = netlink.ErrDumpInterrupted
	for range 10 { // something changed during the dump
		if !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
		r := nl.NewNetlinkRequest(message, unix.NLM_F_DUMP)
		r.AddData(&nl.TcMsg{Family: nl.FAMILY_ALL, Ifindex: int32(l.index), Parent: parent})
		list, err = r.Execute(unix.NETLINK_ROUTE, 0)
	}
	if errors.Is(err, unix.EINVAL) && message == unix.RTM_GETTFILTER {
		return nil // the qdisc is without filters, or there is no clsact
	}
	if err != nil {
		return fmt.Errorf("list qdiscs, classes and filters: %w", err)
	}
	for _, b := range list {
		if len(b) < nl.SizeofTcMsg {
			continue
		}
		m := nl.DeserializeTcMsg(b)
		if int(m.Ifindex) != l.index {
			continue
		}
		a := parseAttrs(b[nl.SizeofTcMsg:])
		f(&liveObject{
			parent: m.Parent, handle: m.Handle, info: m.Info,
			kind: a.text(nl.TCA_KIND), chain: a.u32(nl.TCA_CHAIN), options: a[nl.TCA_OPTIONS],
			stab: a.nested(nl.TCA_STAB),
		})
	}
	return nil
}

// line writes a command.
func (l *liveTC) line(format string, args ...any) { fmt.Fprintf(&l.text, "tc "+format+"\n", args...) }

// liveAttrs are netlink attributes by type. A missing attribute is zero.
type liveAttrs map[uint16][]byte

func parseAttrs(b []byte) liveAttrs {
	out := liveAttrs{}
	for len(b) >= unix.SizeofRtAttr {
		n := int(binary.NativeEndian.Uint16(b))
		if n < unix.SizeofRtAttr || n > len(b) {
			break
		}
		const flags = unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER
		out[binary.NativeEndian.Uint16(b[2:])&^flags] = b[unix.SizeofRtAttr:n]
		b = b[min((n+3)&^3, len(b)):]
	}
	return out
}

func (a liveAttrs) nested(t uint16) liveAttrs { return parseAttrs(a[t]) }

func (a liveAttrs) text(t uint16) string {
	s, _, _ := bytes.Cut(a[t], []byte{0})
	return string(s)
}

func (a liveAttrs) u8(t uint16) uint8   { return at(a[t], 0, 1)[0] }
func (a liveAttrs) u32(t uint16) uint32 { return u32(a[t], 0) }

func (a liveAttrs) u64(t uint16) uint64 { return binary.NativeEndian.Uint64(at(a[t], 0, 8)) }

// be16 is a number of 16 bits in network order.
func (a liveAttrs) be16(t uint16) uint16 { return binary.BigEndian.Uint16(at(a[t], 0, 2)) }

// at returns bytes of a struct, zeros if it is shorter.
func at(b []byte, offset, size int) []byte {
	if len(b) < offset+size {
		return make([]byte, size)
	}
	return b[offset : offset+size]
}

func u32(b []byte, offset int) uint32 { return binary.NativeEndian.Uint32(at(b, offset, 4)) }

// liveRate is a struct tc_ratespec.
type liveRate struct {
	bytes         uint64 // per second
	overhead, mpu uint16
	atm           bool
}

// rate reads a struct tc_ratespec at an offset, with the attribute for rates of 4 GB/s and more.
func (a liveAttrs) rate(b []byte, offset int, large uint16) liveRate {
	s := at(b, offset, 12)
	r := liveRate{
		bytes: uint64(u32(s, 8)), atm: s[1]&nl.TC_LINKLAYER_MASK == nl.LINKLAYER_ATM,
		overhead: binary.NativeEndian.Uint16(s[2:]), mpu: binary.NativeEndian.Uint16(s[6:]),
	}
	if v := a.u64(large); v > 0 {
		r.bytes = v
	}
	return r
}

// String writes the rate for tc.
func (r liveRate) String() string { return meter.ByteRate(int64(min(r.bytes, 1<<60))).String() }

// sizes writes the options of the length.
func (r liveRate) sizes() (s string) {
	if r.overhead > 0 {
		s += fmt.Sprintf(" overhead %d", r.overhead)
	}
	if r.mpu > 0 {
		s += fmt.Sprintf(" mpu %d", r.mpu)
	}
	if r.atm {
		s += " linklayer atm"
	}
	return s
}

// parentName writes a parent for a command.
func parentName(h uint32) string {
	if h == tcRoot {
		return "root"
	}
	return "parent " + handleName(h)
}

// classes writes classes, each behind its parent. The kernel lists them in another order.
func (l *liveTC) classes(list []*liveObject) {
	written := map[uint32]bool{tcRoot: true}
	for before := 0; before != len(list); {
		before = len(list)
		list = slices.DeleteFunc(list, func(o *liveObject) bool {
			if !written[o.parent] {
				return false
			}
			l.class(o)
			written[o.handle] = true
			return true
		})
	}
}

// class writes a class of htb: struct tc_htb_opt.
func (l *liveTC) class(o *liveObject) {
	a := parseAttrs(o.options)
	b := a[nl.TCA_HTB_PARMS]
	rate, ceil := a.rate(b, 0, nl.TCA_HTB_RATE64), a.rate(b, 12, nl.TCA_HTB_CEIL64)
	l.line("class add dev %s %s classid %s htb rate %v ceil %v burst %d cburst %d prio %d quantum %d%s",
		l.device, parentName(o.parent),
		handleName(o.handle), rate, ceil, bytesOfTicks(int64(rate.bytes), int64(u32(b, 24))),
		bytesOfTicks(int64(ceil.bytes), int64(u32(b, 28))),
		u32(b, 40), u32(b, 32), rate.sizes())
}

// qdisc writes a qdisc.
func (l *liveTC) qdisc(o *liveObject) {
	stab := ""
	if base := o.stab[1]; len(base) > 0 { // struct tc_sizespec
		stab = fmt.Sprintf(" stab overhead %d", int32(u32(base, 4)))
		if u32(base, 12) > 0 {
			stab += fmt.Sprintf(" mpu %d", u32(base, 12))
		}
		if u32(base, 8) == nl.LINKLAYER_ATM {
			stab += " linklayer atm"
		}
	}
	l.line("qdisc add dev %s %s handle %s%s %s%s", l.device, parentName(o.parent), handleName(o.handle), stab,
		o.kind, liveOptions(o))
}

// liveOptions writes the options of a qdisc.
func liveOptions(o *liveObject) (s string) {
	a, b := parseAttrs(o.options), o.options
	us := func(name string, t uint16) string { return fmt.Sprintf(" %s %dus", name, a.u32(t)) }
	switch o.kind {
	case "htb":
		glob := a[nl.TCA_HTB_INIT] // struct tc_htb_glob
		return fmt.Sprintf(" default %x r2q %d", u32(glob, 8), u32(glob, 4))
	case "tbf": // struct tc_tbf_qopt
		b = a[nl.TCA_TBF_PARMS]
		rate, peak := a.rate(b, 0, nl.TCA_TBF_RATE64), a.rate(b, 12, nl.TCA_TBF_PRATE64)
		s = fmt.Sprintf(" rate %v burst %d limit %d%s", rate,
			bytesOfTicks(int64(rate.bytes), int64(u32(b, 28))), u32(b, 24), rate.sizes())
		if peak.bytes > 0 {
			s += fmt.Sprintf(" peakrate %v", peak)
		}
		return s
	case "fq_codel", "codel":
		s = fmt.Sprintf(" limit %d", a.u32(2)) + us("target", 1) + us("interval", 3) +
			map[bool]string{true: " ecn", false: " noecn"}[a.u32(4) > 0]
		threshold := map[string]uint16{"fq_codel": nl.TCA_FQ_CODEL_CE_THRESHOLD, "codel": 5}[o.kind]
		if a[threshold] != nil {
			s += us("ce_threshold", threshold)
		}
		return s
	case "pfifo", "bfifo":
		return fmt.Sprintf(" limit %d", u32(b, 0))
	case "sfq": // struct tc_sfq_qopt_v1
		s = fmt.Sprintf(" limit %d", u32(b, 8))
		if n := u32(b, 28); n > 0 {
			s += fmt.Sprintf(" redflowlimit %d", n)
		}
		return s
	case "prio":
		return fmt.Sprintf(" bands %d", u32(b, 0))
	case "cake":
		return cakeOptions(a)
	}
	return "" // import names the kind
}

// cakeOptions writes the options of cake (TCA_CAKE_... in linux/pkt_sched.h).
func cakeOptions(a liveAttrs) string {
	pick := func(t uint16, names ...string) string {
		if v := a.u32(t); v < uint32(len(names)) {
			return names[v]
		}
		return fmt.Sprintf(" attribute-%d=%d", t, a.u32(t))
	}
	s := " unlimited"
	if v := a.u64(2); v > 0 {
		s = fmt.Sprintf(" bandwidth %v", liveRate{bytes: v})
	}
	s += pick(3, " diffserv3", " diffserv4", " diffserv8", " besteffort", " precedence")
	s += pick(5, " flowblind", " srchost", " dsthost", " hosts", " flows", " dual-srchost", " dual-dsthost",
		" triple-isolate")
	s += pick(4, "", " atm", " ptm")
	s += fmt.Sprintf(" rtt %dus", a.u32(7))
	if a[12] == nil { // not raw
		s += fmt.Sprintf(" overhead %d", int32(a.u32(6)))
	}
	if v := a.u32(14); v > 0 {
		s += fmt.Sprintf(" mpu %d", v)
	}
	if v := a.u32(10); v > 0 {
		s += fmt.Sprintf(" memlimit %d", v)
	}
	return s + pick(9, "", " autorate-ingress") + pick(13, "", " wash") + pick(15, "", " ingress") +
		pick(16, "", " ack-filter", " ack-filter-aggressive")
}
