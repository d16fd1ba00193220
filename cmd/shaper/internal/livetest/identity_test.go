package livetest

import (
	"fmt"
	"strings"
	"testing"
)

// byMAC is a policy with a class for a MAC address, customers by MAC address, and a meter for each other one.
const byMAC = `
classes:
  - name: printer
    match: {proto: 253, mac: "02:00:00:00:00:99"}
    meter: {type: token-bucket, rate: 1B/1000s, burst: 100B}
  - {name: customers, per: customer, match: {proto: 253}, meter: plan}
  - name: strangers
    match: {proto: 253}
    meter: {type: token-bucket, rate: 1B/1000s, burst: 200B, per: mac, keys: 100}
customers: {file: customers.csv, key: mac}
plans:
  three: {type: token-bucket, rate: 1B/1000s, burst: 300B}
`

// withMAC returns the frame of customer 192.0.2.1 with another MAC address on the inner side.
func (m placement) withMAC(mac string) []byte {
	frame := m.frameOf("192.0.2.1")
	at := 0 // destination
	if m.direction == "ingress" {
		at = 6
	}
	copy(frame[at:], mac)
	return frame
}

// TestLiveMAC checks that matches, customers and meters by MAC address are those of the inner side: the
// destination at egress, the source at ingress.
func TestLiveMAC(t *testing.T) {
	t.Parallel()
	const printer, a, b, stranger, other = "\x02\x00\x00\x00\x00\x99", "\x02\x00\x00\x00\x0a\x01",
		"\x02\x00\x00\x00\x0b\x01", "\x02\x00\x00\x00\x0c\x01", "\x02\x00\x00\x00\x0d\x01"
	for _, m := range placements {
		t.Run(m.hook+"-"+m.direction, func(t *testing.T) {
			m.skipIfUnsupported(t)
			p := newPair(t)
			policy := writeWithCustomers(t, byMAC,
				"customer,mac,plan\na,02:00:00:00:0a:01 02:00:00:00:0a:02,three\nb,02:00:00:00:0b:01,three\n")
			r := p.runShaper(m.flags("--policy", policy)...)
			from, _ := p.senderAndReceiver(m)
			sniffer := p.sniffPassed(m)
			var frames [][]byte
			for range 2 {
				for _, mac := range []string{printer, a, stranger, b, a, stranger, other, a} {
					frames = append(frames, m.withMAC(mac))
				}
			}
			from.Inject("v0", frames...)
			eventually(t, func() error {
				if s := p.stats(); s.classNamed(t, "strangers").Packets != 6 {
					return fmt.Errorf("counted %+v", s.Classes)
				}
				return nil
			})
			r.stopBySIGTERM()
			passed := map[string]int{}
			for _, frame := range sniffer.Stop() {
				if _, address := m.customerOf(frame.Data); address == "192.0.2.1" {
					at := map[string]int{"egress": 0, "ingress": 6}[m.direction]
					passed[string(frame.Data[at:at+6])]++
				}
			}
			for mac, want := range map[string]int{printer: 1, a: 3, b: 2, stranger: 2, other: 2} {
				if passed[mac] != want {
					t.Errorf("%x: %d frames passed: want %d", mac, passed[mac], want)
				}
			}
		})
	}
}

// TestLiveNoMAC checks that a policy by MAC address is refused on a device without Ethernet.
func TestLiveNoMAC(t *testing.T) {
	p := newPair(t)
	p.near.Run("ip", "tuntap", "add", "t0", "mode", "tun")
	policy := writeWithCustomers(t, byMAC, "customer,mac,plan\n")
	p.wantError(1, "key mac of the customers needs MAC addresses, but link type 101 \\(RAW\\) is not Ethernet: its packets have none", "run", "t0",
		"--policy", policy)
}

