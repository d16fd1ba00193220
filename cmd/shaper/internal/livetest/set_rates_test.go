package livetest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
	"github.com/a-seed-32e5a53f/shaper/dataplane/nettest"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
	"golang.org/x/sys/unix"
)

// ratedShaper is a shaper with one queue, whose rate is that of the queue or of its link. Two
// handles change it alternately, as two processes would.
type ratedShaper struct {
	*pair
	t       *testing.T
	plan    *compiled.Plan
	link    bool
	handles [2]*kernel.Shaper
	calls   int
}

// ratedKinds are the kinds of shapers that this kernel supports: pacers, and HTB with a link.
func ratedKinds(t *testing.T) []string {
	return append(availablePacers(t), "link")
}

func newRatedShaper(t *testing.T, kind string, rate meter.Rate, limit time.Duration) *ratedShaper {
	t.Helper()
	q := &dataplane.Queue{Name: "q", Config: queue.Config{Time: limit}}
	s := &ratedShaper{pair: newQueuePair(t), t: t, link: kind == "link"}
	if s.link {
		kind, q.Link = "htb", &dataplane.Link{Name: "l", Rate: rate}
	} else {
		q.Rate = rate
	}
	s.plan = compilePlan(t,
		&dataplane.Policy{Classes: []dataplane.Class{{Name: "all", Green: &dataplane.Action{Queue: q}}}})
	s.inNear(func() (err error) {
		s.handles[0], _, err = kernel.Attach(
			kernel.Config{Interface: "v0", Direction: kernel.Egress, Pacer: kernel.Pacer(kind)}, s.plan)
		return err
	})
	s.inNear(func() error {
		list, err := kernel.List()
		if err == nil && len(list) != 1 {
			err = fmt.Errorf("%d shapers are listed: want one", len(list))
		}
		if err == nil {
			s.handles[1] = list[0]
		}
		return err
	})
	return s
}

func (s *ratedShaper) inNear(f func() error) {
	s.t.Helper()
	var err error
	s.near.Do(func() { err = f() })
	if err != nil {
		s.t.Fatal(err)
	}
}

// at returns the plan at a rate.
func (s *ratedShaper) at(rate meter.Rate) *compiled.Plan {
	s.t.Helper()
	queues, links := map[string]meter.Rate{"q": rate}, map[string]meter.Rate(nil)
	if s.link {
		queues, links = nil, map[string]meter.Rate{"l": rate}
	}
	plan, err := s.plan.WithRates(queues, links)
	if err != nil {
		s.t.Fatal(err)
	}
	return plan
}

// set changes the rate.
func (s *ratedShaper) set(rate meter.Rate) {
	s.t.Helper()
	plan := s.at(rate)
	s.inNear(func() error { return s.handles[s.calls%2].SetRates(plan) })
	s.calls++
}

// detach detaches the shaper.
func (s *ratedShaper) detach() {
	s.t.Helper()
	s.inNear(s.handles[0].Detach)
	for _, h := range s.handles {
		h.Close()
	}
}

// TestLiveSetRates changes the rate of a queue or link 100 times in about a second, and reloads
// the policy once meanwhile. Numbered packets are sent in order, and all of them arrive.
func TestLiveSetRates(t *testing.T) {
	t.Parallel()
	for _, kind := range ratedKinds(t) {
		t.Run(kind, func(t *testing.T) {
			slow, fast := meter.BitRate(5e6), meter.BitRate(20e6)
			s := newRatedShaper(t, kind, slow, 30*time.Second)
			_, at := s.addresses(placement{"", "egress"}, false)
			in, conn, out := listenUDP(t, s.far, at), newSender(t, s.near, at, 0, 0), s.openOutput()
			var enough, done atomic.Bool
			sent := make(chan uint64)
			go func() { sent <- sendNumbered(t, conn, &enough) }()
			arrived := make(chan uint64)
			go func() {
				n := uint64(0)
				for range in.receiveUntil(done.Load) {
					n++
				}
				arrived <- n
			}()
			begin := time.Now()
			for i := range 100 {
				time.Sleep(time.Until(begin.Add(time.Duration(i) * 10 * time.Millisecond)))
				rate := []meter.Rate{fast, slow}[i%2]
				if i == 50 {
					plan := s.at(rate)
					s.inNear(func() error {
						_, err := s.handles[0].Reload(plan, nil, time.Time{})
						return err
					})
					continue
				}
				s.set(rate)
			}
			t.Logf("100 changes in %v", time.Since(begin))
			enough.Store(true)
			want := <-sent
			s.set(meter.BitRate(50e6))
			eventually(t, func() error {
				queues, err := s.handles[0].Queues()
				if err == nil && (queues[0].Delay > 0 || queues[0].Bytes > 0) {
					err = fmt.Errorf("%+v: want an empty queue", queues[0])
				}
				return err
			})
			done.Store(true)
			if got := <-arrived; got != want {
				t.Errorf("%d packets arrived of %d", got, want)
			}
			numbers := numbersOf(t, out)
			if len(numbers) != int(want) {
				t.Errorf("%d packets were sent of %d", len(numbers), want)
			}
			for i, n := range numbers {
				if n != uint64(i) {
					t.Fatalf("packet %d is sent, want %d", n, i)
				}
			}
			stats, err := s.handles[0].Stats()
			if err != nil || stats[0].Queued[0].Packets != int64(want) || stats[0].Dropped(0).Packets != 0 {
				t.Errorf("got %+v and error %v, want %d packets queued and none dropped", stats, err, want)
			}
			s.detach()
		})
	}
}

