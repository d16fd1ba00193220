package libreqos

import (
	"cmp"
	"encoding/csv"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/routers"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// write makes the policy and the file of customers.
func (n *network) write(circuits []*circuit) {
	d := n.draft
	d.Class(&dataplane.Class{Name: "customers", Meter: &dataplane.Meter{}},
		[]routers.Condition{{Match: dataplane.Match{Customer: true}}})
	for _, c := range circuits {
		for s := c.parent; s != nil; s = s.above {
			s.used = true
		}
	}
	n.links()
	weights := weigh(n, circuits)
	n.plans(circuits)
	n.compare(circuits)
	d.Customers = n.customers(circuits, weights)
	n.left()
	d.Remark("LibreQoS shapes the direction to the customer and that from it: down and up.")
}

// links writes the nodes as links.
func (n *network) links() {
	var add func(s *site)
	add = func(s *site) {
		if !s.virtual && s.used {
			s.link = &dataplane.Link{Name: s.name, Rate: bitRate(s.max.down), Guarantee: bitRate(s.min.down)}
			s.link.Up = dataplane.Upward{Rate: bitRate(s.max.up), Guarantee: bitRate(s.min.up)}
			if above := s.above.physical(); above != nil {
				s.link.Link = above.link
			}
			line := routers.Line{Number: s.line}
			n.draft.From(s.link, "", line, "%s", strings.TrimPrefix(s.kind+" "+s.name, " "))
			n.draft.From(s.link, "rate", line, "downloadBandwidthMbps, uploadBandwidthMbps")
			n.draft.From(s.link, "guarantee", line, "downloadBandwidthMbpsMin, uploadBandwidthMbpsMin")
			n.draft.Policy.Links = append(n.draft.Policy.Links, s.link)
		}
		for _, c := range s.below {
			add(c)
		}
	}
	for _, s := range n.top {
		add(s)
	}
}

// bitRate returns a rate of n bit/s, or none for 0.
func bitRate(n int64) (r meter.Rate) {
	if n > 0 {
		r = meter.BitRate(n)
	}
	return r
}

// String writes rates as a value of a policy.
func (r siteRates) String() string {
	var parts []string
	if r.down > 0 {
		parts = append(parts, "down: "+routers.BitRate(r.down))
	}
	if r.up > 0 {
		parts = append(parts, "up: "+routers.BitRate(r.up))
	}
	return "{" + strings.Join(parts, ", ") + "}"
}

// weigh returns the weights of circuits, and sets those of links: the excess of a node is shared in
// proportion to the maximum download rates of its children.
func weigh(n *network, circuits []*circuit) map[*circuit]int64 {
	weights, largest := map[*circuit]int64{}, map[*site]int64{}
	for _, c := range circuits {
		largest[c.parent] = max(largest[c.parent], c.max.down)
	}
	for _, s := range n.order {
		for _, c := range s.children() {
			largest[s] = max(largest[s], c.max.down)
		}
	}
	weight := func(s *site, rate int64) int64 {
		unit := max(1_000_000, (largest[s]+queue.MaxWeight-1)/queue.MaxWeight)
		return min(max((rate+unit/2)/unit, 1), queue.MaxWeight)
	}
	for _, c := range circuits {
		if c.parent != nil {
			weights[c] = weight(c.parent, c.max.down)
		}
	}
	for _, s := range n.order {
		if s.virtual {
			continue
		}
		for _, c := range s.children() {
			if w := weight(s, c.max.down); w > 1 {
				c.link.Weight = int(w)
				n.draft.From(c.link, "weight", routers.Line{Number: c.line}, "by downloadBandwidthMbps")
			}
		}
	}
	return weights
}

// terms are the rates of a plan, which circuits may replace.
type terms struct{ max, min siteRates }

// common returns the most frequent terms of circuits with a plan.
func common(circuits []*circuit, plan string) (t terms, ok bool) {
	count := map[terms]int{}
	for _, c := range circuits {
		if c.plan() == plan {
			count[terms{c.max, c.min}]++
		}
	}
	if len(count) == 0 {
		return t, false
	}
	return slices.MaxFunc(slices.Collect(maps.Keys(count)), func(a, b terms) int {
		return cmp.Or(cmp.Compare(count[a], count[b]), cmp.Compare(a.max.down, b.max.down),
			cmp.Compare(a.max.up, b.max.up), cmp.Compare(a.min.down, b.min.down),
			cmp.Compare(a.min.up, b.min.up))
	}), true
}

// plans writes a plan for each kind of queue.
func (n *network) plans(circuits []*circuit) {
	customers := &dataplane.Customers{}
	n.draft.Policy.Customers = customers
	for _, plan := range planNames {
		t, ok := common(circuits, plan)
		if !ok {
			continue
		}
		fair := strings.HasPrefix(plan, defaultPlan)
		p := &dataplane.ServicePlan{Name: plan, Queue: planQueue(t.max.down, fair)}
		p.Up = &dataplane.UpwardPlan{Queue: planQueue(t.max.up, fair)}
		if !strings.HasSuffix(plan, flat) {
			p.Guarantee, p.Up.Guarantee = bitRate(t.min.down), bitRate(t.min.up)
		}
		if fair {
			p.Fair.By = dataplane.ByFlow
		}
		n.draft.From(p, "rate", routers.Line{}, "the most frequent one; customers have their own")
		n.draft.From(p, "limit", routers.Line{}, "an assumption: cake and fq_codel have no limit in time")
		n.draft.From(p, "fair", routers.Line{}, "cake or fq_codel")
		customers.Plans = append(customers.Plans, p)
	}
	if slices.ContainsFunc(circuits, func(c *circuit) bool { return c.sqm == defaultPlan }) {
		n.note(n.file, 1,
			"cake's tins by DSCP and its fairness to hosts are left out: each flow of a circuit gets the same")
	}
	if i := slices.IndexFunc(circuits, func(c *circuit) bool { return c.parent == nil }); i >= 0 {
		n.note(n.devices, circuits[i].line,
			"circuits without a parent node have a rate only: LibreQoS puts them below nodes with rates of lqos.conf")
	}
}

// planQueue returns the queue of a plan.
func planQueue(rate int64, fair bool) *queue.Config {
	c := &queue.Config{Rate: bitRate(rate), Time: routers.AssumedLimit, ECN: fair}
	if fair {
		c.CoDel = queue.CoDelAt(c.Rate)
	}
	return c
}

// compare names the nodes whose circuits have guarantees above the rate of the node.
func (n *network) compare(circuits []*circuit) {
	sums := map[*site]siteRates{}
	for _, c := range circuits {
		if c.parent != nil {
			sum := sums[c.parent]
			sums[c.parent] = siteRates{sum.down + c.min.down, sum.up + c.min.up}
		}
	}
	for _, s := range n.order {
		if sum := sums[s]; sum.down > s.max.down || sum.up > s.max.up {
			n.note(n.file, s.line,
				"the minimum rates of the circuits below node %q add up to %v, above its rate: LibreQoS lowers them to 1 Mbit/s, and here they share the rate in proportion",
				s.name, sum)
		}
	}
}

// customers returns the file of customers.
func (n *network) customers(circuits []*circuit, weights map[*circuit]int64) string {
	var b strings.Builder
	w := csv.NewWriter(&b)
	row := func(cells ...string) { _ = w.Write(cells) } // a strings.Builder accepts all
	row("customer", "address", "plan", "link", "down", "up", "down-guarantee", "up-guarantee", "weight")
	plans := map[string]terms{}
	for _, plan := range planNames {
		plans[plan], _ = common(circuits, plan)
	}
	for _, c := range circuits {
		t := plans[c.plan()]
		own := func(rate, plan int64) string {
			if rate == plan {
				return ""
			}
			return routers.BitRate(rate)
		}
		link, weight, down, up := "", "", "", ""
		if c.parent != nil {
			link, down, up = c.parent.name, own(c.min.down, t.min.down), own(c.min.up, t.min.up)
		}
		if weights[c] > 1 {
			weight = fmt.Sprint(weights[c])
		}
		var addresses []string
		for _, p := range c.addresses {
			addresses = append(addresses, strings.TrimSuffix(p.String(), fmt.Sprintf("/%d", p.Addr().BitLen())))
		}
		row(c.id, strings.Join(addresses, " "), c.plan(), link, own(c.max.down, t.max.down),
			own(c.max.up, t.max.up), down, up, weight)
	}
	w.Flush()
	return b.String()
}

// left notes the parts of network.json that are left out.
func (n *network) left() {
	for _, key := range slices.Sorted(maps.Keys(n.ignored)) {
		n.note(n.file, n.ignored[key], "key %q of nodes is left out", key)
	}
	var unused, virtual []string
	first := map[bool]int{}
	for _, s := range n.order {
		switch {
		case s.virtual:
			virtual = append(virtual, s.name)
		case !s.used:
			unused = append(unused, s.name)
		default:
			continue
		}
		if first[s.virtual] == 0 {
			first[s.virtual] = s.line
		}
	}
	if unused != nil {
		n.note(n.file, first[false], "nodes without circuits are left out: %s", shortList(unused))
	}
	if virtual != nil {
		n.note(n.file, first[true], "virtual nodes have no rate, and are left out: %s", shortList(virtual))
	}
}

// shortList joins the first words of a list, and counts the others.
func shortList(words []string) string {
	const most = 10
	text := strings.Join(words[:min(len(words), most)], ", ")
	if len(words) > most {
		text += fmt.Sprintf(" and %d more", len(words)-most)
	}
	return text
}
