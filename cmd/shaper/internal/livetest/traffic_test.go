package livetest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane/nettest"
)

// DSCPs as values of the TOS byte.
const (
	af11 = 10 << 2
	af12 = 12 << 2
	af21 = 18 << 2
)

// TestLiveUDP checks that real datagrams are colored, marked and dropped in the order in which
// they are sent, and that their checksums are valid.
func TestLiveUDP(t *testing.T) {
	t.Parallel()
	for _, m := range placements {
		for _, v6 := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s-%s-v6=%v", m.hook, m.direction, v6), func(t *testing.T) {
				m.skipIfUnsupported(t)
				checkUDP(t, m, v6, !v6) // for IPv4 the device fills in the checksum
			})
		}
	}
}

func checkUDP(t *testing.T, m placement, v6, offload bool) {
	p := newPair(t)
	from, to := p.senderAndReceiver(m)
	_, at := p.addresses(m, v6)
	if !offload {
		from.Offload("v0", "tx-checksum", false)
	}
	before := p.deviceState()
	r := p.runShaper(
		m.flags("--meter", ladderMeter, "--green", "dscp=af11", "--yellow", "dscp=af12", "--red", "drop")...)
	in := listenUDP(t, to, at)
	sniffer := to.Sniff("v0")
	sendUDP(t, newSender(t, from, at, 1, 0), 8, 200)
	got := in.receiveAll()
	if len(got) != 5 {
		t.Fatalf("%d of 8 packets arrived: want 5", len(got))
	}
	for i, d := range got {
		want := datagram{tos: af11 | 1, number: byte(i)}
		if i >= 3 {
			want.tos = af12 | 1
		}
		if d != want {
			t.Errorf("packet %d is %+v: want %+v", i, d, want)
		}
	}
	for i, f := range sniffer.Stop() { // sniffed before tc ingress
		ip := f.Data[14:]
		if err := checkSums(ip, offload); err != nil {
			t.Errorf("packet %d: %v", i, err)
		}
		if want := got[min(i, 4)].tos; (m.direction == "egress" || m.hook == "xdp") && tosOf(ip) != want {
			t.Errorf("packet %d has TOS %#x on the wire: want %#x", i, tosOf(ip), want)
		}
	}
	s := p.stats()
	c := s.classNamed(t, "all")
	if c.Green.packetCount != (packetCount{3, 600}) || c.Yellow.packetCount != (packetCount{2, 400}) ||
		c.Red.packetCount != (packetCount{3, 600}) {
		t.Errorf("counted %+v %+v %+v: want 3, 2 and 3 packets of 200 bytes", c.Green.packetCount,
			c.Yellow.packetCount, c.Red.packetCount)
	}
	if c.Dropped != (packetCount{3, 600}) || c.Red.Dropped["color"] != (packetCount{3, 600}) ||
		c.Marked != (packetCount{5, 1000}) {
		t.Errorf("dropped %+v (%+v), marked %+v: want 3 and 5 packets", c.Dropped, c.Red.Dropped, c.Marked)
	}
	if s.Hook != m.hook || s.Direction != m.direction || !s.Attached || s.Process != r.cmd.Process.Pid {
		t.Errorf("status %+v: want %+v, attached, by process %d", s, m, r.cmd.Process.Pid)
	}
	if m.hook == "xdp" && s.XDPMode != "driver" {
		t.Errorf("XDP mode %q on veth: want driver", s.XDPMode)
	}
	r.out.awaitMatch(t, fmt.Sprintf(
		`v0 %s: attached by %s( driver)?, program %d, kernel \d+\.\d+\S*, policy --meter %s \(1 class\)`,
		m.direction, m.hook, s.ProgramID, ladderMeter))
	r.stopBySIGTERM()
	r.out.awaitMatch(t, "v0 "+m.direction+": detached")
	p.wantState(before)
	sendUDP(t, newSender(t, from, at, 1, 0), 3, 200)
	if got := in.receiveAll(); len(got) != 3 || got[0].tos != 1 {
		t.Errorf("after the end %+v arrived: want 3 unchanged packets", got)
	}
}

