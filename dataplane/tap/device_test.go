package tap

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/a-seed-32e5a53f/shaper/dataplane/nettest"
)

// TestTAP checks that frames cross a TAP device in both directions, each once.
func TestTAP(t *testing.T) {
	for _, queues := range []int{1, 4} {
		t.Run(fmt.Sprint(queues), func(t *testing.T) {
			n := nettest.New(t)
			d := openTAP(t, n, Config{Name: "t0", Queues: queues})
			if d.Name() != "t0" || len(d.Ports()) != queues {
				t.Fatalf("%s has %d ports", d.Name(), len(d.Ports()))
			}
			var frames [][]byte
			for i, length := range []int{60, 64, 594, 1514} {
				frames = append(frames, frame(length, i))
			}
			n.Inject("t0", frames...)
			var got [][]byte
			for _, b := range collect(t, d, len(frames), isTest) {
				got = append(got, b[HeaderLen:])
			}
			same(t, "out of the kernel", got, frames)

			s := n.Sniff("t0")
			for q, p := range d.Ports() {
				if sent, err := p.Write([][]byte{plain(frames[q%len(frames)])}); sent != 1 || err != nil {
					t.Fatalf("port %d wrote %d: %v", q, sent, err)
				}
			}
			s.Wait(queues, limit)
			got = nil
			for _, f := range s.Stop() {
				got = append(got, f.Data)
			}
			same(t, "into the kernel", got, frames[:queues])
		})
	}
}

// same compares frames in any order.
func same(t *testing.T, name string, got, want [][]byte) {
	t.Helper()
	got, want = slices.Clone(got), slices.Clone(want)
	slices.SortFunc(got, bytes.Compare)
	slices.SortFunc(want, bytes.Compare)
	if !slices.EqualFunc(got, want, bytes.Equal) {
		t.Errorf("%s: %d frames, want %d: %x, want %x", name, len(got), len(want), got, want)
	}
}

// TestNames checks that the kernel can choose the name.
func TestNames(t *testing.T) {
	n := nettest.New(t)
	for i, name := range []string{"", "tap%d", "wan%d"} {
		if got, want := openTAP(t, n, Config{Name: name}).Name(), []string{"tap0", "tap1", "wan0"}[i]; got != want {
			t.Errorf("%q became %q, want %q", name, got, want)
		}
	}
}

// TestMTU checks that the device is up, with the requested MTU.
func TestMTU(t *testing.T) {
	n := nettest.New(t)
	openTAP(t, n, Config{Name: "t0", MTU: 9000})
	n.Do(func() {
		link, err := netlink.LinkByName("t0")
		if err != nil {
			t.Fatal(err)
		}
		if a := link.Attrs(); a.MTU != 9000 || a.Flags&net.FlagUp == 0 {
			t.Errorf("MTU %d, flags %v", a.MTU, a.Flags)
		}
	})
}

// exists reports whether a namespace has a device.
func exists(n *nettest.Namespace, name string) (yes bool) {
	n.Do(func() {
		_, err := netlink.LinkByName(name)
		yes = err == nil
	})
	return yes
}

// persistent creates a device like ip tuntap add.
func persistent(t *testing.T, n *nettest.Namespace, name string, mode netlink.TuntapMode, flags netlink.TuntapFlag) {
	t.Helper()
	needTUN(t)
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	var err error
	n.Do(func() { err = netlink.LinkAdd(&netlink.Tuntap{LinkAttrs: attrs, Mode: mode, Flags: flags}) })
	if err != nil {
		t.Fatal(err)
	}
}

// TestPersistence checks that a device outlives its queues if and only if it is
// persistent.
func TestPersistence(t *testing.T) {
	n := nettest.New(t)
	persistent(t, n, "one", netlink.TUNTAP_MODE_TAP, netlink.TUNTAP_NO_PI)
	persistent(t, n, "many", netlink.TUNTAP_MODE_TAP, netlink.TUNTAP_NO_PI|netlink.TUNTAP_MULTI_QUEUE)
	for _, row := range []struct {
		name   string
		queues int
		stays  bool
	}{{"one", 1, true}, {"many", 1, true}, {"many", 4, true}, {"new", 1, false}, {"new", 4, false}} {
		d := openTAP(t, n, Config{Name: row.name, Queues: row.queues})
		n.Inject(row.name, frame(1514, 1))
		collect(t, d, 1, isTest)
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		if got := exists(n, row.name); got != row.stays {
			t.Errorf("%s with %d queues: exists after Close: %v", row.name, row.queues, got)
		}
	}
}

