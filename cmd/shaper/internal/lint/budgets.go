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

// chargedTwice finds budgets of this host that charge a packet at the ingress of an interface and again at
// the egress of another.
func (l *linter) chargedTwice() {
	for _, m := range l.plan.Meters() {
		if m.Budget == nil || !m.Budget.OnHost() || m.Budget.Once {
			continue
		}
		warning := ""
		if l.ChargedTwice != nil {
			warning = l.ChargedTwice(m.Budget.Name)
		}
		if warning != "" {
			l.add(Warning, m.Budget, "budget", "%s", warning)
			continue
		}
		l.add(Note, m.Budget, "budget",
			"budget %s charges a packet in each of its shapers: if this host forwards packets from one with ingress to one with egress, write count: once below share",
			m.Budget.Name)
	}
}
