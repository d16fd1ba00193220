package livetest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// childrenOf returns the child processes of a process.
func childrenOf(t *testing.T, pid int) (list []int) {
	t.Helper()
	// Each thread lists the processes that it started. Searching all processes would delay
	// their end.
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil || len(threads) == 0 {
		t.Fatalf("no threads of process %d: %v", pid, err)
	}
	for _, path := range threads {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // the thread ended meanwhile
		}
		for _, field := range strings.Fields(string(text)) {
			child, err := strconv.Atoi(field)
			if err != nil {
				t.Fatal(err)
			}
			list = append(list, child)
		}
	}
	return list
}

// guardOf returns the guard of a shaper run.
func guardOf(t *testing.T, r *process) int {
	t.Helper()
	list := childrenOf(t, r.cmd.Process.Pid)
	if len(list) != 1 {
		t.Fatalf("children %v: want a guard and no other", list)
	}
	return list[0]
}

// wantCapabilities checks the capabilities of all threads of a process.
func wantCapabilities(t *testing.T, who string, pid int, want ...uint) {
	t.Helper()
	var mask uint64
	for _, c := range want {
		mask |= 1 << c
	}
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	if err != nil || len(threads) == 0 {
		t.Fatalf("threads of %d: %v, %v", pid, threads, err)
	}
	for _, path := range threads {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // the thread ended meanwhile
		}
		got := map[string]string{}
		for line := range strings.Lines(string(text)) {
			name, value, _ := strings.Cut(line, ":")
			got[name] = strings.TrimSpace(value)
		}
		for name, want := range map[string]uint64{
			"CapEff": mask, "CapPrm": mask, "CapBnd": mask, "CapInh": 0, "CapAmb": 0,
		} {
			if got[name] != fmt.Sprintf("%016x", want) {
				t.Errorf("%s, %s: %s is %s: want %016x", who, path, name, got[name], want)
			}
		}
		if got["NoNewPrivs"] != "1" {
			t.Errorf("%s, %s: NoNewPrivs is %s", who, path, got["NoNewPrivs"])
		}
	}
}

// TestLiveRootDrops checks that run and its guard drop all capabilities of root that they do
// not need. All other live tests run as root and so check that the remaining ones suffice.
func TestLiveRootDrops(t *testing.T) {
	skipInVM(t)
	kept := []uint{unix.CAP_NET_ADMIN, unix.CAP_BPF, unix.CAP_PERFMON, unix.CAP_SYS_ADMIN}
	p := newPair(t)
	before := p.deviceState()
	r := p.runShaper("--hook", "tc", "--meter", unlimitedMeter)
	wantCapabilities(t, "run", r.cmd.Process.Pid, kept...)
	wantCapabilities(t, "guard", guardOf(t, r), kept...)
	if name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", r.cmd.Process.Pid)); string(name) != "shaper\n" {
		t.Errorf("the process is called %q, %v: want shaper", name, err)
	}
	r.stopBySIGTERM()
	r = p.runShaper("--meter", unlimitedMeter, "--metrics", "127.0.0.1:0")
	wantCapabilities(t, "run --metrics", r.cmd.Process.Pid, append(kept, unix.CAP_NET_BIND_SERVICE)...)
	r.stopBySIGTERM()
	p.wantState(before)
}

// TestLiveStartsOnce checks that shaper run starts the program once, and once more for a guard.
// Each start prints the init of package main.
func TestLiveStartsOnce(t *testing.T) {
	skipInVM(t)
	p := newPair(t)
	for _, tt := range []struct {
		starts int
		args   []string
	}{
		{1, []string{"--hook", "tcx", "--meter", unlimitedMeter}},
		{2, []string{"--hook", "tc", "--meter", unlimitedMeter}},
	} {
		if tt.args[1] == "tcx" && !haveTCX() {
			continue
		}
		cmd := p.shaperCommand(append([]string{"run", "v0"}, tt.args...)...)
		cmd.Env = append(os.Environ(), "GODEBUG=inittrace=1")
		r := p.startCommand(cmd)
		r.awaitAttached()
		// the guard is not killed earlier
		r.err.awaitMatch(t, strings.Repeat(`(?s)\ninit main @.*`, tt.starts))
		r.stopBySIGTERM()
		if n := strings.Count(r.err.String(), "\ninit main @"); n != tt.starts {
			t.Errorf("%v: the program starts %d times, want %d", tt.args, n, tt.starts)
		}
	}
}

