package livetest

import (
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/a-seed-32e5a53f/shaper/bpf"
	"github.com/a-seed-32e5a53f/shaper/dataplane/nettest"
)

// budgetPolicy writes a policy in which every IP packet uses one budget.
func budgetPolicy(t *testing.T, meter string) string {
	t.Helper()
	return writePolicy(t,
		fmt.Sprintf("classes:\n  - {name: all, meter: {%s, share: {budget: uplinks, store: host}}}\n", meter))
}

// budgetHost is a pair with a second interface, v1, to another namespace. It has its own state
// directory and bpffs, so it shares no budget with other tests.
type budgetHost struct {
	*pair
	other *nettest.Namespace
}

func newBudgetHost(t *testing.T) *budgetHost {
	t.Helper()
	p := &budgetHost{pair: newPair(t), other: nettest.New(t)}
	p.near.VethNamed("v1", p.other, "v0")
	p.withMounts("mount -t tmpfs -o mode=755 tmpfs /run; mount -t bpf -o mode=700 bpf /sys/fs/bpf")
	return p
}

// budgetFiles returns the files and pins of budgets.
func (p *budgetHost) budgetFiles() string {
	p.t.Helper()
	cmd := exec.Command(p.wrap[0], append(p.wrap[1:], "sh", "-c",
		"ls -d /run/shaper/budgets* /sys/fs/bpf/shaper/shared-* 2>/dev/null; true")...)
	out, err := cmd.Output()
	if err != nil {
		p.t.Fatal(err)
	}
	return strings.ReplaceAll(strings.TrimSpace(string(out)), "\n", " ")
}

const allPins = "/run/shaper/budgets /sys/fs/bpf/shaper/shared-budgets /sys/fs/bpf/shaper/shared-locks"

// awaitNoBudgets waits until no file and no pin of a budget is left.
func (p *budgetHost) awaitNoBudgets() {
	p.t.Helper()
	eventually(p.t, func() error {
		if left := p.budgetFiles(); left != "" {
			return fmt.Errorf("left behind: %s", left)
		}
		return nil
	})
}

// budgetTokens returns the tokens of the budget, as shown by a shaper that uses it.
func (p *budgetHost) budgetTokens(dev string) int64 {
	p.t.Helper()
	s := p.stats(dev)
	return s.classNamed(p.t, "all").Meters[0].Buckets[0].Tokens
}

// awaitLeftBehind waits until status shows that a device left the budget behind.
func (p *budgetHost) awaitLeftBehind(dev string) {
	p.t.Helper()
	eventually(p.t, func() error { // the kernel frees programs with a delay
		if s := p.status(); len(s) != 1 || s[0].State != "left behind" || s[0].What != "budget uplinks" ||
			s[0].Interface != dev {
			return fmt.Errorf("status is %+v", s)
		}
		return nil
	})
}

// runOn starts shaper run on a device and waits until it is attached.
func (p *budgetHost) runOn(dev, policy string, args ...string) *process {
	p.t.Helper()
	r := p.startShaper(append([]string{"run", dev, "--policy", policy}, args...)...)
	r.awaitAttached()
	return r
}

// sendRoute sends frames that then pass a shaper.
type sendRoute func(frames ...[]byte) error

// floodUntil sends frames until stop is closed.
func (send sendRoute) floodUntil(stop <-chan struct{}) error {
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

// monotonicNow returns the time of the clock that eBPF programs use, ns.
func monotonicNow(t *testing.T) int64 {
	t.Helper()
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		t.Fatal(err)
	}
	return ts.Nano()
}

// checkSpent checks the number of passed bytes. The first packet was sent between at[0] and
// at[1]. The bucket was empty at some time between at[2] and at[3]. Too few bytes are returned
// as an error, too many fail the test.
func checkSpent(t *testing.T, passed int64, at [4]int64) error {
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

// bytesPassed returns the sum of the bytes that the named shapers passed.
func (p *budgetHost) bytesPassed(names ...string) (bytes int64) {
	p.t.Helper()
	for _, name := range names {
		dev, direction, _ := strings.Cut(name, " ")
		s := p.stats(dev, "--direction", direction)
		bytes += (&s).classNamed(p.t, "all").Green.Bytes
	}
	return bytes
}

// fillBudget sends by all routes for a time d, from the first packet of the budget until the
// budget is empty. meanwhile runs while all routes but the first send; settle runs while none
// sends. Packets of the first route must be metered before the route returns, as they are at tc
// egress.
func (p *budgetHost) fillBudget(routes []sendRoute, d time.Duration, meanwhile, settle func()) (at [4]int64) {
	p.t.Helper()
	first := routes[0]
	send := func(n int) {
		for range n {
			if err := first(budgetFrames[0]); err != nil {
				p.t.Fatal(err)
			}
		}
	}
	run := func(routes []sendRoute, d time.Duration, meanwhile func()) (ended int64) {
		stop := make(chan struct{})
		errs := make([]error, len(routes))
		var all sync.WaitGroup
		for i, r := range routes {
			all.Go(func() { errs[i] = r.floodUntil(stop) })
		}
		if meanwhile != nil {
			meanwhile()
		}
		time.Sleep(d)
		ended = monotonicNow(p.t)
		close(stop)
		all.Wait()
		if err := errors.Join(errs...); err != nil {
			p.t.Fatal(err)
		}
		return ended
	}
	at[0] = monotonicNow(p.t)
	send(1)
	at[1] = monotonicNow(p.t)
	run(routes, d/2, nil)
	if meanwhile != nil {
		run(routes[1:], 0, meanwhile)
	}
	ended := run(routes, d/2, nil)
	settle()
	at[2] = monotonicNow(p.t)
	send(int((at[2]-ended)*budgetRate/1e9/budgetFrame) + 10) // more than was refilled since the others ended
	at[3] = monotonicNow(p.t)
	return at
}

// bytesTaken returns the exact number of bytes taken from the budget, from its state. The
// bucket must not have overflowed since the first packet.
func (p *budgetHost) bytesTaken() int64 {
	p.t.Helper()
	cmd := exec.Command(p.wrap[0], append(p.wrap[1:], "cat", "/run/shaper/budgets")...)
	out, err := cmd.Output()
	if err != nil {
		p.t.Fatal(err)
	}
	r := decodeJSON[struct {
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
