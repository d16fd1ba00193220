package main

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
)

// installUnit installs the unit, and a script in place of the command.
func installUnit(t *testing.T) (prefix, unit string) {
	t.Helper()
	if _, err := exec.LookPath("make"); err != nil {
		t.Skip("needs make")
	}
	dir := t.TempDir()
	for _, name := range []string{
		"Makefile", "LICENSE", "THIRD_PARTY", "CHANGELOG.md", "README.md", "docs/shaper@.service",
		"docs/shaper.service", "docs/etc/shaper.yaml", "testdata/pcaps/README.md", "bin/shaper",
	} {
		text := []byte("#!/bin/sh\ntest \"$1\" != man || { mkdir -p $2; echo >$2/shaper.1; }\n")
		if name != "bin/shaper" {
			var err error
			if text, err = os.ReadFile(filepath.Join("../..", name)); err != nil {
				t.Fatal(err)
			}
		}
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, text, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	prefix = filepath.Join(dir, "prefix")
	cmd := exec.Command("make", "install", "PREFIX="+prefix, "SYSCONFDIR="+filepath.Join(dir, "etc"))
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("make install: %v: %s", err, out)
	}
	return prefix, filepath.Join(prefix, "lib/systemd/system/shaper@.service")
}

// TestUnit checks that systemd accepts the unit, and that its commands are commands of shaper.
func TestUnit(t *testing.T) {
	prefix, unit := installUnit(t)
	text, err := os.ReadFile(unit)
	one := filepath.Join(filepath.Dir(unit), "shaper.service")
	more, oneErr := os.ReadFile(one)
	if err = errors.Join(err, oneErr); err != nil {
		t.Fatal(err)
	}
	text = append(text, more...)
	commands := map[string]int{}
	for line := range strings.Lines(string(text)) {
		_, command, ok := strings.Cut(strings.TrimSpace(line), "="+prefix+"/bin/shaper ")
		if !ok {
			continue
		}
		args := strings.Fields(strings.ReplaceAll(strings.ReplaceAll(command, "%i", "eth0"), "$OPTIONS", ""))
		cmd, rest, err := newRoot(cli.Streams{Out: io.Discard, Err: io.Discard}).Find(args)
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.ParseFlags(rest); err != nil {
			t.Errorf("%s: %v", line, err)
		}
		if err := cmd.ValidateArgs(cmd.Flags().Args()); err != nil {
			t.Errorf("%s: %v", line, err)
		}
		commands[cmd.Name()]++
	}
	if commands["run"] != 1 || commands["check"] != 1 || commands["serve"] != 2 || len(commands) != 3 {
		t.Errorf("commands %v: want run, check and serve", commands)
	}
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Skip("needs systemd-analyze to verify the unit: apt-get install systemd")
	}
	instance := filepath.Join(filepath.Dir(unit), "shaper@eth0.service")
	if err := os.Rename(unit, instance); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("systemd-analyze", "verify", "--man=no", instance, one).CombinedOutput()
	for line := range strings.Lines(string(out)) {
		if err != nil || strings.Contains(line, "shaper") { // not about other units of this machine
			t.Errorf("systemd-analyze verify: %v: %s", err, line)
		}
	}
}

// TestCheckUnprivileged checks that a service without privileges can check its policy before a
// reload, which fails if the policy is wrong.
func TestCheckUnprivileged(t *testing.T) {
	needRoot(t)
	dir, err := os.MkdirTemp("", "shaper-unit-test-") // readable for all users, unlike t.TempDir
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "eth0.yaml")
	for policy, want := range map[string]int{
		"classes: [{name: a}]": cli.ExitDone,
		// Causes only a warning: ARP and other control traffic is dropped.
		"classes: [{name: a, meter: {type: token-bucket, rate: 1mbit, burst: 100}}]": cli.ExitDone,
		"classes: [{name: a, meter: {type: token-bucket, rate: 1}}]":                 cli.ExitUsage,
		"classes: [{name: a},,": cli.ExitUsage,
	} {
		if err := os.WriteFile(path, []byte(policy), 0o644); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command("/proc/self/exe", "check", path) // TestMain runs shaper
		cmd.Args[0] = "shaper"
		cmd.Dir = "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		out, err := cmd.CombinedOutput()
		if got := cmd.ProcessState.ExitCode(); got != want {
			t.Errorf("check of %s: exit %d, want %d: %v: %s", policy, got, want, err, out)
		}
	}
}
