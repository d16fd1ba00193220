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

// Shaper is a policy attached to an interface in one direction. Attach returns a
// new one; Look and List find the shapers of all processes. The methods must not be
// called concurrently, except SetLease and Asked. The caller must call Close.
type Shaper struct {
	About
	about, readings *ebpf.Map
	maps            *stateMaps
	hook            hook.Hook
	owner           lock                    // held if this process attached the shaper
	guard           func() error            // Config.Guard
	recordText      []byte                  // the record as last read
	finalLeafCounts map[uint16]qdisc.Counts // HTB's counts at Detach
	leases          leases
	encoded         *image         // of the plan last passed to Check; nil after use
	index           *customerIndex // nil until SetCustomerPlans needs it
	restored        *customerTable // of Config.Restore; nil after Attach

	// TookOver reports whether Attach took the shaper over from another process.
	TookOver bool
	// Removed lists the removed leftovers of earlier shapers, one line each.
	Removed []string
	// Notes lists the effects of the last change on shared budgets, and what of Config.Restore
	// could not be used, one line each.
	Notes []string
}

// Close releases the resources of this process. It detaches a shaper that this
// process attached by a link and did not pin. A tc filter and a pinned link stay
// attached; Detach removes them.
func (s *Shaper) Close() {
	if l, ok := s.hook.(*hook.BPFLink); ok {
		l.Close()
	}
	s.leases.close()
	s.index.close()
	if s.maps != nil {
		s.maps.close()
	}
	s.about.Close()
	s.readings.Close()
	if s.owner.File != nil {
		s.owner.Close()
	}
}

// Info returns the description of the shaper, which Refresh updates.
func (s *Shaper) Info() *About { return &s.About }

// Attached reports whether packets of the interface run through the program: it is
// attached, and the interface exists.
func (s *Shaper) Attached() (bool, error) {
	if s.hook == nil {
		return false, nil
	}
	id, err := s.hook.Program()
	if err != nil || id == 0 {
		return false, err
	}
	if s.Redirected() { // the ifb device outlives the interface
		gone, err := s.Gone()
		return !gone, err
	}
	return true, nil
}

// Gone reports whether the interface was deleted or moved to another network
// namespace. On an error the result is meaningless. Gone updates the interface's name.
func (s *Shaper) Gone() (bool, error) {
	l, err := s.netInterface()
	if l == nil {
		return err == nil, err
	}
	s.Interface = l.Attrs().Name
	return false, nil
}

// netInterface returns the interface, or nil without an error if it is gone.
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

// Owned reports whether the process that attached the shaper is alive.
func (s *Shaper) Owned() (bool, error) {
	if s.owner.File != nil {
		return true, nil
	}
	return hasOwner(s.iface(), s.Direction)
}

// Guarded reports whether the interface has a guard: a process that performs rollbacks,
// and cleans up if the shaper's process is killed.
func (s *Shaper) Guarded() bool { return hasGuard(s.iface()) }

// Outlives reports whether a killed process would leave something to clean up or to
// roll back: a tc filter, a GSO limit, qdiscs, budget users or an armed rollback.
func (s *Shaper) Outlives() bool {
	return !s.Pinned && (s.Place.Hook == hook.TC || s.GSOLimit != 0 || s.Pacer != "" || len(s.Budgets()) > 0) || !s.Until.IsZero()
}

// lockSite takes the change lock of the interface.
func (s *Shaper) lockSite() (*site, error) {
	st, err := openSite(s.iface())
	if err == nil {
		st.guard = s.guard
	}
	return st, err
}

// Detach removes the program, its qdiscs and everything else of shaper in the same
// direction, and restores the interface's previous settings. Queued packets get one
// second to drain. Counters can be read until Close. After an error the program may
// be detached already; Detach can be called again.
func (s *Shaper) Detach() error {
	if s.hook != nil { // at once, even if another process holds the change lock
		if err := s.hook.Remove(); err == nil {
			s.hook = nil
		}
	}
	st, err := s.lockSite()
	if err != nil {
		return err
	}
	return errors.Join(s.detachLocked(st), st.close())
}

// detachLocked is Detach for a caller that holds the change lock.
func (s *Shaper) detachLocked(st *site) error {
	var err error
	if s.hook != nil {
		err = s.hook.Remove() // even if clear fails to list the attached programs
	}
	s.finalLeafCounts, _ = s.leafCounts() // clear removes HTB with its counters
	err = errors.Join(err, st.clear(s.Direction))
	s.Lost.add(st.Lost)
	s.hook, s.GSOLimit, s.Pacer, s.Fair = nil, 0, "", ""
	return err
}

// Check reports whether Reload would accept the plan. The error joins
// dataplane.FieldErrors, and is a *BudgetError if the plan contradicts a shared budget.
// Check changes nothing. A Reload of the same plan reuses its work.
func (s *Shaper) Check(plan *dataplane.Plan) (err error) {
	if s.encoded, err = s.encode(plan, nil); err != nil {
		return err
	}
	return s.checkBudgets(s.encoded)
}

