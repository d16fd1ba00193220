package livetest

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/dataplane/nettest"
)

// directedPolicy gives a customer other tokens in each direction, and other packets a slow queue.
const directedPolicy = `classes:
  - {name: customers, per: customer, meter: plan}
  - {name: rest, green: {queue: q}}
customers: {file: customers.csv}
plans:
  metered: {type: token-bucket, rate: {down: 8bit, up: 4bit}, burst: 350s}
queues:
  q: {rate: {down: 1600bit, up: 800bit}, limit: 100kB, codel: false}
`

// TestLiveDirections checks that egress has the rates down, and ingress those up, in the kernel and in
// shaper tap: of plans, of rows, after a reload and after a change of one direction.
func TestLiveDirections(t *testing.T) {
	for _, shaper := range []string{"run", "tap"} {
		t.Run(shaper, func(t *testing.T) {
			policy := writePolicy(t, directedPolicy)
			const rows = "customer,address,plan,down,up\n"
			table := filepath.Join(filepath.Dir(policy), "customers.csv")
			rewriteFile(t, table, rows+"a,192.0.2.1,metered,,\nb,192.0.2.2,metered,4bit,\n")
			var p *pair
			var r *process
			device := "v0"
			if shaper == "tap" {
				p, device = newTAPPair(t), "t0"
				r = p.startTap("--uplink", "v0", "--policy", policy, "--both")
			} else {
				skipInVM(t)
				p = newQueuePair(t)
				r = p.runShaper("--policy", policy, "--both", "--pacer", "htb")
			}
			// 350 s are 350 bytes at 8 bit/s, and 175 at 4: three packets of 100 bytes, and one. Tokens for
			// another one take 50 s or more.
			passed := func(name, address string, down, up int64) {
				t.Helper()
				before := map[string]customerRow{}
				for _, direction := range []string{"egress", "ingress"} {
					before[direction] = p.customers("--direction", direction)[name]
				}
				for range 5 {
					p.near.Inject(device, packetBetween("203.0.113.1", address))
					p.far.Inject("v0", packetBetween(address, "203.0.113.1"))
				}
				eventually(t, func() error {
					for direction, want := range map[string]int64{"egress": down, "ingress": up} {
						now, was := p.customers("--direction", direction)[name], before[direction]
						packets, dropped := now.Packets-was.Packets, now.Dropped.Packets-was.Dropped.Packets
						if packets != 5 || packets-dropped != want {
							return fmt.Errorf("%s: %d of %d packets of %s passed: want %d", direction, packets-dropped,
								packets, name, want)
						}
					}
					return nil
				})
			}
			passed("a", "192.0.2.1", 3, 1)
			passed("b", "192.0.2.2", 1, 1)
			rewriteFile(t, table, rows+"c,192.0.2.3,metered,4bit,8bit\n")
			p.wantExit(0, "reload", device)
			passed("c", "192.0.2.3", 1, 3)

			sniffers := [2]*nettest.Sniffer{p.far.Sniff("v0"), p.near.Sniff(device)}
			if shaper == "run" {
				sniffers[1].Stop() // it sees packets before they are queued
			}
			for range queuedFrames {
				p.near.Inject(device, packetBetween("203.0.113.1", "198.51.100.1"))
				p.far.Inject("v0", packetBetween("198.51.100.1", "203.0.113.1"))
			}
			p.wantExit(0, "set", device, "queue", "q", "down=1gbit")
			p.wantChanges(device, `queue "q": down 1gbit`)
			wantQueued(t, sniffers[0])
			if shaper == "tap" {
				if n := len(sniffers[1].Stop()); n >= queuedFrames {
					t.Errorf("%d packets arrived at once in the direction whose rate was not changed", n)
				}
			}
			p.wantExit(0, "detach", device)
			r.wantExit(0)
		})
	}
}
