package pipeline

import (
	"math"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// customers is the state of the customers of a pipeline.
type customers struct {
	plan   *compiled.Customers
	roster *compiled.Roster // of plan; nil until ChangeCustomers
	list   []customer       // by number - 1
	loaded int              // a meaningless sum, which makes the CPU load its terms
}

// customer is the state of one customer. A green packet touches only the first 64 bytes.
type customer struct {
	meter.Meter                   // without a profile for a customer with a queue
	service     *compiled.Service // nil: the number belongs to nobody
	leaky       *queue.Leaky      // nil until the first packet, and with a meter
	stats       dataplane.CustomerStats
	place       int32   // index of its queue in the tree service.Tree
	restored    bool    // the meter continues one before the first packet
	_           [3]byte // so that the size is 128 bytes
	since       int64   // time at which ChangeCustomers added it, ns
}

// begun reports whether the state differs from that of a new customer.
func (c *customer) begun() bool { return c.restored || c.stats.Colors != [3]dataplane.Count{} }

func newCustomers(plan *compiled.Customers) *customers {
	c := &customers{plan: plan, list: make([]customer, len(plan.Of))}
	for i, at := range plan.Of {
		c.list[i].start(&plan.Plans[at])
	}
	return c
}

// start gives a new customer its plan.
func (c *customer) start(service *compiled.Service) {
	if c.service = service; !c.paced() {
		c.Meter = meter.New(service.Profile)
	}
}

// customer returns a customer by its number.
func (c *customers) customer(number uint32) *customer { return &c.list[number-1] }

// paced reports whether the customer has a queue instead of a meter.
func (c *customer) paced() bool { return c.service.Profile == nil }

// inTree reports whether the customer has a queue in a tree of links.
func (c *customer) inTree() bool { return c.service.Tree >= 0 }

// queue returns the queue of a paced customer that is in no tree.
func (c *customer) queue() *queue.Leaky {
	if c.leaky == nil {
		c.leaky, _ = queue.New(c.service.Queue) // Compile checked it
	}
	return c.leaky
}

// prefetch brings the memory of a customer into the CPU's cache.
func (c *customers) prefetch(number uint32) {
	if c.customer(number).paced() {
		c.loaded++
	}
}

// inherit takes over the state of the customers of the same names. A customer starts anew
// if it had no packet yet, or if its meter counted bytes and now counts packets.
func (c *customers) inherit(before *customers, now int64) {
	sameUnit := c.plan.Packets == before.plan.Packets
	c.each(before, func(next, was *customer) { next.inherit(was, now, sameUnit) })
}

// each calls f for each customer that has a predecessor of the same name.
func (c *customers) each(before *customers, f func(next, was *customer)) {
	if c == nil || before == nil {
		return
	}
	number := uint32(0) // of the predecessor
	for i := range c.list {
		name := c.plan.Source.List[i].Name
		// Most tables have the order of their predecessors. A look-up takes much longer.
		if list := before.plan.Source.List; int(number) < len(list) && list[number].Name == name {
			number++
		} else if number = before.plan.Number(name); number == 0 {
			continue
		}
		f(&c.list[i], before.customer(number))
	}
}

// inherit takes over the state of a customer at now. sameUnit: both meters count bytes, or both
// packets.
func (c *customer) inherit(was *customer, now int64, sameUnit bool) {
	c.stats, c.restored = was.stats, was.restored
	switch {
	case c.inTree(), c.paced() && was.leaky == nil:
		// Its first packet is still to come, or it had a meter, or a tree keeps its backlog.
	case c.paced() && c.service.Queue.CoDel == was.service.Queue.CoDel &&
		sameButTimes(c.service.Queue, was.service.Queue):
		c.leaky = was.leaky
		_ = c.leaky.SetRate(c.service.Queue.Rate) // Compile checked it
	case c.paced():
		c.queue().Follow(was.leaky)
	case !was.paced() && sameUnit && c.begun():
		c.Meter = was.Clone()
		c.SetProfile(now, c.service.Profile)
	}
}

// SetCustomerPlans gives customers other plans at now (ns, on the clock of the packets). Their tokens,
// backlogs and counters continue as Inherit defines. A customer whose queue is in a tree of links may move in
// it: its packets stay queued. Customers unknown to the pipeline are left out, as are plans that need a
// reload, see compiled.Service.Replaces.
func (l *Pipeline) SetCustomerPlans(now int64, list []compiled.CustomerService) {
	if l.customers == nil {
		return
	}
	l.advance(now)
	var changed []*customer
	for _, next := range list {
		number := l.plan.Customers.Number(next.Name)
		if number == 0 {
			continue
		}
		c := l.customers.customer(number)
		if next.Plan.Replaces(c.service) != nil {
			continue
		}
		c.change(next.Plan, l.now)
		changed = append(changed, c)
	}
	trees := make([][]queue.QueueChange, len(l.trees))
	for _, c := range changed {
		if s := c.service; c.inTree() {
			change := queue.QueueChange{Queue: int(c.place), LinkQueue: s.LinkQueue}
			trees[s.Tree] = append(trees[s.Tree], change)
		}
	}
	for tree, queues := range trees {
		if queues != nil {
			_ = l.trees[tree].ChangeQueues(l.now, queues) // Variant checked it
		}
	}
}

// advance moves the clock to now, unless it has not started: it starts with the first packet.
func (l *Pipeline) advance(now int64) {
	if l.now > math.MinInt64 {
		l.now = max(l.now, now)
	}
}

// change gives the customer another plan at a time.
func (c *customer) change(service *compiled.Service, now int64) {
	was := customer{service: c.service, leaky: c.leaky, stats: c.stats, restored: c.restored}
	if !c.paced() {
		was.Meter = c.Clone()
	}
	c.Meter, c.leaky, c.stats = meter.Meter{}, nil, dataplane.CustomerStats{}
	c.start(service)
	c.inherit(&was, now, true)
}
