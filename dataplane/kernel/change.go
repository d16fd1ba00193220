package kernel

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cilium/ebpf"

	"github.com/a-seed-32e5a53f/shaper/bpf"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/cause"
)

// load encodes a plan and puts it in the place of the one before, or attaches it if
// there is none. next is what the shaper becomes. Its record is
// complete before the program is attached, but for Begun, so that the program can
// be recognized and used if this process is killed.
func (s *Shaper) install(st *site, plan *dataplane.Plan, next *About) (changes []dataplane.Change, err error) {
	d, err := deviceAt(s.iface())
	if err != nil {
		return nil, err
	}
	if err := plan.Length.Accepts(d.link); err != nil {
		return nil, err
	}
	g, err := next.encode(plan, s.encoded)
	if err != nil {
		return nil, err
	}
	s.encoded = nil
	shares, err := s.claimShares(g, next)
	if err != nil {
		return nil, err
	}
	defer func() {
		if e := shares.unlock(); e != nil {
			err = errors.Join(err, e)
		}
	}()
	changes = g.inherit(&s.About)
	g.constants.Link, g.constants.Dry = uint8(d.link), flag(next.Dry)
	if next.GSOLimit, err = st.gsoLimit(next, g, d.mtu); err != nil {
		return nil, err
	}
	paced := s.Pacer != ""
	swapped := false
	defer func() {
		if err != nil && !paced && !swapped {
			err = errors.Join(err, st.unpace(s.Direction))
		}
	}()
	if d, err = s.buildQueues(st, g, d); err != nil {
		return nil, err
	}
	maps, err := s.maps.forPlan(g, &s.About, shares)
	if err != nil {
		return nil, err
	}
	spare := maps // whichever will not be used
	defer func() { spare.closeExcept(s.maps) }()
	to := entryOf(s.Direction, next.Place.Hook, g.pacer)
	spec, err := bpf.LoadShaper()
	if err != nil {
		return nil, err
	}
	c, err := g.loadProgram(spec, programs[to], maps.byName())
	if err != nil {
		return nil, err
	}
	defer c.Close()
	p := c.Programs[programs[to]]
	next.Version, next.Begun, next.Loaded = recordVersion, true, time.Now().Round(0)
	next.recordImage(g)
	about, err := newAbout(next, len(s.Label)) // there is room to note what was before
	if err != nil {
		return nil, err
	}
	defer func() { about.Close() }() // of whichever is not used
	if err := errors.Join(cause.Of(p.BindMap(about)), maps.counters.bind(p)); err != nil {
		return nil, err
	}
	if err := checkNames(p, about); err != nil {
		return nil, err
	}
	info, err := p.Info()
	if err != nil {
		return nil, err
	}
	next.Program, _ = info.ID()
	s.leases.lock.Lock() // no lease is given to what is copied
	defer s.leases.lock.Unlock()
	err = g.populate(&s.About, s.maps, maps, shares)
	if err == nil {
		err = shares.registerProgram(st, s.Program, next.Program)
	}
	if err == nil && s.hook == nil {
		s.hook, next.Place, err = st.attach(d, p, Direction(to), next.Place.Hook)
	} else if err == nil {
		err = s.hook.replace(p)
	}
	if err != nil {
		return nil, errors.Join(err, s.maps.freeTables(g.stages, s.bpfStages()))
	}
	swapped = true
	errs := []error{shares.commitProgram(next.Program), s.maps.freeTables(s.bpfStages(), g.stages)}
	s.Notes = shares.notes()
	s.about, about = about, s.about
	s.About, s.maps, spare = *next, maps, s.maps
	s.leases.useStages(s.maps.leases, &s.About)
	if g.pacer == "" {
		before := st.Removed
		errs = append(errs, st.unpace(s.Direction))
		if paced { // that was the policy's before, nothing left behind
			st.Removed = before
		}
		s.Lost.add(st.Lost)
	} else {
		errs = append(errs, g.tree(d).Prune(d.Index))
	}
	errs = append(errs, s.completeAttach(st))
	if err := errors.Join(errs...); err != nil {
		return changes, &ActiveError{err}
	}
	return changes, nil
}

// named says whether program and record can be recognized: without memory for a
// probe the library leaves out their names.
func checkNames(p *ebpf.Program, about *ebpf.Map) error {
	program, err := p.Info()
	if err != nil {
		return err
	}
	record, err := about.Info()
	if err == nil && (!slices.Contains(programs[:], program.Name) || record.Name != aboutMap) {
		err = errors.New("the kernel did not name the program: out of memory, or too old")
	}
	return err
}

// pace makes what holds the packets of queues, beside what is there already. It
// returns the device where the program belongs.
func (s *Shaper) buildQueues(st *site, g *image, d *device) (*device, error) {
	if g.pacer == "" {
		return d, nil
	}
	if s.Direction == Ingress {
		index, err := st.addIFB()
		if err != nil {
			return nil, err
		}
		d = &device{iface{d.Namespace, index}, ifbName(d.Index), d.mtu, d.link}
	}
	return d, st.pace(g.tree(d), d.Index)
}

// finish does what comes after the program is attached: its deadline, the limit of
// the device, and a pin or none. A pin that a rollback needs stays until that is confirmed.
// Then it looks whether all is as the record says.
func (s *Shaper) completeAttach(st *site) error {
	if err := s.writeDeadline(); err != nil {
		return err
	}
	before := st.Removed
	if err := st.setGSO(s.Direction, s.GSOLimit); err != nil {
		return err
	}
	st.Removed = before // a limit that ends was the policy's before, nothing left behind
	path := st.pin(s.Direction)
	stays := s.Pinned || !s.Until.IsZero() && s.Before != nil && s.Before.Pinned
	if l, ok := s.hook.(*linkHook); ok && stays {
		if err := pinLink(l, path); err != nil {
			return fmt.Errorf("pin %s: %w", path, err)
		}
		if same, err := isPinned(l, path); err != nil || !same {
			return errors.Join(fmt.Errorf("pin %s: it is not there after it was made", path), err)
		}
	} else if err := removePin(path); err != nil {
		return err
	}
	if id, err := s.hook.program(); err != nil || id != s.Program {
		return errors.Join(fmt.Errorf("%s %v: the program is not there after it was attached", s.Interface, s.Direction), err)
	}
	s.Begun = false
	return writeAbout(s.about, &s.About)
}
