package livetest

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/a-seed-32e5a53f/shaper/dataplane/nettest"
)

// endQueued sends packets of 1000 bytes to a queue and then ends the shaper by SIGINT, for each
// pacer and direction at the given hooks. ended gets the output and the number of packets that
// arrived.
func endQueued(
	t *testing.T, hooks []string, queue string, packets int,
	ended func(t *testing.T, pacer, out string, arrived int64),
) {
	for _, pacer := range availablePacers(t) {
		for _, m := range placements {
			if !slices.Contains(hooks, m.hook) {
				continue
			}
			t.Run(pacer+"-"+m.hook+"-"+m.direction, func(t *testing.T) {
				m.skipIfUnsupported(t)
				if pacer == "htb" {
					skipInVM(t)
				}
				p := newQueuePair(t)
				from, to := p.senderAndReceiver(m)
				_, at := p.addresses(m, false)
				before, qdiscs := p.deviceState(), p.qdiscState()
				r := p.runShaper(m.flags("--pacer", pacer, "--policy",
					writePolicy(t, "classes: [{name: a, green: {queue: q}}]\nqueues: {q: "+queue+"}"))...)
				in, conn := listenUDP(t, to, at), newSender(t, from, at, 0, 0)
				enlargeSendBuffer(t, conn)
				arrived := receivedDuring(in, func() {
					sendUDP(t, conn, packets, 1000)
					r.sendSignal(os.Interrupt)
					if code := r.waitForExit(); code != 0 {
						t.Errorf("exit %d: stderr %q", code, &r.err)
					}
				})[0]
				ended(t, pacer, r.out.String(), arrived)
				p.awaitClean(before, qdiscs)
			})
		}
	}
}

// TestLiveQueueDrains checks that packets queued when shaper ends are still sent: 12 packets of
// 1000 bytes at 1 Mbit/s take 0.1 s of the second that shaper waits.
func TestLiveQueueDrains(t *testing.T) {
	t.Parallel()
	const sent = 400
	endQueued(t, []string{
		"tcx", "tc",
	}, "{rate: 1mbit, limit: 12p, fair: false}", sent, func(t *testing.T, _, out string, arrived int64) {
		found := regexp.MustCompile(`a +green +400 +[\d.]+ +[\d,]+ +(\d+) `).FindStringSubmatch(out)
		if found == nil {
			t.Fatalf("unexpected output %q", out)
		}
		dropped, _ := strconv.ParseInt(found[1], 10, 64)
		if arrived != sent-dropped || dropped < 10 {
			t.Errorf("%d packets arrived and %d were dropped, of %d", arrived, dropped, sent)
		}
	})
}

// TestLiveQueueLostAtEnd checks that packets still queued one second after the end are counted
// as lost: each packet is either sent or lost. One packet takes 4 ms, so some are sent while
// the queue is being removed; all take 80 s.
func TestLiveQueueLostAtEnd(t *testing.T) {
	t.Parallel()
	const sent = 20_000
	endQueued(t, []string{"tcx"}, "{rate: 2mbit, limit: 100s, fair: false}", sent,
		func(t *testing.T, pacer, out string, arrived int64) {
			found := regexp.MustCompile(
				`: lost (at most )?([\d,]+) packets that were still queued\n`).FindStringSubmatch(out)
			if found == nil || (found[1] != "") != (pacer == "fq") {
				t.Fatalf("unexpected output %q", out)
			}
			lost, _ := strconv.ParseInt(strings.ReplaceAll(found[2], ",", ""), 10, 64)
			if arrived+lost < sent || arrived+lost > sent && pacer == "htb" || arrived == sent || lost < 10 {
				t.Errorf("%d packets arrived and %s%d were lost, of %d", arrived, found[1], lost, sent)
			}
		})
}

// TestLiveQueueLargePacket checks that a packet above a queue's limit is dropped, and no other
// packet.
func TestLiveQueueLargePacket(t *testing.T) {
	skipInVM(t)
	p := newQueuePair(t)
	_, at := p.addresses(placement{"", "egress"}, false)
	r := p.runShaper("--policy", writePolicy(t, fmt.Sprintf(slowQueue, "1000B")))
	in := listenUDP(t, p.far, at)
	conn := newSender(t, p.near, at, 0, 0)
	for range 5 {
		sendUDP(t, conn, 1, 1001)
		sendUDP(t, conn, 1, 1000)
		eventually(t, func() error {
			if _, there := in.receive(); !there {
				return errors.New("the packet within the limit does not arrive")
			}
			return nil
		})
		time.Sleep(20 * time.Millisecond) // it can arrive before its departure time
	}
	c := p.stats().Classes[0]
	if n := len(in.receiveAll()); n != 0 || c.Green.Dropped["queue-full"] != (packetCount{5, 5005}) ||
		c.Queued != (packetCount{5, 5000}) {
		t.Errorf("%d more packets arrived, counted %+v: want every second one", n, c)
	}
	r.stopBySIGTERM()
}

