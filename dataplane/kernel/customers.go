package kernel

import (
	"errors"
	"fmt"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/cause"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/image"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/qdisc"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/rundir"
	"github.com/cilium/ebpf"
)

// Customers returns the counters of the customers of a plan, as CustomerCounters.Of does.
func (s *Shaper) Customers(plan *compiled.Customers) ([]dataplane.CustomerStats, error) {
	if s.About.Customers == 0 {
		return make([]dataplane.CustomerStats, len(plan.Of)), nil
	}
	return (&CustomerCounters{s.maps.Customers, s.leafDevice()}).Of(plan)
}

// CustomerCounters gives access to the counters of a shaper's customers without the shaper, so
// a goroutine can read them while another one uses it. Reading 100,000 takes some 40 ms.
type CustomerCounters struct {
	list   *ebpf.Map
	device int // index of the device with the leaves of customers; 0 without leaves
}

// leafDevice returns the index of the device with the leaves of customers; 0 without leaves.
func (s *Shaper) leafDevice() int {
	if !s.Leaves || s.Pacer != HTB {
		return 0
	}
	return s.Place.Index
}

// CustomerCounters returns access to the counters, or nil without customers. The caller must close
// it; otherwise it is closed when it is garbage.
func (s *Shaper) CustomerCounters() (*CustomerCounters, error) {
	if s.About.Customers == 0 {
		return nil, nil
	}
	list, err := s.maps.Customers.Clone()
	return &CustomerCounters{list, s.leafDevice()}, cause.Of(err)
}

// Close ends the access.
func (c *CustomerCounters) Close() { _ = c.list.Close() }

// Of returns the counters of the customers of a plan, in its order. They are zero for a customer
// unknown to the shaper. The counters of one customer are not read at the same moment as those of
// another. Drops by leaves of HTB count as packets without bytes; with leaves, reading 10,000 customers takes
// some 60 ms longer.
func (c *CustomerCounters) Of(plan *compiled.Customers) ([]dataplane.CustomerStats, error) {
	var drops map[uint16]uint64
	if c.device != 0 {
		var err error
		if drops, err = qdisc.LeafDrops(c.device); err != nil {
			return nil, err
		}
	}
	return image.CustomerStats(c.list, plan, drops)
}

// Customer returns the counters of a customer; zero if the shaper does not have it. The first
// call after a reload reads all customers.
func (s *Shaper) Customer(name string) (out dataplane.CustomerStats, err error) {
	if s.About.Customers == 0 {
		return out, nil
	}
	index, err := s.customerIndex()
	if err != nil {
		return out, err
	}
	return index.Stats(name, func(leaf uint16) (uint64, error) {
		if s.leafDevice() == 0 {
			return 0, nil
		}
		return qdisc.DropsOf(s.Place.Index, leaf)
	})
}

// SetCustomerPlans changes the plans of customers of the attached program. Each keeps its tokens
// and counters, and no packet is metered twice or not at all. Customers unknown to the shaper are
// left out. The error joins dataplane.FieldErrors if the kernel plane rejects a plan; then no plan
// is changed. It wraps ErrDetached if the shaper is no longer attached, and ErrNoRoom if a reload
// is needed. For the owner of the shaper it may be an *UnlockedError: then all plans are changed.
//
// amended returns the policy's plan for both directions, with the new plans and those of all other
// customers. It is called only if queues of customers have leaves of HTB, and may be nil otherwise. A
// customer that moves to another link gets a new leaf; the one before is removed when its packets have left,
// by a later call or by PrepareCustomerPlans.
func (s *Shaper) SetCustomerPlans(list []compiled.CustomerService, amended func() *compiled.Plan) error {
	// Not lockSite: it also asks for the interface, which waits for every change of the network.
	change, unlocked, err := s.lockToSet()
	if err != nil {
		return err
	}
	defer change.Close()
	index, err := s.currentIndex()
	if index == nil {
		return err
	}
	plans, err := image.EncodeServices(&s.About, list)
	if err != nil {
		return err
	}
	leafOf := func(string) uint32 { return 0 }
	if s.Leaves {
		g, _, err := s.changeTree(amended())
		if err != nil {
			return err
		}
		leafOf = g.LeafOf
	}
	now := time.Now()
	left := func(name string, leaf uint32) {
		s.retired = append(s.retired, retired{image.CustomerID(name), uint16(leaf), now})
	}
	if err = index.Set(list, plans, leafOf, left); err != nil {
		index.Close() // it may differ from the maps now
		s.index = nil
		return err
	}
	if s.owner.File == nil {
		return s.drainRetired()
	}
	return errors.Join(unlocked, s.removeRetired())
}

// PrepareCustomerPlans makes the next call of SetCustomerPlans fast: without it, the first call
// after each reload reads all customers. It does nothing while another process holds the lock of
// the interface.
func (s *Shaper) PrepareCustomerPlans() error {
	if s.About.Customers == 0 || s.index.Fits(s.maps, s.Loaded) && len(s.retired) == 0 {
		return nil
	}
	change, err := rundir.TryTakeChangeLock(s.Identity())
	if errors.Is(err, rundir.ErrLocked) {
		return nil
	}
	if err != nil {
		return err
	}
	index, err := s.currentIndex()
	if index != nil {
		err = errors.Join(index.Open(), s.removeRetired())
	}
	return errors.Join(err, change.Close())
}

// currentIndex returns the index of the maps of the attached program, or nil without customers. The
// interface must be locked.
func (s *Shaper) currentIndex() (*image.CustomerIndex, error) {
	if err := s.Refresh(); err != nil || s.About.Customers == 0 {
		return nil, err
	}
	return s.customerIndex()
}

// customerIndex returns the index of the maps in use.
func (s *Shaper) customerIndex() (*image.CustomerIndex, error) {
	if s.index.Fits(s.maps, s.Loaded) {
		return s.index, nil
	}
	s.index.Close()
	s.index = nil
	x, err := image.NewCustomerIndex(s.maps, s.Loaded)
	if err != nil {
		return nil, err
	}
	s.index = x
	return x, nil
}

// SaveCustomers returns the tokens and delays of all customers, for Config.Restore, or nil without
// customers. The bytes have no checksum. It may be called after Detach.
func (s *Shaper) SaveCustomers() ([]byte, error) {
	if s.About.Customers == 0 {
		return nil, nil
	}
	return s.maps.SaveCustomers()
}

// restored returns the customers of Config.Restore.
func (cfg *Config) restored() (*image.CustomerTable, error) {
	if cfg.Restore == nil {
		return nil, nil
	}
	t, err := image.RestoreNow(cfg.Restore)
	if err != nil {
		return nil, fmt.Errorf("%s %v: %w", cfg.Interface, cfg.Direction, err)
	}
	return t, nil
}
