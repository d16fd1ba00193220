package livetest

import (
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"regexp"
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
		testState(t, p, "v0", "v0-both", func(flags ...string) *process {
			return p.runShaper(append(flags, "--both")...)
		}, func(address string) {
			p.near.Inject("v0", packetBetween("203.0.113.1", address))
		}, (*process).stopBySIGTERM)
		_, stderr := p.wantExit(2, "run", "v0", "--state", t.TempDir(), "--background", "--rate", "1mbit")
		if !strings.Contains(stderr, "--background leaves no process for") {
			t.Errorf("--background: %q", stderr)
		}
	})
	for name, away := range map[string]bool{
		"run, detached by another process": false, "run, interface away": true,
	} {
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
			}, func(address string) {
				p.near.Inject("v0", packetBetween("203.0.113.1", address))
			}, func(r *process) {
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
		}, func(address string) {
			p.near.Inject("t0", packetBetween("203.0.113.1", address))
		}, (*process).stopBySIGTERM)
	})
}

// testState sends 2 packets of 100 bytes to customer a before a restart and 5 after it, of which one
// passes. end ends the process before the restart.
func testState(
	t *testing.T, p *pair, name, files string, start func(flags ...string) *process,
	send func(address string), end func(*process),
) {
	t.Helper()
	tokens := name + "-egress.customers"
	policy, dir := writePolicy(t, statePolicy), filepath.Join(t.TempDir(), "state")
	rewriteFile(t, filepath.Join(filepath.Dir(policy), "customers.csv"),
		"customer,address,plan\na,192.0.2.1,once\nb,192.0.2.2,open\nc,192.0.2.3,once\n")
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
	for _, want := range []string{
		"its changes are not in force", "quotas begin anew",
		tokens + "\": written by another version or command, or damaged",
	} {
		r.err.awaitMatch(t, regexp.QuoteMeta(want))
	}
	r.stopBySIGTERM()
}

