package livetest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestLiveConfirmOtherRun checks that the guard of a killed run rolls back only that run's
// policy, not a policy that another run has applied since.
func TestLiveConfirmOtherRun(t *testing.T) {
	skipInVM(t)
	p := newPair(t)
	first := p.runShaper("--pin", "--confirm", "2s", "--meter", "token-bucket rate=1mbit burst=9000")
	until := time.Now().Add(2 * time.Second) // at the latest
	first.killAndWait()
	second := p.runShaper("--pin", "--confirm", "60s", "--meter", unlimitedMeter)
	time.Sleep(time.Until(until.Add(time.Second))) // a guard that acts has acted by then
	if s := p.status(); len(s) != 1 || s[0].Policy != "--meter "+unlimitedMeter ||
		s[0].Process != second.cmd.Process.Pid {
		t.Errorf("status %+v: want the second policy", s)
	}
	p.wantExit(0, "confirm", "v0")
	second.stopBySIGTERM()
	p.wantExit(0, "detach", "v0")
	p.wantNothingLeft()
}

// TestLiveConfirmLate checks that a policy cannot be confirmed after its deadline, even if it
// is not rolled back yet.
func TestLiveConfirmLate(t *testing.T) {
	skipInVM(t)
	p := newPair(t)
	r := p.runShaper("--confirm", "30s", "--meter", unlimitedMeter)
	until := time.Now().Add(30 * time.Second) // at the latest
	guard := guardOf(t, r)
	for _, pid := range []int{r.cmd.Process.Pid, guard} {
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
	}
	time.Sleep(time.Until(until.Add(100 * time.Millisecond)))
	p.wantError(1, "v0 egress: too late: the time to confirm ended .* ago", "confirm", "v0")
	for _, pid := range []int{r.cmd.Process.Pid, guard} {
		// The process may have ended its guard by now.
		if err := syscall.Kill(pid, syscall.SIGCONT); err != nil &&
			!(pid == guard && errors.Is(err, syscall.ESRCH)) {
			t.Fatal(err)
		}
	}
	if code := r.waitForExit(); code != 1 ||
		!strings.Contains(r.err.String(), "not confirmed in time: rolled back") {
		t.Errorf("exit %d, stderr %q", code, r.err.String())
	}
	p.wantNothingLeft()
	p.wantError(1, "v0 is not shaped: nothing to confirm, or it was too late and the policy was rolled back",
		"confirm", "v0")
}

// TestLiveConfirmOneDirection checks that the confirmed direction stays and the other direction
// is rolled back.
func TestLiveConfirmOneDirection(t *testing.T) {
	t.Parallel()
	skipInVM(t)
	for _, hook := range []string{"tcx", "tc"} {
		t.Run(hook, func(t *testing.T) {
			p := newPair(t)
			r := p.runShaper("--hook", hook, "--both", "--confirm", "30s", "--meter", unlimitedMeter)
			p.wantExit(0, "confirm", "v0", "--direction", "egress")
			r.err.awaitMatch(t, "not confirmed in time: rolled back, except the direction that was confirmed")
			if now := p.attachedDirections(); !slices.Equal(now, []string{"egress"}) {
				t.Errorf("attached are %v: want egress", now)
			}
			r.stopBySIGTERM()
			p.wantNothingLeft()
		})
	}
}

