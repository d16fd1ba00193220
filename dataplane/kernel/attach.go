package kernel

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// Config says where and how a policy is attached.
type Config struct {
	Interface string
	Direction Hook   // Egress or Ingress
	Method    Method // "" is Auto
	Pacer     Pacer  // what holds packets of queues; "" is what the kernel has
	Dry       bool   // count, and let every packet pass as it is
	Pin       bool   // stay when the process ends
	GSOLimit  uint32 // bytes; 0 leaves the device as it is
	// Label is kept beside the program, for whoever finds it.
	Label json.RawMessage
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
func Attach(cfg Config, policy *dataplane.Policy) (*Shaper, []dataplane.Change, error) {
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
	for try := 0; errors.Is(err, errLocked) && try < 5; try++ { // somebody may only look
		time.Sleep(10 * time.Millisecond)
		owner, err = ownerLock(here, cfg.Interface, cfg.Direction)
	}
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
	pacer, err := choosePacer(cfg.Pacer, policy)
	if err != nil {
		return nil, err
	}
	_, err = encode(policy, program(cfg.Direction, cfg.Method, pacer), pacer)
	return d, err
}

// program is the one that a method attaches. What comes in waits in a device of
// its own, which it leaves for the stack.
func program(direction Hook, method Method, pacer Pacer) Hook {
	switch {
	case method == ByXDP:
		return XDP
	case pacer != "":
		return Egress
	}
	return direction
}

// takeOver gives a shaper that was left behind the policy. It returns nil where
// there is none, or none that can be taken over: that one is removed.
func takeOver(cfg Config, policy *dataplane.Policy, d *device) (*Shaper, []dataplane.Change, error) {
	s, err := find(cfg.Interface, cfg.Direction)
	if errors.Is(err, unix.EPERM) {
		return nil, nil, unpinned(cfg)
	}
	if s == nil || err != nil {
		return nil, nil, err
	}
	pacer, err := choosePacer(cfg.Pacer, policy)
	if err != nil {
		return nil, nil, err
	}
	if cfg.Method != Auto && cfg.Method != s.Place.Method || s.index() != d.index || s.elsewhere(pacer, cfg.Dry) {
		return nil, nil, s.clear()
	}
	s.Asked = cfg.Pacer
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
		Dry: cfg.Dry, Pinned: cfg.Pin, Process: os.Getpid(), Asked: cfg.Pacer,
		Place: place{Method: cfg.Method, Index: d.index},
	}}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.clear())
		}
	}()
	if err := s.tidy(); err != nil {
		return s, err
	}
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
