package live

import (
	"encoding/binary"
	"errors"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/calendar"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/changes"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/quota"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// quotas counts what customers use. Both directions of a customer count together.
type quotas struct {
	all, dropped *quota.Ledger // bytes; the dropped ones are among all
	next         time.Time     // time of the next count
	begun        bool
}

// countShare is the part of the time that counting may take: 1/countShare.
const countShare = 100

// changesAtOnce is the number of changes that one count may make, unless a tenth of the customers
// are more. Further ones follow at the next calls, so that the owner of the shapers is not blocked:
// 100,000 changes take 0.7 s.
const changesAtOnce = 10_000

// Restarted must be called when shapers have counters that began at 0.
func (c *Changer) Restarted() {
	for source := range quota.Sources {
		c.quotas.all.Restarted(source)
		c.quotas.dropped.Restarted(source)
	}
	c.quotas.begun = true
}

// count reads the counters of customers with quotas, and gives those who have used theirs the
// plan of the quota until its window ends. The caller must hold the lock of the file.
func (c *Changer) count(now time.Time) error {
	begin := time.Now()
	used, err := c.observe(now, true)
	c.quotas.next = now.Add(max(time.Second, countShare*time.Since(begin)))
	if err != nil {
		return err
	}
	first := !c.quotas.begun
	c.quotas.begun = true
	if first { // the counters are those of a process before
		c.quotas.reset()
		return nil
	}
	if len(used) == 0 {
		return nil
	}
	if most := max(changesAtOnce, c.quotas.all.Len()/10); len(used) > most {
		used, c.quotas.next = used[:most], now
	}
	return c.Set(used)
}

// CountNow counts what customers have used since the last count, for SaveQuotas. It changes no
// plans, so the shapers may be detached.
func (c *Changer) CountNow() error {
	if !c.quotas.begun { // the counters are those of a process before
		return nil
	}
	_, err := c.observe(time.Now(), false)
	return err
}

// observe reads the counters of customers with quotas. With decide it returns the changes that
// they cause.
func (c *Changer) observe(now time.Time, decide bool) (used []changes.Change, err error) {
	var list []Changeable // with quotas
	var policies []*policyfile.Compiled
	shapers := c.shapers()
	for _, sh := range shapers {
		if !sh.HasRules() {
			continue
		}
		policy, err := sh.Policy()
		if err != nil {
			return nil, err
		}
		if policy.HasQuotas() {
			list, policies = append(list, sh), append(policies, policy)
		}
	}
	for i, sh := range list {
		stats, err := sh.CountersOf(policies[i].Plan.Customers)
		if err != nil {
			return nil, err
		}
		used = append(used, c.countShaper(int(sh.Info().Direction), policies[i], stats, now, decide && i == len(list)-1)...)
	}
	if decide && list == nil && shapers != nil { // a reload has removed all quotas
		for t := range c.Book {
			if c.Book.Has(t, changes.ByQuota) {
				used = append(used, changes.Change{Target: t, Reset: true, By: changes.ByQuota})
			}
		}
	}
	return used, nil
}

// errQuotas means that saved counts cannot be used.
var errQuotas = errors.New("written by another version, or damaged")

// SaveQuotas returns what customers have used, for RestoreQuotas; nil if there are no counts.
func (c *Changer) SaveQuotas() []byte {
	q := &c.quotas
	if q.all.Len() == 0 {
		return nil
	}
	all, _ := q.all.AppendBinary(nil) // no error
	b := binary.AppendUvarint(nil, uint64(len(all)))
	b, _ = q.dropped.AppendBinary(append(b, all...))
	return b
}

// RestoreQuotas restores what customers have used. It must be called before the first count.
// Without Restarted, the counters have continued since.
func (c *Changer) RestoreQuotas(b []byte) error {
	size, n := binary.Uvarint(b)
	if n <= 0 || size > uint64(len(b)-n) {
		return errQuotas
	}
	all, dropped := quota.New(), quota.New()
	if all.UnmarshalBinary(b[n:n+int(size)]) != nil || dropped.UnmarshalBinary(b[n+int(size):]) != nil {
		return errQuotas
	}
	c.quotas.all, c.quotas.dropped, c.quotas.begun = all, dropped, true
	return nil
}

// reset sets all counts to 0.
func (q *quotas) reset() {
	for _, l := range []*quota.Ledger{q.all, q.dropped} {
		for customer := range l.Customers() {
			l.Reset(customer)
		}
	}
}

// window is a window of the calendar in a zone.
type window struct {
	every calendar.Window
	zone  *time.Location
}

// countShaper adds the counters of one shaper; source is its direction. With decide it returns the
// changes that the counts of all shapers cause.
func (c *Changer) countShaper(source int, policy *policyfile.Compiled, stats []dataplane.CustomerStats, now time.Time, decide bool) (out []changes.Change) {
	plan := policy.Plan.Customers
	spans := map[window]quota.Span{}
	amender := policy.Amender(c.Book, now)
	for i := range stats {
		name := plan.Source.List[i].Name
		t := changes.Target{Kind: changes.Customer, Name: name}
		q := policy.QuotaOf(name, amender.OwnPlan(uint32(i+1), t))
		layered := c.Book.Has(t, changes.ByQuota)
		if q == nil {
			if layered && decide {
				out = append(out, changes.Change{Target: t, Reset: true, By: changes.ByQuota})
			}
			continue
		}
		w := window{q.Every, q.Zone}
		span, known := spans[w]
		if !known {
			span = quota.SpanOf(q.Every.Bounds(now, q.Zone))
			spans[w] = span
		}
		used := c.quotas.all.Observe(name, source, uint64(stats[i].Total().Bytes), span) -
			c.quotas.dropped.Observe(name, source, uint64(stats[i].Dropped.Bytes), span)
		switch over := used >= q.Limit; {
		case !decide || over == layered:
		case over:
			out = append(out, changes.Change{Target: t, Terms: changes.Terms{Plan: q.Then}, Until: time.Unix(span.End, 0), By: changes.ByQuota})
		default:
			out = append(out, changes.Change{Target: t, Reset: true, By: changes.ByQuota})
		}
	}
	return out
}
