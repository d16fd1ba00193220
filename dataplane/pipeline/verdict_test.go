package pipeline

import (
	"fmt"
	"strings"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// verdict returns a Verdict as text:
//
//	class pre>color done reason
//
// done contains the new DSCP after mark, and the departure after queue, or wait for a packet
// that is queued in a link.
func verdict(policy *dataplane.Policy, v dataplane.Verdict) string {
	if v.Class < 0 {
		return fmt.Sprintf("- %s %v", doneText(v), v.Reason)
	}
	return fmt.Sprintf("%s %v>%v %s %v", policy.Classes[v.Class].Name, v.Pre, v.Color, doneText(v), v.Reason)
}

// doneText returns Verdict.Done as text.
func doneText(v dataplane.Verdict) string {
	if v.Done.Dropped() {
		return "drop"
	}
	var b []string
	if v.Done&dataplane.ECNSet != 0 {
		b = append(b, "ecn")
	}
	if v.Done&dataplane.Marked != 0 {
		b = append(b, fmt.Sprintf("mark=%d", v.DSCPOut))
	}
	switch {
	case v.Done&dataplane.Waiting != 0:
		b = append(b, "wait")
	case v.Done&dataplane.Queued != 0:
		b = append(b, fmt.Sprintf("queue@%d", v.Departure))
	}
	if b == nil {
		return "pass"
	}
	return strings.Join(b, "+")
}

// tally counts verdicts, for comparison with the Stats of a pipeline.
type tally struct {
	policy *dataplane.Policy
	stats  []dataplane.ClassStats
	sent   [][3]dataplane.Count // by class and color
}

func newTally(policy *dataplane.Policy) *tally {
	n := len(policy.Classes)
	return &tally{policy, make([]dataplane.ClassStats, n+1), make([][3]dataplane.Count, n)}
}

func (c *tally) addVerdict(v dataplane.Verdict) {
	if v.Class < 0 {
		s := &c.stats[len(c.stats)-1]
		s.Untaken.Add(countOf(&v))
		if v.Done.Dropped() {
			s.UntakenDropped.Add(countOf(&v))
		}
		return
	}
	c.stats[v.Class].Colors[v.Color].Add(countOf(&v))
	if v.Done&dataplane.Waiting == 0 {
		c.settle(v)
	}
}

// settle counts the outcome of a packet: a verdict that is not Waiting.
func (c *tally) settle(v dataplane.Verdict) {
	s := &c.stats[v.Class]
	if v.Done.Dropped() {
		cause := dataplane.CauseECN
		switch action := c.policy.Classes[v.Class].Action(v.Color); {
		case action.Drop:
			cause = dataplane.CauseColor
		case v.Reason == dataplane.QueueFull:
			cause = dataplane.CauseQueue
		case v.Reason == dataplane.WRED:
			cause = dataplane.CauseWRED
		case v.Reason == dataplane.CoDel:
			cause = dataplane.CauseCoDel
		}
		s.Drops[v.Color][cause].Add(countOf(&v))
		return
	}
	c.sent[v.Class][v.Color].Add(countOf(&v))
	if v.Done&dataplane.Marked != 0 {
		s.Marked[v.Color].Add(countOf(&v))
	}
	if v.Done&dataplane.ECNSet != 0 {
		s.CE[v.Color].Add(countOf(&v))
	}
	if v.Done&dataplane.Queued != 0 {
		s.Queued[v.Color].Add(countOf(&v))
	}
}

// check compares the counters of a pipeline with the verdicts.
func (c *tally) check(t testing.TB, l *Pipeline) {
	t.Helper()
	stats := l.Stats()
	if len(stats) != len(c.stats) {
		t.Fatalf("got %d counters, want one for each of %d classes", len(stats), len(c.sent))
	}
	for i := range stats {
		if stats[i] != c.stats[i] {
			t.Errorf("class %d: got %+v, want %+v, the sum of the verdicts", i, stats[i], c.stats[i])
		}
	}
	for i, sent := range c.sent {
		var in dataplane.Count
		for color := meter.Green; color <= meter.Red; color++ {
			in = in.Plus(stats[i].Colors[color])
			if sum := sent[color].Plus(stats[i].Dropped(color)); stats[i].Colors[color] != sum {
				t.Errorf("class %d, %v: got %v, want %v, the packets sent and dropped", i, color,
					stats[i].Colors[color], sum)
			}
		}
		if stats[i].Total() != in {
			t.Errorf("class %d: total %v, want %v", i, stats[i].Total(), in)
		}
	}
}

func TestZeroVerdict(t *testing.T) {
	if !(dataplane.Verdict{}).Done.Dropped() {
		t.Error("the zero Verdict does not drop")
	}
	for _, d := range []dataplane.Done{
		dataplane.Pass, dataplane.ECNSet, dataplane.Marked, dataplane.Queued, dataplane.Waiting,
	} {
		if d.Dropped() {
			t.Errorf("Done %d drops, want no drop", d)
		}
	}
}
