package kernel

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/hook"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/iface"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/image"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/qdisc"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/record"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/rundir"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/standby"
	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// Shaper is a policy attached to an interface in one direction. Attach returns a
// new one; Look and List find the shapers of all processes. The methods must not be
// called concurrently, except SetLease and Demand. The caller must call Close.
type Shaper struct {
	About
	generation
	hook            hook.Hook
	owner           rundir.Lock             // held if this process attached the shaper
	guard           func() error            // Config.Guard
	recordText      []byte                  // the record as last read
	finalLeafCounts map[uint16]qdisc.Counts // HTB's counts at Detach
	leases          image.Leases
	programs        *Programs            // Config.Programs
	encoded         *image.Image         // of the plan last passed to Check; nil after use
	index           *image.CustomerIndex // nil until SetCustomerPlans needs it
	restored        *image.CustomerTable // of Config.Restore; nil after Attach
	tree            knownTree
	retired         []retired

	// TookOver reports whether Attach took the shaper over from another process.
	TookOver bool
	// Removed lists the removed leftovers of earlier shapers, one line each.
	Removed []string
	// Notes lists the effects of the last change on shared budgets, and the unusable parts of
	// Config.Restore, one line each.
	Notes []string
}

// Close releases the resources of this process. It detaches a shaper that this process attached by
// a link and did not pin. A tc filter and a pinned link stay attached; Detach removes them.
func (s *Shaper) Close() {
	if s.staysAttached() {
		s.sharer = nil // the program needs the maps
	}
	closeHook(s.hook)
	s.leases.Close()
	s.index.Close()
	s.generation.close()
	if s.owner.File != nil {
		s.owner.Close()
	}
}

// staysAttached reports whether the program is still attached after Close.
func (s *Shaper) staysAttached() bool {
	_, isLink := s.hook.(*hook.BPFLink)
	if s.hook == nil || isLink && !s.Pinned {
		return false
	}
	id, err := s.hook.Program()
	return err != nil || id == s.Program
}

// closeHook closes this process's reference to a link. There is none for a tc filter.
func closeHook(h hook.Hook) {
	if l, ok := h.(*hook.BPFLink); ok {
		l.Close()
	}
}

// generation holds the maps of a loaded program. A change of the policy replaces all of them.
type generation struct {
	maps     *image.Maps // may be partly those of the previous generation
	about    *ebpf.Map   // the record
	readings *ebpf.Map
	sharer   *sharer // nil if the program is not shared, or by Shapers of another process
}

// close closes all maps. The kernel keeps those of an attached program.
func (g *generation) close() {
	if g.maps != nil {
		g.maps.Close()
	}
	g.about.Close()
	g.readings.Close()
	g.sharer.leave()
}

// closeUnused closes the maps not used by another generation.
func (g *generation) closeUnused(other *generation) {
	if g.maps != nil {
		g.maps.CloseExcept(other.maps)
	}
	g.about.Close()
	g.readings.Close()
	g.sharer.leave()
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
	switch name, err := iface.NameOf(s.Index); {
	case errors.As(err, new(*NoInterfaceError)):
		return true, nil
	case err != nil:
		return false, fmt.Errorf("interface %s: %w", s.Interface, err)
	default:
		s.Interface = name
	}
	return false, nil
}

// Owned reports whether the attaching process is alive.
func (s *Shaper) Owned() (bool, error) {
	if s.owner.File != nil {
		return true, nil
	}
	return rundir.HasOwner(s.Identity(), s.Direction)
}

// Guarded reports whether the interface has a guard: a process that performs rollbacks, and cleans
// up if the shaper's process is killed.
func (s *Shaper) Guarded() bool { return standby.HasGuard(s.Identity()) }

