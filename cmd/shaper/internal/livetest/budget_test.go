package livetest

import (
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane/nettest"
)

// A budget of 16 Mbit/s. Its burst is not full when the senders begin, and does not become
// full if the machine stalls.
const (
	budgetRate  = 2_000_000 // bytes per second
	budgetBurst = 8_000_000
	budgetFrame = 1000 // bytes, metered
	budgetMeter = "type: token-bucket, rate: 16mbit, burst: 8MB, initial: 50%"
)

// TestQuietBudget checks that two interfaces, both directions, each with its own process,
// together pass exactly what their shared budget allows.
func TestQuietBudget(t *testing.T) {
	nettest.Quiet(t)
	p := newBudgetHost(t)
	policy := budgetPolicy(t, budgetMeter)
	nettest.Steady(t, func() error {
		var list []*process
		names := []string{"v0 egress", "v0 ingress", "v1 egress", "v1 ingress"}
		hooks := []string{"tc", "xdp", "tc", "tc"}
		routes := []sendRoute{
			p.near.Injector("v0"), p.far.Injector("v0"), p.near.Injector("v1"), p.other.Injector("v0"),
		}
		if inVM { // attaching one takes seconds there
			names, hooks, routes = names[:2], hooks[:2], routes[:2]
		}
		for i, hook := range hooks {
			dev, direction, _ := strings.Cut(names[i], " ")
			list = append(list, p.runOn(dev, policy, "--direction", direction, "--hook", hook))
		}
		if got := p.budgetFiles(); got != allPins {
			t.Errorf("budget files are %s: want %s", got, allPins)
		}
		at := p.fillBudget(routes, 500*time.Millisecond, nil, func() {})
		passed := p.bytesPassed(names...)
		err := checkSpent(t, passed, at)
		if taken := p.bytesTaken(); err == nil && taken != passed {
			t.Errorf("%d bytes passed, but %d were taken from the budget", passed, taken)
		}
		for i, r := range list {
			if p.budgetFiles() == "" {
				t.Errorf("no budget file while %d shapers use the budget", len(list)-i)
			}
			r.stopBySIGTERM()
		}
		p.awaitNoBudgets()
		return err
	})
}

// TestQuietBudgetPlanes checks that tc, XDP and a TAP device together pass what their budget
// allows, and that the budget continues while one of the processes is killed and restarted.
func TestQuietBudgetPlanes(t *testing.T) {
	nettest.Quiet(t)
	skipInVM(t)
	p := newBudgetHost(t)
	policy := budgetPolicy(t, budgetMeter)
	nettest.Steady(t, func() error {
		carried := p.startShaper("tap", "t0", "--peer", "t1", "--policy", policy)
		carried.out.awaitMatch(t, "moving frames to and from")
		ingress := p.runOn("v0", policy, "--direction", "ingress", "--hook", "xdp")
		egress := p.runOn("v1", policy, "--hook", "tcx")
		before := p.bytesSentBy("v1")
		routes := []sendRoute{p.near.Injector("v1"), p.near.Injector("t0"), p.far.Injector("v0")}
		restart := func() {
			egress.killAndWait()
			egress = p.runOn("v1", policy, "--hook", "tcx")
		}
		drained := func() { // until the TAP device has no queued frame
			before := int64(-1)
			eventually(t, func() error {
				s := p.stats("t0")
				now := s.sumOfClasses().Packets
				if now != before {
					before = now
					return errors.New("frames are still being moved")
				}
				return nil
			})
		}
		at := p.fillBudget(routes, 500*time.Millisecond, restart, drained)
		passed := p.bytesSentBy("v1") - before + p.bytesPassed("v0 ingress", "t0 egress")
		err := checkSpent(t, passed, at)
		if taken := p.bytesTaken(); err == nil && taken != passed {
			t.Errorf("%d bytes passed, but %d were taken from the budget", passed, taken)
		}
		carried.stopBySIGTERM()
		ingress.stopBySIGTERM()
		egress.stopBySIGTERM()
		p.awaitNoBudgets()
		return err
	})
}

// near reports whether a budget of 1 bit/s has as many tokens as expected: it gains one in 8 s.
func near(tokens, want int64) bool { return want <= tokens && tokens <= want+100 }

