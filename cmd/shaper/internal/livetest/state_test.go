package livetest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const statePolicy = `classes:
  - {name: customers, per: customer, meter: plan}
customers: {file: customers.csv}
plans:
  once: {type: token-bucket, rate: 1B/1000s, burst: 350B}
  open: {type: token-bucket, rate: 1gbit, burst: 1MB, quota: {limit: 1kB, every: month, then: shut}}
  shut: {type: token-bucket, rate: 1B/1000s, burst: 100B}
  free: {type: token-bucket, rate: 1gbit, burst: 1MB}
`

// TestLiveState ends a shaper and starts it again with the same --state: changes, quotas used and
// tokens of customers continue. Damaged files are reported and change nothing.
func TestLiveState(t *testing.T) {
	skipInVM(t)
	t.Run("run", func(t *testing.T) {
		p := newPair(t)
		testState(t, p, "v0", "v0-both", func(flags ...string) *process { return p.runShaper(append(flags, "--both")...) }, func(address string) {
			p.near.Inject("v0", packetBetween("203.0.113.1", address))
		}, (*process).stopBySIGTERM)
		_, stderr := p.wantExit(2, "run", "v0", "--state", t.TempDir(), "--background", "--rate", "1mbit")
		if !strings.Contains(stderr, "--background leaves no process for") {
			t.Errorf("--background: %q", stderr)
		}
		open := t.TempDir()
		if err := os.Chmod(open, 0o777); err != nil {
			t.Fatal(err)
		}
		_, stderr = p.wantExit(2, "run", "v0", "--state", open, "--rate", "1mbit")
		if !strings.Contains(stderr, "not a directory that only its owner can write") {
			t.Errorf("open directory: %q", stderr)
		}
	})
	for name, away := range map[string]bool{"run, detached by another process": false, "run, interface away": true} {
		t.Run(name, func(t *testing.T) {
			p := newPair(t)
			var waiting *process
			testState(t, p, "v0", "v0-both", func(flags ...string) *process {
				if r := waiting; r != nil {
					waiting = nil
					p.near.Veth(p.far)
					r.out.awaitMatch(t, "(?s)(attached by.*){4}")
					return r
				}
				r := p.runShaper(append(flags, "--both")...)
				eventually(t, func() error { // the next write is a minute later
					_, err := os.Stat(filepath.Join(flags[3], "v0-egress.customers"))
					return err
				})
				return r
			}, func(address string) { p.near.Inject("v0", packetBetween("203.0.113.1", address)) }, func(r *process) {
				if away {
					waiting = r
					p.near.Delete("v0")
					r.err.awaitMatch(t, "v0 is gone")
					return
				}
				p.wantExit(0, "detach", "v0")
				r.wantExit(0)
			})
		})
	}
	t.Run("tap", func(t *testing.T) {
		p := newTAPPair(t)
		testState(t, p, "t0", "t0", func(flags ...string) *process {
			return p.startTap(append(flags, "--uplink", "v0", "--both")...)
		}, func(address string) { p.near.Inject("t0", packetBetween("203.0.113.1", address)) }, (*process).stopBySIGTERM)
	})
}

