// Command bench compares shaper with other programs and libraries. It measures both sides in
// one run, interleaved, and prints the ratios as a Markdown table.
package main

import (
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"runtime"
	"runtime/pprof"
	"strings"
	"syscall"
)

func main() {
	peers := flag.Bool("peers", false, "measure against rte_meter too; needs libdpdk-dev, pkg-config and gcc")
	rounds := flag.Int("rounds", 9, "measure every figure `N` times")
	only := flag.String("only", "", "measure only figures whose name matches `REGEXP`")
	dir := flag.String("dir", "/dev/shm", "tmpfs `DIR` for the captures, 1.7 GB")
	profile := flag.String("cpuprofile", "", "write a CPU profile of this process to `FILE`")
	send := flag.String("blast", "", "send UDP for a figure of the kernel: `SIZE,RATE,MS`")
	carried := flag.Bool("relay", false, "carry frames between two TAP devices, for a figure of TAP")
	flag.Parse()
	var err error
	switch {
	case *carried:
		err = relayFrames()
	case *send != "":
		err = blast(*send)
	default:
		err = run(*peers, max(*rounds, 1), *only, *dir, *profile)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(peers bool, rounds int, only, dir, profile string) error {
	wanted, err := regexp.Compile(only)
	if err != nil {
		return err
	}
	dir, err = os.MkdirTemp(dir, "shaper-bench-")
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

	var figures []figure
	if peers {
		figures = append(figures, peerFigures(dir)...)
	}
	figures = append(figures, limiterFigures()...)
	figures = append(figures, familyFigures()...)
	figures = append(figures, tableFigures()...)
	figures = append(figures, pipelineFigures()...)
	figures = append(figures, classifierFigures()...)
	figures = append(figures, replayFigures(dir)...)
	figures = append(figures, exactFigures()...)
	figures = append(figures, wheelFigures()...)
	figures = append(figures, storeFigures()...)
	figures = append(figures, shareFigures()...)
	figures = append(figures, simulateFigures()...)
	if os.Geteuid() == 0 {
		figures = append(figures, kernelFigures(wire)...)
		figures = append(figures, budgetFigures(wire)...)
		figures = append(figures, commandFigures(wire)...)
		figures = append(figures, sourceFigures()...)
		figures = append(figures, pacingFigures(wire)...)
		figures = append(figures, tapFigures(wire)...)
	}

	if profile != "" {
		f, err := os.Create(profile)
		if err != nil {
			return err
		}
		defer f.Close()
		if err := pprof.StartCPUProfile(f); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}
	fmt.Printf("%s, %d cores, Linux %s, %s, %d rounds: median [least..most]\n\n",
		cpu(), runtime.NumCPU(), firstLine("/proc/sys/kernel/osrelease"), runtime.Version(), rounds)
	fmt.Println("| what | bar | aim | measured | ours | other | met |")
	fmt.Println("|---|---|---|---|---|---|---|")
	for _, f := range figures {
		if wanted.MatchString(f.what) {
			fmt.Println(f.row(rounds))
		}
	}
	return nil
}

func cpu() string {
	info, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(info)) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return runtime.GOARCH
}

func firstLine(path string) string {
	text, _ := os.ReadFile(path)
	line, _, _ := strings.Cut(string(text), "\n")
	return line
}
