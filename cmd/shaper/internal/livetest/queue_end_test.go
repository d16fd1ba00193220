package livetest

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// endQueued has a shaper with a queue end by ^C just after packets of 1000 bytes were sent
// to it, for each pacer and direction at some hooks. ended gets what it prints and how many
// packets arrive.
func endQueued(t *testing.T, hooks []string, queue string, packets int, ended func(t *testing.T, pacer, out string, arrived int64)) {
	for _, pacer := range pacers(t) {
		for _, m := range methods {
			if !slices.Contains(hooks, m.hook) {
				continue
			}
			t.Run(pacer+"-"+m.hook+"-"+m.direction, func(t *testing.T) {
				m.need(t)
				if pacer == "htb" {
					hereOnly(t)
				}
				p := newQueuePair(t)
				from, to := p.sides(m)
				_, at := p.addresses(m, false)
				before, qdiscs := p.attached(), p.qdiscs()
				r := p.run(m.args("--pacer", pacer, "--policy", file(t, "classes: [{name: a, green: {queue: q}}]\nqueues: {q: "+queue+"}"))...)
				in, conn := listen(t, to, at), sender(t, from, at, 0, 0)
				patient(t, conn)
				arrived := gathered(in, func() {
					send(t, conn, packets, 1000)
					r.signal(os.Interrupt)
					if code := r.wait(); code != 0 {
						t.Errorf("exit %d: stderr %q", code, &r.err)
					}
				})[0]
				ended(t, pacer, r.out.String(), arrived)
				p.clean(before, qdiscs)
			})
		}
	}
}

// TestLiveQueueDrains holds that packets that wait when shaper ends still leave: 60 of
// 1000 bytes at 1 Mbit/s take 0.48 s.
func TestLiveQueueDrains(t *testing.T) {
	t.Parallel()
	const sent = 400
	endQueued(t, []string{"tcx", "tc"}, "{rate: 1mbit, limit: 60p}", sent, func(t *testing.T, _, out string, arrived int64) {
		found := regexp.MustCompile(`a +green +400 +[\d.]+ +[\d,]+ +(\d+) `).FindStringSubmatch(out)
		if found == nil {
			t.Fatalf("it says %q", out)
		}
		dropped, _ := strconv.ParseInt(found[1], 10, 64)
		if arrived != sent-dropped || dropped < 10 {
			t.Errorf("%d packets arrived, %d were dropped, of %d", arrived, dropped, sent)
		}
	})
}

// TestLiveQueueLost holds that what has not left a second after the end is
// counted: each packet was sent, or was lost. One takes 0.8 ms, so that some would be
// sent while the queue is removed; all take 3.2 s.
func TestLiveQueueLost(t *testing.T) {
	t.Parallel()
	const sent = 4000
	endQueued(t, []string{"tcx"}, "{rate: 10mbit, limit: 10s}", sent, func(t *testing.T, pacer, out string, arrived int64) {
		found := regexp.MustCompile(`: lost (at most )?([\d,]+) packets that were still queued\n`).FindStringSubmatch(out)
		if found == nil || (found[1] != "") != (pacer == "fq") {
			t.Fatalf("it says %q", out)
		}
		lost, _ := strconv.ParseInt(strings.ReplaceAll(found[2], ",", ""), 10, 64)
		if arrived+lost < sent || arrived+lost > sent && pacer == "htb" || arrived == sent || lost < 10 {
			t.Errorf("%d packets arrived and %s%d were lost, of %d", arrived, found[1], lost, sent)
		}
	})
}

// TestLiveQueueLarge holds that a packet above a queue's limit is dropped, and
// no other for it.
func TestLiveQueueLarge(t *testing.T) {
	hereOnly(t)
	p := newQueuePair(t)
	_, at := p.addresses(method{"", "egress"}, false)
	r := p.run("--policy", file(t, fmt.Sprintf(slowQueue, "1000B")))
	in := listen(t, p.far, at)
	conn := sender(t, p.near, at, 0, 0)
	for range 5 {
		send(t, conn, 1, 1001)
		send(t, conn, 1, 1000)
		time.Sleep(20 * time.Millisecond)
	}
	c := p.stats().Classes[0]
	if n := len(in.take()); n != 5 || c.Green.Dropped["queue-full"] != (count{5, 5005}) || c.Queued != (count{5, 5000}) {
		t.Errorf("%d arrived, counted %+v: want one of each two", n, c)
	}
	r.term()
}