// testState sends 2 packets of 100 bytes to customer a before a restart and 5 after it, of which one
// passes. end ends the process before the restart.
func testState(t *testing.T, p *pair, name, files string, start func(flags ...string) *process, send func(address string), end func(*process)) {
	t.Helper()
	tokens := name + "-egress.customers"
	policy, dir := writePolicy(t, statePolicy), filepath.Join(t.TempDir(), "state")
	rewriteFile(t, filepath.Join(filepath.Dir(policy), "customers.csv"), "customer,address,plan\na,192.0.2.1,once\nb,192.0.2.2,open\nc,192.0.2.3,once\n")
	r := start("--policy", policy, "--state", dir)
	row := func(customer string, check func(customerRow) bool) {
		t.Helper()
		eventually(t, func() error {
			if got := p.customers("--direction", "egress")[customer]; !check(got) {
				return fmt.Errorf("customer %s: %+v", customer, got)
			}
			return nil
		})
	}
	for range 2 {
		send("192.0.2.1")
	}
	for range 6 {
		send("192.0.2.2")
	}
	p.wantExit(0, "set", name, "customer", "c", "plan=free")
	row("a", func(c customerRow) bool { return c.Packets == 2 })
	row("b", func(c customerRow) bool { return c.Packets == 6 })
	end(r)

	r = start("--policy", policy, "--state", dir)
	row("c", func(c customerRow) bool { return c.Plan == "free" })
	row("b", func(c customerRow) bool { return c.Plan == "open" && c.Packets == 0 })
	for range 5 {
		send("192.0.2.1")
		send("192.0.2.2")
	}
	row("b", func(c customerRow) bool { return c.Plan == "shut" }) // 600 and 500 bytes
	row("a", func(c customerRow) bool {
		return c.Packets == 5 && c.Green.Packets == 1 && c.Dropped.Packets == 4
	})
	r.stopBySIGTERM()

	for _, file := range []string{tokens, files + ".changes", files + ".quotas"} {
		path := filepath.Join(dir, file)
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		text[len(text)/2] ^= 1
		rewriteFile(t, path, string(text))
	}
	r = start("--policy", policy, "--state", dir)
	row("c", func(c customerRow) bool { return c.Plan == "once" })
	row("b", func(c customerRow) bool { return c.Plan == "open" })
	row("a", func(c customerRow) bool { return c.Packets == 0 })
	for _, want := range []string{"its changes are not in force", "quotas begin anew", tokens + "\": written by another version or command, or damaged"} {
		if stderr := r.err.String(); !strings.Contains(stderr, want) {
			t.Errorf("stderr %q: want %q", stderr, want)
		}
	}
	r.stopBySIGTERM()
}

// TestLiveStateUnreadable starts a shaper with a file of changes that it cannot read: this is
// reported, and the next change does not destroy the file.
func TestLiveStateUnreadable(t *testing.T) {
	p := newPair(t)
	policy, dir := writePolicy(t, statePolicy), t.TempDir()
	rewriteFile(t, filepath.Join(filepath.Dir(policy), "customers.csv"), "customer,address,plan\na,192.0.2.1,once\n")
	path := filepath.Join(dir, "v0-both.changes")
	rewriteFile(t, path, "")
	if err := errors.Join(os.Chmod(dir, 0o755), os.Chown(path, 65534, 65534), os.Chmod(path, 0o600)); err != nil {
		t.Fatal(err)
	}
	r := p.runShaper("--both", "--policy", policy, "--state", dir)
	r.err.awaitMatch(t, "permission denied: its changes are not in force")
	p.wantExit(0, "set", "v0", "customer", "a", "off")
	if _, err := os.Stat(path + ".damaged"); err != nil {
		t.Error(err)
	}
	r.stopBySIGTERM()
}

// TestLiveStateTakeOver takes over a pinned shaper, with --state and then without: changes stay in
// force although they are kept in another file.
func TestLiveStateTakeOver(t *testing.T) {
	p := newPair(t)
	policy, dir := writePolicy(t, strings.Replace(statePolicy, ", quota: {limit: 1kB, every: month, then: shut}", "", 1)), t.TempDir()
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	rewriteFile(t, filepath.Join(filepath.Dir(policy), "customers.csv"), "customer,address,plan\na,192.0.2.1,once\nb,192.0.2.2,once\n")
	want := func(plans ...string) {
		t.Helper()
		for i, name := range []string{"a", "b"} {
			if got := p.customers("--direction", "egress")[name].Plan; got != plans[i] {
				t.Errorf("customer %s has plan %q, want %q", name, got, plans[i])
			}
		}
	}
	p.wantExit(0, "run", "v0", "--both", "--policy", policy, "--background")
	p.wantExit(0, "set", "v0", "customer", "a", "plan=free")
	r := p.runShaper("--both", "--policy", policy, "--pin", "--state", dir)
	want("free", "once")
	p.wantExit(0, "set", "v0", "customer", "b", "plan=shut")
	r.stopBySIGTERM()
	r = p.runShaper("--both", "--policy", policy)
	want("free", "shut")
	r.stopBySIGTERM()
}
