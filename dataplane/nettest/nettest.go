//go:build linux

// Package nettest creates network namespaces and veth pairs for tests, in the real kernel.
// It needs root (CAP_SYS_ADMIN and CAP_NET_ADMIN), /proc and the veth module. Wire.TC and
// Wire.Shown need tc.
//
// Namespaces are nameless. One exists as long as file descriptors, sockets or processes refer to
// it. Errors end the test by t.Fatal, so methods must be called in the goroutine of the test given
// to New, unless their documentation allows others.
//
// The package is for tests. Any version may change it incompatibly.
package nettest

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const (
	// maximum time of a command of Run, and until the kernel reaches an expected state
	waitLimit = 5 * time.Minute
	// time to read the pipes of an ended command, which its children may keep open
	waitDelay = time.Second
)

// TB is the part of testing.TB used by namespaces. Programs other than tests can implement it.
// Fatal, Fatalf and Skipf must not return.
type TB interface {
	Helper()
	Cleanup(func())
	Fatal(args ...any)
	Fatalf(format string, args ...any)
	Skipf(format string, args ...any)
}

// Namespace is a network namespace with lo up.
type Namespace struct {
	t      TB
	fd     int
	inode  uint64
	handle *netlink.Handle
}

// quiet contains the sysctls to keep new devices from sending IPv6 packets on their own.
var quiet = map[string]string{
	"ipv6/conf/default/accept_dad":           "0",
	"ipv6/conf/default/accept_ra":            "0",
	"ipv6/conf/default/addr_gen_mode":        "1", // none: no link-local address
	"ipv6/conf/default/router_solicitations": "0",
}

// New creates a network namespace and deletes it when the test ends. Without the privilege it skips
// the test, or fails it if CI=true and the user is root.
func New(t TB) *Namespace {
	t.Helper()
	n := &Namespace{t: t, fd: -1}
	back, err := lockThread()
	if err != nil {
		t.Fatalf("open the network namespace of the thread: %v: is /proc mounted?", err)
	}
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		unix.Close(back)
		runtime.UnlockOSThread()
		if errors.Is(err, unix.EPERM) && (os.Getenv("CI") != "true" || os.Geteuid() != 0) {
			t.Skipf("create a network namespace: %v: run the tests as root", err)
		}
		t.Fatalf("create a network namespace: %v", err)
	}
	defer n.restore(back)
	needIsolation(t)
	if n.fd, err = openNamespace(); err != nil {
		t.Fatalf("open the new network namespace: %v", err)
	}
	t.Cleanup(func() { unix.Close(n.fd) })
	var stat unix.Stat_t
	if err := unix.Fstat(n.fd, &stat); err != nil {
		t.Fatalf("stat the new network namespace: %v", err)
	}
	n.inode = stat.Ino
	if n.handle, err = netlink.NewHandle(unix.NETLINK_ROUTE); err != nil {
		t.Fatalf("open netlink: %v", err)
	}
	t.Cleanup(n.handle.Close)
	for key, value := range quiet {
		if err := os.WriteFile(filepath.Join("/proc/sys/net", key), []byte(value), 0); err != nil {
			t.Fatalf("set sysctl %s: %v", key, err)
		}
	}
	if err := n.handle.LinkSetUp(n.link("lo")); err != nil {
		t.Fatalf("set lo up: %v", err)
	}
	return n
}

// Do runs f in the namespace, in the caller's goroutine. Sockets opened by f and processes
// started by f belong to the namespace. Goroutines started by f do not run in it. Calls may
// be nested. Several goroutines may call Do; a failure to enter or leave the namespace ends
// the goroutine. After f returns, panics or exits, the goroutine is in its previous
// namespace again.
func (n *Namespace) Do(f func()) {
	n.t.Helper()
	back, err := lockThread()
	if err != nil {
		n.t.Fatalf("open the network namespace of the thread: %v", err)
	}
	defer n.restore(back)
	if err := unix.Setns(n.fd, unix.CLONE_NEWNET); err != nil {
		n.t.Fatalf("enter a network namespace: %v", err)
	}
	f()
}

// Inode returns the inode number of the namespace, as in /proc/PID/ns/net.
func (n *Namespace) Inode() uint64 { return n.inode }

// Cookie returns the cookie of the namespace, a number never reused by the kernel.
func (n *Namespace) Cookie() (cookie uint64) {
	n.t.Helper()
	var err error
	n.Do(func() {
		var fd int
		if fd, err = unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err == nil {
			cookie, err = unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
			unix.Close(fd)
		}
	})
	if err != nil {
		n.t.Fatalf("get the cookie of the network namespace: %v", err)
	}
	return cookie
}

// Run runs a command in the namespace and returns its standard output. If the command fails
// or takes longer than five minutes, the test fails.
func (n *Namespace) Run(name string, args ...string) string {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), waitLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.WaitDelay = waitLimit // the command starts no children, but a busy machine is slow
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	var err error
	n.Do(func() { err = cmd.Run() })
	if err != nil {
		n.t.Fatalf("run %v: %v\n%s%s", cmd.Args, errors.Join(ctx.Err(), err), &stdout, &stderr)
	}
	return stdout.String()
}

// Start starts a command in the namespace. When the test ends, the process is killed and waited
// for, but not its children. The test may also wait for the process, in one goroutine, which must
// end before the test.
func (n *Namespace) Start(cmd *exec.Cmd) {
	n.t.Helper()
	if cmd.WaitDelay == 0 {
		cmd.WaitDelay = waitDelay
	}
	var err error
	n.Do(func() { err = cmd.Start() })
	if err != nil {
		n.t.Fatalf("start %v: %v", cmd.Args, err)
	}
	n.t.Cleanup(func() {
		_ = cmd.Process.Kill() // the process may have ended
		_ = cmd.Wait()         // reports the kill
	})
}

// lockThread locks the goroutine to its thread and returns the present network namespace,
// for restore.
func lockThread() (back int, err error) {
	runtime.LockOSThread()
	if back, err = openNamespace(); err != nil {
		runtime.UnlockOSThread()
	}
	return back, err
}

// restore undoes lockThread. If it cannot, it ends the goroutine. The thread ends too,
// because the goroutine is still locked to it.
func (n *Namespace) restore(back int) {
	defer unix.Close(back)
	if err := unix.Setns(back, unix.CLONE_NEWNET); err != nil {
		n.t.Fatalf("return to a network namespace: %v", err)
	}
	runtime.UnlockOSThread()
}

// openNamespace opens the network namespace of the calling thread.
func openNamespace() (int, error) {
	return unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
}

// await waits until ready returns true. After waitLimit it fails the test.
func (n *Namespace) await(what string, ready func() bool) {
	n.t.Helper()
	for deadline := time.Now().Add(waitLimit); !ready(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			n.t.Fatalf("waited %v for %s", waitLimit, what)
		}
	}
}
