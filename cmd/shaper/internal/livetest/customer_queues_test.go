package livetest

import (
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane/nettest"
)

// TestQuietCustomerQueues checks that fq sends the packets of each customer with a queue at the
// rate of its plan, IPv4 and IPv6 together, whatever waits for others, and that plans can change
// between queues and meters.
func TestQuietCustomerQueues(t *testing.T) {
	nettest.Quiet(t)
	t.Parallel()
	if !haveQdisc(t, "fq") {
		t.Skip("this kernel has no fq")
	}
	for _, m := range []placement{{"tcx", "egress"}, {"tc", "egress"}} {
		t.Run(m.hook+"-"+m.direction, func(t *testing.T) {
			m.skipIfUnsupported(t)
			p := newQueuePair(t)
			before, qdiscs := p.deviceState(), p.qdiscState()
			const plans = `
  slow: {queue: {rate: 80kbit, limit: 2s}}
  fast: {queue: {rate: 320kbit, limit: 2s}, green: {dscp: af11}}
  metered: {type: token-bucket, rate: 1B/1000s, burst: 300B}
`
			const head = "customer,address,plan,rate\n"
			const table = head +
				"slow,192.0.2.1 2001:db8:1::/48,slow,\nfast,192.0.2.2 2001:db8:2::/48,fast,\nown,192.0.2.3,slow,160kbit\nmetered,192.0.2.4,metered,\n"
			policy, csv := writeTable(t, "green: pass", plans, table)
			r := p.runShaper(m.flags("--policy", policy)...)
			if s := p.stats(); s.Pacer != "fq" {
				t.Errorf("paced by %q: want fq", s.Pacer)
			}
			// Nanoseconds between two packets of 100 bytes, by customer.
			gaps := map[string]time.Duration{
				"slow": 10 * time.Millisecond, "fast": 2500 * time.Microsecond, "own": 5 * time.Millisecond,
			}
			names := map[string]string{
				"192.0.2.1": "slow", "2001:db8:1::1": "slow", "192.0.2.2": "fast", "2001:db8:2::1": "fast",
				"192.0.2.3": "own", "192.0.2.4": "metered", "192.0.2.9": "stranger",
			}
			sent := map[string]int64{}
			round := func(send int) error {
				sniffer := p.far.Sniff("v0")
				begin := time.Now().UnixNano()
				total := 0
				var frames [][]byte
				for range send { // all wait for less than 2 s
					for _, a := range []string{
						"192.0.2.1", "2001:db8:1::1", "192.0.2.2", "2001:db8:2::1", "192.0.2.2",
						"2001:db8:2::1", "192.0.2.3", "192.0.2.9",
					} {
						frames = append(frames, m.frameOf(a))
						sent[names[a]]++
						total++
					}
				}
				p.near.Inject("v0", frames...)
				if !sniffer.Wait(total, waitLimit) {
					t.Errorf("too few of %d packets passed", total)
				}
				arrived := map[string][]nettest.Frame{}
				for _, f := range sniffer.Stop() {
					tos, address := m.customerOf(f.Data)
					if address == "" {
						continue
					}
					name := names[address]
					if want := map[bool]int{true: af11}[name == "fast"]; tos != want {
						t.Errorf("%s: TOS %#x: want %#x", name, tos, want)
					}
					if early := time.Duration(f.Time-begin) - time.Duration(
						len(arrived[name]))*gaps[name]; early < -time.Microsecond {
						t.Errorf("%s: packet %d arrived %v early", name, len(arrived[name]), -early)
					}
					arrived[name] = append(arrived[name], f)
				}
				var err error
				for name, gap := range gaps {
					err = errors.Join(err, checkNear(t, name, ipRate(arrived[name]), 100/gap.Seconds(), 0.02))
				}
				// Strangers wait for nobody.
				if s, slow := arrived["stranger"],
					arrived["slow"]; s[len(s)-1].Time > slow[len(slow)-1].Time {
					err = errors.Join(err,
						errors.New("the last stranger arrived after the last packet of slow"))
				}
				return err
			}
			nettest.Steady(t, func() error { return round(60) })
			p.near.Inject("v0", m.frameOf("192.0.2.4"), m.frameOf("192.0.2.4"), m.frameOf("192.0.2.4"),
				m.frameOf("192.0.2.4"))
			want := func(name, plan string, n, red int64) {
				t.Helper()
				w := customerRow{
					Name: name, Plan: plan, packetCount: sentPackets(n), Green: sentPackets(n - red),
					Red: sentPackets(red), Dropped: sentPackets(red),
				}
				if got := p.customers()[name]; got != w {
					t.Errorf("counted %+v: want %+v", got, w)
				}
			}
			want("slow", "slow", sent["slow"], 0)
			want("fast", "fast", sent["fast"], 0)
			want("own", "slow", sent["own"], 0)
			want("metered", "metered", 4, 1)
			s := p.stats()
			if c := s.classNamed(t, "customers"); c.Queued != sentPackets(sent["slow"]+sent["fast"]+
				sent["own"]) {
				t.Errorf("counted %+v: want all packets of customers with a queue queued", c)
			}
			// A full queue drops packets, and counts them.
			p.near.Inject("v0", repeat(m.frameOf("192.0.2.1"), 300)...)
			if c := p.customers()["slow"]; c.Packets != sent["slow"]+300 || c.Dropped.Packets == 0 ||
				c.Dropped.Packets > 99 {
				t.Errorf("counted %+v: want nearly 99 of 300 dropped", c)
			}
			// Other plans: from a queue to another one, to a meter, and back.
			rewriteFile(t, csv,
				head+
					"slow,192.0.2.1 2001:db8:1::/48,fast,\nfast,192.0.2.2,metered,\nmetered,192.0.2.4,slow,\n")
			p.wantExit(0, "reload", "v0")
			p.near.Inject("v0", repeat(m.frameOf("192.0.2.2"), 4)...)
			p.near.Inject("v0", repeat(m.frameOf("192.0.2.4"), 4)...)
			want("fast", "metered", sent["fast"]+4, 1)
			want("metered", "slow", 8, 1)
			r.stopBySIGTERM()
			p.awaitClean(before, qdiscs)
		})
	}
}