// Outlives reports whether a killed process would leave something to clean up or to
// roll back: a tc filter, a GSO limit, qdiscs, budget users or an armed rollback.
func (s *Shaper) Outlives() bool {
	return !s.Pinned &&
		(s.Place.Hook == hook.TC || s.GSOLimit != 0 || s.Pacer != "" || len(s.Budgets()) > 0) ||
		!s.Until.IsZero()
}

// lockSite takes the change lock of the interface.
func (s *Shaper) lockSite() (*site, error) {
	st, err := openSite(s.Identity())
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

// detachLocked is Detach for a caller holding the change lock.
func (s *Shaper) detachLocked(st *site) error {
	var err error
	if s.hook != nil {
		err = s.hook.Remove() // even if clear fails to list the attached programs
	}
	s.finalLeafCounts, _ = s.leafCounts() // clear removes HTB with its counters
	err = errors.Join(err, st.clear(s.Direction))
	s.Lost.Add(st.Lost)
	s.hook, s.GSOLimit, s.Pacer, s.Fair = nil, 0, "", ""
	return err
}

// Check reports whether Reload would accept the plan. The error joins
// dataplane.FieldErrors, and is a *hostbudget.ConflictError if the plan contradicts a shared budget.
// Check changes nothing. A Reload of the same plan reuses its work.
func (s *Shaper) Check(plan *compiled.Plan) (err error) {
	if s.encoded, err = image.EncodeFor(&s.About, plan, nil); err != nil {
		return err
	}
	return s.checkBudgets(s.encoded)
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
func (s *Shaper) Reload(
	plan *compiled.Plan, label json.RawMessage, until time.Time,
) ([]compiled.ClassChange, error) {
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
	next.ArmRollback(s.RollbackGoal(), until)
	return s.install(st, plan, &next)
}

// ErrDetached reports a shaper no longer attached: another process detached it, or its interface is
// gone. In the latter case the error is also ErrGone.
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
	err := whileReplaced(s.refreshAttached)
	if err == nil {
		return nil
	}
	// The kernel removes a program together with its interface. Without this check it
	// would look as if another process had removed the program.
	switch gone, e := s.Gone(); {
	case e != nil:
		return e
	case gone:
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

// readRecord reads the record of the program if it changed, and its queues.
func (s *Shaper) readRecord() error {
	text, err := s.about.LookupBytes(uint32(0))
	if err == nil && bytes.Equal(text, s.recordText) {
		return s.maps.ReadQueues(&s.About)
	}
	a, text, err := record.Read(s.about)
	if err != nil {
		return err
	}
	a.Program, a.Place, a.Interface = s.Program, s.Place, s.Interface
	s.About, s.recordText = *a, text
	return s.maps.ReadQueues(&s.About)
}

// adoptAttached makes s describe the program that is attached now, in place of its previous one.
func (s *Shaper) adoptAttached(now attachment) error {
	other, err := now.openShaper()
	if err != nil {
		return err
	}
	if other == nil {
		return s.detachedError()
	}
	other.Interface = s.Interface
	previous, link := s.generation, s.hook // even maps made by this process may have been replaced
	if other.Program == s.Program {        // attached anew
		other.sharer, previous.sharer = previous.sharer, nil
	}
	s.leases.Lock.Lock()
	s.About, s.recordText, s.generation, s.hook = other.About, other.recordText, other.generation, other.hook
	s.leases.UseStages(s.maps.Leases, &s.About)
	s.leases.Lock.Unlock()
	previous.close()
	closeHook(link)
	return nil
}

// findReattached finds the program again if another process attached it anew, as Repair does.
func (s *Shaper) findReattached() error {
	list, err := openAttached(s.Index, s.Direction)
	if errors.Is(err, unix.EPERM) {
		return s.detachedError()
	}
	if err != nil {
		return err
	}
	defer closeOpened(list)
	for _, o := range list {
		if o.shaper != nil && o.shaper.Since.Equal(s.Since) && o.shaper.Identity() == s.Identity() {
			return s.adoptAttached(o.attachment)
		}
	}
	return s.detachedError()
}
