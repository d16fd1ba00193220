//go:build linux

package nettest

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"testing"
)

// TestDo checks that Do runs a function in its namespace, also nested, and that the thread then
// returns to the previous namespace.
func TestDo(t *testing.T) {
	a, b := New(t), New(t)
	outside := currentInode(t)
	if a.Inode() == b.Inode() || a.Inode() == outside {
		t.Fatalf("inodes %d, %d, outside %d: want three different ones", a.Inode(), b.Inode(), outside)
	}
	a.Do(func() {
		if got := currentInode(t); got != a.Inode() {
			t.Errorf("in a: inode %d, want %d", got, a.Inode())
		}
		b.Do(func() {
			if got := currentInode(t); got != b.Inode() {
				t.Errorf("in b: inode %d, want %d", got, b.Inode())
			}
		})
		if got := currentInode(t); got != a.Inode() {
			t.Errorf("back in a: inode %d, want %d", got, a.Inode())
		}
	})
	if got := currentInode(t); got != outside {
		t.Errorf("after Do: inode %d, want %d", got, outside)
	}
}

// TestDoPanic checks that the thread returns to the previous namespace after a panic, which reaches
// the caller.
func TestDoPanic(t *testing.T) {
	n := New(t)
	outside := currentInode(t)
	func() {
		defer func() {
			if got := recover(); got != "oops" {
				t.Errorf("recovered %v, want oops", got)
			}
			if got := currentInode(t); got != outside {
				t.Errorf("after a panic: inode %d, want %d", got, outside)
			}
		}()
		n.Do(func() { panic("oops") })
	}()
}

// TestDoGoexit checks that SkipNow in Do ends the test in the previous namespace.
func TestDoGoexit(t *testing.T) {
	n := New(t)
	t.Run("skip", func(t *testing.T) {
		outside := currentInode(t)
		t.Cleanup(func() {
			if got := currentInode(t); got != outside {
				t.Errorf("after Goexit: inode %d, want %d", got, outside)
			}
			if !t.Skipped() {
				t.Error("the caller continued after SkipNow")
			}
		})
		n.Do(func() { t.Skip("on purpose: the skip must leave the namespace") })
		t.Error("the caller continued after SkipNow")
	})
}

// TestIndexDelete checks the index of a device, and that Delete removes both ends of a veth pair.
func TestIndexDelete(t *testing.T) {
	t.Parallel()
	a, b := New(t), New(t)
	a.VethNamed("left", b, "right")
	var device *net.Interface
	var err error
	a.Do(func() { device, err = net.InterfaceByName("left") })
	if err != nil || device.Index != a.Index("left") || device.MTU != 1500 {
		t.Errorf("device %+v, %v, want index %d and MTU 1500", device, err, a.Index("left"))
	}
	a.Delete("left")
	b.Do(func() { device, err = net.InterfaceByName("right") })
	if err == nil {
		t.Error("right exists without left")
	}
	a.VethNamed("left", b, "right")
}

// TestRunStart checks that commands run in the namespace, and that a started one has ended after
// the test.
func TestRunStart(t *testing.T) {
	t.Parallel()
	n := New(t)
	want := fmt.Sprintf("net:[%d]\n", n.Inode())
	if got := n.Run("readlink", "/proc/self/ns/net"); got != want {
		t.Errorf("run in %q, want %q", got, want)
	}
	cmd := exec.Command("sleep", "100")
	t.Run("start", func(t *testing.T) {
		inner := New(t)
		inner.Start(cmd)
		got, err := os.Readlink(filepath.Join("/proc", strconv.Itoa(cmd.Process.Pid), "ns/net"))
		if want := fmt.Sprintf("net:[%d]", inner.Inode()); got != want || err != nil {
			t.Errorf("started in %q, %v, want %q", got, err, want)
		}
	})
	if cmd.ProcessState == nil || cmd.ProcessState.Success() {
		t.Errorf("state %v, want killed", cmd.ProcessState)
	}
}

// TestCleanup checks that a namespace with sockets, a process and a sniffer is deleted after its
// test: the other end of its veth pair disappears, and neither this process nor the other one refers to it.
func TestCleanup(t *testing.T) {
	outer := New(t)
	outer.Sniff("lo").Stop() // opens descriptors that stay open
	descriptors := countEntries(t, "/proc/self/fd")
	var inode uint64
	sleep := exec.Command("sleep", "100")
	t.Run("inner", func(t *testing.T) {
		inner := New(t)
		inode = inner.Inode()
		outer.Veth(inner)
		inner.Sniff("v0")
		inner.Start(sleep)
		outer.Inject("v0", ethernet(60, 0x0800))
		for _, pid := range []int{os.Getpid(), sleep.Process.Pid} {
			if left := holders(t, inode, pid); len(left) == 0 {
				t.Errorf("got no reference of process %d to the namespace, want some", pid)
			}
		}
	})
	// A namespace of another test may have the same inode number by now.
	for _, path := range holders(t, inode, os.Getpid(), sleep.Process.Pid) {
		t.Errorf("%s still refers to the namespace", path)
	}
	outer.await("deletion of v0", func() bool {
		links, err := outer.handle.LinkList()
		if err != nil {
			t.Fatal(err)
		}
		return len(links) == 1 // lo
	})
	if got := countEntries(t, "/proc/self/fd"); got > descriptors {
		t.Errorf("%d file descriptors, %d before", got, descriptors)
	}
}

// countEntries returns the number of entries of a directory.
func countEntries(t *testing.T, dir string) int {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// holders returns the threads and file descriptors of processes that refer to a network namespace.
func holders(t *testing.T, inode uint64, pids ...int) (paths []string) {
	t.Helper()
	for _, pid := range pids {
		for _, pattern := range []string{"/proc/%d/task/*/ns/net", "/proc/%d/fd/*"} {
			matches, err := filepath.Glob(fmt.Sprintf(pattern, pid))
			if err != nil {
				t.Fatal(err)
			}
			for _, path := range matches {
				if link, err := os.Readlink(path); err == nil && link == fmt.Sprintf("net:[%d]", inode) {
					paths = append(paths, path)
				}
			}
		}
	}
	return paths
}

// TestParallel uses pairs with the same names and addresses in parallel, and several goroutines in
// both namespaces of each.
func TestParallel(t *testing.T) {
	for i := range 4 {
		t.Run(strconv.Itoa(i), func(t *testing.T) {
			t.Parallel()
			a, b := pair(t)
			var wait sync.WaitGroup
			for _, n := range []*Namespace{a, b, a, b} {
				wait.Go(func() {
					for range 1000 {
						n.Do(func() {
							runtime.Gosched()
							if got := currentInode(t); got != n.Inode() {
								t.Errorf("inode %d, want %d", got, n.Inode())
							}
						})
					}
				})
			}
			wait.Wait()
			s := b.Sniff("v0")
			frame := ethernet(100+i, 0x88b5)
			a.Inject("v0", frame, frame)
			s.Wait(2, waitLimit)
			got := s.Stop()
			if len(got) != 2 {
				t.Errorf("%d frames, want 2", len(got))
			}
			for _, f := range got {
				if !bytes.Equal(f.Data, frame) {
					t.Errorf("got %x, want %x", f.Data, frame)
				}
			}
		})
	}
}
