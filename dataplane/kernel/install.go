package kernel

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/cause"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/engine"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/hook"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/iface"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/image"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/record"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/registry"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/rundir"
	"github.com/cilium/ebpf"
)

// install makes the shaper run a plan: it replaces the attached program, or attaches the
// first one. next is the shaper's new About, except the fields that depend on the plan.
//
// Nothing that the attached program uses changes before the swap. If a step up to there
// fails, that step and those before it are undone, last first. After the swap the new
// policy is active, and any error is a *dataplane.ActiveError.
func (s *Shaper) install(st *site, plan *compiled.Plan, next *About) ([]compiled.ClassChange, error) {
	i := &installation{s: s, st: st, plan: plan, next: next}
	defer i.closeUnused()
	if err := i.run(
		step{i.encodePlan, nil},
		step{i.lockBudgets, i.restoreBudgets},
		step{i.assignSlots, nil},
		step{i.buildQueues, i.removeQueues},
		step{i.makeMaps, nil},
		step{i.makeRecord, nil},
		step{i.loadProgram, nil},
	); err != nil {
		return nil, err
	}
	s.leases.Lock.Lock() // a lease set after its state is copied would be lost
	defer s.leases.Lock.Unlock()
	if err := i.run(
		step{i.copyState, i.freeNewTables},
		step{i.registerUser, nil}, // restoreBudgets undoes it
		step{i.swap, nil},
	); err != nil {
		return nil, err
	}
	if err := i.complete(); err != nil {
		return i.changes, &dataplane.ActiveError{Err: err}
	}
	return i.changes, nil
}

// installation is the state of one install.
type installation struct {
	s    *Shaper // runs the previous policy until complete
	st   *site
	plan *compiled.Plan
	next *About
	undo []func() error // of the steps begun so far

	device  *iface.Device // device of the program: the interface or its ifb
	image   *image.Image
	claims  *registry.Claims // nil without host budgets in both policies
	changes []compiled.ClassChange
	there   *image.Leaves // leaves of customers under the previous policy
	entry   image.Entry
	loaded  *ebpf.Collection
	program *ebpf.Program // in loaded, or shared
	note    string        // for Shaper.Notes, or ""

	generation // of the new program; after complete, of the previous one
}

// step is a part of an installation.
type step struct {
	do   func() error
	undo func() error // also undoes a step that failed halfway; nil if closeUnused suffices
}

// run takes steps in order. If one fails, run undoes it and all steps before it, those
// of earlier calls included.
func (i *installation) run(steps ...step) error {
	for _, s := range steps {
		if s.undo != nil {
			i.undo = append(i.undo, s.undo)
		}
		if err := s.do(); err != nil {
			for _, undo := range slices.Backward(i.undo) {
				err = errors.Join(err, undo())
			}
			return err
		}
	}
	return nil
}

// closeUnused closes the maps, the record and the program not needed by this process: those of the
// previous policy, or after an error those of the new one. The kernel holds the maps of an attached
// program.
func (i *installation) closeUnused() {
	i.generation.closeUnused(&i.s.generation)
	if i.loaded != nil {
		i.loaded.Close()
	}
}

func (i *installation) encodePlan() (err error) {
	if i.device, err = iface.ByIndex(i.s.Identity()); err != nil {
		return err
	}
	if err := i.plan.Accepts(i.device.LinkType); err != nil {
		return err
	}
	if i.image, err = image.EncodeFor(i.next, i.plan, i.s.encoded); err != nil {
		return err
	}
	i.s.encoded = nil
	i.image.Constants.Link, i.image.Constants.Dry = uint8(i.device.LinkType), engine.Flag(i.next.Dry)
	return nil
}

// lockBudgets locks the registry of host budgets until the installation is complete, and
// finds or makes the budgets of the plan.
func (i *installation) lockBudgets() (err error) {
	i.claims, err = i.s.claimBudgets(i.image, i.next)
	if i.claims == nil && err == nil { // gone users of others are no reason to fail
		_, _ = registry.ReleaseBudgets(i.s.Identity(), i.s.Direction)
	}
	return err
}

func (i *installation) restoreBudgets() error { return i.claims.Unlock() }

