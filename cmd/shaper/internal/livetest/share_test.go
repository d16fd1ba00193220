package livetest

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane/nettest"
	"github.com/a-seed-32e5a53f/shaper/meter/shared/storetest"
)

// shareAmounts is the rate (bit/s) and burst (bytes) of two buckets in status --json.
type shareAmounts struct{ Rate, Burst [2]int64 }

// shownShare is a budget on a server in status --json.
type shownShare struct {
	Name, Store, Host, Smallest, Error string

	Renewed, Heard, Rescued    bool
	Share, Rescue, Size, Bound shareAmounts
	Without                    shareAmounts `json:"bound_without_server"`
	Hosts, Late                int64
}

// budgetShares returns the budgets on servers of the only shaper in near.
func (p *pair) budgetShares() (out map[string]shownShare) {
	p.t.Helper()
	text, _ := p.wantExit(0, "status", "--json")
	out = map[string]shownShare{}
	for _, s := range decodeJSON[struct{ Shares []shownShare }](p.t, text).Shares {
		out[s.Name] = s
	}
	return out
}

// sharePolicy returns a policy with a class for each budget. A budget is given by its name,
// rate and interval.
func sharePolicy(socket string, budgets ...string) string {
	var b strings.Builder
	b.WriteString("classes:\n")
	for i, budget := range budgets {
		of := strings.Fields(budget)
		fmt.Fprintf(&b,
			"  - {name: %s, match: {proto: %d}, meter: {type: token-bucket, rate: %s, burst: 64KiB, "+
				"share: {budget: %s, store: \"unix://%s\", interval: %s, rescue: 40%%, hosts: 2}}}\n", of[0], 253+i, of[1], of[0], socket, of[2])
	}
	return b.String()
}

// sharers are shapers of one budget at full load, each in its own pair.
type sharers struct {
	t       *testing.T
	pairs   []*pair
	begin   time.Time // start of rate
	rate    float64   // rate of the budget, bytes per second
	allowed float64   // bytes allowed until begin
}

// bytesPassed returns the bytes that each shaper passed, and the times at which they were read.
// The sum must never exceed the budget.
func (s *sharers) bytesPassed() (bytes [2]float64, at [2]time.Time) {
	s.t.Helper()
	for i, p := range s.pairs {
		stats := p.stats()
		bytes[i], at[i] = float64(stats.classNamed(s.t, "customer").Green.Bytes), time.Now()
	}
	if most := s.allowed + s.rate*at[1].Sub(s.begin).Seconds(); bytes[0]+bytes[1] > most {
		s.t.Fatalf("%.0f bytes passed in all: more than %.0f", bytes[0]+bytes[1], most)
	}
	return bytes, at
}

// raiseRate tells s that the budget has a larger rate (bytes per second) from now on.
func (s *sharers) raiseRate(rate float64) {
	now := time.Now()
	s.allowed, s.begin, s.rate = s.allowed+s.rate*now.Sub(s.begin).Seconds(), now, rate
}

// awaitParts waits until the shapers pass a fraction of the budget between the given bounds,
// all together and the first one.
func (s *sharers) awaitParts(what string, together, first [2]float64) {
	s.t.Helper()
	eventually(s.t, func() error {
		before, from := s.bytesPassed()
		time.Sleep(500 * time.Millisecond)
		after, to := s.bytesPassed()
		part := [2]float64{}
		for i := range part {
			part[i] = (after[i] - before[i]) / to[i].Sub(from[i]).Seconds() / s.rate
		}
		if sum := part[0] + part[1]; sum < together[0] || sum > together[1] || part[0] < first[0] ||
			part[0] > first[1] {
			return fmt.Errorf("%s: fractions of the budget: %.3f: want a sum in %v, and the first in %v",
				what, part, together, first)
		}
		return nil
	})
}

