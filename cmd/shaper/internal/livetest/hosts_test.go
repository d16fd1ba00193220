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
