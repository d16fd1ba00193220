package kernel

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/hook"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/iface"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/qdisc"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/registry"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/rundir"
)

// site is an interface with its change lock held. Its methods make and remove everything
// that can outlive a process. They recognize leftovers by their properties, such as a
// qdisc's handle, and therefore also remove those of a killed process.
type site struct {
	iface.ID
	rundir.Journal
	change rundir.Lock
	gone   bool // the interface was deleted, or moved to another network namespace

	// guard is called before the first change that outlives the process, and is nil afterwards.
	guard    func() error
	Removed  []string  // descriptions of the removed objects, one line each
	Restored []string  // descriptions of the restored settings, one line each
	Notes    []string  // unexpected events, one line each
	Lost     Discarded // packets dropped with their queues
}

// openSite takes the change lock of an interface. The caller must call close.
func openSite(at iface.ID) (st *site, err error) {
	err = rundir.Retry(func() error {
		change, err := rundir.TakeChangeLock(at)
		if err == nil {
			st, err = lockedSite(at, change)
		}
		return err
	})
	return st, err
}

// lockedSite is openSite for a caller holding the change lock. It releases the lock on an error.
func lockedSite(at iface.ID, change rundir.Lock) (*site, error) {
	st := &site{ID: at, change: change}
	j, broken, err := rundir.ReadJournal(at)
	if err == nil {
		st.Journal = *j
		if broken != "" {
			st.Notes = append(st.Notes, broken)
		}
		_, err = iface.NameOf(at.Index)
		if errors.As(err, new(*NoInterfaceError)) {
			st.gone, err = true, nil
		}
	}
	if err != nil {
		return nil, errors.Join(err, change.Close())
	}
	return st, nil
}

func (st *site) close() error { return st.change.Close() }

// startGuard starts the guard, unless it is started or the caller has none.
func (st *site) startGuard() error {
	if st.guard == nil {
		return nil
	}
	err := st.guard()
	if err == nil {
		st.guard = nil
	}
	return err
}

// saveBeforeChange starts the guard and writes the journal. It is called before each change that
// outlives the process.
func (st *site) saveBeforeChange() error {
	if err := st.startGuard(); err != nil {
		return err
	}
	return st.SaveJournal(st.ID)
}

func (st *site) addRemoved(format string, args ...any) {
	st.Removed = append(st.Removed, fmt.Sprintf(format, args...))
}

func (st *site) addRestored(format string, args ...any) {
	st.Restored = append(st.Restored, fmt.Sprintf(format, args...))
}

// clear removes everything of shaper in one direction and restores the previous
// settings. It changes nothing if it cannot list the attached programs.
func (st *site) clear(direction dataplane.Direction) error {
	return rundir.Retry(func() error { return st.clearOnce(direction) })
}

func (st *site) clearOnce(direction dataplane.Direction) error {
	list, err := attachments(st.Index, direction)
	// without CAP_SYS_ADMIN the list contains only filters; such a process leaves no links behind
	if err != nil && !errors.Is(err, unix.EPERM) {
		return err
	}
	var errs []error
	for _, a := range list {
		st.adoptOldRecord(a)
		a.markEnding()
		if err := a.Remove(); err != nil {
			errs = append(errs, err)
			continue
		}
		st.addRemoved("%s %v: program %d by %s", st.name(), direction, a.Program, a.Hook)
	}
	errs = append(errs, st.removeTree(direction), st.setGSO(direction, 0), st.removeClsact())
	errs = append(errs, rundir.RemovePin(rundir.PinPath(st.ID, direction)))
	if err := errors.Join(errs...); err != nil {
		return err
	}
	left, err := registry.ReleaseBudgets(st.ID, direction, st.FileName(direction.String()))
	for _, l := range left {
		st.addRemoved("%v", l)
	}
	return errors.Join(err, st.pruneTexts(), st.removeChanges(direction, len(list) == 0),
		st.SaveJournal(st.ID))
}

// name returns the current name of the interface.
func (st *site) name() string { return interfaceName(st.Index) }

// interfaceName returns the name of an interface, or its index if it is gone.
func interfaceName(index int) string {
	if name, err := iface.NameOf(index); err == nil {
		return name
	}
	return fmt.Sprintf("interface %d", index)
}

// adoptOldRecord copies previous settings to the journal from the record of a shaper of the first
// version, which had no journal. Its record lacks a version number.
func (st *site) adoptOldRecord(a attachment) {
	text, err := a.recordText()
	if err != nil || bytes.HasPrefix(text, []byte(`{"Version":`)) {
		return // without decoding it
	}
	var old struct {
		Version   int
		Direction dataplane.Direction
		Qdiscs    *qdisc.Saved
		GSO       *struct{ Limit, Max, MaxIPv4 uint32 }
		Place     struct{ Clsact bool }
	}
	if json.Unmarshal(text, &old) != nil || old.Version != 0 || old.Direction > Ingress {
		return
	}
	if st.Qdiscs == nil && old.Direction == Egress {
		st.Qdiscs = old.Qdiscs
	}
	if st.GSO == nil && old.GSO != nil {
		st.GSO = &rundir.GSOLimits{Max: old.GSO.Max, MaxIPv4: old.GSO.MaxIPv4}
		st.GSO.Limits[old.Direction] = old.GSO.Limit
	}
	st.Clsact = st.Clsact || old.Place.Clsact
}

