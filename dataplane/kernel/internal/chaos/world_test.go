//go:build linux && amd64

package chaos

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/a-seed-32e5a53f/shaper/dataplane/nettest"
)

// patience is for what should take no time, on a busy machine.
const patience = time.Minute

// world is a machine of its own for a command: two network namespaces joined by
// a veth pair, v0 in both, and in the near one a mount namespace with its own
// /run and bpffs and a PID namespace, so that all that a command started can be
// found, and ends with the world.
type world struct {
	t         *testing.T
	near, far *nettest.Namespace
	dir       string // of outputs
	first     int    // process 1, as seen from outside
	pids      string // the PID namespace, as /proc shows it
	net, mnt  int    // namespaces of the first process
	pid       int
	prober    *prober
	picture   picture // of the interface, untouched
	started   atomic.Int32
}

// policies are written to folder in each world. Policy a drops UDP to portA, b
// drops UDP to portB; those with a q have a queue too, those with an s a budget of the
// host, those with an l one on a server that is not there.
const folder = "/run/policies"

var policies = map[string]string{
	"a.yaml":  policy(portA, false, 0),
	"b.yaml":  policy(portB, false, 0),
	"aq.yaml": policy(portA, true, 100),
	"bq.yaml": policy(portB, true, 50),
	"as.yaml": sharing(policy(portA, false, 0), 50, "host"),
	"bs.yaml": sharing(policy(portB, false, 0), 40, "host"),
	"al.yaml": sharing(policy(portA, false, 0), 50, "unix:///run/none, interval: 10ms, rescue: 100%"),
}

func policy(port int, queue bool, rate int) string {
	text := fmt.Sprintf("classes:\n  - name: refused\n    match: {proto: udp, dport: %d}\n    green: drop\n", port)
	if queue {
		text += fmt.Sprintf("  - name: paced\n    match: {proto: udp, dport: %d}\n    green: {queue: slow}\n", portQueued)
	}
	text += "  - name: limited\n    match: {proto: tcp}\n    meter: {type: token-bucket, rate: 50mbit, burst: 64KiB}\n    red: drop\n  - name: rest\n"
	if queue {
		text += fmt.Sprintf("queues:\n  slow: {rate: %dmbit, limit: 100ms}\n", rate)
	}
	return text
}

// sharing is a policy whose meter is a budget in a store.
func sharing(policy string, rate int, store string) string {
	return strings.Replace(policy, "rate: 50mbit, burst: 64KiB", fmt.Sprintf("rate: %dmbit, burst: 64KiB, share: {budget: all, store: %s}", rate, store), 1)
}

// initVariable makes this program the first process of a world.
const initVariable = "SHAPER_CHAOS_INIT"

// initWorld mounts what a world has and waits for the end of its input, which
// ends the world.
func initWorld() error {
	signal.Ignore(syscall.SIGCHLD) // the kernel reaps what is left to the first process
	for _, m := range []struct {
		kind, target, data string
		flags              uintptr
	}{
		{"", "/", "", unix.MS_REC | unix.MS_PRIVATE},
		{"tmpfs", "/run", "mode=0755", 0},
		{"bpf", "/sys/fs/bpf", "mode=0700", 0},
		{"proc", "/proc", "", 0},
	} {
		if err := unix.Mount(m.kind, m.target, m.kind, m.flags, m.data); err != nil {
			return fmt.Errorf("mount %s: %w", m.target, err)
		}
	}
	fmt.Println("ready")
	_, err := io.Copy(io.Discard, os.Stdin)
	return err
}

