package livetest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/changes"
)

// inForceJSON is what status --json and stats --json print of changes.
type inForceJSON struct {
	Changes []struct {
		Kind, Name, By, User, State string
		Parameters                  map[string]string
		Since                       time.Time
		InPolicy                    struct{ Parameters map[string]string } `json:"in_policy"`
	}
	Problem string `json:"change_problem"`
}

func (p *pair) inForce(command string) inForceJSON {
	p.t.Helper()
	text, _ := p.wantExit(0, command, "v0", "--json")
	return decodeJSON[inForceJSON](p.t, text)
}

// htbRate returns the rate at which HTB sends from v0.
func (p *pair) htbRate() string {
	p.t.Helper()
	var out []byte
	var err error
	p.near.Do(func() { out, err = exec.Command("tc", "class", "show", "dev", "v0").Output() })
	if err != nil {
		p.t.Fatal(err)
	}
	for _, rate := range regexp.MustCompile(` rate (\S+) `).FindAllStringSubmatch(string(out), -1) {
		if rate[1] != "8bit" { // of the leaves, which borrow
			return rate[1]
		}
	}
	p.t.Fatalf("tc shows no class of v0 with a rate: %s", out)
	return ""
}

const shownPolicy = "queues: {all: {rate: %s, limit: 100ms, fair: false}}\nclasses: [{name: all, green: {queue: all}}]\n"

// TestLiveChangesShown checks that status, stats, reloads and the log of the process show a change of a
// queue, which rate wins when the policy is reloaded, and that reload --rate ends the change.
func TestLiveChangesShown(t *testing.T) {
	for _, kind := range []string{"process", "background"} {
		t.Run(kind, func(t *testing.T) {
			skipInVM(t)
			p := newQueuePair(t)
			path := writePolicy(t, fmt.Sprintf(shownPolicy, "50mbit"))
			args := []string{"--policy", path, "--pacer", "htb"}
			log := &output{}
			if kind == "process" {
				log = &p.runShaper(args...).err
			} else {
				p.wantExit(0, append([]string{"run", "v0", "--background"}, args...)...)
			}
			wantLog := func(pattern string) {
				t.Helper()
				if kind == "process" {
					log.awaitMatch(t, pattern)
				}
			}
			if got := p.inForce("status"); got.Changes == nil || len(got.Changes) != 0 {
				t.Errorf("before a change: %+v, want an empty list", got)
			}
			before := time.Now().Add(-time.Second)
			p.wantExit(0, "set", "v0", "queue", "all", "rate=5mbit")
			if got := p.htbRate(); got != "5Mbit" {
				t.Errorf("the rate is %s", got)
			}
			wantLog(`v0: queue "all": rate 5mbit by .+ with shaper set`)
			for _, command := range []string{"status", "stats"} {
				text, _ := p.wantExit(0, command, "v0")
				if !regexp.MustCompile(`(?m)^  changed  queue "all": rate 5mbit, since \S+ \S+ by \S.* with shaper set\s+\(policy: rate 50mbit\)$`).MatchString(strings.ReplaceAll(text, "\n           ", " ")) {
					t.Errorf("%s prints\n%s", command, text)
				}
				got := p.inForce(command)
				if len(got.Changes) != 1 || got.Problem != "" {
					t.Fatalf("%s --json: %+v", command, got)
				}
				c := got.Changes[0]
				if c.Kind != "queue" || c.Name != "all" || c.Parameters["rate"] != "5mbit" ||
					c.InPolicy.Parameters["rate"] != "50mbit" ||
					c.By != "shaper set" || c.User == "" || c.State != "" || c.Since.Before(before) ||
					c.Since.After(time.Now()) {
					t.Errorf("%s --json: %+v", command, c)
				}
			}

			rewriteFile(t, path, fmt.Sprintf(shownPolicy, "80mbit"))
			_, stderr := p.wantExit(0, "reload", "v0")
			if !regexp.MustCompile(`shaper: v0 egress: queue "all": rate 5mbit, .*\(policy: rate 80mbit\); to end it: shaper set v0 queue all reset\n`).MatchString(stderr) {
				t.Errorf("reload prints %q", stderr)
			}
			wantLog(`v0 egress: reloaded by .+ with shaper reload, policy `)
			stdout, _ := p.wantExit(0, "reload", "v0", "--json")
			if got := decodeJSON[inForceJSON](t, stdout); len(got.Changes) != 1 ||
				got.Changes[0].InPolicy.Parameters["rate"] != "80mbit" {
				t.Errorf("reload --json: %s", stdout)
			}
			if got := p.htbRate(); got != "5Mbit" {
				t.Errorf("after a reload the rate is %s", got)
			}

			_, stderr = p.wantExit(0, "reload", "v0", "--rate", "20mbit")
			if strings.Contains(stderr, "to end it") {
				t.Errorf("reload --rate prints %q", stderr)
			}
			if got := p.htbRate(); got != "20Mbit" {
				t.Errorf("after reload --rate the rate is %s", got)
			}
			p.wantChanges("v0")
			if got := p.inForce("status"); len(got.Changes) != 0 {
				t.Errorf("after reload --rate: %+v", got)
			}
			p.wantExit(0, "detach", "v0")
			wantLog(`v0 egress: detached by .+ with shaper detach`)
		})
	}
}

