package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/output"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/summary"
	"github.com/a-seed-32e5a53f/shaper/dataplane/replay"
)

// replayFlags are the flags of shaper replay.
type replayFlags struct {
	cli.PolicyFlags
	captureFlags
	out, decisions, report, annotate string
	changes                          string
	engine                           string
	json, noEpisodes                 bool
	eachPacket                       bool
}

func newReplay(s cli.Streams) *cobra.Command {
	var f replayFlags
	cmd := &cobra.Command{
		Use:     "replay IN",
		GroupID: "shape",
		Short:   "Meter a capture in virtual time and write the result",
		Long: `Meter the packets of a capture by their own timestamps and print totals by class
and color, and the worst drop episodes: runs of drops of a class with gaps below
100 ms. IN is pcap or pcapng, gzipped or not; - is standard input.

With -o, write the capture as it would have left the box: without dropped
packets, with marks in the headers, and with queued packets at their departure
times. It has the format of IN, and is gzipped if its name ends in .gz.`,
		Example: `  shaper replay testdata/pcaps/bursts.pcap --rate 10mbit --report report.html
  shaper replay testdata/pcaps/bursts.pcap -o sent.pcap \
    --meter "trtcm cir=10mbit cbs=64KiB pir=20mbit pbs=128KiB" --yellow dscp=af12
  shaper replay testdata/pcaps/office.pcap --rate 1mbit --filter "net 192.0.2.0/24" \
    --direction out --inside 192.0.2.0/24 --annotate verdicts.pcapng`,
		Args: cli.OneArg("capture"),
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd, s, args[0]) },
	}
	f.PolicyFlags.Add(cmd)
	f.captureFlags.add(cmd)
	flags := cmd.Flags()
	flags.StringVarP(&f.out, "output", "o", "",
		"write the resulting capture to `OUT`, or - for standard output")
	flags.StringVar(&f.decisions, "decisions", "",
		"write one row per packet to `FILE`: CSV, or JSON lines if it ends in .jsonl")
	flags.StringVar(&f.annotate, "annotate", "",
		"write all packets to `FILE.pcapng`, with their verdicts as comments for Wireshark")
	flags.StringVar(&f.changes, "changes", "",
		"make the changes in `FILE` meanwhile; a line is one of shaper set, such as at=1.5s customer 4711 link=ap-9")
	flags.StringVar(&f.report, "report", "", "write a report to `FILE.html`")
	flags.StringVar(&f.engine, "engine", "go",
		"metering `ENGINE`: go, or bpf for the program in the kernel (needs root)")
	flags.BoolVar(&f.json, "json", false, "print the totals as JSON")
	flags.BoolVar(&f.noEpisodes, "no-episodes", false, "do not look for the worst drop episodes")
	flags.BoolVarP(&f.eachPacket, "packet-buffered", "U", false,
		"write each packet and row at once, not when the input pauses for 100 ms")
	return cmd
}

// check rejects contradictory flags.
func (f *replayFlags) check() error {
	stdout := 0
	for _, use := range []bool{f.out == "-", f.decisions == "-", f.report == "-", f.annotate == "-", f.json} {
		if use {
			stdout++
		}
	}
	switch {
	case stdout > 1:
		return cli.Usagef("only one of -o -, --decisions -, --report -, --annotate - and --json can write to standard output")
	case f.engine != "go" && f.engine != "bpf":
		return cli.Usagef("--engine %q: want go or bpf", f.engine)
	case f.engine == "bpf" && f.changes != "":
		return cli.Usagef("--changes needs --engine go")
	}
	return nil
}

func (f *replayFlags) run(cmd *cobra.Command, s cli.Streams, in string) error {
	if err := f.check(); err != nil {
		return err
	}
	policy, err := f.Load()
	if err != nil {
		return err
	}
	if err := policy.Plan.InUserSpace(); err != nil {
		return cli.ExplainIn(policy, err)
	}
	both := policy
	policy = both.For(f.way.direction)
	cfg, err := f.config(sharedClasses(policy.Plan))
	if err != nil {
		return err
	}
	cfg.FlushEach = f.eachPacket
	engine, err := f.newEngine(policy, both)
	if err != nil {
		return err
	}
	defer engine.Close()
	input, err := openInput(in, s.In)
	if err != nil {
		return err
	}
	defer input.Close()

	files, err := f.create(s, input)
	if err != nil {
		return err
	}
	defer files.abort()

	o := f.observers(files, policy, engine)
	o.join(&cfg)
	result, cut, err := f.replay(cmd.Context(), s, input, engine, cfg)
	if err != nil {
		return files.named(err)
	}
	n, err := o.totals(policy, engine, result, whyCommand(cmd, s, in))
	if err != nil {
		return err
	}
	over, err := tooManyKeys(policy.Plan, engine)
	if err != nil {
		return err
	}
	if err := o.commit(in, n); err != nil {
		return err
	}
	f.warn(s, policy, input, result, over)
	if err := f.print(s, policy, n); err != nil {
		return err
	}
	if cut != nil {
		return fmt.Errorf("%s: %w: the %d packets before that were replayed", input.name, cut, result.Packets)
	}
	return nil
}

// warn prints the warnings of the policy and of its replay. over has a warning for each table above its
// bound of keys.
func (f *replayFlags) warn(
	s cli.Streams, policy *policyfile.Compiled, input *input, result replay.Summary, over []string,
) {
	f.NoMarks = "a replay"
	f.Warn(s.Err, policy, "")
	cli.WarnReplay(s.Err, policy)
	input.warn(s, result)
	for _, w := range over {
		fmt.Fprintf(s.Err, "shaper: warning: %s\n", w)
	}
}

