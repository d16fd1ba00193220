package livetest

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/a-seed-32e5a53f/shaper/dataplane/nettest"
)

// customerRow is a customer in a line of shaper stats --customers --json.
type customerRow struct {
	Name, Plan string
	packetCount
	Green, Yellow, Red, Dropped packetCount
}

// customers returns the customers of the only shaper by name.
func (p *pair) customers(flags ...string) map[string]customerRow {
	p.t.Helper()
	stdout, _ := p.wantExit(0, append([]string{"stats", "--customers", "--top", "0", "--json"}, flags...)...)
	s := decodeJSON[struct {
		Number    int
		Customers []customerRow
	}](p.t, stdout)
	out := map[string]customerRow{}
	for _, c := range s.Customers {
		out[c.Name] = c
	}
	if len(out) != s.Number {
		p.t.Fatalf("%d names of %d customers: %s", len(out), s.Number, stdout)
	}
	return out
}

// sentPackets is a number of packets from packetBetween.
func sentPackets(n int64) packetCount { return packetCount{n, 100 * n} }

// writeTable writes a policy with a class for customers, and one for strangers with these
// properties. Only packets of packetBetween match.
func writeTable(t *testing.T, strangers, plans, customers string) (policy, table string) {
	t.Helper()
	policy = writePolicy(t, `
classes:
  - {name: customers, per: customer, match: {proto: 253}, meter: plan}
  - {name: strangers, match: {proto: 253}, `+strangers+`}
customers: {file: customers.csv}
plans:
`+plans)
	table = filepath.Join(filepath.Dir(policy), "customers.csv")
	rewriteFile(t, table, customers)
	return policy, table
}

// remote is the address that is not a customer's of a packet to or from an address.
func remote(address string) string {
	if netip.MustParseAddr(address).Is6() {
		return "2001:db8:ffff::1"
	}
	return "203.0.113.1"
}

// frameOf returns a frame that belongs to the customer with an address.
func (m placement) frameOf(address string) []byte {
	if m.direction == "egress" {
		return packetBetween(remote(address), address)
	}
	return packetBetween(address, remote(address))
}

// customerOf returns the TOS of a frame of frameOf, and the address of its customer; "" for
// another frame.
func (m placement) customerOf(frame []byte) (tos int, address string) {
	ip, at, n, proto := frame[14:], 12, 4, 9
	if frame[12] == 0x86 {
		at, n, proto = 8, 16, 6
	}
	if len(ip) < 100 || ip[proto] != 253 {
		return 0, ""
	}
	if m.direction == "egress" {
		at += n
	}
	a, _ := netip.AddrFromSlice(ip[at : at+n])
	return tosOf(ip), a.String()
}

// sniffPassed captures the packets that pass a shaper.
func (p *pair) sniffPassed(m placement) *nettest.Sniffer {
	_, to := p.senderAndReceiver(m)
	if m.direction == "ingress" && m.hook != "xdp" {
		return p.sniffAfterTC()
	}
	return to.Sniff("v0")
}