// TestLiveConfirm checks that an unconfirmed policy is rolled back with exit code 1, and that a
// confirmed policy stays.
func TestLiveConfirm(t *testing.T) {
	t.Parallel()
	skipInVM(t)
	for _, hook := range []string{"tcx", "tc"} {
		t.Run(hook, func(t *testing.T) {
			placement{hook, ""}.skipIfUnsupported(t)
			p := newPair(t)
			before := p.deviceState()
			for _, pin := range []string{"--pin=false", "--pin"} {
				r := p.runShaper("--hook", hook, "--confirm", "700ms", pin, "--meter", unlimitedMeter)
				r.out.awaitMatch(t, "rolls back in 700ms unless you run shaper confirm v0")
				if code := r.waitForExit(); code != 1 ||
					r.err.String() != "shaper: not confirmed in time: rolled back\n" {
					t.Errorf("%s: exit %d, stderr %q: want 1 and one line", pin, code, &r.err)
				}
				p.wantState(before)
			}

			r := p.runShaper("--hook", hook, "--confirm", "30s", "--meter", unlimitedMeter)
			until := time.Now().Add(30 * time.Second)
			if s := p.stats(); s.Unconfirmed == nil {
				t.Errorf("status %+v has no time of the rollback", s)
			}
			out, _ := p.wantExit(0, "confirm")
			if out != "v0 egress: confirmed\n" {
				t.Errorf("confirm prints %q", out)
			}
			p.wantError(1, "v0: nothing to confirm: .*", "confirm", "v0")
			time.Sleep(time.Until(until.Add(500 * time.Millisecond)))
			if s := p.stats(); !s.Attached || s.Unconfirmed != nil {
				t.Errorf("status %+v after the confirmation: want it attached", s)
			}

			w := p.startShaper("reload", "--confirm", "30s", "--meter", "token-bucket rate=1mbit burst=9000")
			eventually(t, func() error {
				if s := p.stats(); s.Policy != "--meter token-bucket rate=1mbit burst=9000" {
					return fmt.Errorf("policy %q: want the new one", s.Policy)
				}
				return nil
			})
			if code := w.waitForExit(); code != 1 ||
				!strings.Contains(w.err.String(), "not confirmed in time") {
				t.Errorf("reload exits with %d, stderr %q: want 1", code, &w.err)
			}
			if s := p.stats(); s.Policy != "--meter "+unlimitedMeter || s.Unconfirmed != nil {
				t.Errorf("policy %q: want the previous one", s.Policy)
			}
			w = p.startShaper("reload", "--confirm", "60s", "--meter", "token-bucket rate=1mbit burst=9000")
			w.out.awaitMatch(t, "waiting 1m0s for shaper confirm v0")
			p.wantExit(0, "confirm", "v0")
			if code := w.waitForExit(); code != 0 {
				t.Errorf("reload exits with %d after the confirmation, stderr %q", code, &w.err)
			}
			if s := p.stats(); s.Policy != "--meter token-bucket rate=1mbit burst=9000" {
				t.Errorf("policy %q: want the confirmed one", s.Policy)
			}
			r.stopBySIGTERM()
			p.wantState(before)
		})
	}
}

// TestLiveConfirmTakesOver checks that an unconfirmed run restores the pinned policy that it
// took over.
func TestLiveConfirmTakesOver(t *testing.T) {
	t.Parallel()
	for _, hook := range []string{"tcx", "tc"} {
		t.Run(hook, func(t *testing.T) {
			placement{hook, ""}.skipIfUnsupported(t)
			p := newPair(t)
			before := p.deviceState()
			p.runShaper("--hook", hook, "--pin", "--meter",
				"token-bucket rate=3mbit burst=9000").stopBySIGTERM()
			r := p.runShaper("--hook", hook, "--confirm", "500ms", "--meter", unlimitedMeter)
			if code := r.waitForExit(); code != 1 {
				t.Errorf("exit %d: want 1", code)
			}
			s := p.stats()
			if s.Policy != "--meter token-bucket rate=3mbit burst=9000" || !s.Pinned ||
				s.State != "attached, pinned" {
				t.Errorf("status %+v: want the policy before, pinned", s)
			}
			p.wantExit(0, "detach")
			p.wantState(before)
		})
	}
}

// TestLiveConfirmEnded checks that a run that ends unconfirmed restores the policy that it took
// over.
func TestLiveConfirmEnded(t *testing.T) {
	skipInVM(t)
	p := newPair(t)
	before := p.deviceState()
	p.wantExit(0, "run", "v0", "--hook", "tc", "--background", "--meter",
		"token-bucket rate=3mbit burst=9000")
	r := p.runShaper("--hook", "tc", "--confirm", "60s", "--meter", unlimitedMeter)
	r.sendSignal(syscall.SIGTERM)
	if code := r.waitForExit(); code != 1 {
		t.Errorf("exit %d: want 1", code)
	}
	if s := p.stats(); s.Policy != "--meter token-bucket rate=3mbit burst=9000" || !s.Pinned {
		t.Errorf("status %+v: want the policy before, pinned", s)
	}
	p.wantExit(0, "detach")
	p.wantState(before)
}

// TestLiveConfirmHUP checks that neither SIGHUP, as from a closed terminal, nor a reload
// confirms a policy.
func TestLiveConfirmHUP(t *testing.T) {
	t.Parallel()
	skipInVM(t)
	for _, how := range []string{"SIGHUP", "reload"} {
		t.Run(how, func(t *testing.T) {
			p := newPair(t)
			before := p.deviceState()
			path := writePolicy(t, "classes: [{name: a}]")
			r := p.runShaper("--confirm", "30s", "--policy", path)
			if how == "SIGHUP" {
				r.reloadBySIGHUP()
			} else {
				p.wantExit(0, "reload")
			}
			eventually(t, func() error {
				if now := p.deviceState(); now != before {
					return fmt.Errorf("not confirmed, but attached to v0:\n%s: want\n%s", now, before)
				}
				return nil
			})
			if code := r.waitForExit(); code != 1 {
				t.Errorf("exit %d: want 1", code)
			}
		})
	}
}

