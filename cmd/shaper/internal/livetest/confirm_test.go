package livetest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestLiveConfirmOfAnother holds that the guard of a killed run rolls back what
// that one armed, and not what another run has armed since.
func TestLiveConfirmOfAnother(t *testing.T) {
	hereOnly(t)
	p := newPair(t)
	p.withBpffs()
	first := p.run("--pin", "--confirm", "2s", "--meter", "token-bucket rate=1mbit burst=9000")
	until := time.Now().Add(2 * time.Second) // at the latest
	first.kill()
	second := p.run("--pin", "--confirm", "60s", "--meter", never)
	time.Sleep(time.Until(until.Add(time.Second))) // the guard has acted by then, or never does
	if s := p.status(); len(s) != 1 || s[0].Policy != "--meter "+never || s[0].Process != second.cmd.Process.Pid {
		t.Errorf("status %+v: want the second policy", s)
	}
	p.do(0, "confirm", "v0")
	second.term()
	p.do(0, "detach", "v0")
	p.nothing()
}

// TestLiveConfirmLate holds that what was not confirmed in time cannot be confirmed
// later, though nobody has rolled it back yet.
func TestLiveConfirmLate(t *testing.T) {
	hereOnly(t)
	p := newPair(t)
	r := p.run("--confirm", "3s", "--meter", never)
	until := time.Now().Add(3 * time.Second) // at the latest
	guard := guardOf(t, r)
	for _, pid := range []int{r.cmd.Process.Pid, guard} {
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
	}
	time.Sleep(time.Until(until.Add(100 * time.Millisecond)))
	p.fails(1, "v0 egress: too late: the time to confirm ended .* ago", "confirm", "v0")
	for _, pid := range []int{r.cmd.Process.Pid, guard} {
		if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
	}
	if code := r.wait(); code != 1 || !strings.Contains(r.err.String(), "not confirmed in time: rolled back") {
		t.Errorf("exit %d, stderr %q", code, r.err.String())
	}
	p.nothing()
}

// TestLiveConfirmOneDirection holds that the direction that is confirmed stays,
// and the other one is rolled back.
func TestLiveConfirmOneDirection(t *testing.T) {
	t.Parallel()
	hereOnly(t)
	for _, hook := range []string{"tcx", "tc"} {
		t.Run(hook, func(t *testing.T) {
			p := newPair(t)
			r := p.run("--hook", hook, "--both", "--confirm", "8s", "--meter", never)
			p.do(0, "confirm", "v0", "--direction", "egress")
			r.err.await(t, "not confirmed in time: rolled back, except the direction that was confirmed")
			if now := p.directions(); !slices.Equal(now, []string{"egress"}) {
				t.Errorf("attached are %v: want egress", now)
			}
			r.term()
			p.nothing()
		})
	}
}

