package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
)

// TestInterrupted sends a signal to a process that reads a slow capture. The outputs must have
// the packets before the signal, and the exit code must be 1.
func TestInterrupted(t *testing.T) {
	raw, err := os.ReadFile("../../testdata/pcaps/bursts.pcap")
	if err != nil {
		t.Fatal(err)
	}
	const sent = 24 + 500*(16+64) + 30 // 500 packets and a part of one
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		t.Run(sig.String(), func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, "shaper", "replay", "-", "-o", "out.pcap", "--decisions",
				"rows.csv", "--json",
				"--meter", "token-bucket rate=10mbit burst=64KiB", "--red", "pass")
			cmd.Dir = dir
			in, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			var out, stderr bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &stderr
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			if _, err := in.Write(raw[:sent]); err != nil {
				t.Fatal(err)
			}
			awaitInputRead(t, cmd.Process.Pid)
			if err := cmd.Process.Signal(sig); err != nil {
				t.Fatal(err)
			}
			err = cmd.Wait()
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.ExitCode() != cli.ExitFailed {
				t.Errorf("%v, want exit code 1", err)
			}
			if last := lastLine(stderr.String()); !strings.HasPrefix(last, "shaper: ") ||
				!strings.Contains(last, "interrupted") {
				t.Errorf("stderr ends with %q", last)
			}
			if !strings.Contains(out.String(), `"packets":500,`) {
				t.Errorf("totals %s, want 500 packets", &out)
			}
			left, err := os.ReadFile(filepath.Join(dir, "out.pcap"))
			if err != nil {
				t.Fatal(err)
			}
			if n, err := countPackets(left); err != nil || n != 500 {
				t.Errorf("%d packets in the output, want 500: %v", n, err)
			}
			rows, err := os.ReadFile(filepath.Join(dir, "rows.csv"))
			if err != nil || bytes.Count(rows, []byte("\n")) != 501 {
				t.Errorf("%d rows of decisions, want 500 and a header: %v", bytes.Count(rows, []byte("\n")),
					err)
			}
		})
	}
}

// TestInterruptedBeforeTheHeader checks that there is no output, because an empty file is not
// a capture.
func TestInterruptedBeforeTheHeader(t *testing.T) {
	dir := t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "shaper", "replay", "-", "-o", "out.pcap", "--meter",
		"token-bucket rate=10mbit burst=64KiB")
	cmd.Dir = dir
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := in.Write([]byte{0xd4}); err != nil {
		t.Fatal(err)
	}
	for open := false; !open; { // until it has created its temporary file
		entries, err := os.ReadDir(dir)
		if err != nil || ctx.Err() != nil {
			t.Fatal(err, ctx.Err())
		}
		open = len(entries) > 0
		time.Sleep(5 * time.Millisecond)
	}
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	var exit *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &exit) || exit.ExitCode() != cli.ExitFailed {
		t.Errorf("%v, want exit code 1", err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// awaitInputRead waits until a process has read all of its input so far.
func awaitInputRead(t *testing.T, pid int) {
	t.Helper()
	idle, before := 0, ""
	for deadline := time.Now().Add(5 * time.Minute); time.Now().Before(deadline); time.Sleep(
		5 * time.Millisecond) {
		info, err := os.ReadFile(fmt.Sprintf("/proc/%d/io", pid))
		if err != nil {
			t.Skipf("needs /proc to see what a process has read: %v", err)
		}
		// rchar counts the bytes read from the pipe, and a few at the start.
		var rchar int64
		if fmt.Sscanf(string(info), "rchar: %d", &rchar); rchar <= 24+500*(16+64) {
			continue
		}
		// It has processed what it read if its threads sleep and use no CPU for a while.
		threads, asleep := threadsOf(t, pid)
		if idle++; !asleep || threads != before {
			idle, before = 0, threads
		}
		if idle == 30 {
			return
		}
	}
	t.Fatal("the process reads nothing")
}

// threadsOf returns the threads of a process with their CPU times, and whether all of them sleep.
func threadsOf(t *testing.T, pid int) (threads string, asleep bool) {
	t.Helper()
	stats, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil || len(stats) == 0 {
		t.Fatalf("the process has no threads: %v", err)
	}
	asleep = true
	for _, path := range stats {
		text, err := os.ReadFile(path)
		if err != nil {
			return "", false // the thread has ended
		}
		_, rest, _ := strings.Cut(string(text), ") ")
		f := strings.Fields(rest)
		threads += fmt.Sprintln(path, f[11], f[12]) // utime, stime
		asleep = asleep && f[0] == "S"
	}
	return threads, asleep
}

func lastLine(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return lines[len(lines)-1]
}

// TestFullDisk fills a disk while the output is written. There must be an error, exit code 1,
// and neither an output nor a temporary file.
func TestFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting a small tmpfs needs root: run the tests as root")
	}
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Skipf("no tmpfs can be mounted here, run the tests where CAP_SYS_ADMIN is given: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	in := filepath.Join(t.TempDir(), "large.pcap")
	raw, err := os.ReadFile("../../testdata/pcaps/bursts.pcap")
	if err != nil {
		t.Fatal(err)
	}
	large := append(bytes.Clone(raw), bytes.Repeat(raw[24:], 15)...)
	if err := os.WriteFile(in, large, 0o644); err != nil {
		t.Fatal(err)
	}
	kept := []byte("what was there before")
	for _, flags := range [][]string{
		{"-o", "out.pcap"},
		{"--decisions", "out.pcap"},
		{"-o", "out.pcap", "--decisions", "rows.jsonl", "--report", "report.html"},
		{"-o", "out.pcap", "--decisions", "-"},
	} {
		for _, before := range [][]byte{nil, kept} {
			args := []string{"replay", in, "--meter", "token-bucket rate=10mbit burst=64KiB", "--red", "pass"}
			for i := range flags {
				if i%2 == 1 && flags[i] != "-" {
					args = append(args, flags[i-1], filepath.Join(dir, flags[i]))
				} else if i%2 == 1 {
					args = append(args, flags[i-1], flags[i])
				}
			}
			out := filepath.Join(dir, "out.pcap")
			if before != nil {
				if err := os.WriteFile(out, before, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			var stderr bytes.Buffer
			if code := run(args, cli.Streams{Out: io.Discard, Err: &stderr}); code != cli.ExitFailed {
				t.Errorf("%q: exit %d, want 1", flags, code)
			}
			if s := lastLine(stderr.String()); !strings.Contains(s, "no space left on device") ||
				!strings.Contains(s, "out.pcap") {
				t.Errorf("%q: %q", flags, s)
			}
			entries, err := os.ReadDir(dir)
			if err != nil {
				t.Fatal(err)
			}
			if text, _ := os.ReadFile(out); !bytes.Equal(text, before) || before == nil &&
				len(entries) != 0 || len(entries) > 1 {
				t.Errorf("%q: files %v, %d bytes in out.pcap, want what was there before", flags, entries,
					len(text))
			}
			os.Remove(out)
		}
	}
}
