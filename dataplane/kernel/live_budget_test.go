package kernel_test

import (
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/a-seed-32e5a53f/shaper/bpf"
	"github.com/a-seed-32e5a53f/shaper/dataplane/internal/nettest"
)

// A budget of the live tests: 16 Mbit/s, and a burst that is neither full when the
// senders begin nor if the machine stalls.
const (
	budgetRate  = 2_000_000 // bytes per second
	budgetBurst = 8_000_000
	budgetFrame = 1000 // bytes, metered
	budgetMeter = "type: token-bucket, rate: 16mbit, burst: 8MB, initial: 50%"
)

// budgetPolicy has every IP packet use one budget.
func budgetPolicy(t *testing.T, meter string) string {
	t.Helper()
	return file(t, fmt.Sprintf("classes:\n  - {name: all, meter: {%s, share: {budget: uplinks, store: host}}}\n", meter))
}

// hosts is a pair with a second interface, v1 to another namespace, and with a state
// directory and a bpffs of its own: a host that shares its budgets with no other test.
type hosts struct {
	*pair
	other *nettest.Namespace
}

func newHosts(t *testing.T) *hosts {
	t.Helper()
	p := &hosts{pair: newPair(t), other: nettest.New(t)}
	p.near.VethNamed("v1", p.other, "v0")
	p.withMounts("mount -t tmpfs -o mode=755 tmpfs /run; mount -t bpf -o mode=700 bpf /sys/fs/bpf")
	return p
}

// registered are the files and pins of budgets.
func (p *hosts) registered() string {
	p.t.Helper()
	cmd := exec.Command(p.wrap[0], append(p.wrap[1:], "sh", "-c", "ls -d /run/shaper/budgets* /sys/fs/bpf/shaper/shared-* 2>/dev/null; true")...)
	out, err := cmd.Output()
	if err != nil {
		p.t.Fatal(err)
	}
	return strings.ReplaceAll(strings.TrimSpace(string(out)), "\n", " ")
}

const allPins = "/run/shaper/budgets /sys/fs/bpf/shaper/shared-budgets /sys/fs/bpf/shaper/shared-locks"

// noBudgets wants nothing of budgets to be left.
func (p *hosts) noBudgets() {
	p.t.Helper()
	eventually(p.t, func() error {
		if left := p.registered(); left != "" {
			return fmt.Errorf("left are %s", left)
		}
		return nil
	})
}

// tokens are those of the budget, as a shaper that uses it shows them.
func (p *hosts) tokens(dev string) int64 {
	p.t.Helper()
	s := p.stats(dev)
	return s.class(p.t, "all").Meters[0].Buckets[0].Tokens
}

// leftAt wants status to show that the budget was left behind by a device.
func (p *hosts) leftAt(dev string) {
	p.t.Helper()
	eventually(p.t, func() error { // the kernel frees a program in its own time
		if s := p.status(); len(s) != 1 || s[0].State != "left behind" || s[0].What != "budget uplinks" || s[0].Interface != dev {
			return fmt.Errorf("status is %+v", s)
		}
		return nil
	})
}

// attach starts shaper run on a device.
func (p *hosts) attach(dev, policy string, args ...string) *process {
	p.t.Helper()
	r := p.start(append([]string{"run", dev, "--policy", policy}, args...)...)
	r.attached()
	return r
}

// route is how frames are sent that then pass a shaper.
type route func(frames ...[]byte) error

// budgetFrames are frames to an address that nobody has, so that nobody answers.
var budgetFrames = func() (out [][]byte) {
	ip := make([]byte, budgetFrame)
	copy(ip, []byte{0x45, 0, budgetFrame >> 8, budgetFrame & 0xff, 0, 1, 0, 0, 64, 253, 0, 0, 10, 0, 0, 77, 10, 0, 0, 99})
	frame := append([]byte{2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0}, ip...)
	for range 64 {
		out = append(out, frame)
	}
	return out
}()

// flood sends by a route until told to stop.
func (send route) flood(stop <-chan struct{}) error {
	for {
		select {
		case <-stop:
			return nil
		default:
		}
		if err := send(budgetFrames...); err != nil {
			return err
		}
	}
}

// monotonic is the programs' clock, ns.
func monotonic(t *testing.T) int64 {
	t.Helper()
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		t.Fatal(err)
	}
	return ts.Nano()
}

