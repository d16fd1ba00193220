package lint

import (
	"cmp"
	"fmt"
	"math/big"
	"sort"
	"strings"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// rival is what a link serves by priority: a link, a queue, or its customers of one priority.
type rival struct {
	name, short string // with its verb, and as an object
	it          string // or they
	object      any    // in the policy
	priority    int
	open        bool // something in it has no guarantee
	customers   bool
	rate        *big.Rat // at which packets enter its queues, at most its own, bytes per ns
	unbounded   string   // why there is no such rate; "" if there is one
}

// rivals returns what a link serves, in the order of priorities.
func (l *linter) rivals(link *say.Node) (list []rival) {
	for _, n := range link.Children {
		r := rival{
			name: n.String() + " is", it: "it", short: n.Name(), object: n.Source(), priority: n.Priority(),
			open: n.Guarantee() == meter.Rate{},
		}
		if n.Link != nil {
			r.short = n.String()
			n.Walk(func(below *say.Node) { r.customers = r.customers || below.Customers.Count > 0 })
		}
		r.rate, r.unbounded = l.maxRateOf(n)
		list = append(list, r)
	}
	for i := range link.Customers.Ranks {
		k := &link.Customers.Ranks[i]
		who, verb, it := "the customer", " is", "it"
		if k.Count > 1 {
			who, verb, it = "the "+say.Count(k.Count, "customer"), " are", "they"
		}
		name := fmt.Sprintf("%s with priority %d", who, k.Priority)
		r := rival{
			name: name + verb, it: it, short: name, object: k.First, priority: k.Priority,
			open: k.Open > 0, customers: true,
		}
		r.rate, r.unbounded = maxRateOfRank(k)
		list = append(list, r)
	}
	sort.SliceStable(list, func(i, j int) bool { return list[i].priority < list[j].priority })
	return list
}

// starvation finds queues, links and customers that can take the whole rate of a link from those of lower
// priority without a guarantee.
func (l *linter) starvation(link *say.Node) {
	list := l.rivals(link)
	last := -1
	for i := range list {
		if list[i].open {
			last = i
		}
	}
	if last < 0 {
		return
	}
	victim, customers := &list[last], false
	used, whole := new(big.Rat), bytesPerNS(link.Reach)
	for i := range list {
		r := &list[i]
		if r.priority == victim.priority {
			return // it is served before no other
		}
		customers = customers || r.customers
		switch used.Add(used, r.rate); {
		case r.unbounded != "":
			l.add(Warning, r.object, "priority",
				"%s served before %s, and %s: %s can starve the other queues of link %s", r.name, victim.short,
				r.unbounded, r.it, link.Name())
			return
		case used.Cmp(whole) >= 0 && customers:
			l.add(Warning, r.object, "priority",
				"%s served before %s, and the rates of customers up to this priority, with those that meters pass, are the whole %v of link %s: the other queues can starve",
				r.name, victim.short, link.Reach, link.Name())
			return
		case used.Cmp(whole) >= 0:
			l.add(Warning, r.object, "priority",
				"%s served before %s, and the meters in front of it and of earlier queues pass the whole %v of link %s: the other queues can starve",
				r.name, victim.short, link.Reach, link.Name())
			return
		}
	}
}

// maxRateOf returns the rate, in bytes per ns, at which packets enter the queues of a node, at most its
// own rate, or why there is no such bound.
func (l *linter) maxRateOf(n *say.Node) (sum *big.Rat, unbounded string) {
	sum = new(big.Rat)
	if n.Queue != nil {
		rate, class := l.maxRateInto(n.Queue)
		if sum = rate; class != "" {
			unbounded = fmt.Sprintf("no meter limits the packets of class %s in it", class)
		}
	}
	add := func(rate *big.Rat, why string) {
		sum.Add(sum, rate)
		unbounded = cmp.Or(unbounded, why)
	}
	for _, c := range n.Children {
		add(l.maxRateOf(c))
	}
	for i := range n.Customers.Ranks {
		add(maxRateOfRank(&n.Customers.Ranks[i]))
	}
	if own := n.Rate(); own != (meter.Rate{}) && (unbounded != "" || sum.Cmp(bytesPerNS(own)) > 0) {
		return bytesPerNS(own), ""
	}
	return sum, unbounded
}

// maxRateOfRank is maxRateOf for the customers of one priority.
func maxRateOfRank(r *say.Rank) (sum *big.Rat, unbounded string) {
	if r.Unrated > 0 {
		return r.Rates, "a customer's queue has no rate of its own"
	}
	return r.Rates, ""
}

// guarantees finds guarantees below a link that do not hold while all queues are busy.
func (l *linter) guarantees(link *say.Node) {
	var first *say.Node
	crowd := link.Customers
	others, sum := 0, new(big.Rat)
	if crowd.Count > 0 {
		sum.Add(sum, crowd.Guarantees)
	}
	for _, n := range link.Children {
		g := n.Guarantee()
		sum.Add(sum, bytesPerNS(g))
		if g == (meter.Rate{}) || !say.Short(g, n.Guaranteed) {
			continue
		}
		if first == nil {
			first = n
		} else {
			others++
		}
	}
	var gets []string
	place := any(link.Link)
	if first != nil {
		place = first.Source()
		gets = append(gets, fmt.Sprintf("%v can count on %s of its guarantee of %v", first,
			say.AtLeast(first.Guaranteed), first.Guarantee()))
	}
	if others > 0 {
		gets = append(gets, fmt.Sprintf("%s of link %s on less than theirs", say.Count(others, "other"),
			link.Name()))
	}
	if crowd.Short > 0 {
		verb := "on"
		if gets == nil {
			verb = "can count on"
		}
		gets = append(gets, fmt.Sprintf("%s of link %s %s less than the guarantee, such as %s of %v",
			say.Count(crowd.Short, "customer"), link.Name(), verb, say.AtLeast(crowd.Gets), crowd.Promised))
	}
	if gets == nil {
		return
	}
	text := strings.Join(gets, ", and ")
	kinds, whole := "links and queues", bytesPerNS(link.Reach)
	if crowd.Count > 0 {
		kinds = "links, queues and customers"
	}
	if sum.Cmp(whole) > 0 {
		factor, _ := new(big.Rat).Quo(sum, whole).Float64()
		l.add(Warning, link.Link, "rate",
			"the guarantees of the %s of link %s add up to %.3g times its rate of %v: while all are busy, %s",
			kinds, link.Name(), factor, link.Reach, text)
		return
	}
	l.add(Warning, place, "guarantee", "while all queues are busy, %s", text)
}
