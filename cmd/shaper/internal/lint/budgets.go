package lint

import "strings"

// rescueShares finds budgets with a rescue share below one packet: each host then uses more of the
// burst.
func (l *linter) rescueShares() {
	for _, m := range l.plan.Meters() {
		if m.Budget == nil || m.Budget.OnHost() || m.Packets {
			continue
		}
		b := m.Budget.Resolved()
		for _, bucket := range m.Params.Buckets() {
			rescue := b.Rescue.Of(bucket.Burst) / int64(b.Hosts)
			if bucket.Burst >= l.MTU && rescue < l.MTU {
				l.add(Note, m, strings.ToLower(bucket.BurstName),
					"the rescue share of %s is %d B for each of %d hosts, below the MTU: while the store is unreachable, each uses the %d B of one packet",
					bucket.BurstName, rescue, b.Hosts, l.MTU)
				break
			}
		}
	}
}
