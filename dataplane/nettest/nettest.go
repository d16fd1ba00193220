//go:build linux

// Package nettest makes network namespaces and veth pairs for tests, on the
// real kernel. It needs root (CAP_SYS_ADMIN and CAP_NET_ADMIN), /proc and the
// veth module, and no program besides.
//
// A namespace has no name: file descriptors, sockets and processes hold it, and
// it is gone when they are. Whatever goes wrong ends the test by t.Fatal, so
// methods are for the goroutine of the test that New was given, unless they say
// otherwise.
package nettest

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const (
	runLimit  = time.Minute      // for a command of Run
	waitLimit = 20 * time.Second // for the kernel to settle
	waitDelay = time.Second      // for the pipes of a dead command, which its children may hold
)

// Namespace is a network namespace. Its loopback device is up.
type Namespace struct {
	t      testing.TB
	fd     int
	inode  uint64
	handle *netlink.Handle
}

// quiet keeps devices that are made later from talking IPv6 on their own.
var quiet = map[string]string{
	"ipv6/conf/default/accept_dad":           "0",
	"ipv6/conf/default/accept_ra":            "0",
	"ipv6/conf/default/addr_gen_mode":        "1", // none: no link-local address
	"ipv6/conf/default/router_solicitations": "0",
}

// New makes a network namespace that goes away with the test. It skips the test
// where privilege is missing, but fails it where CI=true and the user is root.
func New(t testing.TB) *Namespace {
	t.Helper()
	n := &Namespace{t: t, fd: -1}
	back, err := lockThread()
	if err != nil {
		t.Fatalf("open the thread's network namespace: %v: is /proc mounted?", err)
	}
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		unix.Close(back)
		runtime.UnlockOSThread()
		if errors.Is(err, unix.EPERM) && (os.Getenv("CI") != "true" || os.Geteuid() != 0) {
			t.Skipf("make a network namespace: %v: run the tests as root", err)
		}
		t.Fatalf("make a network namespace: %v", err)
	}
	defer n.restore(back)
	if n.fd, err = open(); err != nil {
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
			t.Fatalf("silence IPv6: %v", err)
		}
	}
	if err := n.handle.LinkSetUp(n.link("lo")); err != nil {
		t.Fatalf("set lo up: %v", err)
	}
	return n
}

// Do runs f in the namespace, on the caller's goroutine. Sockets opened and
// processes started in f belong to the namespace; goroutines started in f do not
// run in it. Calls may nest, and may be made from several goroutines, where a
// failure to enter or leave ends the goroutine. After f, however it ends, the
// goroutine is where it was before.
func (n *Namespace) Do(f func()) {
	n.t.Helper()
	back, err := lockThread()
	if err != nil {
		n.t.Fatalf("open the thread's network namespace: %v", err)
	}
	defer n.restore(back)
	if err := unix.Setns(n.fd, unix.CLONE_NEWNET); err != nil {
		n.t.Fatalf("enter a network namespace: %v", err)
	}
	f()
}

// Inode is the namespace's inode number, as in /proc/PID/ns/net.
func (n *Namespace) Inode() uint64 { return n.inode }

// Cookie is the number of the namespace that the kernel never uses again.
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
		n.t.Fatalf("cookie of the network namespace: %v", err)
	}
	return cookie
}

// Run executes a command in the namespace and returns its standard output. A
// command fails the test where it fails or takes longer than a minute.
func (n *Namespace) Run(name string, args ...string) string {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), runLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.WaitDelay = waitLimit // it has no children, but a busy machine may be slow
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	var err error
	n.Do(func() { err = cmd.Run() })
	if err != nil {
		n.t.Fatalf("run %v: %v\n%s%s", cmd.Args, errors.Join(ctx.Err(), err), &stdout, &stderr)
	}
	return stdout.String()
}

// Start starts a command in the namespace. When the test ends the process, but
// none of its children, is killed and waited for. The test may wait for it
// itself, in one goroutine that is done by then.
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
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()         // it was killed
	})
}

// lockThread locks the goroutine to its thread and returns the network namespace
// to restore.
func lockThread() (back int, err error) {
	runtime.LockOSThread()
	if back, err = open(); err != nil {
		runtime.UnlockOSThread()
	}
	return back, err
}

// restore undoes lockThread. Where it cannot, the goroutine ends, and its thread
// with it, because it is still locked.
func (n *Namespace) restore(back int) {
	defer unix.Close(back)
	if err := unix.Setns(back, unix.CLONE_NEWNET); err != nil {
		n.t.Fatalf("return to a network namespace: %v", err)
	}
	runtime.UnlockOSThread()
}

// open opens the network namespace of the calling thread.
func open() (int, error) {
	return unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
}

// await fails the test where ready does not hold within waitLimit.
func (n *Namespace) await(what string, ready func() bool) {
	n.t.Helper()
	for deadline := time.Now().Add(waitLimit); !ready(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			n.t.Fatalf("waited %v for %s", waitLimit, what)
		}
	}
}
