package routers

import "slices"

// shares sets the priorities and weights of the queues of the link.
func (b *ciscoBuilder) shares() {
	lowest, total := 0, int64(0)
	kind := ""
	for _, q := range b.queues {
		lowest = max(lowest, q.priority+1)
		total += q.weight
		if q.kind != "" && kind != "" && q.kind != kind {
			b.draft.Cannot(q.line, "the classes of a policy must have their bandwidth in one unit")
		}
		if q.kind != "" {
			kind = q.kind
		}
	}
	rest := map[string]int64{"kbps": b.linkBits()/1000 - total, "remaining ratio": 1, "": 1}
	var weights []int64
	var shared []*ciscoQueue
	first := map[int]*ciscoQueue{} // by priority
	for _, q := range b.queues {
		if q.priority >= 0 {
			if other := first[q.priority]; other != nil {
				b.draft.Note(q.line, "the router has one queue for priority level %d, and here classes %s and %s have one each",
					q.priority+1, other.queue.Name, q.queue.Name)
			}
			first[q.priority] = q
			q.queue.Priority = q.priority
			b.draft.From(q.queue, "priority", q.line, "%s", q.line.Text())
			continue
		}
		if q.kind == "" {
			remaining, ok := rest[kind]
			if !ok {
				remaining = 100 - total
			}
			q.weight = max(remaining, 1)
		}
		weights, shared = append(weights, q.weight), append(shared, q)
	}
	if p := b.platformOf(); (b.isXR() || p == "ios") && kind != "" && kind != "remaining ratio" {
		b.draft.Note(b.policyLine,
			"IOS XE and IOS XR share the excess by bandwidth remaining ratio, 1 for each class, and the policy shares it by bandwidth")
	}
	exact := kind == "remaining ratio" && (len(weights) == 0 || slices.Max(weights) <= maxWeight) ||
		reduce(weights)
	for i, q := range shared {
		if lowest > 0 {
			q.queue.Priority = lowest
			b.draft.From(q.queue, "priority", Line{}, "after the priority classes")
		}
		comment := q.line.Text()
		if q.kind == "" {
			comment = "the rest of the bandwidth"
		} else if !exact {
			b.draft.Note(q.line,
				"the shares have no common factor that makes all of them 1 to 1000: they are rounded")
		}
		q.queue.Weight = int(weights[i])
		b.draft.From(q.queue, "weight", q.line, "%s", comment)
	}
}

// maxWeight is the maximum weight of a queue.
const maxWeight = 1000

// reduce divides numbers by their common factor, and rounds them if they are above maxWeight.
// It reports whether they are exact.
func reduce(list []int64) bool {
	factor, most := int64(0), int64(0)
	for _, n := range list {
		for a, b := factor, n; ; a, b = b, a%b {
			if b == 0 {
				factor = a
				break
			}
		}
		most = max(most, n)
	}
	if factor == 0 {
		return true
	}
	exact := most/factor <= maxWeight
	for i, n := range list {
		if list[i] = n / factor; !exact {
			list[i] = max(n*maxWeight/most, 1)
		}
	}
	return exact
}

// linkBits returns the rate of the link in bit/s.
func (b *ciscoBuilder) linkBits() int64 {
	bits, _ := b.link.Rate.Bits()
	return bits
}
