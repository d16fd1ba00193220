package kernel

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/cause"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/hook"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/iface"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/image"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/record"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/rundir"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/remedy"
	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// Hook is the place in the kernel where a program is attached to an interface.
type Hook string

// Hooks. Auto means TCX, or TC if the kernel does not support TCX.
const (
	Auto Hook = "auto"
	TCX  Hook = hook.TCX // a link, since kernel 6.6
	TC   Hook = hook.TC  // a filter of the clsact qdisc
	XDP  Hook = hook.XDP // a link, at ingress only
)

// Generic is the mode of an XDP program in the network stack, because the driver does not support
// XDP. It is slow.
const Generic = hook.Generic

// Config selects where and how Attach attaches a policy.
type Config struct {
	Interface string              // name
	Direction dataplane.Direction // Egress or Ingress
	Hook      Hook                // "" means Auto
	Pacer     Pacer               // root qdisc for queued packets; "" selects one supported by the kernel
	Dry       bool                // count packets, but forward each one unchanged
	Pin       bool                // stay attached when the process ends
	// GSOLimit is the maximum size of GSO packets passed to the device, in bytes. 0 selects a size
	// for the rates of the queues; NoGSOLimit leaves the device's limit unchanged.
	GSOLimit uint32
	// Until arms a rollback: unless Confirm is called by then, RollBack restores the policy of the
	// shaper taken over, or detaches. The zero time arms none.
	Until time.Time
	// Guard is called at most once, before the first change that the kernel does not undo when this
	// process is killed. It should start a process to call Rescue then. If it fails, so does the
	// change. It may be nil.
	Guard func() error
	// Label is stored beside the program, for processes that find the shaper.
	Label json.RawMessage
	// Restore holds the state of customers returned by Shaper.SaveCustomers, nil for none. It is
	// used unless a shaper is taken over, also after a reboot: tokens have grown since then. If it
	// cannot be used, customers start anew, and Shaper.Notes says so.
	Restore []byte
	// KeepOrphans leaves the remains of deleted interfaces to other calls, such as Clear: finding them
	// takes a look at all interfaces.
	KeepOrphans bool
	// Programs are shared with other Shapers of this process; nil: the Shaper has a program of its own.
	Programs *Programs

	rollbackGoal *record.Before // of a shaper detached from another hook or device
	encoded      *image.Image   // of the plan
}

// settings returns the part of the configuration in a shaper's record.
func (cfg *Config) settings() *record.Before {
	return &record.Before{
		Label: cfg.Label, Dry: cfg.Dry, Pinned: cfg.Pin, Asked: cfg.Pacer, AskedGSO: cfg.GSOLimit,
	}
}

// BusyError reports that another process shapes the interface in this direction. Its
// About describes that shaper; only Interface and Direction are set if its record cannot
// be read, for example because the program was removed.
type BusyError struct{ About }

func (e *BusyError) Error() string {
	by := fmt.Sprintf("process %d", e.Process)
	if e.Process == 0 { // its program was removed
		by = "another process"
	}
	return fmt.Sprintf("%s %v is already shaped by %s", e.Interface, e.Direction, by)
}

// Attach attaches the plan of a policy to an interface. The caller must close the
// Shaper.
//
// If the interface has a shaper in the same direction whose process ended, Attach takes it over: as
// with Reload, classes with the same name keep their counters and tokens, and the changes list the
// classes of both policies. Without such a shaper there are no changes. Attach first removes other
// leftovers of killed processes; Shaper.Removed lists them.
//
// The error joins dataplane.FieldErrors if the kernel plane rejects the plan; then nothing was
// changed. It wraps a *BusyError if the shaper's process is alive, a *NoInterfaceError if there is no
// such interface, and a *remedy.Error if something else must be changed first. After a
// *dataplane.ActiveError the Shaper is returned and active.
func Attach(cfg Config, plan *compiled.Plan) (*Shaper, []compiled.ClassChange, error) {
	if cfg.Hook == "" {
		cfg.Hook = Auto
	}
	d, err := cfg.prepare(plan)
	if err != nil {
		return nil, nil, err
	}
	st, err := openSite(d.ID)
	if err != nil {
		return nil, nil, err
	}
	defer st.close()
	st.guard = cfg.Guard
	owner, err := cfg.lockOwner(d.ID)
	if err != nil {
		return nil, nil, err
	}
	if !cfg.KeepOrphans {
		if _, err := removeOrphans(); err != nil {
			return nil, nil, errors.Join(err, owner.Close())
		}
	}
	s, changes, err := cfg.takeOver(st, plan)
	if s == nil && err == nil {
		s, err = cfg.attachNew(st, plan)
	}
	if err != nil && !errors.As(err, new(*dataplane.ActiveError)) {
		if cfg.rollbackGoal != nil {
			err = fmt.Errorf("%w; the previous shaper, at another hook or device, is detached", err)
		}
		return nil, nil, errors.Join(err, owner.Close())
	}
	s.owner, s.guard, s.Removed = owner, st.guard, append(st.Removed, st.Notes...)
	return s, changes, err
}

