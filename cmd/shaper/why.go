package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/budgets"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/explain"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
	"github.com/a-seed-32e5a53f/shaper/dataplane/pipeline"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// whyFlags are the flags of shaper why.
type whyFlags struct {
	cli.PolicyFlags
	captureFlags
	json, verbose bool
}

func newWhy(s cli.Streams) *cobra.Command {
	var f whyFlags
	cmd := &cobra.Command{
		Use:     "why IN N",
		GroupID: "look",
		Short:   "Explain one packet's verdict step by step",
		Long: `Replay a capture up to packet N, counted from 1 as in replay --decisions, and
explain its verdict step by step: its arrival, headers and metered length, the
class that matched and why earlier classes did not, each meter's tokens before
and after with the clause of the RFC, the action, the queue, and the outcome.
IN is pcap or pcapng, gzipped or not; - is standard input.`,
		Example: `  shaper why testdata/pcaps/voice-bulk.pcapng 32 --policy docs/customer.yaml
  shaper why testdata/pcaps/bursts.pcap 400 \
    --meter "trtcm cir=10mbit cbs=64KiB pir=20mbit pbs=128KiB" --yellow dscp=af12`,
		Args: cli.WantArgs(2, 2, "a capture and a packet number"),
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd, s, args[0], args[1]) },
	}
	f.PolicyFlags.Add(cmd)
	f.captureFlags.add(cmd)
	cmd.Flags().BoolVar(&f.json, "json", false, "print JSON")
	cmd.Flags().BoolVar(&f.verbose, "verbose", false, "also print the fields of the packet's protocol layers")
	return cmd
}

func (f *whyFlags) run(cmd *cobra.Command, s cli.Streams, in, number string) error {
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || n < 1 {
		return cli.Usagef("packet number must be 1 or more, not %q", number)
	}
	cfg, err := f.config(nil)
	if err != nil {
		return err
	}
	policy, err := f.Load()
	if err != nil {
		return err
	}
	if err := policy.Plan.InUserSpace(); err != nil {
		return cli.ExplainIn(policy, err)
	}
	input, err := openInput(in, s.In)
	if err != nil {
		return err
	}
	defer input.Close()

	policy = policy.For(f.way.direction)
	pl := pipeline.FromPlan(policy.Plan)
	w := explain.New(policy.File, pl, n, budgets.NewReplayStore(pl).Until)
	cfg.Each, cfg.Settled = w.Each, w.Settled
	summary, cut, err := input.replay(cmd.Context(), s, w, cfg)
	switch {
	case errors.Is(err, explain.ErrSeen):
	case err != nil:
		return err
	case summary.Read < n && cut != nil:
		return fmt.Errorf("%s: %w: packet %d is not among the %d packets before that", input.name, cut, n,
			summary.Read)
	case summary.Read < n:
		return fmt.Errorf("%s: there is no packet %d: the capture has %s", input.name, n,
			say.Count(summary.Read, "packet"))
	case !w.Seen():
		if err := f.finish(&summary); err != nil {
			return fmt.Errorf("%s: %w", input.name, err)
		}
		return fmt.Errorf("%s: packet %d is excluded by --filter or --direction", input.name, n)
	}
	cli.WarnReplay(s.Err, policy)
	explanation := w.Explain()
	if f.verbose {
		explanation.Layers = w.Layers()
	}
	if f.json {
		err = say.WriteJSON(s.Out, explanation)
	} else {
		err = explanation.Write(s.Out, say.Colored(s.Out))
	}
	if err != nil {
		return err
	}
	if cut != nil {
		return fmt.Errorf(
			"%s: %w: packet %d was still queued then, and was decided as if no packet arrived later",
			input.name, cut, n)
	}
	return nil
}

// whyCommand returns a function that writes the command for explaining a packet. The command
// repeats the flags of cmd that shaper why also accepts, and then the words of more.
func whyCommand(cmd *cobra.Command, s cli.Streams, in string, more ...string) func(packet int64) string {
	known := newWhy(s).Flags()
	flags := ""
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if f.Name == "json" || known.Lookup(f.Name) == nil {
			return
		}
		if f.NoOptDefVal != "" {
			flags += fmt.Sprintf(" --%s=%s", f.Name, say.Quoted(f.Value.String()))
			return
		}
		flags += fmt.Sprintf(" --%s %s", f.Name, say.Quoted(f.Value.String()))
	})
	for _, word := range more {
		flags += " " + say.Quoted(word)
	}
	if strings.HasPrefix(in, "-") && in != "-" {
		in = "./" + in
	}
	return func(packet int64) string {
		return fmt.Sprintf("shaper why %s %d%s", say.Quoted(in), packet, flags)
	}
}
