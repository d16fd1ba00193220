package compiled

import (
	"cmp"
	"fmt"
	"iter"
	"net/netip"
	"slices"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// CustomerChange adds, replaces or removes a customer of a running policy.
type CustomerChange struct {
	Name   string
	Before *dataplane.Customer // before the change; nil: the customer is new
	After  *dataplane.Customer // after the change; nil: the customer is removed
	Plan   *Service            // after the change; nil: the customer is removed
	InTree bool                // the plan before or after has its queue in a tree of links: reload
}

// Roster is a copy of a plan's customers that changes in place. A change takes microseconds, whatever the
// number of customers. It is not safe for concurrent use.
//
// Customers keep their numbers. The number of a removed customer belongs to nobody, and then to a new
// customer.
type Roster struct {
	customers *Customers
	services  []*Service // by number - 1; nil: the number belongs to nobody
	free      []uint32   // numbers that belong to nobody
}

// NewRoster returns a roster of the customers of a plan, whose table it copies. The plan must have a table
// of customers.
func NewRoster(p *Plan) *Roster {
	from := p.Customers
	c, source := *from, *from.Source
	source.List = slices.Clone(source.List)
	c.Source, c.Of, c.table = &source, slices.Clone(from.Of), from.table.clone()
	c.numbers = make(map[string]uint32, len(from.numbers)+len(from.numbers)/8)
	for name, number := range from.numbers {
		c.numbers[name] = number
	}
	r := &Roster{customers: &c, services: make([]*Service, len(c.Of))}
	for i, at := range c.Of {
		r.services[i] = &from.Plans[at]
	}
	return r
}

// Customers returns the customers. They change with the roster. The plan of a customer is that of Service.
func (r *Roster) Customers() *Customers { return r.customers }

// Len returns the number of customers.
func (r *Roster) Len() int { return len(r.customers.numbers) }

// Numbers returns the number of numbers in use, those of removed customers included.
func (r *Roster) Numbers() int { return len(r.services) }

// Customer returns a customer with its plan, or nil if there is none of that name. The customer does not
// change with the roster.
func (r *Roster) Customer(name string) (*dataplane.Customer, *Service) {
	number := r.customers.numbers[name]
	if number == 0 {
		return nil, nil
	}
	c := r.customers.Source.List[number-1]
	return &c, r.services[number-1]
}

// Owner returns the name of a customer by its number; "" for a removed one.
func (r *Roster) Owner(number uint32) string { return r.customers.Source.List[number-1].Name }

// Of returns the name of the customer of a prefix or an address: the one with the longest prefix that
// contains it; "" for none.
func (r *Roster) Of(p netip.Prefix) string {
	first, _ := prefixBounds(p)
	kind := dataplane.IPv6
	if p.Addr().Is4() {
		kind = dataplane.IPv4
	}
	if number := r.customers.table.find(kind, first); number != 0 {
		return r.Owner(number)
	}
	return ""
}

// Conflict is a key of a customer that another customer has.
type Conflict struct {
	Prefix netip.Prefix // of the new customer; for a key by address
	ID     uint64       // otherwise
	Owner  string       // name of the other customer
	Reason string
}

// Conflicts calls report for each key that a customer cannot have, because another one has it, or one that
// contains it or lies inside. It does not compare the customer with itself.
func (r *Roster) Conflicts(c *dataplane.Customer, report func(Conflict)) {
	table, own := &r.customers.table, r.customers.numbers[c.Name]
	for _, id := range c.IDs {
		if other := table.ids.find(id, mix(id)); other != 0 && other != own {
			reason := fmt.Sprintf("%s belongs to customer %q", r.customers.Source.IDText(id), r.Owner(other))
			report(Conflict{ID: id, Owner: r.Owner(other), Reason: reason})
		}
	}
	for _, p := range c.Prefixes {
		table.each(p, func(length int, number uint32) {
			if number == own || length != p.Bits() && r.customers.Source.Nested {
				return
			}
			reason := fmt.Sprintf("%v belongs to customer %q", printPrefix(p), r.Owner(number))
			switch {
			case length < p.Bits():
				reason = fmt.Sprintf("%v lies inside a prefix of customer %q: set nested: true to allow it",
					printPrefix(p), r.Owner(number))
			case length > p.Bits():
				reason = fmt.Sprintf("%v contains a prefix of customer %q: set nested: true to allow it",
					printPrefix(p), r.Owner(number))
			}
			report(Conflict{Prefix: p, Owner: r.Owner(number), Reason: reason})
		})
	}
}

// Check returns the errors of a customer alone, as Compile reports them: those of its name and of its keys.
func (r *Roster) Check(c *dataplane.Customer) error {
	source := dataplane.Customers{
		Key: r.customers.Source.Key, Nested: r.customers.Source.Nested, Cgroups: r.customers.Source.Cgroups,
		List: []dataplane.Customer{*c},
	}
	out := &Customers{Key: source.Key, Source: &source, Of: make([]uint32, 1), numbers: map[string]uint32{}}
	out.table.ids = newNumberTable[uint64](len(c.IDs))
	b := tableBuilder{compiler: newCompiler(), out: out}
	b.add(&source.List[0], 1)
	b.finish(source.Nested)
	if len(b.errorList) == 0 {
		return nil
	}
	return b.errorList[0]
}

// Put adds a customer with a plan, or replaces the one of its name. The customer must have no error of Check,
// and no Conflicts. It returns the customer's number, and whether it is new.
func (r *Roster) Put(c *dataplane.Customer, plan *Service) (number uint32, added bool) {
	list := &r.customers.Source.List
	number = r.customers.numbers[c.Name]
	switch {
	case number != 0:
		r.removeKeys(&(*list)[number-1])
	case len(r.free) > 0:
		number, added = r.free[len(r.free)-1], true
		r.free = r.free[:len(r.free)-1]
	default:
		*list, r.services = append(*list, dataplane.Customer{}), append(r.services, nil)
		r.customers.Of = append(r.customers.Of, 0)
		number, added = uint32(len(*list)), true
	}
	(*list)[number-1], r.services[number-1] = *c, plan
	r.customers.numbers[c.Name] = number
	for _, id := range c.IDs {
		r.customers.table.ids.add(id, number, mix)
	}
	for _, p := range c.Prefixes {
		r.customers.table.add(p, number)
	}
	return number, added
}

// Remove removes a customer, and returns its number, or 0 if there is none of that name.
func (r *Roster) Remove(name string) uint32 {
	number := r.customers.numbers[name]
	if number == 0 {
		return 0
	}
	c := &r.customers.Source.List[number-1]
	r.removeKeys(c)
	delete(r.customers.numbers, name)
	*c, r.services[number-1] = dataplane.Customer{}, nil
	r.free = append(r.free, number)
	return number
}

// removeKeys removes the keys of a customer from the table.
func (r *Roster) removeKeys(c *dataplane.Customer) {
	for _, id := range c.IDs {
		r.customers.table.ids.remove(id, mix)
	}
	for _, p := range c.Prefixes {
		r.customers.table.remove(p)
	}
}

// NeedsCompile reports whether the customers have queues in trees of links: then a plan with other customers
// must be compiled.
func (r *Roster) NeedsCompile() bool {
	return slices.ContainsFunc(r.services, func(s *Service) bool { return s != nil && s.Tree >= 0 })
}

// All yields the customers, in the order of their numbers. They must not be changed or kept.
func (r *Roster) All() iter.Seq[*dataplane.Customer] {
	return func(yield func(*dataplane.Customer) bool) {
		for i := range r.services {
			if r.services[i] != nil && !yield(&r.customers.Source.List[i]) {
				return
			}
		}
	}
}

// List returns a copy of the list of customers, in the order of their numbers.
func (r *Roster) List() []dataplane.Customer {
	out := make([]dataplane.Customer, 0, r.Len())
	for i := range r.customers.Source.List {
		if c := &r.customers.Source.List[i]; r.services[i] != nil {
			out = append(out, *c)
		}
	}
	return out
}

// Plan returns the plan from which the roster was made, with the present customers. source is its policy
// with the customers of List. NeedsCompile must be false.
func (r *Roster) Plan(p *Plan, source *dataplane.Policy) *Plan {
	next, customers := *p, *p.Customers
	list := source.Customers.List
	customers.Source, customers.Plans = source.Customers, slices.Clone(p.Customers.Plans)
	customers.Of, customers.numbers = make([]uint32, len(list)), make(map[string]uint32, len(list))
	indexes := map[*Service]uint32{}
	for i := range p.Customers.Plans {
		indexes[&p.Customers.Plans[i]] = uint32(i)
	}
	moved, at := make([]uint32, len(r.services)+1), uint32(0) // the new numbers, by number
	differs := p.Up != nil
	for i, s := range r.services {
		if s == nil {
			continue
		}
		index, known := indexes[s]
		if !known {
			index = uint32(len(customers.Plans))
			indexes[s] = index
			customers.Plans = append(customers.Plans, *s)
		}
		differs = differs || s.Up != nil
		customers.Of[at] = index
		at++
		moved[i+1] = at
		customers.numbers[list[at-1].Name] = at
	}
	customers.table = r.customers.table.clone()
	customers.table.renumber(moved)
	next.Source, next.Customers = source, &customers
	if differs {
		up, upward := *p.upward(), customers
		upward.Plans = make([]Service, len(customers.Plans))
		for i := range customers.Plans {
			upward.Plans[i] = *customers.Plans[i].upward()
			upward.Plans[i].Up = nil
			customers.Plans[i].Up = &upward.Plans[i]
		}
		if c := p.upward().Customers; c != p.Customers {
			upward.Source = &dataplane.Customers{
				Key: c.Source.Key, Nested: c.Source.Nested, Cgroups: c.Source.Cgroups, Plans: c.Source.Plans,
				List: list,
			}
		}
		up.Customers, up.Up = &upward, nil
		next.Up = &up
	}
	return &next
}

// clone returns a copy of the table.
func (t *customerTable) clone() customerTable {
	return customerTable{cloneLengths(t.v4), cloneLengths(t.v6), cloneLengths(t.nets), t.ids.clone()}
}

func cloneLengths[K comparable](list []byLength[K]) []byLength[K] {
	out := slices.Clone(list)
	for i := range out {
		out[i].number = out[i].number.clone()
	}
	return out
}

// renumber gives the customers other numbers.
func (t *customerTable) renumber(to []uint32) {
	for i := range t.v4 {
		t.v4[i].number.renumber(to)
	}
	for i := range t.v6 {
		t.v6[i].number.renumber(to)
	}
	for i := range t.nets {
		t.nets[i].number.renumber(to)
	}
	t.ids.renumber(to)
}

// add adds a prefix of a customer.
func (t *customerTable) add(p netip.Prefix, number uint32) {
	first, _ := prefixBounds(p)
	switch bits := p.Bits(); {
	case p.Addr().Is4():
		mask := func(bits int) uint32 { return dataplane.Key{V4: uint8(bits)}.Mask4() }
		addLength(&t.v4, bits, mask).number.add(uint32(first.Lo), number, hash32)
	case bits > 64:
		mask := func(bits int) dataplane.Addr { return dataplane.Key{V6: uint8(bits)}.Mask6() }
		addLength(&t.v6, bits, mask).number.add(first, number, hashAddr)
	default:
		mask := func(bits int) uint64 { return ^uint64(0) << (64 - bits) }
		addLength(&t.nets, bits, mask).number.add(first.Hi, number, mix)
	}
}

// remove removes a prefix.
func (t *customerTable) remove(p netip.Prefix) {
	first, _ := prefixBounds(p)
	switch bits := p.Bits(); {
	case p.Addr().Is4():
		removeOf(&t.v4, bits, uint32(first.Lo), hash32)
	case bits > 64:
		removeOf(&t.v6, bits, first, hashAddr)
	default:
		removeOf(&t.nets, bits, first.Hi, mix)
	}
}

// addLength returns the table of a length, which it adds if there is none.
func addLength[K comparable](list *[]byLength[K], bits int, mask func(bits int) K) *byLength[K] {
	i, has := slices.BinarySearchFunc(*list, bits, func(l byLength[K], bits int) int {
		return cmp.Compare(bits, l.bits) // the longest first
	})
	if !has {
		*list = slices.Insert(*list, i, newLengths(map[int]int{bits: 0}, mask)[0])
	}
	return &(*list)[i]
}

// removeOf removes a key, and the table of its length if it was the last one.
func removeOf[K comparable](list *[]byLength[K], bits int, key K, hash func(K) uint64) {
	i := slices.IndexFunc(*list, func(l byLength[K]) bool { return l.bits == bits })
	if i < 0 {
		return // a customer may have a prefix twice
	}
	l := &(*list)[i]
	if l.number.remove(key, hash); l.number.used() == 0 {
		*list = slices.Delete(*list, i, i+1)
	}
}

// each calls f for each prefix in the table that contains a prefix, is equal to it, or lies inside.
func (t *customerTable) each(p netip.Prefix, f func(length int, number uint32)) {
	first, _ := prefixBounds(p)
	bits := p.Bits()
	if p.Addr().Is4() {
		own := uint32(0)
		if bits > 0 {
			own = dataplane.Key{V4: uint8(bits)}.Mask4()
		}
		and := func(a, b uint32) uint32 { return a & b }
		eachOverlap(t.v4, bits, uint32(first.Lo), own, hash32, and, f)
		return
	}
	own := dataplane.Addr{}
	if bits > 0 {
		own = dataplane.Key{V6: uint8(bits)}.Mask6()
	}
	eachOverlap(t.nets, bits, first.Hi, own.Hi, mix, func(a, b uint64) uint64 { return a & b }, f)
	eachOverlap(t.v6, bits, first, own, hashAddr, func(a, b dataplane.Addr) dataplane.Addr {
		return dataplane.Addr{Hi: a.Hi & b.Hi, Lo: a.Lo & b.Lo}
	}, f)
}

// eachOverlap is each for the tables of some lengths. own is the mask of the prefix.
func eachOverlap[K comparable](
	list []byLength[K], bits int, first, own K, hash func(K) uint64, and func(a, b K) K,
	f func(length int, number uint32),
) {
	for i := range list {
		l := &list[i]
		if l.bits <= bits {
			key := and(first, l.mask)
			if number := l.number.find(key, hash(key)); number != 0 {
				f(l.bits, number)
			}
			continue
		}
		for _, s := range l.number.slots {
			if s.number != 0 && and(s.key, own) == first {
				f(l.bits, s.number)
			}
		}
	}
}

// add sets a key's number. If more than half of the slots are used, it doubles them.
func (t *numberTable[K]) add(key K, number uint32, hash func(K) uint64) {
	if len(t.slots) == 0 {
		*t = newNumberTable[K](1)
	}
	if t.count < 0 {
		t.count = t.countUsed()
	}
	if at := t.place(key, hash(key)); t.slots[at].number == 0 {
		t.count++
	}
	if 2*t.count > len(t.slots) {
		larger := newNumberTable[K](2 * t.count)
		for _, s := range t.slots {
			if s.number != 0 {
				larger.set(s.key, hash(s.key), s.number)
			}
		}
		larger.count = t.count
		*t = larger
	}
	t.set(key, hash(key), number)
}

// remove removes a key. It moves the keys behind it that a search would not find any more.
func (t *numberTable[K]) remove(key K, hash func(K) uint64) {
	if len(t.slots) == 0 {
		return
	}
	hole := t.place(key, hash(key))
	if t.slots[hole].number == 0 {
		return
	}
	if t.count >= 0 {
		t.count--
	}
	last := uint64(len(t.slots) - 1)
	for i := (hole + 1) & last; t.slots[i].number != 0; i = (i + 1) & last {
		home := hash(t.slots[i].key) >> t.shift & last
		if (i-home)&last >= (i-hole)&last { // a search for this key passes the hole
			t.slots[hole] = t.slots[i]
			hole = i
		}
	}
	t.slots[hole] = numberSlot[K]{}
}

// used returns the number of keys.
func (t *numberTable[K]) used() int {
	if t.count < 0 {
		t.count = t.countUsed()
	}
	return t.count
}

func (t *numberTable[K]) countUsed() (n int) {
	for i := range t.slots {
		if t.slots[i].number != 0 {
			n++
		}
	}
	return n
}

func (t *numberTable[K]) clone() numberTable[K] {
	return numberTable[K]{slots: slices.Clone(t.slots), shift: t.shift, count: t.count}
}

func (t *numberTable[K]) renumber(to []uint32) {
	for i := range t.slots {
		t.slots[i].number = to[t.slots[i].number]
	}
}