// startLoad sends several times the budget through each shaper until stop is called.
func (s *sharers) startLoad() (stop func()) {
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

// frameOfProtocol returns one of budgetFrames with another IP protocol.
func frameOfProtocol(protocol byte) []byte {
	frame := slices.Clone(budgetFrames[0])
	frame[14+9] = protocol
	return frame
}

// TestQuietShare checks that two hosts share a budget on a real server: normally, after reloads
// by another process, while the server does not answer, and after their processes were killed.
// Together they must never pass more than the budget, and status must show the share of each.
func TestQuietShare(t *testing.T) {
	nettest.Quiet(t)
	skipInVM(t)
	p := newPair(t)
	other := &pair{t: t, near: nettest.New(t), far: nettest.New(t)}
	other.near.Veth(other.far)
	// host names must differ
	other.wrap = []string{"unshare", "-u", "sh", "-c", `hostname other-host && exec "$@"`, "sh"}
	socket := filepath.Join(t.TempDir(), "store")
	server := storetest.Start(t, storetest.Kinds(t)[0],
		storetest.Config("unixsocket "+socket, "unixsocketperm 777"))
	policy := writePolicy(t, sharePolicy(socket, "customer 4mbit 200ms"))
	started := policy

	before := other.deviceState()
	first, second := p.startShaper("run", "v0", "--policy", policy, "--pin"),
		other.startShaper("run", "v0", "--policy", policy)
	first.awaitAttached()
	second.awaitAttached()
	s := &sharers{t: t, pairs: []*pair{p, other}, begin: time.Now(), rate: 500e3, allowed: 64 << 10}
	stop := s.startLoad()
	defer func() { stop() }()
	s.awaitParts("both at full load", [2]float64{0.85, 1.15}, [2]float64{0.35, 0.65})
	status := func(p *pair, what string, holds func(s shownShare) bool) {
		t.Helper()
		eventually(t, func() error {
			if s := p.budgetShares()["customer"]; !holds(s) {
				return fmt.Errorf("%s: status is %+v", what, s)
			}
			return nil
		})
	}
	well := func(rate int64) {
		t.Helper()
		for _, p := range s.pairs {
			status(p, "all is well", func(s shownShare) bool {
				return s.Renewed && s.Heard && !s.Rescued && s.Store == "unix://"+socket &&
					s.Size.Rate[0] == rate && s.Bound.Rate == s.Size.Rate &&
					s.Bound.Burst[0] == s.Size.Burst[0]+2*1500 &&
					s.Share.Rate[0] > rate/3 && s.Share.Rate[0] < rate*2/3 && s.Rescue.Rate[0] == rate/5 &&
					s.Hosts == 2 && s.Late == 0 && s.Error == ""
			})
		}
	}
	well(4e6)

	// Another process reloads, first one host only.
	s.raiseRate(1e6)
	policy = writePolicy(t, sharePolicy(socket, "customer 8mbit 200ms"))
	p.wantExit(0, "reload", "v0", "--policy", policy)
	status(p, "a host has another size", func(s shownShare) bool {
		return s.Size.Rate[0] == 4e6 && strings.HasPrefix(s.Smallest, "other-host:")
	})
	other.wantExit(0, "reload", "v0", "--policy", policy)
	well(8e6)
	s.awaitParts("with a larger rate", [2]float64{0.85, 1.15}, [2]float64{0.35, 0.65})

	// A budget added by a reload has its share before its class is active, unless the
	// machine is so busy that this takes more than a second.
	tries := 0
	bring := func(reload func(policy string)) (name string) {
		tries++
		name = fmt.Sprint("another", tries)
		reload(sharePolicy(socket, "customer 8mbit 200ms", name+" 40mbit 100ms"))
		return name
	}
	nettest.Steady(t, func() error {
		name := bring(func(text string) { p.wantExit(0, "reload", "v0", "--policy", writePolicy(t, text)) })
		p.near.Inject("v0", frameOfProtocol(254))
		stats := p.stats()
		if c := stats.classNamed(t, name); c.Green.Packets != 1 {
			return fmt.Errorf("budget added by a reload: the first packet was dropped: %+v", c)
		}
		return nil
	})
	nettest.Steady(t, func() error {
		name := bring(func(text string) {
			rewriteFile(t, started, text)
			first.reloadBySIGHUP()
		})
		if s := p.budgetShares()[name]; !s.Renewed || !s.Heard || s.Hosts != 1 || s.Share.Rate[0] < 2e6 {
			return fmt.Errorf("budget added by SIGHUP: status is %+v", s)
		}
		return nil
	})

	// The server does not answer. Each process must report that once.
	lost := regexp.MustCompile(`budget customer: unix://.*: limited to the rescue share of 1.6 Mbit/s`)
	found := regexp.MustCompile(`budget customer: the store answers again`)
	said := func(r *process) (n [2]int) {
		return [2]int{
			len(lost.FindAllString(r.err.String(), -1)), len(found.FindAllString(r.err.String(), -1)),
		}
	}
	told := [2][2]int{said(first), said(second)}
	wantReported := func(lost, found int) {
		t.Helper()
		for i, r := range []*process{first, second} {
			eventually(t, func() error {
				if got, want := said(r), [2]int{told[i][0] + lost, told[i][1] + found}; got != want {
					return fmt.Errorf(
						"shaper %d lost the server %d times and found it %d times: want %d and %d: %q", i,
						got[0], got[1], want[0], want[1], &r.err)
				}
				return nil
			})
		}
	}
	server.Pause()
	wantReported(1, 0)
	for i := range s.pairs {
		status(s.pairs[i], "without the server", func(s shownShare) bool {
			return s.Renewed && s.Rescued && s.Share == s.Rescue && s.Share.Rate[0] == 16e5 &&
				s.Bound.Rate[0] == 8e6 && s.Without.Rate[0] == 32e5 && s.Error != ""
		})
	}
	s.awaitParts("without the server", [2]float64{0.34, 0.46}, [2]float64{0.16, 0.24})
	wantReported(1, 0)
	server.Resume()
	wantReported(1, 1)
	well(8e6)

	// The processes are killed.
	first.killAndWait()
	status(p, "without its process", func(s shownShare) bool {
		return !s.Renewed && s.Rescued && s.Share == s.Rescue && s.Share.Rate[0] == 16e5 &&
			s.Error == "no process renews its share"
	})
	s.awaitParts("one is killed", [2]float64{0.85, 1.15}, [2]float64{0.16, 0.24})
	status(other, "the other one is killed",
		func(s shownShare) bool { return s.Late == 1 && s.Bound.Rate[0] == 8e6 })
	stop()
	stop = func() {}
	second.killAndWait()
	other.awaitState(before)
	p.wantExit(0, "detach", "v0")
}

// TestLiveShareWithoutServer starts a shaper before its server. The shaper must be limited to
// its rescue share, and report that, until it reaches the server. It runs as a service with its
// own user, and root uses it.
func TestLiveShareWithoutServer(t *testing.T) {
	skipInVM(t)
	kind := storetest.Kinds(t)[0]
	p := newPair(t)
	p.withMounts("mount -t tmpfs -o mode=755 tmpfs /run; mkdir /run/shaper; chown 65534 /run/shaper")
	dir, err := os.MkdirTemp("", "shaper-live") // accessible to all users, unlike t.TempDir
	if err == nil {
		t.Cleanup(func() { os.RemoveAll(dir) })
		err = os.Chmod(dir, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	socket, policy := filepath.Join(dir, "store"), filepath.Join(dir, "policy.yaml")
	rewriteFile(t, policy, sharePolicy(socket, "customer 8mbit 200ms"))
	root := p.wrap
	const caps = "+net_admin,+bpf,+perfmon"
	p.wrap = append(slices.Clone(root), "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups",
		"--inh-caps="+caps, "--ambient-caps="+caps)
	r := p.runShaper("--policy", policy)
	p.wrap = root
	r.err.awaitMatch(t, `limited to the rescue share of 1\.6 Mbit/s`)
	limits, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", r.cmd.Process.Pid))
	if !regexp.MustCompile(`Max core file size +0 +0 `).Match(limits) {
		t.Errorf("a core dump could contain the password of a server: limits %s, %v", limits, err)
	}
	text, _ := p.wantExit(0, "status")
	text = strings.Join(strings.Fields(text), " ")
	// A budget of 64 KiB and a host that the server does not know, with a fifth of it; a rescue of two
	// fifths and that host; and a packet of 1,500 bytes for each of two hosts.
	if want := "the rescue share of 1.6 Mbit/s; all together at most 9.6 Mbit/s with a burst of 81,643 bytes, 4.8 Mbit/s with a burst of 42,321 bytes if no host reaches the server; last call: "; !strings.Contains(
		text, want) {
		t.Errorf("status is %q: want %q", text, want)
	}
	sent := p.bytesSentBy("v0")
	p.near.Inject("v0", budgetFrames[0])
	if p.bytesSentBy("v0") < sent+budgetFrame {
		t.Error("the shaper does not use its rescue share")
	}
	storetest.Start(t, kind, storetest.Config("unixsocket "+socket, "unixsocketperm 777"))
	r.err.awaitMatch(t, `budget customer: \S+ \S+ of 8 Mbit/s, with 1 host`)
	eventually(t, func() error {
		if s := p.budgetShares()["customer"]; !s.Heard || s.Rescued || s.Bound.Rate[0] != 8e6 {
			return fmt.Errorf("with the server, status is %+v", s)
		}
		return nil
	})
	r.stopBySIGTERM()
}

// TestQuietShareAddedByReload adds the first budget on a server by a reload. The first packet of
// its class must have a share.
func TestQuietShareAddedByReload(t *testing.T) {
	nettest.Quiet(t)
	skipInVM(t)
	p := newPair(t)
	socket := filepath.Join(t.TempDir(), "store")
	storetest.Start(t, storetest.Kinds(t)[0], storetest.Config("unixsocket "+socket, "unixsocketperm 777"))
	const none = "classes: [{name: all}]"
	tries := 0
	nettest.Steady(t, func() error { // a share can take more than a second on a busy machine
		tries++
		name := fmt.Sprint("first", tries)
		r := p.runShaper("--policy", writePolicy(t, none))
		defer r.stopBySIGTERM()
		p.wantExit(0, "reload", "v0", "--policy", writePolicy(t, sharePolicy(socket, name+" 8mbit 100ms")))
		p.near.Inject("v0", budgetFrames[0])
		stats := p.stats()
		if c := stats.classNamed(t, name); c.Green.Packets != 1 {
			return fmt.Errorf("the first packet was dropped: %+v", c)
		}
		return nil
	})
}
