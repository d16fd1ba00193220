package image

import (
	"slices"

	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/engine"
)

// prefixDiff is the difference between the table of prefixes and an image. While it is applied,
// each program finds the previous or the next customer of an address. A program searches the
// longest prefix first, so it could miss a prefix added after this search, and then find neither
// customer, because a shorter prefix changed, too. Therefore a step is taken after the end of all
// programs that ran before the previous one:
//
//  1. Keys are added, the longest first.
//  2. Keys get other customers.
//  3. Keys are removed, the shortest first.
type prefixDiff struct {
	table                 *prefixTable
	added, moved, removed []slotChange
	unsettled             bool // some running programs may have begun before the last step
}

// slotChange gives a slot of the table another number, or removes its key.
type slotChange struct {
	prefixSlot
	to uint32 // 0: remove
}

// findPrefixes finds the differences. It writes the keys to add to the table without a number. A
// slot taken by a killed process is removed.
func (d *customerDiff) findPrefixes() error {
	p, list := &d.prefixes, d.Plan.Customers.Source.List
	wanted := make(map[PrefixKey]bool, d.prefixCount())
	for slot := range p.table.Slots() {
		if slot.Customer() == Taken {
			p.removed = append(p.removed, slotChange{slot, 0})
		}
	}
	for i := range list {
		for _, key := range prefixesOf(&list[i], d.cgroups) {
			if wanted[key] {
				continue // a customer may have a prefix twice
			}
			wanted[key] = true
			slot, has := p.table.find(key)
			if !has {
				var err error
				if slot, err = p.table.Take(key); err != nil {
					return err
				}
				p.added = append(p.added, slotChange{slot, d.numbers[i]})
			} else if slot.Customer() != d.numbers[i] {
				p.moved = append(p.moved, slotChange{slot, d.numbers[i]})
			}
		}
	}
	for slot := range p.table.Slots() {
		if slot.hasCustomer() && !wanted[slot.Key()] {
			p.removed = append(p.removed, slotChange{slot, 0})
		}
	}
	p.unsettled = true // the keys, and the lengths of widenLengths
	return nil
}

// writePrefixes makes the table have the keys of the image.
func (d *customerDiff) writePrefixes() error { return d.prefixes.write() }

// write makes the changes. Then all programs that found a previous customer have ended.
func (p *prefixDiff) write() error {
	shorter := func(a, b uint8) int { return int(a) - int(b) }
	longer := func(a, b uint8) int { return int(b) - int(a) }
	steps := slices.Concat(byLength(p.added, longer), [][]slotChange{p.moved}, byLength(p.removed, shorter))
	for _, step := range append(steps, nil) {
		if p.unsettled {
			if err := engine.AwaitPrograms(); err != nil {
				return err
			}
			p.unsettled = false
		}
		for _, c := range step {
			if c.to == 0 {
				p.table.remove(c.prefixSlot)
			} else {
				c.SetNumber(c.to)
			}
			p.unsettled = true
		}
	}
	return nil
}

// byLength returns the changes by the length of their prefixes, in an order. Lengths of IPv4
// and IPv6 need no order between them.
func byLength(changes []slotChange, order func(a, b uint8) int) (out [][]slotChange) {
	var kinds [2][]uint8
	family := func(kind uint8) uint8 { return engine.Flag(kind >= IPv4Prefix) }
	seen := [256]bool{}
	for _, c := range changes {
		if kind := c.Key().Kind; !seen[kind] {
			seen[kind] = true
			kinds[family(kind)] = append(kinds[family(kind)], kind)
		}
	}
	for i := range kinds {
		slices.SortFunc(kinds[i], order)
	}
	out = make([][]slotChange, max(len(kinds[0]), len(kinds[1])))
	for _, c := range changes {
		kind := c.Key().Kind
		i := slices.Index(kinds[family(kind)], kind)
		out[i] = append(out[i], c)
	}
	return out
}

// widenLengths makes the programs look for the lengths of the previous and the new prefixes.
func (d *customerDiff) widenLengths() error {
	next := d.customerImage.below
	for family := range next {
		for i, bits := range d.prefixes.table.Search.Below[family] {
			if n := &next[family][i]; *n == noLength || bits != noLength && bits > *n {
				*n = bits
			}
		}
	}
	return d.prefixes.table.putSearch(d.Maps, next)
}

// writeLengths makes the programs look for the lengths of the new prefixes.
func (d *customerDiff) writeLengths() error {
	return d.prefixes.table.putSearch(d.Maps, d.customerImage.below)
}
