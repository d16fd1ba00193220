package kernel

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/cause"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/hook"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/iface"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/image"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/record"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/rundir"
	"github.com/vishvananda/netlink"
)

// Repair restores the shaper's program, qdiscs and GSO limit after another program removed or
// displaced them (see Problems). compile returns the plan of the shaper's Label. Meters and
// counters keep their state, as do queues that still exist. If another root qdisc had replaced
// ours, Detach later restores that one. The error includes each problem that Repair cannot solve.
// It is ErrChanging while another process changes the shaper, and ErrDetached if shaper itself
// detached it.
//
// Repair attaches the program in front before it detaches the displaced one. In between, for some
// microseconds, packets that reach both are metered twice; the other order would let packets pass
// unmetered.
func (s *Shaper) Repair(compile func(json.RawMessage) (*compiled.Plan, error)) error {
	return s.repair(compile, func(Problem) bool { return true })
}

// Renew is Repair for problems that are Outdated only: it loads the policy again if there is one. A rollback
// stays armed.
func (s *Shaper) Renew(compile func(json.RawMessage) (*compiled.Plan, error)) error {
	return s.repair(compile, func(p Problem) bool { return p.Outdated })
}

// repair repairs the problems that are wanted.
func (s *Shaper) repair(
	compile func(json.RawMessage) (*compiled.Plan, error), wanted func(Problem) bool,
) error {
	change, err := rundir.TryTakeChangeLock(s.Identity())
	if errors.Is(err, rundir.ErrLocked) {
		return ErrChanging
	}
	if err != nil {
		return err
	}
	st, err := lockedSite(s.Identity(), change)
	if err != nil {
		return err
	}
	defer st.close()
	st.guard = s.guard
	if s.Ended() {
		return ErrDetached
	}
	if err := s.Refresh(); errors.Is(err, ErrDetached) {
		if err := s.refreshDetached(); err != nil {
			return err
		}
		if s.Ending {
			return ErrDetached
		}
	} else if err != nil {
		return err
	}
	found, err := s.inspect()
	if err != nil {
		return err
	}
	found = slices.DeleteFunc(found, func(p Problem) bool { return !wanted(p) })
	if len(found) == 0 {
		return nil
	}
	faults := map[fault]bool{}
	var rest []error
	for _, p := range found {
		faults[p.fault] = true
		if p.fault == interfaceAway || p.fault == foreignAhead {
			rest = append(rest, errors.New(p.String()))
		}
	}
	if faults[interfaceAway] {
		return errors.Join(rest...)
	}
	plan, err := compile(s.Label)
	if err != nil {
		return err
	}
	return errors.Join(append([]error{s.repairFaults(st, plan, faults)}, rest...)...)
}

// refreshDetached is Refresh for a program no longer attached, whose record this process still
// holds open. Another process may have replaced the program of the link before it was detached.
func (s *Shaper) refreshDetached() error {
	if h, ok := s.hook.(*hook.BPFLink); ok {
		info, err := h.Info()
		if err != nil {
			return err
		}
		if info.Program != s.Program {
			return s.adoptAttached(attachment{hook.Attached{Place: s.Place, Program: info.Program}})
		}
	}
	return s.readRecord()
}

// repairFaults repairs the faults that Repair can repair.
func (s *Shaper) repairFaults(st *site, plan *compiled.Plan, faults map[fault]bool) error {
	if faults[deviceDown] {
		if err := setDeviceUp(s.Place.Index); err != nil {
			return err
		}
	}
	var err error
	switch {
	case faults[hookGone] || faults[notFirst] || faults[deviceGone] || faults[redirectGone]:
		err = s.attachAnew(st, plan)
	case faults[rootReplaced] || faults[classMissing]:
		err = s.rebuildTree(st, plan)
	}
	if err == nil && faults[cgroupNew] {
		next := s.About
		_, err = s.install(st, plan, &next)
	}
	if err == nil && faults[gsoRaised] && st.GSO != nil {
		limits := st.GSO.Limits
		st.GSO = nil // Detach restores the limit set by the other program
		for direction, limit := range limits {
			err = errors.Join(err, st.setGSO(dataplane.Direction(direction), limit))
		}
	}
	return err
}

// setDeviceUp sets a device up.
func setDeviceUp(index int) error {
	l, err := netlink.LinkByIndex(index)
	if err == nil {
		err = netlink.LinkSetUp(l)
	}
	if err != nil {
		return cause.Of(fmt.Errorf("device %d: %w", index, err))
	}
	return nil
}

// rebuildTree restores the qdisc tree of an attached program.
func (s *Shaper) rebuildTree(st *site, plan *compiled.Plan) error {
	d, err := iface.ByIndex(s.Identity())
	if err != nil {
		return err
	}
	g, err := image.EncodeFor(&s.About, plan, nil)
	if err != nil {
		return err
	}
	// Classes of another program do not matter: each customer keeps the class that ours selects.
	there, err := s.maps.ReadLeaves(&s.About, 0)
	if err != nil {
		return err
	}
	if _, err := g.Inherit(&s.About, there); err != nil {
		return err
	}
	d.Index = s.Place.Index
	if g.MQ, err = s.replacesMQ(d.Index); err != nil {
		return err
	}
	return st.buildTree(g.Tree(d), d.Index)
}

// attachAnew attaches the program again, in front of all others, and restores its qdisc
// tree.
func (s *Shaper) attachAnew(st *site, plan *compiled.Plan) error {
	old := s.hook
	s.hook = nil
	next := s.About
	next.Place = hook.Place{Hook: s.Place.Hook}
	_, err := s.install(st, plan, &next)
	if s.hook == nil {
		s.hook = old
		return err
	}
	if id, e := old.Program(); e == nil && id == s.Program {
		return err // the new filter is in the place of the old one, which was removed
	}
	return errors.Join(err, old.Remove())
}

// markEnding writes to the record of an attached program that shaper is detaching it.
// Otherwise the shaper's process would repair it as if another program had removed it.
func (a attachment) markEnding() {
	s, err := a.openShaper()
	if s == nil || err != nil {
		return
	}
	defer s.Close()
	s.Ending = true
	_ = record.Write(s.about, &s.About) // best effort: without it, the process repairs once in vain
}

// Ended reports whether shaper itself detached the program, in this process or another.
// For an attached shaper it is false.
func (s *Shaper) Ended() bool {
	return s.refreshDetached() == nil && s.Ending
}
