// Package check prints a compiled policy in exact units with its warnings, as text and as JSON.
package check

import (
	"bufio"
	"cmp"
	"fmt"
	"io"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/lint"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// Policy prints a policy and its findings. If strict is set, warnings are an error.
func Policy(s cli.Streams, policy *policyfile.Compiled, o lint.Options, asJSON, strict bool) (err error) {
	findings := lint.Policy(policy.File, policy.Plan, o)
	if asJSON {
		err = writeCheckJSON(s.Out, policy, findings, o.MTU)
	} else {
		out := bufio.NewWriterSize(s.Out, 1<<16) // a large policy has thousands of lines
		err = cmp.Or(writeCheck(out, policy, findings, o.MTU), out.Flush())
	}
	if n := lint.Warnings(findings); err == nil && strict && n > 0 {
		err = fmt.Errorf("%s, which --strict does not accept", say.Count(n, "warning"))
	}
	return err
}

func writeCheck(w io.Writer, policy *policyfile.Compiled, findings []lint.Finding, mtu int64) error {
	p := policyPrinter{say.NewPrinter(w)}
	trees := newBothTrees(policy)
	p.Printf("length  %s\n", say.Length(policy.Policy.Length))
	for i := range policy.Policy.Classes {
		c := &policy.Policy.Classes[i]
		p.Printf("\nclass %s\n  match   %s\n", c.Name, say.Match(&c.Match))
		p.meters(c.Meter)
		for _, color := range policyfile.Colors(c) {
			p.Printf("  %-7s %s\n", color, say.Action(c.Action(color)))
		}
	}
	for i, q := range policy.Policy.Queues {
		p.Printf("\nqueue %s\n", q.Name)
		queues := policy.Policy.Queues
		parts := say.QueueParts(q, queues)
		if q.Fair.By != dataplane.NoKey {
			parts = append(parts, say.Part{Key: "planes", Text: say.Planes(q, queues, trees.down.Trees)})
		}
		p.parts(append(parts, trees.service(i, mtu)...))
	}
	p.trees(trees)
	for _, e := range policy.Policy.Envelopes {
		p.envelope(e, flowsOf(policy.Plan, e))
	}
	p.customers(policy.File)
	p.unclassified(policy)
	p.Printf("\n")
	for _, f := range findings {
		p.Printf("%s: %s: %s\n", f.Place, f.Level, f.Text)
	}
	p.Printf("%s\n", lint.Summary(findings))
	return p.Err
}

// policyPrinter prints the parts of a policy.
type policyPrinter struct{ *say.Printer }

// parts prints lines with keys.
func (p policyPrinter) parts(parts []say.Part) {
	width := 7
	for _, part := range parts {
		width = max(width, len(part.Key))
	}
	for _, part := range parts {
		p.Printf("  %-*s %s\n", width, part.Key, part.Text)
	}
}

// mostChained is the maximum number of printed meters of a chain.
const mostChained = 16

// meters prints a chain of meters.
func (p policyPrinter) meters(m *dataplane.Meter) {
	if m == nil {
		p.Printf("  meter   none: every packet is green\n")
	}
	for label, n := "meter", 0; m != nil; m, label, n = m.Then, "then", n+1 {
		if n == mostChained {
			p.Printf("  then    %s and others\n", m.Name)
			return
		}
		name := ""
		if label == "then" {
			name = m.Name + ": "
		}
		if m.Params == nil {
			p.Printf("  %-7s the one of the customer's plan, %s\n", label, say.Mode(m))
			continue
		}
		p.Printf("  %-7s %s%s, %s: %s\n", label, name, m.Params.Kind(), say.Mode(m), say.Meter(m))
	}
}

// checkJSON is the output of check --json.
type checkJSON struct {
	Length   string           `json:"length"`
	Classes  []checkClassJSON `json:"classes"`
	Queues   []checkQueueJSON `json:"queues"`
	Links    []checkLinkJSON  `json:"links"`
	Findings []lint.Finding   `json:"findings"`

	Unclassified checkUnclassifiedJSON `json:"unclassified"`

	Envelopes []checkEnvelopeJSON `json:"envelopes,omitempty"`
	Customers *checkCustomersJSON `json:"customers,omitempty"`
}

type checkClassJSON struct {
	Name    string            `json:"name"`
	Match   string            `json:"match"`
	Meters  []checkMeterJSON  `json:"meters"`
	Actions map[string]string `json:"actions"`
}

type checkMeterJSON struct {
	Name    string            `json:"name"`
	Type    string            `json:"type"`
	Aware   bool              `json:"aware"`
	Packets bool              `json:"packets"`
	Buckets []checkBucketJSON `json:"buckets"`
	*checkKeysJSON
	Initial    *float64        `json:"initial,omitempty"`     // part of each burst at the start, unless full
	InputColor *inputColorJSON `json:"input_color,omitempty"` // of a color-aware meter

	Envelope string           `json:"envelope,omitempty"`
	Rank     int              `json:"rank,omitempty"`
	Budget   *checkBudgetJSON `json:"budget,omitempty"`

	parameters []parameterJSON
}

// checkBucketJSON gives its rate as bytes (or packets) per period.
type checkBucketJSON struct {
	Name     string `json:"name"`
	Burst    int64  `json:"burst"`
	Amount   int64  `json:"rate_amount"`
	PeriodNS int64  `json:"rate_period_ns"`
}

// checkQueueJSON gives the thresholds of WRED in the unit of the limit. On a link, and in a fair
// queue, a limit in time is given in bytes.
type checkQueueJSON struct {
	Name     string                   `json:"name"`
	Link     string                   `json:"link,omitempty"`
	Path     string                   `json:"link_path,omitempty"` // of links, the root first
	Amount   int64                    `json:"rate_amount"`         // lowest rate of the queue and its links
	PeriodNS int64                    `json:"rate_period_ns"`
	Priority int                      `json:"priority"`
	Weight   int                      `json:"weight"`
	LimitNS  int64                    `json:"limit_ns,omitempty"`
	Bytes    int64                    `json:"limit_bytes,omitempty"`
	Packets  int                      `json:"limit_packets,omitempty"` // also set for a limit in bytes
	WRED     map[string]checkWREDJSON `json:"wred"`                    // by color
	CoDel    *checkCoDelJSON          `json:"codel"`
	ECN      bool                     `json:"ecn"`
	Seed     uint64                   `json:"seed"`
	Fair     string                   `json:"fair,omitempty"`

	// Service by a flat link while the queues in After send nothing. In a tree it is the rate while
	// all queues of the tree are busy.
	Guaranteed *float64 `json:"guaranteed_bit_s,omitempty"`
	WaitNS     int64    `json:"worst_delay_ns,omitempty"`
	After      []string `json:"served_after,omitempty"`

	// In a tree.
	OwnRate   float64  `json:"own_rate_bit_s,omitempty"`
	Guarantee float64  `json:"guarantee_bit_s,omitempty"`
	Reach     *float64 `json:"reach_bit_s,omitempty"`

	Up *checkQueueJSON `json:"up,omitempty"` // for packets from the customers, if it differs
}

type checkWREDJSON struct {
	Min         int64   `json:"min"`
	Max         int64   `json:"max"`
	Probability float64 `json:"probability"` // exact multiple of 1/2^24
}

type checkCoDelJSON struct {
	TargetNS   int64 `json:"target_ns"`
	IntervalNS int64 `json:"interval_ns"`
}

func queueJSON(q *dataplane.Queue, queues []*dataplane.Queue, trees *say.Trees, mtu int64) checkQueueJSON {
	rate := q.Drain()
	c, _ := q.Resolve() // cannot fail after compiling
	out := checkQueueJSON{
		Name: q.Name, Amount: rate.Bytes, PeriodNS: int64(rate.Period), Priority: q.Priority,
		Weight: q.LinkQueue().Weight, LimitNS: int64(c.Time), Bytes: c.Bytes, Packets: c.Capacity(),
		WRED: map[string]checkWREDJSON{}, ECN: q.ECN, Seed: q.Seed,
		Fair: q.Fair.String(),
	}
	if q.Hosts.By != dataplane.NoKey {
		out.Fair = q.Hosts.String() + ", " + out.Fair
	}
	if n := trees.Nodes[q]; n != nil {
		out.Link = q.Link.Name
		out.serve(n, trees.Root(n).Flat(), queues, mtu)
	}
	for color, e := range c.WRED {
		if e != (queue.Early{}) {
			out.WRED[meter.Color(color).String()] = checkWREDJSON{e.Min, e.Max, say.Probability(e)}
		}
	}
	if c.CoDel != (queue.CoDel{}) {
		out.CoDel = &checkCoDelJSON{int64(c.CoDel.Target), int64(c.CoDel.Interval)}
	}
	return out
}

func writeCheckJSON(w io.Writer, policy *policyfile.Compiled, findings []lint.Finding, mtu int64) error {
	out := checkJSON{
		Unclassified: unclassified(policy),
		Length:       say.Length(policy.Policy.Length),
		Queues:       []checkQueueJSON{}, Links: []checkLinkJSON{},
		Findings: append([]lint.Finding{}, findings...),
	}
	for i := range policy.Policy.Classes {
		c := &policy.Policy.Classes[i]
		class := checkClassJSON{
			Name: c.Name, Match: say.Match(&c.Match), Meters: []checkMeterJSON{},
			Actions: map[string]string{},
		}
		for m := c.Meter; m != nil && len(class.Meters) < mostChained; m = m.Then {
			class.Meters = append(class.Meters, meterJSON(m))
		}
		for color := meter.Green; color <= meter.Red; color++ {
			class.Actions[color.String()] = say.Action(c.Action(color))
		}
		out.Classes = append(out.Classes, class)
	}
	trees := newBothTrees(policy)
	out.Queues = append(out.Queues, trees.queuesJSON(mtu)...)
	out.Links = append(out.Links, trees.linksJSON()...)
	out.Customers = customersJSON(policy.File, mtu)
	for _, e := range policy.Policy.Envelopes {
		out.Envelopes = append(out.Envelopes, envelopeJSON(e, flowsOf(policy.Plan, e)))
	}
	return say.WriteJSON(w, out)
}
