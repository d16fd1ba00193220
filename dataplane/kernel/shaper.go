package kernel

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/cause"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/hook"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/qdisc"
)

// Shaper is a policy attached to an interface, in one direction. Attach makes
// one, Look finds those of others. Close releases this process's part of it.
type Shaper struct {
	About
	about           *ebpf.Map
	maps            *stateMaps
	hook            hook.Hook
	owner           lock                    // where this process attached it
	guard           func() error            // Config.Guard
	recordText      []byte                  // the record as it was read last
	finalLeafCounts map[uint16]qdisc.Counts // what HTB counted until Detach
	leases          leases
	encoded         *image // of the plan that Check was given last; nil once it is used

	// TookOver says that it was attached before, by another process.
	TookOver bool
	// Removed says what of earlier shapers was taken away, a line each.
	Removed []string
	// Notes say what the last change meant for budgets that others use, a line each.
	Notes []string
}

// Close releases what this process holds. A shaper that it attached and that
// is not pinned ends with it, unless it is a tc filter: Detach ends all.
func (s *Shaper) Close() {
	if l, ok := s.hook.(*hook.BPFLink); ok {
		l.Close()
	}
	s.leases.close()
	if s.maps != nil {
		s.maps.close()
	}
	s.about.Close()
	if s.owner.File != nil {
		s.owner.Close()
	}
}

// Info is what the shaper is.
func (s *Shaper) Info() *About { return &s.About }

// Attached says whether packets of the interface go through the program. A
// device of our own outlives the interface.
func (s *Shaper) Attached() (bool, error) {
	if s.hook == nil {
		return false, nil
	}
	id, err := s.hook.Program()
	if err != nil || id == 0 {
		return false, err
	}
	if s.Redirected() {
		gone, err := s.Gone()
		return !gone, err
	}
	return true, nil
}

// Gone says whether the interface is there no more: it was deleted, or moved to
// another network namespace. An error says nothing about it.
func (s *Shaper) Gone() (bool, error) {
	l, err := s.netInterface()
	if l == nil {
		return err == nil, err
	}
	s.Interface = l.Attrs().Name
	return false, nil
}