// TestLiveInterruptedChange checks that a change whose process was killed while it made it is shown as
// such, until a further change, or a reload, puts it into force.
func TestLiveInterruptedChange(t *testing.T) {
	skipInVM(t)
	p := newQueuePair(t)
	path := writePolicy(t, fmt.Sprintf(shownPolicy, "50mbit"))
	p.wantExit(0, "run", "v0", "--background", "--policy", path, "--pacer", "htb")
	for _, next := range [][]string{{"reload", "v0"}, {"set", "v0", "queue", "all", "rate=6mbit"}} {
		p.wantExit(0, "set", "v0", "queue", "all", "rate=7mbit")
		p.wantExit(0, "set", "v0", "queue", "all", "rate=5mbit")
		files := slices.DeleteFunc(p.changeFiles(),
			func(path string) bool { return strings.HasSuffix(path, ".lock") })
		if len(files) != 1 {
			t.Fatalf("files of changes: %q", files)
		}
		text, err := os.ReadFile(files[0])
		if err != nil {
			t.Fatal(err)
		}
		cut, ok := strings.CutSuffix(string(text), "done\n")
		if !ok {
			t.Fatalf("the file is %q", text)
		}
		rewriteFile(t, files[0], cut)
		if got := p.inForce("status").Changes; len(got) != 1 ||
			got[0].State != "interrupted, perhaps not in force" {
			t.Errorf("status lists %+v", got)
		}
		p.wantChanges("v0", `queue "all": rate 5mbit: interrupted, perhaps not in force`)
		p.wantExit(0, next...)
		if got := p.inForce("status").Changes; len(got) != 1 || got[0].State != "" ||
			got[0].Parameters["rate"]+"," != strings.ReplaceAll(p.htbRate(), "M", "m")+"," {
			t.Errorf("after %v: %+v, the rate is %s", next, got, p.htbRate())
		}
		p.wantExit(0, "set", "v0", "queue", "all", "reset")
	}
	p.wantExit(0, "detach", "v0")
}

// brokenState makes a directory of state unusable, and usable again.
var brokenState = []struct {
	name  string
	spoil func(t *testing.T, dir string) (repair func())
}{
	{"full", func(t *testing.T, dir string) func() {
		removeChanges(t, dir) // its last page has room
		path := filepath.Join(dir, "ballast")
		file, err := os.Create(path)
		for b := make([]byte, 4096); err == nil; {
			_, err = file.Write(b)
		}
		if !errors.Is(err, unix.ENOSPC) {
			t.Fatal(err)
		}
		file.Close()
		return func() {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
		}
	}},
	{"read-only", func(t *testing.T, dir string) func() {
		remount := func(flags uintptr) {
			t.Helper()
			if err := unix.Mount("", dir, "", unix.MS_REMOUNT|flags, ""); err != nil {
				t.Fatal(err)
			}
		}
		remount(unix.MS_RDONLY)
		return func() { remount(0) }
	}},
	{"locked", func(t *testing.T, dir string) func() {
		files, err := filepath.Glob(filepath.Join(dir, "*.changes"))
		if err != nil || len(files) != 1 {
			t.Fatalf("files of changes: %q, %v", files, err)
		}
		lock, err := changes.Lock(files[0])
		if err != nil {
			t.Fatal(err)
		}
		return func() { lock.Close() }
	}},
}