// TestLiveStateUnreadable starts a shaper with a file of changes that it cannot read: this is
// reported, and the next change does not destroy the file.
func TestLiveStateUnreadable(t *testing.T) {
	p := newPair(t)
	policy, dir := writePolicy(t, statePolicy), t.TempDir()
	rewriteFile(t, filepath.Join(filepath.Dir(policy), "customers.csv"),
		"customer,address,plan\na,192.0.2.1,once\n")
	path := filepath.Join(dir, "v0-both.changes")
	rewriteFile(t, path, "")
	if err := errors.Join(os.Chmod(dir, 0o755), os.Chown(path, 65534, 65534),
		os.Chmod(path, 0o600)); err != nil {
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
	policy, dir := writePolicy(t,
		strings.Replace(statePolicy, ", quota: {limit: 1kB, every: month, then: shut}", "", 1)), t.TempDir()
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	rewriteFile(t, filepath.Join(filepath.Dir(policy), "customers.csv"),
		"customer,address,plan\na,192.0.2.1,once\nb,192.0.2.2,once\n")
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

// TestLiveStateForeign starts shapers whose directory another user controls, or could replace. Nothing is
// attached, and no file of the directory is used.
func TestLiveStateForeign(t *testing.T) {
	skipInVM(t)
	p := newPair(t)
	before := p.deviceState()
	policy := writePolicy(t, statePolicy)
	rewriteFile(t, filepath.Join(filepath.Dir(policy), "customers.csv"),
		"customer,address,plan\na,192.0.2.1,free\n")
	line := `[{"kind":"customer","name":"a","off":true}]`
	changes := fmt.Sprintf("shaper changes 1\n%08x %s\n", crc32.ChecksumIEEE([]byte(line)), line)
	sticky := 0o777 | os.ModeSticky
	for name, c := range map[string]struct {
		above, mode os.FileMode
		owner       int
		link        bool
		want        string
	}{
		"of nobody, in a sticky directory": {sticky, 0o700, nobodyUser, false, `.*/state belongs to user 65534, who controls what is there: .*`},
		"of nobody":                        {0o755, 0o700, nobodyUser, false, `.*/state belongs to user 65534.*`},
		"in an open directory":             {0o777, 0o700, 0, false, `.*/above is writable by other users .*`},
		"open to a group":                  {0o755, 0o770, 0, false, `.*/state is writable by other users .*`},
		"open to all":                      {0o755, 0o777, 0, false, `.*/state is writable by other users .*`},
		"sticky":                           {0o755, sticky, 0, false, `.*/state is writable by other users .*`},
		"a link":                           {0o755, 0o700, 0, true, `.*/state is a symbolic link: give the directory itself, "real"`},
	} {
		t.Run(name, func(t *testing.T) {
			above := filepath.Join(t.TempDir(), "above")
			dir := filepath.Join(above, "state")
			real := dir
			if c.link {
				real = filepath.Join(above, "real")
			}
			if err := errors.Join(os.Mkdir(above, 0o700), os.Mkdir(real, 0o700)); err != nil {
				t.Fatal(err)
			}
			if c.link {
				if err := os.Symlink("real", dir); err != nil {
					t.Fatal(err)
				}
			}
			rewriteFile(t, filepath.Join(real, "v0-both.changes"), changes)
			if err := errors.Join(os.Chmod(real, c.mode), os.Chown(real, c.owner, -1),
				os.Chmod(above, c.above)); err != nil {
				t.Fatal(err)
			}
			p.wantError(2, "--state: "+c.want, "run", "v0", "--both", "--policy", policy, "--state", dir)
			p.wantState(before)
			if list, err := os.ReadDir(real); err != nil || len(list) != 1 {
				t.Errorf("the directory contains %v, %v", list, err)
			}
		})
	}
}

// TestLiveStateReplaced puts a link in the place of the directory while a shaper runs, and removes the
// directory: changes are kept in the directory of the start, and then in a new one.
func TestLiveStateReplaced(t *testing.T) {
	skipInVM(t)
	for _, plane := range []string{"run", "tap"} {
		t.Run(plane, func(t *testing.T) {
			policy, base := writePolicy(t, statePolicy), t.TempDir()
			rewriteFile(t, filepath.Join(filepath.Dir(policy), "customers.csv"),
				"customer,address,plan\na,192.0.2.1,free\nb,192.0.2.2,free\n")
			dir, moved, target := filepath.Join(base, "state"), filepath.Join(base, "moved"),
				filepath.Join(base, "target")
			var p *pair
			var r *process
			name, file := "v0", "v0-both.changes"
			if plane == "run" {
				p = newPair(t)
				r = p.runShaper("--both", "--policy", policy, "--state", dir)
			} else {
				p, name, file = newTAPPair(t), "t0", "t0.changes"
				r = p.startTap("--uplink", "v0", "--both", "--policy", policy, "--state", dir)
			}
			has := func(dir string, want ...string) {
				t.Helper()
				text, err := os.ReadFile(filepath.Join(dir, file))
				if err != nil {
					t.Fatal(err)
				}
				for _, customer := range want {
					if !strings.Contains(string(text), `"name":"`+customer+`"`) {
						t.Errorf("%s has no change of customer %s: %q", dir, customer, text)
					}
				}
			}
			p.wantExit(0, "set", name, "customer", "a", "off")
			has(dir, "a")
			if err := errors.Join(os.Rename(dir, moved), os.Mkdir(target, 0o700),
				os.Symlink(target, dir)); err != nil {
				t.Fatal(err)
			}
			p.wantExit(0, "set", name, "customer", "b", "off")
			has(moved, "a", "b")
			if list, err := os.ReadDir(target); err != nil || len(list) > 0 {
				t.Errorf("behind the link: %v, %v", list, err)
			}
			eventually(t, func() error { return os.RemoveAll(moved) }) // the shaper may write to it meanwhile
			if err := os.Remove(dir); err != nil {
				t.Fatal(err)
			}
			p.wantExit(0, "set", name, "customer", "b", "on")
			has(dir, "a", "b")
			r.stopBySIGTERM()
			for _, kind := range []string{".quotas", ".changes"} {
				if _, err := os.Stat(
					filepath.Join(dir, strings.TrimSuffix(file, ".changes")+kind)); err != nil {
					t.Error(err)
				}
			}
		})
	}
}
