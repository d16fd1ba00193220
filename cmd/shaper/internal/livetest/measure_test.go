package livetest

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/a-seed-32e5a53f/shaper/dataplane/nettest"
)

// offer sends packets of size bytes of IP at a rate (bytes/s) for a time, and
// returns how many.
func offer(t *testing.T, conn *net.UDPConn, size int, rate float64, d time.Duration) (n int64) {
	patient(t, conn)
	payload := make([]byte, size-28)
	for begin := time.Now(); time.Since(begin) < d; time.Sleep(time.Millisecond) {
		for due := int64(time.Since(begin).Seconds() * rate / float64(size)); n < due; n++ {
			if _, err := conn.Write(payload); err != nil && !refused(err) {
				t.Error(err)
				return n
			}
		}
	}
	return n
}

// patient has a socket take many packets that are queued.
func patient(t *testing.T, conn *net.UDPConn) {
	t.Helper()
	control(t, conn, func(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, 64<<20) })
}

// fillAndOffer is offer that first fills a queue with packets of a half second, so that
// it does not run empty when a busy machine has the sender stand still.
func fillAndOffer(t *testing.T, conn *net.UDPConn, size int, rate float64, d time.Duration) int64 {
	t.Helper()
	patient(t, conn)
	n := int(rate / float64(size) / 2)
	send(t, conn, n, size)
	return int64(n) + offer(t, conn, size, rate, d)
}

// gathered is what arrives while something is sent, by TOS.
func gathered(in *receiver, send func()) map[int]int64 {
	in.t.Helper()
	var done atomic.Bool
	result := make(chan map[int]int64)
	go func() {
		tos := map[int]int64{}
		for d := range in.until(done.Load) {
			tos[d.tos]++
		}
		result <- tos
	}()
	send()
	done.Store(true)
	return <-result
}

// speedOf is that of IP packets in frames, in bytes/s.
func speedOf(frames []nettest.Frame) float64 {
	n := 0
	for _, f := range frames[1:] {
		n += len(f.Data) - 14
	}
	return float64(n) / time.Duration(frames[len(frames)-1].Time-frames[0].Time).Seconds()
}

// paceOf is how many packets arrive in a second, by times at which they were read. A
// reader may be late, and is never early: it is measured from the most punctual one of
// the first quarter to that of the last, by a pace that is about the one.
func paceOf(at []time.Time, about float64) float64 {
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

// gapsOf are the times between frames, sorted.
func gapsOf(frames []nettest.Frame) []time.Duration {
	var out []time.Duration
	for i := range frames[1:] {
		out = append(out, time.Duration(frames[i+1].Time-frames[i].Time))
	}
	slices.Sort(out)
	return out
}

// about wants a value near another. A VM may be slow, but not fast.
func about(t *testing.T, what string, got, want, within float64) error {
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

// bulk has TCP send all it can, to an address in the other namespace. What it
// returns reads there for a time, and says how fast, in bytes/s.
func bulk(t *testing.T, from, to *nettest.Namespace, at net.IP) (read func(time.Duration) float64) {
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
	buf := make([]byte, 1<<16)
	return func(d time.Duration) float64 {
		n, begin := 0, time.Now()
		if err := server.SetReadDeadline(begin.Add(d)); err != nil {
			t.Fatal(err)
		}
		for time.Since(begin) < d {
			k, err := server.Read(buf)
			if n += k; errors.Is(err, os.ErrDeadlineExceeded) {
				break
			} else if err != nil {
				t.Fatal(err)
			}
		}
		return float64(n) / time.Since(begin).Seconds()
	}
}