// TestOpenErrors checks that errors state a remedy.
func TestOpenErrors(t *testing.T) {
	n, other := nettest.New(t), nettest.New(t)
	n.Veth(other)
	openTAP(t, n, Config{Name: "held"})
	openTAP(t, n, Config{Name: "helds", Queues: 2})
	persistent(t, n, "tun", netlink.TUNTAP_MODE_TUN, netlink.TUNTAP_NO_PI)
	persistent(t, n, "one", netlink.TUNTAP_MODE_TAP, netlink.TUNTAP_NO_PI)
	for _, row := range []struct {
		config Config
		want   string
	}{
		{Config{Name: "sixteen-bytes-16"}, "the maximum is 15"},
		{Config{Name: "a/b"}, "invalid interface name"},
		{Config{Name: "x", Queues: -1}, "1 to 256"},
		{Config{Name: "x", Queues: 257}, "1 to 256"},
		{Config{Name: "x", MTU: 70000}, "set the MTU to 70000"},
		{Config{Name: "v0"}, "of type veth: choose another name"},
		{Config{Name: "tun"}, "TUN device"},
		{Config{Name: "held"}, "a program holds it"},
		{Config{Name: "helds", Queues: 2}, "a program holds it"},
		{Config{Name: "one", Queues: 2}, "multi_queue"},
	} {
		var err error
		n.Do(func() { _, err = Open(row.config) })
		if err == nil || !strings.Contains(err.Error(), row.want) || !strings.HasPrefix(err.Error(), fmt.Sprintf("open tap %q: ", row.config.Name)) {
			t.Errorf("%+v: %v, want %q", row.config, err, row.want)
		}
	}
	if exists(n, "x") {
		t.Error("a device exists that could not be opened")
	}
	var err error
	n.Do(func() { without(t, unix.CAP_NET_ADMIN, func() { _, err = Open(Config{Name: "x"}) }) })
	if !errors.Is(err, unix.EPERM) || !strings.Contains(err.Error(), "CAP_NET_ADMIN") {
		t.Errorf("without privilege: %v", err)
	}
	if err := nowhere(t.TempDir(), func() error { _, err := Open(Config{}); return err }); !errors.Is(err, unix.ENOENT) || !strings.Contains(err.Error(), "modprobe tun") {
		t.Errorf("without %s: %v", tun, err)
	}
}

// without calls f on this thread without a capability; see capabilities(7).
func without(t *testing.T, capability int, f func()) {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var before [2]unix.CapUserData
	if err := unix.Capget(&header, &before[0]); err != nil {
		t.Fatal(err)
	}
	after := before
	after[capability/32].Effective &^= 1 << (capability % 32)
	if err := unix.Capset(&header, &after[0]); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Capset(&header, &before[0]); err != nil {
			t.Fatal(err)
		}
	}()
	f()
}

// nowhere calls f on a thread whose root is an empty directory.
func nowhere(root string, f func() error) error {
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if err := errors.Join(unix.Unshare(unix.CLONE_FS), unix.Chroot(root)); err != nil {
			result <- err
			return
		}
		result <- f()
	}()
	return <-result
}

// TestRefusals checks that only the frame that cannot be sent is lost.
func TestRefusals(t *testing.T) {
	n := nettest.New(t)
	d := openTAP(t, n, Config{Name: "t0"})
	p := d.Ports()[0]
	s := n.Sniff("t0")
	wrong := plain(frame(60, 2))
	wrong[1] = 77 // unknown GSO type
	frames := [][]byte{plain(frame(60, 1)), wrong, {}, {1, 2, 3}, plain(frame(60, 3))}
	if sent, err := p.Write(frames); sent != 2 || err != nil {
		t.Errorf("wrote %d, %v", sent, err)
	}
	for i, b := range frames {
		if lost := len(b) == 0; lost != (i > 0 && i < 4) {
			t.Errorf("frame %d lost: %v", i, lost)
		}
	}
	s.Wait(2, limit)
	if got := s.Stop(); len(got) != 2 {
		t.Errorf("%d frames arrived", len(got))
	}
	setUp(t, n, "t0", false)
	if sent, err := p.Write([][]byte{plain(frame(60, 4))}); sent != 0 || err != nil {
		t.Errorf("down: wrote %d, %v", sent, err)
	}
	setUp(t, n, "t0", true)
	if sent, err := p.Write([][]byte{plain(frame(60, 5))}); sent != 1 || err != nil {
		t.Errorf("up again: wrote %d, %v", sent, err)
	}
	// A buffer that is too small loses its frame, and no other.
	n.Inject("t0", frame(1000, 6))
	if err := p.Wait(Now() + int64(limit)); err != nil {
		t.Error(err)
	}
	if k, err := p.Read([][]byte{make([]byte, 500)}); k != 0 || err != nil {
		t.Errorf("small buffer: read %d frames, %v", k, err)
	}
	n.Inject("t0", frame(100, 7))
	collect(t, d, 1, isTest)
}

