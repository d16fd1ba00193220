package kernel_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"iter"
	"net"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/a-seed-32e5a53f/shaper/dataplane/internal/nettest"
)

// Code points as they stand in the TOS byte.
const (
	af11 = 10 << 2
	af12 = 12 << 2
	af21 = 18 << 2
)

// udpPort is where the tests' receivers listen.
const udpPort = 5000

func network(proto string, ip net.IP) string {
	if ip.To4() == nil {
		return proto + "6"
	}
	return proto + "4"
}

// sender opens a UDP socket to an address in a namespace. Its packets have a
// TOS and a mark.
func sender(t *testing.T, n *nettest.Namespace, to net.IP, tos, mark int) *net.UDPConn {
	t.Helper()
	var conn *net.UDPConn
	var err error
	n.Do(func() { conn, err = net.DialUDP(network("udp", to), nil, &net.UDPAddr{IP: to, Port: udpPort}) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	control(t, conn, func(fd int) error {
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

func control(t *testing.T, conn syscall.Conn, f func(fd int) error) {
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

// send sends packets of size bytes of IP, each with its number.
func send(t *testing.T, conn *net.UDPConn, n, size int) {
	t.Helper()
	headers := 28
	if conn.RemoteAddr().(*net.UDPAddr).IP.To4() == nil {
		headers = 48
	}
	for i := range n {
		payload := bytes.Repeat([]byte{byte(i)}, size-headers)
		if _, err := conn.Write(payload); err != nil && !refused(err) {
			t.Fatal(err)
		}
	}
}

// refused says that the packet was dropped on its way out, or that nobody
// listens: no failure.
func refused(err error) bool {
	return errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, unix.ENOBUFS)
}

// datagram is what a receiver got.
type datagram struct {
	tos, mark int
	number    byte
}

// receiver is a UDP socket that says how packets came.
type receiver struct {
	t         *testing.T
	conn      *net.UDPConn
	data, oob []byte
}

func listen(t *testing.T, n *nettest.Namespace, at net.IP) *receiver {
	t.Helper()
	var conn *net.UDPConn
	var err error
	n.Do(func() { conn, err = net.ListenUDP(network("udp", at), &net.UDPAddr{IP: at, Port: udpPort}) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	control(t, conn, func(fd int) error {
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

// moment is the longest time that a sent packet takes to arrive.
var moment = func() time.Duration {
	if inVM {
		return time.Second
	}
	return 200 * time.Millisecond
}()

// next returns the next packet, or false if none arrives within a moment. It polls,
// because a read deadline can expire while packets are waiting to be read.
func (r *receiver) next() (d datagram, there bool) {
	r.t.Helper()
	control(r.t, r.conn, func(fd int) error {
		for {
			n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(moment.Milliseconds()))
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

// take returns all packets until none arrives for a moment.
func (r *receiver) take() []datagram {
	r.t.Helper()
	return slices.Collect(r.until(func() bool { return true }))
}

// until yields packets until none arrives for a moment after done returned true.
func (r *receiver) until(done func() bool) iter.Seq[datagram] {
	return func(yield func(datagram) bool) {
		for {
			last := done()
			d, there := r.next()
			if there && !yield(d) || !there && last {
				return
			}
		}
	}
}

// fold sums 16-bit words as Internet checksums do.
func fold(sum uint32, b []byte) uint16 {
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

// checkSums says what is wrong with the checksums of an IP packet over UDP or
// TCP. Where the device is to fill in the one of the transport, partial, it
// has the sum of the pseudo-header only.
func checkSums(ip []byte, partial bool) error {
	var pseudo uint32
	var l4 []byte
	var proto byte
	if ip[0]>>4 == 4 {
		if got := fold(0, ip[:20]); got != 0xffff {
			return fmt.Errorf("IPv4 header sums up to %#x", got)
		}
		l4, proto = ip[20:binary.BigEndian.Uint16(ip[2:])], ip[9]
		pseudo = uint32(fold(0, ip[12:20]))
	} else {
		l4, proto = ip[40:40+int(binary.BigEndian.Uint16(ip[4:]))], ip[6]
		pseudo = uint32(fold(0, ip[8:40]))
	}
	pseudo = uint32(fold(pseudo+uint32(proto)+uint32(len(l4)), nil))
	at := 16
	if proto == unix.IPPROTO_UDP {
		at = 6
	}
	if full := fold(pseudo, l4); full == 0xffff {
		return nil
	}
	if stored := binary.BigEndian.Uint16(l4[at:]); !partial || uint32(stored) != pseudo {
		return fmt.Errorf("protocol %d has checksum %#x, pseudo-header %#x", proto, stored, pseudo)
	}
	return nil
}

// tosOf is the TOS byte or traffic class.
func tosOf(ip []byte) int {
	if ip[0]>>4 == 4 {
		return int(ip[1])
	}
	return int(binary.BigEndian.Uint16(ip) >> 4 & 0xff)
}

// TestLiveUDP holds that real datagrams are colored, marked and dropped in the
// order they are sent, with checksums that the receiver believes.
func TestLiveUDP(t *testing.T) {
	for _, m := range methods {
		for _, v6 := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s-%s-v6=%v", m.hook, m.direction, v6), func(t *testing.T) {
				m.need(t)
				liveUDP(t, m, v6, !v6) // the device sums IPv4's
			})
		}
	}
}

func liveUDP(t *testing.T, m method, v6, offload bool) {
	p := newPair(t)
	from, to := p.sides(m)
	_, at := p.addresses(m, v6)
	if !offload {
		from.Offload("v0", "tx-checksum", false)
	}
	before := p.attached()
	r := p.run(m.args("--meter", ladder, "--green", "dscp=af11", "--yellow", "dscp=af12", "--red", "drop")...)
	in := listen(t, to, at)
	sniffer := to.Sniff("v0")
	send(t, sender(t, from, at, 1, 0), 8, 200)
	got := in.take()
	if len(got) != 5 {
		t.Fatalf("%d of 8 packets arrived: want 5", len(got))
	}
	for i, d := range got {
		want := datagram{tos: af11 | 1, number: byte(i)}
		if i >= 3 {
			want.tos = af12 | 1
		}
		if d != want {
			t.Errorf("packet %d came as %+v: want %+v", i, d, want)
		}
	}
	for i, f := range sniffer.Stop() { // before tc ingress
		ip := f.Data[14:]
		if err := checkSums(ip, offload); err != nil {
			t.Errorf("packet %d: %v", i, err)
		}
		if want := got[min(i, 4)].tos; (m.direction == "egress" || m.hook == "xdp") && tosOf(ip) != want {
			t.Errorf("packet %d has TOS %#x on the wire: want %#x", i, tosOf(ip), want)
		}
	}
	s := p.stats()
	c := s.class(t, "all")
	if c.Green.count != (count{3, 600}) || c.Yellow.count != (count{2, 400}) || c.Red.count != (count{3, 600}) {
		t.Errorf("counted %+v %+v %+v: want 3, 2 and 3 packets of 200 bytes", c.Green.count, c.Yellow.count, c.Red.count)
	}
	if c.Dropped != (count{3, 600}) || c.Red.Dropped["color"] != (count{3, 600}) || c.Marked != (count{5, 1000}) {
		t.Errorf("dropped %+v (%+v), marked %+v: want 3 and 5 packets", c.Dropped, c.Red.Dropped, c.Marked)
	}
	if s.Hook != m.hook || s.Direction != m.direction || !s.Attached || s.Process != r.cmd.Process.Pid {
		t.Errorf("status %+v: want %+v, attached, by process %d", s, m, r.cmd.Process.Pid)
	}
	if m.hook == "xdp" && s.XDPMode != "driver" {
		t.Errorf("XDP mode %q on veth: want driver", s.XDPMode)
	}
	r.out.await(t, fmt.Sprintf(`v0 %s: attached by %s( driver)?, program %d, kernel \d+\.\d+\S*, policy --meter %s \(1 class\)`, m.direction, m.hook, s.ProgramID, ladder))
	r.term()
	r.out.await(t, "v0 "+m.direction+": detached")
	p.unchanged(before)
	send(t, sender(t, from, at, 1, 0), 3, 200)
	if got := in.take(); len(got) != 3 || got[0].tos != 1 {
		t.Errorf("after the end %+v arrived: want 3 packets as sent", got)
	}
}

// TestLiveTCP holds that a TCP stream is marked and arrives, whatever the
// device does for the stack.
func TestLiveTCP(t *testing.T) {
	for _, m := range methods {
		for _, v6 := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s-%s-v6=%v", m.hook, m.direction, v6), func(t *testing.T) {
				m.need(t)
				p := newPair(t)
				from, to := p.sides(m)
				_, at := p.addresses(m, v6)
				if v6 {
					from.Offload("v0", "tx-checksum", false) // and with it, segmentation
				}
				r := p.run(m.args("--meter", never, "--green", "dscp=af21")...)
				sniffer := to.Sniff("v0")
				stream(t, from, to, at, 300_000)
				packets := int64(0)
				for i, f := range sniffer.Stop() {
					packets++
					if err := checkSums(f.Data[14:], !v6); err != nil {
						t.Errorf("packet %d: %v", i, err)
					}
					if got := tosOf(f.Data[14:]) &^ 3; (m.direction == "egress" || m.hook == "xdp") && got != af21 {
						t.Errorf("packet %d has TOS %#x: want %#x", i, got, af21)
					}
				}
				s := p.stats()
				if c := s.class(t, "all"); c.Marked != c.count || c.Packets < packets || c.Bytes < 300_000 {
					t.Errorf("counted %+v, marked %+v, %d frames arrived: want all marked", c.count, c.Marked, packets)
				}
				r.term()
			})
		}
	}
}

// stream sends bytes over TCP, and wants all of them to arrive as they are.
func stream(t *testing.T, from, to *nettest.Namespace, at net.IP, size int) {
	t.Helper()
	var listener *net.TCPListener
	var err error
	to.Do(func() { listener, err = net.ListenTCP(network("tcp", at), &net.TCPAddr{IP: at, Port: 6000}) })
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	got := make(chan []byte, 1)
	go func() {
		defer close(got)
		conn, err := listener.AcceptTCP()
		if err != nil {
			return
		}
		defer conn.Close()
		b, err := io.ReadAll(conn)
		if err == nil {
			got <- b
		}
	}()
	var conn *net.TCPConn
	from.Do(func() { conn, err = net.DialTCP(network("tcp", at), nil, &net.TCPAddr{IP: at, Port: 6000}) })
	if err != nil {
		t.Fatal(err)
	}
	data := make([]byte, size)
	for i := range data {
		data[i] = byte(i * 7 >> 3)
	}
	if _, err := conn.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := conn.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	select {
	case b := <-got:
		if !bytes.Equal(b, data) {
			t.Errorf("%d bytes arrived that are not the %d sent", len(b), size)
		}
	case <-time.After(patience):
		t.Fatal("the stream did not arrive")
	}
	// The kernel acknowledges the far end's FIN before it reports the end of the
	// stream. After that it sends nothing more.
	if err := conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(conn); err != nil {
		t.Fatal(err)
	}
	conn.Close()
	time.Sleep(moment)
}

// TestLiveSegments holds that a super-packet counts as the packets it becomes:
// where the stack cuts it up after the program, the far end sees these; where
// the device is said to do so, their number follows from the segment size.
func TestLiveSegments(t *testing.T) {
	for _, hook := range []string{"tcx", "tc"} {
		for _, v6 := range []bool{false, true} {
			for _, tso := range []bool{true, false} {
				t.Run(fmt.Sprintf("%s-v6=%v-tso=%v", hook, v6, tso), func(t *testing.T) {
					if v6 {
						hereOnly(t)
					}
					m := method{hook, "egress"}
					m.need(t)
					p := newPair(t)
					_, at := p.addresses(m, v6)
					p.near.Offload("v0", "tso", tso)
					r := p.run("--hook", hook, "--meter", never)
					behind := newForeign(t, ebpf.SchedCLS, -1, 0)
					behind.filter(p.near, "egress")
					frames, want := p.counts(at, 2_000_000)
					large := slices.ContainsFunc(frames, func(f nettest.Frame) bool { return len(f.Data) > 1514 })
					seen := int64(behind.packets())
					if large != tso || seen >= want.Packets {
						t.Errorf("%d frames arrived for %d packets that the hook saw and %d counted: the test shows nothing", len(frames), seen, want.Packets)
					}
					r.term()
				})
			}
		}
	}
}

// counts sends a TCP stream to the far end, checks that the shaper counts the packets
// that arrive there and those that veth drops on a busy machine, because the backlog of
// the receiving CPU is full, and returns what arrived.
func (p *pair) counts(at net.IP, size int) (frames []nettest.Frame, want count) {
	p.t.Helper()
	sniffer := p.far.Sniff("v0")
	stream(p.t, p.near, p.far, at, size)
	frames = sniffer.Stop()
	for _, f := range frames {
		packets, bytes := segmentsOf(f.Data[14:])
		want.Packets += packets
		want.Bytes += bytes
	}
	s := p.stats()
	got, lost := s.class(p.t, "all").count, p.lost()
	if got.Packets != want.Packets+lost || lost == 0 && got.Bytes != want.Bytes {
		p.t.Errorf("counted %+v: want %+v, and %d packets that were lost", got, want, lost)
	}
	return frames, want
}

// lost returns how many frames v0 of near could not hand to far.
func (p *pair) lost() (n int64) {
	p.t.Helper()
	var err error
	p.near.Do(func() {
		var l netlink.Link
		if l, err = netlink.LinkByName("v0"); err == nil {
			n = int64(l.Attrs().Statistics.TxDropped)
		}
	})
	if err != nil {
		p.t.Fatal(err)
	}
	return n
}

// segmentsOf says how many packets a TCP packet becomes on a wire of 1500
// bytes, and how many bytes of IP these have. They lack the hop-by-hop header of a
// jumbogram.
func segmentsOf(ip []byte) (packets, bytes int64) {
	l3 := 20
	if ip[0]>>4 == 6 {
		l3 = 40
	}
	if l3 == 40 && ip[6] == 0 && len(ip) > 1<<16 {
		ip = slices.Concat(ip[:40], ip[48:])
	}
	headers := int64(l3 + int(ip[l3+12]>>4<<2))
	length := int64(len(ip))
	size := int64(1500) - headers
	packets = max(1, (length-headers+size-1)/size)
	return packets, length + (packets-1)*headers
}

// TestLiveUDPSegments holds the same for datagrams that the sender hands down
// as one.
func TestLiveUDPSegments(t *testing.T) {
	for _, hook := range []string{"tcx", "tc"} {
		for _, offload := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s-offload=%v", hook, offload), func(t *testing.T) {
				m := method{hook, "egress"}
				m.need(t)
				p := newPair(t)
				_, at := p.addresses(m, false)
				if !offload {
					p.near.Offload("v0", "tx-udp-segmentation", false)
				}
				r := p.run("--hook", hook, "--meter", never, "--green", "dscp=af11")
				in := listen(t, p.far, at)
				conn := sender(t, p.near, at, 0, 0)
				control(t, conn, func(fd int) error { return unix.SetsockoptInt(fd, unix.IPPROTO_UDP, unix.UDP_SEGMENT, 1000) })
				if _, err := conn.Write(make([]byte, 10_500)); err != nil {
					t.Fatal(err)
				}
				got := in.take()
				for _, d := range got {
					if d.tos != af11 {
						t.Errorf("TOS %#x: want %#x", d.tos, af11)
					}
				}
				if len(got) != 11 {
					t.Errorf("%d datagrams arrived: want 11", len(got))
				}
				s := p.stats()
				if got, want := s.class(t, "all").count, (count{11, 10_500 + 11*28}); got != want {
					t.Errorf("counted %+v: want %+v", got, want)
				}
				r.term()
			})
		}
	}
}

// TestLiveBound holds that of UDP offered above PIR passes what the meter
// allows, no byte more and hardly one less.
func TestLiveBound(t *testing.T) {
	hereOnly(t)
	const (
		pir, pbs = 2_500_000, 128 << 10 // bytes
		cir, cbs = 1_250_000, 64 << 10
		size     = 1000
	)
	for _, m := range methods {
		t.Run(m.hook+"-"+m.direction, func(t *testing.T) {
			m.need(t)
			p := newPair(t)
			from, to := p.sides(m)
			_, at := p.addresses(m, false)
			r := p.run(m.args("--meter", "trtcm cir=1250kB/s cbs=64KiB pir=2500kB/s pbs=128KiB", "--green", "dscp=af11", "--yellow", "dscp=af12")...)
			in := listen(t, to, at)
			received := make(chan []datagram)
			var done atomic.Bool
			go func() { received <- slices.Collect(in.until(done.Load)) }()
			conn := sender(t, from, at, 0, 0)
			begin := time.Now()
			sent := int64(0)
			for time.Since(begin) < 2*time.Second {
				for due := int64(time.Since(begin).Seconds() * 2 * pir / size); sent < due; sent++ {
					send(t, conn, 1, size)
				}
				time.Sleep(time.Millisecond)
			}
			took := time.Since(begin).Seconds()
			done.Store(true)
			bytes := map[int]float64{}
			all := <-received
			for _, d := range all {
				bytes[d.tos] += size
			}
			bounded := func(what string, got, bound float64) {
				t.Helper()
				if got > bound || !inVM && got < 0.98*bound {
					t.Errorf("%s: %.0f bytes passed of %d sent in %.3f s: want at most %.0f and at least 98%% of that", what, got, sent*size, took, bound)
				}
			}
			bounded("green", bytes[af11], cbs+cir*took)
			bounded("green and yellow", bytes[af11]+bytes[af12], pbs+pir*took)
			s := p.stats()
			c := s.class(t, "all")
			if c.Packets != sent || c.Packets-c.Dropped.Packets != int64(len(all)) {
				t.Errorf("counted %d packets, %d dropped: want %d sent and %d arrived", c.Packets, c.Dropped.Packets, sent, len(all))
			}
			r.term()
		})
	}
}

// TestLiveECN holds that a packet that understands congestion is told of it,
// and that one that does not is dropped where the policy says so.
func TestLiveECN(t *testing.T) {
	for _, m := range methods {
		t.Run(m.hook+"-"+m.direction, func(t *testing.T) {
			m.need(t)
			p := newPair(t)
			from, to := p.sides(m)
			r := p.run(m.args("--policy", file(t, `
classes:
  - name: strict
    match: {dscp: af11}
    green: {ecn: ce, else: drop}
  - name: lenient
    green: {ecn: ce}
`))...)
			for _, v6 := range []bool{false, true} {
				_, at := p.addresses(m, v6)
				in := listen(t, to, at)
				for _, tos := range []int{0, 1, 2, 3, af11, af11 | 2} {
					send(t, sender(t, from, at, tos, 0), 1, 100)
				}
				var got []int
				for _, d := range in.take() {
					got = append(got, d.tos)
				}
				if want := []int{0, 3, 3, 3, af11 | 3}; !slices.Equal(got, want) {
					t.Errorf("v6 %v: TOS %v arrived: want %v", v6, got, want)
				}
			}
			s := p.stats()
			if c := s.class(t, "strict"); c.Green.Dropped["ecn"].Packets != 2 || c.Packets != 4 {
				t.Errorf("counted %+v: want 4 packets, 2 dropped for ECN", c)
			}
			r.term()
		})
	}
}

// relay makes near hand on what comes in at v0, after tc ingress, to a third
// namespace, where it is sniffed: what a later program would see.
func (p *pair) relay() *nettest.Sniffer {
	end := nettest.New(p.t)
	p.near.VethNamed("relay", end, "v0")
	newForeign(p.t, ebpf.SchedCLS, 0, p.near.Index("relay")).filter(p.near, "ingress")
	return end.Sniff("v0")
}

// tagged is a frame with tags of 4 bytes before an IPv4 packet.
func tagged(source byte, tags ...uint32) []byte {
	f := []byte{2, 0, 0, 0, 0, 3 - source, 2, 0, 0, 0, 0, source}
	for _, tag := range tags {
		f = binary.BigEndian.AppendUint32(f, tag)
	}
	ip := []byte{0x45, 0, 0, 48, 0, 0, 0, 0, 64, 17, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2}
	binary.BigEndian.PutUint16(ip[10:], ^fold(0, ip))
	f = append(append(f, 8, 0), ip...)
	return append(append(f, 0, 1, 0, 2, 0, 28, 0, 0), make([]byte, 20)...)
}

// labeled is a frame with MPLS labels.
func labeled(source byte, labels ...uint32) []byte {
	f := tagged(source)
	ip := append([]byte{}, f[14:]...)
	f = append(f[:12:12], 0x88, 0x47)
	for _, l := range labels {
		f = binary.BigEndian.AppendUint32(f, l)
	}
	return append(f, ip...)
}

// TestLiveTags holds that VLAN priorities and MPLS traffic classes are written
// where they are: inside the frame at egress and XDP, beside it at tc ingress,
// and in the outer tag of two.
func TestLiveTags(t *testing.T) {
	for _, m := range methods {
		t.Run(m.hook+"-"+m.direction, func(t *testing.T) {
			m.need(t)
			p := newPair(t)
			from, _ := p.sides(m)
			source := byte(1)
			if m.direction == "ingress" {
				source = 2
			}
			r := p.run(m.args("--policy", file(t, `
classes:
  - name: mpls
    match: {ethertype: mpls}
    green: {mpls: 4}
  - name: seven
    match: {vlan: 7}
    green: {pcp: 3, dei: 1, dscp: af11}
  - name: rest
    green: {pcp: 6}
length: l2
`))...)
			var sniffer *nettest.Sniffer
			switch {
			case m.direction == "egress":
				sniffer = p.far.Sniff("v0")
			case m.hook == "xdp":
				sniffer = p.near.Sniff("v0")
			default:
				sniffer = p.relay()
			}
			sent := [][]byte{
				tagged(source, 0x8100_a007), // PCP 5, VLAN 7
				tagged(source, 0x8100_1008), // DEI, VLAN 8
				tagged(source, 0x88a8_0007, 0x8100_e009),
				tagged(source, 0x88a8_2008, 0x8100_e007),
				tagged(source),
				labeled(source, 100<<12|7<<9|64, 200<<12|1<<9|1<<8|64),
			}
			from.Inject("v0", sent...)
			if !sniffer.Wait(len(sent), patience) {
				t.Fatalf("%d of %d frames arrived", len(sniffer.Stop()), len(sent))
			}
			want := [][]byte{
				tagged(source, 0x8100_7007),
				tagged(source, 0x8100_d008),
				tagged(source, 0x88a8_7007, 0x8100_e009),
				tagged(source, 0x88a8_c008, 0x8100_e007),
				tagged(source),
				labeled(source, 100<<12|4<<9|64, 200<<12|1<<9|1<<8|64),
			}
			for _, i := range []int{0, 2} { // these have the code point, too
				at := bytes.Index(want[i], []byte{0x45, 0, 0, 48})
				ip := want[i][at : at+20]
				ip[1], ip[10], ip[11] = af11, 0, 0
				binary.BigEndian.PutUint16(ip[10:], ^fold(0, ip))
			}
			total := int64(0)
			for i, f := range sniffer.Stop() {
				total += int64(len(sent[i]))
				if !bytes.Equal(f.Data, want[i]) {
					t.Errorf("frame %d came as\n%x: want\n%x", i, f.Data, want[i])
				}
			}
			s := p.stats()
			if got := s.sum(); got != (count{6, total}) || s.class(t, "seven").Packets != 2 || s.class(t, "seven").Marked.Packets != 2 ||
				s.class(t, "rest").Marked.Packets != 2 || s.class(t, "mpls").Marked.Packets != 1 {
				t.Errorf("counted %+v, in all %+v: want %d bytes", s.Classes, got, total)
			}
			r.term()
		})
	}
}

// TestLiveMark holds that skb marks match and are set: at egress for programs
// behind, at ingress for sockets.
func TestLiveMark(t *testing.T) {
	policy := `
classes:
  - name: five
    match: {mark: 5}
    green: {mark: 7}
  - name: rest
    green: {mark: 9}
`
	for _, m := range methods {
		if m.hook == "xdp" {
			continue
		}
		t.Run(m.hook+"-"+m.direction, func(t *testing.T) {
			m.need(t)
			p := newPair(t)
			from, to := p.sides(m)
			_, at := p.addresses(m, false)
			r := p.run(m.args("--policy", file(t, policy))...)
			behind := newForeign(t, ebpf.SchedCLS, -1, 0)
			behind.filter(p.near, m.direction)
			in := listen(t, to, at)
			want := map[int]uint64{0: 9, 5: 9} // a veth pair between namespaces takes marks away
			if m.direction == "egress" {
				want[5] = 7
			}
			for mark, want := range want {
				send(t, sender(t, from, at, 0, mark), 1, 100)
				got := in.take()
				if len(got) != 1 || behind.mark() != want || m.direction == "ingress" && got[0].mark != int(want) {
					t.Errorf("mark %d: %+v arrived, behind is %d: want %d", mark, got, behind.mark(), want)
				}
			}
			r.term()
		})
	}
}

// TestLiveGenericXDP holds that a device whose driver has no XDP is shaped all
// the same, and that this is said.
func TestLiveGenericXDP(t *testing.T) {
	p := newPair(t)
	r := p.start("run", "lo", "--direction", "ingress", "--hook", "xdp", "--meter", "token-bucket count=packets rate=1p/1000s burst=3")
	r.attached()
	r.out.await(t, `lo ingress: attached by xdp generic, .*\n.*the kernel's generic XDP is slower than tc\n`)
	p.near.Do(func() {
		conn, err := net.Dial("udp", "127.0.0.1:9")
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		for range 5 {
			_, _ = conn.Write([]byte("x")) // what passes is answered by an ICMP error
		}
	})
	s := p.stats("lo")
	if c := s.class(t, "all"); c.Green.Packets != 3 || c.Dropped.Packets < 2 {
		t.Errorf("%+v: want 3 green packets, the others dropped", c)
	}
	r.term()
}
