package kernel

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/a-seed-32e5a53f/shaper/bpf"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// Shaper is a policy at work on an interface, in one direction. Attach makes
// one, List finds those of others. Close releases this process's part of it.
type Shaper struct {
	About
	about  *ebpf.Map
	shared *shared
	hook   hook
	owner  lock // where this process attached it
}

// Close releases what this process holds. A shaper that it attached and that
// is not pinned ends with it, unless it is a tc filter: Detach ends all.
func (s *Shaper) Close() {
	if l, ok := s.hook.(*linkHook); ok {
		l.Close()
	}
	if s.shared != nil {
		s.shared.close()
	}
	s.about.Close()
	if s.owner.File != nil {
		s.owner.Close()
	}
}

// Attached says whether packets of the interface go through the program.
func (s *Shaper) Attached() bool { return s.hook != nil && s.hook.program() != 0 }

// Gone says whether the interface is there no more. Its program went with it.
func (s *Shaper) Gone() bool {
	l, err := netlink.LinkByIndex(s.Place.Index)
	return err != nil || l.Attrs().Name != s.Interface
}

// Owned says whether the process that attached the shaper is alive.
func (s *Shaper) Owned() bool {
	if s.owner.File != nil {
		return true
	}
	l, err := ownerLock(s.Namespace, s.Interface, s.Direction)
	if err == nil {
		l.Close()
	}
	return errors.Is(err, errLocked)
}

// Detach removes the program and what else was changed of the interface. It
// releases the Shaper.
func (s *Shaper) Detach() error {
	change, err := changeLock(s.Namespace, s.Interface, s.Direction)
	if err != nil {
		return err
	}
	defer change.Close()
	return s.clear()
}

func (s *Shaper) clear() error {
	var errs []error
	if s.hook != nil {
		errs = append(errs, s.hook.remove())
		s.hook = nil
	}
	if err := os.Remove(s.pin()); err == nil {
		_ = os.Remove(filepath.Dir(s.pin())) // if it is empty by now
	} else if !errors.Is(err, fs.ErrNotExist) {
		errs = append(errs, err)
	}
	errs = append(errs, s.restoreGSO())
	s.Close()
	return errors.Join(errs...)
}

// Check says what Reload would refuse, as dataplane.FieldErrors.
func (s *Shaper) Check(policy *dataplane.Policy) error {
	_, err := encode(policy, program(s.Direction, s.Place.Method))
	return err
}

// Reload replaces the policy, at once: no packet sees a part of it. A class
// that keeps its name keeps its counters, and the tokens of its meters, cut to
// the new bursts. A policy that does not compile changes nothing.
func (s *Shaper) Reload(policy *dataplane.Policy, label json.RawMessage) ([]Change, error) {
	change, err := changeLock(s.Namespace, s.Interface, s.Direction)
	if err != nil {
		return nil, err
	}
	defer change.Close()
	if err := s.Refresh(); err != nil {
		return nil, err
	}
	changes, err := s.load(policy, label)
	if err != nil {
		return nil, err
	}
	return changes, writeAbout(s.about, &s.About)
}

// ErrDetached says that a shaper is attached no more: another process detached
// it, or its interface is gone.
var ErrDetached = errors.New("detached by another process")

// Refresh reads again what another process may have changed.
func (s *Shaper) Refresh() error {
	id := s.hook.program()
	if id == 0 {
		return fmt.Errorf("%s %v: %w", s.Interface, s.Direction, ErrDetached)
	}
	if id == s.Program {
		a, err := readAbout(s.about)
		if err != nil {
			return err
		}
		a.Program = id
		s.About = *a
		return nil
	}
	other, err := open(id, s.Namespace)
	if errors.Is(err, unix.EPERM) {
		return nil // who may not look cannot have been overtaken by another
	}
	if other == nil && err == nil || errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("%s %v: %w", s.Interface, s.Direction, ErrDetached)
	}
	if err != nil {
		return err
	}
	s.About, s.about, other.about = other.About, other.about, s.about
	other.Close()
	return nil
}

