package livetest

import (
	"fmt"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// TestLiveQueueReload changes the rate under load, and nothing is lost but what
// the policy drops.
func TestLiveQueueReload(t *testing.T) {
	t.Parallel()
	hereOnly(t)
	for _, direction := range []string{"egress", "ingress"} {
		t.Run(direction, func(t *testing.T) {
			m := method{"tcx", direction}
			p := newQueuePair(t)
			from, to := p.sides(m)
			_, at := p.addresses(m, false)
			policy := func(rate int) string {
				return fmt.Sprintf("classes: [{name: a, green: {queue: q}}]\nqueues: {q: {rate: %dmbit, limit: 40ms}}", rate)
			}
			path := file(t, policy(10))
			r := p.run("--direction", direction, "--policy", path)
			in := listen(t, to, at)
			conn := sender(t, from, at, 0, 0)
			sent := int64(0)
			var enough, done atomic.Bool
			var arrived atomic.Int64
			over := make(chan struct{})
			go func() {
				defer close(over)
				for range in.until(done.Load) {
					arrived.Add(1)
				}
			}()
			go func() {
				for !enough.Load() {
					sent += offer(t, conn, 1000, 40e6/8, 100*time.Millisecond)
				}
				done.Store(true)
			}()
			time.Sleep(300 * time.Millisecond)
			for i, rate := range []int{10, 20, 5, 15} {
				if i > 0 {
					rewrite(t, path, policy(rate))
					r.signal(syscall.SIGHUP)
					eventually(t, func() error {
						if n := strings.Count(r.out.String(), "reloaded"); n != i {
							return fmt.Errorf("reloaded %d times: want %d: stderr %q", n, i, &r.err)
						}
						return nil
					})
					time.Sleep(100 * time.Millisecond) // what waited at the old rate
				}
				want := float64(rate) * 1e6 / 8
				eventually(t, func() error { // a busy machine may stall in any one of them
					n, begin := arrived.Load(), time.Now()
					time.Sleep(600 * time.Millisecond)
					got := float64(arrived.Load()-n) * 1000 / time.Since(begin).Seconds()
					if off := got/want - 1; off < -0.04 || off > 0.04 {
						return fmt.Errorf("at %d Mbit/s: %.0f byte/s: want %.0f", rate, got, want)
					}
					return nil
				})
			}
			enough.Store(true)
			<-over
			s := p.stats()
			c := s.Classes[0]
			passed := arrived.Load() + s.Queues[0].Dropped
			if c.Packets != sent || c.Queued.Packets != passed || c.Dropped.Packets-s.Queues[0].Dropped != sent-passed || c.Green.Dropped["queue-full"] != c.Dropped {
				t.Errorf("%d sent, %d passed, counted %+v", sent, passed, c)
			}
			r.term()
		})
	}
}

// TestLiveQueueReloadKind goes from a policy without queues to one with, and
// back: where packets leave, at once; where they come in, it is refused.
func TestLiveQueueReloadKind(t *testing.T) {
	t.Parallel()
	notOlder(t)
	for _, pacer := range pacers(t) {
		t.Run(pacer, func(t *testing.T) {
			if pacer == "htb" {
				hereOnly(t)
			}
			p := newQueuePair(t)
			_, at := p.addresses(method{"", "egress"}, false)
			before, qdiscs := p.attached(), p.qdiscs()
			with, without := file(t, fmt.Sprintf(slowQueue, "50ms")), file(t, "classes: [{name: a}]")
			r := p.run("--pacer", pacer, "--policy", without)
			notes := len(p.notes()) // that of a tc filter is for clsact
			in := listen(t, p.far, at)
			if now := p.qdiscs(); now != qdiscs {
				t.Errorf("without queues tc says\n%s\nwant\n%s", now, qdiscs)
			}
			for range 2 {
				p.do(0, "reload", "--policy", with)
				if now := p.qdiscs(); !strings.Contains(now, "qdisc "+pacer+" 5ade: root") || p.stats().Pacer != pacer {
					t.Errorf("with queues tc says\n%s", now)
				}
				send(t, sender(t, p.near, at, 0, 0), 10, 1000)
				if n := len(in.take()); n != 10 {
					t.Errorf("%d packets arrived: want 10", n)
				}
				p.do(0, "reload", "--policy", without)
				if now := p.qdiscs(); now != qdiscs || p.stats().Pacer != "" || len(p.notes()) != notes {
					t.Errorf("without queues again tc says\n%s\nwant\n%s", now, qdiscs)
				}
				send(t, sender(t, p.near, at, 0, 0), 10, 1000)
				if n := len(in.take()); n != 10 {
					t.Errorf("%d packets arrived: want 10", n)
				}
			}
			if c := p.stats().Classes[0]; c.Packets != 40 || c.Queued.Packets != 20 {
				t.Errorf("counted %+v: want 40 packets, 20 queued", c)
			}
			r.term()
			p.clean(before, qdiscs)

			for i, order := range [][]string{{with, without}, {without, with}} {
				r := p.run("--direction", "ingress", "--pacer", pacer, "--policy", order[0])
				is := p.qdiscs()
				p.fails(1, "v0 ingress: a policy with queues needs an ifb device, one without needs none: shaper detach, then run it again", "reload", "--policy", order[1])
				if now := p.qdiscs(); now != is || p.stats().Queues == nil && i == 0 {
					t.Errorf("a reload that is refused changes\n%s\nto\n%s", is, now)
				}
				r.term()
				p.clean(before, qdiscs)
			}
		})
	}
}

// TestLiveQueueRefused holds what is refused, and that nothing is changed then.
func TestLiveQueueRefused(t *testing.T) {
	hereOnly(t)
	if haveQdisc(t, "fq") {
		t.Skip("this kernel has fq")
	}
	p := newQueuePair(t)
	before, qdiscs := p.attached(), p.qdiscs()
	policy := file(t, fmt.Sprintf(slowQueue, "50ms"))
	p.fails(1, "this kernel has no fq qdisc, and no module sch_fq", "run", "v0", "--pacer", "fq", "--policy", policy)
	p.fails(2, `--pacer "cake": want auto, fq or htb`, "run", "v0", "--pacer", "cake", "--policy", policy)
	p.clean(before, qdiscs)
	r := p.run("--pacer", "fq", "--policy", file(t, "classes: [{name: a}]")) // nothing waits
	p.fails(1, "this kernel has no fq qdisc.*", "reload", "--policy", policy)
	r.term()
	p.clean(before, qdiscs)
}

// TestLiveQueueDry holds that a dry run has no packet wait, with and without a
// limit of the device.
func TestLiveQueueDry(t *testing.T) {
	t.Parallel()
	hereOnly(t)
	for _, direction := range []string{"egress", "ingress"} {
		t.Run(direction, func(t *testing.T) {
			m := method{"tcx", direction}
			p := newQueuePair(t)
			from, to := p.sides(m)
			_, at := p.addresses(m, false)
			before, qdiscs := p.attached(), p.qdiscs()
			r := p.run("--direction", direction, "--dry-run", "--policy", file(t, fmt.Sprintf(slowQueue, "5000B")))
			if now := p.qdiscs(); now != qdiscs || len(p.notes()) > 0 {
				t.Errorf("tc says\n%s\nwant\n%s", now, qdiscs)
			}
			in := listen(t, to, at)
			send(t, sender(t, from, at, 0, 0), 50, 1000)
			c := p.stats().Classes[0]
			if n := len(in.take()); n != 50 || c.Packets != 50 || c.Queued.Packets < 6 || c.Queued.Packets+c.Dropped.Packets != 50 {
				t.Errorf("%d arrived, counted %+v: want all, and 6 or more queued", n, c)
			}
			// With queues at work, and back.
			p.do(0, "reload", "--policy", file(t, "classes: [{name: a}]"))
			p.do(0, "reload", "--policy", file(t, fmt.Sprintf(slowQueue, "50ms")))
			r.term()
			p.clean(before, qdiscs)
		})
	}
}

// TestLiveQueueReloadConfirm is the same for a reload.
func TestLiveQueueReloadConfirm(t *testing.T) {
	t.Parallel()
	hereOnly(t)
	with, without := fmt.Sprintf(slowQueue, "50ms"), "classes: [{name: a}]"
	for i, order := range [][2]string{{with, without}, {without, with}} {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			p := newQueuePair(t)
			before, clean := p.attached(), p.qdiscs()
			r := p.run("--policy", file(t, order[0]))
			qdiscs := p.qdiscs()
			w := p.start("reload", "--confirm", "700ms", "--policy", file(t, order[1]))
			w.out.await(t, "waiting")
			if now := p.qdiscs(); now == qdiscs {
				t.Errorf("tc says\n%s\nas before", now)
			}
			if code := w.wait(); code != 1 {
				t.Errorf("exit %d, stderr %q", code, &w.err)
			}
			if now := p.qdiscs(); masked(now) != masked(qdiscs) {
				t.Errorf("tc says\n%s\nwant\n%s", now, qdiscs)
			}
			r.term() // before it looks
			p.clean(before, clean)
		})
	}
}

// TestLiveQueueConfirmPacer holds that what was before comes back to what held
// its packets.
func TestLiveQueueConfirmPacer(t *testing.T) {
	notOlder(t)
	if !haveQdisc(t, "fq") {
		t.Skip("this kernel has no fq")
	}
	p := newQueuePair(t)
	p.withBpffs()
	before, qdiscs := p.attached(), p.qdiscs()
	p.run("--pacer", "htb", "--pin", "--policy", file(t, "classes: [{name: a, green: {queue: q}}]\nlinks: {l: {rate: 100mbit}}\nqueues: {q: {link: l, limit: 64KiB}}")).term()
	r := p.run("--pacer", "fq", "--confirm", "10s", "--policy", file(t, fmt.Sprintf(slowQueue, "50ms")))
	if s := p.stats(); s.Pacer != "fq" {
		t.Errorf("status %+v: want fq", s)
	}
	if code := r.wait(); code != 1 {
		t.Errorf("exit %d, stderr %q", code, &r.err)
	}
	if s := p.stats(); s.Pacer != "htb" || !s.Pinned {
		t.Errorf("status %+v: want what was before", s)
	}
	p.do(0, "detach")
	p.clean(before, qdiscs)
}
