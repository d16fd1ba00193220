package dataplane

import (
	"math"

	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// Pipeline is a Plan with its state: tokens, backlogs and counters. One goroutine owns it.
// Process allocates nothing, except as queue.Leaky.Admit and queue.Link.Admit say.
type Pipeline struct {
	plan   *Plan
	stages []stage
	queues []paced
	links  []*queue.Link[Verdict]
	stats  []ClassStats // by class, then unclassified packets
	now    int64        // ns, the largest time seen
	steps  *[]Step      // for Explain, else nil
}

// paced is the state of a queue of the plan: a leaky bucket, or a share of a link.
type paced struct {
	leaky *queue.Leaky
	share int       // index among the queues of the link
	fair  keyReader // of a fair queue
	plan  *PlanQueue
}

// New compiles a policy, and returns its pipeline. Errors are those of Compile.
func New(policy *Policy) (*Pipeline, error) {
	plan, err := Compile(policy)
	if err != nil {
		return nil, err
	}
	return NewPipeline(plan), nil
}

// NewPipeline returns a pipeline whose meters are as the plan says and whose queues are
// empty.
func NewPipeline(plan *Plan) *Pipeline {
	l := &Pipeline{
		plan: plan, now: math.MinInt64, stats: make([]ClassStats, len(plan.Classes)+1),
		stages: make([]stage, len(plan.Stages)), queues: make([]paced, len(plan.Queues)),
	}
	for i := range plan.Stages {
		l.stages[i].begin(&plan.Stages[i])
	}
	for i := range plan.Envelopes {
		p := &plan.Envelopes[i]
		e, _ := meter.NewEnvelope(p.EnvelopeParams) // it has compiled
		for flow, at := range p.Stages {
			s := &l.stages[at]
			s.envelope = e
			e.SetTokens(flow, s.plan.Initial.Of(p.Flows[flow].Buckets.CBS), s.plan.Initial.Of(p.Flows[flow].Buckets.EBS))
		}
	}
	for i := range plan.Queues {
		q := &l.queues[i]
		if q.plan = &plan.Queues[i]; q.plan.Link < 0 {
			q.leaky, _ = queue.New(q.plan.Config) // it has compiled
		} else if q.plan.Fair {
			q.fair = newKeyReader(q.plan.Key)
		}
	}
	for i := range plan.Links {
		p := &plan.Links[i]
		shares := make([]queue.Share, len(p.Queues))
		for share, at := range p.Queues {
			shares[share], l.queues[at].share = plan.Queues[at].Share, share
		}
		link, _ := queue.NewLink[Verdict](p.Rate, shares) // it has compiled
		l.links = append(l.links, link)
	}
	return l
}

// Plan returns the plan.
func (l *Pipeline) Plan() *Plan { return l.plan }

// Accepts says why the policy cannot meter packets of a link type, or nil.
func (l *Pipeline) Accepts(link LinkType) error { return l.plan.Length.Accepts(link) }

// Process takes one packet through the policy: parse, classify, meter, act. It
// writes what became of it to v, and marks into p.Data. The pipeline's clock is
// the largest p.Time it has seen.
func (l *Pipeline) Process(p *Packet, v *Verdict) {
	Parse(p)
	l.now = max(l.now, p.Time)
	n := l.plan.Length.of(p)
	*v = Verdict{Now: l.now, Departure: l.now, ID: p.ID, Length: n, Packets: max(p.Segments, 1)}
	v.DSCPIn, v.HasDSCP = p.DSCP()
	v.DSCPOut = v.DSCPIn
	i := l.plan.Classifier.Classify(p, n)
	v.Class = int32(i)
	if i < 0 {
		v.Reason = p.Kind.Untaken()
		stats := &l.stats[len(l.stats)-1]
		stats.Untaken.add(v.count())
		if l.plan.DropUnclassified {
			stats.UntakenDropped.add(v.count())
			return
		}
		v.Done = Pass
		return
	}
	class := &l.plan.Classes[i]
	if class.Stage < 0 {
		v.Reason = NoMeter
	} else {
		l.meter(class.Stage, p, v)
	}
	l.act(&class.Actions[v.Color], p, v)
}

// meter takes the packet through a chain. A red packet skips what follows.
func (l *Pipeline) meter(i int, p *Packet, v *Verdict) {
	s := &l.stages[i]
	if s.plan.Aware {
		v.Pre = s.plan.Input.of(p)
	}
	v.Color = v.Pre
	for {
		n := v.Length
		if s.plan.Packets {
			n = v.Packets
		}
		in := v.Color
		if l.steps == nil {
			v.Color = s.color(p, l.now, n, in)
		} else {
			step := s.explain(p, l.now, n, in)
			step.Stage = i
			*l.steps = append(*l.steps, step)
			v.Color = step.Color
		}
		v.Reason = Reason(s.plan.Kind.Clause(in, v.Color))
		if i = s.plan.Then; i < 0 || v.Color == meter.Red {
			return
		}
		s = &l.stages[i]
	}
}

// Explain is Process with the grounds of its verdict: a step for each meter that
// the packet went through.
func (l *Pipeline) Explain(p *Packet, v *Verdict) []Step {
	var steps []Step
	l.steps = &steps
	l.Process(p, v)
	l.steps = nil
	return steps
}

// of is the input color of a packet.
func (c *InputColors) of(p *Packet) meter.Color {
	value, ok := p.Field(c.From)
	switch {
	case !ok:
		return meter.Green
	case value < uint32(len(c.Low)):
		return c.Low[value]
	}
	return c.High[value]
}

// act does what the class does to the packet's color, and counts it.
func (l *Pipeline) act(a *PlanAction, p *Packet, v *Verdict) {
	stats := &l.stats[v.Class]
	stats.Colors[v.Color].add(v.count())
	if a.Drop {
		stats.Drops[v.Color][CauseColor].add(v.count())
		return
	}
	done := Pass
	switch a.ECN {
	case CE, CEOrDrop:
		if p.SetCE() {
			done |= ECNSet
		} else if a.ECN == CEOrDrop {
			stats.Drops[v.Color][CauseECN].add(v.count())
			return
		}
	}
	for _, m := range a.Marks {
		if p.mark(m) {
			done |= Marked
			if m.Field == DSCP {
				v.DSCPOut = uint8(m.Value)
			}
		}
	}
	v.Done = done
	if a.Queue >= 0 {
		l.enqueue(&l.queues[a.Queue], p, v)
		return
	}
	l.leave(v)
}

// enqueue takes the packet into a queue, unless that drops it.
func (l *Pipeline) enqueue(q *paced, p *Packet, v *Verdict) {
	v.Done |= Queued
	packet := queue.Packet{Bytes: v.Length, Color: v.Color, ECN: p.ECNCapable()}
	var f queue.Fate
	if q.leaky != nil {
		v.Departure, f = q.leaky.Admit(l.now, packet)
	} else {
		if q.plan.Fair {
			packet.Flow = q.fair.flow(p, q.plan.Seed)
		}
		f = l.links[q.plan.Link].Admit(l.now, q.share, packet, *v)
		if !f.Dropped() {
			v.Done |= Waiting
			return
		}
	}
	l.decided(f, v)
	if v.Done&ECNSet != 0 {
		p.SetCE()
	}
}

// decided is what a queue made of a packet.
func (l *Pipeline) decided(f queue.Fate, v *Verdict) {
	if f.Dropped() {
		cause := [...]Cause{queue.Full: CauseQueue, queue.Thin: CauseWRED, queue.Stale: CauseCoDel}[f]
		l.stats[v.Class].Drops[v.Color][cause].add(v.count())
		v.Departure, v.DSCPOut = v.Now, v.DSCPIn
		v.Done, v.Reason = 0, [...]Reason{queue.Full: QueueFull, queue.Thin: WRED, queue.Stale: CoDel}[f]
		return
	}
	if f == queue.AdmitCE {
		v.Done |= ECNSet
	}
	l.leave(v)
}

// leave counts a packet that is not dropped.
func (l *Pipeline) leave(v *Verdict) {
	stats := &l.stats[v.Class]
	if v.Done&Queued != 0 {
		stats.Queued[v.Color].add(v.count())
	}
	if v.Done&Marked != 0 {
		stats.Marked[v.Color].add(v.count())
	}
	if v.Done&ECNSet != 0 {
		stats.CE[v.Color].add(v.count())
	}
}

// Settle writes to v what became, by now (ns), of a packet that was Waiting:
// its departure, or its drop. It says false where nothing else was decided by
// then. The caller finds the packet by v.ID, and where v.Done has ECNSet calls
// its SetCE.
func (l *Pipeline) Settle(now int64, v *Verdict) bool {
	for _, link := range l.links {
		if d, ok := link.Decide(now); ok {
			*v = d.Value
			v.Departure = d.Depart
			l.decided(d.Fate, v)
			return true
		}
	}
	return false
}

// Due is when Settle has something next, in ns, or false where nothing waits.
func (l *Pipeline) Due() (at int64, ok bool) {
	for _, link := range l.links {
		if t, waits := link.Due(); waits && (!ok || t < at) {
			at, ok = t, true
		}
	}
	return at, ok
}

// Stats returns the counters: one entry a class in the policy's order, and a
// last one for what no class took. They go on counting.
func (l *Pipeline) Stats() []ClassStats { return l.stats }

// Tokens returns the tokens of a stage of the plan at the pipeline's time, as
// meter.Meter.Tokens does. Of a meter for each key it returns those of the meter for
// packets without a key. It returns 0 for stage -1.
func (l *Pipeline) Tokens(stage int) (tc, te int64) {
	if stage < 0 {
		return 0, 0
	}
	return l.stages[stage].tokens(l.now)
}

// Keys counts the keys of a stage of the plan; all zero if it has one meter for all, and
// for stage -1.
func (l *Pipeline) Keys(stage int) meter.TableStats {
	if stage < 0 || l.stages[stage].keyed == nil {
		return meter.TableStats{}
	}
	return l.stages[stage].keyed.table.Stats()
}

// Queues returns what waits, in the order in which actions name the queues: in
// those with a rate at a time (ns) that is not before the pipeline's, in those
// of links as Settle left them.
func (l *Pipeline) Queues(now int64) []QueueState {
	out := make([]QueueState, len(l.queues))
	for i := range l.queues {
		q := &l.queues[i]
		out[i].Name = q.plan.Name
		if q.leaky == nil {
			_, out[i].Bytes = l.links[q.plan.Link].Waiting(q.share)
			continue
		}
		out[i].Delay = q.leaky.Delay(now)
		out[i].Bytes, _ = q.plan.Drain.Burst(out[i].Delay)
	}
	return out
}

// Now returns the largest time seen, in ns.
func (l *Pipeline) Now() int64 { return l.now }
