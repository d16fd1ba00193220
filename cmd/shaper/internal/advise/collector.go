package advise

import (
	"fmt"
	"slices"
	"strings"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/meter/unsaid"
)

// Collector collects the packets of a capture by meter.
type Collector struct {
	plan        *compiled.Plan
	classes     []*Stream // nil: not collected; classes sharing a meter share a stream
	connections *Connections
	total       dataplane.Count
	first, last int64 // ns
}

// NewCollector returns a collector for a plan. It collects the packets of classes whose meter can be
// advised, or those of the only class.
func NewCollector(plan *compiled.Plan) *Collector {
	c := &Collector{plan: plan, classes: make([]*Stream, len(plan.Classes)), connections: newConnections()}
	byStage := map[int]*Stream{}
	for i := range plan.Classes {
		at := plan.Classes[i].Stage
		switch {
		case at < 0 && len(plan.Classes) > 1:
		case at < 0:
			c.classes[i] = newStream(false)
		case byStage[at] != nil:
			c.classes[i] = byStage[at]
		case refusal(plan, at) == "":
			c.classes[i] = newStream(plan.Stages[at].Keyed())
			byStage[at] = c.classes[i]
		}
	}
	return c
}

// refusal returns the reason why a meter gets no advice, or "". Advice needs buckets of bytes with
// a constant rate, and all packets drawing from them.
func refusal(plan *compiled.Plan, stage int) string {
	s := &plan.Stages[stage]
	if s.Customers {
		return "each customer has the meter of its plan"
	}
	params := s.Profile.Params()
	bucket, _ := params.(meter.TokenBucket)
	switch {
	case s.Packets:
		return "its meter counts packets"
	case s.BudgetName != "":
		return "other meters share its budget"
	case s.Envelope >= 0:
		return "other flows of its envelope share its tokens"
	case s.Kind.Info().State != meter.StateBuckets:
		return fmt.Sprintf("a %v has no burst", s.Kind)
	case bucket.Warmup > 0:
		return "the rate of its meter is not constant (warmup)"
	case slices.ContainsFunc(plan.Stages,
		func(other compiled.Stage) bool { return other.Then == stage }):
		return "other meters are chained to its meter"
	}
	if unknown := ignored(params); len(unknown) > 0 {
		return "the advice ignores parameters of its meter: " + strings.ToLower(strings.Join(unknown, ", "))
	}
	return ""
}

// ignored returns the parameters of a meter that are set, but that fitBursts does not use.
func ignored(p meter.Params) []string {
	switch p := p.(type) {
	case meter.TokenBucket:
		return unsaid.Fields(p, "Rate", "Burst", "GCRA") // GCRA gives the same colors
	case meter.SRTCM:
		return unsaid.Fields(p, "CIR", "CBS", "EBS")
	case meter.TRTCM:
		return unsaid.Fields(p, "CIR", "CBS", "PIR", "PBS")
	case meter.TRTCM4115:
		return unsaid.Fields(p, "CIR", "CBS", "EIR", "EBS", "Coupling")
	}
	return []string{"type"}
}

// caveats warns about properties of a class's meter that the advice ignores.
func (a *Advice) caveats(class string, plan *compiled.Plan, s *compiled.Stage, keys int) {
	if s.Initial.Den != 0 {
		a.warn("class %s: the bursts are for buckets that start full, not at %s", class,
			say.Percent(s.Initial.Num, s.Initial.Den)+" %")
	}
	if s.Aware {
		a.warn("class %s: the bursts are for packets whose input color is green", class)
	}
	if s.Then >= 0 {
		a.warn("class %s: the bursts are those of its first meter; meter %s behind it can color more packets",
			class, plan.Stages[s.Then].Name)
	}
	if s.Keyed() && keys > s.Keys {
		a.warn(
			"class %s: its meter has room for %s of the %s: the bursts are for a meter that keeps all keys",
			class, say.Grouped(int64(s.Keys)), say.Count(keys, "key"))
	}
}

// Watch adds a packet of the capture, before Packet if it is chosen.
func (c *Collector) Watch(p *dataplane.Packet) {
	dataplane.ParseOnce(p)
	c.connections.Watch(p)
}

// Packet adds a chosen packet with its verdict.
func (c *Collector) Packet(p *dataplane.Packet, v *dataplane.Verdict) {
	if c.total.Packets == 0 {
		c.first = v.Now
	}
	c.last = v.Now
	n := dataplane.Count{Packets: 1, Bytes: int64(v.Length)}
	c.total = c.total.Plus(n)
	dataplane.ParseOnce(p)
	h := c.connections.Choose(p, n)
	if v.Class < 0 || c.classes[v.Class] == nil {
		return
	}
	s := c.classes[v.Class]
	number := s.Add(c.plan, p, v)
	if h != nil {
		h.stream, h.key = s, number
	}
}

// names returns the names of the classes of a stream.
func (c *Collector) names(s *Stream) string {
	var names []string
	for i := range c.classes {
		if c.classes[i] == s {
			names = append(names, c.plan.Classes[i].Name)
		}
	}
	return strings.Join(names, ", ")
}
