package kernel

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/cause"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/hook"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/qdisc"
)

// site is an interface that is being changed: the change lock is held. All that
// can outlive a process is made and removed here. It is found by what it is, not
// by who made it, so that whatever a killed process left is removed as well.
type site struct {
	iface
	journal
	change lock
	gone   bool // there is no such interface any more

	// guard is called before the first change that outlives the process.
	guard   func() error
	Removed []string // what was taken away, a line each
	Notes   []string // what went unexpectedly
	Lost    Lost
}

// openSite takes the change lock.
func openSite(at iface) (st *site, err error) {
	err = again(func() error {
		st, err = openSiteOnce(at)
		return err
	})
	return st, err
}

func openSiteOnce(at iface) (*site, error) {
	change, err := changeLock(at)
	if err != nil {
		return nil, err
	}
	return lockedSite(at, change)
}

// lockedSite is openSite for one whose lock is held.
func lockedSite(at iface, change lock) (*site, error) {
	st := &site{iface: at, change: change}
	j, broken, err := readJournal(at)
	if err == nil {
		st.journal = *j
		if broken != "" {
			st.Notes = append(st.Notes, broken)
		}
		_, err = netlink.LinkByIndex(at.Index)
		if cause.NoDevice(err) {
			st.gone, err = true, nil
		}
	}
	if err != nil {
		return nil, errors.Join(err, change.Close())
	}
	return st, nil
}

func (st *site) close() error { return st.change.Close() }

// protect starts the guard, unless there is one, or none is wanted.
func (st *site) protect() error {
	if st.guard == nil {
		return nil
	}
	err := st.guard()
	if err == nil {
		st.guard = nil
	}
	return err
}

// note writes the journal. Who wrote it first has a guard.
func (st *site) note() error {
	if err := st.protect(); err != nil {
		return err
	}
	return st.save(st.iface)
}

func (st *site) removed(format string, args ...any) {
	st.Removed = append(st.Removed, fmt.Sprintf(format, args...))
}

// tries is how often something is tried again that must not be left half done: the
// kernel may lack memory for a moment.
const tries = 3

func again(f func() error) (err error) {
	for try := range tries {
		if err = f(); err == nil {
			return nil
		}
		time.Sleep(time.Duration(try) * 20 * time.Millisecond)
	}
	return err
}

// clear removes everything of ours in one direction, and puts back what was
// there before. If it cannot see what there is it changes nothing.
func (st *site) clear(direction Direction) error {
	return again(func() error { return st.clearOnce(direction) })
}

func (st *site) clearOnce(direction Direction) error {
	list, err := attachments(st.Index, direction)
	if err != nil && !errors.Is(err, unix.EPERM) { // who may not look has made no link that stays
		return err
	}
	var errs []error
	for _, a := range list {
		st.adopt(a)
		a.markEnding()
		if err := a.Remove(); err != nil {
			errs = append(errs, err)
			continue
		}
		st.removed("%s %v: program %d by %s", st.name(), direction, a.Program, a.Hook)
	}
	errs = append(errs, st.unpace(direction), st.setGSO(direction, 0), st.removeClsact())
	errs = append(errs, removePin(st.pin(direction)))
	if err := errors.Join(errs...); err != nil {
		return err
	}
	left, err := releaseBudgets(st.registryTemp(direction), st.file(direction.String()))
	for _, l := range left {
		st.removed("%v", l)
	}
	return errors.Join(err, st.save(st.iface))
}

// name is how people know the interface now.
func (st *site) name() string { return nameOf(st.Index) }

func nameOf(index int) string {
	if l, err := netlink.LinkByIndex(index); err == nil {
		return l.Attrs().Name
	}
	return fmt.Sprintf("interface %d", index)
}

// adopt notes what a shaper of before records had a version remembered beside its
// program.
func (st *site) adopt(a attachment) {
	text, err := a.recordText()
	if err != nil || text == nil {
		return
	}
	var old struct {
		Version   int
		Direction Direction
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
		st.GSO = &gso{Max: old.GSO.Max, MaxIPv4: old.GSO.MaxIPv4}
		st.GSO.Limits[old.Direction] = old.GSO.Limit
	}
	st.Clsact = st.Clsact || old.Place.Clsact
}

// drain is how long queued packets have to leave when a shaper ends. What is
// left then is lost.
const drain = time.Second

// unpace removes what holds packets. It does nothing if there is nothing.
func (st *site) unpace(direction Direction) error {
	if direction == Ingress {
		return st.removeIFB()
	}
	if st.gone {
		st.Qdiscs = nil
		return nil
	}
	root, err := qdisc.Root(st.Index)
	if err != nil {
		return err
	}
	if root.Ours() || st.Restoring {
		st.drain(st.Index)
		st.Restoring = true
		if err := st.save(st.iface); err != nil {
			return err
		}
		if err := st.Qdiscs.Restore(st.Index); err != nil {
			return err
		}
		st.removed("%s egress: root qdisc %x:", st.name(), qdisc.Major)
	}
	if st.Qdiscs == nil && !st.Restoring {
		return nil
	}
	st.Qdiscs, st.Restoring = nil, false
	return st.save(st.iface)
}

// drain waits until queued packets have left, for a while.
func (st *site) drain(index int) {
	for end := time.Now().Add(drain); time.Now().Before(end) && queued(index); {
		time.Sleep(10 * time.Millisecond)
	}
	if err := st.Lost.discard(index); err != nil {
		st.Notes = append(st.Notes, fmt.Sprintf("packets that were still queued were lost, and not all counted: %v", err))
	}
}

// queued says whether a tree of ours holds packets.
func queued(index int) bool {
	n, _ := qdisc.Queued(index) // on an error Discard fails as well, and says so
	return n > 0
}

// pace makes the tree stand at the root of a device: of the interface, or of its
// ifb. Leaves that it has already keep their packets.
func (st *site) pace(t *qdisc.Tree, index int) error {
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
	if index == st.Index { // an ifb goes with its qdiscs
		st.Qdiscs = before
		if err := st.note(); err != nil {
			return err
		}
	}
	return t.Plant(index, before)
}

// addClsact makes the qdisc of filters, unless there is one.
func (st *site) addClsact() error {
	if there, err := qdisc.HasClsact(st.Index); err != nil || there {
		return err
	}
	st.Clsact = true
	if err := st.note(); err != nil {
		return err
	}
	if err := hook.AddClsact(st.Index); err != nil {
		return fmt.Errorf("%s: %w", st.name(), err)
	}
	return nil
}

// removeClsact removes the qdisc if it is ours and nobody uses it any more. That
// comes after what holds packets: with it the kernel empties the root of the device.
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
	if !st.gone && !foreign { // others that use it by now keep it
		if err := hook.RemoveClsact(st.Index); err != nil {
			return fmt.Errorf("%s: %w", st.name(), err)
		}
	}
	st.Clsact = false
	return st.save(st.iface)
}