// spent checks the bytes that passed from the first packet, sent between the first two
// times, to the last, sent before the third after which the bucket was emptied, or
// before the fourth.
func spent(t *testing.T, passed int64, at [4]int64) error {
	t.Helper()
	brought := func(ns int64) float64 { return budgetBurst/2 + budgetRate*float64(ns)/1e9 }
	most, least := brought(at[3]-at[0]), brought(at[2]-at[1])-budgetFrame
	t.Logf("%d bytes passed: at most %.0f, at least %.0f", passed, most, least)
	if float64(passed) > most {
		t.Errorf("%d bytes passed, more than %.0f", passed, most)
	}
	if float64(passed) < least {
		return fmt.Errorf("%d bytes passed, less than %.0f", passed, least)
	}
	return nil
}

// passed sums up what passed at all shapers.
func (p *hosts) passed(names ...string) (bytes int64) {
	p.t.Helper()
	for _, name := range names {
		dev, direction, _ := strings.Cut(name, " ")
		s := p.stats(dev, "--direction", direction)
		bytes += (&s).class(p.t, "all").Green.Bytes
	}
	return bytes
}

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

// fill sends by all routes at once for a time, from the first packet of the budget on
// until it is empty. meanwhile happens while all but the first send, and settle when
// none does. The first route's packets are metered when it returns, as those of tc are.
func (p *hosts) fill(routes []route, d time.Duration, meanwhile, settle func()) (at [4]int64) {
	p.t.Helper()
	first := routes[0]
	send := func(n int) {
		for range n {
			if err := first(budgetFrames[0]); err != nil {
				p.t.Fatal(err)
			}
		}
	}
	run := func(routes []route, d time.Duration, meanwhile func()) (ended int64) {
		stop := make(chan struct{})
		errs := make([]error, len(routes))
		var all sync.WaitGroup
		for i, r := range routes {
			all.Go(func() { errs[i] = r.flood(stop) })
		}
		if meanwhile != nil {
			meanwhile()
		}
		time.Sleep(d)
		ended = monotonic(p.t)
		close(stop)
		all.Wait()
		if err := errors.Join(errs...); err != nil {
			p.t.Fatal(err)
		}
		return ended
	}
	at[0] = monotonic(p.t)
	send(1)
	at[1] = monotonic(p.t)
	run(routes, d/2, nil)
	if meanwhile != nil {
		run(routes[1:], 0, meanwhile)
	}
	ended := run(routes, d/2, nil)
	settle()
	at[2] = monotonic(p.t)
	send(int((at[2]-ended)*budgetRate/1e9/budgetFrame) + 10) // more than came since the others ended
	at[3] = monotonic(p.t)
	return at
}

// sentBy is how many bytes of IP a device has sent.
func (p *pair) sentBy(dev string) int64 {
	p.t.Helper()
	var n uint64
	p.near.Do(func() {
		l, err := netlink.LinkByName(dev)
		if err != nil {
			p.t.Fatal(err)
		}
		n = l.Attrs().Statistics.TxBytes - 14*l.Attrs().Statistics.TxPackets
	})
	return int64(n)
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
	theirs := `budget "uplinks": this policy says %s, but it is %s of v0 egress \(process \d+\): give both the same, or reload one that uses it with the new parameters`
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
	if want := "shaper: v0 egress: budget uplinks stays token-bucket rate=1bit burst=9000, as v1 egress has it, not token-bucket rate=1bit burst=3000\n"; said != want {
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

// taken is how many bytes the budget's packets took since the first one, if its bucket
// never overflowed since: exactly, from its state.
func (p *hosts) taken() int64 {
	p.t.Helper()
	cmd := exec.Command(p.wrap[0], append(p.wrap[1:], "cat", "/run/shaper/budgets")...)
	out, err := cmd.Output()
	if err != nil {
		p.t.Fatal(err)
	}
	r := decode[struct {
		Maps    []ebpf.MapID
		Budgets []struct{ Slot uint32 }
	}](p.t, string(out))
	m, err := ebpf.NewMapFromID(r.Maps[0])
	if err != nil {
		p.t.Fatal(err)
	}
	defer m.Close()
	var b bpf.ShaperBudget
	if err := m.Lookup(r.Budgets[0].Slot, &b); err != nil {
		p.t.Fatal(err)
	}
	c := &b.Profile.Buckets[0]
	return (int64(b.Word[0]-b.Stamp*c.Num) + c.Size/2) / int64(c.Den)
}