// TestLiveCustomerQueuesBoth checks that a customer has a queue of its own in each direction. At
// ingress it is known by its source address.
func TestLiveCustomerQueuesBoth(t *testing.T) {
	if !haveQdisc(t, "fq") {
		t.Skip("this kernel has no fq")
	}
	p := newQueuePair(t)
	before, qdiscs := p.deviceState(), p.qdiscState()
	policy := writePolicy(t, `
classes: [{name: customers, per: customer, match: {proto: udp}, meter: plan}]
customers: {file: customers.csv}
plans: {slow: {queue: {rate: 80kbit, limit: 3s}}}
`)
	rewriteFile(t, filepath.Join(filepath.Dir(policy), "customers.csv"),
		"customer,address,plan\nfar,10.0.0.2 fd00::2,slow\nnear,10.0.0.1 fd00::1,slow\n")
	r := p.runShaper("--direction", "both", "--policy", policy)
	r.out.awaitMatch(t, "v0 ingress: attached")
	const n = 40 // of each family, 10 ms each
	for _, direction := range []string{"egress", "ingress"} {
		m := placement{"", direction}
		from, to := p.senderAndReceiver(m)
		var conns []*net.UDPConn
		var ins []*receiver
		for _, v6 := range []bool{false, true} {
			_, at := p.addresses(m, v6)
			ins = append(ins, listenUDP(t, to, at))
			conns = append(conns, newSender(t, from, at, 0, 0))
		}
		begin := time.Now()
		for range n {
			sendUDP(t, conns[0], 1, 100)
			sendUDP(t, conns[1], 1, 100)
		}
		for i, in := range ins {
			for k := range n {
				eventually(t, func() error {
					if _, there := in.receive(); !there {
						return fmt.Errorf("%s: %d packets arrived: want %d", direction, k, n)
					}
					return nil
				})
			}
			if took := time.Since(begin); took < time.Duration(2*n-2+i)*10*time.Millisecond {
				t.Errorf("%s: %d packets took %v: want 10 ms each", direction, 2*n, took)
			}
		}
		s := p.stats("v0", "--direction", direction)
		if c := s.classNamed(t, "customers"); c.packetCount != sentPackets(2*n) ||
			c.Queued != sentPackets(2*n) {
			t.Errorf("%s: counted %+v: want %d packets, all queued", direction, c, 2*n)
		}
		out, _ := p.wantExit(0, "stats", "--customers", "--direction", direction, "--json")
		if want := `"customers":[{"name":"far","plan":"slow","packets":80,"bytes":8000,`; !strings.Contains(out, want) {
			t.Errorf("%s: stats prints %s: want %s", direction, out, want)
		}
	}
	r.stopBySIGTERM()
	p.awaitClean(before, qdiscs)
}

// repeat returns a frame n times.
func repeat(frame []byte, n int) (out [][]byte) {
	for range n {
		out = append(out, frame)
	}
	return out
}
