package queue

import (
	"cmp"
	"math/bits"
	"slices"
	"time"

	"github.com/a-seed-32e5a53f/shaper/meter"
)

// place is a node of a tree of links as the guaranteed parts see it. Rates are in whole bytes per
// second, rounded down.
type place struct {
	parent          int32 // -1 for the root
	weight          uint16
	priority        uint8
	limited         bool  // has a guarantee or a rate of its own
	rate, guarantee int64 // maxPart for none; 0 for none
}

// maxPart bounds rates, in bytes per second: above the fastest links, and the sum for 2^17 nodes
// fits in 63 bits.
const maxPart = 1 << 45

// bytesPerSecond returns a rate in whole bytes per second, rounded down, at most maxPart.
func bytesPerSecond(r meter.Rate) int64 {
	hi, lo := bits.Mul64(uint64(r.Bytes), uint64(time.Second))
	if hi >= uint64(r.Period) {
		return maxPart
	}
	n, _ := bits.Div64(hi, lo, uint64(r.Period))
	return int64(min(n, maxPart))
}

// divider holds the places of the nodes of a tree, and computes their guaranteed rates. The links are the
// first nodes.
type divider struct {
	places  []place
	counted []int64 // by node: its rate if all queues are busy

	// By link.
	demand []int64   // what it can use if all queues are busy
	below  [][]int32 // children, in order
	depth  []uint8   // number of links above
	timed  []bool    // its children are served by the guaranteed rates first
	excess []bool    // the guarantees of its children do not fit into the rate it can count on
	marked []bool    // its children are divided anew by the next update

	list [MaxLevels][]int32 // the marked links, by depth
}

// newDivider computes the parts of a tree. places[0] is the root; every other place is below it.
func newDivider(places []place, links int) *divider {
	d := &divider{
		places: places, demand: make([]int64, links), counted: make([]int64, len(places)),
		depth: make([]uint8, links), timed: make([]bool, links), excess: make([]bool, links),
		marked: make([]bool, links),
	}
	d.collect()
	d.descend(0, 0)
	for i := range int32(links) {
		d.mark(i)
	}
	d.update()
	return d
}

// collect finds the children of all links.
func (d *divider) collect() {
	d.below = make([][]int32, len(d.depth))
	for i := range d.places[1:] {
		k := int32(i + 1)
		above := d.places[k].parent
		d.below[above] = append(d.below[above], k)
	}
}

// descend sets the depths of a link and the links below it.
func (d *divider) descend(n int32, depth uint8) {
	d.depth[n] = depth
	for _, k := range d.linksBelow(n) {
		d.descend(k, depth+1)
	}
}

// linksBelow returns the children of a link that are links.
func (d *divider) linksBelow(n int32) []int32 {
	list := d.below[n]
	end, _ := slices.BinarySearch(list, int32(len(d.depth)))
	return list[:end]
}

// mark lets the next update divide the part of a link anew.
func (d *divider) mark(n int32) {
	if !d.marked[n] {
		d.marked[n] = true
		d.list[d.depth[n]] = append(d.list[d.depth[n]], n)
	}
}

// served returns the rate of a node before the excess is shared.
func (d *divider) served(n int32) int64 {
	if p := &d.places[n]; d.excess[p.parent] {
		return p.guarantee
	}
	return d.counted[n]
}

// move is another place of a node.
type move struct {
	node int32
	place
}

// moveEach gives nodes other places. It returns the links whose parts or children may have changed,
// by depth, until the next call.
func (d *divider) moveEach(moves []move) *[MaxLevels][]int32 {
	d.clear()
	var elsewhere []int32
	var left []int32 // the links that they leave
	for i := range moves {
		m := &moves[i]
		was := d.places[m.node].parent
		if d.places[m.node] = m.place; was != m.parent {
			elsewhere, left = append(elsewhere, m.node), append(left, was)
		}
	}
	const few = 64 // each change of a list takes time in proportion to its length
	if len(elsewhere) > few {
		d.collect()
	} else {
		for i, n := range elsewhere {
			d.relink(n, left[i])
		}
	}
	if slices.ContainsFunc(elsewhere, d.isLink) {
		d.descend(0, 0)
	}
	for _, n := range left {
		d.mark(n)
	}
	for i := range moves {
		n := moves[i].node
		if d.isLink(n) {
			d.mark(n)
		}
		if n > 0 {
			d.mark(moves[i].parent)
		}
	}
	d.update()
	return &d.list
}

// relink moves a node from the children of a link to those of its present one.
func (d *divider) relink(n, from int32) {
	if i, ok := slices.BinarySearch(d.below[from], n); ok {
		d.below[from] = slices.Delete(d.below[from], i, i+1)
	}
	to := &d.below[d.places[n].parent]
	if i, ok := slices.BinarySearch(*to, n); !ok {
		*to = slices.Insert(*to, i, n)
	}
}

