package livetest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"net"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/a-seed-32e5a53f/shaper/dataplane/nettest"
)

// budgetFrames are frames to an address that no host has, so that no host answers.
var budgetFrames = func() (out [][]byte) {
	ip := make([]byte, budgetFrame)
	copy(ip, []byte{
		0x45, 0, budgetFrame >> 8, budgetFrame & 0xff, 0, 1, 0, 0, 64, 253, 0, 0, 10, 0, 0, 77, 10, 0, 0, 99,
	})
	frame := append([]byte{2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0}, ip...)
	for range 64 {
		out = append(out, frame)
	}
	return out
}()

// bytesSentBy returns the bytes of IP that a device has sent.
func (p *pair) bytesSentBy(dev string) int64 {
	p.t.Helper()
	var n uint64
	p.near.Do(func() {
		l, err := netlink.LinkByName(dev)
		if err != nil {
			p.t.Fatal(err)
		}
		n = l.Attrs().Statistics.TxBytes - 14*l.Attrs().Statistics.TxPackets
	})
	return int64(n)
}

// countPassed sends packets of 200 bytes and returns how many arrive.
func countPassed(t *testing.T, conn *net.UDPConn, in *receiver, n int) int {
	t.Helper()
	sendUDP(t, conn, n, 200)
	return len(in.receiveAll())
}

// ipv4Frame returns a broadcast frame with an IPv4 packet of n bytes.
func ipv4Frame(n int) []byte {
	f := make([]byte, 14+n)
	copy(f, "\xff\xff\xff\xff\xff\xff\x02\x00\x00\x00\x00\x09\x08\x00")
	copy(f[14:], []byte{0x45, 0, byte(n >> 8), byte(n), 0, 0, 0, 0, 64, 253, 0, 0, 10, 0, 0, 9, 10, 0, 0, 8})
	sum := uint32(0)
	for i := 14; i < 34; i += 2 {
		sum += uint32(f[i])<<8 | uint32(f[i+1])
	}
	sum = sum>>16 + sum&0xffff
	f[24], f[25] = ^byte(sum>>8), ^byte(sum)
	return f
}

// ipv4Frames returns k frames with IPv4 packets of n bytes.
func ipv4Frames(k, n int) (list [][]byte) {
	for range k {
		list = append(list, ipv4Frame(n))
	}
	return list
}

// udpPort is the port of the tests' receivers.
const udpPort = 5000

func networkOf(proto string, ip net.IP) string {
	if ip.To4() == nil {
		return proto + "6"
	}
	return proto + "4"
}

// newSender opens a UDP socket to an address. Its packets have a TOS and a mark.
func newSender(t *testing.T, n *nettest.Namespace, to net.IP, tos, mark int) *net.UDPConn {
	t.Helper()
	var conn *net.UDPConn
	var err error
	n.Do(func() { conn, err = net.DialUDP(networkOf("udp", to), nil, &net.UDPAddr{IP: to, Port: udpPort}) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	withFD(t, conn, func(fd int) error {
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, mark); err != nil {
			return err
		}
		if to.To4() == nil {
			return unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_TCLASS, tos)
		}
		return unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_TOS, tos)
	})
	return conn
}

// withFD calls f with the file descriptor of a connection.
func withFD(t *testing.T, conn syscall.Conn, f func(fd int) error) {
	t.Helper()
	raw, err := conn.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var failed error
	if err := raw.Control(func(fd uintptr) { failed = f(int(fd)) }); err != nil {
		t.Fatal(err)
	}
	if failed != nil {
		t.Fatal(failed)
	}
}

// sendUDP sends n packets of size bytes (IP). The payload of each is its number.
func sendUDP(t *testing.T, conn *net.UDPConn, n, size int) {
	t.Helper()
	headers := 28
	if conn.RemoteAddr().(*net.UDPAddr).IP.To4() == nil {
		headers = 48
	}
	for i := range n {
		payload := bytes.Repeat([]byte{byte(i)}, size-headers)
		if _, err := conn.Write(payload); err != nil && !isDropError(err) {
			t.Fatal(err)
		}
	}
}

// isDropError reports whether an error means that the packet was dropped locally, or that no
// process listens on the port. Neither is a failure of the test.
func isDropError(err error) bool {
	return errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, unix.ENOBUFS)
}

// datagram is a received UDP datagram.
type datagram struct {
	tos, mark int
	number    byte
}

// receiver is a UDP socket that also reads the TOS and mark of packets.
type receiver struct {
	t         *testing.T
	conn      *net.UDPConn
	data, oob []byte
}

// listenUDP opens a receiver.
func listenUDP(t *testing.T, n *nettest.Namespace, at net.IP) *receiver {
	t.Helper()
	var conn *net.UDPConn
	// A process that another test starts holds a copy of an earlier receiver's socket until it
	// executes the program, even if this process has closed it.
	eventually(t, func() (err error) {
		n.Do(func() { conn, err = net.ListenUDP(networkOf("udp", at), &net.UDPAddr{IP: at, Port: udpPort}) })
		return err
	})
	t.Cleanup(func() { conn.Close() })
	withFD(t, conn, func(fd int) error {
		const soRcvMark = 75
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, soRcvMark, 1); err != nil {
			return err
		}
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20); err != nil {
			return err
		}
		if at.To4() == nil {
			return unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_RECVTCLASS, 1)
		}
		return unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_RECVTOS, 1)
	})
	return &receiver{t, conn, make([]byte, 1<<16), make([]byte, 256)}
}

