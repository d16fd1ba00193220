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

// children returns the processes that a process started.
func children(t *testing.T, pid int) (list []int) {
	t.Helper()
	// Each thread has those that it started. A look into the folders of all processes
	// would make the end of each of them take long.
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

// guardOf returns the process that cleans up after another.
func guardOf(t *testing.T, r *process) int {
	t.Helper()
	list := children(t, r.cmd.Process.Pid)
	if len(list) != 1 {
		t.Fatalf("children %v: want a guard and no other", list)
	}
	return list[0]
}

// wantCapabilities looks at all threads of a process.
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
		for name, want := range map[string]uint64{"CapEff": mask, "CapPrm": mask, "CapBnd": mask, "CapInh": 0, "CapAmb": 0} {
			if got[name] != fmt.Sprintf("%016x", want) {
				t.Errorf("%s, %s: %s is %s: want %016x", who, path, name, got[name], want)
			}
		}
		if got["NoNewPrivs"] != "1" {
			t.Errorf("%s, %s: NoNewPrivs is %s", who, path, got["NoNewPrivs"])
		}
	}
}

// TestLiveRootDrops holds that run and its guard keep no capability of root but
// those they need. That these are enough, all other live tests show: they run as
// root.
func TestLiveRootDrops(t *testing.T) {
	hereOnly(t)
	kept := []uint{unix.CAP_NET_ADMIN, unix.CAP_BPF, unix.CAP_PERFMON, unix.CAP_SYS_ADMIN}
	p := newPair(t)
	before := p.attached()
	r := p.run("--hook", "tc", "--meter", never)
	wantCapabilities(t, "run", r.cmd.Process.Pid, kept...)
	wantCapabilities(t, "guard", guardOf(t, r), kept...)
	if name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", r.cmd.Process.Pid)); string(name) != "shaper\n" {
		t.Errorf("the process is called %q, %v: want shaper", name, err)
	}
	r.term()
	r = p.run("--meter", never, "--metrics", "127.0.0.1:0")
	wantCapabilities(t, "run --metrics", r.cmd.Process.Pid, append(kept, unix.CAP_NET_BIND_SERVICE)...)
	r.term()
	p.unchanged(before)
}

// TestLiveRootReadsHomes holds that root can read a policy in a directory that is
// only open to another user, at the start and at SIGHUP.
func TestLiveRootReadsHomes(t *testing.T) {
	hereOnly(t)
	p := newPair(t)
	path := file(t, "classes: [{name: a}]")
	for path, mode := range map[string]os.FileMode{filepath.Dir(path): 0o700, path: 0o600} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(path, 65534, 65534); err != nil {
			t.Fatal(err)
		}
	}
	r := p.run("--policy", path)
	wantCapabilities(t, "run", r.cmd.Process.Pid,
		unix.CAP_NET_ADMIN, unix.CAP_BPF, unix.CAP_PERFMON, unix.CAP_SYS_ADMIN, unix.CAP_DAC_READ_SEARCH)
	rewrite(t, path, "classes: [{name: b}]")
	r.signal(syscall.SIGHUP)
	r.out.await(t, "v0 egress: reloaded")
	r.term()
}

// TestLiveRootWithoutSetpcap holds that capabilities are dropped by one that may
// not bound them, too.
func TestLiveRootWithoutSetpcap(t *testing.T) {
	hereOnly(t)
	p := newPair(t)
	r := p.as("root with", "run", "v0", "--meter", never)
	r.attached()
	for name, want := range map[string]string{"CapEff": "000000c000001000", "CapPrm": "000000c000001000", "NoNewPrivs": "1"} {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", r.cmd.Process.Pid))
		if err != nil || !strings.Contains(string(text), name+":\t"+want+"\n") {
			t.Errorf("want %s %s in %s, %v", name, want, text, err)
		}
	}
	r.term()
}

// TestLiveFewFiles holds that too low a limit of open files is called that, wherever
// it is reached, and that it leaves nothing behind.
func TestLiveFewFiles(t *testing.T) {
	hereOnly(t)
	p := newPair(t)
	before := p.attached()
	path, err := shaper()
	if err != nil {
		t.Fatal(err)
	}
	failed := 0
	for n := 8; n < 128; n += 2 {
		cmd := exec.Command("sh", "-c", fmt.Sprintf("ulimit -n %d; exec %s run v0 --direction both --for 1ms --hook tcx --meter '%s'", n, path, never))
		r := p.startCmd(cmd)
		if r.wait() == 0 {
			break
		}
		failed++
		if text := r.err.String(); !regexp.MustCompile("^shaper: (.*: )?too many open files(: raise the limit .*)?\n$").MatchString(text) {
			t.Errorf("%d files: %q", n, text)
		}
	}
	if failed < 5 || failed == 60 {
		t.Errorf("%d limits were too low", failed)
	}
	p.unchanged(before)
}

