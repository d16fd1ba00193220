package livetest

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane/nettest"
)

// A budget of the live tests: 16 Mbit/s, and a burst that is neither full when the
// senders begin nor if the machine stalls.
const (
	budgetRate  = 2_000_000 // bytes per second
	budgetBurst = 8_000_000
	budgetFrame = 1000 // bytes, metered
	budgetMeter = "type: token-bucket, rate: 16mbit, burst: 8MB, initial: 50%"
)

// TestLiveBudget holds that two interfaces, in both directions, each with a process
// of its own, pass together what the budget of all allows, to the packet.
func TestLiveBudget(t *testing.T) {
	p := newHosts(t)
	policy := budgetPolicy(t, budgetMeter)
	nettest.Steady(t, func() error {
		var list []*process
		names := []string{"v0 egress", "v0 ingress", "v1 egress", "v1 ingress"}
		hooks := []string{"tc", "xdp", "tc", "tc"}
		routes := []route{p.near.Injector("v0"), p.far.Injector("v0"), p.near.Injector("v1"), p.other.Injector("v0")}
		if inVM { // where it takes seconds to attach one
			names, hooks, routes = names[:2], hooks[:2], routes[:2]
		}
		for i, hook := range hooks {
			dev, direction, _ := strings.Cut(names[i], " ")
			list = append(list, p.attach(dev, policy, "--direction", direction, "--hook", hook))
		}
		if got := p.registered(); got != allPins {
			t.Errorf("registered are %s", got)
		}
		at := p.fill(routes, 500*time.Millisecond, nil, func() {})
		passed := p.passed(names...)
		err := spent(t, passed, at)
		if taken := p.taken(); err == nil && taken != passed {
			t.Errorf("%d bytes passed, and %d were taken", passed, taken)
		}
		for i, r := range list {
			if p.registered() == "" {
				t.Errorf("nothing is registered while %d shapers use it", len(list)-i)
			}
			r.term()
		}
		p.noBudgets()
		return err
	})
}

// TestLiveBudgetPlanes holds that tc, XDP and a TAP plane pass together what their
// budget allows, and that it goes on while one of them is killed and starts again.
func TestLiveBudgetPlanes(t *testing.T) {
	hereOnly(t)
	p := newHosts(t)
	policy := budgetPolicy(t, budgetMeter)
	nettest.Steady(t, func() error {
		carried := p.start("tap", "t0", "--peer", "t1", "--policy", policy)
		carried.out.await(t, "moving frames to and from")
		ingress := p.attach("v0", policy, "--direction", "ingress", "--hook", "xdp")
		egress := p.attach("v1", policy, "--hook", "tcx")
		before := p.sentBy("v1")
		routes := []route{p.near.Injector("v1"), p.near.Injector("t0"), p.far.Injector("v0")}
		restart := func() {
			egress.kill()
			egress = p.attach("v1", policy, "--hook", "tcx")
		}
		drained := func() { // no frame waits in the TAP device
			before := int64(-1)
			eventually(t, func() error {
				s := p.stats("t0")
				now := s.sum().Packets
				if now != before {
					before = now
					return errors.New("frames are still carried")
				}
				return nil
			})
		}
		at := p.fill(routes, 500*time.Millisecond, restart, drained)
		passed := p.sentBy("v1") - before + p.passed("v0 ingress", "t0 egress")
		err := spent(t, passed, at)
		if taken := p.taken(); err == nil && taken != passed {
			t.Errorf("%d bytes passed, and %d were taken", passed, taken)
		}
		carried.term()
		ingress.term()
		egress.term()
		p.noBudgets()
		return err
	})
}

