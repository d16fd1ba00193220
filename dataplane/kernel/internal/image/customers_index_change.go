package image

import (
	"github.com/a-seed-32e5a53f/shaper/bpf"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/cause"
)

// keyIndex is the part of a CustomerIndex that adds and removes customers need.
type keyIndex struct {
	table   *prefixTable       // nil until the first change
	lengths [2][anyLength]int  // number of prefixes of each length, by family
	free    []uint32           // numbers that belong to nobody
	removed map[uint32]bool    // numbers that this change frees
	diff    prefixDiff         // of this change
	taken   map[PrefixKey]bool // keys of this change's customers
}

// Open maps the table of prefixes into memory, and counts what is there, for Change.
func (x *CustomerIndex) Open() (err error) {
	if x.keys.table != nil {
		return nil
	}
	t, err := x.OpenPrefixes()
	if err != nil {
		return err
	}
	k := keyIndex{table: t}
	for s := range t.Slots() {
		switch {
		case s.Customer() == Taken: // by a killed process
			t.remove(s)
		case s.hasCustomer():
			k.count(s.Key(), 1)
		}
	}
	used := make([]bool, len(x.of))
	for _, number := range x.numbers {
		used[number-1] = true
	}
	for i := len(used) - 1; i >= 0; i-- { // the lowest is last, and first to be used
		if !used[i] {
			k.free = append(k.free, uint32(i+1))
		}
	}
	x.keys = k
	return nil
}

// count adds to the number of prefixes of a key's length.
func (k *keyIndex) count(key PrefixKey, n int) {
	switch {
	case key.Kind == number:
	case key.Kind >= IPv4Prefix:
		k.lengths[0][key.Kind-IPv4Prefix] += n
	default:
		k.lengths[1][key.Kind] += n
	}
}

// below returns the lengths in use.
func (k *keyIndex) below() (out shorterLengths) {
	for family := range k.lengths {
		below := uint8(noLength)
		for bits, n := range k.lengths[family] {
			out[family][bits] = below
			if n > 0 {
				below = uint8(bits)
			}
		}
		out[family][anyLength] = below
	}
	return out
}

// Change adds, replaces and removes customers. encoded are their plans. Customers that stay keep their tokens
// and counters. Each packet finds the customer before the change or the one after it, and none finds the
// state of a new customer by an earlier key. With ErrNoRoom nothing changed; after another error the maps
// may differ from the index.
func (x *CustomerIndex) Change(
	list []compiled.CustomerChange, encoded map[*compiled.Service]bpf.ShaperPlan,
) error {
	if err := x.Open(); err != nil {
		return err
	}
	if !x.hasRoom(list) {
		return ErrNoRoom
	}
	plans := map[*compiled.Service]uint32{}
	for i := range list {
		if plan := list[i].Plan; plan != nil {
			at, err := x.add(encoded[plan])
			if err != nil {
				return err
			}
			plans[plan] = at
		}
	}
	k := &x.keys
	k.diff, k.removed, k.taken = prefixDiff{table: k.table}, map[uint32]bool{}, map[PrefixKey]bool{}
	left, err := x.changeStates(list, plans, encoded)
	if err != nil {
		return err
	}
	if err := x.changeKeys(list); err != nil {
		return err
	}
	for number := range k.removed { // no running program has found one of them
		if err := x.Customers.Put(number-1, &bpf.ShaperCustomer{}); err != nil {
			return cause.Of(err)
		}
		k.free = append(k.free, number)
	}
	for i := range list {
		if list[i].After == nil {
			delete(x.numbers, CustomerID(list[i].Name))
		}
	}
	x.release(left)
	return nil
}

// hasRoom reports whether the maps have room for the customers and the keys of changes.
func (x *CustomerIndex) hasRoom(list []compiled.CustomerChange) bool {
	customers, keys := 0, 0
	for i := range list {
		if after := list[i].After; after != nil {
			keys += len(after.Prefixes) + len(after.IDs)
			if x.numbers[CustomerID(after.Name)] == 0 {
				customers++
			}
		}
	}
	return customers <= len(x.keys.free) && x.keys.table.countUsed()+keys <= x.keys.table.mostUsed()
}

