// Command gate compares the cost of the command shaper with an earlier version's, and fails if it
// grew: .ci/gate runs it. It measures CPU time, not elapsed time, of many runs on one CPU, the two
// versions in turn.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// repetitions is the number of times a figure must be worse before the gate fails.
const repetitions = 3

// layouts are the paths of a version, one for each layout of its code. Branches far apart can share a
// place in the CPU's predictor, so a change that moves code can slow down other code by a tenth. A
// slower program is slower in all layouts.
type layouts []string

// at returns the path for a repetition.
func (l layouts) at(n int) string { return l[n%len(l)] }

func (l *layouts) add(path string) error {
	*l = append(*l, path)
	return nil
}

// options are the flags of the command.
type options struct {
	base, here layouts
	name       string        // commit of the base
	accepted   string        // file of accepted costs
	only       string        // the figures whose names contain it
	pairs      int           // samples of each version
	sample     time.Duration // least CPU time of a sample
	packets    int           // of the captures
	private    bool          // the network and /run are those of the gate
}

func main() {
	var o options
	captures := flag.String("captures", "", "only write the captures to `DIR`")
	flag.Func("base", "`PATH` of the earlier version; again for each layout", o.base.add)
	flag.Func("here", "`PATH` of this version; again for each layout", o.here.add)
	flag.StringVar(&o.name, "name", "", "`COMMIT` of the earlier version")
	flag.StringVar(&o.accepted, "accepted", ".ci/gate-accepted", "`FILE` of accepted costs")
	flag.StringVar(&o.only, "only", "", "measure figures whose names contain `TEXT`")
	flag.IntVar(&o.pairs, "pairs", 7, "samples of each version, or 3 if they are clearly within the limit")
	flag.DurationVar(&o.sample, "sample", time.Second, "CPU time of a sample")
	flag.IntVar(&o.packets, "packets", 400_000, "packets of the captures")
	flag.BoolVar(&o.private, "private", false, "network and /run belong to the gate")
	flag.Parse()
	// A child's peak memory includes its parent's, which must stay small.
	debug.SetGCPercent(20)
	var err error
	switch {
	case *captures != "":
		err = writeCaptures(*captures, o.packets)
	case len(o.base) == 0 || len(o.here) == 0:
		err = errors.New("-base and -here are needed")
	default:
		err = o.run()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "gate:", err)
		os.Exit(1)
	}
}

// errWorse reports that figures are worse than the base's.
var errWorse = errors.New(
	"worse than the base: make it cheaper, or accept the cost by a line in .ci/gate-accepted")

// run makes the captures and compares the versions.
func (o *options) run() error {
	dir, err := temporary()
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if text, err := exec.Command(self, "-captures", dir, "-packets",
		fmt.Sprint(o.packets)).CombinedOutput(); err != nil {
		return fmt.Errorf("captures: %w: %s", err, text)
	}
	// The cache of a file depends on how it was written, and with it the cost of a start, by a fifth.
	programs, err := os.MkdirTemp("", "gate")
	if err != nil {
		return err
	}
	defer os.RemoveAll(programs)
	for name, version := range map[string]layouts{"base": o.base, "here": o.here} {
		for n, path := range version {
			version[n] = filepath.Join(programs, fmt.Sprint(name, n))
			if err := copyFile(version[n], path); err != nil {
				return err
			}
		}
	}
	if err := pin(); err != nil {
		return err
	}
	return o.gate(dir, os.Stdout)
}

// copyFile copies a program without holding it in memory.
func copyFile(to, from string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY, 0o700)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// gate compares the versions by the captures in dir.
func (o *options) gate(dir string, out io.Writer) error {
	accepted, err := readAccepted(o.accepted)
	if err != nil {
		return err
	}
	var worse []*figure
	for _, f := range figures(dir) {
		if !strings.Contains(f.name, o.only) {
			continue
		}
		if f.live && !o.private {
			fmt.Fprintf(out, "%-44s not measured: it needs root, and a network namespace\n", f.name)
			continue
		}
		if err := f.prepare(o.base.at(0), o.sample); err != nil {
			return err
		}
		f.limit = limit * accepted.factor(f.name, o.name)
		if ok, err := o.compare(f, 0, out); err != nil {
			return err
		} else if !ok {
			worse = append(worse, f)
		}
	}
	for n := 1; n < repetitions && len(worse) > 0; n++ {
		fmt.Fprintf(out, "repetition %d of the figures that are worse:\n", n)
		again := worse
		worse = nil
		for _, f := range again {
			if ok, err := o.compare(f, n, out); err != nil {
				return err
			} else if !ok {
				worse = append(worse, f)
			}
		}
	}
	if len(worse) > 0 {
		return errWorse
	}
	return nil
}

// compare measures a figure of both versions in the layout for a repetition, prints it and reports
// whether it is within its limit.
func (o *options) compare(f *figure, repetition int, out io.Writer) (bool, error) {
	pairs := o.pairs
	if f.exact {
		pairs = 1
	}
	var base, here []float64
	for i := range pairs {
		for j := range 2 {
			to, path := &base, o.base.at(repetition)
			if (i+j)%2 == 1 { // each version is the first one in turn
				to, path = &here, o.here.at(repetition)
			}
			v, err := f.sample(path)
			if err != nil {
				return false, fmt.Errorf("%s: %s: %w", f.name, path, err)
			}
			*to = append(*to, v)
		}
		if within(base, here, f.limit) {
			break
		}
	}
	r := ratioOf(base, here)
	ok, verdict := r.figure <= f.limit, ""
	if !ok {
		verdict = " WORSE"
	}
	_, err := fmt.Fprintf(out, "%-44s %9.4g -> %9.4g %-6s %.3f [%.3f..%.3f], limit %.3f%s\n", f.name, r.base,
		r.here, f.unit, r.figure, r.least, r.most, f.limit, verdict)
	return ok, err
}

// temporary returns a new folder, in memory if possible.
func temporary() (string, error) {
	var fs unix.Statfs_t
	if unix.Statfs("/dev/shm", &fs) == nil && fs.Bavail*uint64(fs.Bsize) > 1<<30 {
		if dir, err := os.MkdirTemp("/dev/shm", "gate"); err == nil {
			return dir, nil
		}
	}
	return os.MkdirTemp("", "gate")
}

// pin binds this thread, and so all processes it starts, to the last CPU.
func pin() error {
	runtime.LockOSThread()
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return fmt.Errorf("sched_getaffinity: %w", err)
	}
	last := 0
	for cpu := range maxCPUs {
		if set.IsSet(cpu) {
			last = cpu
		}
	}
	set.Zero()
	set.Set(last)
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		return fmt.Errorf("sched_setaffinity: %w", err)
	}
	return nil
}

// maxCPUs is the size of a unix.CPUSet.
const maxCPUs = 1024

// usage runs a command and returns what it used, with its children.
func usage(path string, args ...string) (*syscall.Rusage, error) {
	cmd := exec.Command(path, args...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	cmd.Dir = filepath.Dir(path)
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, stderr.String())
	}
	return cmd.ProcessState.SysUsage().(*syscall.Rusage), nil
}
