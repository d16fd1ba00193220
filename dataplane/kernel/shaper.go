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
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/a-seed-32e5a53f/shaper/bpf"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// Config says where and how a policy is attached.
type Config struct {
	Interface string
	Direction Hook   // Egress or Ingress
	Method    Method // "" is Auto
	Dry       bool   // count, and let every packet pass as it is
	Pin       bool   // stay when the process ends
	GSOLimit  uint32 // bytes; 0 leaves the device as it is
	// Label is kept beside the program, for whoever finds it.
	Label json.RawMessage
}

// Shaper is a policy at work on an interface, in one direction. Attach makes
// one, List finds those of others. Close releases this process's part of it.
type Shaper struct {
	About
	about  *ebpf.Map
	shared *shared
	hook   hook
	owner  lock // where this process attached it
}

// BusyError says that another process shapes the interface.
type BusyError struct{ About }

func (e *BusyError) Error() string {
	return fmt.Sprintf("%s %v is shaped by process %d already: give it a new policy by shaper reload, or end it by shaper detach", e.Interface, e.Direction, e.Process)
}

// Attach compiles a policy and attaches it. A shaper that another process left
// there is taken over: as with Reload, classes that keep their name keep tokens
// and counters, and Changes says so. A policy that does not compile
// (dataplane.FieldErrors) changes nothing.
func Attach(cfg Config, policy *dataplane.Policy) (*Shaper, []Change, error) {
	if cfg.Method == "" {
		cfg.Method = Auto
	}
	d, err := cfg.check(policy)
	if err != nil {
		return nil, nil, err
	}
	here, err := namespace()
	if err != nil {
		return nil, nil, err
	}
	change, err := changeLock(here, cfg.Interface, cfg.Direction)
	if err != nil {
		return nil, nil, err
	}
	defer change.Close()
	owner, err := ownerLock(here, cfg.Interface, cfg.Direction)
	if errors.Is(err, errLocked) {
		busy := &BusyError{About{Interface: cfg.Interface, Direction: cfg.Direction}}
		if other, err := find(cfg.Interface, cfg.Direction); err == nil && other != nil {
			busy.About = other.About
			other.Close()
		}
		return nil, nil, busy
	} else if err != nil {
		return nil, nil, err
	}
	s, changes, err := takeOver(cfg, policy, d)
	if s == nil && err == nil {
		s, err = attachNew(cfg, policy, d, here)
	}
	if err != nil {
		owner.Close()
		return nil, nil, err
	}
	s.owner = owner
	return s, changes, nil
}

// check finds what is wrong before anything is changed.
func (cfg *Config) check(policy *dataplane.Policy) (*device, error) {
	d, err := findDevice(cfg.Interface)
	if err != nil {
		return nil, err
	}
	if err := policy.Length.Accepts(d.link); err != nil {
		return nil, err
	}
	if cfg.Method == ByXDP && cfg.Direction == Egress {
		return nil, errors.New("XDP sees only what comes in: use --direction ingress")
	}
	if cfg.Pin && !haveBpffs() {
		switch cfg.Method {
		case Auto:
			cfg.Method = TC // a filter stays without a pin
		case TCX, ByXDP:
			return nil, errNoBpffs
		}
	}
	_, err = encode(policy, program(cfg.Direction, cfg.Method))
	return d, err
}

// program is the one that a method attaches.
func program(direction Hook, method Method) Hook {
	if method == ByXDP {
		return XDP
	}
	return direction
}

// takeOver gives a shaper that was left behind the policy. It returns nil where
// there is none, or none that can be taken over: that one is removed.
func takeOver(cfg Config, policy *dataplane.Policy, d *device) (*Shaper, []Change, error) {
	s, err := find(cfg.Interface, cfg.Direction)
	if errors.Is(err, unix.EPERM) {
		return nil, nil, unpinned(cfg)
	}
	if s == nil || err != nil {
		return nil, nil, err
	}
	if cfg.Method != Auto && cfg.Method != s.Place.Method || s.Place.Index != d.index {
		return nil, nil, s.clear()
	}
	s.Dry, s.Pinned, s.Process = cfg.Dry, cfg.Pin, os.Getpid()
	s.Before, s.Until = nil, time.Time{} // who would have gone back is gone
	changes, err := s.load(policy, cfg.Label)
	if err == nil {
		err = s.finish(cfg.GSOLimit)
	}
	if err != nil {
		s.Close()
		return nil, nil, err
	}
	return s, changes, nil
}

// unpinned ends a pinned shaper that may not be looked into.
func unpinned(cfg Config) error {
	here, err := namespace()
	if err != nil {
		return err
	}
	a := About{Namespace: here, Interface: cfg.Interface, Direction: cfg.Direction}
	l, err := link.LoadPinnedLink(a.pin(), nil)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return explain(err)
	}
	return errors.Join(os.Remove(a.pin()), l.Detach(), l.Close())
}

func attachNew(cfg Config, policy *dataplane.Policy, d *device, here uint64) (s *Shaper, err error) {
	s = &Shaper{About: About{
		Interface: cfg.Interface, Namespace: here, Direction: cfg.Direction, Since: time.Now(),
		Dry: cfg.Dry, Pinned: cfg.Pin, Process: os.Getpid(),
		Place: place{Method: cfg.Method, Index: d.index},
	}}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.clear())
		}
	}()
	if s.shared, err = newShared(); err != nil {
		return s, err
	}
	if _, err := s.load(policy, cfg.Label); err != nil {
		return s, err
	}
	return s, s.finish(cfg.GSOLimit)
}

// finish does what comes after the program is attached: the limit of the
// device, and a pin or none.
func (s *Shaper) finish(gsoLimit uint32) error {
	if err := s.setGSO(gsoLimit); err != nil {
		return err
	}
	if l, ok := s.hook.(*linkHook); ok {
		_, err := os.Stat(s.pin())
		switch pinned := err == nil; {
		case s.Pinned && !pinned:
			if err := os.MkdirAll(filepath.Dir(s.pin()), 0o700); err != nil {
				return err
			}
			if err := l.Pin(s.pin()); err != nil {
				return explain(err)
			}
		case !s.Pinned && pinned:
			if err := os.Remove(s.pin()); err != nil {
				return err
			}
		}
	}
	return writeAbout(s.about, &s.About)
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

// Undo is what takes a shaper away from an interface that the kernel would
// leave there when its process is killed. It needs nothing of the shaper.
type Undo struct {
	Interface string
	Place     place
	GSO       *GSO
}

// Undo returns what is left when the process is killed, or nil for nothing.
func (s *Shaper) Undo() *Undo {
	if s.Pinned || s.Place.Method != TC && s.GSO == nil {
		return nil
	}
	return &Undo{s.Interface, s.Place, s.GSO}
}

// Do undoes it.
func (u *Undo) Do() error {
	var err error
	if u.Place.Method == TC {
		err = (&filterHook{u.Place}).remove()
	}
	return errors.Join(err, u.GSO.restore(u.Interface))
}
