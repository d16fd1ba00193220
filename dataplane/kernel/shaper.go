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

// Info is what the shaper is.
func (s *Shaper) Info() *About { return &s.About }

// Attached says whether packets of the interface go through the program. A
// device of our own outlives the interface.
func (s *Shaper) Attached() bool {
	return s.hook != nil && s.hook.program() != 0 && (s.IFB == nil || !s.Gone())
}

// Gone says whether the interface is there no more. Its program went with it.
func (s *Shaper) Gone() bool {
	l, err := netlink.LinkByIndex(s.index())
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
	if s.hook != nil {
		_ = s.Refresh() // another process may have changed what is to be removed
	}
	return s.clear()
}

func (s *Shaper) clear() error {
	err := s.lift()
	s.Close()
	return err
}

// lift takes away the program, and all that was changed of the interface.
func (s *Shaper) lift() error {
	var errs []error
	if l, ok := s.hook.(*linkHook); ok {
		errs = append(errs, l.remove())
	}
	if err := os.Remove(s.pin()); err == nil {
		_ = os.Remove(filepath.Dir(s.pin())) // if it is empty by now
	} else if !errors.Is(err, fs.ErrNotExist) {
		errs = append(errs, err)
	}
	u := s.undo()
	errs = append(errs, u.Do())
	s.Lost += u.lost
	s.hook, s.GSO, s.Qdiscs, s.IFB, s.Pacer = nil, nil, nil, nil, ""
	return errors.Join(errs...)
}

// Check says what Reload would refuse, as dataplane.FieldErrors.
func (s *Shaper) Check(policy *dataplane.Policy) error {
	_, err := s.encode(policy)
	return err
}

// encode compiles a policy for where the shaper is.
func (s *Shaper) encode(policy *dataplane.Policy) (*image, error) {
	pacer, err := choosePacer(s.Asked, policy)
	if err != nil {
		return nil, err
	}
	if s.hook != nil && s.elsewhere(pacer, s.Dry) {
		return nil, fmt.Errorf("%s ingress: queues need a device of their own: shaper detach %[1]s, then run it again", s.Interface)
	}
	g, err := encode(policy, program(s.Direction, s.Place.Method, pacer), pacer)
	if err == nil && s.Dry {
		g.pacer, g.constants.Pacer = "", 0 // nothing waits
	}
	return g, err
}

// elsewhere says whether a program with this pacer belongs on another device. A
// dry one has nothing wait.
func (s *Shaper) elsewhere(pacer Pacer, dry bool) bool {
	return s.Direction == Ingress && (pacer != "" && !dry) != (s.IFB != nil)
}

// Reload replaces the policy, at once: no packet sees a part of it. A class
// that keeps its name keeps its counters, and the tokens of its meters, cut to
// the new bursts. A policy that does not compile changes nothing.
func (s *Shaper) Reload(policy *dataplane.Policy, label json.RawMessage) ([]dataplane.Change, error) {
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
	s.shared.release() // what it made may have been replaced
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
	s.Dry, s.Pinned, s.Asked, s.Before, s.Until = was.Dry, was.Pinned, was.Asked, nil, time.Time{}
	pacer, err := choosePacer(s.Asked, policy)
	if err != nil {
		return err
	}
	if s.elsewhere(pacer, s.Dry) {
		if err := s.lift(); err != nil {
			return err
		}
		s.Place = place{Method: s.Place.Method} // load attaches it there
	}
	if _, err := s.load(policy, was.Label); err != nil {
		return err
	}
	return s.finish(was.GSOLimit)
}

// load compiles a policy and puts it in the place of the one before, or
// attaches it where there is none.
func (s *Shaper) load(policy *dataplane.Policy, label json.RawMessage) (changes []dataplane.Change, err error) {
	d, err := findDevice(s.Interface)
	if err != nil {
		return nil, err
	}
	if err := policy.Length.Accepts(d.link); err != nil {
		return nil, err
	}
	g, err := s.encode(policy)
	if err != nil {
		return nil, err
	}
	changes = g.inherit(&s.About)
	g.constants.Link, g.constants.Dry = uint8(d.link), flag(s.Dry)
	paced := s.Qdiscs != nil
	defer func() {
		if err != nil && !paced {
			err = errors.Join(err, s.unpace())
		}
	}()
	if d, err = s.pace(g, d); err != nil {
		return nil, err
	}
	maps, err := s.shared.of(g, &s.About)
	if err != nil {
		return nil, err
	}
	spare := maps // whichever will not be used
	defer func() {
		if spare.waiting != s.shared.waiting {
			spare.waiting.Close()
		}
	}()
	kind := program(s.Direction, s.Place.Method, g.pacer)
	spec, err := bpf.LoadShaper()
	if err != nil {
		return nil, err
	}
	c, err := g.load(spec, programs[kind], maps.given())
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
		s.hook, next.Place, err = attach(d, p, kind, s.Place.Method)
	} else if err == nil {
		err = s.hook.replace(p)
	}
	if err != nil {
		about.Close()
		return nil, errors.Join(err, s.shared.retire(g.stages, s.stages()))
	}
	next.Program = s.hook.program()
	retired := s.shared.retire(s.stages(), g.stages)
	s.about.Close()
	s.About, s.about, s.shared, spare = next, about, maps, s.shared
	if retired != nil {
		return nil, retired
	}
	if g.pacer == "" {
		return changes, s.unpace()
	}
	return changes, g.tree(d).prune(d.index)
}

// pace makes what holds the packets of queues, beside what is there already. It
// returns the device where the program belongs.
func (s *Shaper) pace(g *image, d *device) (*device, error) {
	if g.pacer == "" {
		return d, nil
	}
	var err error
	if s.Direction == Ingress {
		if s.IFB == nil {
			if s.IFB, err = addIFB(d.index); err != nil {
				return nil, err
			}
		}
		d = &device{ifbName(d.index), s.IFB.Device, d.mtu, d.link}
	}
	t := g.tree(d)
	if s.Qdiscs != nil {
		return d, t.grow(d.index)
	}
	if s.Qdiscs, err = t.install(d.index); err != nil {
		return nil, err
	}
	return d, s.undo().leave()
}

// unpace removes what holds packets.
func (s *Shaper) unpace() error {
	u := s.undo()
	err := u.unpace()
	s.Lost += u.lost
	s.Qdiscs, s.IFB, s.Pacer = nil, nil, ""
	return err
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
