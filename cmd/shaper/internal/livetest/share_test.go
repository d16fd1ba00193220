package livetest

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane/nettest"
	"github.com/a-seed-32e5a53f/shaper/meter/shared/storetest"
)

// shareAmounts are two buckets in status --json.
type shareAmounts struct{ Rate, Burst [2]int64 }

// shownShare is a budget on a server in status --json.
type shownShare struct {
	Name, Store, Host, Smallest, Error string

	Renewed, Heard, Rescued    bool
	Share, Rescue, Size, Bound shareAmounts
	Without                    shareAmounts `json:"bound_without_server"`
	Hosts, Late                int64
}

// shares are the budgets on servers of the only shaper in p's namespace.
func (p *pair) shares() (out map[string]shownShare) {
	p.t.Helper()
	text, _ := p.do(0, "status", "--json")
	out = map[string]shownShare{}
	for _, s := range decode[struct{ Shares []shownShare }](p.t, text).Shares {
		out[s.Name] = s
	}
	return out
}

// sharePolicy is a policy with a class for each of some budgets: a name, a rate and an interval.
func sharePolicy(socket string, budgets ...string) string {
	var b strings.Builder
	b.WriteString("classes:\n")
	for i, budget := range budgets {
		of := strings.Fields(budget)
		fmt.Fprintf(&b, "  - {name: %s, match: {proto: %d}, meter: {type: token-bucket, rate: %s, burst: 64KiB, "+
			"share: {budget: %s, store: \"unix://%s\", interval: %s, rescue: 40%%, hosts: 2}}}\n", of[0], 253+i, of[1], of[0], socket, of[2])
	}
	return b.String()
}

// sharers are shapers of one budget, each in a network of its own, at full load.
type sharers struct {
	t       *testing.T
	pairs   []*pair
	begin   time.Time // of the rate
	rate    float64   // of the budget, bytes per second
	allowed float64   // bytes until begin
}

// passed is what each let through, and when that was read. All together is never more
// than the budget.
func (s *sharers) passed() (bytes [2]float64, at [2]time.Time) {
	s.t.Helper()
	for i, p := range s.pairs {
		stats := p.stats()
		bytes[i], at[i] = float64(stats.class(s.t, "customer").Green.Bytes), time.Now()
	}
	if most := s.allowed + s.rate*at[1].Sub(s.begin).Seconds(); bytes[0]+bytes[1] > most {
		s.t.Fatalf("%.0f bytes passed in all: more than %.0f", bytes[0]+bytes[1], most)
	}
	return bytes, at
}

// raise has the budget have a larger rate (bytes per second) from now on.
func (s *sharers) raise(rate float64) {
	now := time.Now()
	s.allowed, s.begin, s.rate = s.allowed+s.rate*now.Sub(s.begin).Seconds(), now, rate
}

// pass waits for a while in which shapers let through a part of the budget, together
// and the first one.
func (s *sharers) pass(what string, together, first [2]float64) {
	s.t.Helper()
	eventually(s.t, func() error {
		before, from := s.passed()
		time.Sleep(500 * time.Millisecond)
		after, to := s.passed()
		part := [2]float64{}
		for i := range part {
			part[i] = (after[i] - before[i]) / to[i].Sub(from[i]).Seconds() / s.rate
		}
		if sum := part[0] + part[1]; sum < together[0] || sum > together[1] || part[0] < first[0] || part[0] > first[1] {
			return fmt.Errorf("%s: %.3f of the budget pass: want %v in all, and %v by the first", what, part, together, first)
		}
		return nil
	})
}

// load sends several times the budget through each shaper until the returned function
// is called.
func (s *sharers) load() (stop func()) {
	var ends atomic.Bool
	done := make(chan error)
	for _, p := range s.pairs {
		send := p.near.Injector("v0")
		go func() {
			for !ends.Load() {
				if err := send(budgetFrames[:16]...); err != nil {
					done <- err
					return
				}
				time.Sleep(5 * time.Millisecond)
			}
			done <- nil
		}()
	}
	return func() {
		ends.Store(true)
		for range s.pairs {
			if err := <-done; err != nil {
				s.t.Error(err)
			}
		}
	}
}

// ofProtocol is one of budgetFrames with another IP protocol.
func ofProtocol(protocol byte) []byte {
	frame := slices.Clone(budgetFrames[0])
	frame[14+9] = protocol
	return frame
}

