package dataplane

import (
	"slices"

	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// Plan is a compiled Policy: defaults filled in, limits resolved, and every
// reference an index, -1 for none. It is immutable, and may be shared by any number of
// pipelines and goroutines. Compile makes one.
type Plan struct {
	Source           *Policy // to name in errors
	Length           LengthRule
	DropUnclassified bool
	Classes          []PlanClass
	Stages           []PlanStage    // meters that classes lead to, in that order
	Envelopes        []PlanEnvelope // in the order of their first flow
	Queues           []PlanQueue    // in the order in which actions name them
	Links            []PlanLink     // in the order of their first queue
	Classifier       *Classifier
}

// PlanClass is a Class of a Plan.
type PlanClass struct {
	Name    string
	Stage   int // first meter of its chain
	Actions [3]PlanAction
	Source  *Class // of the policy, to name in errors
}

// PlanAction is the action of a class for one color.
type PlanAction struct {
	Drop   bool
	ECN    ECN
	Marks  []Mark
	Queue  int
	Source *Action // of the policy, to name in errors; nil for a default
}

// PlanStage is a Meter of a Plan.
type PlanStage struct {
	StageOutline
	Profile  *meter.Profile
	Aware    bool
	Input    InputColors
	Envelope int
	Flow     int     // index in the envelope
	Budget   *Budget // with its defaults; nil for none
	Source   *Meter  // of the policy, to name in errors
}

// InputColors are the input colors of an aware meter, by the value of a field. A value
// that High does not have, and a packet without the field, is green.
type InputColors struct {
	From Field
	Low  [64]meter.Color        // by values below 64
	High map[uint32]meter.Color // by other values; nil if there are none
}

// PlanEnvelope is an Envelope of a Plan.
type PlanEnvelope struct {
	meter.EnvelopeParams
	Stages []int     // by flow
	Source *Envelope // of the policy, to name in errors
}

// PlanQueue is a Queue of a Plan.
type PlanQueue struct {
	QueueOutline
	queue.Share            // of a queue of a link: limits in time are in bytes. Otherwise Config alone
	Drain       meter.Rate // at which it is emptied at best: its own rate, or its link's
	Key         Key        // of its flows, if it is fair
	Source      *Queue     // of the policy, to name in errors
}

// PlanLink is a Link of a Plan.
type PlanLink struct {
	Name   string
	Rate   meter.Rate
	Queues []int
	Source *Link // of the policy, to name in errors
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
	return o
}

// Stage returns the index of a meter of the policy, or -1 if no class leads to it.
func (p *Plan) Stage(m *Meter) int {
	return slices.IndexFunc(p.Stages, func(s PlanStage) bool { return s.Source == m })
}

// Meters returns the meters of the policy that classes lead to, by stage.
func (p *Plan) Meters() []*Meter {
	out := make([]*Meter, len(p.Stages))
	for i := range p.Stages {
		out[i] = p.Stages[i].Source
	}
	return out
}

// Budgets returns the stages that share a budget.
func (p *Plan) Budgets() (stages []int) {
	for i := range p.Stages {
		if p.Stages[i].Budget != nil {
			stages = append(stages, i)
		}
	}
	return stages
}