// setUp sets a device up or down.
func setUp(t *testing.T, n *nettest.Namespace, name string, up bool) {
	t.Helper()
	var err error
	n.Do(func() {
		link, e := netlink.LinkByName(name)
		switch {
		case e != nil:
			err = e
		case up:
			err = netlink.LinkSetUp(link)
		default:
			err = netlink.LinkSetDown(link)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestDeleted checks that a port notices the deletion of its TAP device.
func TestDeleted(t *testing.T) {
	n := nettest.New(t)
	d := openTAP(t, n, Config{Name: "t0", Queues: 2})
	result := make(chan error)
	for _, p := range d.Ports() {
		go func() { result <- awaitGone(p) }()
	}
	time.Sleep(10 * time.Millisecond) // so that most calls are blocked
	n.Delete("t0")
	for _, p := range d.Ports() {
		if err := <-result; !errors.Is(err, ErrGone) {
			t.Error(err)
		}
		defer goneFor(t, p)
	}
}

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
			host(t, a, "t0", "02:00:00:00:00:03", "10.0.0.3/24", "fd00::3/64")
			var far *Interface
			name := "t0"
			if row.far == "tap" {
				far = openTAP(t, b, Config{Name: name, Queues: row.queues})
				host(t, b, name, "02:00:00:00:00:02", "10.0.0.2/24", "fd00::2/64")
			} else {
				name = "v0"
				middle := nettest.New(t)
				middle.Veth(b)
				middle.Offload("v0", "tx-checksum", false)
				far = uplink(t, middle, "v0", row.queues)
			}
			neighbour(t, a, "t0", "02:00:00:00:00:02", "10.0.0.2", "fd00::2")
			neighbour(t, b, name, "02:00:00:00:00:03", "10.0.0.3", "fd00::3")
			c := wire(t, near, far)
			for _, to := range []string{"10.0.0.2", "fd00::2"} {
				transfer(t, a, b, to, 4<<20)
			}
			for _, to := range []string{"10.0.0.3", "fd00::3"} {
				transfer(t, b, a, to, 4<<20)
			}
			if c.merged.Load() == 0 {
				t.Errorf("none of %d frames was merged", c.frames.Load())
			}
			for _, n := range []*nettest.Namespace{a, b} {
				if got := sumErrors(t, n); got != "0" {
					t.Errorf("%s checksum errors", got)
				}
			}
			t.Logf("%d frames, %d merged, %d refused", c.frames.Load(), c.merged.Load(), c.refused.Load())
		})
	}
}

// transfer sends bytes over TCP and compares the received ones.
func transfer(t *testing.T, from, to *nettest.Namespace, address string, size int) {
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
		_ = conn.SetDeadline(time.Now().Add(limit))
		hash := sha256.New()
		r.n, r.err = io.Copy(hash, conn)
		hash.Sum(r.sum[:0])
	}()
	fd, err := dial(from, net.ParseIP(address), 5001)
	if err != nil {
		t.Fatalf("connect to %s: %v", address, err)
	}
	file := os.NewFile(uintptr(fd), "socket")
	conn, err := net.FileConn(file)
	file.Close()
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.SetDeadline(time.Now().Add(limit))
	_, err = conn.Write(data)
	if err = errors.Join(err, conn.Close()); err != nil {
		t.Fatalf("send to %s: %v", address, err)
	}
	if r := <-received; r.err != nil || r.n != int64(size) || r.sum != sha256.Sum256(data) {
		t.Errorf("to %s: received %d bytes of %d, %v, equal: %v", address, r.n, size, r.err, r.sum == sha256.Sum256(data))
	}
}

// dial connects from a namespace. A net.Dialer could use another thread.
func dial(n *nettest.Namespace, to net.IP, port int) (fd int, err error) {
	family, address := unix.AF_INET6, unix.Sockaddr(&unix.SockaddrInet6{Port: port, Addr: [16]byte(to.To16())})
	if v4 := to.To4(); v4 != nil {
		family, address = unix.AF_INET, &unix.SockaddrInet4{Port: port, Addr: [4]byte(v4)}
	}
	n.Do(func() { fd, err = unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0) })
	if err != nil {
		return -1, err
	}
	timeout := unix.NsecToTimeval(int64(limit))
	err = errors.Join(unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &timeout), unix.Connect(fd, address))
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

// TestNoAllocation checks that the packet path does not allocate.
func TestNoAllocation(t *testing.T) {
	n, other := nettest.New(t), nettest.New(t)
	n.Veth(other)
	for name, d := range map[string]Device{
		"tap":    openTAP(t, n, Config{Name: "t0"}),
		"uplink": uplink(t, n, "v0", 1),
	} {
		p, into := d.Ports()[0], buffers(64)
		frames := [][]byte{plain(frame(60, 1)), plain(frame(60, 2)), {}}
		if allocs := testing.AllocsPerRun(100, func() {
			_, _ = p.Read(into)
			_, _ = p.Write(frames)
			_ = p.Wait(Now() + 1000)
			p.Wake()
			_ = p.Wait(math.MaxInt64)
		}); allocs != 0 {
			t.Errorf("%s: %v allocations, want 0", name, allocs)
		}
	}
}