// TestLiveConfirmKilled checks that an unconfirmed policy is rolled back if its process was
// killed.
func TestLiveConfirmKilled(t *testing.T) {
	skipInVM(t)
	p := newPair(t)
	before := p.deviceState()
	p.runShaper("--pin", "--confirm", "3s", "--meter", unlimitedMeter).killAndWait()
	eventually(t, func() error {
		if now := p.deviceState(); now != before {
			return fmt.Errorf("not confirmed, but attached to v0:\n%s: want\n%s", now, before)
		}
		return nil
	})
}

// TestLiveReloadConfirmKilled checks that an unconfirmed policy of a killed shaper reload is
// rolled back.
func TestLiveReloadConfirmKilled(t *testing.T) {
	skipInVM(t)
	p := newPair(t)
	r := p.runShaper("--meter", unlimitedMeter)
	w := p.startShaper("reload", "--confirm", "3s", "--meter", "token-bucket rate=1mbit burst=9000")
	w.out.awaitMatch(t, "waiting 3s")
	w.killAndWait()
	eventually(t, func() error {
		if s := p.stats(); s.Policy != "--meter "+unlimitedMeter {
			return fmt.Errorf("the policy is still %q: want it rolled back", s.Policy)
		}
		return nil
	})
	r.stopBySIGTERM()
}

// TestLiveConfirmRace runs shaper confirm at the time of the rollback. One of them must win,
// and both commands must report the same result.
func TestLiveConfirmRace(t *testing.T) {
	skipInVM(t)
	p := newPair(t)
	const old, next = "token-bucket rate=1mbit burst=9000", "token-bucket rate=2mbit burst=9000"
	p.wantExit(0, "run", "v0", "--background", "--meter", old)
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	won := map[bool]int{}
	for range 8 {
		reload := p.startShaper("reload", "v0", "--meter", next, "--confirm", "1s")
		reload.out.awaitMatch(t, "waiting 1s")
		until := time.Now().Add(time.Second) // or a little earlier
		time.Sleep(time.Until(until.Add(time.Duration(random.IntN(300)-200) * time.Millisecond)))
		confirm := p.startShaper("confirm", "v0")
		codes := [2]int{confirm.waitForExit(), reload.waitForExit()}
		policy := p.stats().Policy
		confirmed := strings.Contains(confirm.out.String(), "v0 egress: confirmed")
		won[confirmed]++
		want := [2]int{1, 1}
		name := "--meter " + old
		if confirmed {
			want, name = [2]int{0, 0}, "--meter "+next
		}
		if codes != want || policy != name {
			t.Fatalf("seed %d: confirm printed %q with exit code %d, reload printed %q with exit code %d, the policy is %q",
				seed,
				confirm.out.String()+confirm.err.String(), codes[0], reload.err.String(), codes[1], policy)
		}
		if confirmed {
			p.wantExit(0, "reload", "v0", "--meter", old)
		}
	}
	t.Logf("seed %d: confirmed %d times, rolled back %d times", seed, won[true], won[false])
	p.wantExit(0, "detach", "v0")
}

// TestLiveConfirmKilledOverPinned kills an unconfirmed run that took over a pinned policy, and
// checks that the pinned policy is restored at once.
func TestLiveConfirmKilledOverPinned(t *testing.T) {
	t.Parallel()
	skipInVM(t)
	for _, hook := range []string{"tcx", "tc"} {
		t.Run(hook, func(t *testing.T) {
			p := newPair(t)
			p.wantExit(0, append([]string{"run", "v0", "--hook", hook, "--background"}, dropAll...)...)
			r := p.runShaper("--confirm", "60s", "--meter", unlimitedMeter)
			p.wantDropped(false)
			r.killAndWait()
			eventually(t, func() error {
				if s := p.status(); len(s) != 1 || !s[0].Attached || s[0].State != "attached, pinned" {
					return fmt.Errorf("status %+v: want the policy before, pinned", s)
				}
				return nil
			})
			p.wantDropped(true)
			p.wantExit(0, "detach", "v0")
			p.wantNothingLeft()
		})
	}
}
