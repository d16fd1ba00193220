package main

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/compare"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/output"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/report"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
	"github.com/a-seed-32e5a53f/shaper/dataplane/replay"
)

// compareFlags are the flags of shaper compare.
type compareFlags struct {
	captureFlags
	showFlags
	meters          []string
	rate, length    string
	window          time.Duration
	report, picture string
	json            bool
}

func newCompare(s cli.Streams) *cobra.Command {
	var f compareFlags
	cmd := &cobra.Command{
		Use:     "compare IN",
		GroupID: "look",
		Short:   "Run a capture through several meters side by side",
		Long: `Run a capture through several meters side by side, independently of each other:
green and yellow packets pass, red ones are dropped. IN is pcap or pcapng,
gzipped or not; - is standard input.

Add each meter with --meter. Without --meter, --rate compares one meter of each
kind at that rate. The limit of a window is the number of bytes that the rate
allows in --window, and the burst of a bucket is a tenth of that. A log has
entries for its limit in packets of 40 bytes.

worst    most bytes that passed in any span as long as --window; with --rate,
         also as a multiple of the bytes that the rate allows in that span
starved  longest run of dropped packets, from the first to the last
state    memory of one meter, in bytes

With --show, replay the capture through the policy in an output of show
policy-map interface of a Cisco router, and print the packets and bytes that
conformed, exceeded and violated here and on the router.`,
		Example: `  shaper compare testdata/pcaps/border.pcap --rate 800kbit --picture compare.svg
  shaper compare testdata/pcaps/bursts.pcap --window 100ms --report compare.html \
    --meter "token-bucket rate=10mbit burst=64KiB" \
    --meter "trtcm cir=10mbit cbs=64KiB pir=20mbit pbs=128KiB"
  shaper compare testdata/pcaps/bursts.pcap --show docs/edge.show`,
		Args: cli.OneArg("capture"),
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd, s, args[0]) },
	}
	f.captureFlags.add(cmd)
	f.showFlags.add(cmd)
	flags := cmd.Flags()
	flags.StringArrayVar(&f.meters, "meter", nil,
		"compare `METER`, such as \"token-bucket rate=10mbit burst=20ms\" (repeatable)")
	flags.StringVar(&f.rate, "rate", "",
		"compare all kinds of meters at `RATE`, such as 10mbit; with --meter, used only as the reference rate of the \"worst\" column")
	flags.Var(cli.NewTimeFlag(&f.window, time.Second), "window",
		"set the length of windows and of the worst span to `TIME`")
	flags.StringVar(&f.length, "length", "",
		"count packet lengths by `RULE`: l3, l2, l1, or base=l2,overhead=4,mpu=64 (default l3)")
	flags.StringVar(&f.report, "report", "", "write a report to `FILE.html`")
	flags.StringVar(&f.picture, "picture", "", "draw the rate that passed over time to `FILE.svg`")
	flags.BoolVar(&f.json, "json", false, "print JSON")
	return cmd
}

// check rejects contradictory flags.
func (f *compareFlags) check() error {
	switch {
	case f.show != "" && (len(f.meters) > 0 || f.rate != "" || f.report != "" || f.picture != ""):
		return cli.Usagef("--show cannot be combined with --meter, --rate, --report and --picture")
	case f.show != "":
		return nil
	case f.name != "" || f.policy != "":
		return cli.Usagef("--name and --policy need --show FILE")
	case len(f.meters) == 0 && f.rate == "":
		return cli.Usagef("nothing to compare: give --rate 10mbit for all kinds of meters, or --meter \"token-bucket rate=10mbit burst=20ms\" for each")
	case len(f.meters) > compare.MaxMeters:
		return cli.Usagef("%d meters: at most %d can be compared", len(f.meters), compare.MaxMeters)
	case f.window <= 0:
		return cli.Usagef("--window must be above zero")
	case f.picture != "" && filepath.Ext(f.picture) != ".svg":
		return cli.Usagef("picture %q: the name must end in .svg", f.picture)
	case f.report == "-" && f.json:
		return cli.Usagef("only one of --report - and --json can write to standard output")
	}
	return nil
}

func (f *compareFlags) run(cmd *cobra.Command, s cli.Streams, in string) error {
	if err := f.check(); err != nil {
		return err
	}
	if f.show != "" {
		return f.runShow(cmd, s, in)
	}
	cfg, err := f.config([]bool{true}) // one class, whose meters see all packets
	if err != nil {
		return err
	}
	c, err := compare.New(f.meters, f.length, f.rate, f.window)
	if err != nil {
		return &cli.UsageError{Err: err}
	}
	input, err := openInput(in, s.In)
	if err != nil {
		return err
	}
	defer input.Close()
	var page, picture *output.File
	if err := createOutputs(s, input.taken(), outputFlag{"report", f.report, &page},
		outputFlag{"picture", f.picture, &picture}); err != nil {
		return err
	}
	defer page.Abort()
	defer picture.Abort()

	summary, cut, err := f.replay(cmd.Context(), s, input, c, cfg)
	if err != nil {
		return err
	}
	data := c.Report(in, version(), summary)
	if page != nil {
		if err := page.Wrap(report.WriteComparison(page, data)); err != nil {
			return err
		}
	}
	if picture != nil {
		if err := picture.Wrap(report.WritePicture(picture, data)); err != nil {
			return err
		}
	}
	if err := errors.Join(page.Commit(), picture.Commit()); err != nil {
		return err
	}
	input.warn(s, summary)
	if err := f.print(s, c, summary); err != nil {
		return err
	}
	if cut != nil {
		return fmt.Errorf("%s: %w: the %d packets before that were compared", input.name, cut,
			summary.Packets)
	}
	return nil
}

// print writes the result, on stderr if the report is on stdout.
func (f *compareFlags) print(s cli.Streams, c *compare.Comparison, summary replay.Summary) error {
	if f.json {
		return say.WriteJSON(s.Out, c.Totals(summary))
	}
	var w io.Writer = s.Out
	if f.report == "-" {
		w = s.Err
	}
	return c.WriteTable(w, summary)
}
