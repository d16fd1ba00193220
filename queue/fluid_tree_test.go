package queue

import (
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/a-seed-32e5a53f/shaper/meter"
)

// branch is a node of a random tree. Times per byte are whole, so departures are too.
type branch struct {
	number     int // in preorder
	above      *branch
	level      int // 1 for the root
	kids       []*branch
	link       int     // index among the links, or -1
	queue      int     // index among the queues, or -1
	perByte    int64   // ns per byte at its rate, 0 for none
	rate       float64 // bytes per ns, infinite for none
	guaranteed int64   // bytes per second
	weight     int
	priority   int
}

// randomTree makes random trees.
type randomTree struct {
	*rand.Rand
	levels, fan int
	nodes       []*branch
	links       []TreeLink
	queues      []LinkQueue
}

// rootPerByte is the time per byte at the root: 8 Mbit/s.
const rootPerByte = 1000

// plant makes a tree of 2 to g.levels levels.
func (g *randomTree) plant() {
	g.grow(nil, 2+g.IntN(g.levels-1), 1e9/rootPerByte)
}

// grow adds a node. share is a fair rate for it, in bytes per second.
func (g *randomTree) grow(above *branch, levels int, share float64) *branch {
	v := &branch{
		number: len(g.nodes), above: above, level: 1, link: -1, queue: -1, weight: 1, rate: math.Inf(1),
	}
	g.nodes = append(g.nodes, v)
	if above == nil {
		v.perByte = rootPerByte
	} else {
		v.level = above.level + 1
		g.chooseRates(v, share)
	}
	if v.perByte > 0 {
		v.rate = 1 / float64(v.perByte)
	}
	place := g.place(v)
	if v.level == levels || above != nil && g.IntN(10) < 3 {
		v.queue = len(g.queues)
		g.queues = append(g.queues, LinkQueue{
			Config: Config{Packets: MaxPackets, Rate: place.Rate}, Parent: place.Parent,
			Guarantee: place.Guarantee, Priority: place.Priority, Weight: place.Weight,
		})
	} else {
		v.link = len(g.links)
		g.links = append(g.links, place)
		n := 1 + g.IntN(g.fan)
		if above == nil {
			n = max(n, 2)
		}
		for range n {
			v.kids = append(v.kids, g.grow(v, levels, min(share, v.rate*1e9)/float64(n)))
		}
	}
	return v
}

func (g *randomTree) chooseRates(v *branch, share float64) {
	if g.Float64() < 0.4 {
		v.perByte = int64(1e9 / (share * (0.3 + 1.5*g.Float64())))
	}
	if g.Float64() < 0.5 {
		v.guaranteed = 1 + int64(share*1.2*g.Float64())
		if v.perByte > 0 {
			v.guaranteed = min(v.guaranteed, 1e9/v.perByte)
		}
	}
	if g.Float64() < 0.4 {
		v.weight = 1 + g.IntN(10)
	}
	if g.Float64() < 0.3 {
		v.priority = g.IntN(3)
	}
}

// place returns the configuration of a node.
func (g *randomTree) place(v *branch) TreeLink {
	s := TreeLink{Weight: v.weight, Priority: v.priority}
	if v.above == nil {
		s.Weight = 0
	}
	if v.above != nil {
		s.Parent = v.above.link
	}
	if v.perByte > 0 {
		s.Rate = meter.Rate{Bytes: 1, Period: time.Duration(v.perByte)}
	}
	if v.guaranteed > 0 {
		s.Guarantee = meter.Rate{Bytes: v.guaranteed, Period: time.Second}
	}
	return s
}

// busy returns a fluid all of whose queues are backlogged.
func (g *randomTree) busy() *fluid {
	f := newFluid(g.nodes)
	for _, v := range g.nodes {
		if v.queue >= 0 {
			f.state[v.number].backlog = 1
		}
	}
	f.share()
	return f
}

// fluid serves all backlogged queues of a tree at once, at any time at the rates that the rules for
// guarantees, priorities and weights give them.
type fluid struct {
	nodes []*branch // in preorder
	state []fluidState
	now   float64
}

// fluidState is the state of a node, in bytes and bytes per ns.
type fluidState struct{ backlog, demand, given, sent float64 }

func newFluid(nodes []*branch) *fluid {
	return &fluid{nodes: nodes, state: make([]fluidState, len(nodes))}
}

func (f *fluid) at(v *branch) *fluidState { return &f.state[v.number] }

// add lets bytes arrive at a queue.
func (f *fluid) add(queue *branch, bytes int) {
	f.at(queue).backlog += float64(bytes)
	f.share()
}

// share computes the rates of all nodes.
func (f *fluid) share() {
	for i := range f.state {
		f.state[i].demand = 0
	}
	for i, v := range slices.Backward(f.nodes) {
		s := &f.state[i]
		if v.queue >= 0 && s.backlog > 0 {
			s.demand = math.Inf(1)
		}
		s.demand = min(s.demand, v.rate)
		if i > 0 {
			f.at(v.above).demand += s.demand
		}
	}
	f.state[0].given = f.state[0].demand
	for _, v := range f.nodes {
		if v.link >= 0 {
			f.divide(v)
		}
	}
}

// divide divides the rate of a node among its children.
func (f *fluid) divide(v *branch) {
	for _, k := range v.kids {
		f.at(k).given = 0
	}
	guaranteed := func(k *branch) float64 { return float64(k.guaranteed) / 1e9 }
	left := f.fill(f.at(v).given, v.kids, guaranteed,
		func(k *branch) float64 { return min(guaranteed(k), f.at(k).demand) })
	for priority := range MaxPriority + 1 {
		var list []*branch
		for _, k := range v.kids {
			if k.priority == priority {
				list = append(list, k)
			}
		}
		left = f.fill(left, list, func(k *branch) float64 { return float64(k.weight) },
			func(k *branch) float64 { return f.at(k).demand - f.at(k).given })
	}
}

// fill divides a rate in proportion to weights, to none more than its limit.
func (f *fluid) fill(total float64, list []*branch, weight, limit func(*branch) float64) (left float64) {
	type part struct {
		to            *branch
		weight, limit float64
	}
	var parts []part
	weights := 0.0
	for _, k := range list {
		if p := (part{k, weight(k), limit(k)}); p.weight > 0 && p.limit > 0 {
			parts = append(parts, p)
			weights += p.weight
		}
	}
	slices.SortFunc(parts, func(a, b part) int {
		switch x, y := a.limit/a.weight, b.limit/b.weight; {
		case x < y:
			return -1
		case x > y:
			return 1
		}
		return 0
	})
	for _, p := range parts {
		rate := min(p.limit, total*p.weight/weights)
		f.at(p.to).given += rate
		total -= rate
		weights -= p.weight
	}
	return max(total, 0)
}

// advance serves until a time.
func (f *fluid) advance(to float64) {
	for f.now < to {
		step := to - f.now
		for i, v := range f.nodes {
			if s := &f.state[i]; v.queue >= 0 && s.given > 0 {
				step = min(step, s.backlog/s.given)
			}
		}
		ended := false
		for i, v := range f.nodes {
			s := &f.state[i]
			s.sent += s.given * step
			if v.queue >= 0 && s.backlog > 0 {
				if s.backlog -= s.given * step; s.backlog < 1e-6 {
					s.backlog, ended = 0, true
				}
			}
		}
		if f.now += step; !ended {
			f.now = to
		} else {
			f.share()
		}
	}
}
