package pipeline

import (
	"math"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// Pipeline is a compiled.Plan with its state: tokens, backlogs and counters. It is for one goroutine
// at a time. Process allocates memory only when a queue needs more of it, see
// queue.Leaky.Admit and queue.Link.Admit, and for the first IPv6 address in a table of keys.
type Pipeline struct {
	plan      *compiled.Plan
	stages    []stage
	queues    []pacedQueue
	trees     []*queue.Link[waiting] // by Plan.Trees
	customers *customers             // nil for none
	stats     []dataplane.ClassStats // by class; the last one counts unclassified packets
	now       int64                  // the latest arrival time, ns
	steps     *[]Step                // result of Explain; nil during Process
	// by class: the first table of keys in its chain of meters; nil if there are none
	tables   []*keyTable
	lacks    *LackRuns           // nil: Verdict.Lack is not measured
	held     heldTokens          // tokens of packets that a queue may still drop
	settled  []dataplane.Verdict // decisions of links not returned by Settle so far
	returned int                 // length of the part of settled returned by Settle
}

// pacedQueue is the state of a queue of the plan: a leaky bucket, or a queue of a link.
type pacedQueue struct {
	leaky     *queue.Leaky // nil for a queue of a link
	tree      int          // index of its tree
	treeIndex int          // index among the queues of the tree
	plan      *compiled.Queue
}

// New compiles a policy and returns a pipeline for it. Errors are those of compiled.Compile.
func New(policy *dataplane.Policy) (*Pipeline, error) {
	plan, err := compiled.Compile(policy)
	if err != nil {
		return nil, err
	}
	return FromPlan(plan), nil
}

// FromPlan returns a pipeline with the initial tokens of the plan and empty queues. Its
// clock starts with the first packet.
func FromPlan(plan *compiled.Plan) *Pipeline {
	l := &Pipeline{
		plan: plan, now: math.MinInt64, stats: make([]dataplane.ClassStats, len(plan.Classes)+1),
		stages: make([]stage, len(plan.Stages)), queues: make([]pacedQueue, len(plan.Queues)),
	}
	for i := range plan.Stages {
		l.stages[i].initialize(&plan.Stages[i])
	}
	if plan.Customers != nil {
		l.customers = newCustomers(plan.Customers)
		for i := range l.stages {
			if plan.Stages[i].Customers {
				l.stages[i].customers = l.customers
			}
		}
	}
	l.findTables()
	for i := range plan.Envelopes {
		p := &plan.Envelopes[i]
		e, _ := meter.NewEnvelope(p.EnvelopeParams) // Compile checked it
		for flow, stage := range p.Stages {
			s := &l.stages[stage]
			s.envelope = e
			e.SetTokens(flow, s.plan.Initial.Of(p.Flows[flow].Buckets.CBS),
				s.plan.Initial.Of(p.Flows[flow].Buckets.EBS))
		}
	}
	for i := range plan.Queues {
		q := &l.queues[i]
		if q.plan = &plan.Queues[i]; q.plan.Link < 0 {
			q.leaky, _ = queue.New(q.plan.Config) // Compile checked it
		}
	}
	for i := range plan.Trees {
		tree := &plan.Trees[i]
		for k, q := range tree.Queues {
			l.queues[q].tree, l.queues[q].treeIndex = i, k
		}
		for k, number := range tree.Customers {
			l.customers.customer(number).place = int32(len(tree.Queues) + k)
		}
		root, _ := queue.NewTree[waiting](l.treeConfig(i)) // Compile checked it
		l.trees = append(l.trees, root)
	}
	return l
}

// Plan returns the plan of the pipeline.
func (l *Pipeline) Plan() *compiled.Plan { return l.plan }

// Accepts returns an error if the policy cannot meter packets of a link type, see
// compiled.Plan.Accepts.
func (l *Pipeline) Accepts(link dataplane.LinkType) error { return l.plan.Accepts(link) }

// Process applies the policy to one packet: parse, classify, meter, act. It writes the
// verdict to v and marks into p.Data. The pipeline's clock is the largest p.Time so far;
// an earlier packet is treated as if it arrived at that time.
func (l *Pipeline) Process(p *dataplane.Packet, v *dataplane.Verdict) {
	dataplane.Parse(p)
	l.classify(p, v)
	l.decide(p, v)
}

// classify is the part of Process that depends on nothing but the parsed packet and the clock.
func (l *Pipeline) classify(p *dataplane.Packet, v *dataplane.Verdict) {
	p.Customer, p.Direction = 0, l.plan.Direction
	if l.customers != nil {
		p.Customer = l.plan.Customers.CustomerOf(p)
	}
	l.findClass(p, v)
}

// findClass is classify for a parsed packet whose customer is known.
func (l *Pipeline) findClass(p *dataplane.Packet, v *dataplane.Verdict) {
	l.now = max(l.now, p.Time)
	n := l.plan.Length.Length(p)
	*v = dataplane.Verdict{} // in place; a literal with values would be made elsewhere and copied
	v.Now, v.Departure, v.ID = l.now, l.now, p.ID
	v.Length, v.Packets = n, max(p.Segments, 1)
	v.DSCPIn, v.HasDSCP = p.DSCP()
	v.DSCPOut = v.DSCPIn
	v.Class = int32(l.plan.Classifier.Classify(p, n))
	v.Stage = -1
}

// decide is the rest of Process: meter and act.
func (l *Pipeline) decide(p *dataplane.Packet, v *dataplane.Verdict) {
	if v.Class < 0 {
		v.Reason = p.Kind.Untaken()
		stats := &l.stats[len(l.stats)-1]
		stats.Untaken.Add(countOf(v))
		if l.plan.DropUnclassified {
			stats.UntakenDropped.Add(countOf(v))
			return
		}
		v.Done = dataplane.Pass
		return
	}
	if len(l.trees) > 0 {
		l.decideLinks(v.Now) // packets dropped by them give their tokens back before this one is metered
	}
	class := &l.plan.Classes[v.Class]
	if class.Customers {
		v.Customer = p.Customer
		if c := l.customers.customer(v.Customer); c.paced() && !l.tryQueue(class.Stage, c, p, v) {
			return
		}
	}
	taken := noTokens
	if class.Stage < 0 {
		v.Reason = dataplane.NoMeter
	} else {
		taken = l.meter(class.Stage, p, v, class.Queues)
	}
	action := &class.Actions[v.Color]
	if class.Customers {
		if own := l.customers.customer(v.Customer).service.Actions[v.Color]; own != nil {
			action = own
		}
	}
	l.act(action, p, v, taken)
	if taken != noTokens && v.Done&dataplane.Waiting == 0 {
		l.held.end(l, taken, v, v.Now)
	}
}

// queuePacket returns a packet as a queue sees it.
func queuePacket(p *dataplane.Packet, v *dataplane.Verdict, color meter.Color) queue.Packet {
	return queue.Packet{Bytes: v.Length, Segments: v.Packets, Color: color, ECN: p.ECNCapable()}
}

// tryQueue lets the own queue of a customer decide before any meter. It reports whether the
// queue would admit the packet; if not, the packet is dropped with its input color.
func (l *Pipeline) tryQueue(stage int, c *customer, p *dataplane.Packet, v *dataplane.Verdict) bool {
	v.Pre = l.inputColor(stage, p)
	packet := queuePacket(p, v, v.Pre)
	var fate queue.Fate
	if c.inTree() {
		fate = l.trees[c.service.Tree].Try(v.Now, int(c.place), &packet)
	} else {
		fate = c.queue().Try(v.Now, packet)
	}
	if !fate.Dropped() {
		return true
	}
	v.Color = v.Pre
	l.countColor(v)
	l.applyFate(fate, v)
	return false
}

// inputColor returns the input color of a packet for the chain of meters from a stage on.
func (l *Pipeline) inputColor(stage int, p *dataplane.Packet) meter.Color {
	if s := l.stages[stage].plan; s.Aware {
		return s.Input.Color(p)
	}
	return meter.Green
}

// meter colors the packet by a chain of meters, from stage i on. A red packet skips the rest of the
// chain. With hold it returns the tokens taken by the packet.
func (l *Pipeline) meter(i int, p *dataplane.Packet, v *dataplane.Verdict, hold bool) (taken tokens) {
	s := &l.stages[i]
	v.Pre = l.inputColor(i, p)
	v.Color = v.Pre
	for {
		n, in := s.amount(v), v.Color
		refused := uint64(0)
		if hold {
			refused = s.refused()
		}
		switch kind, metered := s.kind(p); {
		case !metered:
			v.Reason = dataplane.NoMeter
		case l.steps == nil:
			v.Color = s.color(p, v.Now, n, in)
			v.Reason = dataplane.Reason(kind.Clause(in, v.Color))
		default:
			step := s.explain(p, v.Now, n, in)
			step.Stage = i
			*l.steps = append(*l.steps, step)
			v.Color = step.Color
			v.Reason = dataplane.Reason(kind.Clause(in, v.Color))
		}
		if v.Reason != dataplane.NoMeter {
			v.Stage = int32(i)
			if hold && v.Color != meter.Red {
				var e *held
				e, taken = l.held.add(taken)
				e.stage, e.customer, e.key = int32(i), p.Customer, l.held.keyOf(s, p, refused)
				e.in, e.color = in, v.Color
			}
		}
		if i = s.plan.Then; i < 0 || v.Color == meter.Red {
			if l.lacks != nil && v.Color != in {
				s.measureLack(l.lacks, v, n, in)
			}
			return taken
		}
		s = &l.stages[i]
	}
}

// Explain is Process with an explanation of the verdict: a step for each meter of the packet, in
// order. It allocates.
func (l *Pipeline) Explain(p *dataplane.Packet, v *dataplane.Verdict) []Step {
	var steps []Step
	l.steps = &steps
	l.Process(p, v)
	l.steps = nil
	return steps
}

// countColor counts a packet by its color.
func (l *Pipeline) countColor(v *dataplane.Verdict) {
	l.stats[v.Class].Colors[v.Color].Add(countOf(v))
	if v.Customer != 0 {
		l.customers.customer(v.Customer).stats.Colors[v.Color].Add(countOf(v))
	}
}

// act applies the action for the packet's color and counts the packet. A link keeps the
// taken tokens with the packet.
func (l *Pipeline) act(a *compiled.Action, p *dataplane.Packet, v *dataplane.Verdict, taken tokens) {
	l.countColor(v)
	if a.Drop {
		l.countDrop(v, dataplane.CauseColor)
		return
	}
	done := dataplane.Pass
	switch a.ECN {
	case dataplane.CE, dataplane.CEOrDrop:
		if p.SetCE() {
			done |= dataplane.ECNSet
		} else if a.ECN == dataplane.CEOrDrop {
			l.countDrop(v, dataplane.CauseECN)
			return
		}
	}
	for _, m := range a.Marks {
		if p.Write(m) {
			done |= dataplane.Marked
			if m.Field == dataplane.DSCP {
				v.DSCPOut = uint8(m.Value)
			}
		}
	}
	v.Done = done
	if v.Customer != 0 {
		switch c := l.customers.customer(v.Customer); {
		case c.inTree():
			s := c.service
			l.wait(s.Tree, int(c.place), &s.LinkQueue, &s.FlowKeys, p, v, taken)
			return
		case c.paced():
			l.admit(c.queue(), p, v)
			return
		}
	}
	if a.Queue >= 0 {
		l.enqueue(&l.queues[a.Queue], p, v, taken)
		return
	}
	l.countSent(v)
}

// admit puts the packet into a queue with a rate of its own, which may drop it.
func (l *Pipeline) admit(q *queue.Leaky, p *dataplane.Packet, v *dataplane.Verdict) {
	var fate queue.Fate
	v.Done |= dataplane.Queued
	v.Departure, fate = q.Admit(v.Now, queuePacket(p, v, v.Color))
	l.applyFate(fate, v)
	if v.Done&dataplane.ECNSet != 0 {
		p.SetCE()
	}
}

// enqueue puts the packet into a queue, which may drop it.
func (l *Pipeline) enqueue(q *pacedQueue, p *dataplane.Packet, v *dataplane.Verdict, taken tokens) {
	if q.leaky != nil {
		l.admit(q.leaky, p, v)
		return
	}
	l.wait(q.tree, q.treeIndex, &q.plan.LinkQueue, &q.plan.FlowKeys, p, v, taken)
}

// wait puts the packet into a queue of a tree, by its index there. The queue may drop it.
func (l *Pipeline) wait(
	tree, index int, q *queue.LinkQueue, keys *compiled.FlowKeys, p *dataplane.Packet, v *dataplane.Verdict,
	taken tokens,
) {
	v.Done |= dataplane.Queued
	packet := queuePacket(p, v, v.Color)
	keys.Number(q, p, &packet)
	fate := l.trees[tree].Admit(v.Now, index, packet, newWaiting(v, taken))
	if fate.Dropped() {
		l.applyFate(fate, v)
		return
	}
	v.Done |= dataplane.Waiting
}

// dropCauses and dropReasons give the cause and the reason of a drop by the packet's fate.
var (
	dropCauses = [...]dataplane.Cause{
		queue.Full: dataplane.CauseQueue, queue.Thin: dataplane.CauseWRED, queue.Stale: dataplane.CauseCoDel,
	}
	dropReasons = [...]dataplane.Reason{
		queue.Full: dataplane.QueueFull, queue.Thin: dataplane.WRED, queue.Stale: dataplane.CoDel,
	}
)

// applyFate completes a verdict with the decision of a queue, and counts the packet.
func (l *Pipeline) applyFate(fate queue.Fate, v *dataplane.Verdict) {
	if fate.Dropped() {
		l.countDrop(v, dropCauses[fate])
		v.Departure, v.DSCPOut = v.Now, v.DSCPIn
		v.Done, v.Reason = 0, dropReasons[fate]
		return
	}
	if fate == queue.AdmitCE {
		v.Done |= dataplane.ECNSet
	}
	l.countSent(v)
}

// countDrop adds a dropped packet to the counters.
func (l *Pipeline) countDrop(v *dataplane.Verdict, cause dataplane.Cause) {
	l.stats[v.Class].Drops[v.Color][cause].Add(countOf(v))
	if v.Customer != 0 {
		if c := l.customers.at(v.Customer, v.Now); c != nil {
			c.stats.Dropped.Add(countOf(v))
		}
	}
}

// countSent adds a sent packet to the counters of queued, marked and CE packets.
func (l *Pipeline) countSent(v *dataplane.Verdict) {
	stats := &l.stats[v.Class]
	if v.Done&dataplane.Queued != 0 {
		stats.Queued[v.Color].Add(countOf(v))
	}
	if v.Done&dataplane.Marked != 0 {
		stats.Marked[v.Color].Add(countOf(v))
	}
	if v.Done&dataplane.ECNSet != 0 {
		stats.CE[v.Color].Add(countOf(v))
	}
}

// countOf returns the packets and bytes added by a verdict to counters.
func countOf(v *dataplane.Verdict) dataplane.Count {
	return dataplane.Count{Packets: int64(v.Packets), Bytes: int64(v.Length)}
}