// clear forgets the marked links.
func (d *divider) clear() {
	for i, list := range d.list {
		for _, n := range list {
			d.marked[n] = false
		}
		d.list[i] = list[:0]
	}
}

// update computes the parts below the marked links. It marks the links whose demand or part it changes.
func (d *divider) update() {
	for level := len(d.list) - 1; level >= 0; level-- {
		for _, n := range d.list[level] {
			was := d.demand[n]
			if d.demand[n] = d.sum(n); d.demand[n] != was && n > 0 {
				d.mark(d.places[n].parent)
			}
		}
	}
	if d.marked[0] {
		d.counted[0] = min(d.places[0].rate, d.demand[0])
	}
	for level := range d.list {
		for _, n := range d.list[level] {
			links := d.linksBelow(n)
			was := make([]int64, len(links))
			for i, k := range links {
				was[i] = d.counted[k]
			}
			d.divide(n)
			for i, k := range links {
				if d.counted[k] != was[i] {
					d.mark(k)
				}
			}
		}
	}
}

// Guaranteed returns the rates of the links and queues of a tree, which must be valid, while all its
// queues are busy. They are rounded down to whole bytes per second.
func Guaranteed(links []TreeLink, queues []LinkQueue) (ofLinks, ofQueues []meter.Rate) {
	places := newPlaces(links, queues)
	rates := make([]meter.Rate, len(places))
	for i, n := range newDivider(places, len(links)).counted {
		rates[i] = meter.ByteRate(n)
	}
	return rates[:len(links):len(links)], rates[len(links):]
}

func (d *divider) isLink(n int32) bool { return int(n) < len(d.depth) }

// demandOf returns what a node can use if all queues are busy.
func (d *divider) demandOf(n int32) int64 {
	if d.isLink(n) {
		return d.demand[n]
	}
	return d.places[n].rate
}

// sum returns the demand of a link: its rate, or less if its children cannot use it.
func (d *divider) sum(n int32) int64 {
	list := d.below[n]
	if len(list) == 0 {
		return d.places[n].rate
	}
	sum := int64(0)
	for _, k := range list {
		sum += d.demandOf(k)
	}
	return min(d.places[n].rate, sum)
}

// divide divides the part of a link among its children: first by their guarantees, then by priority
// and weight.
func (d *divider) divide(n int32) {
	wanted := func(k int32) int64 { return min(d.places[k].guarantee, d.demandOf(k)) }
	total := int64(0)
	d.timed[n] = false
	for _, k := range d.below[n] {
		d.counted[k] = 0
		total += wanted(k)
		d.timed[n] = d.timed[n] || d.places[k].limited
	}
	d.excess[n] = total > d.counted[n]
	rest := d.fill(d.counted[n], d.below[n], wanted, func(k int32) int64 { return d.places[k].guarantee })
	list := slices.Clone(d.below[n])
	byPriority := func(a, b int32) int { return cmp.Compare(d.places[a].priority, d.places[b].priority) }
	slices.SortStableFunc(list, byPriority)
	for len(list) > 0 && rest > 0 {
		end := 1
		for end < len(list) && byPriority(list[0], list[end]) == 0 {
			end++
		}
		rest = d.fill(rest, list[:end], func(k int32) int64 { return d.demandOf(k) - d.counted[k] },
			func(k int32) int64 { return int64(d.places[k].weight) })
		list = list[end:]
	}
}

// fill adds to the parts of nodes in proportion to a weight, to none more than it wants.
// It returns the rest of total.
func (d *divider) fill(total int64, list []int32, wants, weight func(int32) int64) (left int64) {
	none := func(k int32) bool { return weight(k) == 0 || wants(k) == 0 }
	list = slices.DeleteFunc(slices.Clone(list), none)
	slices.SortFunc(list, func(a, b int32) int {
		return compareProducts(wants(a), weight(b), wants(b), weight(a))
	})
	sum := int64(0)
	for _, k := range list {
		sum += weight(k)
	}
	for i, k := range list {
		if compareProducts(wants(k), sum, total, weight(k)) > 0 { // all others want more than their share too
			for _, k := range list[i:] {
				hi, lo := bits.Mul64(uint64(total), uint64(weight(k)))
				share, _ := bits.Div64(hi, lo, uint64(sum))
				d.counted[k] += int64(share)
			}
			return 0
		}
		total -= wants(k)
		sum -= weight(k)
		d.counted[k] += wants(k)
	}
	return total
}

// compareProducts compares a*b with c*d, none negative.
func compareProducts(a, b, c, d int64) int {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	hi2, lo2 := bits.Mul64(uint64(c), uint64(d))
	return cmp.Or(cmp.Compare(hi, hi2), cmp.Compare(lo, lo2))
}
