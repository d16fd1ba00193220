package kernel

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/cause"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/hook"
)

// Hook is a way to attach a program to an interface.
type Hook string

// Auto is TCX, or TC if the kernel does not have TCX.
const (
	Auto Hook = "auto"
	TCX  Hook = hook.TCX // a link, since kernel 6.6
	TC   Hook = hook.TC  // a filter of the clsact qdisc
	XDP  Hook = hook.XDP // a link, at ingress only
)

// Generic is the mode of an XDP program that runs in the kernel, since the driver has no
// XDP. That is slow.
const Generic = hook.Generic

// Config says where and how a policy is attached.
type Config struct {
	Interface string
	Direction Direction // Egress or Ingress
	Hook      Hook      // "" is Auto
	Pacer     Pacer     // what holds packets of queues; "" is what the kernel has
	Dry       bool      // count, and let every packet pass as it is
	Pin       bool      // stay when the process ends
	// GSOLimit is the most that the stack may hand to the device at once, in bytes:
	// 0 for what suits the queues' rates, NoGSOLimit to leave the device as it is.
	GSOLimit uint32
	// Until arms a rollback: unless Confirm is called by then, RollBack returns to
	// the shaper that was taken over, or to nothing. Zero arms none.
	Until time.Time
	// Guard is called once, before the first change that the kernel does not undo
	// when the process is killed: it starts a process that calls Rescue then.
	Guard func() error
	// Label is kept beside the program, for whoever finds it.
	Label json.RawMessage

	before *Before // what was taken over from another place
	ready  *image  // of the plan
}

// BusyError says that another process shapes the interface.
type BusyError struct{ About }

func (e *BusyError) Error() string {
	by := fmt.Sprintf("process %d", e.Process)
	if e.Process == 0 { // its program was removed
		by = "another process"
	}
	return fmt.Sprintf("%s %v is shaped by %s already", e.Interface, e.Direction, by)
}

// Attach attaches the plan of a policy. A shaper that another process left
// there is taken over: as with Reload, classes that keep their name keep tokens
// and counters, and Changes says so. Everything else of ours in that direction,
// left by a killed process, is removed before. A plan that the kernel
// plane refuses (dataplane.FieldErrors) changes nothing; after a *dataplane.ActiveError the Shaper is
// returned and active.
func Attach(cfg Config, plan *dataplane.Plan) (*Shaper, []dataplane.Change, error) {
	if cfg.Hook == "" {
		cfg.Hook = Auto
	}
	d, err := cfg.check(plan)
	if err != nil {
		return nil, nil, err
	}
	st, err := openSite(d.iface)
	if err != nil {
		return nil, nil, err
	}
	defer st.close()
	st.guard = cfg.Guard
	owner, err := cfg.own(d.iface)
	if err != nil {
		return nil, nil, err
	}
	if _, err := sweep(); err != nil {
		return nil, nil, errors.Join(err, owner.Close())
	}
	s, changes, err := cfg.takeOver(st, plan, d)
	if s == nil && err == nil {
		s, err = cfg.attachNew(st, plan, d)
	}
	if err != nil && !errors.As(err, new(*dataplane.ActiveError)) {
		if cfg.before != nil {
			err = fmt.Errorf("%w; the shaper that was attached before, at another place, is detached", err)
		}
		return nil, nil, errors.Join(err, owner.Close())
	}
	s.owner, s.guard, s.Removed = owner, st.guard, append(st.Removed, st.Notes...)
	return s, changes, err
}

// own takes the owner lock of a direction.
func (cfg *Config) own(at iface) (lock, error) {
	owner, err := ownerLock(at, cfg.Direction)
	for try := 0; errors.Is(err, errLocked) && try < 5; try++ { // somebody may only look
		time.Sleep(10 * time.Millisecond)
		owner, err = ownerLock(at, cfg.Direction)
	}
	if errors.Is(err, errLocked) {
		busy := &BusyError{About{Interface: cfg.Interface, Direction: cfg.Direction}}
		if other, err := find(at, cfg.Direction); err == nil && other != nil {
			busy.About = other.About
			other.Close()
		}
		return lock{}, busy
	}
	return owner, err
}

// check finds what is wrong before anything is changed.
func (cfg *Config) check(plan *dataplane.Plan) (*device, error) {
	d, err := findDevice(cfg.Interface)
	if err != nil {
		return nil, err
	}
	if err := plan.Length.Accepts(d.link); err != nil {
		return nil, err
	}
	if cfg.Hook == XDP && cfg.Direction == Egress {
		return nil, UseIngress.errorf("XDP sees only packets that arrive")
	}
	if cfg.Pin && !haveBpffs() {
		switch cfg.Hook {
		case Auto:
			cfg.Hook = TC // a filter stays without a pin
		case TCX, XDP:
			return nil, errNoBpffs
		}
	}
	pacer, err := choosePacer(cfg.Pacer, plan)
	if err != nil {
		return nil, err
	}
	cfg.ready, err = encode(plan, entryOf(cfg.Direction, cfg.Hook, pacer), pacer)
	return d, err
}

// entryOf returns the program for a hook. Packets that arrived are queued in a device of
// their own, which they leave for the stack: by egress.
func entryOf(direction Direction, hook Hook, pacer Pacer) entry {
	switch {
	case hook == XDP:
		return xdpEntry
	case pacer != "":
		return egressEntry
	}
	return entry(direction)
}