// TestLiveTCP checks that a TCP stream is marked and arrives intact, with and without the
// device's offloads.
func TestLiveTCP(t *testing.T) {
	t.Parallel()
	for _, m := range placements {
		for _, v6 := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s-%s-v6=%v", m.hook, m.direction, v6), func(t *testing.T) {
				m.skipIfUnsupported(t)
				p := newPair(t)
				from, to := p.senderAndReceiver(m)
				_, at := p.addresses(m, v6)
				if v6 {
					from.Offload("v0", "tx-checksum", false) // this turns segmentation off, too
				}
				r := p.runShaper(m.flags("--meter", unlimitedMeter, "--green", "dscp=af21")...)
				sniffer := to.Sniff("v0")
				streamTCP(t, from, to, at, 300_000)
				packets := int64(0)
				for i, f := range sniffer.Stop() {
					packets++
					if err := checkSums(f.Data[14:], !v6); err != nil {
						t.Errorf("packet %d: %v", i, err)
					}
					if got := tosOf(f.Data[14:]) &^ 3; (m.direction == "egress" || m.hook == "xdp") &&
						got != af21 {
						t.Errorf("packet %d has TOS %#x: want %#x", i, got, af21)
					}
				}
				s := p.stats()
				if c := s.classNamed(t, "all"); c.Marked != c.packetCount || c.Packets < packets ||
					c.Bytes < 300_000 {
					t.Errorf("counted %+v, marked %+v, %d frames arrived: want all marked", c.packetCount,
						c.Marked, packets)
				}
				r.stopBySIGTERM()
			})
		}
	}
}

// streamTCP sends bytes over TCP and checks that they arrive unchanged.
func streamTCP(t *testing.T, from, to *nettest.Namespace, at net.IP, size int) {
	t.Helper()
	var listener *net.TCPListener
	var err error
	to.Do(func() { listener, err = net.ListenTCP(networkOf("tcp", at), &net.TCPAddr{IP: at, Port: 6000}) })
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
	from.Do(func() { conn, err = net.DialTCP(networkOf("tcp", at), nil, &net.TCPAddr{IP: at, Port: 6000}) })
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
			t.Errorf("%d bytes arrived: want the %d bytes sent", len(b), size)
		}
	case <-time.After(waitLimit):
		t.Fatal("the stream did not arrive")
	}
	// The kernel acknowledges the far end's FIN before it reports the end of the
	// stream. After that it sends nothing more.
	if err := conn.SetReadDeadline(time.Now().Add(waitLimit)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(conn); err != nil {
		t.Fatal(err)
	}
	conn.Close()
	time.Sleep(quietTime())
}

