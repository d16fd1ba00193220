package main

import (
	"fmt"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/advise"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/output"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/report"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/pipeline"
	"github.com/a-seed-32e5a53f/shaper/dataplane/replay"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/jedib0t/go-pretty/v6/progress"
	"github.com/spf13/cobra"
)

// adviseFlags are the flags of shaper advise.
type adviseFlags struct {
	captureFlags
	policy, length     string
	rate, peak, target string
	loss, excess       string
	rtt                time.Duration
	flows              int
	picture            string
	json               bool
}

func newAdvise(s cli.Streams) *cobra.Command {
	var f adviseFlags
	cmd := &cobra.Command{
		Use:     "advise [IN]",
		GroupID: "plan",
		Short:   "Find the burst or queue that traffic needs",
		Long: `Find the bursts that the packets of a capture need at a rate, and what TCP gets
through policers and queues. IN is pcap or pcapng, gzipped or not; - is
standard input. Without IN, --rate and --rtt answer for TCP alone.

The table of burst and loss is exact for the packets of the capture. But TCP
sends less after losses. If the capture was made behind a limit, its bursts are
lower bounds, and the model of TCP is the better answer. The RTT and the losses
are measured from the TCP packets of the capture.

With --policy, find the bursts of each class, at the rates of its meter. If it
has a meter per key, --loss and --excess are shares of the packets of each key.`,
		Example: `  shaper advise testdata/pcaps/bursts.pcap --rate 10mbit
  shaper advise --rate 50mbit --rtt 40ms --target-rate 40mbit
  shaper advise testdata/pcaps/voice-bulk.pcapng --policy docs/customer.yaml`,
		Args: cli.WantArgs(0, 1, "at most one capture"),
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd, s, args) },
	}
	f.captureFlags.add(cmd)
	flags := cmd.Flags()
	flags.StringVarP(&f.policy, "policy", "p", "",
		"find bursts for the classes of the policy in `FILE` (YAML)")
	flags.StringVar(&f.rate, "rate", "", "find bursts at `RATE`, such as 50mbit (CIR)")
	flags.StringVar(&f.peak, "peak", "",
		"`RATE` up to which excess is yellow: PIR, or CIR + EIR (default twice --rate)")
	flags.StringVar(&f.loss, "loss", "0%", "let at most this `SHARE` of the packets be red, such as 0.1%")
	flags.StringVar(&f.excess, "excess", "5%",
		"let at most this `SHARE` of the packets be yellow or red, in meters with three colors")
	flags.Var(cli.NewTimeFlag(&f.rtt, 0), "rtt",
		"round-trip `TIME` of TCP (default: as measured in the capture)")
	flags.IntVar(&f.flows, "flows", 0, "`NUMBER` of TCP flows at one time (default: as in the capture)")
	flags.StringVar(&f.target, "target-rate", "",
		"find the smallest burst and queue with which TCP gets `RATE` (default 90 % of --rate)")
	flags.StringVar(&f.length, "length", "",
		"count packet lengths by `RULE`: l3, l2, l1, or base=l2,overhead=4,mpu=64 (default l3)")
	flags.StringVar(&f.picture, "picture", "", "draw burst and loss to `FILE.svg`")
	flags.BoolVar(&f.json, "json", false, "print JSON")
	return cmd
}

// options checks the flags and returns the questions.
func (f *adviseFlags) options(capture bool) (o advise.Options, err error) {
	o.RTT, o.Flows = f.rtt, f.flows
	for _, flag := range []struct {
		name, text string
		to         *meter.Rate
	}{{"rate", f.rate, &o.Rate}, {"peak", f.peak, &o.Peak}, {"target-rate", f.target, &o.Target}} {
		if flag.text == "" {
			continue
		}
		if *flag.to, err = policyfile.ParseRate(flag.text); err != nil {
			return o, cli.Usagef("--%s: %w", flag.name, err)
		}
		if n, whole := flag.to.Bits(); !whole || n == 0 {
			return o, cli.Usagef("--%s %s: want a whole number of bits per second above zero", flag.name,
				flag.text)
		}
	}
	for _, flag := range []struct {
		name, text string
		to         *dataplane.Fraction
	}{{"loss", f.loss, &o.Loss}, {"excess", f.excess, &o.Excess}} {
		if *flag.to, err = policyfile.ParsePart(flag.text); err != nil {
			return o, cli.Usagef("--%s: %w", flag.name, err)
		}
	}
	if o.Rate.Bytes > 0 && f.peak == "" {
		bits, _ := o.Rate.Bits()
		o.Peak = meter.BitRate(2 * bits)
	}
	switch {
	case !capture && (f.rate == "" || f.rtt == 0):
		return o, cli.Usagef("without a capture, give --rate and --rtt, such as --rate 50mbit --rtt 40ms")
	case !capture && (f.policy != "" || f.picture != "" || f.length != ""):
		return o, cli.Usagef("--policy, --picture and --length need a capture")
	case f.policy != "" &&
		(f.rate != "" || f.peak != "" || f.target != "" || f.length != "" || f.picture != ""):
		return o,
			cli.Usagef("--policy has rates of its own: it cannot be combined with --rate, --peak, --target-rate, --length or --picture")
	case f.picture != "" && filepath.Ext(f.picture) != ".svg":
		return o, cli.Usagef("picture %q: the name must end in .svg", f.picture)
	case f.rate == "" && (f.peak != "" || f.target != "" || f.picture != ""):
		return o, cli.Usagef("--peak, --target-rate and --picture need --rate")
	case o.Peak.Cmp(o.Rate) < 0:
		return o, cli.Usagef("--peak %s is below --rate %s", f.peak, f.rate)
	case o.Target.Cmp(o.Rate) > 0:
		return o, cli.Usagef("--target-rate %s is above --rate %s", f.target, f.rate)
	case o.Excess.Of(1<<40) < o.Loss.Of(1<<40):
		return o, cli.Usagef("--excess %s is below --loss %s, which it includes", f.excess, f.loss)
	case f.flows < 0 || f.flows > advise.MaxFlows:
		return o, cli.Usagef("--flows %d: want 1 to %d", f.flows, advise.MaxFlows)
	}
	return o, nil
}