// TestLiveConfirm holds that what nobody confirms goes, with exit code 1, that
// what is confirmed stays, and that what was before comes back.
func TestLiveConfirm(t *testing.T) {
	t.Parallel()
	hereOnly(t)
	for _, hook := range []string{"tcx", "tc"} {
		t.Run(hook, func(t *testing.T) {
			method{hook, ""}.need(t)
			p := newPair(t)
			p.withBpffs()
			before := p.attached()
			for _, pin := range []string{"--pin=false", "--pin"} {
				r := p.run("--hook", hook, "--confirm", "700ms", pin, "--meter", never)
				r.out.await(t, "rolls back in 700ms unless you run shaper confirm v0")
				if code := r.wait(); code != 1 || r.err.String() != "shaper: not confirmed in time: rolled back\n" {
					t.Errorf("%s: exit %d, stderr %q: want 1 and one line", pin, code, &r.err)
				}
				p.unchanged(before)
			}

			r := p.run("--hook", hook, "--confirm", "5s", "--meter", never)
			until := time.Now().Add(5 * time.Second)
			if s := p.stats(); s.Unconfirmed == nil {
				t.Errorf("status %+v does not say until when it waits", s)
			}
			out, _ := p.do(0, "confirm")
			if out != "v0 egress: confirmed\n" {
				t.Errorf("confirm says %q", out)
			}
			p.fails(1, "v0: nothing to confirm: .*", "confirm", "v0")
			time.Sleep(time.Until(until.Add(500 * time.Millisecond)))
			if s := p.stats(); !s.Attached || s.Unconfirmed != nil {
				t.Errorf("status %+v after it was confirmed: want it attached", s)
			}

			w := p.start("reload", "--confirm", "5s", "--meter", "token-bucket rate=1mbit burst=9000")
			eventually(t, func() error {
				if s := p.stats(); s.Policy != "--meter token-bucket rate=1mbit burst=9000" {
					return fmt.Errorf("policy %q: want the new one", s.Policy)
				}
				return nil
			})
			if code := w.wait(); code != 1 || !strings.Contains(w.err.String(), "not confirmed in time") {
				t.Errorf("reload exits with %d, stderr %q: want 1", code, &w.err)
			}
			if s := p.stats(); s.Policy != "--meter "+never || s.Unconfirmed != nil {
				t.Errorf("policy %q: want the one before", s.Policy)
			}
			w = p.start("reload", "--confirm", "60s", "--meter", "token-bucket rate=1mbit burst=9000")
			w.out.await(t, "waiting 1m0s for shaper confirm v0")
			p.do(0, "confirm", "v0")
			if code := w.wait(); code != 0 {
				t.Errorf("reload exits with %d after it was confirmed, stderr %q", code, &w.err)
			}
			if s := p.stats(); s.Policy != "--meter token-bucket rate=1mbit burst=9000" {
				t.Errorf("policy %q: want the one confirmed", s.Policy)
			}
			r.term()
			p.unchanged(before)
		})
	}
}

// TestLiveConfirmTakesOver holds that a run that is not confirmed leaves what
// was pinned before it.
func TestLiveConfirmTakesOver(t *testing.T) {
	t.Parallel()
	for _, hook := range []string{"tcx", "tc"} {
		t.Run(hook, func(t *testing.T) {
			method{hook, ""}.need(t)
			p := newPair(t)
			p.withBpffs()
			before := p.attached()
			p.run("--hook", hook, "--pin", "--meter", "token-bucket rate=3mbit burst=9000").term()
			r := p.run("--hook", hook, "--confirm", "500ms", "--meter", never)
			if code := r.wait(); code != 1 {
				t.Errorf("exit %d: want 1", code)
			}
			s := p.stats()
			if s.Policy != "--meter token-bucket rate=3mbit burst=9000" || !s.Pinned || s.State != "attached, pinned" {
				t.Errorf("status %+v: want the policy before, pinned", s)
			}
			p.do(0, "detach")
			p.unchanged(before)
		})
	}
}

// TestLiveConfirmEnded holds that a run which ends before it is confirmed goes
// back to what it took over.
func TestLiveConfirmEnded(t *testing.T) {
	hereOnly(t)
	p := newPair(t)
	before := p.attached()
	p.do(0, "run", "v0", "--hook", "tc", "--background", "--meter", "token-bucket rate=3mbit burst=9000")
	r := p.run("--hook", "tc", "--confirm", "60s", "--meter", never)
	r.signal(syscall.SIGTERM)
	if code := r.wait(); code != 1 {
		t.Errorf("exit %d: want 1", code)
	}
	if s := p.stats(); s.Policy != "--meter token-bucket rate=3mbit burst=9000" || !s.Pinned {
		t.Errorf("status %+v: want the policy before, pinned", s)
	}
	p.do(0, "detach")
	p.unchanged(before)
}

// TestLiveConfirmHUP holds that neither a terminal that is cut off nor another
// policy confirms.
func TestLiveConfirmHUP(t *testing.T) {
	t.Parallel()
	hereOnly(t)
	for _, how := range []string{"SIGHUP", "reload"} {
		t.Run(how, func(t *testing.T) {
			p := newPair(t)
			before := p.attached()
			path := file(t, "classes: [{name: a}]")
			r := p.run("--confirm", "5s", "--policy", path)
			if how == "SIGHUP" {
				r.signal(syscall.SIGHUP)
				r.out.await(t, "reloaded")
			} else {
				p.do(0, "reload")
			}
			eventually(t, func() error {
				if now := p.attached(); now != before {
					return fmt.Errorf("nobody confirmed, and at v0 is\n%s: want\n%s", now, before)
				}
				return nil
			})
			if code := r.wait(); code != 1 {
				t.Errorf("exit %d: want 1", code)
			}
		})
	}
}

