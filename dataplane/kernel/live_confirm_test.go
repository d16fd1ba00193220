package kernel_test

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// directions are those that status says are attached.
func (p *pair) directions() (out []string) {
	p.t.Helper()
	for _, s := range p.status() {
		if s.Attached {
			out = append(out, s.Direction)
		}
	}
	return out
}

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
	p.fails(1, "v0 egress: too late: the time to confirm it ended .* ago", "confirm", "v0")
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

// TestLiveReloadReplaced holds that a reload that waits says so when another one
// takes its place.
func TestLiveReloadReplaced(t *testing.T) {
	hereOnly(t)
	p := newPair(t)
	r := p.run("--meter", never)
	first := p.start("reload", "v0", "--confirm", "60s", "--meter", "token-bucket rate=1mbit burst=9000")
	first.out.await(t, "waiting 1m0s for shaper confirm v0")
	second := p.start("reload", "v0", "--confirm", "1s", "--meter", "token-bucket rate=2mbit burst=9000")
	if code := first.wait(); code != 1 || !strings.Contains(first.err.String(), "not confirmed: replaced by another policy with --confirm") {
		t.Errorf("the first reload: exit %d, stderr %q", code, &first.err)
	}
	if code := second.wait(); code != 1 || !strings.Contains(second.err.String(), "not confirmed in time: rolled back") {
		t.Errorf("the second reload: exit %d, stderr %q", code, &second.err)
	}
	if s := p.stats(); s.Policy != "--meter "+never {
		t.Errorf("policy %q: want the first", s.Policy)
	}
	r.term()
	p.nothing()
}

// TestLiveConfirmOneDirection holds that the direction that is confirmed stays,
// and the other one is rolled back.
func TestLiveConfirmOneDirection(t *testing.T) {
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

// TestLiveDetachOneDirection holds that a run of both directions goes on with the
// one that is left.
func TestLiveDetachOneDirection(t *testing.T) {
	hereOnly(t)
	p := newPair(t)
	r := p.run("--both", "--meter", never)
	p.do(0, "detach", "v0", "--direction", "egress")
	r.err.await(t, "v0 egress: detached by another process")
	if now := p.directions(); !slices.Equal(now, []string{"ingress"}) {
		t.Errorf("attached are %v: want ingress", now)
	}
	p.do(0, "reload", "v0")
	p.do(0, "detach", "v0")
	if code := r.wait(); code != 0 {
		t.Errorf("exit %d, stderr %q", code, r.err.String())
	}
	p.nothing()
}

// TestLiveWaitConfirm holds that a policy that waited for its interface is rolled
// back like any other.
func TestLiveWaitConfirm(t *testing.T) {
	hereOnly(t)
	p := newPair(t)
	r := p.start("run", "w0", "--wait", "--confirm", "1s", "--meter", never)
	r.err.await(t, "waiting for it to appear")
	p.near.VethNamed("w0", p.far, "w0")
	r.out.await(t, "w0 egress: attached by")
	if code := r.wait(); code != 1 || !strings.Contains(r.err.String(), "not confirmed in time: rolled back") {
		t.Errorf("exit %d, stderr %q", code, r.err.String())
	}
	p.nothing()
}

// TestLiveForeignInClsact holds that a clsact of ours that others use by now is
// theirs: nothing is called left behind.
func TestLiveForeignInClsact(t *testing.T) {
	hereOnly(t)
	p := newPair(t)
	r := p.run("--hook", "tc", "--meter", never)
	p.near.Run("tc", "filter", "add", "dev", "v0", "ingress", "pref", "9", "protocol", "ip", "u32", "match", "u32", "0", "0", "flowid", "1:1")
	r.term()
	p.nothing()
	if now := p.near.Run("tc", "filter", "show", "dev", "v0", "ingress"); !strings.Contains(now, "pref 9") {
		t.Errorf("filters are %q: want theirs", now)
	}
	p.fails(1, "v0 is not shaped: .*", "detach", "v0")
}

// TestLiveSlowChange holds that what is being made is not called left behind.
func TestLiveSlowChange(t *testing.T) {
	hereOnly(t)
	p := newQueuePair(t)
	policy := file(t, fmt.Sprintf(slowQueue, "50ms"))
	for range 3 {
		r := p.start("run", "v0", "--both", "--policy", policy)
		for !strings.Contains(r.out.String(), "v0 ingress: attached") {
			if r.ended() {
				t.Fatalf("it ended: %q", r.err.String())
			}
			for _, s := range p.status() {
				if s.State == "left behind" {
					t.Errorf("status %+v", s)
				}
			}
		}
		r.term()
	}
	p.nothing()
}