// TestQuietBound offers UDP above the PIR. The meter must pass no byte more than it allows, and
// hardly one less.
func TestQuietBound(t *testing.T) {
	nettest.Quiet(t)
	t.Parallel()
	skipInVM(t)
	const (
		pir, pbs = 2_500_000, 128 << 10 // bytes
		cir, cbs = 1_250_000, 64 << 10
		size     = 1000
	)
	for _, m := range placements {
		t.Run(m.hook+"-"+m.direction, func(t *testing.T) {
			m.skipIfUnsupported(t)
			p := newPair(t)
			from, to := p.senderAndReceiver(m)
			_, at := p.addresses(m, false)
			nettest.Steady(t, func() (slow error) {
				r := p.runShaper(m.flags("--meter", "trtcm cir=1250kB/s cbs=64KiB pir=2500kB/s pbs=128KiB",
					"--green", "dscp=af11", "--yellow", "dscp=af12")...)
				in := listenUDP(t, to, at)
				received := make(chan []datagram)
				var done atomic.Bool
				go func() { received <- slices.Collect(in.receiveUntil(done.Load)) }()
				conn := newSender(t, from, at, 0, 0)
				begin := time.Now()
				sent := int64(0)
				// Models of the buckets, for the packets that this machine manages to send.
				committed, peak := newModelBucket(cbs, cir, begin), newModelBucket(pbs, pir, begin)
				for time.Since(begin) < 2*time.Second {
					for due := int64(time.Since(begin).Seconds() * 2 * pir / size); sent < due; sent++ {
						if now := time.Now(); peak.passes(now, size) {
							committed.passes(now, size)
						}
						sendUDP(t, conn, 1, size)
					}
					time.Sleep(time.Millisecond)
				}
				took := time.Since(begin).Seconds()
				done.Store(true)
				bytes := map[int]float64{}
				all := <-received
				in.conn.Close()
				for _, d := range all {
					bytes[d.tos] += size
				}
				bounded := func(what string, got, most, least float64) {
					t.Helper()
					if got > most {
						t.Errorf("%s: %.0f bytes passed of %d sent in %.3f s: want at most %.0f", what, got,
							sent*size, took, most)
					}
					if got < 0.98*least {
						slow = errors.Join(slow, fmt.Errorf(
							"%s: %.0f bytes passed of %d sent in %.3f s: want at least 98%% of %.0f", what,
							got, sent*size, took, least))
					}
				}
				bounded("green", bytes[af11], cbs+cir*took, committed.passed)
				bounded("green and yellow", bytes[af11]+bytes[af12], pbs+pir*took, peak.passed)
				s := p.stats()
				c := s.classNamed(t, "all")
				if c.Packets != sent || c.Packets-c.Dropped.Packets != int64(len(all)) {
					t.Errorf("counted %d packets, %d dropped: want %d sent and %d arrived", c.Packets,
						c.Dropped.Packets, sent, len(all))
				}
				r.stopBySIGTERM()
				return slow
			})
		})
	}
}

// modelBucket is a model of a token bucket, in bytes.
type modelBucket struct {
	burst, rate, tokens, passed float64
	last                        time.Time
}

func newModelBucket(burst, rate float64, begin time.Time) *modelBucket {
	return &modelBucket{burst: burst, rate: rate, tokens: burst, last: begin}
}

// passes reports whether a packet passes.
func (b *modelBucket) passes(now time.Time, size float64) bool {
	b.tokens = min(b.burst, b.tokens+b.rate*now.Sub(b.last).Seconds())
	b.last = now
	if b.tokens < size {
		return false
	}
	b.tokens -= size
	b.passed += size
	return true
}

// TestLiveECN checks that ECN-capable packets are marked, and that other packets are dropped if
// the policy says so.
func TestLiveECN(t *testing.T) {
	t.Parallel()
	for _, m := range placements {
		t.Run(m.hook+"-"+m.direction, func(t *testing.T) {
			m.skipIfUnsupported(t)
			p := newPair(t)
			from, to := p.senderAndReceiver(m)
			r := p.runShaper(m.flags("--policy", writePolicy(t, `
classes:
  - name: strict
    match: {dscp: af11}
    green: {ecn: ce, else: drop}
  - name: lenient
    green: {ecn: ce}
`))...)
			for _, v6 := range []bool{false, true} {
				_, at := p.addresses(m, v6)
				in := listenUDP(t, to, at)
				for _, tos := range []int{0, 1, 2, 3, af11, af11 | 2} {
					sendUDP(t, newSender(t, from, at, tos, 0), 1, 100)
				}
				var got []int
				for _, d := range in.receiveAll() {
					got = append(got, d.tos)
				}
				if want := []int{0, 3, 3, 3, af11 | 3}; !slices.Equal(got, want) {
					t.Errorf("v6 %v: TOS %v arrived: want %v", v6, got, want)
				}
			}
			s := p.stats()
			if c := s.classNamed(t, "strict"); c.Green.Dropped["ecn"].Packets != 2 || c.Packets != 4 {
				t.Errorf("counted %+v: want 4 packets, 2 dropped for ECN", c)
			}
			r.stopBySIGTERM()
		})
	}
}
