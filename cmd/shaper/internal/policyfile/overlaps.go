package policyfile

import (
	"cmp"
	"fmt"
	"slices"
	"sort"
)

// rowRange is a range of addresses in the file of customers.
type rowRange struct {
	addressRange
	customer   int32 // index in the table
	begin, end int   // indices of its prefixes among those of the customer
}

// span is a range, or a prefix as a range.
type span struct {
	addressRange
	text     string // of a prefix; "" for a range
	customer int32
}

func (s span) String() string { return cmp.Or(s.text, s.addressRange.String()) }

// checkRanges refuses ranges that overlap the addresses of another customer in part. Without nested every
// overlap is an error. With nested the longest prefix wins, so both customers would have some of the common
// addresses, depending on how the ranges divide into prefixes.
func (r *rowReader) checkRanges() {
	if len(r.ranges) == 0 {
		return
	}
	var found []rowOverlap
	var open []span // those that contain the begin of the current one, or its own customer's
	for _, s := range r.spans() {
		open = slices.DeleteFunc(open, func(o span) bool {
			return o.first.BitLen() != s.first.BitLen() || o.last.Less(s.first)
		})
		for _, o := range open {
			if o.customer != s.customer && !o.contains(s.addressRange) {
				a, b := o, s
				if r.lines[a.customer] < r.lines[b.customer] {
					a, b = b, a
				}
				found = append(found, rowOverlap{a, b})
				break
			}
		}
		open = append(open, s)
	}
	sort.SliceStable(found, func(i, j int) bool { return found[i].later.customer < found[j].later.customer })
	for _, f := range found {
		r.faults.add(int(r.lines[f.later.customer]), fmt.Sprintf(
			"address %v and %v of customer %q (line %d) overlap in part: with nested: true one must contain the other",
			f.later, f.earlier, r.table.List[f.earlier.customer].Name, r.lines[f.earlier.customer]))
	}
}

// rowOverlap is an overlap of two customers.
type rowOverlap struct{ later, earlier span }

// spans returns the ranges, and the prefixes that are not parts of ranges, in the order of their first
// addresses, larger ones first.
func (r *rowReader) spans() (out []span) {
	next := 0
	for i := range r.table.List {
		at := int32(i)
		for j, p := range r.table.List[i].Prefixes {
			for next < len(r.ranges) && (r.ranges[next].customer < at ||
				r.ranges[next].customer == at && r.ranges[next].end <= j) {
				next++
			}
			if next < len(r.ranges) && r.ranges[next].customer == at && r.ranges[next].begin <= j {
				continue
			}
			out = append(out, span{wholePrefix(p), p.String(), at})
		}
	}
	for _, s := range r.ranges {
		out = append(out, span{s.addressRange, "", s.customer})
	}
	sort.Slice(out, func(i, j int) bool {
		a, b := &out[i], &out[j]
		order := cmp.Or(a.first.Compare(b.first), b.last.Compare(a.last), cmp.Compare(a.customer, b.customer))
		return order < 0
	})
	return out
}
