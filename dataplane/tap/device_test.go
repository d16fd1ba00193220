package tap

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"net"
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
				t.Fatalf("got device %q with %d ports, want \"t0\" with %d", d.Name(), len(d.Ports()), queues)
			}
			var frames [][]byte
			for i, length := range []int{60, 64, 594, 1514} {
				frames = append(frames, numberedFrame(length, i))
			}
			n.Inject("t0", frames...)
			var got [][]byte
			for _, b := range readFrames(t, d, len(frames), isTest) {
				got = append(got, b[HeaderLen:])
			}
			sameFrames(t, "out of the kernel", got, frames)

			s := n.Sniff("t0")
			for q, p := range d.Ports() {
				if sent, err := p.Write([][]byte{withHeader(frames[q%len(frames)])}); sent != 1 ||
					err != nil {
					t.Fatalf("port %d: Write returned %d, %v, want 1, nil", q, sent, err)
				}
			}
			s.Wait(queues, kernelLimit)
			got = nil
			for _, f := range s.Stop() {
				got = append(got, f.Data)
			}
			sameFrames(t, "into the kernel", got, frames[:queues])
		})
	}
}

// sameFrames compares frames in any order.
func sameFrames(t *testing.T, name string, got, want [][]byte) {
	t.Helper()
	got, want = slices.Clone(got), slices.Clone(want)
	slices.SortFunc(got, bytes.Compare)
	slices.SortFunc(want, bytes.Compare)
	if !slices.EqualFunc(got, want, bytes.Equal) {
		t.Errorf("%s: got %d frames, want %d: %x, want %x", name, len(got), len(want), got, want)
	}
}

// TestNames checks that the kernel can choose the name.
func TestNames(t *testing.T) {
	n := nettest.New(t)
	for i, name := range []string{"", "tap%d", "wan%d"} {
		if got, want := openTAP(t, n, Config{Name: name}).Name(),
			[]string{"tap0", "tap1", "wan0"}[i]; got != want {
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
			t.Errorf("got MTU %d and flags %v, want 9000 and up", a.MTU, a.Flags)
		}
	})
}

// deviceExists reports whether a namespace has a device.
func deviceExists(n *nettest.Namespace, name string) (yes bool) {
	n.Do(func() {
		_, err := netlink.LinkByName(name)
		yes = err == nil
	})
	return yes
}

// addPersistent creates a device like ip tuntap add.
func addPersistent(
	t *testing.T, n *nettest.Namespace, name string, mode netlink.TuntapMode, flags netlink.TuntapFlag,
) {
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
	addPersistent(t, n, "one", netlink.TUNTAP_MODE_TAP, netlink.TUNTAP_NO_PI)
	addPersistent(t, n, "many", netlink.TUNTAP_MODE_TAP, netlink.TUNTAP_NO_PI|netlink.TUNTAP_MULTI_QUEUE)
	for _, row := range []struct {
		name   string
		queues int
		stays  bool
	}{{"one", 1, true}, {"many", 1, true}, {"many", 4, true}, {"new", 1, false}, {"new", 4, false}} {
		d := openTAP(t, n, Config{Name: row.name, Queues: row.queues})
		n.Inject(row.name, numberedFrame(1514, 1))
		readFrames(t, d, 1, isTest)
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		if got := deviceExists(n, row.name); got != row.stays {
			t.Errorf("%s with %d queues: got exists %v after Close, want %v", row.name, row.queues, got,
				row.stays)
		}
	}
}