// TestLiveCustomers checks that all addresses of a customer share one bucket, that actions of
// plans replace those of the class, that each customer is counted exactly, and that other
// packets go on to the next class.
func TestLiveCustomers(t *testing.T) {
	t.Parallel()
	for _, m := range placements {
		t.Run(m.hook+"-"+m.direction, func(t *testing.T) {
			m.skipIfUnsupported(t)
			p := newPair(t)
			policy, _ := writeTable(t, "meter: {type: token-bucket, rate: 1B/1000s, burst: 250B}",
				"  five: {type: srtcm, cir: 1B/1000s, cbs: 300B, ebs: 200B, yellow: {dscp: af12}}\n",
				"customer,address,plan,cbs\na,192.0.2.1 2001:db8:1::/48,five,\nb,192.0.2.2 2001:db8:2::/48 198.51.100.0/24,five,100\nc,,five,\n")
			r := p.runShaper(m.flags("--policy", policy)...)
			from, _ := p.senderAndReceiver(m)
			sniffer := p.sniffPassed(m)
			const a4, a6, a7, b4, b5, b6 = "192.0.2.1", "2001:db8:1::1", "2001:db8:1:2::3", "192.0.2.2",
				"198.51.100.77", "2001:db8:2::1"
			wrongSide := packetBetween("192.0.2.1", remote("192.0.2.1"))
			if m.direction == "ingress" {
				wrongSide = packetBetween(remote("192.0.2.1"), "192.0.2.1")
			}
			var frames [][]byte
			for _, address := range []string{a4, a6, b4, a7, "192.0.2.3", a4, b6, a6, a7, b5, a4, b5, a6} {
				frames = append(frames, m.frameOf(address))
			}
			from.Inject("v0", append(frames, wrongSide, m.frameOf("2001:db8:3::1"))...)
			eventually(t, func() error {
				if s := p.stats(); s.classNamed(t, "customers").Packets != 12 ||
					s.classNamed(t, "strangers").Packets != 3 {
					return fmt.Errorf("counted %+v", s.Classes)
				}
				return nil
			})
			got := p.customers()
			for _, want := range []customerRow{
				{"a", "five", sentPackets(8), sentPackets(3), sentPackets(2), sentPackets(3), sentPackets(3)},
				{"b", "five", sentPackets(4), sentPackets(1), sentPackets(2), sentPackets(1), sentPackets(1)},
				{Name: "c", Plan: "five"},
			} {
				if got[want.Name] != want {
					t.Errorf("got %+v: want %+v", got[want.Name], want)
				}
			}
			s := p.stats()
			if c := s.classNamed(t, "customers"); c.Green.packetCount != sentPackets(4) ||
				c.Yellow.packetCount != sentPackets(4) || c.Dropped != sentPackets(4) ||
				c.Marked != sentPackets(4) {
				t.Errorf("counted %+v: want the sum of the customers", c)
			}
			if c := s.classNamed(t, "strangers"); c.Green.packetCount != sentPackets(2) ||
				c.Dropped != sentPackets(1) {
				t.Errorf("counted %+v: want 2 green and 1 dropped", c)
			}
			const green, yellow = 0, af12
			want := fmt.Sprint([]string{
				a4 + fmt.Sprint(green), a6 + fmt.Sprint(green), b4 + fmt.Sprint(green),
				a7 + fmt.Sprint(green), "192.0.2.3" + fmt.Sprint(green), a4 + fmt.Sprint(yellow),
				b6 + fmt.Sprint(yellow), a6 + fmt.Sprint(yellow), b5 + fmt.Sprint(yellow),
				remote(a4) + fmt.Sprint(green),
			})
			sniffer.Wait(10, waitLimit)
			var passed []string
			for _, f := range sniffer.Stop() {
				if tos, address := m.customerOf(f.Data); address != "" {
					passed = append(passed, address+fmt.Sprint(tos))
				}
			}
			if fmt.Sprint(passed) != want {
				t.Errorf("passed %v: want %s", passed, want)
			}
			r.stopBySIGTERM()
		})
	}
}

// onCPU calls f in a thread that runs only on one CPU.
func onCPU(t *testing.T, cpu int, f func()) {
	runtime.LockOSThread() // the thread ends with the goroutine
	var one unix.CPUSet
	one.Set(cpu % runtime.NumCPU())
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		t.Error(err)
	}
	f()
}

