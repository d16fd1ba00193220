package metrics

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/live"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
)

// MaxCustomers is the maximum number of customers of a shaper with metrics of their own. With 8
// samples each, the text of one direction takes about 10 MB.
const MaxCustomers = 10_000

// customer is a customer with metrics of its own.
type customer struct {
	name, plan string
	service    *compiled.Service
	dataplane.CustomerStats
}

// customerCounters are counters of customers. A handler calls Of at most once, and then Close.
type customerCounters interface {
	Of(*compiled.Customers) ([]dataplane.CustomerStats, error)
	Close()
}

// tapCounters are the counters of a shaper tap.
type tapCounters struct{ *live.LocalTap }

func (c tapCounters) Of(plan *compiled.Customers) ([]dataplane.CustomerStats, error) {
	return c.CountersOf(plan)
}
func (tapCounters) Close() {}

// ranking selects the customers with metrics of their own: those with the most bytes. It is used by
// handlers: reading and sorting customers, or computing their plans, must not delay the owner of
// the shapers.
type ranking struct {
	most int // maximum number of customers of a shaper

	mu sync.Mutex
	of [2]rankedShaper // by direction
}

// rankedShaper holds the selected customers of one direction.
type rankedShaper struct {
	loaded time.Time // time when the policy of plan was loaded
	plan   *compiled.Customers
	shown  []string // names of the selected customers
}

// rank selects the customers of all shapers. A nil ranking selects none.
func (r *ranking) rank(shapers []Observation) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range shapers {
		if o := &shapers[i]; o.counters != nil {
			o.top, o.topError = r.of[o.About.Direction].rank(o, r.most)
			o.counters.Close()
			o.counters = nil
		}
	}
}

// rank returns the customers with the most bytes, in the order of the plan; never nil. The bytes of
// a customer selected before count an eighth more. Otherwise two customers with nearly the same
// bytes would displace each other again and again.
func (r *rankedShaper) rank(o *Observation, most int) ([]customer, error) {
	if err := r.follow(o); err != nil {
		return []customer{}, err
	}
	plan := r.plan
	stats, err := o.counters.Of(plan)
	if err != nil {
		return []customer{}, err
	}
	bytes, order := make([]int64, len(stats)), make([]int, len(stats))
	for i := range stats {
		bytes[i], order[i] = stats[i].Total().Bytes, i
	}
	for _, name := range r.shown {
		if n := plan.Number(name); n != 0 {
			bytes[n-1] += bytes[n-1] / 8
		}
	}
	if len(order) > most {
		slices.SortFunc(order, func(a, b int) int { return cmp.Or(cmp.Compare(bytes[b], bytes[a]), a-b) })
		order = order[:most]
		slices.Sort(order)
	}
	r.shown = r.shown[:0]
	out := make([]customer, len(order))
	for i, at := range order {
		service := plan.Service(uint32(at + 1))
		out[i] = customer{plan.Source.List[at].Name, service.Name, service, stats[at]}
		r.shown = append(r.shown, out[i].name)
	}
	return out, nil
}

// follow sets the plan to the plan of an observation. It compiles the policy only if the owner did
// not, because another process loaded it.
func (r *rankedShaper) follow(o *Observation) error {
	if o.policy != nil {
		r.plan, r.loaded = o.policy().Plan.Customers, o.About.Loaded
		return nil
	}
	if r.loaded.Equal(o.About.Loaded) {
		return nil
	}
	policy, err := policyfile.CompileNames(o.About.Label)
	if err == nil && policy.Plan.Customers == nil {
		err = live.ErrNoCustomers
	}
	if err != nil {
		r.loaded = time.Time{} // try again
		return err
	}
	r.plan, r.loaded = policy.Plan.Customers, o.About.Loaded
	return nil
}