// assignSlots decides which parts of the new policy continue parts of the previous one.
func (i *installation) assignSlots() (err error) {
	if err := i.s.maps.ReadQueues(&i.s.About); err != nil { // their rates may have changed since Refresh
		return err
	}
	if i.there, err = i.s.maps.ReadLeaves(&i.s.About, i.s.Place.Index); err != nil {
		return err
	}
	if i.changes, err = i.image.Inherit(&i.s.About, i.there); err != nil {
		return err
	}
	i.next.GSOLimit, err = i.st.gsoLimit(i.next, i.image, i.device.MTU)
	return err
}

// buildQueues makes the qdiscs and classes of the plan's queues, beside those in use.
// For ingress it first makes the ifb device, to which the program is then attached.
func (i *installation) buildQueues() (err error) {
	if i.image.Pacer == "" {
		return nil
	}
	if i.s.Direction == Ingress {
		index, err := i.st.addIFB()
		if err != nil {
			return err
		}
		d := i.device
		i.device = &iface.Device{
			ID: iface.ID{Namespace: d.Namespace, Index: index}, Name: hook.IFBName(d.Index), MTU: d.MTU,
			LinkType: d.LinkType,
		}
	}
	if i.image.MQ, err = i.s.replacesMQ(i.device.Index); err != nil {
		return err
	}
	return i.st.buildTree(i.image.Tree(i.device), i.device.Index)
}

// removeQueues undoes buildQueues, unless the active policy contains queues.
func (i *installation) removeQueues() error {
	if i.s.Pacer != "" {
		return nil
	}
	return i.st.removeTree(i.s.Direction)
}

func (i *installation) makeMaps() (err error) {
	i.maps, err = i.s.maps.ForPlan(i.image, &i.s.About, i.claims)
	return err
}

// makeRecord makes the new program's record. It is complete except for Begun, so that another process can
// recognize and use the program if this one is killed.
func (i *installation) makeRecord() (err error) {
	i.entry = image.EntryOf(i.s.Direction, i.next.Place.Hook, i.image.Pacer)
	i.next.Version, i.next.Begun, i.next.Loaded = record.Version, true, time.Now().Round(0)
	i.image.Describe(i.next)
	// with room for Before, which contains this label
	if i.about, err = record.New(i.next, len(i.s.Label)); err != nil {
		return err
	}
	i.readings, err = image.NewReadings(&i.next.Outline)
	return err
}

// loadProgram loads the new program with its record, or finds one to share.
func (i *installation) loadProgram() error {
	if err := i.shareProgram(); err != nil {
		return err
	}
	if i.sharer == nil {
		if err := i.loadOwnProgram(); err != nil {
			return err
		}
	}
	if err := checkNames(i.program, i.about); err != nil {
		return err
	}
	info, err := i.program.Info()
	if err != nil {
		return err
	}
	i.next.Program, _ = info.ID()
	return nil
}

// shareProgram sets the program to a shared one, if there can be one.
func (i *installation) shareProgram() error {
	if i.s.programs == nil || i.claims != nil || !i.image.CanShare(i.maps) {
		return nil
	}
	flows, err := i.image.NewFlows()
	if err != nil {
		return err
	}
	defer flows.Close() // the program keeps its own reference
	own := i.maps.OwnMaps(i.about, i.readings, flows)
	i.sharer, i.note, err = i.s.programs.add(i.image, own, i.device.Index)
	if i.sharer != nil {
		i.program = i.sharer.in.Program
	}
	return err
}

func (i *installation) loadOwnProgram() error {
	spec, err := engine.ShaperSpec()
	if err != nil {
		return err
	}
	name := image.Programs[i.entry]
	if i.loaded, err = i.image.LoadProgram(spec, name, i.maps.ByName()); err != nil {
		return err
	}
	i.program = i.loaded.Programs[name]
	return errors.Join(cause.Of(i.program.BindMap(i.about)), cause.Of(i.program.BindMap(i.readings)),
		i.maps.Counters.BindOlder(i.program))
}

// checkNames checks that other processes will recognize the program and its record. If
// memory is short, the ebpf library omits their names: it takes the kernel for one that
// does not support them.
func checkNames(p *ebpf.Program, about *ebpf.Map) error {
	program, err := p.Info()
	if err != nil {
		return err
	}
	info, err := about.Info()
	if err == nil && (!slices.Contains(image.Programs[:], program.Name) || info.Name != record.MapName) {
		err = errUnnamed
	}
	return err
}

var errUnnamed = errors.New("the kernel did not name the program: out of memory, or too old")

