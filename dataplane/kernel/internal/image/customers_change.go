package image

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"

	"github.com/a-seed-32e5a53f/shaper/bpf"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/cause"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/engine"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/record"
)

// CustomerTable is the content of the maps of customers and plans.
type CustomerTable struct {
	customers []bpf.ShaperCustomer // by number - 1; ID 0 is free
	plans     []bpf.ShaperPlan
	Numbers   map[uint64]uint32 // numbers of customers by ID
}

// ReadCustomers reads the maps of customers and plans.
func (s *Maps) ReadCustomers() (*CustomerTable, error) {
	customers, err := engine.ReadArray[bpf.ShaperCustomer](s.Customers, ebpf.LookupLock)
	if err != nil {
		return nil, err
	}
	t := newCustomerTable(customers)
	t.plans, err = engine.ReadArray[bpf.ShaperPlan](s.plans, 0)
	return t, err
}

// newCustomerTable returns a table of customers by number - 1, without plans.
func newCustomerTable(customers []bpf.ShaperCustomer) *CustomerTable {
	t := &CustomerTable{customers: customers, Numbers: make(map[uint64]uint32, len(customers))}
	for i := range customers {
		if id := customers[i].Id; id != 0 {
			t.Numbers[id] = uint32(i + 1)
		}
	}
	return t
}

// find returns a customer by its ID, or nil. The table may be nil.
func (t *CustomerTable) find(id uint64) *bpf.ShaperCustomer {
	if t == nil || t.Numbers[id] == 0 {
		return nil
	}
	return &t.customers[t.Numbers[id]-1]
}

// planStates is statesOf for the plans of the table, which may be nil.
func (t *CustomerTable) planStates() []bpf.ShaperPlan {
	if t == nil {
		return nil
	}
	return statesOf(t.plans)
}

// FitCustomers reports whether the maps of customers have room for those of an image beside the
// previous ones, and the same kind of keys, so only the difference must be written.
func (s *Maps) FitCustomers(g *Image, before *record.About) (bool, error) {
	if g.customerImage == nil || before.Customers != g.Constants.Customers {
		return false, nil
	}
	t, err := s.ReadCustomers()
	if err != nil {
		return false, err
	}
	list, total := g.Plan.Customers.Source.List, len(t.Numbers)
	for i := range list {
		if t.find(CustomerID(list[i].Name)) == nil {
			total++
		}
	}
	_, err = t.assignPlans(g.customerImage.plans)
	if err != nil || total > len(t.customers) {
		return false, nil
	}
	prefixes, err := s.OpenPrefixes()
	if err != nil {
		return false, err
	}
	defer prefixes.Close()
	return prefixes.fits(list, g.cgroups), nil
}

// ErrNoRoom reports a lack of room in the maps for more plans, customers or prefixes. A reload
// makes larger ones.
var ErrNoRoom = errors.New("the maps of customers have no room")

// assignPlans returns the index of each plan: the index of an equal plan, or of one without
// customers.
func (t *CustomerTable) assignPlans(plans []bpf.ShaperPlan) ([]uint32, error) {
	known, used := map[bpf.ShaperPlan]uint32{}, make([]bool, len(t.plans))
	for i := range t.customers {
		if c := &t.customers[i]; c.Id != 0 && !used[c.Plan] {
			used[c.Plan] = true
			known[t.plans[c.Plan]] = c.Plan
		}
	}
	out, next := make([]uint32, len(plans)), 0
	for i, p := range plans {
		at, ok := known[p]
		if !ok {
			for next < len(used) && used[next] {
				next++
			}
			if next == len(used) {
				return nil, ErrNoRoom
			}
			at = uint32(next)
			used[next], known[p] = true, at
		}
		out[i] = at
	}
	return out, nil
}

// ChangeCustomers makes the maps contain the customers of an image. It writes only differences.
// Customers keep their state and their counters.
func (s *Maps) ChangeCustomers(g *Image) error {
	t, err := s.ReadCustomers()
	if err != nil {
		return err
	}
	prefixes, err := s.OpenPrefixes()
	if err != nil {
		return err
	}
	defer prefixes.Close()
	d := customerDiff{Maps: s, t: t, Image: g, prefixes: prefixDiff{table: prefixes}}
	return d.run()
}

// customerDiff is the state of ChangeCustomers.
type customerDiff struct {
	*Maps
	*Image
	t        *CustomerTable
	prefixes prefixDiff

	plans   []uint32 // index in the map, by plan of the image
	added   []int    // customers of the image without a number so far
	numbers []uint32 // by customer of the image
}

func (d *customerDiff) run() error {
	for _, step := range []func() error{
		d.writePlans, d.moveKnown, d.addCustomers, d.widenLengths, d.findPrefixes, d.writePrefixes,
		d.removeCustomers, d.writeLengths,
	} {
		if err := step(); err != nil {
			return fmt.Errorf("customers: %w", err)
		}
	}
	return nil
}

// writePlans writes the plans that the map does not have.
func (d *customerDiff) writePlans() (err error) {
	if d.plans, err = d.t.assignPlans(d.customerImage.plans); err != nil {
		return err
	}
	for i, at := range d.plans {
		if p := d.customerImage.plans[i]; d.t.plans[at] != p {
			if err := d.Maps.plans.Put(at, &p); err != nil {
				return cause.Of(err)
			}
		}
	}
	return nil
}

// moveKnown changes the plans of known customers, and collects the new ones.
func (d *customerDiff) moveKnown() error {
	from := d.Plan.Customers
	d.numbers = make([]uint32, len(from.Of))
	var moves []bpf.BudgetMove
	for i := range from.Of {
		number := d.t.Numbers[CustomerID(from.Source.List[i].Name)]
		if d.numbers[i] = number; number == 0 {
			d.added = append(d.added, i)
			continue
		}
		move := bpf.BudgetMove{Customer: number, Plan: d.plans[from.Of[i]], ClassId: d.leafHandle(i)}
		if was := &d.t.customers[number-1]; was.Plan != move.Plan || was.ClassId != move.ClassId {
			moves = append(moves, move)
		}
	}
	return d.move(moves)
}

// move gives customers other plans.
func (s *Maps) move(moves []bpf.BudgetMove) error {
	if len(moves) == 0 {
		return nil
	}
	m, err := s.newMover()
	if err != nil {
		return err
	}
	defer m.Close()
	return m.move(moves)
}

// removeCustomers frees the numbers of customers missing in the image. No running program has found
// one of them.
func (d *customerDiff) removeCustomers() error {
	kept := map[uint32]bool{}
	for _, number := range d.numbers {
		kept[number] = true
	}
	for _, number := range d.t.Numbers {
		if !kept[number] {
			if err := d.Maps.Customers.Put(number-1, &bpf.ShaperCustomer{}); err != nil {
				return cause.Of(err)
			}
		}
	}
	return nil
}

// addCustomers gives new customers the lowest free numbers.
func (d *customerDiff) addCustomers() error {
	from, next := d.Plan.Customers, 0
	for _, i := range d.added {
		for next < len(d.t.customers) && d.t.customers[next].Id != 0 {
			next++
		}
		if next == len(d.t.customers) {
			return ErrNoRoom
		}
		c := initialState(&d.customerImage.plans[from.Of[i]])
		c.Plan, c.Id, c.ClassId = d.plans[from.Of[i]], CustomerID(from.Source.List[i].Name), d.leafHandle(i)
		if err := d.Maps.Customers.Put(uint32(next), &c); err != nil {
			return cause.Of(err)
		}
		d.t.customers[next] = c
		d.numbers[i] = uint32(next + 1)
	}
	return nil
}
