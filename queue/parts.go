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
	priority        uint8
	limited         bool // has a guarantee or a rate of its own
	weight          int64
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

// parts are the guaranteed rates of the nodes of a tree.
type parts struct {
	counted []int64 // by node: its rate if all queues are busy
	served  []int64 // by node: its rate before the excess is shared
	timed   []bool  // by link, as a node: its children are served by these rates first
	excess  []bool  // by link: the guarantees of its children do not fit into the rate it can count on
}

// divider computes parts. Children of a node are consecutive in order.
type divider struct {
	places []place
	parts
	demand []int64 // by node, if all queues are busy
	first  []int32 // by node: the index of its first child in order
	order  []int32 // the nodes below the root, by parent
}

// newParts computes the parts of a tree. places[0] is the root; every other place is below it.
func newParts(places []place) *divider {
	n := len(places)
	d := divider{
		places: places, demand: make([]int64, n), first: make([]int32, n+1), order: make([]int32, n-1),
		parts: parts{
			counted: make([]int64, n), served: make([]int64, n),
			timed: make([]bool, n), excess: make([]bool, n),
		},
	}
	for _, p := range places[1:] {
		d.first[p.parent+1]++
	}
	for i := range n {
		d.first[i+1] += d.first[i]
	}
	next := slices.Clone(d.first)
	for i, p := range places[1:] {
		d.order[next[p.parent]] = int32(i + 1)
		next[p.parent]++
		d.timed[p.parent] = d.timed[p.parent] || p.limited
	}
	d.demands(0)
	d.counted[0] = min(places[0].rate, d.demand[0])
	d.divide(0)
	return &d
}

// Guaranteed returns the rates of the links and queues of a tree, which must be valid, while all its
// queues are busy. They are rounded down to whole bytes per second.
func Guaranteed(links []TreeLink, queues []LinkQueue) (ofLinks, ofQueues []meter.Rate) {
	places := newPlaces(links, queues)
	rates := make([]meter.Rate, len(places))
	for i, n := range newParts(places).counted {
		rates[i] = meter.ByteRate(n)
	}
	return rates[:len(links):len(links)], rates[len(links):]
}

// upward returns all nodes, those below a node before it.
func (d *divider) upward() []int32 {
	list := []int32{0}
	for i := 0; i < len(list); i++ {
		list = append(list, d.children(list[i])...)
	}
	slices.Reverse(list)
	return list
}

func (d *divider) children(n int32) []int32 { return d.order[d.first[n]:d.first[n+1]] }

// demands computes the demand of a node: its rate, or less if its children cannot use it.
func (d *divider) demands(n int32) {
	d.demand[n] = d.places[n].rate
	list := d.children(n)
	if len(list) == 0 {
		return
	}
	sum := int64(0)
	for _, k := range list {
		d.demands(k)
		sum += d.demand[k]
	}
	d.demand[n] = min(d.demand[n], sum)
}

// divide divides the part of a node among its children: first by their guarantees, then by priority
// and weight.
func (d *divider) divide(n int32) {
	list := slices.Clone(d.children(n))
	wanted := func(k int32) int64 { return min(d.places[k].guarantee, d.demand[k]) }
	total := int64(0)
	for _, k := range list {
		total += wanted(k)
	}
	d.excess[n] = total > d.counted[n]
	rest := d.fill(d.counted[n], list, wanted, func(k int32) int64 { return d.places[k].guarantee })
	byPriority := func(a, b int32) int { return cmp.Compare(d.places[a].priority, d.places[b].priority) }
	slices.SortStableFunc(list, byPriority)
	for len(list) > 0 && rest > 0 {
		end := 1
		for end < len(list) && byPriority(list[0], list[end]) == 0 {
			end++
		}
		rest = d.fill(rest, list[:end], func(k int32) int64 { return d.demand[k] - d.counted[k] },
			func(k int32) int64 { return d.places[k].weight })
		list = list[end:]
	}
	for _, k := range d.children(n) {
		d.served[k] = d.counted[k]
		if d.excess[n] {
			d.served[k] = d.places[k].guarantee
		}
		d.divide(k)
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
