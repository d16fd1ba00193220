package livetest

import (
	"fmt"
	"os/exec"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/dataplane/nettest"
)

// TestLiveOncePaths sends packets on every way through a host, with a budget that charges a packet
// once, or without. Each packet must be charged once: exactly its bytes at the first of the shapers
// that it passes.
func TestLiveOncePaths(t *testing.T) {
	const n = 50
	ingress := func(p *onceRouter) { p.user("v0", "ingress") }
	egress := func(p *onceRouter) { p.user("v1", "egress") }
	both := func(p *onceRouter) { ingress(p); egress(p) }
	routed := func(p *onceRouter) { p.datagrams(p.far, p.other, "10.2.0.2", n) }
	for name, test := range map[string]struct {
		setUp   func(p *onceRouter)
		send    func(p *onceRouter)
		charged int64 // bytes; 0: those of a connection that passed the first shaper
		at      [2]string
	}{
		"forwarded":    {both, routed, n * onceLength, [2]string{"v1", "egress"}},
		"ingress only": {ingress, routed, n * onceLength, [2]string{"v0", "ingress"}},
		"egress only":  {egress, routed, n * onceLength, [2]string{"v1", "egress"}},
		"two tc filters": {
			func(p *onceRouter) {
				p.user("v0", "ingress", "--hook", "tc")
				p.user("v1", "egress", "--hook", "tc")
			}, routed, n * onceLength, [2]string{"v1", "egress"},
		},
		"each: charged twice": {
			func(p *onceRouter) {
				p.runOn("v0", oncePolicy(p.t, "count: each"), "--direction", "ingress")
				p.runOn("v1", oncePolicy(p.t, "count: each"), "--direction", "egress")
			}, routed, 2 * n * onceLength, [2]string{"v1", "egress"},
		},
		"one user counts each": {
			func(p *onceRouter) {
				p.user("v0", "ingress")
				p.runOn("v1", oncePolicy(p.t, "count: each"), "--direction", "egress")
			}, routed, 2 * n * onceLength, [2]string{"v1", "egress"},
		},
		"generated here": {
			both, func(p *onceRouter) { p.datagrams(p.near, p.other, "10.2.0.2", n) }, n * onceLength,
			[2]string{"v1", "egress"},
		},
		"for this host": {
			both, func(p *onceRouter) { p.datagrams(p.far, p.near, "10.1.0.1", n) }, n * onceLength,
			[2]string{"v1", "egress"},
		},
		"masquerade": {
			func(p *onceRouter) {
				if _, err := exec.LookPath("nft"); err != nil {
					p.t.Skipf("%v: apt-get install nftables", err)
				}
				p.near.Run("nft", "table ip t { chain c { type nat hook postrouting priority 100; oif v1 masquerade; }; }")
				both(p)
			}, routed, n * onceLength, [2]string{"v1", "egress"},
		},
		"TCP": { // with super-packets
			both, func(p *onceRouter) { p.stream(p.far, p.other, "10.2.0.2", 4_000_000) }, 0,
			[2]string{"v1", "egress"},
		},
		"bridge": {
			func(p *onceRouter) {
				p.bridge()
				both(p)
			}, func(p *onceRouter) { p.datagrams(p.far, p.other, "10.1.0.9", n) }, n * onceLength,
			[2]string{"v1", "egress"},
		},
		"bridge with TCP": {
			func(p *onceRouter) {
				p.bridge()
				both(p)
			}, func(p *onceRouter) { p.stream(p.far, p.other, "10.1.0.9", 4_000_000) }, 0,
			[2]string{"v1", "egress"},
		},
		"into a tunnel": { // which segments super-packets: ingress_ifindex is 0 at v1
			func(p *onceRouter) {
				p.tunnel(p.other, "10.2.0.1", "10.2.0.2")
				p.sh(p.other, "ip route replace 10.1.0.0/24 via 10.9.0.1")
				both(p)
			}, func(p *onceRouter) { p.stream(p.far, p.other, "10.9.0.2", 4_000_000) }, 0,
			[2]string{"v1", "egress"},
		},
		"into a tunnel, UDP": {
			func(p *onceRouter) {
				p.tunnel(p.other, "10.2.0.1", "10.2.0.2")
				both(p)
			}, func(p *onceRouter) { p.datagrams(p.far, p.other, "10.9.0.2", n) }, n * onceLength,
			[2]string{"v1", "egress"},
		},
		"out of a tunnel": { // ingress_ifindex is the tunnel's at v1; it and v0 both have users
			func(p *onceRouter) {
				p.tunnel(p.far, "10.1.0.1", "10.1.0.2")
				p.sh(p.far, "ip route replace 10.2.0.0/24 via 10.9.0.1")
				p.user("vx0", "ingress")
				both(p)
			}, func(p *onceRouter) { p.stream(p.far, p.other, "10.2.0.2", 4_000_000) }, 0,
			[2]string{"v1", "egress"},
		},
		"VLAN": { // ingress_ifindex is the VLAN device's at v1; it and v0 both have users
			func(p *onceRouter) {
				p.kernelHas("link lo type vlan id 7")
				for i, ns := range []*nettest.Namespace{p.near, p.far} {
					p.sh(ns, "ip link add link v0 name v0.7 type vlan id 7", "ip link set v0.7 up",
						fmt.Sprintf("ip addr add 10.7.0.%d/24 dev v0.7", i+1),
						fmt.Sprintf("ip neigh replace 10.7.0.%d dev v0.7 lladdr 02:00:00:00:00:%02x", 2-i, 2-i))
				}
				p.sh(p.far, "ip route replace 10.2.0.0/24 via 10.7.0.1")
				p.user("v0.7", "ingress")
				both(p)
			}, routed, n * onceLength, [2]string{"v1", "egress"},
		},
		"queued at ingress": { // through an ifb device
			func(p *onceRouter) {
				if !haveQdisc(p.t, "htb") {
					p.t.Skip("this kernel has no htb qdisc")
				}
				p.runOn("v0", writePolicy(p.t, fmt.Sprintf(`classes:
  - name: all
    meter: {type: token-bucket, rate: 1bit, burst: %d, share: {budget: uplinks, store: host, count: once}}
    green: {queue: q}
queues:
  q: {rate: 1gbit, limit: 500ms}
`, onceBurst)), "--direction", "ingress", "--pacer", "htb")
				egress(p)
			}, routed, n * onceLength, [2]string{"v1", "egress"},
		},
		"not metered at ingress": {
			func(p *onceRouter) {
				p.runOn("v0", writePolicy(p.t, fmt.Sprintf(`classes:
  - {name: free, match: {proto: udp, dport: %d}}
  - name: all
    meter: {type: token-bucket, rate: 1bit, burst: %d, share: {budget: uplinks, store: host, count: once}}
`, oncePort, onceBurst)), "--direction", "ingress")
				egress(p)
			}, routed, n * onceLength, [2]string{"v1", "egress"},
		},
		"dry run at ingress": {
			func(p *onceRouter) {
				p.user("v0", "ingress", "--dry-run")
				egress(p)
			}, routed, n * onceLength, [2]string{"v1", "egress"},
		},
		"another budget at ingress": {
			func(p *onceRouter) {
				p.runOn("v0", writePolicy(p.t, `classes:
  - name: all
    meter: {type: token-bucket, rate: 1bit, burst: 5MB, share: {budget: other, store: host, count: once}}
`), "--direction", "ingress")
				egress(p)
			}, routed, n * onceLength, [2]string{"v1", "egress"},
		},
		"the note overwritten": { // by a tc filter that ends the chain: in doubt the packet is charged
			func(p *onceRouter) {
				p.user("v0", "ingress", "--hook", "tc")
				p.sh(p.near,
					"tc filter add dev v0 ingress protocol ip prio 60000 u32 match u32 0 0 classid 1:1")
				egress(p)
			}, routed, 2 * n * onceLength, [2]string{"v1", "egress"},
		},
		"through another namespace": { // far is a container that forwards, with a user of its own
			func(p *onceRouter) {
				p.inFar("v0", "egress")
				both(p)
			}, routed, n * onceLength, [2]string{"v1", "egress"},
		},
		"from a TAP device": {
			func(p *onceRouter) {
				p.user(p.openTAP(), "ingress")
				egress(p)
			}, func(p *onceRouter) { p.fromTAP(n) }, n * onceLength, [2]string{"v1", "egress"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := newOnceRouter(t)
			test.setUp(p)
			test.send(p)
			if test.charged > 0 {
				p.wantCharged(name, test.at[0], test.at[1], test.charged)
				return
			}
			eventually(t, func() error { // the last packets of a connection may still be on their way
				want, got := p.passed("v0", "ingress"), p.charged(test.at[0], test.at[1])
				if want < 4_000_000 || got > want || got < want-100 {
					return fmt.Errorf("%d bytes charged, %d passed the first shaper, and 4000000 were sent", got, want)
				}
				return nil
			})
		})
	}
}
