package check

import (
	"math/big"
	"strings"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// link prints a link and its queues in the order of service.
func (p policyPrinter) link(link *dataplane.Link, queues []*dataplane.Queue) {
	p.Printf("  %-10s %v\n", "rate", link.Rate)
	for i, l := range say.Levels(link, queues) {
		of := "of the rate"
		if i > 0 {
			of = "of the remaining rate"
		}
		p.Printf("  priority %d %s %s\n", l.Priority, say.Level(l, link.Rate), of)
	}
}

// tree prints a link with the links and queues below it.
func (p policyPrinter) tree(root *say.Node) {
	g := &say.Table{
		Header: []any{"link or queue", "rate", "guarantee", "priority", "weight", "at least", "at most"},
		First:  2, Names: []int{0},
		Foot: "  at least: the rate while all queues are busy; at most: the lowest rate up to the root\n",
	}
	crowds := false
	root.Walk(func(n *say.Node) {
		name := n.Name()
		if n.Queue != nil {
			name = n.String()
		}
		var priority, weight any = "", ""
		if n != root {
			priority, weight = n.Priority(), n.Weight()
		}
		g.Add(strings.Repeat("  ", n.Level)+name, rateOrNone(n.Rate()), rateOrNone(n.Guarantee()), priority,
			weight, say.AtLeast(n.Guaranteed), n.Reach)
		if c := n.Customers; c.Count > 0 {
			crowds = true
			g.Add(strings.Repeat("  ", n.Level+1)+say.Count(c.Count, "customer"), "", "", "", "",
				say.AtLeast(c.Guaranteed), c.Reach)
		}
	})
	for line := range strings.Lines(g.Render(false)) {
		p.Printf("  %s", line)
	}
	if crowds {
		g.Foot += "  customers: the lowest rate of one while all are busy, and the highest that one can reach\n"
	}
	p.Printf("\n%s", g.Foot)
}

func rateOrNone(r meter.Rate) string {
	if r == (meter.Rate{}) {
		return ""
	}
	return r.String()
}

// checkLinkJSON lists its queues in the order of service. Its rate is 0 if it has none of its own.
type checkLinkJSON struct {
	Name     string   `json:"name"`
	Amount   int64    `json:"rate_amount"`
	PeriodNS int64    `json:"rate_period_ns"`
	Queues   []string `json:"queues"`

	// In a tree. The root has no link above, guarantee, priority and weight.
	Link       string   `json:"link,omitempty"`      // above
	Path       string   `json:"link_path,omitempty"` // of the links above and this one, the root first
	Links      []string `json:"links,omitempty"`     // below, in the order of service
	Guarantee  float64  `json:"guarantee_bit_s,omitempty"`
	Priority   *int     `json:"priority,omitempty"`
	Weight     int      `json:"weight,omitempty"`
	Guaranteed *float64 `json:"guaranteed_bit_s,omitempty"` // while all queues of the tree are busy
	Reach      *float64 `json:"reach_bit_s,omitempty"`      // lowest rate up to the root

	Customers *checkCrowdJSON `json:"customers,omitempty"` // with queues on the link

	Up *checkLinkJSON `json:"up,omitempty"` // for packets from the customers, if it differs
}

// checkCrowdJSON has the lowest rate of a customer while all queues of the tree are busy, and the highest
// that one can reach.
type checkCrowdJSON struct {
	Count      int     `json:"count"`
	Guaranteed float64 `json:"guaranteed_bit_s"`
	Reach      float64 `json:"reach_bit_s"`
}

// serve adds the service of a queue by its link.
func (j *checkQueueJSON) serve(n *say.Node, flat bool, queues []*dataplane.Queue, mtu int64) {
	q := n.Queue
	if !flat {
		j.Path = say.Path(q.Link)
		j.OwnRate, j.Guarantee = say.BitsPerSecond(q.Rate), say.BitsPerSecond(q.Guarantee)
		j.Guaranteed, j.Reach = new(say.BitsPerSecond(n.Guaranteed)), new(say.BitsPerSecond(n.Reach))
		return
	}
	s := say.ServiceOf(q, queues, mtu)
	if s.Wait != nil {
		j.WaitNS = say.WholeNS(s.Wait)
	}
	bits := s.Part.Mul(s.Part, big.NewRat(q.Link.Rate.Bytes, int64(q.Link.Rate.Period)))
	guaranteed, _ := bits.Mul(bits, big.NewRat(8e9, 1)).Float64()
	j.Guaranteed = &guaranteed
	for _, b := range s.Before {
		j.After = append(j.After, b.Name)
	}
}

// linksJSON returns a link and those below it, each before those below it.
func linksJSON(root *say.Node) (list []checkLinkJSON) {
	flat := root.Flat()
	root.Walk(func(n *say.Node) {
		if n.Link == nil {
			return
		}
		out := checkLinkJSON{
			Name: n.Link.Name, Amount: n.Link.Rate.Bytes, PeriodNS: int64(n.Link.Rate.Period),
			Queues: []string{},
		}
		for _, c := range n.Children {
			if c.Queue != nil {
				out.Queues = append(out.Queues, c.Name())
			} else {
				out.Links = append(out.Links, c.Name())
			}
		}
		if !flat {
			out.Path, out.Guaranteed = say.Path(n.Link), new(say.BitsPerSecond(n.Guaranteed))
			out.Reach = new(say.BitsPerSecond(n.Reach))
		}
		if c := n.Customers; c.Count > 0 {
			out.Customers = &checkCrowdJSON{
				c.Count, say.BitsPerSecond(c.Guaranteed), say.BitsPerSecond(c.Reach),
			}
		}
		if n != root {
			out.Link, out.Guarantee = n.Link.Link.Name, say.BitsPerSecond(n.Guarantee())
			out.Priority, out.Weight = new(n.Priority()), n.Weight()
		}
		list = append(list, out)
	})
	return list
}
