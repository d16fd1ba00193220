package dataplane

import (
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// customers is the state of the customers of a pipeline, by number - 1.
type customers struct {
	plan   *PlanCustomers
	meters []meter.Meter  // without a profile for a customer with a queue
	queues []*queue.Leaky // nil until the first packet, and for a customer with a meter
	stats  []CustomerStats
	loaded int64 // a sum of what prefetch read, so that the compiler keeps the reads
}

// CustomerStats counts the packets of one customer that its plan treated.
type CustomerStats struct {
	Colors  [3]Count // all packets, by color after the last meter
	Dropped Count    // for any cause
}

// Total returns all packets.
func (s *CustomerStats) Total() Count { return Sum(s.Colors[:]) }

func newCustomers(plan *PlanCustomers) *customers {
	n := len(plan.Of)
	c := &customers{plan: plan, meters: make([]meter.Meter, n), queues: make([]*queue.Leaky, n), stats: make([]CustomerStats, n)}
	for i, at := range plan.Of {
		if p := plan.Plans[at].Profile; p != nil {
			c.meters[i] = meter.New(p)
		}
	}
	return c
}

// meter returns the meter of a customer, or nil for a customer with a queue.
func (c *customers) meter(number uint32) *meter.Meter {
	m := &c.meters[number-1]
	if m.Profile() == nil {
		return nil
	}
	return m
}

// queue returns the queue of a customer, or nil for a customer with a meter.
func (c *customers) queue(number uint32) *queue.Leaky {
	if c.meters[number-1].Profile() != nil {
		return nil
	}
	q := &c.queues[number-1]
	if *q == nil {
		*q, _ = queue.New(c.plan.Service(number).Queue) // Compile has checked it
	}
	return *q
}

// prefetch brings the memory of a customer into the CPU's cache.
func (c *customers) prefetch(number uint32) {
	i := number - 1
	c.loaded += c.stats[i].Dropped.Packets + int64(c.plan.Of[i])
	if c.meters[i].Profile() == nil && c.queues[i] != nil {
		c.loaded++
	}
}

// inherit takes over the state of the customers of the same names. A customer starts anew
// if it had no packet yet, or if its meter counted bytes and now counts packets.
func (c *customers) inherit(before *customers, now int64) {
	sameUnit := c.plan.Packets == before.plan.Packets
	for i := range c.meters {
		number := before.plan.Number(c.plan.Source.List[i].Name)
		if number == 0 {
			continue
		}
		c.stats[i] = before.stats[number-1]
		switch was := before.meter(number); {
		case c.meters[i].Profile() == nil:
			if q := before.queues[number-1]; q == nil {
				// Its first packet is still to come, or it had a meter.
			} else if c.plan.Service(uint32(i+1)).Queue == before.plan.Service(number).Queue {
				c.queues[i] = q
			} else {
				c.queue(uint32(i + 1)).Follow(q)
			}
		case was != nil && sameUnit && c.stats[i].Colors != [3]Count{}:
			profile := c.meters[i].Profile()
			c.meters[i] = was.Clone()
			c.meters[i].SetProfile(now, profile)
		}
	}
}