// isPartial reports whether the result up to an error is useful.
func isPartial(err error) bool {
	return errors.As(err, new(*replay.BrokenError)) || errors.Is(err, cli.ErrInterrupted)
}

// print writes the totals, on stderr if another output is on stdout.
func (f *replayFlags) print(s cli.Streams, policy *policyfile.Compiled, n summary.Replay) error {
	if f.json {
		return say.WriteJSON(s.Out, summary.TotalsOf(policy.Plan.Outline(), n))
	}
	w := s.Out
	if f.out == "-" || f.decisions == "-" || f.report == "-" || f.annotate == "-" {
		w = s.Err
	}
	return summary.WriteTotals(w, policy.Plan.Outline(), n, say.Colored(w))
}

// input is a capture to read.
type input struct {
	io.Reader
	name string   // printable
	file *os.File // nil for the standard input
	size int64    // bytes; 0 if unknown
}

func openInput(path string, stdin io.Reader) (*input, error) {
	if path == "-" {
		return &input{Reader: stdin, name: "standard input"}, nil
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, cli.PlainPathError("capture", err)
	}
	in := &input{Reader: f, name: say.Printable(path), file: f}
	info, err := f.Stat()
	if err == nil && info.IsDir() {
		f.Close()
		return nil, cli.Usagef("capture %q is a directory", path)
	}
	if err == nil && info.Mode().IsRegular() {
		in.size = info.Size()
	}
	return in, nil
}

// replay replays the capture with a progress bar. cut is an error that ended it early with a
// useful result; if err is set, there is none.
func (i *input) replay(
	ctx context.Context, s cli.Streams, e replay.Engine, cfg replay.Config,
) (summary replay.Summary, cut, err error) {
	reader := &say.MeteredReader{Reader: i}
	endProgress := say.ShowProgress(s.Err, reader.Reading(i.size))
	summary, cut = replay.Run(ctx, reader, e, cfg)
	endProgress()
	if cut != nil && !(summary.Began && isPartial(cut)) {
		return summary, nil, fmt.Errorf("%s: %w", i.name, cut)
	}
	return summary, cut, nil
}

// taken returns the file of the capture, if it is a regular file, by a description.
func (i *input) taken() map[string]os.FileInfo {
	taken := map[string]os.FileInfo{}
	if file, ok := i.Reader.(*os.File); ok {
		if info, err := file.Stat(); err == nil && info.Mode().IsRegular() {
			taken["the capture "+i.name] = info
		}
	}
	return taken
}

// warn prints the warnings of a replay.
func (i *input) warn(s cli.Streams, summary replay.Summary) {
	for _, w := range summary.Warnings {
		fmt.Fprintf(s.Err, "shaper: warning: %s: %s\n", i.name, w)
	}
	if summary.Cut > 0 {
		fmt.Fprintf(s.Err, "shaper: note: %s: %s of TSO or GRO, metered as the segments on the wire\n",
			i.name, say.Count(summary.Cut, "super-packet"))
	}
}

func (i *input) Close() error {
	if i.file == nil {
		return nil
	}
	return i.file.Close()
}

// outputFlag is a flag for an output.
type outputFlag struct {
	what, path string
	to         **output.File // stays nil without a path
}

// createOutputs creates the outputs, or none after an error. taken is as in output.Create.
func createOutputs(s cli.Streams, taken map[string]os.FileInfo, list ...outputFlag) (err error) {
	paths := map[string]string{}
	for i, o := range list {
		if o.path == "" {
			continue
		}
		if other := paths[output.Absolute(o.path)]; other != "" && !isDevice(o.path) {
			err = cli.Usagef("%s and %s are both %q: choose two names", other, o.what, o.path)
		} else {
			*o.to, err = output.Create(o.what, o.path, s.Out, taken)
		}
		if err != nil {
			for _, created := range list[:i] {
				(*created.to).Abort()
			}
			return err
		}
		paths[output.Absolute(o.path)] = o.what
	}
	return nil
}

// replayFiles are the outputs of a replay. An output without a flag is nil.
type replayFiles struct{ out, decisions, report, annotate *output.File }

// create creates the outputs.
func (f *replayFlags) create(s cli.Streams, input *input) (*replayFiles, error) {
	taken := input.taken()
	if info, err := os.Stat(f.File); err == nil && info.Mode().IsRegular() {
		taken["the policy "+say.Printable(f.File)] = info
	}
	files := &replayFiles{}
	return files, createOutputs(s, taken,
		outputFlag{"output", f.out, &files.out}, outputFlag{"decisions", f.decisions, &files.decisions},
		outputFlag{"report", f.report, &files.report},
		outputFlag{"annotated capture", f.annotate, &files.annotate})
}

// isDevice reports whether a path exists and is not a regular file. /dev/null can be several
// outputs at once.
func isDevice(path string) bool {
	info, err := os.Stat(path)
	return err == nil && !info.Mode().IsRegular()
}

// named adds the output's name to an error of writing the resulting capture.
func (f *replayFiles) named(err error) error {
	var failed *replay.OutputError
	if errors.As(err, &failed) {
		return f.out.Wrap(failed.Err)
	}
	return err
}

func (f *replayFiles) commit() error {
	for _, o := range []*output.File{f.out, f.decisions, f.report, f.annotate} {
		if err := o.Commit(); err != nil {
			return err
		}
	}
	return nil
}

func (f *replayFiles) abort() {
	f.out.Abort()
	f.decisions.Abort()
	f.report.Abort()
	f.annotate.Abort()
}
