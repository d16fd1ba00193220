package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/diff"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
)

// diffFlags are the flags of shaper diff.
type diffFlags struct {
	captureFlags
	json bool
}

func newDiff(s cli.Streams) *cobra.Command {
	var f diffFlags
	cmd := &cobra.Command{
		Use:     "diff A B [IN]",
		GroupID: "plan",
		Short:   "Show what differs between two policies, and for which packets",
		Long: `Compare two policies in exact units, by the names of their classes, meters,
queues and customers. A and B are policy files, or meters such as
"srtcm cir=10mbit cbs=64KiB ebs=64KiB".

With a capture IN, run its packets through both policies. Count the packets that
get another color, action, mark or departure, by class and color, and show the
first ten with the reasons of both verdicts. IN is pcap or pcapng, gzipped or
not; - is standard input.`,
		Example: `  shaper diff docs/customer.yaml docs/link.yaml
  shaper diff docs/customer.yaml docs/link.yaml testdata/pcaps/voice-bulk.pcapng
  shaper diff "token-bucket rate=1mbit burst=20ms" "token-bucket rate=1mbit burst=50ms" \
    testdata/pcaps/office.pcap`,
		Args: cli.WantArgs(2, 3, "two policies, and a capture or none"),
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd, s, args) },
	}
	f.captureFlags.add(cmd)
	cmd.Flags().BoolVar(&f.json, "json", false, "print JSON")
	return cmd
}

func (f *diffFlags) run(cmd *cobra.Command, s cli.Streams, args []string) error {
	var flags [2]cli.PolicyFlags
	var policies [2]*policyfile.Compiled
	for i := range policies {
		flags[i] = policyArgument(args[i])
		var err error
		if policies[i], err = flags[i].Load(); err != nil {
			return err
		}
	}
	result := &diff.Result{Changes: diff.Policies(policies[0].File, policies[1].File)}
	if len(args) == 2 {
		return f.print(s, result)
	}

	in := args[2]
	cfg, err := f.config(nil) // each policy alone would warn of both directions
	if err != nil {
		return err
	}
	for _, policy := range policies {
		if err := policy.Plan.InUserSpace(); err != nil {
			return cli.ExplainIn(policy, err)
		}
	}
	input, err := openInput(in, s.In)
	if err != nil {
		return err
	}
	defer input.Close()
	var sides [2]diff.Side
	for i, policy := range policies {
		plan := policy.Plan.For(f.way.direction)
		sides[i] = diff.Side{Plan: plan, Engine: newGoEngine(plan)}
	}
	fates := diff.NewFates(sides[0], sides[1])
	summary, cut, err := f.replay(cmd.Context(), s, input, fates, cfg)
	if err != nil {
		return err
	}
	for _, policy := range policies {
		if policy.HasRules() { // one warning, even if both have rules
			cli.WarnReplay(s.Err, policy)
			break
		}
	}
	input.warn(s, summary)
	var why [2]func(packet int64) string
	for i := range flags {
		why[i] = whyCommand(cmd, s, in, wordsOf(&flags[i])...)
	}
	result.Capture = fates.Capture(summary,
		func(packet int64) []string { return []string{why[0](packet), why[1](packet)} })
	if err := f.print(s, result); err != nil {
		return err
	}
	if cut != nil {
		return fmt.Errorf("%s: %w: the %d packets before that were compared", input.name, cut,
			summary.Packets)
	}
	return nil
}

func (f *diffFlags) print(s cli.Streams, result *diff.Result) error {
	if f.json {
		return say.WriteJSON(s.Out, result)
	}
	return result.Write(s.Out)
}

// policyArgument returns the flags of a policy that is an argument: a meter as of --meter, or a
// file.
func policyArgument(arg string) cli.PolicyFlags {
	kind, _, several := strings.Cut(arg, " ")
	if several && slices.Contains(policyfile.MeterTypes(), kind) {
		return cli.PolicyFlags{One: policyfile.OneLiner{Meter: arg}}
	}
	return cli.PolicyFlags{File: arg}
}

// wordsOf returns the flags of a policy of policyArgument.
func wordsOf(p *cli.PolicyFlags) []string {
	if p.File != "" {
		return []string{"--policy", p.File}
	}
	return []string{"--meter", p.One.Meter}
}