// removeChanges removes the file of changes in a directory of state.
func removeChanges(t *testing.T, dir string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.changes"))
	if err != nil || len(files) != 1 {
		t.Fatalf("files of changes: %q, %v", files, err)
	}
	if err := os.Remove(files[0]); err != nil {
		t.Fatal(err)
	}
}

// TestLiveUnkept checks that changes end, and quotas apply, while the directory of state cannot be used,
// that status says so, and that the state is complete when it can be used again.
func TestLiveUnkept(t *testing.T) {
	skipInVM(t)
	for _, broken := range brokenState {
		for _, command := range []string{"run", "tap"} {
			t.Run(broken.name+" "+command, func(t *testing.T) {
				p, name := newTAPPair(t), "v0"
				dir := t.TempDir()
				if err := unix.Mount("state", dir, "tmpfs", 0, "size=64k,mode=700"); err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
				policy := writePolicy(t, statePolicy)
				rewriteFile(t, filepath.Join(filepath.Dir(policy), "customers.csv"),
					"customer,address,plan\nends,192.0.2.1,free\nquota,192.0.2.2,open\n")
				args := []string{"--policy", policy, "--state", dir}
				if command == "run" {
					p.runShaper(args...)
				} else {
					name = "t0"
					p.startTap(append(args, "--uplink", "v0", "--direction", "egress")...)
				}
				send := func(address string) { p.near.Inject(name, packetBetween("203.0.113.1", address)) }
				passes := func(customer, address string, want bool) {
					t.Helper()
					eventually(t, func() error {
						before := p.customers()[customer]
						send(address)
						for end := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) {
							now := p.customers()[customer]
							if now.Packets == before.Packets && time.Now().Before(end) {
								continue // not yet counted
							}
							if passed := now.Packets > before.Packets &&
								now.Dropped.Packets == before.Dropped.Packets; passed != want {
								return fmt.Errorf("customer %s: a packet passed: %t, want %t: %+v, then %+v",
									customer, passed, want, before, now)
							}
							return nil
						}
					})
				}
				status := func() inForceJSON {
					t.Helper()
					text, _ := p.wantExit(0, "status", name, "--json")
					return decodeJSON[inForceJSON](t, text)
				}
				p.wantExit(0, "set", name, "customer", "ends", "off", "--for", "3s")
				repair := broken.spoil(t, dir)
				for range 20 {
					send("192.0.2.2") // more than its quota
				}
				passes("quota", "192.0.2.2", false)
				passes("ends", "192.0.2.1", true)
				text, _ := p.wantExit(0, "set", name)
				if strings.Contains(text, `"ends"`) ||
					!strings.Contains(text, `customer "quota": plan shut`) {
					t.Errorf("shaper set lists %q", text)
				}
				eventually(t, func() error {
					if got := status(); !strings.Contains(got.Problem, "in force, but not kept: ") {
						return fmt.Errorf("status reports the problem %q", got.Problem)
					}
					return nil
				})
				repair()
				eventually(t, func() error {
					if got := status(); got.Problem != "" {
						return fmt.Errorf("status still reports the problem %q", got.Problem)
					}
					return nil
				})
				files, err := filepath.Glob(filepath.Join(dir, "*.changes"))
				if err != nil || len(files) != 1 {
					t.Fatalf("files of changes: %q, %v", files, err)
				}
				book, interrupted, err := changes.Read(files[0])
				if err != nil || len(interrupted) > 0 || len(book) != 1 ||
					book.Plan(changes.Target{Kind: changes.Customer, Name: "quota"},
						changes.ByQuota) != "shut" {
					t.Errorf("the file has %v, interrupted %v, %v", book, interrupted, err)
				}
			})
		}
	}
}

