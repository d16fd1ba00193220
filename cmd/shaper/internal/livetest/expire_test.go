package livetest

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
)

// expire sets the deadline of the shaper on v0, by a process that did not attach
// it.
func (p *pair) expire(at time.Time) {
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

// TestLiveExpire holds that a policy ends at its deadline while every process of
// shaper is stopped, and that it is back when the deadline is lifted.
func TestLiveExpire(t *testing.T) {
	t.Parallel()
	for _, m := range methods {
		t.Run(m.hook+"-"+m.direction, func(t *testing.T) {
			m.need(t)
			p := newPair(t)
			r := p.run(m.args("--meter", never, "--green", "drop")...)
			from, to := p.sides(m)
			_, at := p.addresses(m, false)
			in, conn := listen(t, to, at), sender(t, from, at, 0, 0)
			for _, pid := range append([]int{r.cmd.Process.Pid}, children(t, r.cmd.Process.Pid)...) {
				if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGCONT) })
			}
			p.expire(time.Now().Add(time.Hour))
			if got := passes(t, conn, in, 5); got != 0 {
				t.Errorf("%d packets passed before the deadline: want all dropped", got)
			}
			p.expire(time.Now().Add(300 * time.Millisecond))
			eventually(t, func() error {
				if passes(t, conn, in, 1) == 0 {
					return fmt.Errorf("no packet passes beyond the deadline")
				}
				return nil
			})
			before := p.counted()
			if got := passes(t, conn, in, 20); got != 20 {
				t.Errorf("%d packets of 20 passed beyond the deadline", got)
			}
			if after := p.counted(); after != before {
				t.Errorf("counted %+v before packets beyond the deadline, %+v after", before, after)
			}
			p.expire(time.Time{})
			if got := passes(t, conn, in, 5); got != 0 {
				t.Errorf("%d packets passed with the deadline lifted: want all dropped", got)
			}
			p.do(0, "detach", "v0")
			if got := passes(t, conn, in, 3); got != 3 {
				t.Errorf("%d packets of 3 passed after detach", got)
			}
		})
	}
}

// TestLiveExpireQueue holds that packets beyond the deadline are not queued,
// though the qdisc is still there.
func TestLiveExpireQueue(t *testing.T) {
	t.Parallel()
	for _, direction := range []string{"egress", "ingress"} {
		t.Run(direction, func(t *testing.T) {
			p := newPair(t)
			m := method{"tc", direction}
			from, to := p.sides(m)
			_, at := p.addresses(m, false)
			before := p.attached()
			r := p.run("--direction", direction, "--meter", never, "--green", "queue", "--queue", "rate=8kbit limit=1MB")
			in, conn := listen(t, to, at), sender(t, from, at, 0, 0)
			p.expire(time.Now().Add(-time.Second))
			const n = 100 // 100 s at the queue's rate
			send(t, conn, n, 1000)
			if got := len(in.take()); got != n {
				t.Errorf("%d packets of %d passed beyond the deadline without a pause", got, n)
			}
			if counted := p.counted(); counted != (count{}) {
				t.Errorf("%+v are counted beyond the deadline", counted)
			}
			r.term()
			p.unchanged(before)
		})
	}
}

// TestLiveExpireTakenOver holds that who takes a shaper over has no deadline of
// the one before.
func TestLiveExpireTakenOver(t *testing.T) {
	hereOnly(t)
	p := newPair(t)
	drop := []string{"--hook", "tc", "--pin", "--meter", never, "--green", "drop"}
	p.run(drop...).term()
	_, at := p.addresses(method{"tc", "egress"}, false)
	in, conn := listen(t, p.far, at), sender(t, p.near, at, 0, 0)
	p.expire(time.Now().Add(-time.Second))
	if got := passes(t, conn, in, 3); got != 3 {
		t.Fatalf("%d packets of 3 passed beyond the deadline", got)
	}
	r := p.run(drop...)
	if got := passes(t, conn, in, 3); got != 0 {
		t.Errorf("%d packets passed: want them dropped by the shaper that took over", got)
	}
	r.term()
	p.do(0, "detach", "v0")
}
