package kernel

import (
	"errors"
	"slices"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/iface"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/image"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/qdisc"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/record"
)

// knownTree is the tree of HTB in force with the leaves of customers, as its owner knows it. Changes need
// not ask the kernel for all classes.
type knownTree struct {
	*qdisc.Tree
	leaves  *image.Leaves
	loaded  time.Time // About.Loaded when it was known
	changes uint64    // About.TreeChanges
}

// keepTree keeps a tree that was just put into force.
func (s *Shaper) keepTree(g *image.Image, t *qdisc.Tree) {
	s.tree = knownTree{}
	if s.Leaves && s.owner.File != nil {
		s.tree = knownTree{t, g.Placed(), s.Loaded, s.TreeChanges}
	}
}

// treeKnown reports whether the known tree is still in force.
func (s *Shaper) treeKnown() bool {
	return s.tree.Tree != nil && s.tree.loaded.Equal(s.Loaded) && s.tree.changes == s.TreeChanges
}

// changeTree puts the tree of a plan into force that differs in rates and in the links of customers. It
// makes new leaves for customers that move; retire removes the others later.
func (s *Shaper) changeTree(plan *compiled.Plan) (*image.Image, *iface.Device, error) {
	g, err := image.EncodeRates(&s.About, plan.For(s.Direction))
	if err != nil {
		return nil, nil, err
	}
	d, err := iface.ByIndex(s.Identity())
	if err != nil {
		return nil, nil, err
	}
	known := s.treeKnown()
	leaves := s.tree.leaves
	if !known {
		if leaves, err = s.maps.ReadLeaves(&s.About, s.Place.Index); err != nil {
			return nil, nil, err
		}
	}
	if err := g.PlaceLeaves(&s.About, leaves, s.retiring()); err != nil {
		return nil, nil, err
	}
	t := g.Tree(d)
	if !known || t.ChangeFrom(s.tree.Tree, s.Place.Index) != nil { // another program may have removed a class
		if err := t.Grow(s.Place.Index); err != nil {
			return nil, nil, err
		}
	}
	s.TreeChanges++
	if err := record.Write(s.about, &s.About); err != nil {
		return nil, nil, err
	}
	s.keepTree(g, t)
	return g, d, nil
}

// retired is a leaf that a customer left.
type retired struct {
	customer uint64 // ID
	id       uint16
	since    time.Time
}

// programTime is far longer than a run of the program, which may put a packet into a leaf that a customer
// has just left.
const programTime = 50 * time.Millisecond

// retiring returns the IDs of leaves that customers left, and that are not yet removed.
func (s *Shaper) retiring() (ids []uint16) {
	for _, r := range s.retired {
		ids = append(ids, r.id)
	}
	return ids
}

// removeRetired removes the leaves whose packets have left. Their drops count as those of the customer.
func (s *Shaper) removeRetired() error {
	var errs []error
	dropped := map[uint64]uint64{}
	s.retired = slices.DeleteFunc(s.retired, func(r retired) bool {
		if time.Since(r.since) < programTime {
			return false
		}
		drops, removed, err := qdisc.RemoveEmpty(s.Place.Index, r.id)
		if removed && err == nil && drops > 0 {
			s.RetiredDrops += drops
			dropped[r.customer] += drops
		}
		errs = append(errs, err)
		return removed
	})
	if len(dropped) > 0 {
		errs = append(errs, s.maps.AddDrops(dropped), record.Write(s.about, &s.About))
	}
	return errors.Join(errs...)
}

// drainRetired is removeRetired by a process that may end now: it waits for the packets.
func (s *Shaper) drainRetired() error {
	for end := time.Now().Add(drainTime); len(s.retired) > 0 && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
		if err := s.removeRetired(); err != nil {
			return err
		}
	}
	return nil
}
