package budgets

import (
	"context"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter/shared"
	"github.com/a-seed-32e5a53f/shaper/meter/shared/lease"
)

// Leaser is a shaper in which the meters of budgets on servers follow leases.
type Leaser interface {
	SetLease(budget string, l dataplane.Lease) error
	Asked(budget string) ([3]uint64, error)
}

// Agents keeps a process's shares of budgets on servers: an agent for each server and
// interval, which runs until the end.
type Agents struct {
	clock  func() int64
	say    func(format string, args ...any)
	lock   sync.Mutex // of what follows
	begun  bool
	ended  bool
	agents []*sharing
	list   []Shaper  // of the last follow
	bound  []Leaser  // likewise
	ahead  time.Time // when budgets were prepared for a policy that is not in force yet; 0 for none
}

// sharing is an agent with its budgets.
type sharing struct {
	*shared.Agent
	server  shared.Server
	budgets []shared.Budget
	of      []int // by budget: the index of its shaper
	stop    func()
}

// Shaper is a budget of the shaper of a policy, by a name that no other shaper has.
type Shaper struct {
	Plan *dataplane.Plan
	Name string // among the hosts of its budgets
}

// New returns the shares of no shapers. Plans are in times of the clock; say is
// told what an operator wants to know.
func New(clock func() int64, say func(string, ...any)) *Agents {
	return &Agents{clock: clock, say: say}
}

// Follow has the meters of these shapers, which may have other policies than before,
// follow their leases; a shaper is nil while it is gone. Budgets that stay keep their
// shares. The first time it waits until the new ones have theirs, or their rescue
// shares, so that what is attached then lets packets through at once.
func (s *Agents) Follow(ctx context.Context, list []Shaper, shapers []Leaser) error {
	s.lock.Lock()
	defer s.lock.Unlock()
	s.list, s.bound, s.ahead = list, shapers, time.Time{}
	wait := !s.begun
	s.begun = true
	return s.turn(ctx, list, shapers, wait)
}

// Prepare waits until budgets that policies bring have their shares, or their rescue
// shares: at most a second. A reload then lets their packets through at once. It must be
// followed by follow, whatever becomes of the reload. Budgets that only move to another
// server, or get another interval, are not prepared.
func (s *Agents) Prepare(ctx context.Context, policies ...Shaper) error {
	s.lock.Lock()
	defer s.lock.Unlock()
	s.ahead = time.Now()
	shapers := append(slices.Clone(s.bound), make([]Leaser, len(policies))...)
	return s.turn(ctx, append(slices.Clone(s.list), policies...), shapers, true)
}

// Abandoned says that budgets were prepared for a reload that did not happen.
func (s *Agents) Abandoned() bool {
	s.lock.Lock()
	defer s.lock.Unlock()
	return !s.ahead.IsZero() && time.Since(s.ahead) > aheadTimeout
}

// aheadTimeout is longer than a reload takes: the program is verified in a second or two.
const aheadTimeout = 10 * time.Second

// turn has agents for the budgets of these policies, and the meters of those whose shaper
// is there follow them. The caller has the lock.
func (s *Agents) turn(ctx context.Context, list []Shaper, shapers []Leaser, wait bool) error {
	if s.ended {
		return nil
	}
	groups := group(list)
	var added, kept []*sharing
	for _, g := range groups {
		at := slices.IndexFunc(s.agents, func(a *sharing) bool {
			return a.server == g.server && a.budgets[0].Terms.Interval == g.budgets[0].Terms.Interval
		})
		if at >= 0 {
			g.Agent, g.stop = s.agents[at].Agent, s.agents[at].stop
			if err := g.Replace(g.budgets); err != nil {
				return err
			}
			kept = append(kept, g)
			continue
		}
		_ = unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}) // a core would have the password
		client, err := shared.Open(g.server)
		if err == nil {
			g.Agent, err = shared.NewAgent(client, g.budgets, shared.AgentConfig{Store: g.server.String(), Clock: s.clock, Notify: s.report})
		}
		if err != nil {
			return err
		}
		added = append(added, g)
	}
	for _, a := range s.agents {
		if !slices.ContainsFunc(groups, func(g *sharing) bool { return g.Agent == a.Agent }) {
			a.end(true)
		}
	}
	s.agents = groups
	starting, end := context.WithTimeout(ctx, startTimeout)
	defer end()
	for _, g := range added {
		if wait {
			_ = g.Start(starting) // report tells of an error
		}
		g.begin()
	}
	for _, g := range kept {
		if wait {
			_ = g.Await(starting)
		}
	}
	for _, a := range s.agents {
		meters := make([]shared.Meter, len(a.budgets))
		for i, b := range a.budgets {
			if sh := shapers[a.of[i]]; sh != nil {
				meters[i] = leasedMeter{sh, b.Name}
			}
		}
		if err := a.Bind(meters); err != nil {
			return err
		}
	}
	return nil
}

// begin starts the agent.
func (a *sharing) begin() {
	running, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	a.stop = func() { cancel(); <-ended }
	go func() {
		defer close(ended)
		a.Run(running)
	}()
}

// end stops the agent. It gives back what its shapers held if they let nothing through
// any more.
func (a *sharing) end(leave bool) {
	a.stop()
	if !leave {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), leaveTimeout)
	defer cancel()
	_ = a.Leave(ctx) // the lease ends all the same
}

// Statuses returns the state of the budgets of a shaper.
func (s *Agents) Statuses(iface, direction string) (out []shared.Status) {
	s.each(HostName(iface, direction), func(_ *sharing, st *shared.Status) { out = append(out, *st) })
	return out
}

// States is of for other processes, by the shaper's name.
func (s *Agents) States(host string) (out []State) {
	s.each(host, func(a *sharing, st *shared.Status) {
		out = append(out, StateOf(st, a.server.String()))
	})
	return out
}