// TestLiveRootReadsHomes checks that root can read a policy in a directory that is open only to
// another user, at the start and on SIGHUP.
func TestLiveRootReadsHomes(t *testing.T) {
	skipInVM(t)
	p := newPair(t)
	path := writePolicy(t, "classes: [{name: a}]")
	for path, mode := range map[string]os.FileMode{filepath.Dir(path): 0o700, path: 0o600} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(path, 65534, 65534); err != nil {
			t.Fatal(err)
		}
	}
	r := p.runShaper("--policy", path)
	wantCapabilities(t, "run", r.cmd.Process.Pid,
		unix.CAP_NET_ADMIN, unix.CAP_BPF, unix.CAP_PERFMON, unix.CAP_SYS_ADMIN, unix.CAP_DAC_READ_SEARCH)
	rewriteFile(t, path, "classes: [{name: b}]")
	r.reloadBySIGHUP()
	r.stopBySIGTERM()
}

// TestLiveRootWithoutSetpcap checks that a process without CAP_SETPCAP drops capabilities, too.
func TestLiveRootWithoutSetpcap(t *testing.T) {
	skipInVM(t)
	p := newPair(t)
	r := p.startAs("root with", "run", "v0", "--meter", unlimitedMeter)
	r.awaitAttached()
	for name, want := range map[string]string{
		"CapEff": "000000c000001000", "CapPrm": "000000c000001000", "NoNewPrivs": "1",
	} {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", r.cmd.Process.Pid))
		if err != nil || !strings.Contains(string(text), name+":\t"+want+"\n") {
			t.Errorf("want %s %s in %s, %v", name, want, text, err)
		}
	}
	r.stopBySIGTERM()
}

// TestLiveFileLimit checks that a too low limit of open files causes an error that names the
// limit, wherever it is reached, and that nothing is left attached.
func TestLiveFileLimit(t *testing.T) {
	skipInVM(t)
	p := newPair(t)
	before := p.deviceState()
	path, err := buildShaper()
	if err != nil {
		t.Fatal(err)
	}
	const first, last = 16, 128 // below 16 Go's runtime may lack files itself, and it panics then
	failed := 0
	for n := first; n < last; n += 2 {
		cmd := exec.Command("sh", "-c", fmt.Sprintf(
			"ulimit -n %d; exec %s run v0 --direction both --for 1ms --hook tcx --meter '%s'", n, path,
			unlimitedMeter))
		r := p.startCommand(cmd)
		if r.waitForExit() == 0 {
			break
		}
		failed++
		if text := r.err.String(); !regexp.MustCompile(
			"^shaper: (.*: )?too many open files(: raise the limit .*)?\n$").MatchString(text) {
			t.Errorf("%d files: %q", n, text)
		}
	}
	if all := (last - first) / 2; failed < 5 || failed == all {
		t.Errorf("%d limits were too low: want 5 to %d", failed, all-1)
	}
	p.wantState(before)
}

// privileges are sets of privileges by name.
var privileges = map[string]struct {
	uid     uint32
	caps    []uintptr
	missing string // missing capabilities in the error of run
}{
	"nobody":          {65534, nil, "CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON are missing: "},
	"root without":    {0, nil, "CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON are missing: "},
	"root with":       {0, neededCapabilities, ""},
	"nobody with":     {65534, neededCapabilities, ""}, // lacks /run/shaper only
	"root no perfmon": {0, neededCapabilities[:2], "CAP_PERFMON is missing: "},
	"root net_admin":  {0, neededCapabilities[:1], "CAP_BPF and CAP_PERFMON are missing: "},
	"root bpf":        {0, neededCapabilities[1:], "CAP_NET_ADMIN is missing: "},
}

var neededCapabilities = []uintptr{unix.CAP_NET_ADMIN, unix.CAP_BPF, unix.CAP_PERFMON}