func (i *installation) copyState() error {
	restored := i.s.restored
	i.s.restored = nil
	return i.image.Populate(&i.s.About, i.s.maps, i.maps, i.claims, restored)
}

// freeNewTables frees the tables of keys made by copyState.
func (i *installation) freeNewTables() error {
	return i.s.maps.FreeTables(i.image.Stages, i.s.BpfStages())
}

func (i *installation) registerUser() error {
	return i.claims.RegisterProgram(i.st.startGuard, i.s.Program, i.next.Program)
}

// swap replaces the attached program in one step, or attaches the first one.
func (i *installation) swap() (err error) {
	if i.s.hook != nil {
		return i.s.hook.Replace(i.program)
	}
	i.s.hook, i.next.Place, err = i.st.attachProgram(i.device, i.program, dataplane.Direction(i.entry),
		Hook(i.next.Place.Hook))
	return err
}

// complete updates the shaper after the swap, and removes the parts of the previous policy not used
// by the new one. It continues after an error.
func (i *installation) complete() error {
	s, st := i.s, i.st
	errs := []error{i.claims.CommitProgram(i.next.Program), s.maps.FreeTables(s.BpfStages(), i.image.Stages)}
	s.Notes = i.claims.Notes()
	if i.note != "" {
		s.Notes = append(s.Notes, i.note)
	}
	hadQueues := s.Pacer != ""
	s.About = *i.next
	s.generation, i.generation = i.generation, s.generation
	s.leases.UseStages(s.maps.Leases, &s.About)
	errs = append(errs, i.image.AddMissed(i.maps, s.maps)) // from the previous generation
	if i.image.ChangesCustomers {
		errs = append(errs, s.maps.ChangeCustomers(i.image))
	}
	if i.image.Pacer == "" {
		removed := st.Removed
		errs = append(errs, st.removeTree(s.Direction))
		if hadQueues { // of the previous policy, not leftovers
			st.Removed = removed
		}
		s.Lost.Add(st.Lost)
	} else {
		errs = append(errs, i.pruneTree())
	}
	errs = append(errs, s.completeAttach(st), i.claims.Unlock())
	if first, err := s.Read(); err == nil {
		s.Keep(first)
	}
	return errors.Join(errs...)
}

// pruneTree removes the classes not used by the new policy, after their packets have left.
func (i *installation) pruneTree() error {
	if i.image.Pacer == HTB {
		if err := engine.AwaitPrograms(); err != nil { // the previous program may be sending packets to them
			return err
		}
	}
	t := i.image.Tree(i.device)
	pruned, err := t.Prune(i.device.Index, drainTime)
	i.s.retired = nil // removed, too
	i.s.keepTree(i.image, t)
	i.s.Lost.Add(Discarded{Packets: pruned.Lost})
	drops, all := i.there.DropsOf(pruned.Drops)
	i.s.RetiredDrops += all
	return errors.Join(err, i.s.maps.AddDrops(drops))
}

// completeAttach completes each change of an attached shaper: it sets the program's deadline, the
// device's GSO limit and the pin, checks that the program is attached, and writes the record. It
// leaves a pin for a rollback until the policy is confirmed.
func (s *Shaper) completeAttach(st *site) error {
	if err := s.writeDeadline(); err != nil {
		return err
	}
	removed := st.Removed
	if err := st.setGSO(s.Direction, s.GSOLimit); err != nil {
		return err
	}
	st.Removed = removed // a removed limit was the previous policy's, not a leftover
	path := rundir.PinPath(st.ID, s.Direction)
	pinned := s.Pinned || !s.Until.IsZero() && s.Before != nil && s.Before.Pinned
	if l, ok := s.hook.(*hook.BPFLink); ok && pinned {
		if err := rundir.PinLink(l, path); err != nil {
			return fmt.Errorf("pin %s: %w", path, err)
		}
		if same, err := rundir.IsPinned(l, path); err != nil || !same {
			return errors.Join(fmt.Errorf("pin %s: missing after it was created", path), err)
		}
	} else if err := rundir.RemovePin(path); err != nil {
		return err
	}
	if id, err := s.hook.Program(); err != nil || id != s.Program {
		return errors.Join(
			fmt.Errorf("%s %v: the program is missing after it was attached", s.Interface, s.Direction), err)
	}
	s.Begun = false
	return record.Write(s.about, &s.About)
}