// takeOver gives a shaper that was left behind the policy. It returns nil where
// there is none, or none that can be taken over: that one is removed.
func (cfg *Config) takeOver(st *site, plan *dataplane.Plan, d *device) (*Shaper, []dataplane.Change, error) {
	s, err := find(st.iface, cfg.Direction)
	if errors.Is(err, unix.EPERM) {
		return nil, nil, errors.Join(unpinned(st.pin(cfg.Direction)), st.clear(cfg.Direction))
	}
	if err != nil {
		return nil, nil, err
	}
	if s == nil {
		return nil, nil, st.clear(cfg.Direction)
	}
	pacer, err := choosePacer(cfg.Pacer, plan)
	if err != nil {
		s.Close()
		return nil, nil, err
	}
	elsewhere := cfg.Hook != Auto && string(cfg.Hook) != s.Place.Hook || s.needsOtherDevice(pacer, cfg.Dry)
	if elsewhere || s.Pinned && !cfg.Pin { // what is of the old one outlives the process
		err = st.protect()
	}
	if elsewhere && err == nil {
		cfg.before = s.rollbackGoal()
		err = s.detachLocked(st)
	}
	if elsewhere || err != nil {
		s.Close()
		return nil, nil, err
	}
	next := s.About
	if !s.Until.IsZero() { // whoever would have rolled back is gone
		next.Before, next.Until = nil, time.Time{}
	}
	next.armRollback(s.rollbackGoal(), cfg.Until)
	next.Namespace, next.Index = st.Namespace, st.Index
	next.Asked, next.Dry, next.Pinned, next.AskedGSO = cfg.Pacer, cfg.Dry, cfg.Pin, cfg.GSOLimit
	next.Process, next.Label, next.Expires = os.Getpid(), cfg.Label, 0
	s.TookOver, s.encoded = true, cfg.ready
	changes, err := s.install(st, plan, &next)
	if err != nil && !errors.As(err, new(*dataplane.ActiveError)) {
		s.Close()
		return nil, nil, err
	}
	return s, changes, err
}

// unpinned ends a pinned shaper that may not be looked into.
func unpinned(path string) error {
	l, err := link.LoadPinnedLink(path, nil)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return cause.Of(err)
	}
	return errors.Join(os.Remove(path), l.Detach(), l.Close())
}

func (cfg *Config) attachNew(st *site, plan *dataplane.Plan, d *device) (s *Shaper, err error) {
	s = &Shaper{About: About{
		Version: recordVersion, Interface: cfg.Interface, Index: st.Index, Namespace: st.Namespace, Direction: cfg.Direction,
		Since: time.Now().Round(0), Process: os.Getpid(),
	}, encoded: cfg.ready}
	if s.maps, err = newStateMaps(); err != nil {
		return nil, err
	}
	next := s.About
	next.Dry, next.Pinned, next.AskedGSO = cfg.Dry, cfg.Pin, cfg.GSOLimit
	next.Asked, next.Label, next.Place.Hook = cfg.Pacer, cfg.Label, string(cfg.Hook)
	next.armRollback(cfg.before, cfg.Until)
	if _, err = s.install(st, plan, &next); err != nil {
		// What is new has to be whole.
		err = errors.Join(plain(err), s.detachLocked(st))
		s.Close()
		return nil, err
	}
	return s, nil
}

// plain is what went wrong, of a policy that is not to stay active.
func plain(err error) error {
	var active *dataplane.ActiveError
	if errors.As(err, &active) {
		return active.Err
	}
	return err
}

// attach attaches a program before all others of a hook: if it lets a packet pass, the
// next program sees it. The device is the interface or its ifb.
func (st *site) attach(d *device, p *ebpf.Program, direction Direction, to Hook) (hook.Hook, hook.Place, error) {
	ingress := direction == Ingress
	switch to {
	case XDP:
		if d.link != dataplane.LinkEthernet {
			return nil, hook.Place{}, UseTC.errorf("interface %s has no Ethernet header, which XDP needs", d.name)
		}
		h, at, err := hook.AttachXDP(d.Index, p)
		if errors.Is(err, hook.ErrXDPTaken) {
			err = UseTC.errorf("interface %s %w", d.name, err)
		}
		return h, at, err
	case TC:
		return st.attachFilter(d, p, ingress)
	}
	h, at, err := hook.AttachTCX(d.Index, ingress, p)
	switch {
	case errors.Is(err, hook.ErrNoTCX) && to == Auto:
		return st.attachFilter(d, p, ingress)
	case errors.Is(err, hook.ErrNoTCX):
		err = UseTC.errorf("%w", err)
	}
	return h, at, err
}

func (st *site) attachFilter(d *device, p *ebpf.Program, ingress bool) (hook.Hook, hook.Place, error) {
	var err error
	if d.Index == st.Index {
		err = st.addClsact()
	} else { // the ifb takes its clsact with it
		err = hook.AddClsact(d.Index)
	}
	if err != nil {
		return nil, hook.Place{}, err
	}
	h, at, err := hook.AttachFilter(d.Index, ingress, p, st.protect)
	if err != nil {
		err = fmt.Errorf("tc filter on %s: %w", d.name, err)
	}
	return h, at, err
}
