package budgets

import (
	"github.com/a-seed-32e5a53f/shaper/dataplane/pipeline"
	"github.com/a-seed-32e5a53f/shaper/meter/shared/lease"
)

// ReplayStore simulates the server in a replay. This host is the only host of each budget, from
// some time before the capture begins. Times are the capture's.
type ReplayStore struct {
	pipeline *pipeline.Pipeline
	budgets  []*ownBudget
	begun    bool
}

// ownBudget is a budget with this host only.
type ownBudget struct {
	name  string
	host  *lease.Host
	store lease.Store
	start int64 // time at which the store's clock is 0, ns
	next  int64 // time of the host's next call, ns
	every int64 // interval between calls, ns
}

// NewReplayStore returns the store of a pipeline, or nil if no budget is on a server.
func NewReplayStore(p *pipeline.Pipeline) *ReplayStore {
	var a *ReplayStore
	for _, s := range OnServers(p.Plan()) {
		if a == nil {
			a = &ReplayStore{pipeline: p}
		}
		t := TermsOf(s)
		a.budgets = append(a.budgets,
			&ownBudget{name: s.BudgetName, host: lease.NewHost("replay", 1, t), every: t.Interval})
	}
	return a
}

const (
	// intervals before the first packet: the store learns that there is only one host, and the
	// buckets fill
	intervalsBefore  = 100
	intervalsBetween = 1000 // maximum number of simulated intervals between two packets
)

// Until simulates the calls of the host until a time of the capture, in ns.
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
			r := b.host.Request(b.next, a.pipeline.Demand(b.name))
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