// TestLiveExitCodes checks that the exit code of a change says whether it is in force, although nothing
// can be printed.
func TestLiveExitCodes(t *testing.T) {
	skipInVM(t)
	p := newQueuePair(t)
	path := writePolicy(t, fmt.Sprintf(shownPolicy, "50mbit"))
	p.wantExit(0, "run", "v0", "--background", "--policy", path, "--pacer", "htb")
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	closed, w, err := os.Pipe()
	if err == nil {
		err = closed.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	unprinted := func(to *os.File, args ...string) {
		t.Helper()
		cmd := p.shaperCommand(args...)
		r := &process{t: t, cmd: cmd}
		cmd.Stdout, cmd.Stderr = to, &r.err
		p.near.Start(cmd)
		if code := r.waitForExit(); code != 0 ||
			!strings.Contains(r.err.String()+strings.Join(r.err.warningLines(), ""),
				"the change is in force, but could not be printed: ") {
			t.Errorf("%v: exit %d, stderr %q", args, code, r.err.unfiltered())
		}
	}
	for i, to := range []*os.File{full, w} {
		rate := fmt.Sprint(5 + i)
		unprinted(to, "set", "v0", "queue", "all", "rate="+rate+"mbit")
		if got := p.htbRate(); got != rate+"Mbit" {
			t.Errorf("the rate is %s", got)
		}
		unprinted(to, "set", "v0", "queue", "all", "reset", "--json")
		rewriteFile(t, path, fmt.Sprintf(shownPolicy, "1"+rate+"mbit"))
		unprinted(to, "reload", "v0")
		if got := p.htbRate(); got != "1"+rate+"Mbit" {
			t.Errorf("the rate is %s", got)
		}
	}
	unprinted(full, "detach", "v0")
	p.wantNothingLeft()
}

// TestLiveHangup closes the terminal of a shaper. That is the end, as Ctrl-C is, and no reload; a policy
// that is to be confirmed is rolled back first, or confirmed.
func TestLiveHangup(t *testing.T) {
	skipInVM(t)
	// otherwise, under nohup, the children would ignore it
	signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP)
	t.Cleanup(func() { signal.Reset(syscall.SIGHUP) })
	for _, row := range []struct {
		name    string
		args    []string
		confirm bool
		stays   bool
	}{
		{"run", nil, false, false},
		{"pinned", []string{"--pin"}, false, true},
		{"confirmed", []string{"--pin", "--confirm", "1h"}, true, true},
		{"rolled back", []string{"--pin", "--confirm", "3s"}, false, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			p := newPair(t)
			before := p.deviceState()
			master, slave := openTerminal(t)
			path := writePolicy(t, "classes: [{name: old}]")
			cmd := p.shaperCommand(append([]string{"run", "v0", "--policy", path}, row.args...)...)
			cmd.Stdin = slave
			cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
			r := p.startCommand(cmd)
			r.awaitAttached()
			rewriteFile(t, path, "classes: [{name: new}]")
			if err := errors.Join(slave.Close(), master.Close()); err != nil {
				t.Fatal(err)
			}
			if row.confirm {
				p.wantExit(0, "confirm", "v0")
				r.err.awaitMatch(t, "v0 egress: confirmed by .+ with shaper confirm")
			}
			r.waitForExit()
			if strings.Contains(r.out.String(), "reloaded") {
				t.Errorf("it was reloaded: %q", &r.out)
			}
			if !row.stays {
				p.awaitState(before)
				return
			}
			if s := p.stats(); !s.Pinned || s.Classes[0].Name != "old" {
				t.Errorf("stats %+v: want it pinned, with the policy before", s)
			}
			p.wantExit(0, "detach", "v0")
		})
	}
}

// openTerminal returns both ends of a new pseudoterminal.
func openTerminal(t *testing.T) (master, slave *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no pseudoterminals: %v", err)
	}
	fd := int(master.Fd())
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		slave, err = os.OpenFile(fmt.Sprint("/dev/pts/", number), os.O_RDWR|unix.O_NOCTTY, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	return master, slave
}

