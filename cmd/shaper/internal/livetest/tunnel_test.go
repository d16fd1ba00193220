package livetest

import (
	"fmt"
	"testing"
)

// TestLiveTunnels checks customers by what is in a VXLAN tunnel, on the interface that carries it, in both
// directions and at each hook: datagrams, and a stream whose segments may be in one packet.
func TestLiveTunnels(t *testing.T) {
	t.Parallel()
	for key, customers := range map[string]string{
		"vni":           "customer,vni,plan\na,7,all\nb,8,all\n",
		"inner-address": "customer,address,plan\na,10.9.0.2,all\nb,10.9.0.4/30,all\n",
	} {
		for _, m := range placements {
			t.Run(key+"/"+m.hook+"-"+m.direction, func(t *testing.T) {
				m.skipIfUnsupported(t)
				p := newOnceRouter(t)
				p.tunnel(p.far, "10.1.0.1", "10.1.0.2")
				p.sh(p.near, "ip neigh replace 10.9.0.3 dev vx0 lladdr 02:00:00:00:09:02")
				p.sh(p.far, "ip addr add 10.9.0.3/24 dev vx0")
				policy := writeWithCustomers(t, `
classes:
  - {name: customers, per: customer, meter: plan}
  - {name: tunnel, match: {vni: 7, dport: 4789}}
  - {name: rest}
customers: {file: customers.csv, key: `+key+`}
plans:
  all: {type: token-bucket, rate: 10gbit, burst: 10MB}
`, customers)
				p.runOn("v0", policy, "--direction", m.direction, "--hook", m.hook)
				from, to, address := p.near, p.far, "10.9.0.2"
				if m.direction == "ingress" {
					from, to, address = p.far, p.near, "10.9.0.1"
				}
				const datagrams, bytes = 20, 100_000
				expect := func(class string, packets, bytes int64) {
					t.Helper()
					eventually(t, func() error {
						s := p.stats("v0", "--direction", m.direction)
						got := s.classNamed(t, class)
						if got.Packets < packets || packets == 0 && got.Packets > 0 || got.Bytes < bytes {
							return fmt.Errorf("class %s has %d packets and %d bytes, want %d and %d", class, got.Packets,
								got.Bytes, packets, bytes)
						}
						return nil
					})
				}
				p.datagrams(from, to, address, datagrams)
				expect("customers", datagrams, datagrams*(onceLength+50))
				p.stream(from, to, address, bytes)
				expect("customers", datagrams+bytes/1500, datagrams*(onceLength+50)+bytes)
				expect("tunnel", 0, 0)
				if key == "inner-address" && m.direction == "egress" {
					p.datagrams(p.near, p.far, "10.9.0.3", datagrams) // of nobody
					expect("tunnel", datagrams, datagrams*(onceLength+50))
				}
			})
		}
	}
}
