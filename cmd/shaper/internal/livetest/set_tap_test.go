package livetest

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/dataplane/nettest"
)

// TestLiveTapSet checks changes of customers of shaper tap: that they keep tokens, stay in force
// when the policy is reloaded, and are refused as a whole.
func TestLiveTapSet(t *testing.T) {
	p := newTAPPair(t)
	policy, table := writeMetered(t,
		"a,192.0.2.1,metered,500\nb,192.0.2.2,metered,500\nc,192.0.2.3,metered,\n")
	r := p.startTap("--uplink", "v0", "--policy", policy, "--direction", "egress")
	send := func(name, address string, send, want int64) {
		t.Helper()
		before := p.customers()[name]
		for range send {
			p.near.Inject("t0", packetBetween("203.0.113.1", address))
		}
		eventually(t, func() error {
			now := p.customers()[name]
			packets, dropped := now.Packets-before.Packets, now.Dropped.Packets-before.Dropped.Packets
			if packets != send || packets-dropped != want {
				return fmt.Errorf("customer %s: %d of %d packets passed: want %d of %d", name,
					packets-dropped, packets, want, send)
			}
			return nil
		})
	}
	send("a", "192.0.2.1", 3, 3)
	for i := range 20 {
		p.wantExit(0, "set", "t0", "customer", "a", fmt.Sprintf("burst=%dB", []int{900, 500}[i%2]))
	}
	send("a", "192.0.2.1", 3, 2) // it has 200 bytes
	p.wantExit(0, "set", "t0", "customer", "a", "off")
	p.wantExit(0, "set", "t0", "customer", "b", "burst=300B")
	p.wantExit(0, "set", "t0", "customer", "c", "off")
	p.wantError(1, `t0: no customer "x" in the policy`, "set", "t0", "customer", "x", "off")
	p.wantError(1, `t0: customer "b": no plan named "x" in the policy`, "set", "t0", "customer", "b",
		"plan=x")
	changes := []string{`customer "a": burst 500B, off`, `customer "b": burst 300B`, `customer "c": off`}
	p.wantChanges("t0", changes...)
	send("b", "192.0.2.2", 4, 3)
	send("c", "192.0.2.3", 1, 0)
	p.wantExit(0, "reload", "t0")
	p.wantChanges("t0", changes...)
	send("c", "192.0.2.3", 1, 0)
	r.reloadBySIGHUP()
	p.wantChanges("t0", changes...)
	send("c", "192.0.2.3", 1, 0)

	none := filepath.Join(t.TempDir(), "none")
	rewriteFile(t, none, "# none\n")
	if out, _ := p.wantExit(0, "set", "t0", "--file", none); out != "t0: 0 changes made\n" {
		t.Errorf("without changes it prints %q", out)
	}

	p.wantExit(0, "set", "t0", "customer", "c", "on", "--for", "3s")
	eventually(t, func() error {
		before := p.customers()["c"]
		p.near.Inject("t0", packetBetween("203.0.113.1", "192.0.2.3"))
		if now := p.customers()["c"]; now.Green.Packets != before.Green.Packets+1 ||
			now.Dropped.Packets != before.Dropped.Packets+1 {
			return fmt.Errorf("counted %+v, before %+v: want a green packet that is dropped", now, before)
		}
		return nil
	})
	p.wantChanges("t0", changes...)

	rewriteFile(t, table, meteredHeader+"b,192.0.2.2,metered,500\n")
	w := p.startShaper("reload", "t0")
	w.wantExit(0)
	stale := `a change by shaper set is not in force: no customer "a" in the policy`
	if n := strings.Count(w.err.unfiltered()+r.err.unfiltered(), stale); n != 1 {
		t.Errorf("%d warnings %q: %q, %q", n, stale, w.err.unfiltered(), r.err.unfiltered())
	}
	p.wantExit(0, "set", "t0", "customer", "a", "reset")
	p.wantExit(0, "set", "t0", "customer", "b", "reset")
	p.wantExit(0, "set", "t0", "customer", "c", "reset")
	p.wantChanges("t0")
	r.stopBySIGTERM()
	r = p.startTap("--uplink", "v0", "--policy", policy)
	p.wantChanges("t0")
	r.stopBySIGTERM()
}

// TestLiveSetRateCommand holds packets in a queue that takes a second for each, and sends them by
// a change of the rate of the queue or of its link. The rate stays when the policy is reloaded.
func TestLiveSetRateCommand(t *testing.T) {
	for _, shaper := range []string{"run", "tap"} {
		for _, kind := range []string{"queue", "link", "fair queue"} {
			t.Run(shaper+"-"+kind, func(t *testing.T) {
				text := "classes: [{name: all, green: {queue: q}}]\nqueues: {q: {rate: 800bit, limit: 100kB, fair: false}}\n"
				part := kind
				if kind == "fair queue" {
					part, text = "queue", strings.Replace(text, "fair: false", "codel: false", 1)
				}
				if kind == "link" {
					text = "classes: [{name: all, green: {queue: q}}]\nqueues: {q: {link: q, limit: 100kB}}\nlinks: {q: {rate: 800bit}}\n"
				}
				policy := writePolicy(t, text)
				var p *pair
				var r *process
				device := "t0"
				if shaper == "tap" {
					p = newTAPPair(t)
					r = p.startTap("--uplink", "v0", "--policy", policy)
				} else {
					skipInVM(t)
					p, device = newQueuePair(t), "v0"
					r = p.runShaper("--policy", policy, "--pacer", "htb")
				}
				name := map[string]string{"tap": "t0", "run": "v0"}[shaper]
				change := func() { p.wantExit(0, "set", name, part, "q", "rate=1gbit") }
				s := p.far.Sniff("v0")
				if shaper+kind == "tapqueue" { // packets in it keep their departures
					change()
				}
				sendQueued(p, device)
				change()
				wantQueued(t, s)
				p.wantExit(0, "reload", name)
				s = p.far.Sniff("v0")
				sendQueued(p, device)
				wantQueued(t, s)
				p.wantChanges(name, part+` "q": rate 1gbit`)
				p.wantError(1, name+`: `+part+` "q": rate: .*`, "set", name, part, "q", "rate=1")
				p.wantExit(0, "set", name, part, "q", "reset")
				p.wantChanges(name)
				p.wantExit(0, "detach", name)
				r.wantExit(0)
			})
		}
	}
}

// queuedFrames take longer than waitLimit at the rate of the policy.
const queuedFrames = 400

// sendQueued sends frames to a device.
func sendQueued(p *pair, device string) {
	for range queuedFrames {
		p.near.Inject(device, packetBetween("203.0.113.1", "192.0.2.1"))
	}
}

// wantQueued checks that the frames of sendQueued arrive.
func wantQueued(t *testing.T, s *nettest.Sniffer) {
	t.Helper()
	if !s.Wait(queuedFrames, waitLimit) {
		t.Error("too few packets arrived")
	}
	s.Stop()
}
