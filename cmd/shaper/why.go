package main

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/budgets"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/explain"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/replay"
)

// whyFlags are the flags of shaper why.
type whyFlags struct {
	policyFlags
	json bool
}

func newWhy(s streams) *cobra.Command {
	var f whyFlags
	cmd := &cobra.Command{
		Use:     "why IN N",
		GroupID: "look",
		Short:   "Tell every step of one packet's verdict",
		Long: `Replay a capture up to packet N, counted from 1 as in replay --decisions, and tell
every step of its verdict: when it came, what it is, how long it counts, the class
and the rule that took it, what the classes before it missed, each meter's tokens
before and after with the clause of the RFC, the action, the queue, and what became
of it. IN is pcap or pcapng, gzipped or not, or - for the standard input.`,
		Example: `  shaper why testdata/pcaps/voice-bulk.pcapng 38 --policy docs/customer.yaml
  shaper why testdata/pcaps/bursts.pcap 400 \
    --meter "trtcm cir=10mbit cbs=64KiB pir=20mbit pbs=128KiB" --yellow dscp=af12`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 2 {
				return usagef("want a capture and the number of a packet, got %d arguments: see %s --help", len(args), cmd.CommandPath())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd, s, args[0], args[1]) },
	}
	f.add(cmd)
	cmd.Flags().BoolVar(&f.json, "json", false, "print as JSON")
	return cmd
}

func (f *whyFlags) run(cmd *cobra.Command, s streams, in, number string) error {
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || n < 1 {
		return usagef("packet %q: want its number, from 1", number)
	}
	policy, err := f.load()
	if err != nil {
		return err
	}
	input, err := openInput(in, s.in)
	if err != nil {
		return err
	}
	defer input.Close()

	pipeline := dataplane.NewPipeline(policy.Plan)
	w := explain.New(policy.File, pipeline, n, budgets.NewReplayStore(pipeline).Until)
	summary, cut, err := input.replay(cmd.Context(), s, w, replay.Config{Each: w.Each, Settled: w.Settled})
	switch {
	case errors.Is(err, explain.ErrSeen):
	case err != nil:
		return err
	case summary.Packets < n && cut != nil:
		return fmt.Errorf("%s: %w: the %d packets before that do not have packet %d", input.name, cut, summary.Packets, n)
	case summary.Packets < n:
		return fmt.Errorf("%s: there is no packet %d: the capture has %s", input.name, n, say.Count(summary.Packets, "packet"))
	}
	told := w.Explain()
	if f.json {
		if e := say.WriteJSON(s.out, told); e != nil {
			return e
		}
	} else if e := told.Write(s.out, say.Colored(s.out)); e != nil {
		return e
	}
	if cut != nil {
		return fmt.Errorf("%s: %w: packet %d was still queued then, and was settled as if nothing came after", input.name, cut, n)
	}
	return nil
}