// lockOwner takes the owner lock of the direction. If another process holds it, the
// error wraps a *BusyError.
func (cfg *Config) lockOwner(at iface.ID) (rundir.Lock, error) {
	owner, err := rundir.TakeOwnerLock(at, cfg.Direction)
	for try := 0; errors.Is(err, rundir.ErrLocked) && try < 5; try++ { // HasOwner takes the lock for a moment
		time.Sleep(10 * time.Millisecond)
		owner, err = rundir.TakeOwnerLock(at, cfg.Direction)
	}
	if errors.Is(err, rundir.ErrLocked) {
		busy := &BusyError{About{Interface: cfg.Interface, Direction: cfg.Direction}}
		if other, err := findShaper(at, cfg.Direction); err == nil && other != nil {
			busy.About = other.About
			other.Close()
		}
		return rundir.Lock{}, &remedy.Error{Err: busy, Remedy: remedy.CallReload}
	}
	return owner, err
}

// prepare finds the interface and encodes the plan. It rejects an unusable configuration before
// anything is changed.
func (cfg *Config) prepare(plan *compiled.Plan) (*iface.Device, error) {
	d, err := iface.ByName(cfg.Interface)
	if err != nil {
		return nil, err
	}
	if err := plan.Accepts(d.LinkType); err != nil {
		return nil, err
	}
	if cfg.Hook == XDP && cfg.Direction == Egress {
		return nil, remedy.UseIngress.Errorf("XDP sees only ingress packets")
	}
	if cfg.Pin && !rundir.BpffsMounted() {
		switch cfg.Hook {
		case Auto:
			cfg.Hook = TC // a filter stays attached without a pin
		case TCX, XDP:
			return nil, rundir.ErrNoBpffs
		}
	}
	pacer, err := image.ChoosePacer(cfg.Pacer, plan)
	if err != nil {
		return nil, err
	}
	cfg.encoded, err = image.EncodeDirection(plan, cfg.Direction, string(cfg.Hook), pacer)
	return d, err
}

// takeOver installs the plan in an attached shaper whose process ended. It returns a nil Shaper if
// there is none. One that cannot be used, because its record is unusable or the plan needs another
// hook or device, is removed first.
func (cfg *Config) takeOver(st *site, plan *compiled.Plan) (*Shaper, []compiled.ClassChange, error) {
	s, err := findShaper(st.ID, cfg.Direction)
	if errors.Is(err, unix.EPERM) {
		return nil, nil, errors.Join(detachPinned(rundir.PinPath(st.ID, cfg.Direction)),
			st.clear(cfg.Direction))
	}
	if err != nil {
		return nil, nil, err
	}
	if s == nil {
		return nil, nil, st.clear(cfg.Direction)
	}
	s.sharer = cfg.Programs.of(s.Program, s.Place.Index)
	if fits, err := cfg.prepareTakeOver(st, s, plan); err != nil || !fits {
		s.Close()
		return nil, nil, err
	}
	next := s.About
	if !s.Until.IsZero() { // the process that would have rolled back has ended
		next.Before, next.Until = nil, time.Time{}
	}
	next.ArmRollback(s.RollbackGoal(), cfg.Until)
	next.Apply(cfg.settings())
	next.Namespace, next.Index, next.Process = st.Namespace, st.Index, os.Getpid()
	s.TookOver, s.encoded, s.programs = true, cfg.encoded, cfg.Programs
	changes, err := s.install(st, plan, &next)
	if err != nil && !errors.As(err, new(*dataplane.ActiveError)) {
		s.Close()
		return nil, nil, err
	}
	return s, changes, err
}

