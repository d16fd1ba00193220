package lint

import (
	"cmp"
	"fmt"
	"math/big"
	"strings"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// starvation finds queues and links that can take the whole rate of a link from those of lower priority
// without a guarantee.
func (l *linter) starvation(link *say.Node) {
	last := -1
	for i, n := range link.Children {
		if n.Guarantee() == (meter.Rate{}) {
			last = i
		}
	}
	if last < 0 {
		return
	}
	victim, victimName := link.Children[last], link.Children[last].Name()
	if victim.Link != nil {
		victimName = victim.String()
	}
	used, whole := new(big.Rat), bytesPerNS(link.Reach)
	for _, n := range link.Children {
		if n.Priority() == victim.Priority() {
			return // it is served before no other
		}
		rate, class := l.maxRateOf(n)
		switch used.Add(used, rate); {
		case class != "":
			l.add(Warning, n.Source(), "priority",
				"%v is served before %s, and no meter limits the packets of class %s in it: it can starve the other queues of link %s",
				n, victimName, class, link.Name())
			return
		case used.Cmp(whole) >= 0:
			l.add(Warning, n.Source(), "priority",
				"%v is served before %s, and the meters in front of it and of earlier queues pass the whole %v of link %s: the other queues can starve",
				n, victimName, link.Reach, link.Name())
			return
		}
	}
}

// maxRateOf returns the rate, in bytes per ns, at which packets enter the queues of a node, at most its
// own rate, or the name of a class without such a bound.
func (l *linter) maxRateOf(n *say.Node) (sum *big.Rat, class string) {
	sum = new(big.Rat)
	if n.Queue != nil {
		sum, class = l.maxRateInto(n.Queue)
	}
	for _, c := range n.Children {
		rate, unbounded := l.maxRateOf(c)
		sum.Add(sum, rate)
		class = cmp.Or(class, unbounded)
	}
	if own := n.Rate(); own != (meter.Rate{}) && (class != "" || sum.Cmp(bytesPerNS(own)) > 0) {
		return bytesPerNS(own), ""
	}
	return sum, class
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