// TestLiveQueueOverflow holds that what waits in HTB stays within the queue's
// limit, however long it overflows. A machine that stands still for a moment has
// HTB fall behind: then more waits, within the bound of docs/OPERATING.md.
func TestLiveQueueOverflow(t *testing.T) {
	t.Parallel()
	hereOnly(t)
	const most = 30
	for _, test := range []struct {
		name, limit string
		size        int
		bytes       int64 // of the limit
	}{{"bytes", "30000B", 1000, 30_000}, {"packets", "30p", 1000, most * 1500}, {"time", "24ms", 1000, 30_000}, {"small", "30p", 100, most * 1500}} {
		t.Run(test.name, func(t *testing.T) {
			p := newQueuePair(t)
			_, at := p.addresses(method{"", "egress"}, false)
			r := p.run("--policy", file(t, fmt.Sprintf(slowQueue, test.limit)))
			conn := sender(t, p.near, at, 0, 0)
			listen(t, p.far, at)
			overflow := func() (mostly, top int64) {
				done := make(chan int64)
				go func() { done <- offer(t, conn, test.size, 30e6/8, 3*time.Second) }()
				var all []int64
				for begin := time.Now(); time.Since(begin) < 2900*time.Millisecond; time.Sleep(5 * time.Millisecond) {
					bytes, n := p.backlog("v0")
					if all = append(all, n); bytes > test.bytes*3/2+64<<10 {
						t.Fatalf("%d bytes waited: HTB is to hold %d", bytes, test.bytes*3/2+64<<10)
					}
				}
				<-done
				slices.Sort(all)
				return all[len(all)/2], all[len(all)-1]
			}
			for try := 1; ; try++ {
				mostly, top := overflow()
				t.Logf("mostly %d packets waited, at most %d", mostly, top)
				if mostly <= most+2 && top >= most/2 {
					break
				}
				if try == 5 {
					t.Fatalf("five times: want it full, with %d packets", most)
				}
				time.Sleep(500 * time.Millisecond) // so that HTB catches up
			}
			r.term()
		})
	}
}

// TestLiveQueueOffPath holds that what is of no queue is not held up, and that
// nobody gets into a leaf by a priority of its own.
func TestLiveQueueOffPath(t *testing.T) {
	hereOnly(t)
	p := newQueuePair(t)
	_, at := p.addresses(method{"", "egress"}, false)
	r := p.run("--policy", file(t, "classes: [{name: a, match: {dscp: af11}, green: {queue: q}}]\nqueues: {q: {rate: 100kbit, limit: 10s}}"))
	in := listen(t, p.far, at)
	slow, fast := sender(t, p.near, at, af11, 0), sender(t, p.near, at, 0, 0)
	control(t, fast, func(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PRIORITY, 0x5ade0001) })
	send(t, slow, 50, 1000)
	send(t, fast, 200, 1000)
	got := map[int]int{}
	for _, d := range in.take() {
		got[d.tos]++
		if got[0] == 200 {
			break
		}
	}
	if got[0] != 200 || got[af11] > 25 {
		t.Errorf("%v arrived: want 200 of no class, and few others", got)
	}
	r.term()
}

// TestLiveQueueTimestamps holds that who asks when a packet came is not told
// when it was to leave.
func TestLiveQueueTimestamps(t *testing.T) {
	t.Parallel()
	for _, pacer := range pacers(t) {
		t.Run(pacer, func(t *testing.T) {
			m := method{"", "ingress"}
			p := newQueuePair(t)
			_, at := p.addresses(m, false)
			r := p.run("--direction", "ingress", "--pacer", pacer, "--policy", file(t, fmt.Sprintf(slowQueue, "50ms")))
			in := listen(t, p.near, at)
			control(t, in.conn, func(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1) })
			send(t, sender(t, p.far, at, 0, 0), 5, 1000)
			for range 5 {
				oob := make([]byte, 256)
				_ = in.conn.SetReadDeadline(time.Now().Add(patience))
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
						if late := time.Since(stamp); late < -patience || late > patience {
							t.Errorf("a packet that came just now has time %v", stamp)
						}
					}
				}
				if !found {
					t.Error("a packet has no time")
				}
			}
			r.term()
		})
	}
}

func nativeUint64(b []byte) (v uint64) {
	for i := 7; i >= 0; i-- {
		v = v<<8 | uint64(b[i])
	}
	return v
}