// prepareTakeOver reports whether the plan can run at the hook and device of shaper s. If
// not, it detaches s.
func (cfg *Config) prepareTakeOver(st *site, s *Shaper, plan *compiled.Plan) (fits bool, err error) {
	pacer, err := image.ChoosePacer(cfg.Pacer, plan)
	if err != nil {
		return false, err
	}
	fits = (cfg.Hook == Auto || string(cfg.Hook) == s.Place.Hook) && !s.NeedsOtherDevice(pacer, cfg.Dry)
	if !fits || s.Pinned && !cfg.Pin { // leftovers of the old shaper outlive this process
		err = st.startGuard()
	}
	if !fits && err == nil {
		cfg.rollbackGoal = s.RollbackGoal()
		err = s.detachLocked(st)
	}
	return fits, err
}

// detachPinned detaches a pinned link whose program this process must not inspect.
func detachPinned(path string) error {
	l, err := link.LoadPinnedLink(path, nil)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return cause.Of(err)
	}
	return errors.Join(os.Remove(path), l.Detach(), l.Close())
}

// attachNew attaches the first shaper of the direction.
func (cfg *Config) attachNew(st *site, plan *compiled.Plan) (s *Shaper, err error) {
	s = &Shaper{About: About{
		Version: record.Version, Interface: cfg.Interface, Index: st.Index, Namespace: st.Namespace,
		Direction: cfg.Direction, Since: time.Now().Round(0), Process: os.Getpid(),
	}, encoded: cfg.encoded, programs: cfg.Programs}
	var unusable error
	s.restored, unusable = cfg.restored()
	if s.maps, err = image.NewMaps(); err != nil {
		return nil, err
	}
	next := s.About
	next.Apply(cfg.settings())
	next.Place.Hook = string(cfg.Hook)
	next.ArmRollback(cfg.rollbackGoal, cfg.Until)
	if _, err = s.install(st, plan, &next); err != nil {
		// With no previous policy to keep, a partial installation is removed.
		err = errors.Join(withoutActive(err), s.detachLocked(st))
		s.Close()
		return nil, err
	}
	if unusable != nil {
		s.Notes = append(s.Notes, unusable.Error())
	}
	return s, nil
}

// withoutActive unwraps a *dataplane.ActiveError, for a policy that is detached again.
func withoutActive(err error) error {
	var active *dataplane.ActiveError
	if errors.As(err, &active) {
		return active.Err
	}
	return err
}

// attachProgram attaches a program in front of all others of a hook. A passed packet continues to
// the next program. d is the interface or its ifb.
func (st *site) attachProgram(
	d *iface.Device, p *ebpf.Program, direction dataplane.Direction, to Hook,
) (hook.Hook, hook.Place, error) {
	ingress := direction == Ingress
	switch to {
	case XDP:
		if d.LinkType != dataplane.LinkEthernet {
			return nil, hook.Place{}, remedy.UseTC.Errorf(
				"interface %s has no Ethernet header, which XDP needs", d.Name)
		}
		h, at, err := hook.AttachXDP(d.Index, p)
		if errors.Is(err, hook.ErrXDPTaken) {
			err = remedy.UseTC.Errorf("interface %s %w", d.Name, err)
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
		err = remedy.UseTC.Errorf("%w", err)
	}
	return h, at, err
}

func (st *site) attachFilter(d *iface.Device, p *ebpf.Program, ingress bool) (hook.Hook, hook.Place, error) {
	var err error
	if d.Index == st.Index {
		err = st.addClsact()
	} else { // the kernel removes this clsact together with the ifb
		err = hook.AddClsact(d.Index)
	}
	if err != nil {
		return nil, hook.Place{}, err
	}
	h, at, err := hook.AttachFilter(d.Index, ingress, p, st.startGuard)
	if err != nil {
		err = fmt.Errorf("tc filter on %s: %w", d.Name, err)
	}
	return h, at, err
}