// changeStates gives new customers a number and a state, and known ones their plans. It returns the plans
// that customers left, once for each.
func (x *CustomerIndex) changeStates(
	list []compiled.CustomerChange, plans map[*compiled.Service]uint32,
	encoded map[*compiled.Service]bpf.ShaperPlan,
) (left []uint32, err error) {
	var moves []bpf.BudgetMove
	for i := range list {
		c := &list[i]
		id := CustomerID(c.Name)
		number, at := x.numbers[id], plans[c.Plan]
		switch {
		case c.After == nil && number == 0:
		case c.After == nil:
			x.keys.removed[number] = true
			left = append(left, x.of[number-1])
		case number == 0:
			plan := encoded[c.Plan]
			state := initialState(&plan)
			state.Plan, state.Id = at, id
			last := len(x.keys.free) - 1
			number = x.keys.free[last]
			if err := x.Customers.Put(number-1, &state); err != nil {
				return nil, cause.Of(err)
			}
			x.keys.free = x.keys.free[:last]
			x.numbers[id], x.of[number-1], x.leaves[number-1] = number, at, 0
			x.users[at]++
		case x.of[number-1] != at:
			moves = append(moves, bpf.BudgetMove{Customer: number, Plan: at})
			left = append(left, x.of[number-1])
			x.of[number-1] = at
			x.users[at]++
		}
	}
	return left, x.mover.move(moves)
}

// release counts customers that left plans, and frees the plans without customers.
func (x *CustomerIndex) release(left []uint32) {
	for _, at := range left {
		if x.users[at]--; x.users[at] == 0 {
			delete(x.known, x.plans[at])
			x.slots.freed = append(x.slots.freed, at)
		}
	}
}

// changeKeys makes the programs find the customers after the changes.
func (x *CustomerIndex) changeKeys(list []compiled.CustomerChange) error {
	k := &x.keys
	for i := range list {
		if list[i].After == nil {
			continue
		}
		number := x.numbers[CustomerID(list[i].Name)]
		for _, key := range prefixesOf(list[i].After, nil) {
			if k.taken[key] {
				continue // a customer may have a prefix twice
			}
			k.taken[key] = true
			slot, has := k.table.find(key)
			switch {
			case !has:
				var err error
				if slot, err = k.table.Take(key); err != nil {
					return err
				}
				k.count(key, 1)
				k.diff.added = append(k.diff.added, slotChange{slot, number})
			case slot.Customer() != number:
				k.diff.moved = append(k.diff.moved, slotChange{slot, number})
			}
		}
	}
	wider := k.table.Search.Below != k.below()
	if wider { // with the lengths before, whose keys are still there
		if err := k.table.putSearch(x.Maps, k.below()); err != nil {
			return err
		}
	}
	k.removeKeys(list)
	k.diff.unsettled = len(k.diff.added) > 0 || wider
	if err := k.diff.write(); err != nil {
		return err
	}
	if below := k.below(); k.table.Search.Below != below {
		return k.table.putSearch(x.Maps, below)
	}
	return nil
}

// removeKeys finds the keys that no customer has after the changes.
func (k *keyIndex) removeKeys(list []compiled.CustomerChange) {
	for i := range list {
		if list[i].Before == nil {
			continue
		}
		for _, key := range prefixesOf(list[i].Before, nil) {
			if k.taken[key] {
				continue
			}
			k.taken[key] = true
			if slot, has := k.table.find(key); has {
				k.count(key, -1)
				k.diff.removed = append(k.diff.removed, slotChange{slot, 0})
			}
		}
	}
}

// closeKeys unmaps the table of prefixes.
func (x *CustomerIndex) closeKeys() {
	if x.keys.table != nil {
		x.keys.table.Close()
		x.keys.table = nil
	}
}
