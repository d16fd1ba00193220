package live

import (
	"slices"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/calendar"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/changes"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/quota"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// quotas counts what customers use. Both directions of a customer count together.
type quotas struct {
	*quota.Ledger           // a source is a direction
	next          time.Time // time of the next count
}

// countShare is the largest part of the time for counting: 1/countShare.
const countShare = 100

// changesAtOnce is the largest number of changes of one count, unless a tenth of the customers are
// more. Further ones follow at the next calls, so the owner of the shapers is not blocked: 100,000
// changes take 0.7 s.
const changesAtOnce = 10_000

// Restarted must be called when the shaper of a direction counts from 0 again.
func (c *Changer) Restarted(d dataplane.Direction) { c.quotas.Restarted(int(d)) }

// count reads the counters of customers with quotas. A customer whose quota is used up gets the
// plan of the quota until the window ends. locked is as in set.
func (c *Changer) count(now time.Time, locked bool) error {
	begin := time.Now()
	used, err := c.observe(now, true)
	c.quotas.next = now.Add(max(time.Second, countShare*time.Since(begin)))
	if err != nil || len(used) == 0 {
		return err
	}
	if most := max(changesAtOnce, c.quotas.Len()/10); len(used) > most {
		used, c.quotas.next = used[:most], now
	}
	return c.set(used, locked, now)
}

// CountNow counts what customers have used since the last count, for SaveQuotas. It changes no
// plans, so the shapers may be detached.
func (c *Changer) CountNow() error {
	_, err := c.observe(time.Now(), false)
	return err
}

// observe reads the counters of customers with quotas. With decide it returns the changes that are
// due.
func (c *Changer) observe(now time.Time, decide bool) (used []changes.Change, err error) {
	var list []Changeable // with quotas
	var policies []*policyfile.Compiled
	shapers := c.shapers()
	for _, sh := range shapers {
		if sh.HasRules() {
			policy, err := sh.Policy()
			if err != nil {
				return nil, err
			}
			if policy.HasQuotas() {
				list, policies = append(list, sh), append(policies, policy)
				continue
			}
		}
		source := int(sh.Info().Direction)
		c.quotas.End(source, now)
		c.quotas.Unknown(source)
	}
	if len(list) == 0 && len(shapers) > 0 && decide { // a policy before had quotas
		for _, t := range c.Book.Planned(changes.ByQuota) {
			used = append(used, changes.Change{Target: t, Reset: true, By: changes.ByQuota})
		}
	}
	for i, sh := range list {
		stats, err := sh.CountersOf(policies[i].Plan.Customers)
		if err != nil {
			return nil, err
		}
		used = append(used, c.countShaper(int(sh.Info().Direction), policies[i:], stats, now, decide)...)
	}
	return used, nil
}

// SaveQuotas returns what customers have used, for RestoreQuotas; nil if there are no counts.
func (c *Changer) SaveQuotas() []byte {
	if c.quotas.Empty() {
		return nil
	}
	b, _ := c.quotas.AppendBinary(nil) // no error
	return b
}

// RestoreQuotas restores what customers have used. It must be called before the first count.
// Without Restarted, the counters have continued since.
func (c *Changer) RestoreQuotas(b []byte) error { return c.quotas.UnmarshalBinary(b) }

// window is a window of the calendar in a zone.
type window struct {
	every calendar.Window
	zone  *time.Location
}

// countShaper adds the counters of one shaper. source is its direction. policies are the policies
// of this shaper and of the shapers counted after it. With decide it returns the changes of
// customers whose counts are complete because no later shaper has them.
func (c *Changer) countShaper(
	source int, policies []*policyfile.Compiled, stats []dataplane.CustomerStats, now time.Time, decide bool,
) (out []changes.Change) {
	policy, later := policies[0], policies[1:]
	plan := policy.Plan.Customers
	spans := map[window]quota.Span{}
	amender := policy.ChangeCompiler(c.Book, now)
	for i := range stats {
		name := plan.Source.List[i].Name
		t := changes.Target{Kind: changes.Customer, Name: name}
		counters := quota.Counters{All: stats[i].Total().Bytes, Dropped: stats[i].Dropped.Bytes}
		change := changes.Change{Target: t, By: changes.ByQuota, Reset: true, Since: now.Round(0)}
		if q := policy.QuotaOf(name, amender.OwnPlan(uint32(i+1), t)); q != nil {
			w := window{q.Every, q.Zone}
			span, known := spans[w]
			if !known {
				span = quota.SpanOf(q.Every.Bounds(now, q.Zone))
				spans[w] = span
			}
			if c.quotas.Observe(name, source, counters, span) >= q.Limit {
				change.Reset, change.Plan, change.Until = false, q.Then, time.Unix(span.End, 0)
			}
		} else {
			c.quotas.Skip(name, source, counters)
		}
		has := func(p *policyfile.Compiled) bool { return p.Plan.Customers.Number(name) != 0 }
		if decide && change.Plan != c.Book.Plan(t, changes.ByQuota) && !slices.ContainsFunc(later, has) {
			out = append(out, change)
		}
	}
	c.quotas.End(source, now)
	return out
}