// TestLiveShare has two hosts share a budget on a real server: while all is well, after
// reloads by another process, while the server stands still, and after their processes
// were killed. Together they never let through more than the budget, and status says what
// each may use.
func TestLiveShare(t *testing.T) {
	hereOnly(t)
	p := newPair(t)
	p.withBpffs()
	other := &pair{t: t, near: nettest.New(t), far: nettest.New(t)}
	other.near.Veth(other.far)
	other.wrap = []string{"unshare", "-u", "sh", "-c", `hostname other-host && exec "$@"`, "sh"} // the names of hosts must differ
	socket := filepath.Join(t.TempDir(), "store")
	server := storetest.Start(t, storetest.Kinds(t)[0], storetest.Config("unixsocket "+socket, "unixsocketperm 777"))
	policy := file(t, sharePolicy(socket, "customer 4mbit 200ms"))
	started := policy

	before := other.attached()
	first, second := p.start("run", "v0", "--policy", policy, "--pin"), other.start("run", "v0", "--policy", policy)
	first.attached()
	second.attached()
	s := &sharers{t: t, pairs: []*pair{p, other}, begin: time.Now(), rate: 500e3, allowed: 64 << 10}
	stop := s.load()
	defer func() { stop() }()
	s.pass("both at full load", [2]float64{0.85, 1.15}, [2]float64{0.35, 0.65})
	status := func(p *pair, what string, holds func(s shownShare) bool) {
		t.Helper()
		eventually(t, func() error {
			if s := p.shares()["customer"]; !holds(s) {
				return fmt.Errorf("%s: status is %+v", what, s)
			}
			return nil
		})
	}
	well := func(rate int64) {
		t.Helper()
		for _, p := range s.pairs {
			status(p, "all is well", func(s shownShare) bool {
				return s.Renewed && s.Heard && !s.Rescued && s.Store == "unix://"+socket && s.Size.Rate[0] == rate && s.Bound == s.Size &&
					s.Share.Rate[0] > rate/3 && s.Share.Rate[0] < rate*2/3 && s.Rescue.Rate[0] == rate/5 && s.Hosts == 2 && s.Late == 0 && s.Error == ""
			})
		}
	}
	well(4e6)

	// Reloads by another process. The first is of one host only.
	s.raise(1e6)
	policy = file(t, sharePolicy(socket, "customer 8mbit 200ms"))
	p.do(0, "reload", "v0", "--policy", policy)
	status(p, "a host has another size", func(s shownShare) bool {
		return s.Size.Rate[0] == 4e6 && strings.HasPrefix(s.Smallest, "other-host:")
	})
	other.do(0, "reload", "v0", "--policy", policy)
	well(8e6)
	s.pass("with a larger rate", [2]float64{0.85, 1.15}, [2]float64{0.35, 0.65})

	// A budget that a reload brings has its share before its class takes over, unless the
	// machine is so busy that this takes longer than a second.
	tries := 0
	bring := func(reload func(policy string)) (name string) {
		tries++
		name = fmt.Sprint("another", tries)
		reload(sharePolicy(socket, "customer 8mbit 200ms", name+" 40mbit 100ms"))
		return name
	}
	nettest.Steady(t, func() error {
		name := bring(func(text string) { p.do(0, "reload", "v0", "--policy", file(t, text)) })
		p.near.Inject("v0", ofProtocol(254))
		stats := p.stats()
		if c := stats.class(t, name); c.Green.Packets != 1 {
			return fmt.Errorf("a budget that a reload brought: its first packet is dropped: %+v", c)
		}
		return nil
	})
	nettest.Steady(t, func() error {
		name := bring(func(text string) {
			done := strings.Count(first.out.String(), "reloaded, ")
			rewrite(t, started, text)
			first.signal(syscall.SIGHUP)
			first.out.await(t, fmt.Sprintf("(reloaded, [^$]*){%d}", done+1))
		})
		if s := p.shares()[name]; !s.Renewed || !s.Heard || s.Hosts != 1 || s.Share.Rate[0] < 2e6 {
			return fmt.Errorf("a budget that SIGHUP brought: status is %+v", s)
		}
		return nil
	})

	// The server stands still, which each says once.
	lost := regexp.MustCompile(`budget customer: unix://.*: limited to the rescue share of 1.6 Mbit/s`)
	found := regexp.MustCompile(`budget customer: the store answers again`)
	said := func(r *process) (n [2]int) {
		return [2]int{len(lost.FindAllString(r.err.String(), -1)), len(found.FindAllString(r.err.String(), -1))}
	}
	told := [2][2]int{said(first), said(second)}
	says := func(lost, found int) {
		t.Helper()
		for i, r := range []*process{first, second} {
			eventually(t, func() error {
				if got, want := said(r), [2]int{told[i][0] + lost, told[i][1] + found}; got != want {
					return fmt.Errorf("shaper %d lost the server %d times and found it %d times: want %d and %d: %q", i, got[0], got[1], want[0], want[1], &r.err)
				}
				return nil
			})
		}
	}
	server.Pause()
	says(1, 0)
	for i := range s.pairs {
		status(s.pairs[i], "without the server", func(s shownShare) bool {
			return s.Renewed && s.Rescued && s.Share == s.Rescue && s.Share.Rate[0] == 16e5 && s.Bound.Rate[0] == 8e6 && s.Without.Rate[0] == 32e5 && s.Error != ""
		})
	}
	s.pass("without the server", [2]float64{0.34, 0.46}, [2]float64{0.16, 0.24})
	says(1, 0)
	server.Resume()
	says(1, 1)
	well(8e6)

	// Processes that are killed.
	first.kill()
	status(p, "without its process", func(s shownShare) bool {
		return !s.Renewed && s.Rescued && s.Share == s.Rescue && s.Share.Rate[0] == 16e5 && s.Error == "no process renews its share"
	})
	s.pass("one is killed", [2]float64{0.85, 1.15}, [2]float64{0.16, 0.24})
	status(other, "the other one is killed", func(s shownShare) bool { return s.Late == 1 && s.Bound.Rate[0] == 8e6 })
	stop()
	stop = func() {}
	second.kill()
	other.soonUnchanged(before)
	p.do(0, "detach", "v0")
}

