package pipeline

import (
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// Stats returns the counters: one entry for each class, in the order of the policy, and a
// last one for unclassified packets. Later packets change the returned slice.
func (l *Pipeline) Stats() []dataplane.ClassStats { return l.stats }

// Customers returns the counters of all customers, in the order of the policy; nil for none.
func (l *Pipeline) Customers() []dataplane.CustomerStats {
	if l.customers == nil {
		return nil
	}
	out := make([]dataplane.CustomerStats, len(l.customers.list))
	l.CopyCustomers(out, 0)
	return out
}

// CopyCustomers copies the counters of customers to a list, from an index of Customers on, which
// must have so many of them.
func (l *Pipeline) CopyCustomers(to []dataplane.CustomerStats, from int) {
	for i := range to {
		to[i] = l.customers.list[from+i].stats
	}
}

// Customer returns the counters of a customer by its number in the plan, from 1.
func (l *Pipeline) Customer(number uint32) dataplane.CustomerStats {
	return l.customers.list[number-1].stats
}

// CustomerDelay returns the queueing delay of a customer's packet arriving at now, in ns, or false
// without a queue.
func (l *Pipeline) CustomerDelay(number uint32, now int64) (delay time.Duration, queued bool) {
	c := l.customers.customer(number)
	switch {
	case !c.paced():
		return 0, false
	case c.inTree(): // as if only this queue had packets
		_, bytes := l.trees[c.service.Tree].Backlog(int(c.place))
		return queue.Duration(c.service.Source.Drain(), bytes), true
	}
	return c.queue().Delay(now), true
}

// Tokens returns the tokens of a stage of the plan at the pipeline's clock, see
// meter.Meter.Tokens. For a meter per key they are the tokens of the meter for packets
// without a key. For stage -1 they are 0.
func (l *Pipeline) Tokens(stage int) (tc, te int64) {
	if stage < 0 {
		return 0, 0
	}
	return l.stages[stage].tokens(l.now)
}

// MeasureLack makes the pipeline set Verdict.Lack, except where LackRuns skips it. With gap 0 it is
// set for every packet.
func (l *Pipeline) MeasureLack(gap time.Duration) { l.lacks = NewLackRuns(l.plan, gap) }

// Keys returns the counters of the key table of a stage of the plan. They are zero for a stage
// without keys, and for stage -1.
func (l *Pipeline) Keys(stage int) meter.TableStats {
	if stage < 0 || l.stages[stage].keyed == nil {
		return meter.TableStats{}
	}
	return l.stages[stage].keyed.table().Stats()
}

// Queues returns the backlogs of the plan's queues. For a queue with a rate it is the
// backlog at now (ns), which must not be before the pipeline's clock. For a queue of a
// link it is the backlog after the latest Settle.
func (l *Pipeline) Queues(now int64) []dataplane.QueueState {
	out := make([]dataplane.QueueState, len(l.queues))
	for i := range l.queues {
		q := &l.queues[i]
		out[i].Name = q.plan.Name
		if q.leaky == nil {
			_, out[i].Bytes = l.trees[q.tree].Backlog(q.treeIndex)
			continue
		}
		out[i].Delay = q.leaky.Delay(now)
		out[i].Bytes, _ = q.plan.Drain.Burst(out[i].Delay)
	}
	return out
}

// Now returns the pipeline's clock: the latest arrival time, in ns, or math.MinInt64 before
// the first packet.
func (l *Pipeline) Now() int64 { return l.now }

// ReplaceMeter replaces the meter of a stage of the plan with s. The default for a stage whose
// budget is on the host is a meter of its own.
func (l *Pipeline) ReplaceMeter(stage int, s Shared) {
	l.stages[stage].source, l.stages[stage].shared = replaced, s
}

// Shared is a meter whose state is outside the pipeline, such as a budget of the host. It
// need not be safe for concurrent use.
type Shared interface {
	// Color is meter.Meter.Color. It must not allocate.
	Color(now int64, n int, in meter.Color) meter.Color
	// Refund is meter.Meter.Refund. It must not allocate.
	Refund(c meter.Charge)
	// Tokens is meter.Meter.Tokens.
	Tokens(now int64) (tc, te int64)
}
