package livetest

import (
	"fmt"
	"path/filepath"
	"testing"
)

// TestLiveCustomersVLAN checks that customers are found by the outer VLAN tag, or by the two
// outermost ones, also where the kernel has stripped the outer tag.
func TestLiveCustomersVLAN(t *testing.T) {
	t.Parallel()
	const qinq7, qinq8, tag7, tag9 = 0x88a8_0007, 0x88a8_0008, 0x8100_0007, 0x8100_0009
	for _, key := range []struct {
		key, table string
		want       map[string]int64 // packets by customer
		strangers  int64
	}{
		{"vlan", "customer,vlan,plan\na,7,once\nb,8 3000,once\nc,100,once\n", map[string]int64{"a": 4, "b": 1, "c": 0}, 2},
		{"[svlan, cvlan]", "customer,svlan,cvlan,plan\na,7,9,once\nb,8,7,once\nc,9,7,once\n", map[string]int64{"a": 2, "b": 1, "c": 0}, 4},
	} {
		for _, m := range placements {
			t.Run(key.key+"-"+m.hook+"-"+m.direction, func(t *testing.T) {
				m.skipIfUnsupported(t)
				p := newPair(t)
				from, _ := p.senderAndReceiver(m)
				source := byte(1)
				if m.direction == "ingress" {
					source = 2
				}
				policy := writePolicy(t, `
classes:
  - {name: customers, per: customer, match: {src: 192.0.2.1, proto: udp}, meter: {type: plan, count: packets}}
  - {name: strangers, match: {src: 192.0.2.1, proto: udp}}
customers: {file: customers.csv, key: `+key.key+`}
plans: {once: {type: token-bucket, rate: 1p/1000s, burst: 1}}
`)
				rewriteFile(t, filepath.Join(filepath.Dir(policy), "customers.csv"), key.table)
				r := p.runShaper(m.flags("--policy", policy)...)
				from.Inject("v0",
					taggedFrame(source, tag7), taggedFrame(source, qinq7, tag9), taggedFrame(source, tag7),
					taggedFrame(source, qinq7, tag9),
					taggedFrame(source, qinq8, tag7), taggedFrame(source, tag9), taggedFrame(source))
				eventually(t, func() error {
					got, s := p.customers(), p.stats()
					for name, n := range key.want {
						if c := got[name]; c.Packets != n || c.Green.Packets != min(n, 1) ||
							c.Dropped.Packets != max(n-1, 0) {
							return fmt.Errorf("counted %+v: want %d packets, one of them green", c, n)
						}
					}
					if c := s.classNamed(t, "strangers"); c.Packets != key.strangers || len(got) != 3 {
						return fmt.Errorf("%d customers, strangers %+v: want %d packets", len(got), c,
							key.strangers)
					}
					return nil
				})
				r.stopBySIGTERM()
			})
		}
	}
}
