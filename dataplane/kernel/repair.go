package kernel

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/cause"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/hook"
)

// Repair puts back what Problems found displaced. compile makes the plan of
// the shaper's Label. Meters, counters and queues that are still there keep what
// they hold. A root qdisc that was put in the place of ours comes back at the
// end instead of the one before it. What cannot be put back is an error.
//
// Ours is attached in front before the displaced program is detached. In between,
// some microseconds, packets that reach both are metered twice; the other order
// would let packets pass unmetered.
func (s *Shaper) Repair(compile func(json.RawMessage) (*dataplane.Plan, error)) error {
	change, err := tryChangeLock(s.iface())
	if errors.Is(err, errLocked) {
		return ErrChanging
	}
	if err != nil {
		return err
	}
	st, err := lockedSite(s.iface(), change)
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
	faults := map[fault]bool{}
	var rest []error
	for _, p := range found {
		faults[p.fault] = true
		if p.fault == away || p.fault == ahead {
			rest = append(rest, errors.New(p.String()))
		}
	}
	if faults[away] {
		return errors.Join(rest...)
	}
	plan, err := compile(s.Label)
	if err != nil {
		return err
	}
	return errors.Join(append([]error{s.putBack(st, plan, faults)}, rest...)...)
}

// reread is Refresh for a program that is attached no more, whose record is still
// there. Another process may have replaced the program of the link just before.
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

func (s *Shaper) putBack(st *site, plan *dataplane.Plan, faults map[fault]bool) error {
	if faults[deviceDown] {
		if err := setUp(s.Place.Index); err != nil {
			return err
		}
	}
	var err error
	switch {
	case faults[hookGone] || faults[notFirst] || faults[deviceGone] || faults[redirectGone]:
		err = s.attachAgain(st, plan)
	case faults[rootReplaced] || faults[classMissing]:
		err = s.rebuildTree(st, plan)
	}
	if err == nil && faults[gsoRaised] && st.GSO != nil {
		limits := st.GSO.Limits
		st.GSO = nil // what somebody set comes back at the end
		for direction, limit := range limits {
			err = errors.Join(err, st.setGSO(Direction(direction), limit))
		}
	}
	return err
}

// setUp sets a device up.
func setUp(index int) error {
	l, err := netlink.LinkByIndex(index)
	if err == nil {
		err = netlink.LinkSetUp(l)
	}
	if err != nil {
		return cause.Of(fmt.Errorf("device %d: %w", index, err))
	}
	return nil
}

// regrow puts back the tree alone: the program that selects its classes is still
// in its place.
func (s *Shaper) rebuildTree(st *site, plan *dataplane.Plan) error {
	d, err := deviceAt(s.iface())
	if err != nil {
		return err
	}
	g, err := s.encode(plan, nil)
	if err != nil {
		return err
	}
	g.inherit(&s.About)
	d.Index = s.Place.Index
	return st.pace(g.tree(d), d.Index)
}

// attachAgain attaches the program anew, by a link or filter in front of all
// others, with what holds its packets.
func (s *Shaper) attachAgain(st *site, plan *dataplane.Plan) error {
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
		return err // a new filter where the old one was removed
	}
	return errors.Join(err, old.Remove())
}

// end notes in the record of an attached program that it is being detached: a
// process that holds it can tell that from a program that somebody else removed.
func (a attachment) markEnding() {
	s, err := a.openShaper()
	if s == nil || err != nil {
		return
	}
	defer s.Close()
	s.Ending = true
	_ = writeAbout(s.about, &s.About) // a reader that misses it repairs once in vain
}

// Ended says whether shaper itself detached the program, in this process or in
// another one.
func (s *Shaper) Ended() bool {
	a, err := readAbout(s.about)
	return err == nil && a.Ending
}
