// Command bench compares shaper with other programs and libraries. It measures both sides in
// one run, interleaved, and prints the ratios as a Markdown table.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"syscall"
)

type options struct {
	peers              bool
	rounds             int
	only, dir, profile string
	write              string
}

func main() {
	var o options
	flag.BoolVar(&o.peers, "peers", false,
		"measure against rte_meter too; needs libdpdk-dev, pkg-config and gcc")
	flag.IntVar(&o.rounds, "rounds", 9, "measure every figure `N` times")
	flag.StringVar(&o.only, "only", "", "measure only figures whose name matches `REGEXP`")
	flag.StringVar(&o.dir, "dir", "/dev/shm", "tmpfs `DIR` for the captures, 2.8 GB")
	flag.StringVar(&o.profile, "cpuprofile", "", "write a CPU profile of this process to `FILE`")
	flag.StringVar(&o.write, "write", "", "write BENCHMARKS.md and growth.svg to `DIR`")
	send := flag.String("blast", "", "send UDP for a figure of the kernel: `SIZE,RATE,MS`")
	carried := flag.Bool("relay", false, "carry frames between two TAP devices, for a figure of TAP")
	flag.Parse()
	o.rounds = max(o.rounds, 1)
	var err error
	switch {
	case *carried:
		err = relayFrames()
	case *send != "":
		err = blast(*send)
	default:
		err = run(o)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(o options) error {
	if o.write != "" && o.only != "" {
		return errors.New("-write needs all figures: leave out -only")
	}
	wanted, err := regexp.Compile(o.only)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp(o.dir, "shaper-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	wire, end := wireOf(dir)
	defer end()
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-signals
		end()
		os.RemoveAll(dir)
		os.Exit(0)
	}()

	captures := sync.OnceValues(func() (*captures, error) { return newCaptures(dir) })
	all := groups(dir, captures, wire)
	for i := range all {
		all[i].figures = slices.DeleteFunc(all[i].figures, func(f figure) bool {
			return !wanted.MatchString(f.what) || !o.peers && strings.HasPrefix(f.what, "rte_meter")
		})
	}
	all = slices.DeleteFunc(all,
		func(g group) bool { return len(g.figures) == 0 || g.root && os.Geteuid() != 0 })

	if o.profile != "" {
		f, err := os.Create(o.profile)
		if err != nil {
			return err
		}
		defer f.Close()
		if err := pprof.StartCPUProfile(f); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}
	p := page{Rounds: o.rounds}
	p.describe()
	fmt.Printf("%s, load %s, %s, %s, %d rounds: median [least..most]\n", p.Machine, p.Load, p.Others,
		p.Commit, p.Rounds)
	p.measure(all, os.Stdout)
	if o.write == "" {
		return nil
	}
	g := growth{rounds: min(o.rounds, 5)}
	if os.Geteuid() == 0 {
		g.wire = wire
	}
	if g.captures, err = captures(); err != nil {
		return err
	}
	if p.growth, err = g.measure(); err != nil {
		return err
	}
	return errors.Join(p.write(o.write), p.failed())
}

// groups returns the sections of the page.
func groups(dir string, captures func() (*captures, error), wire func() (*wire, error)) []group {
	return []group{
		{"Meters", false, slices.Concat(peerFigures(dir), limiterFigures(), familyFigures())},
		{"Keys", false, slices.Concat(tableFigures(), customerFigures())},
		{"Replay", false, slices.Concat(pipelineFigures(), classifierFigures(), replayFigures(captures),
			customerReplays(captures))},
		{"Queues", false, slices.Concat(exactFigures(), wheelFigures())},
		{"Trees of links", false, treeFigures()},
		{
			"The kernel plane", true,
			slices.Concat(kernelFigures(wire), sourceFigures(), subscriberFigures(), budgetFigures(wire)),
		},
		{"Commands", true, slices.Concat(commandFigures(wire), operationFigures(wire))},
		{"Pacing", true, pacingFigures(wire)},
		{"TAP devices", true, tapFigures(wire)},
		{"Shared limits", false, slices.Concat(storeFigures(), shareFigures(), simulateFigures())},
	}
}
