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
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/image"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/qdisc"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/rundir"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/remedy"
)

// Problem is an unexpected condition around an attached shaper, usually made by another
// program.
type Problem struct {
	Found    string        // one sentence, without a period
	Remedy   remedy.Advice // "" if nothing repairs it
	Harmless bool          // packets are shaped nevertheless
	// The policy names something that was made after it was loaded. Renew loads it again, and so does Repair.
	Outdated bool
	fault    fault
}

// String returns the problem and its remedy.
func (p Problem) String() string {
	if p.Remedy == "" {
		return p.Found
	}
	return p.Found + ": " + string(p.Remedy)
}

// fault is a kind of problem. Repair distinguishes them.
type fault int

const (
	harmless      fault = iota
	interfaceAway       // the interface was deleted or moved to another network namespace
	hookGone            // the program is no longer attached
	notFirst            // another program of the same hook runs before ours
	foreignAhead        // another program runs before ours, and Repair cannot change that
	rootReplaced        // the root qdisc is not ours
	classMissing        // an HTB class was removed, or is below another one; or an FQ below mq was removed
	deadlineOver        // the deadline of the program passed
	deviceGone          // the ifb device was removed
	deviceDown          // the ifb device is down
	redirectGone        // the filter redirecting to the ifb device was removed
	gsoRaised           // the GSO limit is above ours
	cgroupNew           // a cgroup of the policy was created, perhaps again
)

// ErrChanging reports that another process is changing the shaper. The caller should
// try again later.
var ErrChanging = errors.New("another process is changing the shaper")

// Problems returns the reasons why some packets of the interface bypass the shaper,
// and other unusual conditions. It returns none in normal operation. After an error the
// condition is unknown; the error is ErrChanging while another process changes the
// shaper.
//
// Problems can be called for shapers of other processes. It costs a few netlink dumps
// and system calls.
func (s *Shaper) Problems() ([]Problem, error) {
	list, err := s.inspect()
	if err == nil && !slices.ContainsFunc(list, func(p Problem) bool { return !p.Harmless }) {
		return list, nil // a note may last, such as that of a service which is stopped
	}
	// Another process may be in the middle of a change: inspect again under the change lock.
	change, err := rundir.TryTakeChangeLock(s.Identity())
	if errors.Is(err, rundir.ErrLocked) {
		return nil, ErrChanging
	}
	if err != nil {
		return nil, fmt.Errorf("could not inspect the shaper: %w", err)
	}
	defer change.Close()
	if err := s.Refresh(); err != nil && !errors.Is(err, ErrDetached) {
		return nil, fmt.Errorf("could not inspect the shaper: %w", err)
	}
	if list, err = s.inspect(); err != nil {
		return nil, fmt.Errorf("could not inspect the shaper: %w", err)
	}
	return list, nil
}

// inspection collects the problems of one shaper.
type inspection struct {
	*Shaper
	found []Problem
}

func (i *inspection) addProblem(f fault, remedy remedy.Advice, format string, args ...any) {
	i.found = append(i.found, Problem{
		Found: fmt.Sprintf(format, args...), Remedy: remedy,
		Harmless: f == harmless, Outdated: f == cgroupNew, fault: f,
	})
}

func (s *Shaper) inspect() ([]Problem, error) {
	i := &inspection{Shaper: s}
	l, err := netlink.LinkByIndex(s.Index)
	if cause.NoDevice(err) {
		if id, _ := s.hook.Program(); id != 0 && !s.Redirected() {
			i.addProblem(interfaceAway, remedy.MoveBack,
				"interface %s was moved to another network namespace, with the program but without its qdiscs",
				s.Interface)
		} else {
			i.addProblem(interfaceAway, "", "interface %s is gone", s.Interface)
		}
		return i.found, nil
	}
	if err != nil {
		return nil, fmt.Errorf("interface %s: %w", s.Interface, err)
	}
	attrs := l.Attrs()
	if attrs.RawFlags&unix.IFF_UP == 0 {
		i.addProblem(harmless, "", "interface %s is down", s.Interface)
	}
	if s.Redirected() {
		if there, err := i.checkIFB(); !there || err != nil {
			return i.found, err
		}
	}
	id, err := i.checkProgram()
	if err != nil {
		return nil, err
	}
	if id != 0 && id != s.Program {
		return i.found, nil // reloaded, and this process must not read the new record: its qdiscs are unknown
	}
	if over, err := s.deadlinePassed(); err != nil {
		return nil, err
	} else if over {
		i.addProblem(deadlineOver, remedy.CallDetach, "its deadline has passed, and packets are not shaped")
	}
	if s.GSOLimit != 0 && attrs.GSOMaxSize > s.GSOLimit {
		i.addProblem(gsoRaised, remedy.CallRepair, "gso_max_size is %d bytes, not %d", attrs.GSOMaxSize,
			s.GSOLimit)
	}
	if err := i.checkCgroups(); err != nil {
		return nil, err
	}
	err = i.checkTree()
	return i.found, err
}

