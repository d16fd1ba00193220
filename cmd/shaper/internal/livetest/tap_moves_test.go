package livetest

import (
	"encoding/binary"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/dataplane/nettest"
)

const movesPolicy = `links:
  site: {rate: 400kbit}
  ap-7: {link: site, rate: 300kbit, guarantee: 10kbit}
  ap-9: {link: site, rate: 200kbit}
queues:
  rest: {link: ap-7, rate: 200kbit, limit: 1min, fair: flow, codel: false}
plans:
  gold: {queue: {rate: 200kbit, limit: 1min, fair: [src, flow], codel: false}}
customers: {file: c.csv}
classes:
  - {name: customers, per: customer, meter: plan}
  - {name: rest, green: {queue: rest}}
`

const flows = 4 // of numbered

// numbered sends packets of several flows to 192.0.2.1 and the next addresses. Those of a flow have numbers.
type numbered struct {
	ns   *nettest.Namespace
	dev  string
	sent int // of each flow
}

// send sends 20 packets of each flow.
func (n *numbered) send() {
	for range 20 {
		for flow := range flows {
			frame := packetBetween("203.0.113.1", fmt.Sprintf("192.0.2.%d", flow+1))
			binary.BigEndian.PutUint16(frame[40:], uint16(n.sent))
			n.ns.Inject(n.dev, frame)
		}
		n.sent++
	}
}

// numberOf returns the flow and the number of a packet of numbered; ok is false for another packet.
func numberOf(f nettest.Frame) (flow, number int, ok bool) {
	if len(f.Data) < 42 || f.Data[23] != 253 {
		return 0, 0, false
	}
	return int(f.Data[33]) - 1, int(binary.BigEndian.Uint16(f.Data[40:])), true
}

// TestLiveTapMoves changes a tree of links by commands while all of its queues have packets. No packet is
// lost, and those of a flow stay in order.
func TestLiveTapMoves(t *testing.T) {
	policy := writePolicy(t, movesPolicy)
	rewriteFile(t, filepath.Join(filepath.Dir(policy), "c.csv"),
		"customer,address,plan,link\na,192.0.2.1,gold,ap-7\nb,192.0.2.2,gold,ap-7\nc,192.0.2.3,gold,ap-9\n")
	p := newTAPPair(t)
	r := p.startTap("--uplink", "v0", "--policy", policy, "--direction", "egress")
	s := p.far.Sniff("v0")
	n := numbered{ns: p.near, dev: "t0"}
	for _, change := range []string{
		"customer a link=ap-9", "customer a link=ap-9 rate=20kbit", "customer a reset",
		"customer b weight=3 guarantee=50kbit", "link ap-7 rate=250kbit guarantee=100kbit weight=2 priority=1",
		"link site rate=500kbit", "queue rest rate=150kbit guarantee=20kbit weight=3 priority=2", "link ap-7 reset",
		"customer b link=site",
	} {
		n.send()
		p.wantExit(0, append([]string{"set", "t0"}, strings.Fields(change)...)...)
	}
	for _, change := range [][2]string{{"ap-7: {link: site", "ap-7: {link: ap-9"}, {"site: {rate", "town: {rate"}} {
		n.send()
		text := strings.Replace(movesPolicy, change[0], change[1], 1)
		if change[1] == "town: {rate" {
			text = strings.ReplaceAll(text, "link: site", "link: town")
		}
		rewriteFile(t, policy, text)
		p.wantExit(0, "reload", "t0")
	}
	n.send()
	if !s.Wait(flows*n.sent, waitLimit) {
		t.Error("packets are lost")
	}
	next := [flows]int{}
	for _, f := range s.Stop() {
		flow, number, ok := numberOf(f)
		if !ok {
			continue
		}
		if number != next[flow] {
			t.Fatalf("flow %d: packet %d arrives, want %d", flow, number, next[flow])
		}
		next[flow]++
	}
	if next != [flows]int{n.sent, n.sent, n.sent, n.sent} {
		t.Errorf("got %v packets, want %d of each", next, n.sent)
	}
	p.wantExit(0, "detach", "t0")
	r.wantExit(0)
}
