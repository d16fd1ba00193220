package tap

import (
	"encoding/binary"
	"errors"
	"math"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/a-seed-32e5a53f/shaper/dataplane/nettest"
)

// kernelLimit is the time limit for operations of the kernel.
const kernelLimit = 5 * time.Minute

// testType is an Ethernet type that only tests send (IEEE 802, local
// experimental).
const testType = 0x88b5

func needTUN(t testing.TB) {
	t.Helper()
	if _, err := os.Stat(tun); err != nil {
		t.Skipf("%v: modprobe tun", err)
	}
}

// openTAP opens a TAP device in a namespace, until the test ends.
func openTAP(t testing.TB, n *nettest.Namespace, c Config) *Interface {
	t.Helper()
	needTUN(t)
	return openDevice(t, n, func() (*Interface, error) { return Open(c) })
}

// uplinkIn opens an uplink in a namespace, until the test ends.
func uplinkIn(t testing.TB, n *nettest.Namespace, name string, queues int) *Interface {
	t.Helper()
	return openDevice(t, n, func() (*Interface, error) { return OpenUplink(name, queues) })
}

func openDevice(t testing.TB, n *nettest.Namespace, open func() (*Interface, error)) *Interface {
	t.Helper()
	var i *Interface
	var err error
	n.Do(func() { i, err = open() })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := i.Close(); err != nil {
			t.Error(err)
		}
	})
	return i
}

// newBuffers returns n buffers to read into.
func newBuffers(n int) [][]byte {
	b := make([][]byte, n)
	for i := range b {
		b[i] = make([]byte, MaxFrame)
	}
	return b
}

// numberedFrame returns a broadcast frame of some length that contains a number.
func numberedFrame(length, number int) []byte {
	f := make([]byte, length)
	copy(f, []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 9})
	binary.BigEndian.PutUint16(f[macsLen:], testType)
	binary.BigEndian.PutUint32(f[macsLen+2:], uint32(number))
	for i := macsLen + 6; i < length; i++ {
		f[i] = byte(i * number)
	}
	return f
}

// withHeader puts an empty virtio header before a frame.
func withHeader(f []byte) []byte { return append(make([]byte, HeaderLen), f...) }

// isTest reports whether a buffer is a frame of a test, possibly with VLAN
// tags.
func isTest(f []byte) bool {
	for f = f[macsLen:]; len(f) > tagLen; f = f[tagLen:] {
		switch binary.BigEndian.Uint16(f) {
		case unix.ETH_P_8021Q, unix.ETH_P_8021AD:
		default:
			return binary.BigEndian.Uint16(f) == testType
		}
	}
	return false
}

// readFrames reads from all ports until n frames that match want have arrived.
func readFrames(t testing.TB, d Device, n int, want func(frame []byte) bool) [][]byte {
	t.Helper()
	var got [][]byte
	into := newBuffers(64)
	for deadline := time.Now().Add(kernelLimit); len(got) < n; {
		if time.Now().After(deadline) {
			t.Fatalf("got %d frames, want %d", len(got), n)
		}
		for _, p := range d.Ports() {
			if err := p.Wait(Now() + int64(time.Millisecond)); err != nil {
				t.Fatal(err)
			}
			k, err := p.Read(into)
			if err != nil {
				t.Fatal(err)
			}
			for _, b := range into[:k] {
				if want(b[HeaderLen:]) {
					got = append(got, slices.Clone(b))
				}
			}
		}
	}
	return got
}

// configureHost configures a device with a MAC, addresses and the neighbors of
// nettest.Namespace.Veth.
func configureHost(t testing.TB, n *nettest.Namespace, name, mac string, addrs ...string) {
	t.Helper()
	var err error
	n.Do(func() {
		link, e := netlink.LinkByName(name)
		if e != nil {
			err = e
			return
		}
		hardware, e := net.ParseMAC(mac)
		err = errors.Join(e, netlink.LinkSetHardwareAddr(link, hardware))
		for _, s := range addrs {
			a, e := netlink.ParseAddr(s)
			if e != nil {
				err = errors.Join(err, e)
				continue
			}
			a.Flags |= unix.IFA_F_NODAD
			err = errors.Join(err, e, netlink.AddrAdd(link, a))
		}
	})
	if err != nil {
		t.Fatalf("configure device %q: %v", name, err)
	}
}

