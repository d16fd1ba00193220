package main

import (
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
	"golang.org/x/sys/unix"
)

// commandFigures measures the time of commands from start to exit, with few and many classes.
func commandFigures(get func() (*wire, error)) (out []figure) {
	for _, row := range []struct {
		command  string
		bar, aim float64 // ms, with one class
	}{
		{"run", 100, 40},
		{"reload", 100, 40},
		{"stats", 40, 20},
		{"status", math.Inf(1), noAim},
		{"detach", math.Inf(1), noAim},
	} {
		figureOf := func(classes int, bar, aim float64) figure {
			return amount(fmt.Sprintf("kernel: shaper %s, %s", row.command, say.Count(classes, "class")), bar,
				aim, " ms",
				onSource(get, func(w *wire) (float64, error) { return w.commandTime(row.command, classes) }),
				nil)
		}
		out = append(out, figureOf(1, row.bar, row.aim), figureOf(kernel.MaxClasses, math.Inf(1), noAim))
	}
	large := func(measure func(name string, args ...string) (float64, error), command string) side {
		return onSource(get, func(w *wire) (float64, error) {
			path := filepath.Join(w.dir, "large.yaml")
			if err := os.WriteFile(path, []byte(policyOfMeters(compiled.MaxClasses)), 0o600); err != nil {
				return 0, err
			}
			one := filepath.Join(w.dir, "one.pcap")
			if err := writeCapture(one, 1, frames()); err != nil {
				return 0, err
			}
			args := map[string][]string{"check": {"check", path}, "replay": {"replay", one, "--policy", path}}
			return measure(w.shaper, args[command]...)
		})
	}
	return append(out,
		amount("a policy of 4,096 classes: shaper check", 400, 90, " ms", large(duration, "check"), nil),
		amount("a policy of 4,096 classes: shaper replay of one packet", 300, 60, " ms",
			large(duration, "replay"), nil),
		amount("a policy of 4,096 classes: memory of shaper check", 100, 40, " MiB", large(memory, "check"),
			nil))
}

// duration runs a program and returns the time, in ms.
func duration(name string, args ...string) (float64, error) {
	start := time.Now()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		return 0, fmt.Errorf("%s: %w: %s", name, err, out)
	}
	return float64(time.Since(start)) / 1e6, nil
}

// policyOfMeters is a policy of n classes, each with a meter.
func policyOfMeters(n int) string {
	const meter = "meter: {type: trtcm, cir: 10mbit, cbs: 64KiB, pir: 20mbit, pbs: 64KiB}, red: drop}\n"
	b := &strings.Builder{}
	b.WriteString("classes:\n")
	for i := range n - 1 {
		fmt.Fprintf(b, "  - {name: c%d, match: {proto: udp, dst: 10.%d.%d.0/24, dport: %d}, %s", i, i>>8,
			i&255, 1000+i, meter)
	}
	b.WriteString("  - {name: rest, " + meter)
	return b.String()
}

// commandTime attaches a policy by shaper run --background, uses each command once, and returns
// the time of one, in ms.
func (w *wire) commandTime(command string, classes int) (ms float64, err error) {
	path := filepath.Join(w.dir, "policy.yaml")
	if err := os.WriteFile(path, []byte(policyOfMeters(classes)), 0o600); err != nil {
		return 0, err
	}
	err = withBpffs(func() error {
		for _, args := range [][]string{
			{"run", "v0", "--policy", path, "--background"},
			{"stats"},
			{"status"},
			{"reload", "v0", "--policy", path},
			{"detach", "v0"},
		} {
			if args[0] == "stats" {
				time.Sleep(2 * kernel.MinReadingAge) // from here on it does not wait
			}
			start := time.Now()
			_, err := runIn(w.a, append([]string{w.shaper}, args...)...)
			if err != nil {
				_, e := runIn(w.a, w.shaper, "detach", "v0")
				return errors.Join(err, e)
			}
			if args[0] == command {
				ms = float64(time.Since(start)) / 1e6
			}
		}
		return nil
	})
	return ms, err
}

// withBpffs calls f in a thread with a bpffs, which it mounts if the machine lacks one. Without
// one, shaper run --background attaches a tc filter.
func withBpffs(f func() error) error {
	const path = "/sys/fs/bpf"
	var s unix.Statfs_t
	if unix.Statfs(path, &s) == nil && s.Type == unix.BPF_FS_MAGIC {
		return f()
	}
	done := make(chan error)
	go func() {
		// never unlocked: the thread ends with the goroutine, and the mount with the thread
		runtime.LockOSThread()
		err := unix.Unshare(unix.CLONE_NEWNS | unix.CLONE_FS)
		if err == nil {
			err = unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
		}
		if err == nil {
			err = unix.Mount("bpf", path, "bpf", 0, "")
		}
		if err == nil {
			err = f()
		}
		done <- err
	}()
	return <-done
}
