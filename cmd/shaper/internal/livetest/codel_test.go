package livetest

import (
	"flag"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane/nettest"
)

// TestLiveGSOWait holds what the cap is for: TCP of this host fills 100 Mbit/s, and a
// packet of a higher priority waits less than behind super-packets of 64 KiB.
func TestLiveGSOWait(t *testing.T) {
	hereOnly(t)
	p := newPath(t, false, 0)
	policy := file(t, fmt.Sprintf(priorities, "100mbit"))
	with := func(args ...string) *crossing {
		r := p.run(append(args, "--policy", policy)...)
		defer r.term()
		return p.cross(4, time.Second, 3*time.Second)
	}
	nettest.Steady(t, func() error {
		capped, off := with(), with("--gso-limit", "off")
		if capped.lost+off.lost > 0 || capped.at(99) > off.at(99)*2/3 {
			return fmt.Errorf("first in line: %v; with super-packets: %v", capped, off)
		}
		return nil
	})
}

// TestLiveCoDelTCP holds that TCP of this host reaches the rate of a queue with CoDel,
// whose drops it must take for losses.
func TestLiveCoDelTCP(t *testing.T) {
	hereOnly(t)
	const rate = 50.0 // Mbit/s
	for _, hook := range []string{"tcx", "tc"} {
		t.Run(hook, func(t *testing.T) {
			method{hook, "egress"}.need(t)
			p := newPath(t, false, 0)
			r := p.run("--hook", hook, "--policy", file(t, fmt.Sprintf(oneQueue, fmt.Sprint(rate, "mbit"))))
			nettest.Steady(t, func() error {
				c := p.cross(1, time.Second, 5*time.Second)
				ideal := rate * 1448 / 1500
				if dropped := p.stats().Classes[0].Dropped; c.rate < 0.93*ideal || dropped.Packets == 0 {
					return fmt.Errorf("%v, %d packets dropped: want %.1f Mbit/s, and some dropped", c, dropped.Packets, ideal)
				}
				return nil
			})
			r.term()
		})
	}
}

// TestMeasureQueues prints a table of docs/BENCHMARKS.md. It holds nothing, and runs
// only where it is asked for by name.
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
			measure := func(what string, attach func(p *path) (end func())) {
				p := newPath(t, at.forwarded, at.rtt)
				end := attach(p)
				c := p.cross(at.flows, 4*time.Second, 8*time.Second)
				end()
				t.Logf("%s: %v", what, c)
			}
			byUs := func(what, policy string, args ...string) {
				measure(what, func(p *path) func() {
					return p.run(append(args, "--policy", file(t, fmt.Sprintf(policy, at.rate)))...).term
				})
			}
			for _, pacer := range pacers(t) {
				byUs("codel, "+pacer, oneQueue, "--pacer", pacer)
			}
			if !at.forwarded { // else the cap changes nothing
				byUs("codel, --gso-limit off", oneQueue, "--gso-limit", "off")
			}
			if at.rate == "1mbit" {
				byUs("codel, target 48ms", strings.Replace(oneQueue, "codel: true", "codel: {target: 48ms}", 1))
			}
			if at.rtt == 0 {
				byUs("priority", priorities)
				byUs("priority, --gso-limit off", priorities, "--gso-limit", "off")
			}
			for _, leaf := range []string{"codel", "fq_codel"} {
				if !haveQdisc(t, leaf) {
					continue
				}
				measure("HTB and "+leaf+" by hand", func(p *path) func() {
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
	oneQueue = "classes: [{name: all, green: {queue: q}}]\nqueues: {q: {rate: %s, limit: 500ms, codel: true}}"
	// The probes are of the class that goes first.
	priorities = `classes: [{name: probe, match: {proto: udp}, green: {queue: first}}, {name: all, green: {queue: bulk}}]
links: {up: {rate: %s}}
queues: {first: {link: up, limit: 64KiB}, bulk: {link: up, priority: 1, limit: 100ms}}`
)
