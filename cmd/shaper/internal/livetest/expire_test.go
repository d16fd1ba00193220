package livetest

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
)

// setDeadline sets the deadline of the shaper on v0 from a process that did not attach it.
func (p *pair) setDeadline(at time.Time) {
	p.t.Helper()
	var all []*kernel.Shaper
	var err error
	p.near.Do(func() {
		if all, err = kernel.List(); err != nil {
			return
		}
		for _, s := range all {
			if e := s.Expire(at); e != nil {
				err = e
			}
			s.Close()
		}
	})
	if err != nil || len(all) != 1 {
		p.t.Fatalf("%d shapers, %v: want one", len(all), err)
	}
}

// TestLiveExpire checks that a policy ends at its deadline while all processes of shaper are
// stopped, and is active again if the deadline is removed.
func TestLiveExpire(t *testing.T) {
	t.Parallel()
	for _, m := range placements {
		t.Run(m.hook+"-"+m.direction, func(t *testing.T) {
			m.skipIfUnsupported(t)
			p := newPair(t)
			r := p.runShaper(m.flags("--meter", unlimitedMeter, "--green", "drop")...)
			from, to := p.senderAndReceiver(m)
			_, at := p.addresses(m, false)
			in, conn := listenUDP(t, to, at), newSender(t, from, at, 0, 0)
			for _, pid := range append([]int{r.cmd.Process.Pid}, childrenOf(t, r.cmd.Process.Pid)...) {
				if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGCONT) })
			}
			p.setDeadline(time.Now().Add(time.Hour))
			if got := countPassed(t, conn, in, 5); got != 0 {
				t.Errorf("%d packets passed before the deadline: want all dropped", got)
			}
			p.setDeadline(time.Now().Add(300 * time.Millisecond))
			eventually(t, func() error {
				if countPassed(t, conn, in, 1) == 0 {
					return fmt.Errorf("no packet passes after the deadline")
				}
				return nil
			})
			before := p.countedByAll()
			if got := countPassed(t, conn, in, 20); got != 20 {
				t.Errorf("%d of 20 packets passed after the deadline", got)
			}
			if after := p.countedByAll(); after != before {
				t.Errorf("counted %+v before the packets after the deadline, then %+v", before, after)
			}
			p.setDeadline(time.Time{})
			if got := countPassed(t, conn, in, 5); got != 0 {
				t.Errorf("%d packets passed without a deadline: want all dropped", got)
			}
			p.wantExit(0, "detach", "v0")
			if got := countPassed(t, conn, in, 3); got != 3 {
				t.Errorf("%d packets of 3 passed after detach", got)
			}
		})
	}
}

// TestLiveExpireQueue checks that packets after the deadline are not queued although the qdisc
// still exists.
func TestLiveExpireQueue(t *testing.T) {
	t.Parallel()
	for _, direction := range []string{"egress", "ingress"} {
		t.Run(direction, func(t *testing.T) {
			p := newPair(t)
			m := placement{"tc", direction}
			from, to := p.senderAndReceiver(m)
			_, at := p.addresses(m, false)
			before := p.deviceState()
			r := p.runShaper("--direction", direction, "--meter", unlimitedMeter, "--green", "queue",
				"--queue", "rate=8kbit limit=1MB fair=false")
			in, conn := listenUDP(t, to, at), newSender(t, from, at, 0, 0)
			p.setDeadline(time.Now().Add(-time.Second))
			const n = 100 // 100 s at the queue's rate
			sendUDP(t, conn, n, 1000)
			if got := len(in.receiveAll()); got != n {
				t.Errorf("%d of %d packets passed at once after the deadline: want all", got, n)
			}
			if counted := p.countedByAll(); counted != (packetCount{}) {
				t.Errorf("counted %+v after the deadline: want none", counted)
			}
			r.stopBySIGTERM()
			p.wantState(before)
		})
	}
}

// TestLiveExpireTakenOver checks that a shaper does not inherit the deadline of the shaper that
// it takes over.
func TestLiveExpireTakenOver(t *testing.T) {
	skipInVM(t)
	p := newPair(t)
	drop := []string{"--hook", "tc", "--pin", "--meter", unlimitedMeter, "--green", "drop"}
	p.runShaper(drop...).stopBySIGTERM()
	_, at := p.addresses(placement{"tc", "egress"}, false)
	in, conn := listenUDP(t, p.far, at), newSender(t, p.near, at, 0, 0)
	p.setDeadline(time.Now().Add(-time.Second))
	if got := countPassed(t, conn, in, 3); got != 3 {
		t.Fatalf("%d packets of 3 passed beyond the deadline", got)
	}
	r := p.runShaper(drop...)
	if got := countPassed(t, conn, in, 3); got != 0 {
		t.Errorf("%d packets passed: want all dropped by the new shaper", got)
	}
	r.stopBySIGTERM()
	p.wantExit(0, "detach", "v0")
}
