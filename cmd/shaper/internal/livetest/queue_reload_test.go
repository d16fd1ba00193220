package livetest

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane/nettest"
)

// TestQuietQueueReload changes the rate under load, and checks that only the policy drops
// packets.
func TestQuietQueueReload(t *testing.T) {
	nettest.Quiet(t)
	t.Parallel()
	skipInVM(t)
	for _, direction := range []string{"egress", "ingress"} {
		t.Run(direction, func(t *testing.T) {
			m := placement{"tcx", direction}
			p := newQueuePair(t)
			from, to := p.senderAndReceiver(m)
			_, at := p.addresses(m, false)
			policy := func(rate int) string {
				return fmt.Sprintf("classes: [{name: a, green: {queue: q}}]\nqueues: {q: {rate: %dmbit, limit: 40ms, fair: false}}",
					rate)
			}
			path := writePolicy(t, policy(10))
			r := p.runShaper("--direction", direction, "--policy", path)
			in := listenUDP(t, to, at)
			conn := newSender(t, from, at, 0, 0)
			sent := int64(0)
			var enough, done atomic.Bool
			var arrived atomic.Int64
			over := make(chan struct{})
			go func() {
				defer close(over)
				for range in.receiveUntil(done.Load) {
					arrived.Add(1)
				}
			}()
			go func() {
				for !enough.Load() {
					sent += offerUDP(t, conn, 1000, 40e6/8, 100*time.Millisecond)
				}
				done.Store(true)
			}()
			time.Sleep(300 * time.Millisecond)
			for i, rate := range []int{10, 20, 5, 15} {
				if i > 0 {
					rewriteFile(t, path, policy(rate))
					r.reloadBySIGHUP()
					time.Sleep(100 * time.Millisecond) // packets queued at the old rate
				}
				wantArrivalRate(t, &arrived, rate)
			}
			enough.Store(true)
			<-over
			s := p.stats()
			c := s.Classes[0]
			passed := arrived.Load() + s.Queues[0].Dropped
			if c.Packets != sent || c.Queued.Packets != passed ||
				c.Dropped.Packets-s.Queues[0].Dropped != sent-passed ||
				c.Green.Dropped["queue-full"] != c.Dropped {
				t.Errorf("%d sent, %d passed, counted %+v", sent, passed, c)
			}
			r.stopBySIGTERM()
		})
	}
}

// TestLiveQueueAddedByReload adds and removes queues by a reload. At egress this must work at
// once; at ingress it must be rejected.
func TestLiveQueueAddedByReload(t *testing.T) {
	t.Parallel()
	skipInOldVM(t)
	for _, pacer := range availablePacers(t) {
		t.Run(pacer, func(t *testing.T) {
			if pacer == "htb" {
				skipInVM(t)
			}
			p := newQueuePair(t)
			_, at := p.addresses(placement{"", "egress"}, false)
			before, qdiscs := p.deviceState(), p.qdiscState()
			with, without := writePolicy(t, fmt.Sprintf(slowQueue, "50ms")),
				writePolicy(t, "classes: [{name: a}]")
			r := p.runShaper("--pacer", pacer, "--policy", without)
			notes := len(p.journals()) // a tc filter has a journal for clsact
			in := listenUDP(t, p.far, at)
			if now := p.qdiscState(); now != qdiscs {
				t.Errorf("without queues tc lists\n%s\nwant\n%s", now, qdiscs)
			}
			for range 2 {
				p.wantExit(0, "reload", "--policy", with)
				if now := p.qdiscState(); !strings.Contains(now, "qdisc "+pacer+" 5ade: root") ||
					p.stats().Pacer != pacer {
					t.Errorf("with queues tc lists\n%s", now)
				}
				sendUDP(t, newSender(t, p.near, at, 0, 0), 10, 1000)
				if n := len(in.receiveAll()); n != 10 {
					t.Errorf("%d packets arrived: want 10", n)
				}
				p.wantExit(0, "reload", "--policy", without)
				if now := p.qdiscState(); now != qdiscs || p.stats().Pacer != "" ||
					len(p.journals()) != notes {
					t.Errorf("without queues again tc lists\n%s\nwant\n%s", now, qdiscs)
				}
				sendUDP(t, newSender(t, p.near, at, 0, 0), 10, 1000)
				if n := len(in.receiveAll()); n != 10 {
					t.Errorf("%d packets arrived: want 10", n)
				}
			}
			if c := p.stats().Classes[0]; c.Packets != 40 || c.Queued.Packets != 20 {
				t.Errorf("counted %+v: want 40 packets, 20 queued", c)
			}
			r.stopBySIGTERM()
			p.awaitClean(before, qdiscs)

			for i, order := range [][]string{{with, without}, {without, with}} {
				r := p.runShaper("--direction", "ingress", "--pacer", pacer, "--policy", order[0])
				is := p.qdiscState()
				p.wantError(1,
					"v0 ingress: a policy with queues needs an ifb device, one without needs none: shaper detach, then run it again",
					"reload", "--policy", order[1])
				if now := p.qdiscState(); now != is || p.stats().Queues == nil && i == 0 {
					t.Errorf("a rejected reload changed\n%s\nto\n%s", is, now)
				}
				r.stopBySIGTERM()
				p.awaitClean(before, qdiscs)
			}
		})
	}
}