// TestLiveBudgetParams checks which users may change the parameters of a budget, and that the
// new parameters apply to all users.
func TestLiveBudgetParams(t *testing.T) {
	skipInVM(t)
	p := newBudgetHost(t)
	small, large := "type: token-bucket, rate: 1bit, burst: 3000",
		"type: token-bucket, rate: 1bit, burst: 9000"
	smallPolicy, largePolicy := budgetPolicy(t, small), budgetPolicy(t, large)
	first := p.runOn("v0", smallPolicy)
	p.near.Inject("v0", budgetFrames[0])
	theirs := `budget "uplinks" has parameters %s in this policy, but %s in v0 egress \(process \d+\): use the same in both, or reload one of its users with the new parameters`
	p.wantError(1,
		fmt.Sprintf(theirs, "token-bucket rate=1bit burst=9000", "token-bucket rate=1bit burst=3000"), "run",
		"v1", "--policy", largePolicy)
	p.wantError(1, fmt.Sprintf(theirs, "token-bucket rate=1p/8s burst=3000 count=packets",
		"token-bucket rate=1bit burst=3000"),
		"run", "v1", "--policy", budgetPolicy(t, "type: token-bucket, rate: 1p/8s, burst: 3000, count: packets"))
	p.wantError(1,
		fmt.Sprintf(theirs, "srtcm cir=1bit cbs=3000 ebs=3000", "token-bucket rate=1bit burst=3000"),
		"run", "v1", "--policy", budgetPolicy(t, "type: srtcm, cir: 1bit, cbs: 3000, ebs: 3000"))
	second := p.runOn("v1", smallPolicy)
	if a, b := p.budgetTokens("v0"), p.budgetTokens("v1"); !near(a, 2000) || !near(b, 2000) {
		t.Errorf("%d and %d tokens: want 2000 for both", a, b)
	}
	// A reload of one user changes the budget for all users.
	_, said := p.wantExit(0, "reload", "v1", "--policy", largePolicy)
	if want := "shaper: v1 egress: budget uplinks is now token-bucket rate=1bit burst=9000, also for v0 egress\n"; said != want {
		t.Errorf("%q: want %q", said, want)
	}
	_, said = p.wantExit(0, "reload", "v0", "--policy", smallPolicy) // unchanged for v0
	if want := "shaper: v0 egress: budget uplinks keeps the parameters of v1 egress, token-bucket rate=1bit burst=9000, not token-bucket rate=1bit burst=3000\n"; said != want {
		t.Errorf("%q: want %q", said, want)
	}
	if _, said = p.wantExit(0, "reload", "v0", "--policy", largePolicy); said != "" {
		t.Errorf("%q: want nothing, because nothing changed", said)
	}
	p.near.Inject("v0", budgetFrames[0])
	if a, b := p.budgetTokens("v0"), p.budgetTokens("v1"); !near(a, 1000) || !near(b, 1000) {
		t.Errorf("%d and %d tokens: want the remaining 1000", a, b)
	}
	// A rollback restores the budget for all users.
	reload := p.startShaper("reload", "v0", "--policy", smallPolicy, "--confirm", "200ms")
	reload.out.awaitMatch(t, "waiting 200ms")
	if code := reload.waitForExit(); code != 1 {
		t.Errorf("exit %d: %q", code, &reload.err)
	}
	text, _ := p.wantExit(0, "status", "v1")
	if !strings.Contains(strings.Join(strings.Fields(text), " "),
		"budget uplinks: token-bucket rate=1bit burst=9000; used by ") {
		t.Errorf("status prints %s", text)
	}
	// The only user may change all parameters, and keeps the remaining tokens.
	first.stopBySIGTERM()
	p.wantExit(0, "reload", "v1", "--policy", budgetPolicy(t, "type: srtcm, cir: 1bit, cbs: 5000, ebs: 3000"))
	if got := p.budgetTokens("v1"); !near(got, 1000) {
		t.Errorf("%d tokens: want 1000", got)
	}
	p.wantExit(0, "reload", "v1", "--meter", unlimitedMeter)
	p.awaitNoBudgets()
	p.wantExit(0, "reload", "v1", "--policy", smallPolicy)
	if got := p.budgetFiles(); got != allPins {
		t.Errorf("budget files are %s: want %s", got, allPins)
	}
	second.stopBySIGTERM()
	p.awaitNoBudgets()
}