// TestQuietQueueOverflow checks that the backlog of HTB stays within the queue's limit during a
// long overload. If the machine stalls, HTB falls behind and the backlog is larger, within the
// bound of docs/PACING.md.
func TestQuietQueueOverflow(t *testing.T) {
	nettest.Quiet(t)
	t.Parallel()
	skipInVM(t)
	const most = 30
	for _, test := range []struct {
		name, limit string
		size        int
		bytes       int64 // largest backlog at the limit
	}{
		{"bytes", "30000B", 1000, 30_000},
		{"packets", "30p", 1000, most * 1500},
		{"time", "24ms", 1000, 30_000},
		{"small", "30p", 100, most * 1500},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := newQueuePair(t)
			_, at := p.addresses(placement{"", "egress"}, false)
			r := p.runShaper("--policy", writePolicy(t, fmt.Sprintf(slowQueue, test.limit)))
			conn := newSender(t, p.near, at, 0, 0)
			listenUDP(t, p.far, at)
			overflow := func() (mostly, top int64) {
				done := make(chan int64)
				go func() { done <- offerUDP(t, conn, test.size, 30e6/8, 3*time.Second) }()
				var all []int64
				for begin := time.Now(); time.Since(begin) < 2900*time.Millisecond; time.Sleep(
					5 * time.Millisecond) {
					bytes, n := p.htbBacklog("v0")
					if all = append(all, n); bytes > test.bytes*3/2+64<<10 {
						t.Fatalf("%d bytes are queued: want at most %d", bytes, test.bytes*3/2+64<<10)
					}
				}
				<-done
				slices.Sort(all)
				return all[len(all)/2], all[len(all)-1]
			}
			for try := 1; ; try++ {
				mostly, top := overflow()
				t.Logf("backlog: median %d packets, maximum %d", mostly, top)
				if mostly <= most+2 && top >= most/2 {
					break
				}
				if try == 5 {
					t.Fatalf("wrong backlog in five attempts: want the queue full with %d packets", most)
				}
				time.Sleep(500 * time.Millisecond) // HTB catches up
			}
			r.stopBySIGTERM()
		})
	}
}

// TestLiveQueueBypass checks that packets without a queue are not delayed, and that a socket's
// priority does not place packets into a queue.
func TestLiveQueueBypass(t *testing.T) {
	skipInVM(t)
	p := newQueuePair(t)
	_, at := p.addresses(placement{"", "egress"}, false)
	r := p.runShaper("--policy", writePolicy(t,
		"classes: [{name: a, match: {dscp: af11}, green: {queue: q}}]\nqueues: {q: {rate: 100kbit, limit: 10s, fair: false}}"))
	in := listenUDP(t, p.far, at)
	slow, fast := newSender(t, p.near, at, af11, 0), newSender(t, p.near, at, 0, 0)
	withFD(t, fast,
		func(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PRIORITY, 0x5ade0001) })
	sendUDP(t, slow, 50, 1000)
	sendUDP(t, fast, 200, 1000)
	got := map[int]int{}
	for _, d := range in.receiveAll() {
		got[d.tos]++
		if got[0] == 200 {
			break
		}
	}
	if got[0] != 200 || got[af11] > 25 {
		t.Errorf("%v arrived: want 200 without a class, and few others", got)
	}
	r.stopBySIGTERM()
}

// TestLiveQueueTimestamps checks that the receive timestamp of a queued packet is not its
// departure time.
func TestLiveQueueTimestamps(t *testing.T) {
	t.Parallel()
	for _, pacer := range availablePacers(t) {
		t.Run(pacer, func(t *testing.T) {
			m := placement{"", "ingress"}
			p := newQueuePair(t)
			_, at := p.addresses(m, false)
			r := p.runShaper("--direction", "ingress", "--pacer", pacer, "--policy",
				writePolicy(t, fmt.Sprintf(slowQueue, "50ms")))
			in := listenUDP(t, p.near, at)
			withFD(t, in.conn,
				func(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1) })
			sendUDP(t, newSender(t, p.far, at, 0, 0), 5, 1000)
			for range 5 {
				oob := make([]byte, 256)
				_ = in.conn.SetReadDeadline(time.Now().Add(waitLimit))
				_, n, _, _, err := in.conn.ReadMsgUDP(make([]byte, 2000), oob)
				if err != nil {
					t.Fatal(err)
				}
				messages, err := unix.ParseSocketControlMessage(oob[:n])
				if err != nil {
					t.Fatal(err)
				}
				found := false
				for _, c := range messages {
					if c.Header.Type == unix.SO_TIMESTAMPNS && len(c.Data) >= 16 {
						found = true
						stamp := time.Unix(int64(nativeUint64(c.Data)), int64(nativeUint64(c.Data[8:])))
						if late := time.Since(stamp); late < -waitLimit || late > waitLimit {
							t.Errorf("a packet that just arrived has timestamp %v", stamp)
						}
					}
				}
				if !found {
					t.Error("a packet has no timestamp")
				}
			}
			r.stopBySIGTERM()
		})
	}
}

