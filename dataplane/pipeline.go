package dataplane

import (
	"math"

	"github.com/a-seed-32e5a53f/shaper/marker"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// Done says what happened to a packet. The zero Done is a drop.
type Done uint8

const (
	Pass    Done = 1 << iota // left, alone where nothing else was done
	ECNSet                   // CE was set
	Marked                   // a mark was written, changed or not
	Queued                   // left at Departure
	Waiting                  // in a link's queue: Settle says what becomes of it
)

// Dropped says that the packet does not leave.
func (d Done) Dropped() bool { return d == 0 }

// Reason says what decided a verdict: a meter's clause, or one of those below.
type Reason uint8

const (
	NoMeter Reason = Reason(meter.NumClauses) + iota
	NotIP
	BadPacket
	QueueFull
	WRED
	CoDel
)

// String returns the reason as decisions spell it.
func (r Reason) String() string {
	switch r {
	case NoMeter:
		return "no-meter"
	case NotIP:
		return "not-ip"
	case BadPacket:
		return "malformed"
	case QueueFull:
		return "queue-full"
	case WRED:
		return "wred"
	case CoDel:
		return "codel"
	}
	return meter.Clause(r).String()
}

// Verdict is what became of one packet. The zero Verdict is a drop.
type Verdict struct {
	Now       int64 // ns: the clock, the largest time seen
	Departure int64 // ns; valid unless dropped or waiting
	ID        int64 // the packet's
	Length    int   // metered bytes
	Packets   int   // that it leaves as
	Class     int32 // index into Policy.Classes, -1 where no class took it
	Done      Done
	Pre       meter.Color // before the first meter; valid where Class >= 0
	Color     meter.Color // after the last meter; valid where Class >= 0
	Reason    Reason
	HasDSCP   bool // there is an IP header
	DSCPIn    uint8
	DSCPOut   uint8 // valid unless dropped
}

// count is what the packet adds to counters.
func (v *Verdict) count() Count { return Count{int64(v.Packets), int64(v.Length)} }

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

// stage is the state of a stage of the plan.
type stage struct {
	meter.Meter                 // unless one of the next four is there
	keyed       *keyed          // a meter for each key
	shared      Shared          // meters packets in its place
	envelope    *meter.Envelope // of which it is a flow
	leased      *leased         // of a budget on a server
	plan        *PlanStage
}

// paced is the state of a queue of the plan: a leaky bucket, or a share of a link.
type paced struct {
	leaky *queue.Leaky
	share int    // index among the queues of the link
	fair  *keyed // of a fair queue
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
			q.fair = newKeyed(q.plan.Key)
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

// begin makes the meter of a stage, unless it is a flow of an envelope.
func (s *stage) begin(p *PlanStage) {
	s.plan = p
	switch {
	case p.Envelope >= 0:
	case p.Keyed():
		s.keyed = newKeyed(p.Key)
		s.keyed.table, _ = meter.NewTable[packetKey](p.Profile, p.table()) // it has compiled
	case p.Leased:
		s.leased = new(leased)
	case p.Initial.Den != 0:
		cb, eb := p.Profile.Bursts()
		s.Meter = meter.NewWithTokens(p.Profile, p.Initial.Of(cb), p.Initial.Of(eb))
	default:
		s.Meter = meter.New(p.Profile)
	}
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

// color meters a packet.
func (s *stage) color(p *Packet, now int64, n int, in meter.Color) meter.Color {
	switch {
	case s.keyed != nil:
		return s.keyed.color(p, now, n, in)
	case s.shared != nil:
		return s.shared.Color(now, n, in)
	case s.envelope != nil:
		return s.envelope.Color(s.plan.Flow, now, n, in)
	case s.leased != nil:
		return s.leased.color(now, n, in)
	}
	return s.Color(now, n, in)
}

// Step is one meter's part in a verdict.
type Step struct {
	Stage int    // index in the plan
	Key   string // as people read it; "" if the meter has none, or the packet
	meter.Explanation
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

func (s *stage) explain(p *Packet, now int64, n int, in meter.Color) (step Step) {
	switch {
	case s.keyed != nil:
		step.Key, step.Explanation = s.keyed.explain(p, now, n, in)
	case s.shared != nil:
		step.Length, step.In, step.Color = n, in, s.shared.Color(now, n, in)
		step.Clause = s.plan.Kind.Clause(in, step.Color)
	case s.envelope != nil:
		step.Explanation = s.envelope.Explain(s.plan.Flow, now, n, in)
	case s.leased != nil:
		step.Explanation = s.leased.explain(now, n, in, s.plan.Kind)
	default:
		step.Explanation = s.Explain(now, n, in)
	}
	return step
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

// Field reads a field that input colors come from and marks go to, or returns false if the
// packet lacks it.
func (p *Packet) Field(f Field) (value uint32, ok bool) {
	switch {
	case f == SKBMark:
		return p.Mark, true
	case f == DSCP:
		dscp, ok := p.DSCP()
		return uint32(dscp), ok
	case f == PCP && p.Tags > 0:
		return uint32(marker.PCP(p.Data[p.Tag:])), true
	case f == DEI && p.Tags > 0:
		return uint32(marker.DEI(p.Data[p.Tag:])), true
	case f == MPLSTC && p.MPLS > 0:
		return uint32(marker.TC(p.Data[p.MPLS:])), true
	}
	return 0, false
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
		if q.fair != nil {
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

// mark writes a mark, and says whether the packet has the field.
func (p *Packet) mark(m Mark) bool {
	switch m.Field {
	case DSCP:
		switch p.Kind {
		case IPv4:
			marker.SetDSCPv4(p.Data[p.L3:], uint8(m.Value))
		case IPv6:
			marker.SetDSCPv6(p.Data[p.L3:], uint8(m.Value))
		default:
			return false
		}
	case PCP, DEI:
		if p.Tags == 0 {
			return false
		}
		if m.Field == PCP {
			marker.SetPCP(p.Data[p.Tag:], uint8(m.Value))
		} else {
			marker.SetDEI(p.Data[p.Tag:], uint8(m.Value))
		}
	case MPLSTC:
		if p.MPLS == 0 {
			return false
		}
		marker.SetTC(p.Data[p.MPLS:], uint8(m.Value))
	case SKBMark:
		p.Mark = m.Value
	}
	return true
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

func (s *stage) tokens(now int64) (tc, te int64) {
	m := &s.Meter
	switch {
	case s.keyed != nil:
		m = s.keyed.table.Rest()
	case s.shared != nil:
		return s.shared.Tokens(now)
	case s.envelope != nil:
		return s.envelope.Tokens(s.plan.Flow, now)
	case s.leased != nil:
		return s.leased.tokens(now)
	}
	if !m.Begun() { // packets begin its clock, not who looks at it
		look := m.Clone()
		m = &look
	}
	return m.Tokens(now)
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
