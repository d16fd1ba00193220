package livetest

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane/nettest"
)

const customersPolicy = `classes:
  - {name: customers, per: customer, meter: plan}
  - {name: strangers, meter: {type: token-bucket, rate: 1B/1000s, burst: 150B}}
customers: {file: customers.csv}
plans:
  metered: {type: token-bucket, rate: 1B/1000s, burst: 350B}
  paced: {queue: {rate: 80kbit, limit: 10s}}
`

// writeCustomers writes customersPolicy and its customers.
func writeCustomers(t *testing.T, customers string) (policy, table string) {
	t.Helper()
	policy = writePolicy(t, customersPolicy)
	table = filepath.Join(filepath.Dir(policy), "customers.csv")
	rewriteFile(t, table, "customer,address,plan,burst\n"+customers)
	return policy, table
}

// packetBetween returns a broadcast frame with an IP packet of 100 bytes.
func packetBetween(src, dst string) []byte {
	from, to := netip.MustParseAddr(src), netip.MustParseAddr(dst)
	f := []byte("\xff\xff\xff\xff\xff\xff\x02\x00\x00\x00\x00\x09\x08\x00\x45\x00\x00\x64\x00\x00\x00\x00\x40\xfd\x00\x00")
	if from.Is6() {
		f = append(f[:12], 0x86, 0xdd, 0x60, 0, 0, 0, 0, 60, 253, 64)
	}
	f = append(append(f, from.AsSlice()...), to.AsSlice()...)
	return append(f, make([]byte, 114-len(f))...)
}

// TestLiveTapCustomers checks that shaper tap meters customers in both directions: their IPv4
// and IPv6 packets together, paced customers at their rate, and strangers by the next class.
// A reload keeps tokens by name.
func TestLiveTapCustomers(t *testing.T) {
	const remote, remote6 = "203.0.113.1", "2001:db8:ffff::1"
	policy, table := writeCustomers(t,
		"m,192.0.2.1 2001:db8:1::/48,metered,\np,192.0.2.2 2001:db8:2::/48,paced,\n")
	p := newTAPPair(t)
	r := p.startTap("--uplink", "v0", "--policy", policy, "--both")
	metered := [][2]string{ // the customer's side and the other one; 3 of 5 pass
		{"192.0.2.1", remote},
		{"2001:db8:1::1", remote6},
		{"2001:db8:1:2::3", remote6},
		{"192.0.2.1", remote},
		{"2001:db8:1::1", remote6},
	}
	// a customer on the wrong side; 1 of 2 passes
	strangers := [][2]string{{remote, "192.0.2.1"}, {remote6, "2001:db8:1::1"}}
	var paced [][2]string
	for range 10 {
		paced = append(paced, [2]string{"192.0.2.2", remote}, [2]string{"2001:db8:2::1", remote6})
	}
	begin := time.Now().UnixNano()
	sniffers := []*nettest.Sniffer{p.far.Sniff("v0"), p.near.Sniff("t0")}
	for _, pair := range append(append(metered, strangers...), paced...) {
		p.near.Inject("t0", packetBetween(pair[1], pair[0]))
		p.far.Inject("v0", packetBetween(pair[0], pair[1]))
	}
	for direction, s := range sniffers {
		if !s.Wait(24, waitLimit) {
			t.Errorf("direction %d: too few frames arrived", direction)
		}
		place := 0
		passed := map[string]int{}
		for _, f := range s.Stop() {
			side := f.Data[14+16:]
			if direction == 1 {
				side = f.Data[14+12:]
			}
			address := fmt.Sprintf("%d", side[:4])
			if f.Data[12] == 0x86 {
				side = f.Data[14+24:]
				if direction == 1 {
					side = f.Data[14+8:]
				}
				address = fmt.Sprintf("%x", side[:6])
			}
			switch address {
			case "[192 0 2 1]", "20010db80001":
				passed["metered"]++
			case "[192 0 2 2]", "20010db80002":
				if after := time.Duration(f.Time - begin); after < time.Duration(place)*10*time.Millisecond {
					t.Errorf("direction %d: paced packet %d arrived %v after the start", direction, place,
						after)
				}
				place++
			default:
				passed["strangers"]++
			}
		}
		if place != 20 || passed["metered"] != 3 || passed["strangers"] != 1 {
			t.Errorf("direction %d: %d paced packets, and %v: want 20, 3 and 1", direction, place, passed)
		}
	}
	for _, s := range p.statsList() {
		c, other := s.Classes[0], s.Classes[1]
		if c.Green.Packets != 23 || c.Queued.Packets != 20 || c.Dropped.Packets != 2 ||
			other.Green.Packets != 1 || other.Dropped.Packets != 1 {
			t.Errorf("%s: %+v", s.Direction, s.Classes)
		}
	}

	// Customer m keeps its 50 tokens, under another plan and address; p becomes a stranger.
	send := func(address string) {
		t.Helper()
		p.near.Inject("t0", packetBetween(remote, address))
		p.far.Inject("v0", packetBetween(address, remote))
	}
	rewriteFile(t, table, "customer,address,plan,burst\nnew,192.0.2.1,metered,\nm,192.0.2.7,metered,5000\n")
	p.wantExit(0, "reload")
	for _, address := range []string{"192.0.2.7", "192.0.2.2", "192.0.2.1"} {
		send(address)
	}
	count := func(green, red, strangers int64) {
		t.Helper()
		eventually(t, func() error {
			for _, s := range p.statsList() {
				c, other := s.Classes[0], s.Classes[1]
				if got := [3]int64{
					c.Green.Packets, c.Red.Packets, other.Packets,
				}; got != [3]int64{green, red, strangers} {
					return fmt.Errorf("%s: got %d, want %d, %d, %d", s.Direction, got, green, red, strangers)
				}
			}
			return nil
		})
	}
	count(24, 3, 3)

	// The same by SIGHUP. An invalid file changes nothing.
	rewriteFile(t, table, "customer,address,plan,burst\nm,192.0.2.8/24,metered,\n")
	r.sendSignal(syscall.SIGHUP)
	r.err.awaitMatch(t, `customers\.csv:2: .*: the policy is unchanged\n`)
	send("192.0.2.1") // of customer new, which has 250 tokens
	count(25, 3, 3)
	rewriteFile(t, table, "customer,address,plan,burst\nnew,192.0.2.9,metered,\n")
	r.sendSignal(syscall.SIGHUP)
	r.out.awaitMatch(t, `(?s)reloaded, policy.*reloaded, policy`)
	send("192.0.2.9")
	send("192.0.2.9")
	count(26, 4, 3)
	r.stopBySIGTERM()
}