// checkCgroups checks whether the cgroups of the policy are those that the program knows.
func (i *inspection) checkCgroups() error {
	for _, c := range i.Cgroups {
		switch id, err := image.CgroupID(c.Path); {
		case err != nil:
			return fmt.Errorf("cgroup %w", err)
		case id == 0:
			i.addProblem(harmless, "", "cgroup %s does not exist: no packet belongs to it", c.Path)
		case id != c.ID:
			i.addProblem(cgroupNew, remedy.CallRenew, "cgroup %s was created after the policy was loaded", c.Path)
		}
	}
	return nil
}

// checkProgram checks whether the program is attached and runs first. It returns the ID of the
// attached program, or 0.
func (i *inspection) checkProgram() (ebpf.ProgramID, error) {
	at := i.Place
	h, linked := i.hook.(*hook.BPFLink)
	if !linked {
		return i.checkFilter()
	}
	info, err := h.Info()
	if err != nil {
		return 0, fmt.Errorf("link %d: %w", at.LinkID, err)
	}
	tcx, xdp := info.TCX(), info.XDP()
	if (tcx == nil || tcx.Ifindex == 0) && (xdp == nil || xdp.Ifindex == 0) {
		i.addProblem(hookGone, remedy.CallRepair, "the %s link of the program was detached", at.Hook)
		return 0, nil
	}
	if tcx == nil {
		return info.Program, nil // XDP runs only one program
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
		i.addProblem(notFirst, remedy.CallRepair, "%s before ours, which sees only packets that reach it",
			hook.DescribeRun(programs))
	}
	return info.Program, nil
}

// checkFilter is checkProgram for a tc filter.
func (i *inspection) checkFilter() (ebpf.ProgramID, error) {
	at := i.Place
	ingress := at.Parent == netlink.HANDLE_MIN_INGRESS
	if err := i.checkTCXAhead(at.Index, ingress, "our tc filter", remedy.UseTCX); err != nil {
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
		i.addProblem(hookGone, remedy.CallRepair, "the tc filter of shaper, pref %d, was removed",
			at.Priority)
		return 0, nil
	}
	if ours > 0 {
		i.addProblem(notFirst, remedy.CallRepair,
			"%v runs before ours, which sees only packets that reach it", list[0])
	}
	id, err := i.hook.Program()
	if err == nil && id == 0 {
		err = fmt.Errorf("tc filter pref %d: the kernel does not show its program", at.Priority)
	}
	return id, err
}

// checkTCXAhead reports TCX programs, which run before all tc filters.
func (i *inspection) checkTCXAhead(index int, ingress bool, ours string, remedy remedy.Advice) error {
	programs, err := hook.TCXPrograms(index, ingress)
	if err != nil {
		return err
	}
	if len(programs) > 0 {
		i.addProblem(foreignAhead, remedy, "%s before %s, which sees only packets that reach it",
			hook.DescribeRun(programs), ours)
	}
	return nil
}

// checkIFB checks the ifb device and its redirecting filter. It reports whether the device exists.
func (i *inspection) checkIFB() (bool, error) {
	l, err := netlink.LinkByIndex(i.Place.Index)
	if cause.NoDevice(err) {
		i.addProblem(deviceGone, remedy.CallRepair,
			"device %s is gone, and with it all packets that are redirected to it", hook.IFBName(i.Index))
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("device %s: %w", hook.IFBName(i.Index), err)
	}
	if l.Attrs().RawFlags&unix.IFF_UP == 0 {
		i.addProblem(deviceDown, remedy.CallRepair, "device %s is down and drops all packets", l.Attrs().Name)
	}
	list, err := hook.FiltersInOrder(i.Index, netlink.HANDLE_MIN_INGRESS)
	if err != nil {
		return false, err
	}
	ours := slices.IndexFunc(list, hook.Filter.Redirects)
	switch {
	case ours < 0:
		i.addProblem(redirectGone, remedy.CallRepair, "the filter that redirects packets to %s was removed",
			l.Attrs().Name)
	case ours > 0:
		i.addProblem(foreignAhead, remedy.Advice(
			fmt.Sprintf("remove it by tc filter del dev %s ingress pref %d", i.Interface, list[0].Priority)),
			"%v runs before the redirect to %s", list[0], l.Attrs().Name)
	}
	return true, i.checkTCXAhead(i.Index, true, "the redirect to "+l.Attrs().Name, "remove it")
}