// TestLiveBudgetParams holds who may change the parameters of a budget, and that all
// users have them then.
func TestLiveBudgetParams(t *testing.T) {
	hereOnly(t)
	p := newHosts(t)
	// Rates that bring a byte in 8 s: few of them while the test runs.
	have := func(tokens, want int64) bool { return want <= tokens && tokens <= want+20 }
	small, large := "type: token-bucket, rate: 1bit, burst: 3000", "type: token-bucket, rate: 1bit, burst: 9000"
	smallPolicy, largePolicy := budgetPolicy(t, small), budgetPolicy(t, large)
	first := p.attach("v0", smallPolicy)
	p.near.Inject("v0", budgetFrames[0])
	theirs := `budget "uplinks" has parameters %s in this policy, but %s in v0 egress \(process \d+\): use the same in both, or reload one of its users with the new parameters`
	p.fails(1, fmt.Sprintf(theirs, "token-bucket rate=1bit burst=9000", "token-bucket rate=1bit burst=3000"), "run", "v1", "--policy", largePolicy)
	p.fails(1, fmt.Sprintf(theirs, "token-bucket rate=1p/8s burst=3000 count=packets", "token-bucket rate=1bit burst=3000"),
		"run", "v1", "--policy", budgetPolicy(t, "type: token-bucket, rate: 1p/8s, burst: 3000, count: packets"))
	p.fails(1, fmt.Sprintf(theirs, "srtcm cir=1bit cbs=3000 ebs=3000", "token-bucket rate=1bit burst=3000"),
		"run", "v1", "--policy", budgetPolicy(t, "type: srtcm, cir: 1bit, cbs: 3000, ebs: 3000"))
	second := p.attach("v1", smallPolicy)
	if a, b := p.tokens("v0"), p.tokens("v1"); !have(a, 2000) || !have(b, 2000) {
		t.Errorf("%d and %d tokens: want 2000 for both", a, b)
	}
	// A user's reload changes it for all, once.
	_, said := p.do(0, "reload", "v1", "--policy", largePolicy)
	if want := "shaper: v1 egress: budget uplinks is now token-bucket rate=1bit burst=9000, also for v0 egress\n"; said != want {
		t.Errorf("%q: want %q", said, want)
	}
	_, said = p.do(0, "reload", "v0", "--policy", smallPolicy) // as it was for v0
	if want := "shaper: v0 egress: budget uplinks keeps the parameters of v1 egress, token-bucket rate=1bit burst=9000, not token-bucket rate=1bit burst=3000\n"; said != want {
		t.Errorf("%q: want %q", said, want)
	}
	if _, said = p.do(0, "reload", "v0", "--policy", largePolicy); said != "" {
		t.Errorf("%q: want nothing, it is so already", said)
	}
	p.near.Inject("v0", budgetFrames[0])
	if a, b := p.tokens("v0"), p.tokens("v1"); !have(a, 1000) || !have(b, 1000) {
		t.Errorf("%d and %d tokens: want 1000, what was left of them", a, b)
	}
	// What is not confirmed comes back, for all.
	reload := p.start("reload", "v0", "--policy", smallPolicy, "--confirm", "200ms")
	reload.out.await(t, "waiting 200ms")
	if code := reload.wait(); code != 1 {
		t.Errorf("exit %d: %q", code, &reload.err)
	}
	text, _ := p.do(0, "status", "v1")
	if !strings.Contains(strings.Join(strings.Fields(text), " "), "budget uplinks: token-bucket rate=1bit burst=9000; used by ") {
		t.Errorf("status says %s", text)
	}
	// The only user may change all of it, and keeps what is left.
	first.term()
	p.do(0, "reload", "v1", "--policy", budgetPolicy(t, "type: srtcm, cir: 1bit, cbs: 5000, ebs: 3000"))
	if got := p.tokens("v1"); !have(got, 1000) {
		t.Errorf("%d tokens: want 1000", got)
	}
	p.do(0, "reload", "v1", "--meter", never)
	p.noBudgets()
	p.do(0, "reload", "v1", "--policy", smallPolicy)
	if got := p.registered(); got != allPins {
		t.Errorf("registered are %s", got)
	}
	second.term()
	p.noBudgets()
}

// TestLiveBudgetLife holds that a budget ends with its last user, whatever becomes of
// that one, and lasts as long as there is one.
func TestLiveBudgetLife(t *testing.T) {
	hereOnly(t)
	p := newHosts(t)
	policy := budgetPolicy(t, "type: token-bucket, rate: 1bit, burst: 3000")
	// By the guard of a killed process.
	r := p.attach("v0", policy)
	r.kill()
	p.noBudgets()

	// By the next command, if the guard is killed, too.
	for _, next := range [][]string{{"detach", "v0"}, {"detach", "--all"}, {"run", "v1", "--meter", never, "--for", "1ms"}} {
		r = p.attach("v0", policy)
		r.killBoth()
		p.leftAt("v0")
		p.do(0, next...)
		p.noBudgets()
	}

	// A pinned one stays, and has the tokens that the other took.
	p.do(0, "run", "v0", "--policy", policy, "--background")
	r = p.attach("v1", policy)
	p.near.Inject("v1", budgetFrames[0])
	r.kill()
	if got := p.tokens("v0"); got != 2000 {
		t.Errorf("%d tokens: want 2000", got)
	}
	r = p.attach("v1", policy)
	if got := p.tokens("v1"); got != 2000 {
		t.Errorf("%d tokens after a restart: want 2000", got)
	}
	p.do(0, "detach", "v0")
	if got := p.tokens("v1"); got != 2000 {
		t.Errorf("%d tokens after the other was detached: want 2000", got)
	}
	r.term()
	p.noBudgets()

	// A dry run takes nothing from it.
	r = p.attach("v0", policy)
	dry := p.attach("v1", policy, "--dry-run")
	p.near.Inject("v1", budgetFrames[:3]...)
	if got := p.tokens("v0"); got != 3000 {
		t.Errorf("%d tokens beside a dry run: want 3000", got)
	}
	dry.term()
	r.term()
	p.noBudgets()

	// An interface that is deleted, and a TAP plane that is killed.
	p.do(0, "run", "v1", "--policy", policy, "--background")
	p.near.Delete("v1")
	carried := p.start("tap", "t0", "--peer", "t1", "--policy", policy)
	carried.out.await(t, "moving frames to and from")
	carried.signal(syscall.SIGKILL)
	carried.wait()
	p.leftAt("t0")
	p.do(0, "detach", "t0")
	p.noBudgets()
}

// TestLiveBudgetHidden holds that root shares budgets without bpffs, which ip netns
// exec hides, and that who has neither bpffs nor CAP_SYS_ADMIN is told.
func TestLiveBudgetHidden(t *testing.T) {
	hereOnly(t)
	p := newHosts(t)
	p.withMounts("mount -t tmpfs -o mode=755 tmpfs /run; umount -l /sys/fs/bpf 2>/dev/null || true")
	policy := budgetPolicy(t, "type: token-bucket, rate: 1bit, burst: 3000")
	r := p.attach("v0", policy)
	other := p.attach("v1", policy)
	p.near.Inject("v0", budgetFrames[0])
	if got := p.tokens("v1"); got != 2000 {
		t.Errorf("%d tokens: want 2000", got)
	}
	other.term()
	r.term()
	p.noBudgets()
	p.wrap = nil
	p.withoutBpffs()
	alone := p.as("root with", "run", "v0", "--policy", policy)
	if code := alone.wait(); code != 1 || !strings.Contains(alone.err.String(), "CAP_SYS_ADMIN") {
		t.Errorf("exit %d: %q", code, &alone.err)
	}
}
