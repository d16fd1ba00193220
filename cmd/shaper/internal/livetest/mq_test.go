package livetest

import (
	"fmt"
	"net"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane/nettest"
)

// TestLiveMQ runs queues on a device with several hardware queues. With fq, mq stays, and packets of one
// queue depart from all hardware queues at the rate. HTB replaces mq, and status says so. In the end the
// device is as before.
func TestLiveMQ(t *testing.T) {
	skipInOldVM(t)
	for _, pacer := range availablePacers(t) {
		t.Run(pacer, func(t *testing.T) {
			p := newQueuePair(t)
			p.near.Delete("v0")
			p.near.Run("ip", "link", "add", "v0", "numtxqueues", "4", "type", "veth", "peer", "name", "v1")
			for _, dev := range []string{"v0", "v1"} {
				p.near.Run("ip", "link", "set", dev, "up")
			}
			p.near.Run("ip", "addr", "add", "10.0.0.1/24", "dev", "v0")
			p.near.Run("ip", "neigh", "add", "10.0.0.2", "lladdr", "02:00:00:00:00:02", "dev", "v0")
			p.near.Run("tc", "qdisc", "add", "dev", "v0", "root", "handle", "1:", "mq")
			before, qdiscs := p.deviceState(), p.qdiscState()
			policy := writePolicy(t, fmt.Sprintf(slowQueue, "200ms"))
			r := p.runShaper("--policy", policy, "--pacer", pacer, "--repair")
			text, root := "fq, by departure time, one below mq for each hardware queue", "mq"
			if pacer == "htb" {
				text, root = "HTB, one leaf class per queue, in the place of mq: all CPUs share one lock", "htb"
			}
			for range 2 {
				out, _ := p.wantExit(0, "status")
				if !strings.Contains(strings.Join(strings.Fields(out), " "), text) {
					t.Errorf("status prints %q, want %q", out, text)
				}
				now := p.qdiscState()
				if n := strings.Count(now, "qdisc fq "); !strings.Contains(now, "qdisc "+root+" 5ade: root") ||
					pacer == "fq" && n != 4 {
					t.Errorf("tc lists\n%s\nwant %s with %d of fq", now, root, n)
				}
				if e := p.effectStatus(); e.Effective == nil || !*e.Effective {
					t.Errorf("status %+v, want it effective", e)
				}
				p.wantExit(0, "set", "v0", "queue", "q", "rate=12mbit")
				p.wantExit(0, "reload", "--policy", policy)
			}
			if pacer == "fq" {
				p.near.Run("tc", "qdisc", "replace", "dev", "v0", "parent", "5ade:2", "pfifo")
				r.err.awaitMatch(t, `not shaping: fq is missing at 1 of 4 hardware queues`)
				r.err.awaitMatch(t, `(?m)^shaper: v0 egress: shaping again$`)
			}
			sniffer := p.near.Sniff("v1")
			for range 64 { // flows
				sendUDP(t, newSender(t, p.near, net.IPv4(10, 0, 0, 2), 0, 0), 5, 1000)
			}
			sniffer.Wait(200, time.Minute) // the limit drops some
			frames := sniffer.Stop()
			sent := regexp.MustCompile(`Sent \d+ bytes \d+ pkt`).FindAllString(
				p.near.Run("tc", "-s", "qdisc", "show", "dev", "v0"), -1)
			t.Logf("%d frames at %.0f byte/s; %q", len(frames), nettest.Speed(frames), sent)
			if len(frames) < 200 || pacer == "fq" && strings.Count(fmt.Sprint(sent), "Sent 0 ") > 2 {
				t.Errorf("%d frames arrived, want 200, from several hardware queues: %q", len(frames), sent)
			}
			r.stopBySIGTERM()
			p.awaitClean(before, qdiscs)
		})
	}
}
