//go:build linux

package nettest

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// isolated exists in the /run of Isolate.
const isolated = "/run/.shaper-tests"

// Isolate gives this process and its children a network with lo alone, an empty /run and an empty
// bpffs, to keep tests from seeing or changing the shapers and budgets of the host, or those of
// another package's tests. TestMain must call it before m.Run. Without privilege it does nothing.
//
// It starts the program again in new namespaces, in the same process: a thread of a running Go
// program cannot take the others with it.
func Isolate() {
	if isIsolated() {
		return
	}
	err := enterIsolation()
	if errors.Is(err, unix.EPERM) {
		return // New skips the test
	}
	if err == nil {
		err = unix.Exec("/proc/self/exe", os.Args, os.Environ())
	}
	fmt.Fprintln(os.Stderr, "isolate the tests:", err)
	os.Exit(1)
}

func isIsolated() bool {
	_, err := os.Stat(isolated)
	return err == nil
}

// enterIsolation moves the calling thread, to which the goroutine stays locked.
func enterIsolation() error {
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNS | unix.CLONE_NEWNET); err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("tmpfs", "/run", "tmpfs", 0, "mode=0755"); err != nil {
		return fmt.Errorf("mount a tmpfs on /run: %w", err)
	}
	// The host's bpffs is not left below ours: a test unmounting ours must find none.
	for unix.Unmount("/sys/fs/bpf", unix.MNT_DETACH) == nil {
	}
	// A kernel without bpffs lacks the folder. Tests that need bpffs report it.
	if err := unix.Mount("bpf", "/sys/fs/bpf", "bpf", 0, "mode=0700"); err != nil &&
		!errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("mount a bpffs on /sys/fs/bpf: %w", err)
	}
	lo, err := netlink.LinkByName("lo")
	if err == nil {
		err = netlink.LinkSetUp(lo)
	}
	if err != nil {
		return fmt.Errorf("set lo up: %w", err)
	}
	return os.WriteFile(isolated, nil, 0o444)
}

// needIsolation fails a test whose TestMain does not call Isolate.
func needIsolation(t TB) {
	t.Helper()
	if testing.Testing() && !isIsolated() {
		t.Fatal("this test would use the /run and the bpffs of the host: call nettest.Isolate in TestMain")
	}
}