// TestOpenErrors checks that errors state a remedy.
func TestOpenErrors(t *testing.T) {
	n, other := nettest.New(t), nettest.New(t)
	n.Veth(other)
	openTAP(t, n, Config{Name: "held"})
	openTAP(t, n, Config{Name: "helds", Queues: 2})
	addPersistent(t, n, "tun", netlink.TUNTAP_MODE_TUN, netlink.TUNTAP_NO_PI)
	addPersistent(t, n, "one", netlink.TUNTAP_MODE_TAP, netlink.TUNTAP_NO_PI)
	for _, row := range []struct {
		config Config
		want   string
	}{
		{Config{Name: "sixteen-bytes-16"}, "the maximum is 15"},
		{Config{Name: "a/b"}, "invalid interface name"},
		{Config{Name: "x", Queues: -1}, "1 to 256"},
		{Config{Name: "x", Queues: 257}, "1 to 256"},
		{Config{Name: "x", MTU: 70000}, "set the MTU to 70000"},
		{Config{Name: "v0"}, "is not a TAP device: choose another name"},
		{Config{Name: "tun"}, "TUN device"},
		{Config{Name: "held"}, "a program holds it"},
		{Config{Name: "helds", Queues: 2}, "a program holds it"},
		{Config{Name: "one", Queues: 2}, "multi_queue"},
	} {
		var err error
		n.Do(func() { _, err = Open(row.config) })
		if err == nil || !strings.Contains(err.Error(), row.want) ||
			!strings.HasPrefix(err.Error(), fmt.Sprintf("open tap %q: ", row.config.Name)) {
			t.Errorf("%+v: got %v, want %q", row.config, err, row.want)
		}
	}
	if deviceExists(n, "x") {
		t.Error("Open failed, but its device exists")
	}
	var err error
	n.Do(func() { withoutCapability(t, unix.CAP_NET_ADMIN, func() { _, err = Open(Config{Name: "x"}) }) })
	if !errors.Is(err, unix.EPERM) || !strings.Contains(err.Error(), "CAP_NET_ADMIN") {
		t.Errorf("without privilege: got %v, want EPERM that names CAP_NET_ADMIN", err)
	}
	if err := inEmptyRoot(t.TempDir(),
		func() error { _, err := Open(Config{}); return err }); !errors.Is(err, unix.ENOENT) ||
		!strings.Contains(err.Error(), "modprobe tun") {
		t.Errorf("without %s: got %v, want ENOENT with \"modprobe tun\"", tun, err)
	}
}

// withoutCapability calls f on this thread without a capability; see capabilities(7).
func withoutCapability(t *testing.T, capability int, f func()) {
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

// inEmptyRoot calls f on a thread whose root is an empty directory.
func inEmptyRoot(root string, f func() error) error {
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
	wrong := withHeader(numberedFrame(60, 2))
	wrong[1] = 77 // unknown GSO type
	frames := [][]byte{
		withHeader(numberedFrame(60, 1)), wrong, {}, {1, 2, 3}, withHeader(numberedFrame(60, 3)),
	}
	if sent, err := p.Write(frames); sent != 2 || err != nil {
		t.Errorf("Write returned %d, %v, want 2, nil", sent, err)
	}
	for i, b := range frames {
		if lost := len(b) == 0; lost != (i > 0 && i < 4) {
			t.Errorf("frame %d: got lost %v, want %v", i, lost, !lost)
		}
	}
	s.Wait(2, kernelLimit)
	if got := s.Stop(); len(got) != 2 {
		t.Errorf("got %d frames, want 2", len(got))
	}
	setUp(t, n, "t0", false)
	if sent, err := p.Write([][]byte{withHeader(numberedFrame(60, 4))}); sent != 0 || err != nil {
		t.Errorf("device down: Write returned %d, %v, want 0, nil", sent, err)
	}
	setUp(t, n, "t0", true)
	if sent, err := p.Write([][]byte{withHeader(numberedFrame(60, 5))}); sent != 1 || err != nil {
		t.Errorf("device up again: Write returned %d, %v, want 1, nil", sent, err)
	}
	// A buffer that is too small loses its frame, and no other.
	n.Inject("t0", numberedFrame(1000, 6))
	if err := p.Wait(Now() + int64(kernelLimit)); err != nil {
		t.Error(err)
	}
	if k, err := p.Read([][]byte{make([]byte, 500)}); k != 0 || err != nil {
		t.Errorf("small buffer: Read returned %d, %v, want 0, nil", k, err)
	}
	n.Inject("t0", numberedFrame(100, 7))
	readFrames(t, d, 1, isTest)
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
		defer checkGone(t, p)
	}
}

// TestNoAllocation checks that the packet path does not allocate.
func TestNoAllocation(t *testing.T) {
	n, other := nettest.New(t), nettest.New(t)
	n.Veth(other)
	for name, d := range map[string]Device{
		"tap":    openTAP(t, n, Config{Name: "t0"}),
		"uplink": uplinkIn(t, n, "v0", 1),
	} {
		p, into := d.Ports()[0], newBuffers(64)
		frames := [][]byte{withHeader(numberedFrame(60, 1)), withHeader(numberedFrame(60, 2)), {}}
		if allocs := testing.AllocsPerRun(100, func() {
			_, _ = p.Read(into)
			_, _ = p.Write(frames)
			_ = p.Wait(Now() + spin/2)
			_ = p.Wait(Now() + 2*spin)
			p.Wake()
			_ = p.Wait(math.MaxInt64)
		}); allocs != 0 {
			t.Errorf("%s: got %v allocations, want 0", name, allocs)
		}
	}
}
