package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
)

var passing = []string{"--meter", "token-bucket rate=10mbit burst=64KiB", "--red", "pass"}

// largeCapture returns a capture that is larger than the buffer of a pipe.
func largeCapture(t *testing.T) string {
	t.Helper()
	raw, err := os.ReadFile("../../testdata/pcaps/bursts.pcap")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "large.pcap")
	if err := os.WriteFile(path, append(bytes.Clone(raw), bytes.Repeat(raw[24:], 15)...), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// directoryNames returns the names in a directory.
func directoryNames(t *testing.T, dir string) (names []string) {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		names = append(names, e.Name())
	}
	return names
}

// startStuckReplay starts a replay that writes to a pipe that is not read, and waits until it has created
// its temporary files.
func startStuckReplay(t *testing.T) (cmd *exec.Cmd, out io.ReadCloser, dir string, stderr *bytes.Buffer) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	t.Cleanup(cancel)
	dir, stderr = t.TempDir(), &bytes.Buffer{}
	cmd = exec.CommandContext(ctx, "shaper", append([]string{
		"replay", largeCapture(t), "-o", "-", "--decisions", "rows.csv", "--report", "report.html",
	}, passing...)...)
	cmd.Dir, cmd.Stderr = dir, stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for len(directoryNames(t, dir)) < 2 && ctx.Err() == nil {
		time.Sleep(time.Millisecond)
	}
	// The first byte of output is written after all files are created.
	if _, err := io.ReadFull(out, make([]byte, 1)); err != nil {
		t.Fatal(err, stderr)
	}
	return cmd, out, dir, stderr
}

// diedBy returns the signal that ended a process, or 0.
func diedBy(err error) syscall.Signal {
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signaled() {
		return exit.Sys().(syscall.WaitStatus).Signal()
	}
	return 0
}

// TestClosedPipe closes the standard output before everything is written. The process must die
// by SIGPIPE without a message, and leave no file.
func TestClosedPipe(t *testing.T) {
	cmd, out, dir, stderr := startStuckReplay(t)
	out.Close()
	if err := cmd.Wait(); diedBy(err) != syscall.SIGPIPE {
		t.Errorf("%v, want death by SIGPIPE", err)
	}
	if stderr.Len() > 0 {
		t.Errorf("stderr: %s", stderr)
	}
	if left := directoryNames(t, dir); len(left) > 0 {
		t.Errorf("files left: %q", left)
	}
}

// TestKilledWhileWriting sends signals to a process that cannot write. SIGHUP ends it at once,
// other signals the second time.
func TestKilledWhileWriting(t *testing.T) {
	// otherwise, under nohup, the child would ignore it
	signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP)
	defer signal.Reset(syscall.SIGHUP)
	for _, sig := range []syscall.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGTERM} {
		t.Run(sig.String(), func(t *testing.T) {
			cmd, _, dir, stderr := startStuckReplay(t)
			ended := make(chan error, 1)
			go func() { ended <- cmd.Wait() }()
			if err := cmd.Process.Signal(sig); err != nil {
				t.Fatal(err)
			}
			var err error
			for waiting := true; waiting; {
				select {
				case err = <-ended:
					waiting = false
				case <-time.After(20 * time.Millisecond):
					if sig != syscall.SIGHUP {
						_ = cmd.Process.Signal(sig)
					}
				}
			}
			if diedBy(err) != sig {
				t.Errorf("%v, want death by the signal; stderr: %s", err, stderr)
			}
			if left := directoryNames(t, dir); len(left) > 0 {
				t.Errorf("files left: %q", left)
			}
		})
	}
}

// TestNohup checks that a process that is started with SIGHUP ignored keeps ignoring it.
func TestNohup(t *testing.T) {
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), "nohup",
		append([]string{"shaper", "replay", "-", "-o", "out.pcap"}, passing...)...)
	cmd.Dir = dir
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for len(directoryNames(t, dir)) == 0 {
		time.Sleep(time.Millisecond)
	}
	if err := cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile("../../testdata/pcaps/bursts.pcap")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := in.Write(raw); err != nil {
		t.Error(err)
	}
	in.Close()
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	if got := directoryNames(t, dir); fmt.Sprint(got) != "[out.pcap]" {
		t.Errorf("files %q, want out.pcap", got)
	}
}

// TestPlantedLinks puts links at predictable names of temporary files. No output may follow
// them.
func TestPlantedLinks(t *testing.T) {
	dir := t.TempDir()
	victim := filepath.Join(t.TempDir(), "victim")
	if err := os.WriteFile(victim, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(victim, filepath.Join(dir, fmt.Sprintf(".d.csv.%d", os.Getpid()))); err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(dir, "d.csv")
	mustRun(t,
		append([]string{"replay", "../../testdata/pcaps/bursts.pcap", "--decisions", out}, passing...)...)
	if text, err := os.ReadFile(victim); string(text) != "precious" {
		t.Errorf("a file elsewhere has %d bytes of output: %v", len(text), err)
	}
	if info, err := os.Lstat(out); err != nil || !info.Mode().IsRegular() {
		t.Errorf("the output is %v: %v", info, err)
	}
}

// TestForeignLinks checks that an output follows links of root and of this user, and no links
// of others.
func TestForeignLinks(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("giving files away needs root: run the tests as root")
	}
	for _, owner := range []int{0, 65534} {
		dir := t.TempDir()
		victim, link, own := filepath.Join(dir, "victim"), filepath.Join(dir, "link"),
			filepath.Join(dir, "own")
		err := errors.Join(os.WriteFile(victim, []byte("precious"), 0o600), os.Symlink("victim", link),
			os.Lchown(link, owner, owner), os.Symlink(link, own))
		if err != nil {
			t.Fatal(err)
		}
		for _, out := range []string{link, own} {
			var stderr bytes.Buffer
			code := run(append([]string{"replay", "../../testdata/pcaps/bursts.pcap", "--decisions", out},
				passing...), cli.Streams{Out: io.Discard, Err: &stderr})
			text, _ := os.ReadFile(victim)
			if owner == 0 && (code != cli.ExitDone || string(text) == "precious") {
				t.Errorf("%s: exit %d: %s", out, code, &stderr)
			}
			if owner != 0 &&
				(code != cli.ExitUsage || string(text) != "precious" || !strings.Contains(stderr.String(),
					"is a symbolic link of user 65534: use the name of its target")) {
				t.Errorf("%s: exit %d: %q; the file has %d bytes", out, code, &stderr, len(text))
			}
		}
	}
}