// byMark is byMAC by skb mark.
const byMark = `
classes:
  - {name: customers, per: customer, match: {proto: udp}, meter: plan}
  - name: strangers
    match: {proto: udp}
    meter: {type: token-bucket, rate: 1B/1000s, burst: 400B, per: mark, keys: 100}
customers: {file: customers.csv, key: mark}
plans:
  three: {type: token-bucket, rate: 1B/1000s, burst: 600B}
`

// TestLiveMarkKey checks customers and meters by the mark of sockets, and that XDP, which has no marks,
// refuses them.
func TestLiveMarkKey(t *testing.T) {
	t.Parallel()
	policy := writeWithCustomers(t, byMark, "customer,mark,plan\na,7 0x70007,three\nb,8,three\n")
	for _, m := range placements {
		t.Run(m.hook+"-"+m.direction, func(t *testing.T) {
			m.skipIfUnsupported(t)
			p := newPair(t)
			if m.direction == "ingress" {
				if m.hook == "xdp" {
					_, stderr := p.wantExit(2, append([]string{"run", "v0"}, m.flags("--policy", policy)...)...)
					const refused = " mark needs the skb mark, which XDP programs do not have: use --hook tc\n"
					if !strings.Contains(stderr, "per"+refused) || !strings.Contains(stderr, "key"+refused) {
						t.Errorf("got %q", stderr)
					}
				}
				return // marks do not travel between namespaces
			}
			p.runShaper(m.flags("--policy", policy)...)
			_, at := p.addresses(m, false)
			in := listenUDP(t, p.far, at)
			for _, test := range []struct{ mark, sent, want int }{
				{7, 2, 2}, {0x70007, 3, 1}, {8, 4, 3}, {9, 3, 2}, {10, 3, 2}, {0, 3, 2}, {7, 1, 0}, {9, 1, 0},
			} {
				conn := newSender(t, p.near, at, 0, test.mark)
				if got := countPassed(t, conn, in, test.sent); got != test.want {
					t.Errorf("mark %#x: %d of %d packets passed: want %d", test.mark, got, test.sent, test.want)
				}
			}
		})
	}
}

// writeWithCustomers writes a policy and its file of customers.
func writeWithCustomers(t *testing.T, policy, customers string) (path string) {
	t.Helper()
	path = writePolicy(t, policy)
	rewriteFile(t, strings.TrimSuffix(path, "policy.yaml")+"customers.csv", customers)
	return path
}

// TestLiveInnerAddress checks that per: address is of the inner side in both directions.
func TestLiveInnerAddress(t *testing.T) {
	p := newPair(t)
	policy := writePolicy(t, `
classes:
  - name: each
    match: {proto: 253}
    meter: {type: token-bucket, rate: 1B/1000s, burst: 200B, per: address/24, keys: 100}
`)
	p.runShaper("--policy", policy, "--both")
	for _, m := range []placement{{"tcx", "egress"}, {"tcx", "ingress"}} {
		from, to := p.senderAndReceiver(m)
		sniffer := to.Sniff("v0")
		if m.direction == "ingress" {
			sniffer = p.sniffAfterTC()
		}
		var frames [][]byte
		for _, address := range []string{"192.0.2.1", "192.0.2.2", "192.0.2.3", "198.51.100.1", "198.51.100.1"} {
			frames = append(frames, m.frameOf(address))
		}
		from.Inject("v0", frames...)
		eventually(t, func() error {
			stdout, _ := p.wantExit(0, "stats", "v0", "--json", "--direction", m.direction)
			if !strings.Contains(stdout, `"packets":5`) {
				return fmt.Errorf("counted %s", stdout)
			}
			return nil
		})
		passed := map[string]int{}
		for _, frame := range sniffer.Stop() {
			if _, address := m.customerOf(frame.Data); address != "" {
				passed[address]++
			}
		}
		if passed["192.0.2.1"] != 1 || passed["192.0.2.2"] != 1 || passed["192.0.2.3"] != 0 ||
			passed["198.51.100.1"] != 2 {
			t.Errorf("%s: passed %v: want two of each /24", m.direction, passed)
		}
	}
}