// TestLiveConfirmKilled holds that what is not confirmed goes although the
// process that waits is killed.
func TestLiveConfirmKilled(t *testing.T) {
	hereOnly(t)
	p := newPair(t)
	p.withBpffs()
	before := p.attached()
	p.run("--pin", "--confirm", "3s", "--meter", never).kill()
	eventually(t, func() error {
		if now := p.attached(); now != before {
			return fmt.Errorf("nobody confirmed, and at v0 is\n%s: want\n%s", now, before)
		}
		return nil
	})
}

// TestLiveReloadConfirmKilled is the same for a reload that is killed.
func TestLiveReloadConfirmKilled(t *testing.T) {
	hereOnly(t)
	p := newPair(t)
	r := p.run("--meter", never)
	w := p.start("reload", "--confirm", "3s", "--meter", "token-bucket rate=1mbit burst=9000")
	w.out.await(t, "waiting 3s")
	w.kill()
	eventually(t, func() error {
		if s := p.stats(); s.Policy != "--meter "+never {
			return fmt.Errorf("nobody confirmed, and the policy is %q", s.Policy)
		}
		return nil
	})
	r.term()
}

// TestLiveConfirmRace holds that a confirmation and a rollback at the same
// moment have one winner, and that both say which.
func TestLiveConfirmRace(t *testing.T) {
	hereOnly(t)
	p := newPair(t)
	p.withBpffs()
	const old, next = "token-bucket rate=1mbit burst=9000", "token-bucket rate=2mbit burst=9000"
	p.do(0, "run", "v0", "--background", "--meter", old)
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	won := map[bool]int{}
	for range 12 {
		reload := p.start("reload", "v0", "--meter", next, "--confirm", "1s")
		reload.out.await(t, "waiting 1s")
		until := time.Now().Add(time.Second) // or a little earlier
		time.Sleep(time.Until(until.Add(time.Duration(random.IntN(300)-200) * time.Millisecond)))
		confirm := p.start("confirm", "v0")
		codes := [2]int{confirm.wait(), reload.wait()}
		policy := p.stats().Policy
		confirmed := strings.Contains(confirm.out.String(), "v0 egress: confirmed")
		won[confirmed]++
		want := [2]int{1, 1}
		name := "--meter " + old
		if confirmed {
			want, name = [2]int{0, 0}, "--meter "+next
		}
		if codes != want || policy != name {
			t.Fatalf("seed %d: confirm says %q and ends by %d, reload says %q and ends by %d, the policy is %q", seed,
				confirm.out.String()+confirm.err.String(), codes[0], reload.err.String(), codes[1], policy)
		}
		if confirmed {
			p.do(0, "reload", "v0", "--meter", old)
		}
	}
	t.Logf("seed %d: confirmed %d times, rolled back %d times", seed, won[true], won[false])
	p.do(0, "detach", "v0")
}

// TestLiveConfirmKilledOverPinned holds that a pinned policy comes back at once if
// a run that was to replace it, on probation, is killed.
func TestLiveConfirmKilledOverPinned(t *testing.T) {
	t.Parallel()
	hereOnly(t)
	for _, hook := range []string{"tcx", "tc"} {
		t.Run(hook, func(t *testing.T) {
			p := newPair(t)
			p.withBpffs()
			p.do(0, append([]string{"run", "v0", "--hook", hook, "--background"}, closed...)...)
			r := p.run("--confirm", "60s", "--meter", never)
			p.passesNone(false)
			r.kill()
			eventually(t, func() error {
				if s := p.status(); len(s) != 1 || !s[0].Attached || s[0].State != "attached, pinned" {
					return fmt.Errorf("status %+v: want the policy before, pinned", s)
				}
				return nil
			})
			p.passesNone(true)
			p.do(0, "detach", "v0")
			p.nothing()
		})
	}
}