// encode encodes a plan for the shaper's hook and direction. ready is an unused image
// that encode may return if it fits, or nil.
func (a *About) encode(plan *dataplane.Plan, ready *image) (*image, error) {
	source := plan
	plan = plan.For(a.Direction)
	pacer, err := choosePacer(a.Asked, plan)
	if err != nil {
		return nil, err
	}
	if a.needsOtherDevice(pacer, a.Dry) {
		return nil, Reattach.errorf("%s ingress: a policy with queues needs an ifb device, one without needs none", a.Interface)
	}
	to := entryOf(a.Direction, Hook(a.Place.Hook), pacer)
	g := ready
	if g == nil || g.source != source || g.entry != to || g.asked != pacer {
		if g, err = encode(plan, to, pacer); err == nil {
			g.source = source
		}
	}
	if err == nil && a.Dry {
		g.pacer, g.fair, g.constants.Pacer = "", "", 0 // a dry run queues nothing
	}
	return g, err
}

// needsOtherDevice reports whether a program with this pacer must be attached to
// another device: at ingress, a program with queues runs on an ifb device. A dry run
// queues nothing.
func (a *About) needsOtherDevice(pacer Pacer, dry bool) bool {
	return a.Direction == Ingress && a.Place.Index != 0 && (pacer != "" && !dry) != a.Redirected()
}

// Reload replaces the policy atomically: each packet sees either the previous policy
// or the new one. Classes with the same name keep their counters and the tokens of
// their meters, capped at the new bursts. The changes list the classes of both
// policies. label replaces Config.Label.
//
// If until is not zero, it arms a rollback: unless Confirm is called by then, RollBack
// restores the previous policy.
//
// After a *dataplane.ActiveError the new policy is active. After any other error the
// previous policy is. The error wraps ErrDetached if the shaper is no longer attached,
// and joins dataplane.FieldErrors if the kernel plane rejects the plan.
func (s *Shaper) Reload(plan *dataplane.Plan, label json.RawMessage, until time.Time) ([]dataplane.Change, error) {
	st, err := s.lockSite()
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

// ErrDetached reports that the shaper is no longer attached: another process detached
// it, or its interface is gone. In the latter case the error is also ErrGone.
var ErrDetached = errors.New("detached by another process")

// ErrGone reports that the shaper's interface was deleted or moved to another network
// namespace. It wraps ErrDetached.
var ErrGone error = goneError{}

type goneError struct{}

func (goneError) Error() string { return "the interface is gone" }
func (goneError) Unwrap() error { return ErrDetached }

func (s *Shaper) detachedError() error {
	return fmt.Errorf("%s %v: %w", s.Interface, s.Direction, ErrDetached)
}

// Refresh reads the shaper's record again, which other processes may have changed.
// The error wraps ErrDetached if the shaper is no longer attached. After any other
// error its state is unknown.
func (s *Shaper) Refresh() error {
	err := s.refreshAttached()
	if err == nil {
		return nil
	}
	// The kernel removes a program together with its interface. Without this check it
	// would look as if another process had removed the program.
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
		return s.detachedError()
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
		return nil // without CAP_SYS_ADMIN the new program cannot be read: keep the previous state
	}
	return err
}

// readRecord reads the record of the program if it has changed, and its queues.
func (s *Shaper) readRecord() error {
	text, err := s.about.LookupBytes(uint32(0))
	if err == nil && bytes.Equal(text, s.recordText) {
		return s.readQueues()
	}
	a, text, err := readAbout(s.about)
	if err != nil {
		return err
	}
	a.Program, a.Place, a.Interface = s.Program, s.Place, s.Interface
	s.About, s.recordText = *a, text
	return s.readQueues()
}

// adoptAttached makes s describe the program that is attached now, in place of its
// previous one.
func (s *Shaper) adoptAttached(now attachment) error {
	other, err := now.openShaper()
	if other == nil && err == nil || errors.Is(err, unix.ENOENT) {
		return s.detachedError()
	}
	if err != nil {
		return err
	}
	other.Interface = s.Interface
	s.About, s.about, other.about, s.recordText = other.About, other.about, s.about, other.recordText
	s.readings, other.readings = other.readings, s.readings
	s.hook, other.hook = other.hook, s.hook
	s.leases.lock.Lock()
	s.maps, other.maps = other.maps, s.maps // even maps that this process made may have been replaced
	s.leases.useStages(s.maps.leases, &s.About)
	s.leases.lock.Unlock()
	other.Close()
	return nil
}

// findReattached finds the program again if another process has attached it anew, as
// Repair does.
func (s *Shaper) findReattached() error {
	list, err := attachments(s.Index, s.Direction)
	if errors.Is(err, unix.EPERM) {
		return s.detachedError()
	}
	if err != nil {
		return err
	}
	for _, a := range list {
		other, err := a.openShaper()
		if err != nil && !isUnusable(err) && !errors.Is(err, unix.ENOENT) {
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
	return s.detachedError()
}

// Stats returns the counters of each class, in the order of the policy, followed by
// those of unclassified packets, as dataplane.Pipeline.Stats does.
func (s *Shaper) Stats() ([]dataplane.ClassStats, error) {
	leaves, err := s.leafCounts()
	if err != nil {
		return nil, err
	}
	return s.stats(leaves)
}

func (s *Shaper) stats(leaves map[uint16]qdisc.Counts) ([]dataplane.ClassStats, error) {
	out, err := readStats(s.maps.counters, s.Slots)
	if err != nil {
		return nil, err
	}
	s.countQdiscDrops(out, leaves)
	return out, nil
}

// Tokens returns the current tokens of both buckets of each meter, in whole bytes or
// packets, indexed by stage of the Outline.
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