// TestLiveQueueRejected checks that policies that need a missing qdisc are rejected and change
// nothing.
func TestLiveQueueRejected(t *testing.T) {
	skipInVM(t)
	if haveQdisc(t, "fq") {
		t.Skip("this kernel has fq")
	}
	p := newQueuePair(t)
	before, qdiscs := p.deviceState(), p.qdiscState()
	policy := writePolicy(t, fmt.Sprintf(slowQueue, "50ms"))
	p.wantError(1, "this kernel has no fq qdisc, and no module sch_fq", "run", "v0", "--pacer", "fq",
		"--policy", policy)
	p.wantError(2, `--pacer "cake": want auto, fq or htb`, "run", "v0", "--pacer", "cake", "--policy", policy)
	p.awaitClean(before, qdiscs)
	r := p.runShaper("--pacer", "fq", "--policy", writePolicy(t, "classes: [{name: a}]")) // queues no packet
	p.wantError(1, "this kernel has no fq qdisc.*", "reload", "--policy", policy)
	r.stopBySIGTERM()
	p.awaitClean(before, qdiscs)
}

// TestLiveQueueDryRun checks that a dry run queues no packet.
func TestLiveQueueDryRun(t *testing.T) {
	t.Parallel()
	skipInVM(t)
	for _, direction := range []string{"egress", "ingress"} {
		t.Run(direction, func(t *testing.T) {
			m := placement{"tcx", direction}
			p := newQueuePair(t)
			from, to := p.senderAndReceiver(m)
			_, at := p.addresses(m, false)
			before, qdiscs := p.deviceState(), p.qdiscState()
			r := p.runShaper("--direction", direction, "--dry-run", "--policy",
				writePolicy(t, fmt.Sprintf(slowQueue, "5000B")))
			if now := p.qdiscState(); now != qdiscs || len(p.journals()) > 0 {
				t.Errorf("tc lists\n%s\nwant\n%s", now, qdiscs)
			}
			in := listenUDP(t, to, at)
			sendUDP(t, newSender(t, from, at, 0, 0), 50, 1000)
			c := p.stats().Classes[0]
			if n := len(in.receiveAll()); n != 50 || c.Packets != 50 || c.Queued.Packets < 6 ||
				c.Queued.Packets+c.Dropped.Packets != 50 {
				t.Errorf("%d packets arrived, counted %+v: want all, and 6 or more queued", n, c)
			}
			// Reload to a policy without queues, and back.
			p.wantExit(0, "reload", "--policy", writePolicy(t, "classes: [{name: a}]"))
			p.wantExit(0, "reload", "--policy", writePolicy(t, fmt.Sprintf(slowQueue, "50ms")))
			r.stopBySIGTERM()
			p.awaitClean(before, qdiscs)
		})
	}
}

// TestLiveQueueReloadConfirm checks that an unconfirmed reload is rolled back together with its
// qdiscs.
func TestLiveQueueReloadConfirm(t *testing.T) {
	t.Parallel()
	skipInVM(t)
	with, without := fmt.Sprintf(slowQueue, "50ms"), "classes: [{name: a}]"
	for change, order := range map[string][2]string{"removed": {with, without}, "added": {without, with}} {
		t.Run(change, func(t *testing.T) {
			p := newQueuePair(t)
			before, clean := p.deviceState(), p.qdiscState()
			r := p.runShaper("--policy", writePolicy(t, order[0]))
			qdiscs := p.qdiscState()
			w := p.startShaper("reload", "--confirm", "30s", "--policy", writePolicy(t, order[1]))
			w.out.awaitMatch(t, "waiting")
			if now := p.qdiscState(); now == qdiscs {
				t.Errorf("tc lists\n%s\nas before the reload", now)
			}
			if code := w.waitForExit(); code != 1 {
				t.Errorf("exit %d, stderr %q", code, &w.err)
			}
			if now := p.qdiscState(); maskNumbers(now) != maskNumbers(qdiscs) {
				t.Errorf("tc lists\n%s\nwant\n%s", now, qdiscs)
			}
			r.stopBySIGTERM() // before it detects the rollback
			p.awaitClean(before, clean)
		})
	}
}

// TestLiveQueueConfirmPacer checks that a rollback restores the pacer.
func TestLiveQueueConfirmPacer(t *testing.T) {
	skipInOldVM(t)
	if !haveQdisc(t, "fq") {
		t.Skip("this kernel has no fq")
	}
	p := newQueuePair(t)
	before, qdiscs := p.deviceState(), p.qdiscState()
	p.runShaper("--pacer", "htb", "--pin", "--policy", writePolicy(t,
		"classes: [{name: a, green: {queue: q}}]\nlinks: {l: {rate: 100mbit}}\nqueues: {q: {link: l, limit: 64KiB}}")).stopBySIGTERM()
	r := p.runShaper("--pacer", "fq", "--confirm", "30s", "--policy",
		writePolicy(t, fmt.Sprintf(slowQueue, "50ms")))
	if s := p.stats(); s.Pacer != "fq" {
		t.Errorf("status %+v: want fq", s)
	}
	if code := r.waitForExit(); code != 1 {
		t.Errorf("exit %d, stderr %q", code, &r.err)
	}
	if s := p.stats(); s.Pacer != "htb" || !s.Pinned {
		t.Errorf("status %+v: want the previous policy, pinned", s)
	}
	p.wantExit(0, "detach")
	p.awaitClean(before, qdiscs)
}

// wantArrivalRate waits until packets of 1,000 bytes arrive at a rate in Mbit/s, within 4 %.
func wantArrivalRate(t *testing.T, arrived *atomic.Int64, rate int) {
	t.Helper()
	want := float64(rate) * 1e6 / 8
	eventually(t, func() error { // a busy machine may stall
		n, begin := arrived.Load(), time.Now()
		time.Sleep(600 * time.Millisecond)
		got := float64(arrived.Load()-n) * 1000 / time.Since(begin).Seconds()
		if off := got/want - 1; off < -0.04 || off > 0.04 {
			return fmt.Errorf("at %d Mbit/s: %.0f byte/s: want %.0f", rate, got, want)
		}
		return nil
	})
}