// link returns the interface, or nil without an error if it is gone.
func (s *Shaper) netInterface() (netlink.Link, error) {
	l, err := netlink.LinkByIndex(s.Index)
	switch {
	case cause.NoDevice(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("interface %s: %w", s.Interface, err)
	}
	return l, nil
}

// Owned says whether the process that attached the shaper is alive.
func (s *Shaper) Owned() (bool, error) {
	if s.owner.File != nil {
		return true, nil
	}
	return owned(s.iface(), s.Direction)
}

// Guarded says whether a process is there that rolls back, or cleans up, after the
// one that shapes.
func (s *Shaper) Guarded() bool { return guarded(s.iface()) }

// Outlives says whether something stays that the kernel does not remove when the
// process is killed.
func (s *Shaper) Outlives() bool {
	return !s.Pinned && (s.Place.Hook == hook.TC || s.GSOLimit != 0 || s.Pacer != "" || len(s.Budgets()) > 0) || !s.Until.IsZero()
}

// site takes the change lock of the interface.
func (s *Shaper) site() (*site, error) {
	st, err := openSite(s.iface())
	if err == nil {
		st.guard = s.guard
	}
	return st, err
}

// Detach removes the program and all else of ours in its direction, and puts back
// what was there before. The counters can still be read, until Close.
func (s *Shaper) Detach() error {
	if s.hook != nil { // at once, and whoever holds a lock
		if err := s.hook.Remove(); err == nil {
			s.hook = nil
		}
	}
	st, err := s.site()
	if err != nil {
		return err
	}
	return errors.Join(s.detachLocked(st), st.close())
}

// lift is Detach under the change lock.
func (s *Shaper) detachLocked(st *site) error {
	var err error
	if s.hook != nil {
		err = s.hook.Remove() // at once, and without a look at what else is there
	}
	s.finalLeafCounts, _ = s.leafCounts() // they go with HTB
	err = errors.Join(err, st.clear(s.Direction))
	s.Lost.add(st.Lost)
	s.hook, s.GSOLimit, s.Pacer = nil, 0, ""
	return err
}

// Check says what Reload would refuse, as dataplane.FieldErrors.
func (s *Shaper) Check(plan *dataplane.Plan) (err error) {
	if s.encoded, err = s.encode(plan, nil); err != nil {
		return err
	}
	return s.checkBudgets(s.encoded)
}

// encode encodes a plan for where the shaper is. ready is an image of the plan that
// nothing uses yet, or nil.
func (a *About) encode(plan *dataplane.Plan, ready *image) (*image, error) {
	pacer, err := choosePacer(a.Asked, plan)
	if err != nil {
		return nil, err
	}
	if a.needsOtherDevice(pacer, a.Dry) {
		return nil, Reattach.errorf("%s ingress: queues need a device of their own", a.Interface)
	}
	to := entryOf(a.Direction, Hook(a.Place.Hook), pacer)
	g := ready
	if g == nil || g.plan != plan || g.entry != to || g.asked != pacer {
		g, err = encode(plan, to, pacer)
	}
	if err == nil && a.Dry {
		g.pacer, g.constants.Pacer = "", 0 // nothing waits
	}
	return g, err
}

// elsewhere says whether a program with this pacer belongs on another device. A
// dry one has nothing wait.
func (a *About) needsOtherDevice(pacer Pacer, dry bool) bool {
	return a.Direction == Ingress && a.Place.Index != 0 && (pacer != "" && !dry) != a.Redirected()
}

// Reload replaces the policy, at once: no packet sees a part of it. A class
// that keeps its name keeps its counters, and the tokens of its meters, capped at
// the new bursts. A policy that does not compile changes nothing; after an
// *dataplane.ActiveError the new one is active. With a time in until, the policy before comes
// back then unless Confirm is called.
func (s *Shaper) Reload(plan *dataplane.Plan, label json.RawMessage, until time.Time) ([]dataplane.Change, error) {
	st, err := s.site()
	if err != nil {
		return nil, err
	}
	defer st.close()
	s.Removed = st.Removed
	if err := s.Refresh(); err != nil {
		return nil, err
	}
	next := s.About
	next.Label = label
	next.armRollback(s.rollbackGoal(), until)
	return s.install(st, plan, &next)
}

// ErrDetached says that a shaper is no longer attached: another process detached
// it, or its interface is gone (ErrGone).
var ErrDetached = errors.New("detached by another process")

// ErrGone is the ErrDetached of a shaper whose interface was deleted, or moved to
// another network namespace.
var ErrGone error = goneError{}

type goneError struct{}

func (goneError) Error() string { return "the interface is gone" }
func (goneError) Unwrap() error { return ErrDetached }

func (s *Shaper) detached() error {
	return fmt.Errorf("%s %v: %w", s.Interface, s.Direction, ErrDetached)
}

// Refresh reads again what another process may have changed. Any error but
// ErrDetached says nothing about the shaper.
func (s *Shaper) Refresh() error {
	err := s.refreshAttached()
	if err == nil {
		return nil
	}
	// The program of a deleted interface goes with it. Without this check it would
	// look as if another process had removed the program.
	switch l, e := s.netInterface(); {
	case e != nil:
		return e
	case l == nil:
		return fmt.Errorf("%s %v: %w", s.Interface, s.Direction, ErrGone)
	}
	return err
}

func (s *Shaper) refreshAttached() error {
	if s.hook == nil {
		return s.detached()
	}
	id, err := s.hook.Program()
	if err != nil {
		return err
	}
	if id == 0 {
		return s.findReattached()
	}
	if id == s.Program {
		return s.readRecord()
	}
	err = s.adoptAttached(attachment{hook.Attached{Place: s.Place, Program: id}})
	if errors.Is(err, unix.EPERM) {
		return nil // who may not look cannot have been overtaken by another
	}
	return err
}

// read reads the record again.
func (s *Shaper) readRecord() error {
	text, err := s.about.LookupBytes(uint32(0))
	if err == nil && bytes.Equal(text, s.recordText) {
		return nil
	}
	a, err := readAbout(s.about)
	if err != nil {
		return err
	}
	a.Program, a.Place, a.Interface = s.Program, s.Place, s.Interface
	s.About, s.recordText = *a, text
	return nil
}

// adopt takes over what is attached now in place of the program before.
func (s *Shaper) adoptAttached(now attachment) error {
	other, err := now.openShaper()
	if other == nil && err == nil || errors.Is(err, unix.ENOENT) {
		return s.detached()
	}
	if err != nil {
		return err
	}
	other.Interface = s.Interface
	s.About, s.about, other.about, s.recordText = other.About, other.about, s.about, nil
	s.hook, other.hook = other.hook, s.hook
	s.leases.lock.Lock()
	s.maps, other.maps = other.maps, s.maps // with what this process made, which may have been replaced
	s.leases.useStages(s.maps.leases, &s.About)
	s.leases.lock.Unlock()
	other.Close()
	return nil
}

// follow finds the program again if another process attached it anew (Repair).
func (s *Shaper) findReattached() error {
	list, err := attachments(s.Index, s.Direction)
	if errors.Is(err, unix.EPERM) {
		return s.detached()
	}
	if err != nil {
		return err
	}
	for _, a := range list {
		other, err := a.openShaper()
		if err != nil && !unusable(err) && !errors.Is(err, unix.ENOENT) {
			return err
		}
		if other == nil {
			continue
		}
		same := other.Since.Equal(s.Since) && other.iface() == s.iface()
		other.Close()
		if same {
			return s.adoptAttached(a)
		}
	}
	return s.detached()
}

// Stats returns the counters, as dataplane.Pipeline does, in the order of the
// policy's classes.
func (s *Shaper) Stats() ([]dataplane.ClassStats, error) {
	out, err := readStats(s.maps.counters, s.Classes)
	if err != nil {
		return nil, err
	}
	leaves, err := s.leafCounts()
	s.countQdiscDrops(out, leaves)
	return out, err
}

// Tokens returns the tokens of the meters, by stage of the Outline, in whole bytes or
// packets.
func (s *Shaper) Tokens() ([][2]int64, error) {
	now, err := monotonic()
	if err != nil {
		return nil, err
	}
	out := make([][2]int64, len(s.Stages))
	for i := range s.Stages {
		if out[i][0], out[i][1], err = readTokens(s.maps, &s.Stages[i].ShaperStage, now); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// Now is the time of leases: ns of CLOCK_MONOTONIC, as the programs have it.
func Now() int64 {
	now, err := monotonic()
	if err != nil {
		panic(err) // no kernel lacks it
	}
	return int64(now)
}

// monotonic is the programs' clock, in ns.
func monotonic() (uint64, error) {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		return 0, fmt.Errorf("clock: %w", err)
	}
	return uint64(t.Nano()), nil
}