func mustRun(t *testing.T, args ...string) {
	t.Helper()
	var stderr bytes.Buffer
	if code := run(args, cli.Streams{Out: io.Discard, Err: &stderr}); code != cli.ExitDone {
		t.Fatalf("%q: exit %d: %s", args, code, &stderr)
	}
}

// TestLongNames writes files with the longest names that a directory allows.
func TestLongNames(t *testing.T) {
	dir := t.TempDir()
	for _, length := range []int{250, 255} {
		name := strings.Repeat("n", length-len(".csv")) + ".csv"
		mustRun(t, append(
			[]string{"replay", "../../testdata/pcaps/bursts.pcap", "--decisions", filepath.Join(dir, name)},
			passing...)...)
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			t.Error(err)
		}
	}
	if got := directoryNames(t, dir); len(got) != 2 {
		t.Errorf("%d files, want 2", len(got))
	}
}

// TestOwnerIsKept checks that replacing a file keeps its owner and its mode.
func TestOwnerIsKept(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("giving files away needs root: run the tests as root")
	}
	for _, mode := range []os.FileMode{0o600, 0o640, 0o666} {
		out := filepath.Join(t.TempDir(), "d.csv")
		if err := errors.Join(os.WriteFile(out, []byte("old"), 0o600), os.Chown(out, 1234, 4321),
			os.Chmod(out, mode)); err != nil {
			t.Fatal(err)
		}
		mustRun(t,
			append([]string{"replay", "../../testdata/pcaps/bursts.pcap", "--decisions", out}, passing...)...)
		wantOwner(t, out, 1234, 4321, mode)
	}
}

// TestOwnerThatCannotBeKept replaces a file whose owner and group cannot be kept. The new group
// must not get the permissions of the old one.
func TestOwnerThatCannotBeKept(t *testing.T) {
	if _, err := exec.LookPath("setpriv"); os.Geteuid() != 0 || err != nil {
		t.Skip("needs root and setpriv of util-linux")
	}
	for _, test := range []struct{ mode, want os.FileMode }{{0o660, 0o600}, {0o664, 0o644}, {0o606, 0o666}} {
		dir := t.TempDir()
		out := filepath.Join(dir, "d.csv")
		if err := errors.Join(os.WriteFile(out, []byte("old"), 0o600), os.Chown(out, 1234, 4321),
			os.Chmod(out, test.mode)); err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), "setpriv", append([]string{
			"--bounding-set=-chown", "shaper", "replay", largeCapture(t), "--decisions", out,
		}, passing...)...)
		if text, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, text)
		}
		wantOwner(t, out, os.Getuid(), os.Getgid(), test.want)
	}
}

func wantOwner(t *testing.T, path string, uid, gid int, mode os.FileMode) {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	stat := info.Sys().(*syscall.Stat_t)
	if int(stat.Uid) != uid || int(stat.Gid) != gid || info.Mode() != mode || info.Size() < 100 {
		t.Errorf("%d bytes of %d:%d, mode %v; want %d:%d, %v", info.Size(), stat.Uid, stat.Gid, info.Mode(),
			uid, gid, mode)
	}
}

// TestFullOutput checks that a command fails if its output is lost.
func TestFullOutput(t *testing.T) {
	capture := "../../testdata/pcaps/bursts.pcap"
	for _, args := range [][]string{
		nil,
		{"--help"},
		{"--version"},
		{"help", "replay"},
		{"version"},
		{"version", "--json"},
		{"completion", "bash"},
		append([]string{"replay", capture}, passing...),
		append([]string{"replay", capture, "--json"}, passing...),
		append([]string{"replay", capture, "-o", "-"}, passing...),
		append([]string{"replay", capture, "--decisions", "-"}, passing...),
		append([]string{"why", capture, "3"}, passing...),
		append([]string{"check"}, passing[:2]...),
		{"compare", capture, "--rate", "10mbit"},
	} {
		full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
		if err != nil {
			t.Skip(err)
		}
		var stderr bytes.Buffer
		code := run(args, cli.Streams{Out: full, Err: &stderr})
		text := stderr.String()
		if strings.HasPrefix(text, "shaper: warning: ") {
			_, text, _ = strings.Cut(text, "\n")
		}
		if code != cli.ExitFailed || !strings.Contains(text, "no space left on device") ||
			strings.Count(text, "\n") != 1 {
			t.Errorf("%q: exit %d: %q", args, code, text)
		}
		full.Close()
	}
}
