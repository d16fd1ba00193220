package dataplane

import (
	"fmt"
	"strings"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/meter"
)

// verdict returns a Verdict as text:
//
//	class pre>color done reason
//
// done contains the new DSCP after mark, and the departure after queue, or wait for a packet
// that is queued in a link.
func verdict(policy *Policy, v Verdict) string {
	if v.Class < 0 {
		return fmt.Sprintf("- %s %v", doneText(v), v.Reason)
	}
	return fmt.Sprintf("%s %v>%v %s %v", policy.Classes[v.Class].Name, v.Pre, v.Color, doneText(v), v.Reason)
}

// doneText returns Verdict.Done as text.
func doneText(v Verdict) string {
	if v.Done.Dropped() {
		return "drop"
	}
	var b []string
	if v.Done&ECNSet != 0 {
		b = append(b, "ecn")
	}
	if v.Done&Marked != 0 {
		b = append(b, fmt.Sprintf("mark=%d", v.DSCPOut))
	}
	switch {
	case v.Done&Waiting != 0:
		b = append(b, "wait")
	case v.Done&Queued != 0:
		b = append(b, fmt.Sprintf("queue@%d", v.Departure))
	}
	if b == nil {
		return "pass"
	}
	return strings.Join(b, "+")
}

// tally counts verdicts, for comparison with the Stats of a pipeline.
type tally struct {
	policy *Policy
	stats  []ClassStats
	sent   [][3]Count // by class and color
}

func newTally(policy *Policy) *tally {
	n := len(policy.Classes)
	return &tally{policy, make([]ClassStats, n+1), make([][3]Count, n)}
}

func (c *tally) addVerdict(v Verdict) {
	if v.Class < 0 {
		s := &c.stats[len(c.stats)-1]
		s.Untaken.Add(countOf(&v))
		if v.Done.Dropped() {
			s.UntakenDropped.Add(countOf(&v))
		}
		return
	}
	c.stats[v.Class].Colors[v.Color].Add(countOf(&v))
	if v.Done&Waiting == 0 {
		c.settle(v)
	}
}

// settle counts the outcome of a packet: a verdict that is not Waiting.
func (c *tally) settle(v Verdict) {
	s := &c.stats[v.Class]
	if v.Done.Dropped() {
		cause := CauseECN
		switch action := c.policy.Classes[v.Class].Action(v.Color); {
		case action.Drop:
			cause = CauseColor
		case v.Reason == QueueFull:
			cause = CauseQueue
		case v.Reason == WRED:
			cause = CauseWRED
		case v.Reason == CoDel:
			cause = CauseCoDel
		}
		s.Drops[v.Color][cause].Add(countOf(&v))
		return
	}
	c.sent[v.Class][v.Color].Add(countOf(&v))
	if v.Done&Marked != 0 {
		s.Marked[v.Color].Add(countOf(&v))
	}
	if v.Done&ECNSet != 0 {
		s.CE[v.Color].Add(countOf(&v))
	}
	if v.Done&Queued != 0 {
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
		var in Count
		for color := meter.Green; color <= meter.Red; color++ {
			in = in.Plus(stats[i].Colors[color])
			if sum := sent[color].Plus(stats[i].Dropped(color)); stats[i].Colors[color] != sum {
				t.Errorf("class %d, %v: got %v, want %v, the packets sent and dropped", i, color, stats[i].Colors[color], sum)
			}
		}
		if stats[i].Total() != in {
			t.Errorf("class %d: total %v, want %v", i, stats[i].Total(), in)
		}
	}
}

func TestZeroVerdict(t *testing.T) {
	if !(Verdict{}).Done.Dropped() {
		t.Error("the zero Verdict does not drop")
	}
	for _, d := range []Done{Pass, ECNSet, Marked, Queued, Waiting} {
		if d.Dropped() {
			t.Errorf("Done %d drops, want no drop", d)
		}
	}
}