// openOutput opens a socket that receives what v0 sends, in the order in which the qdisc sends
// it: the other end of a veth pair receives packets on several CPUs in any order.
func (s *ratedShaper) openOutput() (fd int) {
	s.t.Helper()
	s.inNear(func() (err error) {
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			return err
		}
		s.t.Cleanup(func() { unix.Close(fd) })
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20); err != nil {
			return err
		}
		const all = unix.ETH_P_ALL<<8 | unix.ETH_P_ALL>>8 // in network order; others see no sent packets
		return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: s.near.Index("v0")})
	})
	return fd
}

// numbersOf returns the numbers of the packets of sendNumbered that a socket of openOutput has
// received.
func numbersOf(t *testing.T, fd int) (list []uint64) {
	t.Helper()
	b := make([]byte, 2000)
	for {
		n, from, err := unix.Recvfrom(fd, b, 0)
		if err == unix.EAGAIN {
			return list
		}
		if err != nil {
			t.Fatal(err)
		}
		if at, ok := from.(*unix.SockaddrLinklayer); ok && at.Pkttype == unix.PACKET_OUTGOING && n == 1000 {
			list = append(list, binary.BigEndian.Uint64(b[28:]))
		}
	}
}

// sendNumbered sends 1000 packets of 1000 bytes in a second, numbered from 0, until enough. It
// returns their number.
func sendNumbered(t *testing.T, conn *net.UDPConn, enough *atomic.Bool) (n uint64) {
	enlargeSendBuffer(t, conn)
	payload := make([]byte, 1000-28)
	for begin := time.Now(); !enough.Load(); time.Sleep(time.Millisecond) {
		for due := uint64(time.Since(begin).Milliseconds()); n < due; n++ {
			binary.BigEndian.PutUint64(payload, n)
			if _, err := conn.Write(payload); err != nil {
				t.Error(err)
				return n
			}
		}
	}
	return n
}

// TestQuietSetRatesSpeed checks that packets of an overloaded queue or link arrive at each new rate.
func TestQuietSetRatesSpeed(t *testing.T) {
	nettest.Quiet(t)
	t.Parallel()
	skipInVM(t)
	for _, kind := range ratedKinds(t) {
		t.Run(kind, func(t *testing.T) {
			s := newRatedShaper(t, kind, meter.BitRate(10e6), 40*time.Millisecond)
			_, at := s.addresses(placement{"", "egress"}, false)
			in, conn := listenUDP(t, s.far, at), newSender(t, s.near, at, 0, 0)
			var enough atomic.Bool
			var arrived atomic.Int64
			over := make(chan struct{})
			go func() {
				defer close(over)
				for range in.receiveUntil(enough.Load) {
					arrived.Add(1)
				}
			}()
			go func() {
				for !enough.Load() {
					offerUDP(t, conn, 1000, 40e6/8, 100*time.Millisecond)
				}
			}()
			for _, rate := range []int64{10, 20, 5, 15} {
				s.set(meter.BitRate(rate * 1e6))
				time.Sleep(400 * time.Millisecond) // packets queued at the previous rate
				wantArrivalRate(t, &arrived, int(rate))
			}
			enough.Store(true)
			<-over
			s.detach()
		})
	}
}

// TestQuietSetRatesTime logs how long a change takes: the median of 1000. To measure, run one of its
// subtests alone.
func TestQuietSetRatesTime(t *testing.T) {
	nettest.Quiet(t)
	skipInVM(t)
	for _, kind := range ratedKinds(t) {
		t.Run(kind, func(t *testing.T) {
			s := newRatedShaper(t, kind, meter.BitRate(10e6), 40*time.Millisecond)
			list := make([]time.Duration, 1000)
			for i := range list {
				begin := time.Now()
				s.set(meter.BitRate(int64(1e6 + i%7*1e6)))
				list[i] = time.Since(begin)
			}
			slices.Sort(list)
			t.Logf("median %v, 99 %% %v", list[len(list)/2], list[len(list)*99/100])
			s.detach()
		})
	}
}

// TestLiveSetRatesRefused checks that SetRates reports a shaper that another process detached, and
// one without queues.
func TestLiveSetRatesRefused(t *testing.T) {
	s := newRatedShaper(t, "htb", meter.BitRate(10e6), 40*time.Millisecond)
	s.inNear(func() error {
		_, err := s.handles[0].Reload(compilePlan(t, policyOfClasses(1)), nil, time.Time{})
		return err
	})
	errorOf := func(h *kernel.Shaper) (err error) {
		s.near.Do(func() { err = h.SetRates(s.plan) })
		return err
	}
	for _, h := range s.handles {
		if err := errorOf(h); err == nil || !strings.Contains(err.Error(), "no queues") {
			t.Errorf("without queues: got error %v", err)
		}
	}
	s.inNear(s.handles[0].Detach)
	if err := errorOf(s.handles[1]); !errors.Is(err, kernel.ErrDetached) {
		t.Errorf("after Detach: got error %v, want ErrDetached", err)
	}
}
