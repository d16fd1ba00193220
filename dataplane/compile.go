package dataplane

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// New compiles a policy. The error joins all that is wrong with it, as
// FieldErrors.
func New(policy *Policy) (*Pipeline, error) {
	c := compiler{
		Pipeline: &Pipeline{length: policy.Length, now: math.MinInt64, stageOf: map[*Meter]int32{}},
		paced:    map[*Queue]int32{},
		checked:  map[*Action]bool{},
		open:     map[*Meter]bool{},
	}
	switch n := len(policy.Classes); {
	case n == 0:
		c.add(policy, "classes", "a policy needs at least one class")
	case n > MaxClasses:
		c.add(policy, "classes", fmt.Sprintf("%d are more than %d", n, MaxClasses))
	}
	if policy.Length.MPU < 0 {
		c.add(&policy.Length, "mpu", "is negative")
	}
	if policy.Length.Base > L1 {
		c.add(&policy.Length, "base", "is not known")
	}
	names := map[string]bool{}
	matches := make([]Match, len(policy.Classes))
	for i := range policy.Classes {
		cl := &policy.Classes[i]
		switch {
		case cl.Name == "" || cl.Name == "-":
			c.add(cl, "name", fmt.Sprintf("%q cannot name a class", cl.Name))
		case names[cl.Name]:
			c.add(cl, "name", fmt.Sprintf("%q names an earlier class too", cl.Name))
		}
		names[cl.Name] = true
		c.match(&cl.Match)
		matches[i] = cl.Match
		c.class(cl)
	}
	if c.faults != nil {
		return nil, errors.Join(c.faults...)
	}
	c.classifier = NewClassifier(matches)
	c.stats = make([]ClassStats, len(c.classes)+1)
	return c.Pipeline, nil
}

// compiler fills a Pipeline and collects faults.
type compiler struct {
	*Pipeline
	faults
	paced   map[*Queue]int32
	checked map[*Action]bool
	open    map[*Meter]bool // whose chain is being compiled
}

func (c *compiler) class(cl *Class) {
	out := class{stage: -1}
	if cl.Meter != nil {
		out.stage = c.meter(cl.Meter)
	}
	for _, a := range [3]*Action{cl.Green, cl.Yellow, cl.Red} {
		if a != nil && !c.checked[a] {
			c.checked[a] = true
			c.action(a)
		}
	}
	for color, a := range cl.actions() {
		out.actions[color] = action{a.Drop, a.ECN, a.Marks, -1}
		if a.Queue != nil {
			out.actions[color].queue = c.queue(a.Queue)
		}
	}
	c.classes = append(c.classes, out)
}

// meter compiles a meter once, however many point to it.
func (c *compiler) meter(m *Meter) int32 {
	if i, ok := c.stageOf[m]; ok {
		return i
	}
	i := int32(len(c.stages))
	c.stageOf[m] = i
	c.stages = append(c.stages, stage{})
	s := stage{packets: m.Packets, aware: m.Aware, from: m.PreColor.From, then: -1}
	if !m.Initial.valid() {
		c.add(m, "initial", "must be between nothing and all of the burst")
	}
	c.preColor(&s, m)
	if m.Params == nil {
		c.add(m, "type", "is missing: a meter needs parameters")
	} else if p, err := m.Params.Profile(); err != nil {
		c.join(m, "type", err)
	} else {
		s.kind = p.Kind()
		s.Meter = meter.New(p)
		if m.Initial.valid() && m.Initial.Den != 0 {
			cb, eb := p.Bursts()
			s.Meter = meter.NewWithTokens(p, m.Initial.Of(cb), m.Initial.Of(eb))
		}
	}
	if m.Then != nil {
		s.then = c.then(m)
	}
	c.stages[i] = s
	return i
}

// then compiles what follows a meter.
func (c *compiler) then(m *Meter) int32 {
	c.open[m] = true
	defer delete(c.open, m)
	if c.open[m.Then] {
		c.add(m, "then", fmt.Sprintf("leads back to meter %q: a chain must end", m.Then.Name))
		return -1
	}
	if !m.Then.Aware {
		c.add(m, "then", fmt.Sprintf("leads to meter %q, which is color-blind and would forget the color before: give it color: aware", m.Then.Name))
	}
	return c.meter(m.Then)
}

// preColor compiles where a stage finds the color before.
func (c *compiler) preColor(s *stage, m *Meter) {
	if !s.from.known() {
		c.add(m, "precolor", fmt.Sprintf("%v is not known", s.from))
		return
	}
	table := m.PreColor.Table()
	for _, v := range slices.Sorted(maps.Keys(table)) {
		color := table[v]
		switch {
		case v > fieldMax[s.from]:
			c.add(m, "precolor", fmt.Sprintf("%d is above %d", v, fieldMax[s.from]))
		case color > meter.Red:
			c.add(m, "precolor", fmt.Sprintf("%v is not a color", color))
		case v < uint32(len(s.low)):
			s.low[v] = color
		default:
			if s.high == nil {
				s.high = map[uint32]meter.Color{}
			}
			s.high[v] = color
		}
	}
}

func (c *compiler) queue(q *Queue) int32 {
	if i, ok := c.paced[q]; ok {
		return i
	}
	i := int32(len(c.queues))
	c.paced[q] = i
	leaky, err := queue.New(q.Config)
	if err != nil {
		c.join(q, "rate", err)
	}
	c.queues = append(c.queues, leaky)
	return i
}

// class is a compiled Class.
type class struct {
	stage   int32 // first meter, -1 for none
	actions [3]action
}

// action is a compiled Action.
type action struct {
	drop  bool
	ecn   ECN
	marks []Mark
	queue int32 // -1 for none
}

// stage is a meter with what stands around it in a policy.
type stage struct {
	meter.Meter
	kind    meter.Kind
	packets bool
	aware   bool
	from    Field
	low     [64]meter.Color        // the color before, by values below 64
	high    map[uint32]meter.Color // by other values; nil where none is named
	then    int32                  // -1 for none
}
