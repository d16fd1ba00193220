package main

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"
)

// limit is the ratio from which a figure is worse. One version against itself gives 0.97 to 1.03.
const limit = 1.05

// figure is a cost of the command.
type figure struct {
	name, unit string
	live       bool // needs root and a network of its own
	exact      bool // does not vary
	limit      float64
	runs       int // of the command in a sample
	// once runs the command and returns the cost. Samples have at least a second of it, unless exact.
	once func(path string) (float64, error)
	peak bool // the cost of a sample is the median of its runs, instead of the mean
}

const (
	meterArgs = "trtcm cir=1gbit cbs=64KiB pir=2gbit pbs=64KiB"
	keyPolicy = `classes:
  - name: all
    meter: {type: trtcm, cir: 100kbit, cbs: 4KiB, pir: 200kbit, pbs: 8KiB, per: src}
    yellow: {dscp: af12}
`
)

// figures are measured on the captures in dir.
func figures(dir string) []*figure {
	imix, small, policy := filepath.Join(dir, imixName), filepath.Join(dir, smallName),
		filepath.Join(dir, "keys.yaml")
	marks := []string{"--meter", meterArgs, "--green", "dscp=af11", "--yellow", "dscp=af12"}
	replay := func(name, capture string, args ...string) *figure {
		return &figure{name: "shaper replay, " + name + ": user CPU", unit: "ms", once: func(path string) (float64, error) {
			return cpu(userTime, path, append([]string{"replay", capture, "-o", os.DevNull}, args...)...)
		}}
	}
	return []*figure{
		{name: "binary", unit: "MB", exact: true, once: size},
		{name: "shaper version: memory", unit: "MiB", peak: true, once: memory},
		{
			name: "shaper version: CPU", unit: "ms",
			once: func(path string) (float64, error) { return cpu(allTime, path, "version") },
		},
		replay("IMIX with marks", imix, marks...),
		replay("IMIX with a report", imix, append(marks, "--report", filepath.Join(dir, "report.html"))...),
		replay("64 B with marks", small, marks...),
		replay("64 B, a meter per source", small, "--policy", policy),
		replay("IMIX through a queue", imix, "--meter", meterArgs, "--green", "queue", "--yellow", "queue",
			"--red", "queue", "--queue", "rate=2900mbit limit=50ms"),
		{name: "shaper run until attached: CPU", unit: "ms", live: true, once: attach},
		{name: "shaper replay --engine bpf, 64 B: system CPU", unit: "ms", live: true, once: func(path string) (float64, error) {
			return cpu(systemTime, path, "replay", small, "--engine", "bpf", "--meter", meterArgs)
		}},
	}
}

func userTime(u *syscall.Rusage) time.Duration   { return time.Duration(u.Utime.Nano()) }
func systemTime(u *syscall.Rusage) time.Duration { return time.Duration(u.Stime.Nano()) }
func allTime(u *syscall.Rusage) time.Duration    { return userTime(u) + systemTime(u) }

// cpu runs a command and returns its CPU time, ms.
func cpu(part func(*syscall.Rusage) time.Duration, path string, args ...string) (float64, error) {
	u, err := usage(path, args...)
	if err != nil {
		return 0, err
	}
	return float64(part(u)) / float64(time.Millisecond), nil
}

func size(path string) (float64, error) {
	info, err := os.Stat(path)
	if err != nil {
		return 0, err
	}
	return float64(info.Size()) / 1e6, nil
}

// memory returns the peak of the memory of a start, MiB.
func memory(path string) (float64, error) {
	u, err := usage(path, "version")
	if err != nil {
		return 0, err
	}
	// A process begins with the peak of its parent: the gate's.
	var own syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &own); err != nil {
		return 0, err
	}
	if u.Maxrss <= own.Maxrss {
		return 0, fmt.Errorf("the gate itself uses %d KiB: shaper version cannot be seen below that",
			own.Maxrss)
	}
	return float64(u.Maxrss) / 1024, nil
}

// attach attaches a policy of one class and returns the CPU time, ms. Detaching is not counted.
func attach(path string) (float64, error) {
	ms, err := cpu(allTime, path, "run", device, "--background", "--meter",
		"token-bucket rate=50mbit burst=1MiB")
	if err != nil {
		return 0, err
	}
	_, err = usage(path, "detach", device)
	return ms, err
}

// device is the interface of the gate's network, made by .ci/gate.
const device = "v0"

// prepare chooses the number of runs in a sample, so that a sample takes at least a given time.
func (f *figure) prepare(path string, atLeast time.Duration) error {
	f.runs = 1
	if f.exact {
		return nil
	}
	if f.peak {
		f.runs = 20
		return nil
	}
	first, err := f.once(path) // reads the files into memory
	if err == nil {
		first, err = f.once(path)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", f.name, err)
	}
	if first <= 0 {
		return errors.New(f.name + ": no CPU time")
	}
	f.runs = int(math.Ceil(float64(atLeast.Milliseconds()) / first))
	return nil
}

// sample returns the cost of a run: the mean of many.
func (f *figure) sample(path string) (float64, error) {
	all := make([]float64, f.runs)
	sum := 0.0
	for i := range all {
		var err error
		if all[i], err = f.once(path); err != nil {
			return 0, err
		}
		sum += all[i]
	}
	if f.peak {
		return median(all), nil
	}
	return sum / float64(f.runs), nil
}

func median(list []float64) float64 {
	list = slices.Sorted(slices.Values(list))
	n := len(list)
	return (list[(n-1)/2] + list[n/2]) / 2
}

// ratio compares samples of two versions taken in pairs.
type ratio struct {
	base, here  float64 // the least samples
	figure      float64 // the decisive ratio
	least, most float64 // of all pairs
}

// ratioOf returns the smaller one of the median of the pairs' ratios, and of the ratio of the least
// samples. Other load only adds to CPU time. What makes one of the two larger is not always the
// program; a slower program makes both larger.
func ratioOf(base, here []float64) ratio {
	all := make([]float64, len(base))
	for i := range base {
		all[i] = here[i] / base[i]
	}
	r := ratio{base: slices.Min(base), here: slices.Min(here), least: slices.Min(all), most: slices.Max(all)}
	r.figure = min(median(all), r.here/r.base)
	return r
}

// within reports whether samples are so far within a limit that more would not change the verdict:
// at least three pairs, whose decisive ratio is 3 points below the limit. The samples of a version
// compared with itself usually are. Those of a version 6 % slower would be only if they were wrong
// by 4 %.
func within(base, here []float64, limit float64) bool {
	return len(base) >= 3 && ratioOf(base, here).figure <= limit-0.03
}
