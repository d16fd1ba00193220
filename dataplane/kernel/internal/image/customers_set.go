package image

import (
	"time"

	"github.com/a-seed-32e5a53f/shaper/bpf"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/cause"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/engine"
	"github.com/cilium/ebpf"
)

// CustomerIndex is a copy of the numbers and plans of customers in the maps. With it, a change
// need not read all of them.
type CustomerIndex struct {
	*Maps
	Loaded  time.Time // About.Loaded when it was read
	numbers map[uint64]uint32
	of      []uint32 // index of the plan, by number - 1
	leaves  []uint32 // handle of the HTB leaf, by number - 1; 0: none
	plans   []bpf.ShaperPlan
	users   []int // number of customers with each plan
	known   map[bpf.ShaperPlan]uint32
	slots   planSlots
	mover   *mover
	keys    keyIndex
}

// Fits reports whether the index belongs to the maps in use, of a policy loaded at a time. The
// index may be nil.
func (x *CustomerIndex) Fits(m *Maps, loaded time.Time) bool {
	return x != nil && x.Customers == m.Customers && x.Loaded.Equal(loaded)
}

func (x *CustomerIndex) Close() {
	if x != nil {
		x.closeKeys()
		x.mover.Close()
	}
}

// Set changes the plans of customers, and their leaves. It calls left for each leaf that a customer leaves.
func (x *CustomerIndex) Set(
	list []compiled.CustomerService, encoded map[*compiled.Service]bpf.ShaperPlan,
	leafOf func(name string) uint32, left func(name string, leaf uint32),
) error {
	moves := make([]bpf.BudgetMove, 0, len(list))
	indexes := map[*compiled.Service]uint32{}
	unused := map[uint32]bool{} // plans left by customers
	freed := map[string]uint32{}
	for _, c := range list {
		number := x.numbers[CustomerID(c.Name)]
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
		leaf, leafBefore := leafOf(c.Name), x.leaves[number-1]
		if x.of[number-1] != at || leaf != leafBefore {
			moves = append(moves, bpf.BudgetMove{Customer: number, Plan: at, ClassId: leaf})
			if x.leaves[number-1] = leaf; leafBefore != 0 && leafBefore != leaf {
				freed[c.Name] = leafBefore
			}
			x.users[at]++
			before := x.of[number-1]
			x.users[before]--
			unused[before] = true
			x.of[number-1] = at
		}
	}
	if err := x.mover.move(moves); err != nil {
		return err
	}
	for name, leaf := range freed {
		left(name, leaf)
	}
	for at := range unused {
		if x.users[at] == 0 {
			delete(x.known, x.plans[at])
			x.slots.freed = append(x.slots.freed, at)
		}
	}
	return nil
}

// add returns the index of a plan, and writes the plan if the map does not have it.
func (x *CustomerIndex) add(p bpf.ShaperPlan) (uint32, error) {
	if at, ok := x.known[p]; ok {
		return at, nil
	}
	at, err := x.slots.take()
	if err != nil {
		return 0, err
	}
	if err := x.Maps.plans.Put(at, &p); err != nil {
		return 0, cause.Of(err)
	}
	x.plans[at], x.known[p] = p, at
	return at, nil
}

// AddDrops adds packets that leaves dropped to the counters of their customers, by ID. Their lengths are
// unknown.
func (s *Maps) AddDrops(drops map[uint64]uint64) error {
	if len(drops) == 0 {
		return nil
	}
	t, err := s.ReadCustomers()
	if err != nil {
		return err
	}
	var list []bpf.BudgetAddition
	for id, packets := range drops {
		if number := t.Numbers[id]; number != 0 {
			add := bpf.BudgetAddition{Customer: uint64(number)}
			add.Dropped.Packets = packets
			list = append(list, add)
		}
	}
	return s.addCounts(list)
}

// mover changes plans of customers by a program holding the lock of each customer.
type mover struct{ *ebpf.Collection }

func (s *Maps) newMover() (*mover, error) {
	c, err := engine.LoadBudgetProgram(bpf.BudgetProgShaperMove,
		map[string]*ebpf.Map{bpf.ShaperMapCustomers: s.Customers, bpf.ShaperMapPlans: s.plans})
	return &mover{c}, err
}

// move gives customers other plans. Each keeps its tokens, and no packet is charged twice or
// not at all.
func (m *mover) move(moves []bpf.BudgetMove) error {
	return engine.RunOnList(m.Programs[bpf.BudgetProgShaperMove], m.Maps[bpf.BudgetMapMoves], moves)
}

// NewCustomerIndex reads the maps of customers of a policy loaded at a time.
func NewCustomerIndex(m *Maps, loaded time.Time) (*CustomerIndex, error) {
	t, err := m.ReadCustomers()
	if err != nil {
		return nil, err
	}
	x := &CustomerIndex{
		Maps: m, Loaded: loaded, numbers: t.Numbers, of: make([]uint32, len(t.customers)),
		leaves: make([]uint32, len(t.customers)), plans: t.plans, users: make([]int, len(t.plans)),
		known: map[bpf.ShaperPlan]uint32{},
		slots: planSlots{await: engine.AwaitPrograms},
	}
	for _, number := range t.Numbers {
		at := t.customers[number-1].Plan
		x.leaves[number-1] = t.customers[number-1].ClassId
		x.of[number-1] = at
		x.users[at]++
		x.known[t.plans[at]] = at
	}
	for at, users := range x.users {
		if users == 0 {
			x.slots.free = append(x.slots.free, uint32(at))
		}
	}
	if err := engine.AwaitPrograms(); err != nil { // another process may have moved customers just now
		return nil, err
	}
	if x.mover, err = m.newMover(); err != nil {
		return nil, err
	}
	return x, nil
}

// Stats returns the counters of a customer; zeros if the maps do not have it. drops returns the packets
// dropped by a leaf.
func (x *CustomerIndex) Stats(
	name string, drops func(leaf uint16) (uint64, error),
) (out dataplane.CustomerStats, err error) {
	number := x.numbers[CustomerID(name)]
	if number == 0 {
		return out, nil
	}
	var c bpf.ShaperCustomer
	if err := x.Customers.LookupWithFlags(number-1, &c, ebpf.LookupLock); err != nil {
		return out, cause.Of(err)
	}
	of := map[uint16]uint64{}
	if id := uint16(c.ClassId); id != 0 {
		if of[id], err = drops(id); err != nil {
			return out, err
		}
	}
	return statsOfCustomer(&c, of), nil
}
