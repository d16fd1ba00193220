//go:build linux && amd64

package chaos

import (
	"bytes"
	"cmp"
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

// patience is the time limit of an event that normally takes milliseconds.
const patience = 5 * time.Minute

// world is an isolated machine for commands: two network namespaces connected by a veth pair, v0 in
// both. The near one also has a mount namespace with its own /run and bpffs, and a PID namespace, so
// that all processes of a command can be found and end with the world.
type world struct {
	t         *testing.T
	near, far *nettest.Namespace
	dir       string // directory of outputs
	first     int    // outer PID of process 1
	pids      string // name of the PID namespace in /proc
	net, mnt  int    // descriptors of namespaces of the first process
	pid       int    // descriptor of its PID namespace
	prober    *prober
	picture   picture      // of the untouched interface
	started   atomic.Int32 // number of started commands
}

// policies are written to folder in each world. Policy a drops UDP to portA, b drops UDP to portB. A q in
// the name adds a queue, an s a budget of the host, an l a budget on a server that does not exist, a c
// customers, an r rules: quotas and a schedule of customers, a v a budget on a server that lies. The
// others are files that they, or changes, need.
const folder = "/run/policies"

var policies = map[string]string{
	"a.yaml":  policy(portA, false, 0),
	"b.yaml":  policy(portB, false, 0),
	"aq.yaml": policy(portA, true, 100),
	"bq.yaml": policy(portB, true, 50),
	"as.yaml": withBudget(policy(portA, false, 0), 50, "host"),
	"bs.yaml": withBudget(policy(portB, false, 0), 40, "host"),
	"al.yaml": withBudget(policy(portA, false, 0), 50, "unix:///run/none, interval: 10ms, rescue: 100%"),

	"ac.yaml":  withCustomers(policy(portA, false, 0), false),
	"bc.yaml":  withCustomers(policy(portB, false, 0), false),
	"acq.yaml": withCustomers(policy(portA, true, 100), false),
	"bcq.yaml": withCustomers(policy(portB, true, 50), false),
	"acr.yaml": withCustomers(policy(portA, false, 0), true),
	"av.yaml":  withBudget(policy(portA, false, 0), 50, "unix://"+liarSocket+", interval: 10ms"),
	"c.csv":    customersTable,
	changeFile: changeFileText,
}

// policy is a policy that drops UDP to a port.
func policy(port int, queue bool, rate int) string {
	text := fmt.Sprintf("classes:\n  - name: refused\n    match: {proto: udp, dport: %d}\n    green: drop\n",
		port)
	if queue {
		text += fmt.Sprintf("  - name: paced\n    match: {proto: udp, dport: %d}\n    green: {queue: slow}\n",
			portQueued)
	}
	text += "  - name: limited\n    match: {proto: tcp}\n    meter: {type: token-bucket, rate: 50mbit, burst: 64KiB}\n    red: drop\n  - name: rest\n"
	if queue {
		text += fmt.Sprintf("queues:\n  slow: {rate: %dmbit, limit: 100ms}\n", rate)
	}
	return text
}

// withBudget replaces a policy's meter by one with a budget in a store.
func withBudget(policy string, rate int, store string) string {
	return strings.Replace(policy, "rate: 50mbit, burst: 64KiB",
		fmt.Sprintf("rate: %dmbit, burst: 64KiB, share: {budget: all, store: %s}", rate, store), 1)
}

// farMAC is the address of v0 at the far end.
const farMAC = "02:00:00:00:00:02"

// initVariable makes this program the first process of a world.
const initVariable = "SHAPER_CHAOS_INIT"

// initWorld mounts the file systems of a world and waits for the end of its input. Its exit ends the
// world.
func initWorld() error {
	signal.Ignore(syscall.SIGCHLD) // the kernel reaps the children of the first process
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

// newWorld creates a world. It is destroyed after the test.
func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, near: nettest.New(t), far: nettest.New(t), dir: t.TempDir()}
	w.near.Veth(w.far)
	for _, ip := range customers {
		w.far.Run("ip", "address", "add", ip.String()+"/24", "dev", "v0")
		// v0 has no ARP
		w.near.Run("ip", "neigh", "add", ip.String(), "lladdr", farMAC, "dev", "v0", "nud", "permanent")
	}
	cmd := exec.Command(self(t))
	cmd.Env = append(os.Environ(), initVariable+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID}
	in, err := cmd.StdinPipe() // closing it ends the first process, and so the world
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
		t.Skipf("needs privilege to create a mount namespace with a bpffs: %v: %s: run the tests as root with CAP_SYS_ADMIN",
			err, &stderr)
	}
	w.first = cmd.Process.Pid
	w.pids = w.namespace("pid", &w.pid)
	w.namespace("net", &w.net)
	w.namespace("mnt", &w.mnt)
	w.inside(func() {
		for name, text := range policies {
			w.writePolicy(name, text)
		}
		for name, text := range configurations {
			w.writePolicy(filepath.Join(name, "shaper.yaml"), text)
		}
	})
	w.prober = newProber(w)
	w.picture = w.takePicture()
	return w
}