// TestLiveShareAlone starts a shaper whose server does not run yet: it is limited to its
// rescue share, and says so, until it finds the server. As a service it has a user of its
// own, and root asks it.
func TestLiveShareAlone(t *testing.T) {
	hereOnly(t)
	kind := storetest.Kinds(t)[0]
	p := newPair(t)
	p.withMounts("mount -t tmpfs -o mode=755 tmpfs /run; mkdir /run/shaper; chown 65534 /run/shaper")
	dir, err := os.MkdirTemp("", "shaper-live") // of anybody, unlike t.TempDir
	if err == nil {
		t.Cleanup(func() { os.RemoveAll(dir) })
		err = os.Chmod(dir, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	socket, policy := filepath.Join(dir, "store"), filepath.Join(dir, "policy.yaml")
	rewrite(t, policy, sharePolicy(socket, "customer 8mbit 200ms"))
	root := p.wrap
	const caps = "+net_admin,+bpf,+perfmon"
	p.wrap = append(slices.Clone(root), "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps="+caps, "--ambient-caps="+caps)
	r := p.run("--policy", policy)
	p.wrap = root
	if !strings.Contains(r.err.String(), "limited to the rescue share of 1.6 Mbit/s") {
		t.Errorf("stderr %q", &r.err)
	}
	limits, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", r.cmd.Process.Pid))
	if !regexp.MustCompile(`Max core file size +0 +0 `).Match(limits) {
		t.Errorf("a core dump could have the password of a server: %s, %v", limits, err)
	}
	text, _ := p.do(0, "status")
	text = strings.Join(strings.Fields(text), " ")
	if want := "the rescue share of 1.6 Mbit/s; all together at most 9.6 Mbit/s, 4.8 Mbit/s if no host reaches the server; last call: "; !strings.Contains(text, want) {
		t.Errorf("status is %q: want %q", text, want)
	}
	sent := p.sentBy("v0")
	p.near.Inject("v0", budgetFrames[0])
	if p.sentBy("v0") < sent+budgetFrame {
		t.Error("it does not use its rescue share")
	}
	storetest.Start(t, kind, storetest.Config("unixsocket "+socket, "unixsocketperm 777"))
	r.err.await(t, `budget customer: \S+ \S+ of 8 Mbit/s, with 1 host`)
	eventually(t, func() error {
		if s := p.shares()["customer"]; !s.Heard || s.Rescued || s.Bound.Rate[0] != 8e6 {
			return fmt.Errorf("with the server, status is %+v", s)
		}
		return nil
	})
	r.term()
}

// TestLiveShareBrought has a reload bring the first budget on a server to a shaper: the first packet of its class has a share.
func TestLiveShareBrought(t *testing.T) {
	hereOnly(t)
	p := newPair(t)
	socket := filepath.Join(t.TempDir(), "store")
	storetest.Start(t, storetest.Kinds(t)[0], storetest.Config("unixsocket "+socket, "unixsocketperm 777"))
	const none = "classes: [{name: all}]"
	tries := 0
	nettest.Steady(t, func() error { // a machine may be so busy that a share takes longer than a second
		tries++
		name := fmt.Sprint("first", tries)
		r := p.run("--policy", file(t, none))
		defer r.term()
		p.do(0, "reload", "v0", "--policy", file(t, sharePolicy(socket, name+" 8mbit 100ms")))
		p.near.Inject("v0", budgetFrames[0])
		stats := p.stats()
		if c := stats.class(t, name); c.Green.Packets != 1 {
			return fmt.Errorf("its first packet is dropped: %+v", c)
		}
		return nil
	})
}