// startAs starts the command with a set of privileges.
func (p *pair) startAs(who string, args ...string) *process {
	p.t.Helper()
	with := privileges[who]
	cmd := p.shaperCommand(args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: with.uid, Gid: with.uid}}
	if with.uid != 0 {
		cmd.SysProcAttr.AmbientCaps = with.caps
	}
	var r *process
	onOwnThread(func() {
		if with.uid == 0 {
			for c := uintptr(0); c <= unix.CAP_LAST_CAP; c++ {
				keep := c == unix.CAP_SETGID || c == unix.CAP_SETUID
				for _, k := range with.caps {
					keep = keep || c == k
				}
				if !keep {
					_ = unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0) // this kernel may not know it
				}
			}
		}
		r = p.startCommand(cmd)
	})
	return r
}

// TestLivePrivileges checks that three capabilities suffice for shaper run. Without them there
// must be one line that names the missing capabilities.
func TestLivePrivileges(t *testing.T) {
	t.Parallel()
	for who := range privileges {
		if inVM {
			break
		}
		if who == "root with" {
			continue
		}
		t.Run(who, func(t *testing.T) {
			p := newPair(t)
			before := p.deviceState()
			for _, hook := range []string{"auto", "tc"} {
				r := p.startAs(who, "run", "v0", "--hook", hook, "--meter", unlimitedMeter)
				want := "shaper: operation not permitted: " + privileges[who].missing +
					"run as root, or with CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON"
				if code := r.waitForExit(); code != 1 || strings.Count(r.err.String(), "\n") != 1 ||
					!strings.HasPrefix(r.err.String(), want) || r.out.String() != "" {
					t.Errorf("%s: exit %d, %q, stderr %q: want 1 and one line, %q", hook, code, &r.out,
						&r.err, want)
				}
				p.wantState(before)
			}
			if who == "nobody with" {
				return // only /run/shaper was missing
			}
			r := p.startAs(who, "stats")
			if code := r.waitForExit(); code != 1 || strings.Count(r.err.String(), "\n") != 1 ||
				!strings.Contains(r.err.String(), "CAP_") {
				t.Errorf("stats: exit %d, stderr %q: want 1 and one line that names the capabilities", code,
					&r.err)
			}
		})
	}
	for _, m := range placements {
		t.Run(m.hook+"-"+m.direction, func(t *testing.T) {
			m.skipIfUnsupported(t)
			p := newPair(t)
			before := p.deviceState()
			dir, err := os.MkdirTemp("", "shaper-live") // readable for all, unlike t.TempDir
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { os.RemoveAll(dir) })
			if err := os.Chmod(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(dir, "policy.yaml")
			rewriteFile(t, path, "classes: [{name: a}]")
			r := p.startAs("root with",
				append([]string{"run", "v0", "--policy", path, "--metrics", ":0"}, m.flags()...)...)
			r.awaitAttached()
			from, to := p.senderAndReceiver(m)
			_, at := p.addresses(m, false)
			in := listenUDP(t, to, at)
			sendUDP(t, newSender(t, from, at, 0, 0), 3, 100)
			if got := len(in.receiveAll()); got != 3 {
				t.Errorf("%d packets passed: want 3", got)
			}
			rewriteFile(t, path, "classes: [{name: a, green: {dscp: af11}}, {name: b}]")
			r.reloadBySIGHUP()
			sendUDP(t, newSender(t, from, at, 0, 0), 3, 100)
			if got := in.receiveAll(); len(got) != 3 || got[0].tos != af11 {
				t.Errorf("%+v arrived after SIGHUP: want 3 packets marked", got)
			}
			if got := p.scrapeMetrics(r)[fmt.Sprintf(`shaper_packets_total{class="a",color="green",direction="%s",interface="v0"}`, m.direction)]; got != 6 {
				t.Errorf("metrics count %v packets: want 6", got)
			}
			if c := p.stats(); c.classNamed(t, "a").Packets != 6 {
				t.Errorf("stats counts %+v: want 6 packets", c.Classes)
			}
			r.stopBySIGTERM()
			p.wantState(before)
			r = p.startAs("root with",
				append([]string{"run", "v0", "--policy", path, "--gso-limit", "9000"}, m.flags()...)...)
			r.awaitAttached()
			r.killAndWait()
			p.awaitState(before)
		})
	}
}

// onOwnThread runs f on a thread that ends afterwards, so f may drop privileges.
func onOwnThread(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		f()
	}()
	<-done
}