// self is the path of this test binary.
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

// writePolicy writes a policy. Call it inside the world.
func (w *world) writePolicy(name, text string) {
	path := filepath.Join(folder, name)
	err := os.MkdirAll(filepath.Dir(path), 0o755)
	if err == nil {
		err = os.WriteFile(path, []byte(text), 0o644)
	}
	if err != nil {
		panic(err)
	}
}

// inside runs f on its own thread in the world's namespaces. Processes that f starts belong to the
// world.
func (w *world) inside(f func()) {
	w.t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		err := unix.Unshare(unix.CLONE_FS)
		for _, ns := range []struct{ fd, kind int }{
			{w.net, unix.CLONE_NEWNET}, {w.mnt, unix.CLONE_NEWNS}, {w.pid, unix.CLONE_NEWPID},
		} {
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

// commands are the command lines of all processes except the first, by inner PID. It is much faster
// than members.
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
			if command != "" || exiting(folder) {
				out[pid] = cmp.Or(command, "(exiting)")
			}
		}
	}
	return out
}

// commandLine is the command line of a process in /proc.
func commandLine(folder string) string {
	text, _ := os.ReadFile(filepath.Join(folder, "cmdline"))
	return string(bytes.ReplaceAll(bytes.TrimRight(text, "\x00"), []byte{0}, []byte{' '}))
}

// exiting reports whether a process in /proc without a command line still has files and locks: it is
// not a zombie or has several threads.
func exiting(folder string) bool {
	if threads, err := os.ReadDir(filepath.Join(folder, "task")); err != nil || len(threads) > 1 {
		return err == nil
	}
	stat, err := os.ReadFile(filepath.Join(folder, "stat"))
	_, rest, _ := strings.Cut(string(stat), ") ")
	return err == nil && !strings.HasPrefix(rest, "Z") && !strings.HasPrefix(rest, "X")
}

// member is a process of the world.
type member struct {
	pid, parent int // outer PIDs
	command     string
}

// members are the live processes of the world except the first.
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

// killAll kills all processes of the world. It stops them first, so that none reacts to the end of
// another.
func (w *world) killAll() {
	if len(w.commands()) == 0 {
		return
	}
	for range 3 { // a process may start another one meanwhile
		for _, m := range w.members() {
			_ = syscall.Kill(m.pid, syscall.SIGSTOP)
		}
	}
	for _, m := range w.members() {
		_ = syscall.Kill(m.pid, syscall.SIGKILL)
	}
}

// eventually waits until a condition holds, and reports whether it did within limit.
func eventually(limit time.Duration, holds func() bool) bool {
	pause := time.Millisecond
	for end := time.Now().Add(limit); !holds(); time.Sleep(pause) {
		if time.Now().After(end) {
			return false
		}
		pause = min(2*pause, 50*time.Millisecond)
	}
	return true
}