// TestLiveBudgetLifetime checks that a budget exists until its last user ends, however that
// user ends.
func TestLiveBudgetLifetime(t *testing.T) {
	skipInVM(t)
	p := newBudgetHost(t)
	policy := budgetPolicy(t, "type: token-bucket, rate: 1bit, burst: 3000")
	// The guard of a killed process removes the budget.
	r := p.runOn("v0", policy)
	r.killAndWait()
	p.awaitNoBudgets()

	// If the guard was killed too, the next command removes it.
	for _, next := range [][]string{
		{"detach", "v0"},
		{"detach", "--all"},
		{"run", "v1", "--meter", unlimitedMeter, "--for", "1ms"},
		{"run", "v1", "--meter", unlimitedMeter, "--background"},
	} {
		r = p.runOn("v0", policy)
		r.killWithGuard()
		p.awaitLeftBehind("v0")
		p.wantExit(0, next...)
		p.awaitNoBudgets()
	}
	p.wantExit(0, "detach", "v1")

	// A pinned shaper keeps it, without the tokens that the other shaper used.
	p.wantExit(0, "run", "v0", "--policy", policy, "--background")
	r = p.runOn("v1", policy)
	p.near.Inject("v1", budgetFrames[0])
	r.killAndWait()
	if got := p.budgetTokens("v0"); !near(got, 2000) {
		t.Errorf("%d tokens: want 2000", got)
	}
	r = p.runOn("v1", policy)
	if got := p.budgetTokens("v1"); !near(got, 2000) {
		t.Errorf("%d tokens after a restart: want 2000", got)
	}
	p.wantExit(0, "detach", "v0")
	if got := p.budgetTokens("v1"); !near(got, 2000) {
		t.Errorf("%d tokens after the other shaper was detached: want 2000", got)
	}
	r.stopBySIGTERM()
	p.awaitNoBudgets()

	// A dry run takes no tokens.
	r = p.runOn("v0", policy)
	dry := p.runOn("v1", policy, "--dry-run")
	p.near.Inject("v1", budgetFrames[:3]...)
	if got := p.budgetTokens("v0"); !near(got, 3000) {
		t.Errorf("%d tokens after packets of a dry run: want 3000", got)
	}
	dry.stopBySIGTERM()
	r.stopBySIGTERM()
	p.awaitNoBudgets()

	// A deleted interface and a killed shaper tap leave it behind.
	p.wantExit(0, "run", "v1", "--policy", policy, "--background")
	p.near.Delete("v1")
	carried := p.startShaper("tap", "t0", "--peer", "t1", "--policy", policy)
	carried.out.awaitMatch(t, "moving frames to and from")
	carried.sendSignal(syscall.SIGKILL)
	carried.waitForExit()
	p.awaitLeftBehind("t0")
	p.wantExit(0, "detach", "t0")
	p.awaitNoBudgets()
}

// TestLiveBudgetLock checks that a process that keeps the lock of the budgets delays only the users of
// budgets.
func TestLiveBudgetLock(t *testing.T) {
	skipInVM(t)
	p := newBudgetHost(t)
	policy := budgetPolicy(t, "type: token-bucket, rate: 1bit, burst: 3000")
	user := p.runOn("v0", policy)
	p.wantExit(0, "run", "v1", "--meter", unlimitedMeter, "--background")
	holder := exec.Command(p.wrap[0], append(p.wrap[1:],
		"flock", "--no-fork", "/run/shaper/budgets-lock", "sh", "-c", "echo locked; exec sleep infinity")...)
	out := &output{}
	holder.Stdout, holder.Stderr = out, out
	p.near.Start(holder)
	out.awaitMatch(t, "locked")
	p.wantExit(0, "reload", "v1", "--meter", unlimitedMeter)
	p.wantExit(0, "detach", "v1")
	p.wantExit(0, "run", "v1", "--meter", unlimitedMeter, "--for", "1ms")
	p.wantError(1, "another process has held the lock /run/shaper/budgets-lock for 10s: is it stopped\\?",
		"run", "v1", "--policy", policy)
	if err := holder.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	p.wantExit(0, "run", "v1", "--policy", policy, "--for", "1ms")
	user.stopBySIGTERM()
	p.awaitNoBudgets()
}

// TestLiveBudgetWithoutBpffs checks that root can share budgets without bpffs, which ip netns
// exec hides. Without bpffs and CAP_SYS_ADMIN there must be an error.
func TestLiveBudgetWithoutBpffs(t *testing.T) {
	skipInVM(t)
	p := newBudgetHost(t)
	p.withMounts("mount -t tmpfs -o mode=755 tmpfs /run; umount -l /sys/fs/bpf 2>/dev/null || true")
	policy := budgetPolicy(t, "type: token-bucket, rate: 1bit, burst: 3000")
	r := p.runOn("v0", policy)
	other := p.runOn("v1", policy)
	p.near.Inject("v0", budgetFrames[0])
	if got := p.budgetTokens("v1"); !near(got, 2000) {
		t.Errorf("%d tokens: want 2000", got)
	}
	other.stopBySIGTERM()
	r.stopBySIGTERM()
	p.awaitNoBudgets()
	p.wrap = append(p.wrap, "setpriv", "--bounding-set=-sys_admin")
	alone := p.startShaper("run", "v0", "--policy", policy)
	if code := alone.waitForExit(); code != 1 || !strings.Contains(alone.err.String(), "CAP_SYS_ADMIN") {
		t.Errorf("exit %d: %q", code, &alone.err)
	}
}