func (f *adviseFlags) run(cmd *cobra.Command, s cli.Streams, args []string) error {
	o, err := f.options(len(args) > 0)
	if err != nil {
		return err
	}
	if len(args) == 0 {
		answer, err := computed(s, o, advise.Without)
		if err != nil {
			return err
		}
		return f.print(s, answer)
	}
	policy, err := f.load()
	if err != nil {
		return err
	}
	if err := policy.Plan.InUserSpace(); err != nil {
		return cli.ExplainIn(policy, err)
	}
	plan := policy.Plan.For(f.way.direction)
	cfg, err := f.config(sharedClasses(plan))
	if err != nil {
		return err
	}
	input, err := openInput(args[0], s.In)
	if err != nil {
		return err
	}
	defer input.Close()
	collector := advise.NewCollector(plan)
	chosen := cfg.Select.Filter
	cfg.Select.Filter = func(p *dataplane.Packet) bool {
		collector.Watch(p) // acknowledgements of chosen packets tell the RTT, chosen or not
		return chosen == nil || chosen(p)
	}
	cfg.Each = func(p *dataplane.Packet, v *dataplane.Verdict) error {
		collector.Packet(p, v)
		return nil
	}
	summary, cut, err := f.replay(cmd.Context(), s, input, replay.Go{Pipeline: pipeline.FromPlan(plan)}, cfg)
	if err != nil {
		return err
	}
	answer, err := computed(s, o, collector.Advise)
	if err != nil {
		return err
	}
	if f.picture != "" {
		if err := f.draw(s, input, answer); err != nil {
			return err
		}
	}
	input.warn(s, summary)
	if err := f.print(s, answer); err != nil {
		return err
	}
	if cut != nil {
		return fmt.Errorf("%s: %w: the advice is for the %d packets before that", input.name, cut,
			summary.Packets)
	}
	return nil
}

// draw writes the picture.
func (f *adviseFlags) draw(s cli.Streams, input *input, answer *advise.Advice) error {
	var picture *output.File
	if err := createOutputs(s, input.taken(), outputFlag{"picture", f.picture, &picture}); err != nil {
		return err
	}
	defer picture.Abort()
	if err := picture.Wrap(report.WriteFrontier(picture, answer.Picture(input.name))); err != nil {
		return err
	}
	return picture.Commit()
}

// computed returns the answer of f, which can take seconds.
func computed(
	s cli.Streams, o advise.Options, f func(advise.Options) (*advise.Advice, error),
) (*advise.Advice, error) {
	defer cli.Interrupted.AllowExit()()
	var done atomic.Int64
	o.Progress = func(part float64) { done.Store(max(done.Load(), int64(part*computedUnits))) }
	defer say.ShowProgress(s.Err, say.Work{
		Name: "computing", Units: progress.UnitsDefault, Done: &done, All: computedUnits,
	})()
	return f(o)
}

// computedUnits is the number of units of the progress of advise.
const computedUnits = 100

// load returns the policy, or one that only counts lengths.
func (f *adviseFlags) load() (*policyfile.Compiled, error) {
	flags := cli.PolicyFlags{File: f.policy}
	if f.policy == "" {
		flags.One = policyfile.OneLiner{Green: "pass", Length: f.length}
	}
	return flags.Load()
}

func (f *adviseFlags) print(s cli.Streams, answer *advise.Advice) error {
	if f.json {
		return say.WriteJSON(s.Out, answer)
	}
	return answer.Write(s.Out)
}
