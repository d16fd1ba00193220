package livetest

import (
	"fmt"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/a-seed-32e5a53f/shaper/dataplane/nettest"
)

// offerUDP sends packets of size bytes (IP) at a rate in bytes/s for a time d. It returns the
// number of packets.
func offerUDP(t *testing.T, conn *net.UDPConn, size int, rate float64, d time.Duration) (n int64) {
	enlargeSendBuffer(t, conn)
	payload := make([]byte, size-28)
	for begin := time.Now(); time.Since(begin) < d; time.Sleep(time.Millisecond) {
		for due := int64(time.Since(begin).Seconds() * rate / float64(size)); n < due; n++ {
			if _, err := conn.Write(payload); err != nil && !isDropError(err) {
				t.Error(err)
				return n
			}
		}
	}
	return n
}

// enlargeSendBuffer lets a socket have many queued packets.
func enlargeSendBuffer(t *testing.T, conn *net.UDPConn) {
	t.Helper()
	withFD(t, conn,
		func(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, 64<<20) })
}

// fillAndOfferUDP fills a queue with half a second of packets and then calls offerUDP. The
// queue must not become empty while the sender gets no CPU time.
func fillAndOfferUDP(t *testing.T, conn *net.UDPConn, size int, rate float64, d time.Duration) int64 {
	t.Helper()
	enlargeSendBuffer(t, conn)
	n := int(rate / float64(size) / 2)
	sendUDP(t, conn, n, size)
	return int64(n) + offerUDP(t, conn, size, rate, d)
}

// receivedDuring returns the number of packets by TOS that arrive while send runs.
func receivedDuring(in *receiver, send func()) map[int]int64 {
	in.t.Helper()
	var done atomic.Bool
	result := make(chan map[int]int64)
	go func() {
		tos := map[int]int64{}
		for d := range in.receiveUntil(done.Load) {
			tos[d.tos]++
		}
		result <- tos
	}()
	send()
	done.Store(true)
	return <-result
}

// ipRate returns the rate of the IP packets in frames, bytes/s.
func ipRate(frames []nettest.Frame) float64 {
	n := 0
	for _, f := range frames[1:] {
		n += len(f.Data) - 14
	}
	return float64(n) / time.Duration(frames[len(frames)-1].Time-frames[0].Time).Seconds()
}

// packetRate returns the number of packets per second from the times at which they were read. A
// reader can be late but never early, so the rate is measured between the least delayed packet
// of the first quarter and that of the last. about is the expected rate.
func packetRate(at []time.Time, about float64) float64 {
	punctual := func(from, to int) (best int) {
		late := func(i int) float64 { return at[i].Sub(at[0]).Seconds() - float64(i)/about }
		for best = from; from < to; from++ {
			if late(from) < late(best) {
				best = from
			}
		}
		return best
	}
	if len(at) < 100 {
		return 0
	}
	first, last := punctual(0, len(at)/4), punctual(len(at)*3/4, len(at))
	return float64(last-first) / at[last].Sub(at[first]).Seconds()
}

// sortedGaps returns the times between frames, sorted.
func sortedGaps(frames []nettest.Frame) []time.Duration {
	var out []time.Duration
	for i := range frames[1:] {
		out = append(out, time.Duration(frames[i+1].Time-frames[i].Time))
	}
	slices.Sort(out)
	return out
}

// checkNear returns an error if a value is not near another one. In a VM it may be much
// smaller, but not larger.
func checkNear(t *testing.T, what string, got, want, within float64) error {
	t.Helper()
	t.Logf("%s: %.0f, %+.3f %% of %.0f", what, got, 100*(got/want-1), want)
	least, most := want*(1-within), want*(1+within)
	if inVM {
		least, most = want/4, want*1.05
	}
	if got < least || got > most {
		return fmt.Errorf("%s: %.0f: want %.0f to %.0f", what, got, least, most)
	}
	return nil
}

// startTCP sends TCP as fast as possible to an address in the other namespace, and receives it
// at once, so that no backlog of the receiving socket counts later. rate measures for a time, and
// returns bytes/s.
func startTCP(t *testing.T, from, to *nettest.Namespace, at net.IP) (rate func(time.Duration) float64) {
	t.Helper()
	var listener net.Listener
	var conn net.Conn
	var err error
	to.Do(func() { listener, err = net.Listen("tcp4", net.JoinHostPort(at.String(), "6000")) })
	if err == nil {
		from.Do(func() { conn, err = net.Dial("tcp4", listener.Addr().String()) })
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close(); conn.Close() })
	go func() {
		for b := make([]byte, 1<<16); ; {
			if _, err := conn.Write(b); err != nil {
				return
			}
		}
	}()
	server, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	var received atomic.Int64
	go func() {
		for b := make([]byte, 1<<16); ; {
			n, err := server.Read(b)
			if received.Add(int64(n)); err != nil {
				return
			}
		}
	}()
	return func(d time.Duration) float64 {
		n, begin := received.Load(), time.Now()
		time.Sleep(d)
		return float64(received.Load()-n) / time.Since(begin).Seconds()
	}
}