func nativeUint64(b []byte) (v uint64) {
	for i := 7; i >= 0; i-- {
		v = v<<8 | uint64(b[i])
	}
	return v
}

// TestLiveQueueHorizon checks that fq queues packets for longer than its default horizon, and
// that a link uses HTB although the kernel has fq.
func TestLiveQueueHorizon(t *testing.T) {
	skipInOldVM(t)
	if !haveQdisc(t, "fq") {
		t.Skip("this kernel has no fq")
	}
	p := newQueuePair(t)
	before, qdiscs := p.deviceState(), p.qdiscState()
	r := p.runShaper("--policy", writePolicy(t,
		"classes: [{name: a, green: {queue: q}}]\nqueues: {q: {rate: 100kbit, limit: 40s, fair: false}}"))
	if now := p.qdiscState(); !strings.Contains(now, "horizon 45s") || !strings.Contains(now, "horizon_cap") {
		t.Errorf("tc lists\n%s", now)
	}
	_, at := p.addresses(placement{"", "egress"}, false)
	in := listenUDP(t, p.far, at)
	begin := time.Now()
	sendUDP(t, newSender(t, p.near, at, 0, 0), 150, 1000) // 12 s
	n := 0
	eventually(t, func() error {
		for ; n < 150; n++ {
			if _, there := in.receive(); !there {
				return fmt.Errorf("%d packets arrived: want 150", n)
			}
		}
		return nil
	})
	if took := time.Since(begin); took < 11*time.Second {
		t.Errorf("%d packets arrived in %v: want 12 s", n, took)
	}
	p.wantExit(0, "reload", "--policy", writePolicy(t,
		"classes: [{name: a, green: {queue: q}}]\nlinks: {l: {rate: 100mbit}}\nqueues: {q: {link: l, limit: 64KiB}}"))
	if s := p.stats(); s.Pacer != "htb" || !strings.Contains(p.qdiscState(), "qdisc htb 5ade: root") {
		t.Errorf("status %+v, tc lists\n%s", s, p.qdiscState())
	}
	p.wantExit(0, "reload", "--policy", writePolicy(t, fmt.Sprintf(slowQueue, "50ms")))
	if s := p.stats(); s.Pacer != "fq" || !strings.Contains(p.qdiscState(), "qdisc fq 5ade: root") {
		t.Errorf("status %+v, tc lists\n%s", s, p.qdiscState())
	}
	r.stopBySIGTERM()
	p.awaitClean(before, qdiscs)
	p.wantError(2, `.*: link needs HTB: use --pacer htb`, "run", "v0", "--pacer", "fq", "--policy",
		writePolicy(t,
			"classes: [{name: a, green: {queue: q}}]\nlinks: {l: {rate: 100mbit}}\nqueues: {q: {link: l, limit: 64KiB}}"))
}

// TestLiveQueueInterfaceDeleted deletes an interface with queued packets.
func TestLiveQueueInterfaceDeleted(t *testing.T) {
	t.Parallel()
	for _, m := range placements {
		if m.hook == "xdp" {
			continue
		}
		t.Run(m.hook+"-"+m.direction, func(t *testing.T) {
			m.skipIfUnsupported(t)
			if m.direction == "egress" {
				skipInVM(t)
			}
			p := newQueuePair(t)
			r := p.runShaper(m.flags("--policy", writePolicy(t,
				"classes: [{name: a, green: {queue: q}}]\nqueues: {q: {rate: 100kbit, limit: 10s, fair: false}}"))...)
			for i := range 2 {
				from, to := p.senderAndReceiver(m)
				_, at := p.addresses(m, false)
				sendUDP(t, newSender(t, from, at, 0, 0), 20, 1000)
				p.near.Delete("v0")
				eventually(t, func() error {
					if n := strings.Count(r.err.String(), "is gone"); n != i+1 {
						return fmt.Errorf("stderr %q", &r.err)
					}
					return nil
				})
				eventually(t, func() error {
					if list := p.near.Run("ip", "-o", "link", "show", "type", "ifb"); list != "" ||
						len(p.journals()) > 0 {
						return fmt.Errorf("left are %s, %v", list, p.journals())
					}
					return nil
				})
				p.near.Veth(p.far)
				eventually(t, func() error {
					if n := strings.Count(r.out.String(), "attached by"); n != i+2 {
						return fmt.Errorf("%q, stderr %q: want it attached again", &r.out, &r.err)
					}
					return nil
				})
				in := listenUDP(t, to, at)
				sendUDP(t, newSender(t, from, at, 0, 0), 3, 100)
				if n := len(in.receiveAll()); n != 3 {
					t.Errorf("%d packets arrived: want 3", n)
				}
				in.conn.Close()
			}
			before := p.journals()
			r.stopBySIGTERM()
			if len(before) != 1 || len(p.journals()) != 0 || strings.Contains(p.qdiscState(), "5ade") {
				t.Errorf("journals %v, then %v, tc lists\n%s", before, p.journals(), p.qdiscState())
			}
		})
	}
}