// each calls f with the state of the budgets of a shaper, by its name.
func (s *Agents) each(host string, f func(a *sharing, st *shared.Status)) {
	s.lock.Lock()
	defer s.lock.Unlock()
	for _, a := range s.agents {
		for _, st := range a.Status() {
			if st.Host == host {
				f(a, &st)
			}
		}
	}
}

// End is the end of all agents. What shapers hold that go on is not given back: their
// leases end, and leave them their rescue shares.
func (s *Agents) End(leave bool) {
	s.lock.Lock()
	defer s.lock.Unlock()
	for _, a := range s.agents {
		a.end(leave)
	}
	s.agents, s.ended = nil, true
}

// startTimeout is how long a shaper waits for its first share: ten intervals of a
// budget that has the default.
const startTimeout = time.Second

// group sorts the budgets on servers by server and interval. Of several with the same
// name and shaper, the first counts.
func group(list []Shaper) (out []*sharing) {
	type id struct{ budget, host string }
	seen := map[id]bool{}
	for i, sh := range list {
		for _, s := range OnServers(sh.Plan) {
			key := id{s.BudgetName, sh.Name}
			if seen[key] {
				continue
			}
			seen[key] = true
			t, server := TermsOf(s), shared.Server(s.Budget.Store)
			at := slices.IndexFunc(out, func(g *sharing) bool {
				return g.server == server && g.budgets[0].Terms.Interval == t.Interval
			})
			if at < 0 {
				at, out = len(out), append(out, &sharing{server: server})
			}
			g := out[at]
			g.budgets = append(g.budgets, shared.Budget{Name: s.BudgetName, Host: sh.Name, Terms: t})
			g.of = append(g.of, i)
		}
	}
	return out
}

// TermsOf is what a budget on a server is to its stage.
func TermsOf(s *dataplane.PlanStage) lease.Terms {
	b := s.Budget
	return lease.Terms{
		Weight: int64(b.Weight), Floor: Unit(s.Packets).Floor(), Rescue: b.Rescue.Of(1_000_000), Hosts: int64(b.Hosts),
		Interval: int64(b.Interval), Deadline: int64(b.Interval / 2), Size: AmountsOf(dataplane.LimitsOf(s.Source.Params)),
		Beside: s.Kind.Info().Beside,
	}
}

// HostName is the name of a shaper among those of its budgets: host, interface and
// direction. Characters that no name has become underscores.
func HostName(iface, direction string) string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return strings.Map(func(r rune) rune {
		if 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || strings.ContainsRune("._-:@", r) {
			return r
		}
		return '_'
	}, host+":"+iface+":"+direction)
}

const leaveTimeout = time.Second

// leasedMeter is the meter of a budget in a shaper.
type leasedMeter struct {
	Leaser
	budget string
}

// AmountsOf converts limits of a meter for package lease.
func AmountsOf(l dataplane.Limits) (a lease.Amounts) {
	for i := range l {
		a.Rate[i], a.Burst[i] = l[i].Rate, l[i].Burst
	}
	return a
}

// leaseOf is a plan in the form of meters.
func leaseOf(p lease.Plan) dataplane.Lease {
	l := dataplane.Lease{Until: p.Until}
	for i, a := range p.Phase {
		for b := range a.Rate {
			l.Limits[i][b] = dataplane.Limit{Rate: a.Rate[b], Burst: a.Burst[b]}
		}
	}
	return l
}

// Apply has the meter follow a plan.
func (m leasedMeter) Apply(p lease.Plan) error { return m.SetLease(m.budget, leaseOf(p)) }

// Counts returns what the meter was asked for.
func (m leasedMeter) Counts() (lease.Counts, error) {
	c, err := m.Asked(m.budget)
	return lease.Counts(c), err
}

// report tells an operator of an event, in a line.
func (s *Agents) report(e shared.Event) {
	st := e.Status
	share := UnitOf(st.Floor).Rates
	switch e.Kind {
	case shared.Joined:
		s.say("budget %s: %s of %s, with %s", e.Budget, share(st.Share), share(st.Size), say.Count(st.Hosts, "host"))
	case shared.Lost:
		s.say("budget %s: %v: limited to the rescue share of %s", e.Budget, e.Err, share(st.Rescue))
	case shared.Found:
		s.say("budget %s: the store answers again: %s of %s, with %s", e.Budget, share(st.Share), share(st.Size), say.Count(st.Hosts, "host"))
	case shared.Refused:
		s.say("budget %s: %v", e.Budget, e.Err)
	case shared.Failed:
		s.say("budget %s: %v", e.Budget, e.Err)
	case shared.Reset:
		s.say("budget %s: the store lost its state: shares grow again when all hosts have reported theirs", e.Budget)
	case shared.Crowded:
		s.say("budget %s: %s share a burst of %s: an idle host gets less than one packet of it", e.Budget, say.Count(st.Hosts, "host"), UnitOf(st.Floor).Bursts(st.Size))
	case shared.Unguarded:
		s.say("budget %s: the server's user lacks the permission +info: a failover may exceed the budget for a moment", e.Budget)
	case shared.Disagreed:
		s.say("budget %s: %s has a smaller size, which applies to all hosts: %s", e.Budget, st.Smallest, share(st.Size))
	}
}

// OnServers returns the stages of a plan whose budgets are on servers.
func OnServers(plan *dataplane.Plan) (out []*dataplane.PlanStage) {
	for _, i := range plan.Budgets() {
		if s := &plan.Stages[i]; s.Leased {
			out = append(out, s)
		}
	}
	return out
}

// OnServer reports whether a plan has budgets on servers.
func OnServer(plan *dataplane.Plan) bool { return len(OnServers(plan)) > 0 }
