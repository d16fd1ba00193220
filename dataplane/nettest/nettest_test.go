//go:build linux

package nettest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// pair returns two namespaces connected by v0 and v0.
func pair(t testing.TB) (a, b *Namespace) {
	t.Helper()
	a, b = New(t), New(t)
	a.Veth(b)
	return a, b
}

// currentInode returns the inode number of the calling thread's network namespace.
func currentInode(t testing.TB) uint64 {
	t.Helper()
	var stat unix.Stat_t
	if err := unix.Stat("/proc/thread-self/ns/net", &stat); err != nil {
		t.Fatal(err)
	}
	return stat.Ino
}

// ethernet returns a frame of n bytes from a to b. headers are its VLAN tags and EtherType, in
// units of 16 bits.
func ethernet(n int, headers ...uint16) []byte {
	f := append(bytes.Clone(ends[1].mac), ends[0].mac...)
	for _, h := range headers {
		f = binary.BigEndian.AppendUint16(f, h)
	}
	for i := len(f); i < n; i++ {
		f = append(f, byte(i))
	}
	return f
}

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
		n.Do(func() { t.SkipNow() })
		t.Error("the caller continued after SkipNow")
	})
}

// TestEcho sends a datagram and its reply over IPv4 and IPv6, and checks that the wire carries
// no other frames.
func TestEcho(t *testing.T) {
	t.Parallel()
	a, b := pair(t)
	for network, addr := range map[string]string{"udp4": "10.0.0.2:7", "udp6": "[fd00::2]:7"} {
		toB, toA := b.Sniff("v0"), a.Sniff("v0")
		var server net.PacketConn
		var client net.Conn
		var err error
		b.Do(func() { server, err = net.ListenPacket(network, addr) })
		if err != nil {
			t.Fatal(err)
		}
		defer server.Close()
		a.Do(func() { client, err = net.Dial(network, addr) })
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		deadline := time.Now().Add(waitLimit)
		_, _ = server.SetDeadline(deadline), client.SetDeadline(deadline)
		if _, err := client.Write([]byte("ping")); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 100)
		n, from, err := server.ReadFrom(buf)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := server.WriteTo(buf[:n], from); err != nil {
			t.Fatal(err)
		}
		if n, err = client.Read(buf); err != nil || string(buf[:n]) != "ping" {
			t.Errorf("%s: read %q, %v, want ping", network, buf[:n], err)
		}
		if there, back := toB.Stop(), toA.Stop(); len(there) != 1 || len(back) != 1 {
			t.Errorf("%s: %d frames sent and %d returned, want 1 and 1", network, len(there), len(back))
		}
	}
}

func TestSniff(t *testing.T) {
	t.Parallel()
	a, b := pair(t)
	var sent [][]byte
	for i := range 1000 {
		frame := ethernet(60, 0x0800)
		binary.BigEndian.PutUint32(frame[20:], uint32(i))
		sent = append(sent, frame)
	}
	sent = append(sent,
		ethernet(14, 0x88b5),
		ethernet(1514, 0x86dd),
		ethernet(64, 0x8100, 0x6123, 0x0800),
		ethernet(64, 0x8100, 0xe000, 0x0800), // priority tag, VLAN 0
		ethernet(1518, 0x8100, 0x0fff, 0x0800),
		ethernet(64, 0x88a8, 0x2064, 0x8100, 0x60c8, 0x86dd),
		ethernet(1518, 0x8100, 0x0001, 0x8100, 0x0002, 0x0800),
	)
	s, own := b.Sniff("v0"), a.Sniff("v0")
	before := time.Now().UnixNano()
	a.Inject("v0", sent...)
	if !s.Wait(len(sent), waitLimit) {
		t.Error("too few frames")
	}
	after := time.Now().UnixNano()
	got := s.Stop()
	if len(got) != len(sent) {
		t.Fatalf("%d frames, want %d", len(got), len(sent))
	}
	for i, f := range got {
		if !bytes.Equal(f.Data, sent[i]) {
			t.Errorf("frame %d:\n got %x\nwant %x", i, f.Data, sent[i])
		}
		if f.Time < before || f.Time > after {
			t.Errorf("frame %d: time %d, want within [%d, %d]", i, f.Time, before, after)
		}
		before = f.Time
	}
	if got := own.Stop(); len(got) != 0 {
		t.Errorf("captured %d frames on the sending device, want 0", len(got))
	}
	if again := s.Stop(); len(again) != len(sent) {
		t.Errorf("second Stop: %d frames, want %d", len(again), len(sent))
	}
}

// fatalTB records the message of Fatalf, which ends only the goroutine.
type fatalTB struct {
	testing.TB
	message string
}

func (t *fatalTB) Fatalf(format string, args ...any) {
	t.message = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

// TestSniffDrops checks that a capture with drops fails: it stops the reader until the buffer
// overflows.
func TestSniffDrops(t *testing.T) {
	t.Parallel()
	a, b := pair(t)
	s := b.Sniff("v0")
	var fatal fatalTB
	fatal.TB, s.t = t, &fatal
	s.mu.Lock()
	if err := s.conn.Control(func(fd uintptr) {
		if err := unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 4096); err != nil {
			t.Error(err)
		}
	}); err != nil {
		t.Error(err)
	}
	for range 100 {
		a.Inject("v0", ethernet(1000, 0x0800))
	}
	s.mu.Unlock()
	var wait sync.WaitGroup
	wait.Go(func() { s.Stop() })
	wait.Wait()
	if !strings.Contains(fatal.message, "of 100 frames") {
		t.Errorf("failed with %q, want the number of drops", fatal.message)
	}
}

