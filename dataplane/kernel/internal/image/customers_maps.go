package image

import (
	"errors"
	"slices"

	"github.com/cilium/ebpf"

	"github.com/a-seed-32e5a53f/shaper/bpf"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/engine"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/record"
)

// Room in maps of customers beyond the first policy, so that customers and plans can be added
// without new maps.
const (
	spareCustomers = 8 // one for so many, and at least minSpare
	minSpare       = 64
	spareOwnPlans  = 16 // a plan for so many customers, and at least minSparePlans
	minSparePlans  = 1024
)

// makeCustomerMaps makes the maps for the customers of an image, with spare room. Without
// customers it keeps the maps.
func (s *Maps) makeCustomerMaps(g *Image) (err error) {
	if g.customerImage == nil {
		return nil
	}
	spare := func(n int) uint32 { return uint32(n + max(n/spareCustomers, minSpare)) }
	s.prefixes, s.searches, s.Customers, s.plans = nil, nil, nil, nil
	for _, m := range []struct {
		to   **ebpf.Map
		name string
		n    uint32
	}{
		{&s.prefixes, bpf.ShaperMapPrefixes, bucketsFor(g.prefixCount())},
		{&s.searches, bpf.ShaperMapSearches, 1},
		{&s.Customers, bpf.ShaperMapCustomers, spare(len(g.Plan.Customers.Of))},
		{
			&s.plans, bpf.ShaperMapPlans,
			uint32(len(g.customerImage.plans) + max(len(g.Plan.Customers.Of)/spareOwnPlans, minSparePlans)),
		},
	} {
		if *m.to, err = engine.NewMap(m.name, m.n); err != nil {
			return err
		}
	}
	return nil
}

// prefixCount returns the number of prefixes and IDs of all customers.
func (g *Image) prefixCount() (n int) {
	list := g.Plan.Customers.Source.List
	for i := range list {
		n += len(list[i].Prefixes) + len(list[i].IDs)
	}
	return n
}

// initialState returns the state of a new customer with a plan. It is full at its first packet.
func initialState(plan *bpf.ShaperPlan) (c bpf.ShaperCustomer) {
	if plan.Paced != 0 {
		return c
	}
	p := &plan.Profile
	s := engine.Levels{p.Buckets[0].Size, p.Buckets[1].Size}.UnstartedState(p)
	c.Word, c.Stamp = s.Word, s.Stamp
	if p.Window == 0 { // words of customers are never closed
		c.Word[0] &^= engine.Closed
		c.Word[1] &^= engine.Closed
	}
	return c
}

// populateCustomers writes new maps of customers. before are the customers of the previous
// policy and their plans, or nil: those with the same name keep their state, but packets that
// arrive between the copy and the swap of programs are not charged to it.
func (g *Image) populateCustomers(to *Maps, before *CustomerTable) error {
	if g.customerImage == nil || g.ChangesCustomers {
		return nil
	}
	from := g.Plan.Customers
	customers := make([]bpf.ShaperCustomer, len(from.Of))
	var moves []bpf.BudgetMove
	previous, next := before.planStates(), statesOf(g.customerImage.plans)
	for i, plan := range from.Of {
		out, id := &customers[i], CustomerID(from.Source.List[i].Name)
		*out = initialState(&g.customerImage.plans[plan])
		if was := before.find(id); was != nil {
			*out = *was
			if previous[was.Plan] != next[plan] {
				moves = append(moves,
					bpf.BudgetMove{Customer: uint32(i + 1), Plan: plan, ClassId: g.leafHandle(i)})
			}
		}
		out.Plan, out.Id, out.ClassId = plan, id, g.leafHandle(i)
	}
	err := errors.Join(
		engine.PutArray(to.plans, g.customerImage.plans),
		engine.PutArray(to.Customers, customers),
		to.fillPrefixes(from.Source.List, g.cgroups, g.customerImage.below),
	)
	for chunk := range slices.Chunk(moves, minSparePlans) {
		err = errors.Join(err, g.moveFrom(to, before, customers, chunk))
	}
	return err
}