// drainTime is the time for queued packets to leave before their qdisc is removed. The rest is
// dropped.
const drainTime = time.Second

// removeTree removes the qdisc tree of a direction, for ingress together with the ifb
// device, and restores the previous root qdisc. It does nothing if there is no tree.
func (st *site) removeTree(direction dataplane.Direction) error {
	if direction == Ingress {
		return st.removeIFB()
	}
	if st.gone {
		st.Qdiscs = nil
		return nil
	}
	ours, err := qdisc.HasTree(st.Index)
	if err != nil {
		return err
	}
	if ours || st.Restoring {
		st.drain(st.Index)
		st.Restoring = true
		if err := st.SaveJournal(st.ID); err != nil {
			return err
		}
		if err := st.Qdiscs.Restore(st.Index); err != nil {
			return err
		}
		st.addRemoved("%s egress: root qdisc %x:", st.name(), qdisc.Major)
		if root, err := qdisc.Root(st.Index); err == nil && st.Qdiscs.HasRoot(root) {
			st.addRestored("%s egress: root qdisc %s %x:", st.name(), root.Kind, root.Handle>>16)
		}
	}
	if st.Qdiscs == nil && !st.Restoring {
		return nil
	}
	st.Qdiscs, st.Restoring = nil, false
	return st.SaveJournal(st.ID)
}

// drain waits until queued packets have left, for at most drainTime, and drops the rest.
func (st *site) drain(index int) {
	for end := time.Now().Add(drainTime); time.Now().Before(end) && hasBacklog(index); {
		time.Sleep(10 * time.Millisecond)
	}
	if err := st.Lost.Discard(index); err != nil {
		st.Notes = append(st.Notes,
			fmt.Sprintf("queued packets were dropped and could not all be counted: %v", err))
	}
}

// hasBacklog reports whether our qdisc tree on a device holds queued packets.
func hasBacklog(index int) bool {
	n, _ := qdisc.Queued(index) // drain reports the error: its Discard fails as well
	return n > 0
}

// replacesMQ reports whether the root qdisc of a device is mq, or ours in the place of one.
func (s *Shaper) replacesMQ(index int) (bool, error) {
	root, err := qdisc.Root(index)
	return err == nil && root != nil && (root.Kind == qdisc.MQ || root.Ours() && s.MQ), err
}

// buildTree makes t the root qdisc of a device: the interface or its ifb. Existing leaves
// keep their packets.
func (st *site) buildTree(t *qdisc.Tree, index int) error {
	root, err := qdisc.Root(index)
	if err != nil {
		return err
	}
	if root.Ours() {
		return t.Grow(index)
	}
	before, err := qdisc.Save(index)
	if err != nil {
		return err
	}
	if index == st.Index { // the qdiscs of an ifb are removed with it
		st.Qdiscs = before
		if err := st.saveBeforeChange(); err != nil {
			return err
		}
	}
	return t.Plant(index, before)
}

// addClsact creates the clsact qdisc, which tc filters need, unless there is one.
func (st *site) addClsact() error {
	if there, err := qdisc.HasClsact(st.Index); err != nil || there {
		return err
	}
	st.Clsact = true
	if err := st.saveBeforeChange(); err != nil {
		return err
	}
	if err := hook.AddClsact(st.Index); err != nil {
		return fmt.Errorf("%s: %w", st.name(), err)
	}
	return nil
}

// removeClsact removes the clsact qdisc if shaper created it and no filters are left. It is called
// after the queues have drained, because the kernel drops all packets of the root qdisc with it.
func (st *site) removeClsact() error {
	if !st.Clsact {
		return nil
	}
	foreign := false
	if !st.gone {
		for _, parent := range []uint32{netlink.HANDLE_MIN_EGRESS, netlink.HANDLE_MIN_INGRESS} {
			list, err := hook.Filters(st.Index, parent)
			if err != nil {
				return err
			}
			if slices.ContainsFunc(list, hook.IsOurs) {
				return nil
			}
			foreign = foreign || len(list) > 0
		}
	}
	if !st.gone && !foreign { // other programs' filters keep it
		if err := hook.RemoveClsact(st.Index); err != nil {
			return fmt.Errorf("%s: %w", st.name(), err)
		}
	}
	st.Clsact = false
	return st.SaveJournal(st.ID)
}
