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

// SetCustomerPlans changes the plans of customers of the attached program. Each keeps its
// tokens and counters, and no packet is metered twice or not at all. Customers that the
// shaper does not have are left out. The error joins dataplane.FieldErrors if the kernel plane
// rejects a plan; then no plan is changed. It wraps ErrDetached if the shaper is no longer
// attached, and ErrNoRoom if a reload is needed. For the owner of the shaper it may be an *UnlockedError: then all
// plans are changed.
func (s *Shaper) SetCustomerPlans(list []dataplane.CustomerPlan) error {
	change, unlocked, err := s.lockToSet() // lockSite also asks for the interface: that waits for every change of the network
	if err != nil {
		return err
	}
	defer change.Close()
	index, err := s.currentIndex()
	if index == nil {
		return err
	}
	e := encoder{image: &image{entry: entryOf(s.Direction, Hook(s.Place.Hook), s.Pacer), pacer: s.Pacer}}
	plans := map[*dataplane.PlanService]bpf.ShaperPlan{}
	for _, c := range list {
		if _, known := plans[c.Plan]; !known {
			plans[c.Plan] = e.service(c.Plan)
		}
	}
	if e.faults != nil {
		return errors.Join(e.faults...)
	}
	if err = index.set(list, plans); err != nil {
		index.close() // it may differ from the maps now
		s.index = nil
		return err
	}
	return unlocked
}

// PrepareCustomerPlans makes the next call of SetCustomerPlans fast: without it, the first call
// after each reload reads all customers. It does nothing while another process has the lock of
// the interface.
func (s *Shaper) PrepareCustomerPlans() error {
	if s.About.Customers == 0 || s.index.fits(s) {
		return nil
	}
	change, err := tryTakeChangeLock(s.iface())
	if errors.Is(err, errLocked) {
		return nil
	}
	if err != nil {
		return err
	}
	_, err = s.currentIndex()
	return errors.Join(err, change.Close())
}

// currentIndex returns the index of the maps of the attached program, or nil if it has no
// customers. The interface must be locked.
func (s *Shaper) currentIndex() (*customerIndex, error) {
	if err := s.Refresh(); err != nil || s.About.Customers == 0 {
		return nil, err
	}
	return s.customerIndex()
}

// customerIndex is a copy of the numbers and plans of customers in the maps. With it, a change
// need not read all of them.
type customerIndex struct {
	*stateMaps
	loaded  time.Time // About.Loaded when it was read
	numbers map[uint64]uint32
	of      []uint32 // index of the plan, by number - 1
	plans   []bpf.ShaperPlan
	users   []int // number of customers with each plan
	known   map[bpf.ShaperPlan]uint32
	slots   planSlots
	mover   *mover
}

// fits reports whether the index is that of the maps in use. The index may be nil.
func (x *customerIndex) fits(s *Shaper) bool {
	return x != nil && x.customers == s.maps.customers && x.loaded.Equal(s.Loaded)
}

// customerIndex returns the index of the maps in use.
func (s *Shaper) customerIndex() (*customerIndex, error) {
	if s.index.fits(s) {
		return s.index, nil
	}
	s.index.close()
	s.index = nil
	t, err := s.maps.readCustomers()
	if err != nil {
		return nil, err
	}
	x := &customerIndex{
		stateMaps: s.maps, loaded: s.Loaded, numbers: t.numbers, of: make([]uint32, len(t.customers)),
		plans: t.plans, users: make([]int, len(t.plans)), known: map[bpf.ShaperPlan]uint32{},
		slots: planSlots{await: awaitPrograms},
	}
	for _, number := range t.numbers {
		at := t.customers[number-1].Plan
		x.of[number-1] = at
		x.users[at]++
		x.known[t.plans[at]] = at
	}
	for at, users := range x.users {
		if users == 0 {
			x.slots.free = append(x.slots.free, uint32(at))
		}
	}
	if err := awaitPrograms(); err != nil { // another process may have moved customers just now
		return nil, err
	}
	if x.mover, err = s.maps.newMover(); err != nil {
		return nil, err
	}
	s.index = x
	return x, nil
}

func (x *customerIndex) close() {
	if x != nil {
		x.mover.Close()
	}
}

// set changes the plans of customers.
func (x *customerIndex) set(list []dataplane.CustomerPlan, encoded map[*dataplane.PlanService]bpf.ShaperPlan) error {
	moves := make([]bpf.BudgetMove, 0, len(list))
	indexes := map[*dataplane.PlanService]uint32{}
	left := map[uint32]bool{} // plans that customers leave
	for _, c := range list {
		number := x.numbers[customerID(c.Name)]
		if number == 0 {
			continue
		}
		at, known := indexes[c.Plan]
		if !known {
			var err error
			if at, err = x.add(encoded[c.Plan]); err != nil {
				return err
			}
			indexes[c.Plan] = at
		}
		if x.of[number-1] != at {
			moves = append(moves, bpf.BudgetMove{Customer: number, Plan: at})
			x.users[at]++
			before := x.of[number-1]
			x.users[before]--
			left[before] = true
			x.of[number-1] = at
		}
	}
	if err := x.mover.move(moves); err != nil {
		return err
	}
	for at := range left {
		if x.users[at] == 0 {
			delete(x.known, x.plans[at])
			x.slots.freed = append(x.slots.freed, at)
		}
	}
	return nil
}

// add returns the index of a plan, and writes the plan if the map does not have it.
func (x *customerIndex) add(p bpf.ShaperPlan) (uint32, error) {
	if at, ok := x.known[p]; ok {
		return at, nil
	}
	at, err := x.slots.take()
	if err != nil {
		return 0, err
	}
	if err := x.stateMaps.plans.Put(at, &p); err != nil {
		return 0, cause.Of(err)
	}
	x.plans[at], x.known[p] = p, at
	return at, nil
}

// mover changes plans of customers by a program that holds the lock of each customer.
type mover struct{ *ebpf.Collection }

func (s *stateMaps) newMover() (*mover, error) {
	c, err := loadBudgetProgram(bpf.BudgetProgShaperMove, map[string]*ebpf.Map{bpf.ShaperMapCustomers: s.customers, bpf.ShaperMapPlans: s.plans})
	return &mover{c}, err
}

// move gives customers other plans. Each keeps its tokens, and no packet is charged twice or
// not at all.
func (m *mover) move(moves []bpf.BudgetMove) error {
	return runOnList(m.Programs[bpf.BudgetProgShaperMove], m.Maps[bpf.BudgetMapMoves], moves)
}

// runOnList runs a program on a list, as many values at a time as the map has room for.
func runOnList[T any](p *ebpf.Program, m *ebpf.Map, list []T) error {
	for chunk := range slices.Chunk(list, int(m.MaxEntries())) {
		if err := putArray(m, chunk); err != nil {
			return err
		}
		var r programRun
		r.Cb[0] = uint32(len(chunk))
		done, err := r.run(p.FD())
		if err == nil && done != uint32(len(chunk)) {
			err = fmt.Errorf("%d of %d customers were changed", done, len(chunk))
		}
		if err != nil {
			return cause.Of(err)
		}
	}
	return nil
}