// neighbour adds static neighbor entries.
func neighbour(t testing.TB, n *nettest.Namespace, name, mac string, addrs ...string) {
	t.Helper()
	index := n.Index(name)
	hardware, err := net.ParseMAC(mac)
	n.Do(func() {
		for _, s := range addrs {
			err = errors.Join(err, netlink.NeighSet(&netlink.Neigh{
				LinkIndex: index, State: netlink.NUD_PERMANENT, IP: net.ParseIP(s), HardwareAddr: hardware,
			}))
		}
	})
	if err != nil {
		t.Fatal(err)
	}
}

// counts are the counters of forwardFrames.
type counts struct{ frames, merged, refused atomic.Int64 }

// forwardFrames forwards all buffers between the ports of two devices, unchanged, until
// the test ends.
func forwardFrames(t testing.TB, a, b Device) *counts {
	t.Helper()
	c := new(counts)
	var stopped atomic.Bool
	var all sync.WaitGroup
	forward := func(from, to Port) {
		into := newBuffers(64)
		for !stopped.Load() {
			if err := from.Wait(math.MaxInt64); err != nil {
				t.Error(err)
				return
			}
			n, err := from.Read(into)
			if err != nil {
				t.Error(err)
				return
			}
			for _, b := range into[:n] {
				if b[1] != unix.VIRTIO_NET_HDR_GSO_NONE && len(b) > HeaderLen+1514 {
					c.merged.Add(1)
				}
			}
			sent, err := to.Write(into[:n])
			if err != nil {
				t.Error(err)
				return
			}
			c.frames.Add(int64(sent))
			c.refused.Add(int64(n - sent))
		}
	}
	for q, p := range a.Ports() {
		all.Go(func() { forward(p, b.Ports()[q]) })
		all.Go(func() { forward(b.Ports()[q], p) })
	}
	t.Cleanup(func() {
		stopped.Store(true)
		for _, p := range slices.Concat(a.Ports(), b.Ports()) {
			p.Wake()
		}
		all.Wait()
	})
	return c
}

// awaitGone waits on a port until its device is gone.
func awaitGone(p Port) error {
	for deadline := Now() + int64(kernelLimit); Now() < deadline; {
		if err := p.Wait(deadline); err != nil {
			return err
		}
		if _, err := p.Read(newBuffers(1)); err != nil {
			return err
		}
	}
	return errors.New("Wait did not return ErrGone")
}

// checkGone checks that all methods of a port return ErrGone.
func checkGone(t *testing.T, p Port) {
	t.Helper()
	if n, err := p.Read(newBuffers(1)); n != 0 || !errors.Is(err, ErrGone) {
		t.Errorf("Read returned %d, %v, want 0, ErrGone", n, err)
	}
	if n, err := p.Write([][]byte{withHeader(numberedFrame(60, 1))}); n != 0 || !errors.Is(err, ErrGone) {
		t.Errorf("Write returned %d, %v, want 0, ErrGone", n, err)
	}
	if err := p.Wait(math.MaxInt64); !errors.Is(err, ErrGone) {
		t.Errorf("Wait returned %v, want ErrGone", err)
	}
}

// TestPushTag checks that the offsets in the virtio header follow a VLAN tag.
func TestPushTag(t *testing.T) {
	f := numberedFrame(60, 1)
	tagged := slices.Insert(slices.Clone(f), macsLen, 0x88, 0xa8, 0x61, 0x23)
	header := func(flags byte, hdrLen, csumStart uint16) []byte {
		h := make([]byte, HeaderLen)
		h[headerFlags] = flags
		binary.NativeEndian.PutUint16(h[headerHdrLen:], hdrLen)
		binary.NativeEndian.PutUint16(h[headerCsumStart:], csumStart)
		return h
	}
	for _, row := range []struct{ in, want []byte }{
		{header(0, 0, 0), header(0, 0, 0)},
		{header(needsCsum, 0, 34), header(needsCsum, 0, 38)},
		{header(needsCsum, 66, 34), header(needsCsum, 70, 38)},
	} {
		b := append(slices.Grow(slices.Clone(row.in), 100), f...)
		if got, want := pushTag(b, 0x88a8, 0x6123), append(row.want, tagged...); !slices.Equal(got, want) {
			t.Errorf("got %x, want %x", got, want)
		}
	}
}

func TestNow(t *testing.T) {
	last := Now()
	if wall := time.Now().UnixNano(); last <= 0 || last-wall > int64(time.Hour) ||
		wall-last > int64(time.Hour) {
		t.Errorf("Now returned %d, want the wall clock within an hour: %d", last, wall)
	}
	for range 1000 {
		now := Now()
		if now < last {
			t.Fatalf("Now returned %d after %d", now, last)
		}
		last = now
	}
}
