package kernel

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/cause"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/hook"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/qdisc"
)

// Problem is something that another program changed around an attached shaper.
type Problem struct {
	Found  string // one sentence without a period
	Remedy Remedy // "" if nothing repairs it
	// Harmless says that packets are shaped all the same.
	Harmless bool
	fault    fault
}

// String returns what was found and what repairs it.
func (p Problem) String() string {
	if p.Remedy == "" {
		return p.Found
	}
	return p.Found + ": " + string(p.Remedy)
}

// fault is a kind of problem, as Repair distinguishes them.
type fault int

const (
	harmless     fault = iota
	away               // the interface is in another network namespace, or gone
	hookGone           // the program is attached no more
	notFirst           // another program of the same hook runs before ours
	ahead              // another program runs before ours, and Repair cannot change that
	rootReplaced       // the root qdisc is not ours
	classMissing       // of HTB
	expired            // the program does nothing since its deadline
	deviceGone         // the ifb device
	deviceDown         // the ifb device
	redirectGone       // the filter that redirects to the ifb device
	gsoRaised          // the GSO limit is above ours
)

// ErrChanging says that another process is changing the shaper: look again.
var ErrChanging = errors.New("another process is changing the shaper")

// Problems says why packets of the interface do not all go through the shaper,
// or what else is unusual about the interface; nothing in normal operation. An
// error says that it could not look, which is neither. It takes a few netlink
// dumps and system calls. It may be called for shapers of other processes.
func (s *Shaper) Problems() ([]Problem, error) {
	if list, err := s.inspect(); err == nil && len(list) == 0 {
		return nil, nil
	}
	// It may have been seen half changed: look again while nobody changes it.
	change, err := tryChangeLock(s.iface())
	if errors.Is(err, errLocked) {
		return nil, ErrChanging
	}
	if err != nil {
		return nil, fmt.Errorf("could not look: %w", err)
	}
	defer change.Close()
	if err := s.Refresh(); err != nil && !errors.Is(err, ErrDetached) {
		return nil, fmt.Errorf("could not look: %w", err)
	}
	list, err := s.inspect()
	if err != nil {
		return nil, fmt.Errorf("could not look: %w", err)
	}
	return list, nil
}

// inspection collects what is found of one shaper.
type inspection struct {
	*Shaper
	found []Problem
}

func (i *inspection) add(f fault, remedy Remedy, format string, args ...any) {
	i.found = append(i.found, Problem{Found: fmt.Sprintf(format, args...), Remedy: remedy, Harmless: f == harmless, fault: f})
}

func (s *Shaper) inspect() ([]Problem, error) {
	i := &inspection{Shaper: s}
	l, err := netlink.LinkByIndex(s.Index)
	if cause.NoDevice(err) {
		if id, _ := s.hook.Program(); id != 0 && !s.Redirected() {
			i.add(away, MoveBack, "interface %s was moved to another network namespace, with the program but without its qdiscs", s.Interface)
		} else {
			i.add(away, "", "interface %s is gone", s.Interface)
		}
		return i.found, nil
	}
	if err != nil {
		return nil, fmt.Errorf("interface %s: %w", s.Interface, err)
	}
	attrs := l.Attrs()
	if attrs.RawFlags&unix.IFF_UP == 0 {
		i.add(harmless, "", "interface %s is down", s.Interface)
	}
	if s.Redirected() {
		if there, err := i.device(); !there || err != nil {
			return i.found, err
		}
	}
	id, err := i.program()
	if err != nil {
		return nil, err
	}
	if id != 0 && id != s.Program {
		return i.found, nil // reloaded by a process that we may not look into: what belongs to it is not known
	}
	if over, err := s.deadlinePassed(); err != nil {
		return nil, err
	} else if over {
		i.add(expired, CallDetach, "its time is over, and packets pass unshaped")
	}
	if s.GSOLimit != 0 && attrs.GSOMaxSize > s.GSOLimit {
		i.add(gsoRaised, CallRepair, "gso_max_size is %d bytes, not %d", attrs.GSOMaxSize, s.GSOLimit)
	}
	err = i.tree()
	return i.found, err
}

// program looks at the hook. It returns the ID of the program there, 0 for none.
func (i *inspection) program() (ebpf.ProgramID, error) {
	at := i.Place
	h, linked := i.hook.(*hook.BPFLink)
	if !linked {
		return i.filter()
	}
	info, err := h.Info()
	if err != nil {
		return 0, fmt.Errorf("link %d: %w", at.LinkID, err)
	}
	tcx, xdp := info.TCX(), info.XDP()
	if (tcx == nil || tcx.Ifindex == 0) && (xdp == nil || xdp.Ifindex == 0) {
		i.add(hookGone, CallRepair, "the %s link of the program was detached", at.Hook)
		return 0, nil
	}
	if tcx == nil {
		return info.Program, nil // XDP takes one program
	}
	programs, err := hook.TCXPrograms(at.Index, ebpf.AttachType(tcx.AttachType) == ebpf.AttachTCXIngress)
	if err != nil {
		return 0, err
	}
	for n := range programs {
		if id, _ := programs[n].LinkID(); id == at.LinkID || programs[n].ID == info.Program {
			programs = programs[:n]
			break
		}
	}
	if len(programs) > 0 {
		i.add(notFirst, CallRepair, "%s before ours, which sees only packets that reach it", hook.DescribeRun(programs))
	}
	return info.Program, nil
}

