package budgets

import (
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter/shared/lease"
)

// ReplayStore is the store of a replay: budgets on servers of which this host is the only
// one, in the capture's time. What it shares was there for a while when the capture
// begins.
type ReplayStore struct {
	pipeline *dataplane.Pipeline
	budgets  []*ownBudget
	begun    bool
}

// ownBudget is a budget that nobody else has.
type ownBudget struct {
	name  string
	host  *lease.Host
	store lease.Store
	start int64 // ns, of the store's clock
	next  int64 // ns, when the host calls next
	every int64 // ns
}

// NewReplayStore returns the store of a pipeline, nil if it has no budgets on servers.
func NewReplayStore(p *dataplane.Pipeline) *ReplayStore {
	var a *ReplayStore
	for _, s := range OnServers(p.Plan()) {
		if a == nil {
			a = &ReplayStore{pipeline: p}
		}
		t := TermsOf(s)
		a.budgets = append(a.budgets, &ownBudget{name: s.BudgetName, host: lease.NewHost("replay", 1, t), every: t.Interval})
	}
	return a
}

// Intervals before the first packet, by which the store has learned that there is
// nobody else and the buckets are full, and the most that are gone through without a
// packet.
const (
	intervalsBefore  = 100
	intervalsBetween = 1000
)

// Until lets the host call the store until a time, ns of the capture's.
func (a *ReplayStore) Until(now int64) {
	if a == nil {
		return
	}
	for _, b := range a.budgets {
		if !a.begun {
			b.next = now - intervalsBefore*b.every
			b.start = b.next - 1e9
		}
		b.next = max(b.next, now-intervalsBetween*b.every)
		for ; b.next <= now; b.next += b.every {
			r := b.host.Request(b.next, a.pipeline.Asked(b.name))
			a.apply(b)
			b.host.Reply(b.next, b.store.Call((b.next-b.start)/1000, lease.Server{}, &r), true)
			a.apply(b)
		}
	}
	a.begun = true
}

func (a *ReplayStore) apply(b *ownBudget) {
	a.pipeline.SetLease(b.next, b.name, leaseOf(b.host.Plan()))
}
