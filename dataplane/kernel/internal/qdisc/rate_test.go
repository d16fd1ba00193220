package qdisc

import (
	"encoding/binary"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/a-seed-32e5a53f/shaper/dataplane/nettest"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// TestQuietQdiscRate checks the rate of a leaf, for several overheads per packet.
func TestQuietQdiscRate(t *testing.T) {
	nettest.Quiet(t)
	for _, rows := range []struct {
		bits     uint64
		overhead int
		frames   int
	}{
		{5_000_000, 0, 800},
		{5_000_000, -14, 800},
		{5_000_000, 24, 800},
		{100_000_000, 0, 8000},
		{100_000_000, -14, 8000},
	} {
		t.Run(fmt.Sprintf("%d with %d", rows.bits, rows.overhead), func(t *testing.T) {
			rate, n := nettest.Scaled(rows.bits, rows.frames)
			nettest.Steady(t, func() error {
				w := newWire(t)
				w.install(&Tree{
					Kind: HTB, Overhead: rows.overhead, Leaves: []Leaf{{ID: 1, Rate: rate, Credit: credit}},
				})
				sniffer := w.Far.Sniff("v0")
				defer nettest.Fill(w.Socket(9, Handle(1)))()
				sniffer.Wait(n, time.Minute)
				frames := sniffer.Stop()
				want := float64(rate) * 1514 / float64(1514+rows.overhead)
				got := nettest.Speed(frames[len(frames)/8:]) // the first ones use the credit
				t.Logf("%.0f byte/s, %+.3f %%", got, 100*(got/want-1))
				if !nettest.Nearly(got, want) {
					return fmt.Errorf("got %.0f byte/s, want %.0f", got, want)
				}
				return nil
			})
		})
	}
}

// TestQdiscUnqueued checks that packets of no queue are not shaped.
func TestQdiscUnqueued(t *testing.T) {
	t.Parallel()
	w := newWire(t)
	w.install(&Tree{Kind: HTB, Leaves: []Leaf{{ID: 1, Rate: 100}}})
	sniffer := w.Far.Sniff("v0")
	slow, fast := w.Socket(9, Handle(1)), w.Socket(10, 0)
	for range 20 {
		_, _ = slow.Write(make([]byte, 1000))
		_, _ = fast.Write(make([]byte, 1000))
	}
	sniffer.Wait(21, time.Minute)
	ports := map[int]int{}
	for _, f := range sniffer.Stop() {
		ports[nettest.PortOf(f)]++
	}
	if ports[10] != 20 || ports[9] > 2 {
		t.Errorf("got packets by port %v, want 20 to port 10 and at most 2 to port 9", ports)
	}
	if s := w.stats()[1]; s.Queued+uint32(s.Packets) != 20 || s.Backlog != s.Queued*1042 {
		t.Errorf("got %+v, want 20 packets sent or queued", s)
	}
}

// TestQuietQdiscLink checks that queues share a link by priority, then by quantum.
func TestQuietQdiscLink(t *testing.T) {
	nettest.Quiet(t)
	allow := 0.01
	if nettest.InVM {
		allow = 0.1
	}
	link, n := nettest.Scaled(40_000_000, 6000)
	nettest.Steady(t, func() error {
		w := newWire(t)
		w.install(&Tree{Kind: HTB, Links: []Link{{ID: 0x100, Rate: link, Credit: credit}}, Leaves: []Leaf{
			{ID: 1, Parent: 0x100, Rate: link / 4},
			{ID: 2, Parent: 0x100, Priority: 1, Quantum: 3 * 1514},
			{ID: 3, Parent: 0x100, Priority: 1, Quantum: 1514},
			{ID: 4, Parent: 0x100, Priority: 2},
		}})
		for id := range uint16(4) {
			defer nettest.Fill(w.Socket(int(id)+1, Handle(id+1)))()
		}
		full := func() bool { // then the link is never idle for a queue
			s := w.stats()
			return s[1].Queued > 0 && s[2].Queued > 0 && s[3].Queued > 0 && s[4].Queued > 0
		}
		for begin := time.Now(); !full(); time.Sleep(10 * time.Millisecond) {
			if time.Since(begin) > time.Minute {
				t.Fatalf("got %+v after a minute, want a backlog in each queue", w.stats())
			}
		}
		sniffer := w.Far.Sniff("v0")
		sniffer.Wait(n, time.Minute)
		frames := sniffer.Stop()
		if got := nettest.Speed(frames); !nettest.Nearly(got, float64(link)) {
			return fmt.Errorf("got %.0f byte/s in all, want %d", got, link)
		}
		shares := map[int]float64{}
		for _, f := range frames {
			shares[nettest.PortOf(f)] += 1 / float64(len(frames))
		}
		t.Log(shares)
		for port, want := range map[int]float64{1: 0.25, 2: 0.5625, 3: 0.1875, 4: 0} {
			if got := shares[port]; got < want-allow || got > want+allow {
				return fmt.Errorf("queue %d: got a share of %.3f of the link, want %.3f", port, got, want)
			}
		}
		return nil
	})
}

// TestQuietQdiscFair sends a flood and a slow flow through one queue. The slow flow loses no packet if
// the queue is fair, and some if it is not.
func TestQuietQdiscFair(t *testing.T) {
	nettest.Quiet(t)
	newWire(t).Do(func() error {
		if err := Have(FQCoDel); err != nil {
			t.Skip(err)
		}
		return nil
	})
	for _, isFair := range []bool{false, true} {
		t.Run(map[bool]string{false: "one FIFO", true: "fair"}[isFair], func(t *testing.T) {
			t.Parallel()
			var w *wire
			var q *Saved
			leaf := Leaf{ID: 1, Parent: 0x100, Quantum: 1514, Limit: 100_000}
			if isFair {
				leaf.Fair = &Fair{
					CoDel:   queue.CoDel{Target: 5 * time.Millisecond, Interval: 100 * time.Millisecond},
					Packets: 5000, Quantum: 1514,
				}
			}
			nettest.Steady(t, func() error {
				w = newWire(t)
				q = w.install(&Tree{
					Kind: HTB, Links: []Link{{ID: 0x100, Rate: bitRate(4_000_000), Credit: credit}},
					Leaves: []Leaf{leaf},
				})
				sniffer := w.Far.Sniff("v0")
				flood, calm := w.Socket(1, Handle(1)), w.Socket(2, Handle(1))
				defer nettest.Fill(flood)()
				const sent = 50
				for range sent { // 0.8 of 4 Mbit/s at most
					if _, err := calm.Write(make([]byte, 958)); err != nil {
						t.Fatal(err)
					}
					time.Sleep(10 * time.Millisecond)
				}
				time.Sleep(500 * time.Millisecond)
				ports := map[int]int{}
				for _, f := range sniffer.Stop() {
					ports[nettest.PortOf(f)]++
				}
				if isFair != (ports[2] == sent) || ports[1] < sent {
					return fmt.Errorf(
						"got %d of %d packets of the slow flow and %d of the flood, want all: %v", ports[2],
						sent, ports[1], isFair)
				}
				if s := w.stats()[1]; s.Drops == 0 {
					return fmt.Errorf("got %+v, want drops", s)
				}
				return nil
			})
			leaf.Limit, leaf.Fair = 50_000, nil
			if isFair {
				leaf.Fair = &Fair{
					CoDel: queue.CoDel{Target: time.Millisecond, Interval: 10 * time.Millisecond}, ECN: true,
					Packets: 100, Quantum: 1514,
				}
			}
			w.change(q, &Tree{
				Kind: HTB, Links: []Link{{ID: 0x100, Rate: bitRate(4_000_000), Credit: credit}},
				Leaves: []Leaf{leaf},
			})
			if want := "qdisc fq_codel .* parent 5ade:1 limit 100p .* target \\S+ interval 10ms memory_limit 100000b ecn"; isFair &&
				!regexp.MustCompile(want).MatchString(w.Shown()) {
				t.Errorf("got %s\nwant %s", w.Shown(), want)
			}
		})
	}
}

// TestQuietQdiscDeparture checks that FQ sends packets at their departure times, that it holds as many
// packets of one flow as a queue, and that a change loses none.
func TestQuietQdiscDeparture(t *testing.T) {
	nettest.Quiet(t)
	nettest.Steady(t, func() error { return departures(newWire(t)) })
}

// departures sends packets with departure times through FQ. Its error reports wrong times.
func departures(w *wire) error {
	t := w.T
	t.Helper()
	q := w.install(&Tree{Kind: FQ, Horizon: time.Second})
	const n, gap = 1000, 2 * time.Millisecond
	conn := w.Socket(9, 0)
	raw, err := conn.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if e := raw.Control(func(fd uintptr) {
		// struct sock_txtime: a clock and no flags
		clock := binary.NativeEndian.AppendUint64(nil, unix.CLOCK_MONOTONIC)
		err = unix.SetsockoptString(int(fd), unix.SOL_SOCKET, unix.SO_TXTIME, string(clock))
	}); e != nil || err != nil {
		t.Fatal(e, err)
	}
	sniffer := w.Far.Sniff("v0")
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		t.Fatal(err)
	}
	begin := uint64(now.Nano()) + uint64(500*time.Millisecond)
	for i := range n {
		control := make([]byte, unix.CmsgSpace(8))
		binary.NativeEndian.PutUint64(control, uint64(unix.CmsgLen(8)))
		binary.NativeEndian.PutUint32(control[8:], unix.SOL_SOCKET)
		binary.NativeEndian.PutUint32(control[12:], unix.SCM_TXTIME)
		binary.NativeEndian.PutUint64(control[unix.CmsgLen(0):], begin+uint64(i)*uint64(gap))
		if _, _, err := conn.WriteMsgUDP(make([]byte, 100), control, conn.To); err != nil {
			t.Fatal(err)
		}
	}
	w.change(q, &Tree{Kind: FQ, Horizon: 20 * time.Second})
	if got := w.Shown(); !strings.Contains(got, "horizon 22.5s horizon_cap") {
		t.Errorf("got %s, want a horizon of 22.5 s", got)
	}
	sniffer.Wait(n, time.Minute)
	frames := sniffer.Stop()
	if len(frames) != n {
		t.Fatalf("got %d packets, want %d", len(frames), n)
	}
	took := time.Duration(frames[n-1].Time - frames[0].Time)
	t.Logf("%v", took)
	if want := (n - 1) * gap; took < want*9/10 || took > want*11/10 {
		return fmt.Errorf("got %v from the first to the last packet, want %v", took, want)
	}
	return nil
}
