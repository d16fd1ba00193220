package compiled

import (
	"math"
	"slices"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// Plan is a compiled dataplane.Policy. Defaults are filled in, limits are resolved, and each
// reference to another part is an index, or -1 for none. A Plan is immutable: any number
// of pipelines and goroutines may share it. Compile makes a Plan.
//
// Each part's Source is the part of the policy from which it was compiled, for use in error
// messages.
type Plan struct {
	Source           *dataplane.Policy
	Length           dataplane.LengthRule
	DropUnclassified bool
	Classes          []Class
	Stages           []Stage    // meters of classes, in the order of their first use
	Envelopes        []Envelope // in the order of their first flow
	Queues           []Queue    // queues of actions, in the order of their first use
	Links            []Link     // in the order of their first queue, after the link above
	Trees            []Tree     // in the order of their roots
	Classifier       *Classifier
	Customers        *Customers // nil: no customers
	// Direction of the packets, chosen by For: Packet.Direction
	Direction dataplane.Direction

	// for packets from the customers, with the same parts in the same order; nil: the same plan. See For
	Up *Plan
}

// Class is a compiled dataplane.Class.
type Class struct {
	Name      string
	Stage     int       // index of the first meter of the chain, or -1
	Customers bool      // the first meter belongs to the customer's plan
	Queues    bool      // some packets of the class are queued
	Actions   [3]Action // by color
	Source    *dataplane.Class
}

// Action is the compiled action of a class for one color.
type Action struct {
	Drop   bool
	ECN    dataplane.ECN
	Marks  []dataplane.Mark
	Queue  int               // index, or -1
	Source *dataplane.Action // nil for a default action
}

// Stage is a compiled dataplane.Meter.
type Stage struct {
	StageOutline
	Profile  *meter.Profile    // nil if Customers
	Aware    bool              // the meter is color-aware
	Input    InputColors       // valid if Aware
	Envelope int               // index of the envelope, or -1
	Flow     int               // index of the flow within the envelope
	Budget   *dataplane.Budget // with its defaults; nil for none
	Source   *dataplane.Meter

	peak bool // the second bucket contains the first, as with PIR
}

// InputColors maps the values of a field to the input colors of a color-aware meter. A value above
// 63 outside High is green, as is a packet without the field.
type InputColors struct {
	From dataplane.Field
	Low  [64]meter.Color        // colors of values below 64
	High map[uint32]meter.Color // colors of larger values; nil if there are none
}

// Envelope is a compiled dataplane.Envelope.
type Envelope struct {
	meter.EnvelopeParams
	Stages []int // stage of each flow
	Source *dataplane.Envelope
}

// Queue is a compiled dataplane.Queue.
type Queue struct {
	QueueOutline
	// LinkQueue holds limits in bytes or packets for a queue with a link. Otherwise only its Config
	// is set.
	queue.LinkQueue
	FlowKeys
	Drain  meter.Rate // maximum rate at which packets leave: of the queue or its link
	Source *dataplane.Queue
}

// FlowKeys define the hosts and flows of a fair queue.
type FlowKeys struct {
	Key     dataplane.Key // of flows; valid unless queue.LinkQueue.Fair is FairNone
	HostKey dataplane.Key // of hosts; valid if it is FairHosts

	flows, hosts dataplane.KeyReader
}

func newFlowKeys(hosts, flows dataplane.Key) FlowKeys {
	return FlowKeys{flows, hosts, dataplane.NewKeyReader(flows), dataplane.NewKeyReader(hosts)}
}

// Number sets the host and the flow of a packet in a fair queue.
func (k *FlowKeys) Number(q *queue.LinkQueue, p *dataplane.Packet, to *queue.Packet) {
	switch q.Fair {
	case queue.FairHosts:
		to.Host = k.hosts.FlowNumber(p, q.Seed+1) // another seed, so that hosts and flows differ
		fallthrough
	case queue.FairFlows:
		to.Flow = k.flows.FlowNumber(p, q.Seed)
	}
}

// Link is a compiled dataplane.Link.
type Link struct {
	Name           string
	queue.TreeLink       // Parent is an index in Tree.Links
	Above          int   // index of the link above, or -1
	Tree           int   // index of its tree
	Queues         []int // indexes of its queues
	Source         *dataplane.Link
}

// Tree is a link without a link above it, with everything below it, as indexes. The tree without links
// contains fair queues of customers without a link; each has a rate of its own.
type Tree struct {
	Links     []int    // the root is the first
	Queues    []int    // Parent of each is an index in Links
	Customers []uint32 // numbers of customers whose queues follow Queues
}

// Config returns a tree as package queue sees it. service returns the present plan of a customer, such
// as Customers.Service.
func (p *Plan) Config(
	t *Tree, service func(number uint32) *Service,
) (links []queue.TreeLink, queues []queue.LinkQueue) {
	if len(t.Links) == 0 {
		links = []queue.TreeLink{{Rate: meter.Unlimited}}
	}
	for _, l := range t.Links {
		links = append(links, p.Links[l].TreeLink)
	}
	queues = make([]queue.LinkQueue, 0, len(t.Queues)+len(t.Customers))
	for _, q := range t.Queues {
		queues = append(queues, p.Queues[q].LinkQueue)
	}
	for _, number := range t.Customers {
		queues = append(queues, service(number).LinkQueue)
	}
	return links, queues
}

// Reach returns the maximum rate of a link: the lowest of its own and those of the links above.
func (p *Plan) Reach(link int) meter.Rate {
	rate := meter.Rate{}
	for ; link >= 0; link = p.Links[link].Above {
		rate = queue.Lowest(rate, p.Links[link].Rate)
	}
	return rate
}

// Outline returns the outline of the plan.
func (p *Plan) Outline() *Outline {
	o := &Outline{DropUnclassified: p.DropUnclassified}
	for i := range p.Classes {
		c := &p.Classes[i]
		class := ClassOutline{Name: c.Name, Stage: c.Stage}
		for color := range c.Actions {
			class.Queues[color] = c.Actions[color].Queue
			if c.Stage < 0 && meter.Color(color) != meter.Green {
				class.Queues[color] = -1
			}
		}
		o.Classes = append(o.Classes, class)
	}
	for i := range p.Stages {
		o.Stages = append(o.Stages, p.Stages[i].StageOutline)
	}
	for i := range p.Queues {
		o.Queues = append(o.Queues, p.Queues[i].QueueOutline)
	}
	for i := range p.Links {
		o.Links = append(o.Links, p.Links[i].Name)
	}
	if len(p.Trees) < len(p.Links) {
		for i := range p.Links {
			o.Above = append(o.Above, p.Links[i].Above)
		}
	}
	if p.Customers != nil {
		o.Customers = len(p.Customers.Of)
	}
	return o
}

// ActionOf returns the action for a packet with a class: of its customer's plan, or of its class.
// ownQueue reports whether the customer's own queue replaces the action's.
func (p *Plan) ActionOf(v *dataplane.Verdict) (a *Action, ownQueue bool) {
	if v.Customer != 0 {
		service := p.Customers.Service(v.Customer)
		ownQueue = service.Profile == nil
		if a := service.Actions[v.Color]; a != nil {
			return a, ownQueue
		}
	}
	return &p.Classes[v.Class].Actions[v.Color], ownQueue
}

// Stage returns the stage of a meter of the policy, or -1 if no class uses the meter.
func (p *Plan) Stage(m *dataplane.Meter) int {
	return slices.IndexFunc(p.Stages, func(s Stage) bool { return s.Source == m })
}

// Meters returns the meters of the policy's classes, by stage.
func (p *Plan) Meters() []*dataplane.Meter {
	out := make([]*dataplane.Meter, len(p.Stages))
	for i := range p.Stages {
		out[i] = p.Stages[i].Source
	}
	return out
}

// Budgets returns the stages whose meters have a budget.
func (p *Plan) Budgets() (stages []int) {
	for i := range p.Stages {
		if p.Stages[i].Budget != nil {
			stages = append(stages, i)
		}
	}
	return stages
}

// Upward reports whether packets of a direction come from customers: those received by the interface,
// which faces the customers. Packets whose customer is known by its source address come from the customer,
// and those by the destination go to it.
func (p *Plan) Upward(d dataplane.Direction) bool {
	if p.Customers != nil {
		switch p.Customers.Key {
		case dataplane.BySource:
			return true
		case dataplane.ByDestination:
			return false
		}
	}
	return d == dataplane.Ingress
}

// For returns the plan for packets of one direction: p or Up. If a part of the policy is of the inner side,
// it is a copy with this direction. Customers ByInside are then found by the address of that direction.
func (p *Plan) For(d dataplane.Direction) *Plan {
	if p.Up != nil && p.Upward(d) {
		p = p.Up
	}
	inside := p.Customers != nil && p.Customers.Key == dataplane.ByInside
	if !inside && (p.Direction == d || !p.directed()) {
		return p
	}
	plan := *p
	if plan.Direction = d; !inside {
		return &plan
	}
	customers := *p.Customers
	customers.Key = [...]dataplane.CustomerKey{
		dataplane.Egress: dataplane.ByDestination, dataplane.Ingress: dataplane.BySource,
	}[d]
	plan.Customers = &customers
	return &plan
}

// AppendKey appends the key of a packet with a verdict, for people: the name of its customer if the
// class meters customers, else the key of the first meter with keys of the class. Without one it
// appends nothing. The packet need not be parsed.
func (p *Plan) AppendKey(b []byte, packet *dataplane.Packet, v *dataplane.Verdict) []byte {
	if v.Customer != 0 {
		return append(b, p.Customers.Source.List[v.Customer-1].Name...)
	}
	if v.Class < 0 {
		return b
	}
	for i := p.Classes[v.Class].Stage; i >= 0; i = p.Stages[i].Then {
		s := &p.Stages[i]
		if !s.Keyed() {
			continue
		}
		dataplane.ParseOnce(packet)
		reader := dataplane.NewKeyReader(s.Key)
		key, ok := reader.Key(packet)
		if s.Key.By == dataplane.ByDSCP {
			key = reader.FromSmall(uint64(v.DSCPIn)) // the packet may have another one by now
		}
		if ok {
			b = reader.AppendText(b, key)
		}
		return b
	}
	return b
}

// Color returns the input color of a packet.
func (c *InputColors) Color(p *dataplane.Packet) meter.Color {
	value, ok := p.Field(c.From)
	switch {
	case !ok:
		return meter.Green
	case value < uint32(len(c.Low)):
		return c.Low[value]
	}
	return c.High[value]
}

// Lack returns the number of tokens that a meter lacked to keep the input color of a packet of n
// bytes or packets: of C if it made the packet yellow, and of the best permitted bucket if it made
// the packet red. tc and te are the tokens before the packet. It is 0 if the meter kept the input
// color, or is without tokens.
func (s *Stage) Lack(n int, in, out meter.Color, tc, te int64) int32 {
	if in == out || s.Kind.Info().State == meter.StateAverage {
		return 0
	}
	c, e := s.Better(in, out)
	if !c {
		tc = 0
	}
	if !e {
		te = 0
	}
	return int32(min(max(int64(n)-max(tc, te), 0), math.MaxInt32))
}

// Better returns the buckets of which one had to hold a packet for a better color than out.
func (s *Stage) Better(in, out meter.Color) (c, e bool) {
	switch {
	case out == meter.Yellow || len(s.Buckets) < 2:
		return true, false
	case s.peak || in == meter.Yellow:
		return false, true
	}
	return true, true
}
