package hook

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/qdisc"
)

// Filter is a tc filter of any kind, in chain 0.
type Filter struct {
	Kind     string
	Priority uint16
	Handle   uint32
}

func (f Filter) String() string { return fmt.Sprintf("tc filter %s pref %d", f.Kind, f.Priority) }

// Redirects reports whether a filter is our redirect to an ifb, by its priority and number.
// Older versions had two of them.
func (f Filter) Redirects() bool {
	number := f.Handle & 0xfff
	return f.Kind == "u32" && f.Priority == redirectPriority &&
		(number == redirectNumber || number == redirectNumber+1)
}

// FiltersInOrder returns the filters of chain 0 of one direction, in the order in which they
// run. Every packet starts in chain 0.
func FiltersInOrder(index int, parent uint32) ([]Filter, error) {
	var list [][]byte
	var err error = netlink.ErrDumpInterrupted
	for errors.Is(err, netlink.ErrDumpInterrupted) { // something changed during the dump
		r := nl.NewNetlinkRequest(unix.RTM_GETTFILTER, unix.NLM_F_DUMP)
		r.AddData(&nl.TcMsg{Family: nl.FAMILY_ALL, Ifindex: int32(index), Parent: parent})
		list, err = r.Execute(unix.NETLINK_ROUTE, 0)
	}
	if err != nil {
		return nil, fmt.Errorf("list tc filters: %w", err)
	}
	var out []Filter
	for _, b := range list {
		m := nl.DeserializeTcMsg(b)
		attrs, err := qdisc.Attributes(b[nl.SizeofTcMsg:])
		if err != nil {
			return nil, err
		}
		if chain := attrs[nl.TCA_CHAIN]; len(chain) >= 4 && binary.NativeEndian.Uint32(chain) != 0 {
			continue
		}
		kind, _, _ := bytes.Cut(attrs[nl.TCA_KIND], []byte{0})
		f := Filter{string(kind), uint16(m.Info >> 16), m.Handle}
		if f.Handle == 0 || f.Kind == "u32" && f.Handle&0xfff == 0 {
			continue // the head of a list, or a hash table of u32
		}
		out = append(out, f)
	}
	return out, nil
}

// TCXPrograms returns the TCX programs of a device in one direction, in the order in which they
// run. It returns none if the kernel lacks TCX or the device is gone.
func TCXPrograms(index int, ingress bool) ([]link.AttachedProgram, error) {
	for {
		r, err := link.QueryPrograms(link.QueryOptions{Target: index, Attach: tcxType(ingress)})
		if errors.Is(err, unix.ENOSPC) {
			continue // a program was attached between counting and listing
		}
		// no program was ever attached, or no device
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENODEV) {
			return nil, nil
		}
		if errors.Is(err, ebpf.ErrNotSupported) || errors.Is(err, unix.EINVAL) { // no TCX
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		return r.Programs, nil
	}
}

// DescribeRun returns the names of TCX programs and a verb, such as "TCX program 7 (xyz)
// runs".
func DescribeRun(programs []link.AttachedProgram) string {
	var names []string
	for _, p := range programs {
		names = append(names, programName(p.ID))
	}
	if len(names) == 1 {
		return "TCX program " + names[0] + " runs"
	}
	return "TCX programs " + strings.Join(names, ", ") + " run"
}

// programName returns the ID of a program, with its name if it is readable.
func programName(id ebpf.ProgramID) string {
	p, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return fmt.Sprint(id)
	}
	defer p.Close()
	info, err := p.Info()
	if err != nil || info.Name == "" {
		return fmt.Sprint(id)
	}
	return fmt.Sprintf("%d (%s)", id, info.Name)
}
