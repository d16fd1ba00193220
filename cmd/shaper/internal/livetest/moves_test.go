package livetest

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
)

// TestLiveMoves changes customers and links in the kernel by commands while their queues have packets. Each
// packet arrives once: nothing is lost, whatever moves.
func TestLiveMoves(t *testing.T) {
	policy := writePolicy(t, `links:
  site: {rate: 4mbit}
  ap-7: {link: site, rate: 3mbit, guarantee: 100kbit}
  ap-9: {link: site, rate: 2mbit}
queues:
  rest: {link: ap-7, rate: 2mbit, limit: 1min, fair: false}
plans:
  gold: {queue: {rate: 2mbit, limit: 1min, fair: false}}
customers: {file: c.csv}
classes:
  - {name: customers, per: customer, meter: plan}
  - {name: rest, match: {dst: 192.0.2.0/24}, green: {queue: rest}}
`)
	rewriteFile(t, filepath.Join(filepath.Dir(policy), "c.csv"),
		"customer,address,plan,link\na,192.0.2.1,gold,ap-7\nb,192.0.2.2,gold,ap-7\nc,192.0.2.3,gold,ap-9\n")
	p := newQueuePair(t)
	r := p.runShaper("--policy", policy)
	s := p.far.Sniff("v0")
	n := numbered{ns: p.near, dev: "v0"}
	for _, change := range []string{
		"customer a link=ap-9", "customer a link=ap-9 rate=1mbit", "customer a reset",
		"customer b weight=3 guarantee=50kbit", "link ap-7 rate=2500kbit guarantee=1mbit weight=2 priority=1",
		"link site rate=5mbit", "queue rest rate=1500kbit guarantee=200kbit weight=3 priority=2", "link ap-7 reset",
		"customer b link=site", "customer c off", "customer c on",
	} {
		if !strings.HasPrefix(change, "customer c") {
			n.send()
		}
		p.wantExit(0, append([]string{"set", "v0"}, strings.Fields(change)...)...)
	}
	p.wantExit(0, "status", "v0")
	n.send()
	p.wantExit(0, "reload", "v0")
	n.send()
	seen := map[[2]int]int{}
	eventually(t, func() error {
		out, _ := p.wantExit(0, "stats", "v0", "--links", "--json")
		for _, l := range decodeJSON[linksShown](t, out).Links {
			if l.Backlog.Packets > 0 {
				return fmt.Errorf("link %s has %d packets", l.Path, l.Backlog.Packets)
			}
		}
		return nil
	})
	for _, f := range s.Stop() {
		if flow, number, ok := numberOf(f); ok {
			seen[[2]int{flow, number}]++
		}
	}
	for flow := range flows {
		for number := range n.sent {
			if times := seen[[2]int{flow, number}]; times != 1 {
				t.Errorf("flow %d: packet %d of %d arrived %d times", flow, number, n.sent, times)
			}
		}
	}
	r.stopBySIGTERM()
}