// filter looks at a hook that is a tc filter.
func (i *inspection) filter() (ebpf.ProgramID, error) {
	at := i.Place
	ingress := at.Parent == netlink.HANDLE_MIN_INGRESS
	if err := i.tcxAhead(at.Index, ingress, "our tc filter", UseTCX); err != nil {
		return 0, err
	}
	list, err := hook.FiltersInOrder(at.Index, at.Parent)
	if err != nil {
		return 0, err
	}
	ours := slices.IndexFunc(list, func(f hook.Filter) bool {
		return f.Kind == "bpf" && f.Priority == at.Priority && f.Handle == at.Handle
	})
	if ours < 0 {
		i.add(hookGone, CallRepair, "the tc filter of shaper, pref %d, was removed", at.Priority)
		return 0, nil
	}
	if ours > 0 {
		i.add(notFirst, CallRepair, "%v runs before ours, which sees only packets that reach it", list[0])
	}
	id, err := i.hook.Program()
	if err == nil && id == 0 {
		err = fmt.Errorf("tc filter pref %d: its program is not shown", at.Priority)
	}
	return id, err
}

// tcxAhead looks for TCX programs in front of a tc filter.
func (i *inspection) tcxAhead(index int, ingress bool, ours string, remedy Remedy) error {
	programs, err := hook.TCXPrograms(index, ingress)
	if err != nil {
		return err
	}
	if len(programs) > 0 {
		i.add(ahead, remedy, "%s before %s, which sees only packets that reach it", hook.DescribeRun(programs), ours)
	}
	return nil
}

// device looks at the ifb device and at what redirects to it. It says whether
// the device is there.
func (i *inspection) device() (bool, error) {
	l, err := netlink.LinkByIndex(i.Place.Index)
	if cause.NoDevice(err) {
		i.add(deviceGone, CallRepair, "device %s is gone, and with it all packets that are redirected to it", hook.IFBName(i.Index))
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("device %s: %w", hook.IFBName(i.Index), err)
	}
	if l.Attrs().RawFlags&unix.IFF_UP == 0 {
		i.add(deviceDown, CallRepair, "device %s is down and drops all packets", l.Attrs().Name)
	}
	list, err := hook.FiltersInOrder(i.Index, netlink.HANDLE_MIN_INGRESS)
	if err != nil {
		return false, err
	}
	ours := slices.IndexFunc(list, hook.Filter.Redirects)
	switch {
	case ours < 0:
		i.add(redirectGone, CallRepair, "the filter that redirects packets to %s was removed", l.Attrs().Name)
	case ours > 0:
		i.add(ahead, Remedy(fmt.Sprintf("remove it by tc filter del dev %s ingress pref %d", i.Interface, list[0].Priority)),
			"%v runs before the redirect to %s", list[0], l.Attrs().Name)
	}
	return true, i.tcxAhead(i.Index, true, "the redirect to "+l.Attrs().Name, "remove it")
}

// tree looks at what holds the packets of queues.
func (i *inspection) tree() error {
	if i.Pacer == "" {
		return nil
	}
	index := i.Place.Index // of the interface, or of its ifb device
	root, err := qdisc.Root(index)
	if err != nil {
		return err
	}
	on := ""
	if i.Redirected() {
		on = " of " + hook.IFBName(i.Index)
	}
	switch {
	case root == nil:
		i.add(rootReplaced, CallRepair, "there is no root qdisc%s", on)
		return nil
	case root.Handle == 0:
		i.add(rootReplaced, CallRepair, "the root qdisc%s is %s, the kernel's default, not ours", on, root.Kind)
		return nil
	case !root.Ours() || root.Kind != string(i.Pacer):
		i.add(rootReplaced, CallRepair, "the root qdisc%s is %s %x:, not ours", on, root.Kind, root.Handle>>16)
		return nil
	}
	if i.Pacer != HTB {
		return nil
	}
	there, err := qdisc.Classes(index)
	if err != nil {
		return err
	}
	var missing []string
	for name, id := range i.expected() {
		if !there[id] || id&qdisc.Over == 0 && !there[id|qdisc.Over] && !i.inLink(id) {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		slices.Sort(missing)
		i.add(classMissing, CallRepair, "HTB classes are missing: those of %s", strings.Join(missing, ", "))
	}
	return nil
}

// expected are the handles of the HTB classes that the program selects, and
// those of links, by name.
func (i *inspection) expected() map[string]uint32 {
	out := map[string]uint32{}
	for at, q := range i.Queued {
		out["queue "+i.Outline.Queues[at].Name] = q.ClassId
	}
	for at, id := range i.Links {
		out["link "+i.Outline.Links[at]] = qdisc.Handle(id)
	}
	return out
}

// inLink says whether a class is the leaf of a link, which has no class of its
// own over it.
func (i *inspection) inLink(handle uint32) bool {
	return slices.ContainsFunc(i.Queued, func(q queueRecord) bool { return q.ClassId == handle && q.Linked != 0 })
}