// moveFrom converts the states of customers in new maps from their previous plans, which it
// puts into the spare room of the map of plans.
func (g *Image) moveFrom(
	to *Maps, before *CustomerTable, customers []bpf.ShaperCustomer, moves []bpf.BudgetMove,
) error {
	spare := uint32(len(g.customerImage.plans))
	slots, changed := make([]uint32, len(moves)), make([]bpf.ShaperCustomer, len(moves))
	indexes, plans := make([]uint32, len(moves)), make([]bpf.ShaperPlan, len(moves))
	for i, m := range moves {
		slots[i], indexes[i] = m.Customer-1, spare+uint32(i)
		changed[i] = customers[slots[i]]
		changed[i].Plan = indexes[i]
		plans[i] = before.plans[before.find(changed[i].Id).Plan]
	}
	if err := errors.Join(engine.PutBatch(to.plans, indexes, plans),
		engine.PutBatch(to.Customers, slots, changed)); err != nil {
		return err
	}
	return to.move(moves)
}

// copyCustomers is populateCustomers with the customers of the previous policy, or with restored
// ones.
func (g *Image) copyCustomers(before *record.About, from, to *Maps, restored *CustomerTable) (err error) {
	was := restored
	if before.Customers != 0 && g.customerImage != nil && !g.ChangesCustomers {
		if was, err = from.ReadCustomers(); err != nil {
			return err
		}
		g.copied = was
	}
	return g.populateCustomers(to, was)
}

// AddMissed adds to the counters in new maps the counts of the previous program since they were
// copied from its maps.
func (g *Image) AddMissed(from, to *Maps) error {
	if g.copied == nil {
		return nil
	}
	if err := engine.AwaitPrograms(); err != nil {
		return err
	}
	missed := map[uint64]bpf.BudgetAddition{}
	if err := engine.EachChunk(from.Customers, ebpf.LookupLock, func(at int, values []bpf.ShaperCustomer) {
		for i := range values {
			if a := additionOf(&g.copied.customers[at+i], &values[i]); a != (bpf.BudgetAddition{}) {
				missed[values[i].Id] = a
			}
		}
	}); err != nil {
		return err
	}
	var list []bpf.BudgetAddition
	for i := range g.Plan.Customers.Source.List {
		if a, has := missed[CustomerID(g.Plan.Customers.Source.List[i].Name)]; has {
			a.Customer = uint64(i + 1)
			list = append(list, a)
		}
	}
	return to.addCounts(list)
}

// addCounts adds counts to those of customers, while a program counts as well.
func (s *Maps) addCounts(list []bpf.BudgetAddition) error {
	if len(list) == 0 {
		return nil
	}
	c, err := engine.LoadBudgetProgram(bpf.BudgetProgShaperAdd,
		map[string]*ebpf.Map{bpf.ShaperMapCustomers: s.Customers})
	if err != nil {
		return err
	}
	defer c.Close()
	return engine.RunOnList(c.Programs[bpf.BudgetProgShaperAdd], c.Maps[bpf.BudgetMapAdditions], list)
}

// additionOf returns a customer's counts between two readings.
func additionOf(before, after *bpf.ShaperCustomer) (a bpf.BudgetAddition) {
	a.Green.Packets, a.Green.Bytes = after.Green.Packets-before.Green.Packets,
		after.Green.Bytes-before.Green.Bytes
	a.Yellow.Packets, a.Yellow.Bytes = after.Yellow.Packets-before.Yellow.Packets,
		after.Yellow.Bytes-before.Yellow.Bytes
	a.Red.Packets, a.Red.Bytes = after.Red.Packets-before.Red.Packets, after.Red.Bytes-before.Red.Bytes
	a.Dropped.Packets, a.Dropped.Bytes = after.Dropped.Packets-before.Dropped.Packets,
		after.Dropped.Bytes-before.Dropped.Bytes
	return a
}