// newWorld makes one that ends with the test.
func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, near: nettest.New(t), far: nettest.New(t), dir: t.TempDir()}
	w.near.Veth(w.far)
	cmd := exec.Command(self(t))
	cmd.Env = append(os.Environ(), initVariable+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID}
	in, err := cmd.StdinPipe() // its end ends the first process, and all with it
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	w.near.Start(cmd)
	t.Cleanup(func() { in.Close() })
	if line, err := io.ReadAll(io.LimitReader(out, 6)); string(line) != "ready\n" {
		_ = cmd.Wait()
		t.Skipf("make a mount namespace with a bpffs: %v: %s: run the tests as root where CAP_SYS_ADMIN is given", err, &stderr)
	}
	w.first = cmd.Process.Pid
	w.pids = w.namespace("pid", &w.pid)
	w.namespace("net", &w.net)
	w.namespace("mnt", &w.mnt)
	w.inside(func() {
		for name, text := range policies {
			w.write(name, text)
		}
	})
	w.prober = newProber(w)
	w.picture = w.look()
	return w
}

// self is this program.
func self(t *testing.T) string {
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// namespace opens a namespace of the first process.
func (w *world) namespace(kind string, fd *int) string {
	w.t.Helper()
	path := fmt.Sprintf("/proc/%d/ns/%s", w.first, kind)
	name, err := os.Readlink(path)
	if err == nil {
		*fd, err = unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	}
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { unix.Close(*fd) })
	return name
}

// write writes a policy, from inside.
func (w *world) write(name, text string) {
	err := os.MkdirAll(folder, 0o755)
	if err == nil {
		err = os.WriteFile(filepath.Join(folder, name), []byte(text), 0o644)
	}
	if err != nil {
		panic(err)
	}
}

// inside runs f on a thread in the world's namespaces, which ends with it.
// Processes that f starts belong to the world.
func (w *world) inside(f func()) {
	w.t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		err := unix.Unshare(unix.CLONE_FS)
		for _, ns := range []struct{ fd, kind int }{{w.net, unix.CLONE_NEWNET}, {w.mnt, unix.CLONE_NEWNS}, {w.pid, unix.CLONE_NEWPID}} {
			if err == nil {
				err = unix.Setns(ns.fd, ns.kind)
			}
		}
		if err == nil {
			f()
		}
		done <- err
	}()
	if err := <-done; err != nil {
		w.t.Fatalf("enter the world: %v", err)
	}
}

// commands are the command lines of all processes but the first, by PID as they
// see it themselves. It takes far less time than members.
func (w *world) commands() map[int]string {
	root := fmt.Sprintf("/proc/%d/root/proc", w.first)
	entries, err := os.ReadDir(root)
	if err != nil {
		w.t.Fatal(err)
	}
	out := map[int]string{}
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil && pid != 1 {
			folder := filepath.Join(root, e.Name())
			command := commandLine(folder)
			if command != "" || ends(folder) {
				out[pid] = cmp.Or(command, "one that ends")
			}
		}
	}
	return out
}

// commandLine is what a process in /proc was started as.
func commandLine(folder string) string {
	text, _ := os.ReadFile(filepath.Join(folder, "cmdline"))
	return string(bytes.ReplaceAll(bytes.TrimRight(text, "\x00"), []byte{0}, []byte{' '}))
}

// ends says whether a process in /proc that has no command line any more still has files
// and locks: it is no zombie, or has more threads than that.
func ends(folder string) bool {
	if threads, err := os.ReadDir(filepath.Join(folder, "task")); err != nil || len(threads) > 1 {
		return err == nil
	}
	stat, err := os.ReadFile(filepath.Join(folder, "stat"))
	_, rest, _ := strings.Cut(string(stat), ") ")
	return err == nil && !strings.HasPrefix(rest, "Z") && !strings.HasPrefix(rest, "X")
}

// member is a process of the world.
type member struct {
	pid, parent int // as seen from outside
	command     string
}

// members are the processes of the world but the first, which are alive.
func (w *world) members() []member {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		w.t.Fatal(err)
	}
	var out []member
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == w.first {
			continue
		}
		if ns, err := os.Readlink(filepath.Join("/proc", e.Name(), "ns/pid")); err != nil || ns != w.pids {
			continue // a zombie has none
		}
		m := member{pid: pid, command: commandLine(filepath.Join("/proc", e.Name()))}
		stat, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "stat"))
		if _, rest, ok := strings.Cut(string(stat), ") "); ok {
			var state string
			_, _ = fmt.Sscan(rest, &state, &m.parent)
		}
		out = append(out, m)
	}
	return out
}

