package livetest

import (
	"encoding/binary"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
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

// TestLiveTapMoves changes a tree of links by commands while all of its queues have packets. No packet is
// lost, and those of a flow stay in order.
func TestLiveTapMoves(t *testing.T) {
	policy := writePolicy(t, movesPolicy)
	rewriteFile(t, filepath.Join(filepath.Dir(policy), "c.csv"),
		"customer,address,plan,link\na,192.0.2.1,gold,ap-7\nb,192.0.2.2,gold,ap-7\nc,192.0.2.3,gold,ap-9\n")
	p := newTAPPair(t)
	r := p.startTap("--uplink", "v0", "--policy", policy, "--direction", "egress")
	s := p.far.Sniff("v0")
	const flows, burst = 4, 20
	sent := 0
	send := func() {
		for range burst {
			for flow := range flows {
				frame := packetBetween("203.0.113.1", fmt.Sprintf("192.0.2.%d", flow+1))
				binary.BigEndian.PutUint16(frame[40:], uint16(sent))
				p.near.Inject("t0", frame)
			}
			sent++
		}
	}
	for _, change := range []string{
		"customer a link=ap-9", "customer a link=ap-9 rate=20kbit", "customer a reset",
		"customer b weight=3 guarantee=50kbit", "link ap-7 rate=250kbit guarantee=100kbit weight=2 priority=1",
		"link site rate=500kbit", "queue rest rate=150kbit guarantee=20kbit weight=3 priority=2", "link ap-7 reset",
		"customer b link=site",
	} {
		send()
		p.wantExit(0, append([]string{"set", "t0"}, strings.Fields(change)...)...)
	}
	for _, change := range [][2]string{{"ap-7: {link: site", "ap-7: {link: ap-9"}, {"site: {rate", "town: {rate"}} {
		send()
		text := strings.Replace(movesPolicy, change[0], change[1], 1)
		if change[1] == "town: {rate" {
			text = strings.ReplaceAll(text, "link: site", "link: town")
		}
		rewriteFile(t, policy, text)
		p.wantExit(0, "reload", "t0")
	}
	send()
	if !s.Wait(flows*sent, waitLimit) {
		t.Error("packets are lost")
	}
	next := [flows]int{}
	for _, f := range s.Stop() {
		if len(f.Data) < 42 || f.Data[23] != 253 {
			continue
		}
		flow, number := f.Data[33]-1, int(binary.BigEndian.Uint16(f.Data[40:]))
		if number != next[flow] {
			t.Fatalf("flow %d: packet %d arrives, want %d", flow, number, next[flow])
		}
		next[flow]++
	}
	if next != [flows]int{sent, sent, sent, sent} {
		t.Errorf("got %v packets, want %d of each", next, sent)
	}
	p.wantExit(0, "detach", "t0")
	r.wantExit(0)
}
