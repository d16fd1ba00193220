package tap

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/a-seed-32e5a53f/shaper/dataplane/nettest"
)

// TestTCP checks that TCP crosses a TAP device intact, in GSO frames, to
// another TAP device and to an uplink that has to fill in checksums and segment
// in software.
func TestTCP(t *testing.T) {
	for _, row := range []struct {
		queues int
		far    string
	}{{1, "tap"}, {2, "tap"}, {1, "uplink"}, {2, "uplink"}} {
		t.Run(fmt.Sprintf("%d %s", row.queues, row.far), func(t *testing.T) {
			a, b := nettest.New(t), nettest.New(t)
			near := openTAP(t, a, Config{Name: "t0", Queues: row.queues})
			configureHost(t, a, "t0", "02:00:00:00:00:03", "10.0.0.3/24", "fd00::3/64")
			var far *Interface
			name := "t0"
			if row.far == "tap" {
				far = openTAP(t, b, Config{Name: name, Queues: row.queues})
				configureHost(t, b, name, "02:00:00:00:00:02", "10.0.0.2/24", "fd00::2/64")
			} else {
				name = "v0"
				middle := nettest.New(t)
				middle.Veth(b)
				middle.Offload("v0", "tx-checksum", false)
				far = uplinkIn(t, middle, "v0", row.queues)
			}
			neighbour(t, a, "t0", "02:00:00:00:00:02", "10.0.0.2", "fd00::2")
			neighbour(t, b, name, "02:00:00:00:00:03", "10.0.0.3", "fd00::3")
			c := forwardFrames(t, near, far)
			for _, to := range []string{"10.0.0.2", "fd00::2"} {
				transferTCP(t, a, b, to, 4<<20)
			}
			for _, to := range []string{"10.0.0.3", "fd00::3"} {
				transferTCP(t, b, a, to, 4<<20)
			}
			if c.merged.Load() == 0 {
				t.Errorf("got no merged frame among %d", c.frames.Load())
			}
			for _, n := range []*nettest.Namespace{a, b} {
				if got := sumErrors(t, n); got != "0" {
					t.Errorf("got %s checksum errors, want 0", got)
				}
			}
			t.Logf("%d frames, %d merged, %d refused", c.frames.Load(), c.merged.Load(), c.refused.Load())
		})
	}
}

// transferTCP sends bytes over TCP and compares the received ones.
func transferTCP(t *testing.T, from, to *nettest.Namespace, address string, size int) {
	t.Helper()
	data := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(data)
	var listener net.Listener
	var err error
	to.Do(func() { listener, err = net.Listen("tcp", net.JoinHostPort(address, "5001")) })
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	type result struct {
		sum [32]byte
		n   int64
		err error
	}
	received := make(chan result, 1)
	go func() {
		var r result
		defer func() { received <- r }()
		conn, err := listener.Accept()
		if err != nil {
			r.err = err
			return
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(kernelLimit))
		hash := sha256.New()
		r.n, r.err = io.Copy(hash, conn)
		hash.Sum(r.sum[:0])
	}()
	fd, err := dialTCP(from, net.ParseIP(address), 5001)
	if err != nil {
		t.Fatalf("connect to %s: %v", address, err)
	}
	file := os.NewFile(uintptr(fd), "socket")
	conn, err := net.FileConn(file)
	file.Close()
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.SetDeadline(time.Now().Add(kernelLimit))
	_, err = conn.Write(data)
	if err = errors.Join(err, conn.Close()); err != nil {
		t.Fatalf("send to %s: %v", address, err)
	}
	if r := <-received; r.err != nil || r.n != int64(size) || r.sum != sha256.Sum256(data) {
		t.Errorf("to %s: got %d bytes, %v, equal %v, want %d equal bytes", address, r.n, r.err,
			r.sum == sha256.Sum256(data), size)
	}
}

// dialTCP connects from a namespace. A net.Dialer could use another thread.
func dialTCP(n *nettest.Namespace, to net.IP, port int) (fd int, err error) {
	family, address := unix.AF_INET6, unix.Sockaddr(
		&unix.SockaddrInet6{Port: port, Addr: [16]byte(to.To16())})
	if v4 := to.To4(); v4 != nil {
		family, address = unix.AF_INET, &unix.SockaddrInet4{Port: port, Addr: [4]byte(v4)}
	}
	n.Do(func() { fd, err = unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0) })
	if err != nil {
		return -1, err
	}
	timeout := unix.NsecToTimeval(int64(kernelLimit))
	err = errors.Join(unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &timeout),
		unix.Connect(fd, address))
	return fd, errors.Join(err, unix.SetNonblock(fd, true))
}

// sumErrors returns the number of TCP segments with a wrong checksum; see
// proc_pid_net(5).
func sumErrors(t *testing.T, n *nettest.Namespace) string {
	t.Helper()
	var text []byte
	var err error
	n.Do(func() { text, err = os.ReadFile("/proc/thread-self/net/snmp") })
	if err != nil {
		t.Fatal(err)
	}
	var rows [][]string
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "Tcp: ") {
			rows = append(rows, strings.Fields(line))
		}
	}
	return rows[1][slices.Index(rows[0], "InCsumErrors")]
}