// checkTree checks the qdiscs and classes of the queues.
func (i *inspection) checkTree() error {
	if i.Pacer == "" {
		return nil
	}
	index := i.Place.Index // the interface, or its ifb device
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
		i.addProblem(rootReplaced, remedy.CallRepair, "there is no root qdisc%s", on)
		return nil
	case root.Handle == 0:
		i.addProblem(rootReplaced, remedy.CallRepair,
			"the root qdisc%s is %s, the kernel's default, not ours", on, root.Kind)
		return nil
	case !root.Ours() || root.Kind != string(i.Pacer) && (i.Pacer != FQ || root.Kind != qdisc.MQ):
		i.addProblem(rootReplaced, remedy.CallRepair, "the root qdisc%s is %s %x:, not ours", on, root.Kind,
			root.Handle>>16)
		return nil
	}
	switch {
	case root.Kind == qdisc.MQ:
		all, missing, err := qdisc.MissingBelowMQ(index)
		if missing > 0 {
			i.addProblem(classMissing, remedy.CallRepair, "fq is missing at %d of %d hardware queues", missing, all)
		}
		return err
	case i.Pacer != HTB:
		return nil
	}
	there, err := qdisc.Classes(index)
	if err != nil {
		return err
	}
	var missing, moved []string
	for id, c := range i.expectedClasses() {
		switch parent, ok := there[id]; {
		case !ok:
			missing = append(missing, c.name)
		case parent != c.parent:
			moved = append(moved, c.name)
		}
	}
	leaves, err := i.missingLeaves(there)
	if err != nil {
		return err
	}
	if leaves > 0 {
		missing = append(missing, fmt.Sprintf("%d customers", leaves))
	}
	i.addClasses("are missing", missing)
	i.addClasses("are below other classes", moved)
	return nil
}

// missingLeaves returns the number of customers whose leaf is not among the classes there.
func (i *inspection) missingLeaves(there map[uint32]uint32) (n int, err error) {
	if i.leafDevice() == 0 {
		return 0, nil
	}
	leaves, err := i.maps.ReadLeaves(&i.About, 0)
	if err != nil {
		return 0, err
	}
	return leaves.Missing(there), nil
}

// addClasses adds a problem of the HTB classes of queues and links.
func (i *inspection) addClasses(problem string, names []string) {
	if len(names) > 0 {
		slices.Sort(names)
		i.addProblem(classMissing, remedy.CallRepair, "HTB classes %s: those of %s", problem,
			strings.Join(slices.Compact(names), ", "))
	}
}

// class is an HTB class of a queue or link.
type class struct {
	name   string
	parent uint32 // handle
}

// expectedClasses returns the HTB classes of queues and links, by handle.
func (i *inspection) expectedClasses() map[uint32]class {
	out := map[uint32]class{}
	addPair := func(name string, id uint32) { // two classes enforce a rate
		out[id], out[id|qdisc.Over] = class{name, id | qdisc.Over}, class{name, netlink.HANDLE_ROOT}
	}
	for at := range i.Queued {
		q, name := &i.Queued[at], "queue "+i.Outline.Queues[at].Name
		if q.Linked == 0 {
			addPair(name, q.ClassId)
			continue
		}
		link := qdisc.Handle(i.Links[i.Outline.Queues[at].Link])
		for id := range image.FlowIDs(&q.ShaperQueue) {
			out[qdisc.Handle(id)] = class{name, link}
		}
	}
	for at, id := range i.Links {
		name := "link " + i.Outline.Path(at)
		if above := i.Outline.LinkAbove(at); above < 0 {
			addPair(name, qdisc.Handle(id))
		} else {
			out[qdisc.Handle(id)] = class{name, qdisc.Handle(i.Links[above])}
		}
	}
	return out
}