// TestLiveCustomersTwoCPUs checks that the counters and colors of customers are exact if two
// CPUs send for the same customers at once.
func TestLiveCustomersTwoCPUs(t *testing.T) {
	t.Parallel()
	for _, m := range placements {
		t.Run(m.hook+"-"+m.direction, func(t *testing.T) {
			m.skipIfUnsupported(t)
			p := newPair(t)
			red := "drop"
			if m.hook == "xdp" {
				red = "pass" // the sniffer, which sees packets after XDP, sees all
			}
			policy, _ := writeTable(t, "green: pass",
				"  two: {type: trtcm, cir: 1B/1000s, cbs: 20kB, pir: 1B/1000s, pbs: 50kB, red: "+red+"}\n",
				"customer,address,plan,pbs\na,192.0.2.1 2001:db8:1::/48,two,\nb,192.0.2.2 2001:db8:2::/48,two,30kB\n")
			r := p.runShaper(m.flags("--policy", policy)...)
			from, to := p.senderAndReceiver(m)
			sniffer := to.Sniff("v0")
			mix := [2][]string{
				{"192.0.2.1", "2001:db8:2::1", "2001:db8:1::1", "192.0.2.9"},
				{"192.0.2.1", "2001:db8:1::1", "192.0.2.1", "192.0.2.2"},
			}
			rounds := 60
			if inVM {
				rounds = 20
			}
			begin := make([]chan bool, 2)
			ended := make(chan bool)
			for cpu := range 2 {
				begin[cpu] = make(chan bool)
				send := from.Injector("v0")
				var frames [][]byte
				for range 5 { // few: a veth pair queues 256 packets for XDP
					for _, address := range mix[cpu] {
						frames = append(frames, m.frameOf(address))
					}
				}
				go onCPU(t, cpu, func() {
					for range begin[cpu] {
						if err := send(frames...); err != nil {
							t.Error(err)
						}
						ended <- true
					}
				})
			}
			n := int64(5 * rounds)
			for i := range rounds {
				for _, c := range begin {
					c <- true
				}
				<-ended
				<-ended
				if m.direction == "ingress" && !sniffer.Wait(40*(i+1), waitLimit) {
					t.Fatalf("round %d: too few packets arrived", i)
				}
			}
			for _, c := range begin {
				close(c)
			}
			eventually(t, func() error {
				if s := p.stats(); s.classNamed(t, "customers").packetCount != sentPackets(7*n) ||
					s.classNamed(t, "strangers").packetCount != sentPackets(n) {
					return fmt.Errorf("counted %+v: want %d and %d packets", s.Classes, 7*n, n)
				}
				return nil
			})
			got := p.customers()
			for name, sent := range map[string]int64{"a": 5 * n, "b": 2 * n} {
				most := map[string]int64{"a": 500, "b": 300}[name]
				want := customerRow{
					Name: name, Plan: "two", packetCount: sentPackets(sent),
					Green: sentPackets(min(200, sent)),
				}
				want.Yellow = sentPackets(min(most, sent) - want.Green.Packets)
				want.Red = sentPackets(max(sent-most, 0))
				if red == "drop" {
					want.Dropped = want.Red
				}
				if got[name] != want {
					t.Errorf("counted %+v: want %+v", got[name], want)
				}
			}
			r.stopBySIGTERM()
		})
	}
}

// TestLiveCustomersIsolation checks that a customer with a hundred times its rate, and packets
// of many unknown addresses, take nothing from 99 other customers.
func TestLiveCustomersIsolation(t *testing.T) {
	t.Parallel()
	skipInVM(t)
	const rate, burst = 20_000, 10_000 // bytes
	const others = 99
	table := "customer,address,plan\nhog,192.0.2.1 2001:db8:1::/48,slow\n"
	for i := range others {
		table += fmt.Sprintf("c%d,198.51.100.%d 2001:db8:a:%x::/64,slow\n", i, i+1, i+1)
	}
	addressesOf := func(i int) [2]string {
		return [2]string{fmt.Sprintf("198.51.100.%d", i+1), fmt.Sprintf("2001:db8:a:%x::1", i+1)}
	}
	for _, m := range []placement{{"tcx", "egress"}, {"tcx", "ingress"}} {
		t.Run(m.hook+"-"+m.direction, func(t *testing.T) {
			p := newPair(t)
			policy, _ := writeTable(t, "meter: {type: token-bucket, rate: 1B/1000s, burst: 1000B}",
				"  slow: {type: token-bucket, rate: 20kB/s, burst: 10kB}\n",
				table)
			r := p.runShaper(m.flags("--policy", policy)...)
			from, _ := p.senderAndReceiver(m)
			sniffer := p.sniffPassed(m)
			send := from.Injector("v0")
			begin, hog, strangers := time.Now(), int64(0), int64(0)
			// The other customers send a burst each in all, so all their packets fit, however
			// late they are sent.
			for i := range int64(burst / 100) {
				var frames [][]byte
				for ; float64(hog)*100 < 100*rate*time.Since(begin).Seconds() && len(frames) < 400; hog++ {
					frames = append(frames, m.frameOf([]string{"192.0.2.1", "2001:db8:1::1"}[hog%2]))
				}
				for range 50 { // unknown addresses, each once
					strangers++
					frames = append(frames, m.frameOf(fmt.Sprintf("10.9.%d.%d", strangers>>8, strangers&255)))
				}
				for c := range others {
					frames = append(frames, m.frameOf(addressesOf(c)[i%2]))
				}
				if err := send(frames...); err != nil {
					t.Fatal(err)
				}
				time.Sleep(10 * time.Millisecond)
			}
			took := time.Since(begin).Seconds()
			sniffer.Wait(others*burst/100+110, waitLimit)
			passed := map[string]float64{}
			for _, f := range sniffer.Stop() {
				if _, address := m.customerOf(f.Data); address != "" {
					passed[address] += 100
				}
			}
			for c := range others {
				if a := addressesOf(c); passed[a[0]]+passed[a[1]] != burst {
					t.Errorf("%.0f bytes of customer %d passed: want all %d", passed[a[0]]+passed[a[1]], c,
						burst)
				}
			}
			if got := passed["192.0.2.1"] + passed["2001:db8:1::1"]; got > burst+rate*took || got < burst {
				t.Errorf("%.0f bytes of %d passed in %.3f s: want at most %.0f", got, hog*100, took,
					burst+rate*took)
			}
			rows := p.customers()
			if c := rows["hog"]; c.packetCount != sentPackets(hog) ||
				c.Dropped.Packets != hog-int64(passed["192.0.2.1"]+passed["2001:db8:1::1"])/100 {
				t.Errorf("counted %+v: want %d sent", c, hog)
			}
			for i := range others {
				if c := rows[fmt.Sprint("c", i)]; c.packetCount != sentPackets(burst/100) ||
					c.Dropped.Packets != 0 {
					t.Errorf("counted %+v: want %d packets, none dropped", c, burst/100)
				}
			}
			if s := p.stats().Classes[1]; s.packetCount != sentPackets(strangers) ||
				s.Green.packetCount != sentPackets(10) || len(rows) != 1+others {
				t.Errorf("counted %+v, %d customers: want %d strangers and %d customers", s, len(rows),
					strangers, 1+others)
			}
			r.stopBySIGTERM()
		})
	}
}