// TestLiveQueueHorizon holds that fq keeps packets for longer than it would by
// default, and that a link takes HTB where there is fq.
func TestLiveQueueHorizon(t *testing.T) {
	notOlder(t)
	if !haveQdisc(t, "fq") {
		t.Skip("this kernel has no fq")
	}
	p := newQueuePair(t)
	before, qdiscs := p.attached(), p.qdiscs()
	r := p.run("--policy", file(t, "classes: [{name: a, green: {queue: q}}]\nqueues: {q: {rate: 100kbit, limit: 40s}}"))
	if now := p.qdiscs(); !strings.Contains(now, "horizon 45s") || !strings.Contains(now, "horizon_cap") {
		t.Errorf("tc says\n%s", now)
	}
	_, at := p.addresses(method{"", "egress"}, false)
	in := listen(t, p.far, at)
	sniffer := p.far.Sniff("v0")
	begin := time.Now()
	send(t, sender(t, p.near, at, 0, 0), 150, 1000)                     // 12 s
	enough := func() bool { return time.Since(begin) > 13*time.Second } // a machine that stalls makes gaps
	n, frames := len(slices.Collect(in.until(enough))), sniffer.Stop()
	if took := time.Duration(frames[len(frames)-1].Time - frames[0].Time); n != 150 || took < 11*time.Second {
		t.Errorf("%d packets arrived in %v: want 150 in 12 s", n, took)
	}
	p.do(0, "reload", "--policy", file(t, "classes: [{name: a, green: {queue: q}}]\nlinks: {l: {rate: 100mbit}}\nqueues: {q: {link: l, limit: 64KiB}}"))
	if s := p.stats(); s.Pacer != "htb" || !strings.Contains(p.qdiscs(), "qdisc htb 5ade: root") {
		t.Errorf("status %+v, tc says\n%s", s, p.qdiscs())
	}
	p.do(0, "reload", "--policy", file(t, fmt.Sprintf(slowQueue, "50ms")))
	if s := p.stats(); s.Pacer != "fq" || !strings.Contains(p.qdiscs(), "qdisc fq 5ade: root") {
		t.Errorf("status %+v, tc says\n%s", s, p.qdiscs())
	}
	r.term()
	p.clean(before, qdiscs)
	p.fails(2, `.*: link needs HTB: use --pacer htb`, "run", "v0", "--pacer", "fq", "--policy",
		file(t, "classes: [{name: a, green: {queue: q}}]\nlinks: {l: {rate: 100mbit}}\nqueues: {q: {link: l, limit: 64KiB}}"))
}

// TestLiveQueueGone deletes an interface in whose queue packets wait.
func TestLiveQueueGone(t *testing.T) {
	t.Parallel()
	for _, m := range methods {
		if m.hook == "xdp" {
			continue
		}
		t.Run(m.hook+"-"+m.direction, func(t *testing.T) {
			m.need(t)
			if m.direction == "egress" {
				hereOnly(t)
			}
			p := newQueuePair(t)
			r := p.run(m.args("--policy", file(t, "classes: [{name: a, green: {queue: q}}]\nqueues: {q: {rate: 100kbit, limit: 10s}}"))...)
			for i := range 2 {
				from, to := p.sides(m)
				_, at := p.addresses(m, false)
				send(t, sender(t, from, at, 0, 0), 20, 1000)
				p.near.Delete("v0")
				eventually(t, func() error {
					if n := strings.Count(r.err.String(), "is gone"); n != i+1 {
						return fmt.Errorf("stderr %q", &r.err)
					}
					return nil
				})
				eventually(t, func() error {
					if list := p.near.Run("ip", "-o", "link", "show", "type", "ifb"); list != "" || len(p.notes()) > 0 {
						return fmt.Errorf("left are %s, %v", list, p.notes())
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
				in := listen(t, to, at)
				send(t, sender(t, from, at, 0, 0), 3, 100)
				if n := len(in.take()); n != 3 {
					t.Errorf("%d packets arrived: want 3", n)
				}
				in.conn.Close()
			}
			before := p.notes()
			r.term()
			if len(before) != 1 || len(p.notes()) != 0 || strings.Contains(p.qdiscs(), "5ade") {
				t.Errorf("notes %v, then %v, tc says\n%s", before, p.notes(), p.qdiscs())
			}
		})
	}
}