// TestLiveBackgroundConfirm checks that a policy that was attached in the background is rolled back
// unless it is confirmed, and that nothing keeps the output of the command open.
func TestLiveBackgroundConfirm(t *testing.T) {
	skipInVM(t)
	for _, confirm := range []bool{true, false} {
		t.Run(fmt.Sprint("confirm ", confirm), func(t *testing.T) {
			p := newPair(t)
			before := p.deviceState()
			span := map[bool]string{true: "1h", false: "4s"}[confirm]
			cmd := p.shaperCommand("run", "v0", "--background", "--confirm", span, "--rate", "50mbit")
			r := p.startCommand(cmd) // Wait returns when the output is closed
			r.wantExit(0)
			if !strings.Contains(r.out.String(), "rolls back in 1h0m0s unless you run shaper confirm v0") &&
				confirm {
				t.Errorf("it prints %q", &r.out)
			}
			if !confirm {
				p.awaitState(before)
				p.wantNothingLeft()
				return
			}
			if s := p.status("v0"); len(s) != 1 || s[0].Unconfirmed == nil ||
				s[0].State != "attached, pinned" {
				t.Errorf("status %+v", s)
			}
			p.wantExit(0, "confirm", "v0")
			if s := p.status("v0"); len(s) != 1 || s[0].Unconfirmed != nil || s[0].Process != 0 {
				t.Errorf("status %+v after confirm", s)
			}
			p.wantExit(0, "detach", "v0")
			p.wantNothingLeft()
		})
	}
}

// TestLiveCleanedRunDir removes the files of a running shaper, as a cleaner of old files does: it is not
// left behind.
func TestLiveCleanedRunDir(t *testing.T) {
	skipInVM(t)
	p := newPair(t)
	r := p.runShaper("--meter", unlimitedMeter)
	files, err := filepath.Glob(fmt.Sprintf("/run/shaper/%d-*", p.near.Cookie()))
	if err != nil || len(files) == 0 {
		t.Fatalf("%q, %v", files, err)
	}
	for _, path := range files {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	if s := p.status("v0"); len(s) != 1 ||
		s[0].State != fmt.Sprintf("attached by process %d", r.cmd.Process.Pid) ||
		s[0].Process != r.cmd.Process.Pid {
		t.Errorf("status %+v: want the process", s)
	}
	r.killAndWait()
	p.startShaper("detach", "v0").waitForExit()
}

// TestLiveLockedInterface holds the lock of an interface, as a stopped reload does. A change and its end
// are in force nevertheless, and status says that somebody holds the lock.
func TestLiveLockedInterface(t *testing.T) {
	skipInVM(t)
	p := newQueuePair(t)
	path := writePolicy(t, fmt.Sprintf(shownPolicy, "50mbit"))
	p.runShaper("--policy", path, "--pacer", "htb")
	before := p.htbRate()
	files, err := filepath.Glob(fmt.Sprintf("/run/shaper/%d-*-journal", p.near.Cookie()))
	if err != nil || len(files) != 1 {
		t.Fatalf("journals: %q, %v", files, err)
	}
	lock, err := os.OpenFile(strings.TrimSuffix(files[0], "journal")+"change", os.O_RDWR|os.O_CREATE, 0o600)
	if err == nil {
		err = unix.Flock(int(lock.Fd()), unix.LOCK_EX)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	p.wantExit(0, "set", "v0", "queue", "all", "rate=5mbit", "--for", "2s")
	rateBecomes := func(want string) {
		t.Helper()
		eventually(t, func() error {
			if got := p.htbRate(); got != want {
				return fmt.Errorf("the rate is %s, want %s", got, want)
			}
			return nil
		})
	}
	rateBecomes(before) // it ends; before, set returned when it was in force
	problemIs := func(want string) {
		t.Helper()
		eventually(t, func() error {
			if got := p.inForce("status").Problem; (got == "") != (want == "") ||
				!strings.Contains(got, want) {
				return fmt.Errorf("status reports the problem %q, want %q", got, want)
			}
			return nil
		})
	}
	problemIs("changed without the lock of the interface: another process has held the lock")
	if err := errors.Join(os.Remove(lock.Name()), lock.Close()); err != nil {
		t.Fatal(err)
	}
	problemIs("")
	p.wantChanges("v0")
	if got := p.htbRate(); got != before {
		t.Errorf("the rate is %s", got)
	}
}