// quietTime returns the maximum time until a sent packet arrives.
func quietTime() time.Duration {
	if inVM {
		return time.Second
	}
	return nettest.Slower(200 * time.Millisecond)
}

// receive returns the next packet, or false if none arrives within quietTime. It polls, because
// a read deadline can expire while packets are waiting to be read.
func (r *receiver) receive() (d datagram, there bool) {
	r.t.Helper()
	withFD(r.t, r.conn, func(fd int) error {
		for {
			n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}},
				int(quietTime().Milliseconds()))
			if err != unix.EINTR {
				there = n > 0
				return err
			}
		}
	})
	if !there {
		return d, false
	}
	_, n, _, _, err := r.conn.ReadMsgUDP(r.data, r.oob)
	if err != nil {
		r.t.Fatal(err)
	}
	messages, err := unix.ParseSocketControlMessage(r.oob[:n])
	if err != nil {
		r.t.Fatal(err)
	}
	d.number = r.data[0]
	for _, m := range messages {
		switch {
		case m.Header.Level == unix.SOL_SOCKET:
			d.mark = int(binary.NativeEndian.Uint32(m.Data))
		case m.Header.Level == unix.IPPROTO_IP:
			d.tos = int(m.Data[0])
		case m.Header.Level == unix.IPPROTO_IPV6:
			d.tos = int(binary.NativeEndian.Uint32(m.Data))
		}
	}
	return d, true
}

// receiveAll returns all packets until none arrives for quietTime.
func (r *receiver) receiveAll() []datagram {
	r.t.Helper()
	return slices.Collect(r.receiveUntil(func() bool { return true }))
}

// receiveUntil yields packets until none arrives for quietTime after done returned true.
func (r *receiver) receiveUntil(done func() bool) iter.Seq[datagram] {
	return func(yield func(datagram) bool) {
		for {
			last := done()
			d, there := r.receive()
			if there && !yield(d) || !there && last {
				return
			}
		}
	}
}

// foldSum adds 16-bit words as Internet checksums do.
func foldSum(sum uint32, b []byte) uint16 {
	for ; len(b) > 1; b = b[2:] {
		sum += uint32(b[0])<<8 | uint32(b[1])
	}
	if len(b) > 0 {
		sum += uint32(b[0]) << 8
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return uint16(sum)
}

// checkSums returns an error if a checksum of an IP packet with UDP or TCP is wrong. If partial
// is set, the device fills in the transport's checksum, and the field may contain the sum of
// the pseudo-header only.
func checkSums(ip []byte, partial bool) error {
	var pseudo uint32
	var l4 []byte
	var proto byte
	if ip[0]>>4 == 4 {
		if got := foldSum(0, ip[:20]); got != 0xffff {
			return fmt.Errorf("IPv4 header sums up to %#x", got)
		}
		l4, proto = ip[20:binary.BigEndian.Uint16(ip[2:])], ip[9]
		pseudo = uint32(foldSum(0, ip[12:20]))
	} else {
		l4, proto = ip[40:40+int(binary.BigEndian.Uint16(ip[4:]))], ip[6]
		pseudo = uint32(foldSum(0, ip[8:40]))
	}
	pseudo = uint32(foldSum(pseudo+uint32(proto)+uint32(len(l4)), nil))
	at := 16
	if proto == unix.IPPROTO_UDP {
		at = 6
	}
	if full := foldSum(pseudo, l4); full == 0xffff {
		return nil
	}
	if stored := binary.BigEndian.Uint16(l4[at:]); !partial || uint32(stored) != pseudo {
		return fmt.Errorf("protocol %d has checksum %#x, pseudo-header %#x", proto, stored, pseudo)
	}
	return nil
}

// tosOf returns the TOS byte or traffic class.
func tosOf(ip []byte) int {
	if ip[0]>>4 == 4 {
		return int(ip[1])
	}
	return int(binary.BigEndian.Uint16(ip) >> 4 & 0xff)
}

// sniffAfterTC redirects packets that arrive at v0 from tc ingress to a third namespace, where
// they are sniffed: they are the packets that later programs see.
func (p *pair) sniffAfterTC() *nettest.Sniffer {
	end := nettest.New(p.t)
	p.near.VethNamed("relay", end, "v0")
	newForeign(p.t, ebpf.SchedCLS, 0, p.near.Index("relay")).attachFilter(p.near, "ingress")
	return end.Sniff("v0")
}

// taggedFrame returns a frame with tags of 4 bytes before an IPv4 packet.
func taggedFrame(source byte, tags ...uint32) []byte {
	f := []byte{2, 0, 0, 0, 0, 3 - source, 2, 0, 0, 0, 0, source}
	for _, tag := range tags {
		f = binary.BigEndian.AppendUint32(f, tag)
	}
	ip := []byte{0x45, 0, 0, 48, 0, 0, 0, 0, 64, 17, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2}
	binary.BigEndian.PutUint16(ip[10:], ^foldSum(0, ip))
	f = append(append(f, 8, 0), ip...)
	return append(append(f, 0, 1, 0, 2, 0, 28, 0, 0), make([]byte, 20)...)
}

// mplsFrame returns a frame with MPLS labels.
func mplsFrame(source byte, labels ...uint32) []byte {
	f := taggedFrame(source)
	ip := append([]byte{}, f[14:]...)
	f = append(f[:12:12], 0x88, 0x47)
	for _, l := range labels {
		f = binary.BigEndian.AppendUint32(f, l)
	}
	return append(f, ip...)
}
