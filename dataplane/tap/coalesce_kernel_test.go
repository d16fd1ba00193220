package tap

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/a-seed-32e5a53f/shaper/dataplane/nettest"
)

// kernelBatch fills one super packet with different packets.
func kernelBatch(d udpPacket) (frames [][]byte) {
	for i := range maxSegments {
		d.id, d.partial = 0xfff0+uint16(i), i%2 == 0
		d.payload = bytes.Repeat([]byte{byte(i)}, 1000-i/(maxSegments-1))
		frames = append(frames, d.buffer(MaxFrame))
	}
	return frames
}

// coalesceTAPs opens TAP devices tap0 and so on in a new namespace.
func coalesceTAPs(t *testing.T, n int) (*nettest.Namespace, []*Interface) {
	t.Helper()
	ns := nettest.New(t)
	if _, err := os.Stat(tun); err != nil {
		t.Skipf("%v: modprobe tun", err)
	}
	var devices []*Interface
	for i := range n {
		var device *Interface
		var err error
		ns.Do(func() { device, err = Open(Config{Name: fmt.Sprintf("tap%d", i)}) })
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := device.Close(); err != nil {
				t.Error(err)
			}
		})
		devices = append(devices, device)
	}
	return ns, devices
}

func writeSuper(t *testing.T, to *Interface, frames [][]byte) {
	t.Helper()
	out := newCoalescer(0).coalesce(nil, frames)
	if n, err := to.Ports()[0].Write(out); n != 1 || len(out) != 1 || err != nil {
		t.Fatalf("wrote %d of %d frames, want 1: %v", n, len(out), err)
	}
}

// TestCoalesceSocket receives the datagrams of a super packet from a socket.
func TestCoalesceSocket(t *testing.T) {
	ns, taps := coalesceTAPs(t, 1)
	var err error
	ns.Do(func() {
		var link netlink.Link
		if link, err = netlink.LinkByName("tap0"); err != nil {
			return
		}
		for _, ip := range []net.IPNet{
			{IP: net.IP{10, 0, 0, 1}, Mask: net.CIDRMask(24, 32)},
			{IP: net.ParseIP("fd00::1"), Mask: net.CIDRMask(64, 128)},
		} {
			if err = netlink.AddrAdd(link, &netlink.Addr{IPNet: &ip}); err != nil {
				return
			}
		}
		err = netlink.LinkSetHardwareAddr(link, net.HardwareAddr{2, 0, 0, 0, 0, 1})
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, addr := range []string{"10.0.0.1", "fd00::1"} {
		var conn *net.UDPConn
		listen := func() { conn, err = net.ListenUDP("udp", &net.UDPAddr{IP: net.ParseIP(addr), Port: 4789}) }
		ns.Do(listen)
		for end := time.Now().Add(kernelLimit); errors.Is(err, unix.EADDRNOTAVAIL) &&
			time.Now().Before(end); ns.Do(listen) {
			time.Sleep(10 * time.Millisecond) // new addresses are tentative at first
		}
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		frames := kernelBatch(udpPacket{v6: addr == "fd00::1", ttl: 64, host: 2, port: 1000})
		writeSuper(t, taps[0], frames)
		if err := conn.SetReadDeadline(time.Now().Add(kernelLimit)); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 2000)
		for i := range frames {
			n, from, err := conn.ReadFromUDP(b)
			if err != nil || from.Port != 1000 ||
				!bytes.Equal(b[:n], bytes.Repeat([]byte{byte(i)}, 1000-i/63)) {
				t.Fatalf("%s: datagram %d: got %d bytes with value %d from %v: %v", addr, i, n, b[0], from,
					err)
			}
		}
	}
}

// TestCoalesceWire bridges super packets to a device without UDP GSO and
// compares the segments with the packets, byte for byte.
func TestCoalesceWire(t *testing.T) {
	ns, taps := coalesceTAPs(t, 2)
	if err := unix.IoctlSetInt(taps[1].ports[0].(*tapPort).fd, unix.TUNSETOFFLOAD, 0); err != nil {
		t.Fatal(err)
	}
	var err error
	ns.Do(func() {
		bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br0"}}
		err = errors.Join(netlink.LinkAdd(bridge), netlink.LinkSetUp(bridge))
		for _, tap := range taps {
			link, e := netlink.LinkByName(tap.Name())
			if err = errors.Join(err, e); err == nil {
				err = netlink.LinkSetMaster(link, bridge)
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	port := taps[1].Ports()[0]
	for _, v6 := range []bool{false, true} {
		for _, tags := range [][]byte{nil, {0x81, 0, 0, 7}, {0x88, 0xa8, 0, 7, 0x81, 0, 0, 8}} {
			t.Run(fmt.Sprintf("v6 %v tags % x", v6, tags), func(t *testing.T) {
				d := udpPacket{
					dst: net.HardwareAddr{2, 0, 0, 0, 0, 9}, tags: tags, v6: v6, tos: 3, ttl: 64, host: 2,
					port: 1000,
				}
				frames := kernelBatch(d)
				var want [][]byte
				for _, b := range frames {
					w := slices.Clone(b)
					if w[headerFlags] != 0 {
						fillUDP(w, HeaderLen+int(host16(w[headerCsumStart:])))
					}
					want = append(want, w[HeaderLen:])
				}
				writeSuper(t, taps[0], frames)
				into := [][]byte{make([]byte, MaxFrame)}
				deadline := Now() + int64(kernelLimit)
				for i := 0; i < len(want); {
					n, err := port.Read(into)
					if err == nil && n == 0 && Now() < deadline {
						err = port.Wait(deadline)
						if err == nil {
							continue
						}
					}
					if err != nil || n == 0 {
						t.Fatalf("got %d packets, want %d: %v", i, len(want), err)
					}
					got := into[0][HeaderLen:]
					if !bytes.HasPrefix(got, d.dst) { // sent by the bridge itself
						continue
					}
					if into[0][headerGSO] != 0 || !bytes.Equal(got, want[i]) {
						t.Fatalf("packet %d is\n% x, want\n% x", i, got, want[i])
					}
					i++
				}
			})
		}
	}
}
