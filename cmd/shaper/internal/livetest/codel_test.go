package livetest

import (
	"flag"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane/nettest"
)

// TestQuietGSODelay checks the effect of the GSO cap: while TCP of this host fills 100 Mbit/s,
// the delay of a packet of higher priority is shorter than behind super-packets of 64 KiB.
func TestQuietGSODelay(t *testing.T) {
	nettest.Quiet(t)
	skipInVM(t)
	p := newTCPPath(t, false, 0)
	policy := writePolicy(t, fmt.Sprintf(priorityPolicy, "100mbit"))
	with := func(args ...string) *crossing {
		r := p.runShaper(append(args, "--policy", policy)...)
		defer r.stopBySIGTERM()
		return p.crossTCP(4, time.Second, 3*time.Second)
	}
	shortest := [2]time.Duration{time.Hour, time.Hour} // other load makes both longer
	nettest.Steady(t, func() error {
		capped, off := with(), with("--gso-limit", "off")
		for i, c := range []*crossing{capped, off} {
			shortest[i] = min(shortest[i], c.percentile(99))
		}
		if capped.lost+off.lost > 0 || shortest[0] > shortest[1]*2/3 {
			return fmt.Errorf("with the cap: %v; with super-packets: %v; shortest %v", capped, off, shortest)
		}
		return nil
	})
}

// TestQuietCoDelTCP checks that TCP of this host gets as much through a queue with CoDel as
// through hand-configured HTB. TCP must take CoDel's drops for losses on the network.
func TestQuietCoDelTCP(t *testing.T) {
	nettest.Quiet(t)
	skipInVM(t)
	t.Parallel()
	const rate = "50mbit"
	for _, hook := range []string{"tcx", "tc"} {
		t.Run(hook, func(t *testing.T) {
			t.Parallel()
			placement{hook, "egress"}.skipIfUnsupported(t)
			p, byHand := newTCPPath(t, false, 0), newTCPPath(t, false, 0)
			r := p.runShaper("--hook", hook, "--policy", writePolicy(t, fmt.Sprintf(codelPolicy, rate)))
			byHand.near.Run("tc", strings.Fields("qdisc add dev v0 root handle 1: htb default 10")...)
			byHand.near.Run("tc", strings.Fields("class add dev v0 parent 1: classid 1:10 htb rate "+rate)...)
			nettest.Steady(t, func() error {
				peer := byHand.crossTCP(1, time.Second, 3*time.Second)
				c := p.crossTCP(1, time.Second, 5*time.Second)
				if dropped := p.stats().Classes[0].Dropped; c.rate < 0.95*peer.rate || dropped.Packets == 0 {
					return fmt.Errorf("%v, %d packets dropped: want 95 %% of %v by hand, and some dropped", c,
						dropped.Packets, peer)
				}
				return nil
			})
			r.stopBySIGTERM()
		})
	}
}

// TestMeasureQueues prints a table of docs/LATENCY.md. It checks nothing, and runs only if
// -run names it.
func TestMeasureQueues(t *testing.T) {
	if !strings.Contains(flag.Lookup("test.run").Value.String(), "TestMeasureQueues") {
		t.Skip("a measurement: -run TestMeasureQueues -v")
	}
	for _, at := range []struct {
		rate      string
		rtt       time.Duration
		flows     int
		forwarded bool
	}{
		{"100mbit", 0, 1, false},
		{"100mbit", 0, 1, true},
		{"10mbit", 20 * time.Millisecond, 1, false},
		{"10mbit", 20 * time.Millisecond, 1, true},
		{"10mbit", 20 * time.Millisecond, 2, true},
		{"1mbit", 20 * time.Millisecond, 1, false},
	} {
		who := "this_host"
		if at.forwarded {
			who = "forwarded"
		}
		t.Run(fmt.Sprintf("%s-%v-%d-%s", at.rate, at.rtt, at.flows, who), func(t *testing.T) {
			measure := func(what string, attach func(p *tcpPath) (end func())) {
				p := newTCPPath(t, at.forwarded, at.rtt)
				end := attach(p)
				c := p.crossTCP(at.flows, 4*time.Second, 8*time.Second)
				end()
				t.Logf("%s: %v", what, c)
			}
			byUs := func(what, policy string, args ...string) {
				measure(what, func(p *tcpPath) func() {
					return p.runShaper(append(args, "--policy",
						writePolicy(t, fmt.Sprintf(policy, at.rate)))...).stopBySIGTERM
				})
			}
			for _, pacer := range availablePacers(t) {
				byUs("codel, "+pacer, codelPolicy, "--pacer", pacer)
			}
			if !at.forwarded { // the cap does not affect forwarded packets
				byUs("codel, --gso-limit off", codelPolicy, "--gso-limit", "off")
			}
			if at.rate == "1mbit" {
				byUs("codel, target 48ms",
					strings.Replace(codelPolicy, "codel: true", "codel: {target: 48ms}", 1))
			}
			if at.rtt == 0 {
				byUs("priority", priorityPolicy)
				byUs("priority, --gso-limit off", priorityPolicy, "--gso-limit", "off")
			}
			for _, leaf := range []string{"codel", "fq_codel"} {
				if !haveQdisc(t, leaf) {
					continue
				}
				measure("hand-configured HTB and "+leaf, func(p *tcpPath) func() {
					for _, line := range []string{
						"qdisc add dev v0 root handle 1: htb default 10", "class add dev v0 parent 1: classid 1:10 htb rate " + at.rate,
						"qdisc add dev v0 parent 1:10 " + leaf,
					} {
						p.near.Run("tc", strings.Fields(line)...)
					}
					return func() {}
				})
			}
		})
	}
}

const (
	codelPolicy = "classes: [{name: all, green: {queue: q}}]\nqueues: {q: {rate: %s, limit: 500ms, codel: {target: 5ms}, fair: false}}"
	// The probes belong to the class of the highest priority.
	priorityPolicy = `classes: [{name: probe, match: {proto: udp}, green: {queue: first}}, {name: all, green: {queue: bulk}}]
links: {up: {rate: %s}}
queues: {first: {link: up, limit: 64KiB}, bulk: {link: up, priority: 1, limit: 100ms}}`
)
