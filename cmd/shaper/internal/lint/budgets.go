package lint

import "strings"

// rescueShares finds budgets whose rescue share is too small for a packet.
func (l *linter) rescueShares() {
	for _, m := range l.plan.Meters() {
		if m.Budget == nil || m.Budget.OnHost() || m.Packets {
			continue
		}
		b := m.Budget.Resolved()
		for _, bucket := range m.Params.Buckets() {
			rescue := b.Rescue.Of(bucket.Burst) / int64(b.Hosts)
			if bucket.Burst >= l.MTU && rescue < l.MTU {
				l.add(Warning, m, strings.ToLower(bucket.BurstName), "the rescue share of %s is %d B for each of %d hosts, below the MTU: while the store is unreachable, a packet of %d bytes never fits", bucket.BurstName, rescue, b.Hosts, l.MTU)
				break
			}
		}
	}
}