// TestLiveCustomersFlags checks that wrong flags of shaper stats --customers print one error, and
// no counters.
func TestLiveCustomersFlags(t *testing.T) {
	p := newPair(t)
	policy, _ := writeTable(t, "green: pass", "  open: {type: token-bucket, rate: 1gbit, burst: 1MB}\n",
		"customer,address,plan\na,192.0.2.1,open\n")
	r := p.runShaper("--policy", policy)
	for _, test := range []struct {
		want string
		args []string
	}{
		{`--by "packets": want bytes, dropped or rate`, []string{"--customers", "--by", "packets"}},
		{`--top -1: want 0 or more`, []string{"--customers", "--top", "-1"}},
		{`--top and --by need --customers`, []string{"--top", "5"}},
		{`--top and --by need --customers`, []string{"--by", "rate"}},
		{`--customers cannot be combined with --watch or --links`, []string{"--customers", "--watch"}},
	} {
		p.wantError(2, test.want, append([]string{"stats", "v0"}, test.args...)...)
	}
	r.stopBySIGTERM()
}

// TestLiveCustomersRefused checks that plans with queues outside links are refused with HTB and XDP.
func TestLiveCustomersRefused(t *testing.T) {
	p := newPair(t)
	before := p.deviceState()
	policy, _ := writeTable(t, "green: pass", "  paced: {queue: {rate: 1mbit, limit: 1s}}\n",
		"customer,address,plan\na,192.0.2.1,paced\n")
	const needs = `.*policy\.yaml:7:\d+: queue of each customer needs a link, or fair: flow, or qdisc fq: this kernel lacks it, or other queues need HTB: use .*`
	p.wantError(2, needs, "run", "v0", "--pacer", "htb", "--policy", policy)
	if !haveQdisc(t, "fq") {
		p.wantError(2, needs, "run", "v0", "--policy", policy)
		p.wantError(2, needs, "run", "v0", "--direction", "ingress", "--policy", policy)
	}
	p.wantError(2, `.*policy\.yaml:7:\d+: queue .*XDP.*`, "run", "v0", "--direction", "ingress", "--hook",
		"xdp", "--policy", policy)
	p.wantState(before)
	if out, _ := p.wantExit(0, "status"); !strings.HasPrefix(out, "no shaper is attached") {
		t.Errorf("status prints %q", out)
	}
}