// killAll kills what is left of the world's processes: first all are stopped,
// so that none acts on the end of another.
func (w *world) killAll() {
	if len(w.commands()) == 0 {
		return
	}
	for range 3 { // what starts another process meanwhile
		for _, m := range w.members() {
			_ = syscall.Kill(m.pid, syscall.SIGSTOP)
		}
	}
	for _, m := range w.members() {
		_ = syscall.Kill(m.pid, syscall.SIGKILL)
	}
}

// process is a command of the world.
type process struct {
	w        *world
	args     []string
	cmd      *exec.Cmd
	out, err string // files of its outputs
	traced   bool
	ended    chan struct{}
}

// start starts the command, under the tracer if there is a plan.
func (w *world) start(p *plan, args ...string) *process {
	w.t.Helper()
	name := filepath.Join(w.dir, strconv.Itoa(int(w.started.Add(1))))
	r := &process{w: w, args: args, out: name + ".out", err: name + ".err", ended: make(chan struct{}), traced: p != nil}
	r.cmd = exec.Command(command, args...)
	if p != nil {
		p.Log = name + ".log"
		text, err := json.Marshal(p)
		if err != nil {
			w.t.Fatal(err)
		}
		r.cmd = exec.Command(self(w.t), append([]string{command}, args...)...)
		r.cmd.Env = append(os.Environ(), planVariable+"="+string(text))
	}
	r.cmd.Dir = folder
	var err error
	stdout, err1 := os.Create(r.out)
	stderr, err2 := os.Create(r.err)
	w.inside(func() {
		r.cmd.Stdout, r.cmd.Stderr = stdout, stderr
		err = errors.Join(err1, err2, r.cmd.Start())
	})
	stdout.Close()
	stderr.Close()
	if err != nil {
		w.t.Fatal(err)
	}
	go func() {
		_ = r.cmd.Wait()
		close(r.ended)
	}()
	return r
}

func (r *process) stdout() string { return read(r.out) }
func (r *process) stderr() string { return read(r.err) }

func read(file string) string {
	text, _ := os.ReadFile(file)
	return string(text)
}

// alive says whether it has not ended.
func (r *process) alive() bool {
	select {
	case <-r.ended:
		return false
	default:
		return true
	}
}

// killed is the code of a command that a signal ended.
const killed = 128

// code is what it exited with; more than killed after a signal.
func (r *process) code() int {
	status := r.cmd.ProcessState.Sys().(syscall.WaitStatus)
	if status.Signaled() {
		return killed + int(status.Signal())
	}
	return status.ExitStatus()
}

// wait waits for the end and says whether it came.
func (r *process) wait() bool {
	select {
	case <-r.ended:
		return true
	case <-time.After(patience):
		return false
	}
}

// signal is sent to the command, not to its tracer.
func (r *process) signal(s syscall.Signal) {
	pid := r.cmd.Process.Pid
	if r.traced {
		for _, m := range r.w.members() {
			if m.parent == pid {
				_ = syscall.Kill(m.pid, s)
				return
			}
		}
		return
	}
	_ = r.cmd.Process.Signal(s)
}

// do runs a command to its end.
func (w *world) do(args ...string) (*process, bool) {
	r := w.start(nil, args...)
	return r, r.wait()
}

// soon waits until a condition holds.
func soon(limit time.Duration, holds func() bool) bool {
	pause := time.Millisecond
	for end := time.Now().Add(limit); !holds(); time.Sleep(pause) {
		if time.Now().After(end) {
			return false
		}
		pause = min(2*pause, 50*time.Millisecond)
	}
	return true
}