// TestQuiet checks that a new pair carries no frames that the test did not send.
func TestQuiet(t *testing.T) {
	t.Parallel()
	a, b := pair(t)
	sa, sb := a.Sniff("v0"), b.Sniff("v0")
	time.Sleep(300 * time.Millisecond)
	for _, f := range append(sa.Stop(), sb.Stop()...) {
		t.Errorf("stray frame: %x", f.Data)
	}
	for _, n := range []*Namespace{a, b} {
		if s := n.link("v0").Attrs().Statistics; s.RxPackets != 0 || s.TxPackets != 0 || s.TxDropped != 0 {
			t.Errorf("%d packets received, %d sent, %d dropped, want none", s.RxPackets, s.TxPackets, s.TxDropped)
		}
	}
}

// transfer sends n bytes by TCP from a to b, and returns the frames that arrive at b.
func transfer(t *testing.T, a, b *Namespace, addr string, n int) []Frame {
	t.Helper()
	var listener net.Listener
	var client net.Conn
	var err error
	s := b.Sniff("v0")
	b.Do(func() { listener, err = net.Listen("tcp", net.JoinHostPort(addr, "0")) })
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	a.Do(func() { client, err = net.DialTimeout("tcp", listener.Addr().String(), waitLimit) })
	if err != nil {
		t.Fatal(err)
	}
	server, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	go func() {
		_, _ = client.Write(make([]byte, n)) // the reader checks the number of bytes
		client.Close()
	}()
	_ = server.SetDeadline(time.Now().Add(waitLimit))
	if got, err := io.Copy(io.Discard, server); got != int64(n) || err != nil {
		t.Fatalf("transferred %d bytes, %v, want %d", got, err, n)
	}
	return s.Stop()
}

// longest returns the length of the longest frame, bytes.
func longest(frames []Frame) (n int) {
	for _, f := range frames {
		n = max(n, len(f.Data))
	}
	return n
}

func TestOffload(t *testing.T) {
	t.Parallel()
	a, b := pair(t)
	b.Offload("v0", "gro", false)
	for _, on := range []bool{true, false, true} {
		a.Offload("v0", "tso", on)
		for _, addr := range []string{"10.0.0.2", "fd00::2"} {
			if got := longest(transfer(t, a, b, addr, 1<<20)); got > 1514 != on {
				t.Errorf("tso %v to %s: longest frame has %d bytes", on, addr, got)
			}
		}
	}
	for _, feature := range []string{"gso", "gro", "tx-checksum", "tx-udp-segmentation"} {
		a.Offload("v0", feature, false)
		a.Offload("v0", feature, true)
	}
	// Without checksum offload frames have a valid checksum.
	a.Offload("v0", "tx-checksum", false)
	for _, f := range transfer(t, a, b, "10.0.0.2", 1000) {
		segment := f.Data[34:] // after the Ethernet and IPv4 headers
		sum := uint32(unix.IPPROTO_TCP) + uint32(len(segment))
		for _, b := range [][]byte{f.Data[26:34], segment} {
			for i := range b {
				sum += uint32(b[i]) << (8 * (1 - i%2))
			}
		}
		for sum > 0xffff {
			sum = sum>>16 + sum&0xffff
		}
		if sum != 0xffff {
			t.Errorf("checksum off by %#x in %x", ^uint16(sum), f.Data)
		}
	}
}

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
// test: the other end of its veth pair disappears, and no process refers to its inode.
func TestCleanup(t *testing.T) {
	outer := New(t)
	outer.Sniff("lo").Stop() // opens descriptors that stay open
	descriptors := count(t, "/proc/self/fd")
	var inode uint64
	t.Run("inner", func(t *testing.T) {
		inner := New(t)
		inode = inner.Inode()
		outer.Veth(inner)
		inner.Sniff("v0")
		inner.Start(exec.Command("sleep", "100"))
		outer.Inject("v0", ethernet(60, 0x0800))
		if left := holders(t, inode); len(left) == 0 {
			t.Error("found no reference to the namespace")
		}
	})
	for _, path := range holders(t, inode) {
		t.Errorf("%s refers to the namespace", path)
	}
	outer.await("deletion of v0", func() bool {
		links, err := outer.handle.LinkList()
		if err != nil {
			t.Fatal(err)
		}
		return len(links) == 1 // lo
	})
	if got := count(t, "/proc/self/fd"); got > descriptors {
		t.Errorf("%d file descriptors, %d before", got, descriptors)
	}
}

// count returns the number of entries of a directory.
func count(t *testing.T, dir string) int {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// holders returns the threads and file descriptors that refer to a network namespace.
func holders(t *testing.T, inode uint64) (paths []string) {
	t.Helper()
	for _, pattern := range []string{"/proc/[0-9]*/task/*/ns/net", "/proc/[0-9]*/fd/*"} {
		matches, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range matches {
			if link, err := os.Readlink(path); err == nil && link == fmt.Sprintf("net:[%d]", inode) {
				paths = append(paths, path)
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