// privileges that a user may have.
var privileges = map[string]struct {
	uid     uint32
	caps    []uintptr
	missing string // what run says is missing
}{
	"nobody":          {65534, nil, "CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON are missing: "},
	"root without":    {0, nil, "CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON are missing: "},
	"root with":       {0, needed, ""},
	"nobody with":     {65534, needed, ""}, // only /run/shaper
	"root no perfmon": {0, needed[:2], "CAP_PERFMON is missing: "},
	"root net_admin":  {0, needed[:1], "CAP_BPF and CAP_PERFMON are missing: "},
	"root bpf":        {0, needed[1:], "CAP_NET_ADMIN is missing: "},
}

var needed = []uintptr{unix.CAP_NET_ADMIN, unix.CAP_BPF, unix.CAP_PERFMON}

// as makes a command run with some privileges and no more.
func (p *pair) as(who string, args ...string) *process {
	p.t.Helper()
	with := privileges[who]
	cmd := p.command(args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: with.uid, Gid: with.uid}}
	if with.uid != 0 {
		cmd.SysProcAttr.AmbientCaps = with.caps
	}
	var r *process
	threadWith(func() {
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
		r = p.startCmd(cmd)
	})
	return r
}

// TestLivePrivileges holds that three capabilities are enough to run, and that
// without them there is one line that says which.
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
			before := p.attached()
			for _, hook := range []string{"auto", "tc"} {
				r := p.as(who, "run", "v0", "--hook", hook, "--meter", never)
				want := "shaper: operation not permitted: " + privileges[who].missing + "run as root, or with CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON"
				if code := r.wait(); code != 1 || strings.Count(r.err.String(), "\n") != 1 || !strings.HasPrefix(r.err.String(), want) || r.out.String() != "" {
					t.Errorf("%s: exit %d, %q, stderr %q: want 1 and one line, %q", hook, code, &r.out, &r.err, want)
				}
				p.unchanged(before)
			}
			if who == "nobody with" {
				return // it was /run/shaper
			}
			r := p.as(who, "stats")
			if code := r.wait(); code != 1 || strings.Count(r.err.String(), "\n") != 1 || !strings.Contains(r.err.String(), "CAP_") {
				t.Errorf("stats: exit %d, stderr %q: want 1 and one line that names the capabilities", code, &r.err)
			}
		})
	}
	for _, m := range methods {
		t.Run(m.hook+"-"+m.direction, func(t *testing.T) {
			m.need(t)
			p := newPair(t)
			before := p.attached()
			dir, err := os.MkdirTemp("", "shaper-live") // readable for all, unlike t.TempDir
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { os.RemoveAll(dir) })
			if err := os.Chmod(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(dir, "policy.yaml")
			rewrite(t, path, "classes: [{name: a}]")
			r := p.as("root with", append([]string{"run", "v0", "--policy", path, "--metrics", ":0"}, m.args()...)...)
			r.attached()
			from, to := p.sides(m)
			_, at := p.addresses(m, false)
			in := listen(t, to, at)
			send(t, sender(t, from, at, 0, 0), 3, 100)
			if got := len(in.take()); got != 3 {
				t.Errorf("%d packets passed: want 3", got)
			}
			rewrite(t, path, "classes: [{name: a, green: {dscp: af11}}, {name: b}]")
			r.signal(syscall.SIGHUP)
			r.out.await(t, "reloaded")
			send(t, sender(t, from, at, 0, 0), 3, 100)
			if got := in.take(); len(got) != 3 || got[0].tos != af11 {
				t.Errorf("%+v arrived after SIGHUP: want 3 packets marked", got)
			}
			if got := p.scrape(r)[fmt.Sprintf(`shaper_packets_total{class="a",color="green",direction="%s",interface="v0"}`, m.direction)]; got != 6 {
				t.Errorf("metrics count %v packets: want 6", got)
			}
			if c := p.stats(); c.class(t, "a").Packets != 6 {
				t.Errorf("stats count %+v: want 6 packets", c.Classes)
			}
			r.term()
			p.unchanged(before)
			r = p.as("root with", append([]string{"run", "v0", "--policy", path, "--gso-limit", "9000"}, m.args()...)...)
			r.attached()
			r.kill()
			p.soonUnchanged(before)
		})
	}
}

// threadWith runs f on a thread that ends with it, so it may give up what it
// can do.
func threadWith(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		f()
	}()
	<-done
}