// Promise makes the policy one that is to be confirmed until a time, or goes
// back to what was before, nil for nothing attached. Where there is a promise
// already its Before stays. A zero time confirms.
func (s *Shaper) Promise(before *Before, until time.Time) error {
	change, err := changeLock(s.Namespace, s.Interface, s.Direction)
	if err != nil {
		return err
	}
	defer change.Close()
	if err := s.Refresh(); err != nil {
		return err
	}
	if until.IsZero() {
		before = nil
	} else if !s.Until.IsZero() {
		before = s.Before
	}
	s.Before, s.Until = before, until.Round(0)
	return writeAbout(s.about, &s.About)
}

// GoBack makes a shaper what it was before the promise: policy is the one of
// Before's Label.
func (s *Shaper) GoBack(policy *dataplane.Policy) error {
	change, err := changeLock(s.Namespace, s.Interface, s.Direction)
	if err != nil {
		return err
	}
	defer change.Close()
	if err := s.Refresh(); err != nil {
		return err
	}
	was := s.Before
	s.Dry, s.Pinned, s.Before, s.Until = was.Dry, was.Pinned, nil, time.Time{}
	if _, err := s.load(policy, was.Label); err != nil {
		return err
	}
	return s.finish(was.GSOLimit)
}

// load compiles a policy and puts it in the place of the one before, or
// attaches it where there is none.
func (s *Shaper) load(policy *dataplane.Policy, label json.RawMessage) ([]Change, error) {
	d, err := findDevice(s.Interface)
	if err != nil {
		return nil, err
	}
	if err := policy.Length.Accepts(d.link); err != nil {
		return nil, err
	}
	kind := program(s.Direction, s.Place.Method)
	g, err := encode(policy, kind)
	if err != nil {
		return nil, err
	}
	g.constants.Link, g.constants.Dry = uint8(d.link), flag(s.Dry)
	changes := g.inherit(&s.About)
	spec, err := bpf.LoadShaper()
	if err != nil {
		return nil, err
	}
	c, err := g.load(spec, programs[kind], map[string]*ebpf.Map{
		bpf.ShaperMapStates: s.shared.states, bpf.ShaperMapCounters: s.shared.counters,
	})
	if err != nil {
		return nil, err
	}
	defer c.Close()
	p := c.Programs[programs[kind]]
	next := s.About
	next.Loaded, next.Label = time.Now().Round(0), label
	next.record(g)
	about, err := newAbout(&next, len(s.Label)) // there is room to promise what was before
	if err != nil {
		return nil, err
	}
	if err := p.BindMap(about); err != nil {
		about.Close()
		return nil, explain(err)
	}
	err = g.settle(&s.About, s.shared)
	if err == nil && s.hook == nil {
		s.hook, next.Place, err = attach(d, p, s.Direction, s.Place.Method)
	} else if err == nil {
		err = s.hook.replace(p)
	}
	if err != nil {
		about.Close()
		return nil, err
	}
	next.Program = s.hook.program()
	s.about.Close()
	s.About, s.about = next, about
	return changes, nil
}

// Stats returns the counters, as dataplane.Pipeline does, in the order of the
// policy's classes.
func (s *Shaper) Stats() ([]dataplane.ClassStats, error) {
	return stats(s.shared.counters, s.classes())
}

// Tokens returns what the meters hold that a class leads to, in whole bytes.
func (s *Shaper) Tokens(class int) ([][2]int64, error) {
	now, err := monotonic()
	if err != nil {
		return nil, err
	}
	var out [][2]int64
	for _, i := range s.chain(class) {
		tc, te, err := tokens(s.shared.states, &s.Stages[i].ShaperStage, now)
		if err != nil {
			return nil, err
		}
		out = append(out, [2]int64{tc, te})
	}
	return out, nil
}

// monotonic is the programs' clock, in ns.
func monotonic() (uint64, error) {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		return 0, fmt.Errorf("clock: %w", err)
	}
	return uint64(t.Nano()), nil
}
