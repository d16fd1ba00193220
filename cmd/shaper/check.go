package main

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/lint"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

func newCheck(s streams) *cobra.Command {
	var f policyFlags
	asJSON := false
	o := lint.Options{}
	cmd := &cobra.Command{
		Use:     "check POLICY",
		GroupID: "plan",
		Short:   "Compile a policy, show what it resolved to, and lint it",
		Long: `Compile a policy file, or a one-liner given by --meter, and print what it resolved
to in exact units, with warnings and their reasons. A policy that does not compile
exits 2 with the place of each fault.`,
		Example: `  shaper check --meter "srtcm cir=10mbit cbs=1000 ebs=64KiB" --yellow dscp=af12`,
		Args: func(cmd *cobra.Command, args []string) error {
			if f.one.Meter != "" {
				return noArgs(cmd, args)
			}
			return oneArg("policy file")(cmd, args)
		},
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) == 1 {
				f.file = args[0]
			}
			policy, err := f.load()
			if err != nil {
				return err
			}
			return check(s, policy, o, asJSON)
		},
	}
	f.addOneLiner(cmd)
	flags := cmd.Flags()
	flags.BoolVar(&asJSON, "json", false, "print as JSON")
	flags.Var(newSpan(&o.RTT, 50*time.Millisecond), "rtt", "round-trip `TIME` of the TCP flows that a burst should carry")
	flags.Int64Var(&o.MTU, "mtu", 1500, "largest IP packet of the link, in `BYTES`")
	return cmd
}

func check(s streams, policy *compiled, o lint.Options, asJSON bool) error {
	findings := lint.Policy(policy.File, policy.pipeline, o)
	if asJSON {
		return writeCheckJSON(s.out, policy, findings)
	}
	return writeCheck(s.out, policy, findings)
}

func writeCheck(w io.Writer, policy *compiled, findings []lint.Finding) error {
	p := &printer{w: w}
	p.printf("length  %s\n", describeLength(policy.Policy.Length))
	for i := range policy.Policy.Classes {
		c := &policy.Policy.Classes[i]
		p.printf("\nclass %s\n  match   %s\n", c.Name, describeMatch(&c.Match))
		p.meters(c.Meter)
		for _, color := range policyfile.Colors(c) {
			p.printf("  %-7s %s\n", color, describeAction(c.Action(color)))
		}
	}
	for i, q := range policy.Queues {
		if i == 0 {
			p.printf("\n")
		}
		p.printf("queue %s: %s\n", q.Name, describeQueue(q))
	}
	p.printf("\n")
	for _, f := range findings {
		p.printf("%s: %s: %s\n", f.Place, f.Level, f.Text)
	}
	p.printf("%s\n", lint.Summary(findings))
	return p.err
}

// printer keeps the first error of many writes.
type printer struct {
	w   io.Writer
	err error
}

func (p *printer) printf(format string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.w, format, args...)
	}
}

// meters prints a chain.
func (p *printer) meters(m *dataplane.Meter) {
	if m == nil {
		p.printf("  meter   none: every packet is green\n")
	}
	for label := "meter"; m != nil; m, label = m.Then, "then" {
		name := ""
		if label == "then" {
			name = m.Name + ": "
		}
		p.printf("  %-7s %s%s, %s: %s\n", label, name, kindOf(m.Params), describeMode(m), describeMeter(m))
	}
}

// checkJSON is what check --json prints.
type checkJSON struct {
	Length   string           `json:"length"`
	Classes  []checkClassJSON `json:"classes"`
	Findings []lint.Finding   `json:"findings"`
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
}

// checkBucketJSON has its rate as bytes (or packets) in a period of ns.
type checkBucketJSON struct {
	Name     string `json:"name"`
	Burst    int64  `json:"burst"`
	Amount   int64  `json:"rate_amount"`
	PeriodNS int64  `json:"rate_period_ns"`
}

func writeCheckJSON(w io.Writer, policy *compiled, findings []lint.Finding) error {
	out := checkJSON{Length: describeLength(policy.Policy.Length), Findings: append([]lint.Finding{}, findings...)}
	for i := range policy.Policy.Classes {
		c := &policy.Policy.Classes[i]
		class := checkClassJSON{Name: c.Name, Match: describeMatch(&c.Match), Meters: []checkMeterJSON{}, Actions: map[string]string{}}
		for m := c.Meter; m != nil; m = m.Then {
			view := checkMeterJSON{Name: m.Name, Type: kindOf(m.Params), Aware: m.Aware, Packets: m.Packets}
			for _, b := range policyfile.Buckets(m.Params) {
				view.Buckets = append(view.Buckets, checkBucketJSON{b.BurstName, b.Burst, b.Rate.Bytes, int64(b.Rate.Period)})
			}
			class.Meters = append(class.Meters, view)
		}
		for color := meter.Green; color <= meter.Red; color++ {
			class.Actions[color.String()] = describeAction(c.Action(color))
		}
		out.Classes = append(out.Classes, class)
	}
	return writeJSON(w, out)
}
