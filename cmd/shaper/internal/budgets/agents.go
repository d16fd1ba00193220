package budgets

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/meter/shared"
	"github.com/a-seed-32e5a53f/shaper/meter/shared/lease"
)

// Leaser is a shaper whose meters can follow leases of budgets on servers.
type Leaser interface {
	SetLease(budget string, l compiled.Lease) error
	Demand(budget string) ([3]uint64, error)
}

// Agents manages a process's shares of budgets on servers. It runs one agent per server and
// interval. Its methods may be called concurrently.
type Agents struct {
	clock    func() int64
	notify   func(format string, args ...any)
	lock     sync.Mutex // protects the fields below
	followed bool       // Follow was called
	ended    bool       // End was called
	agents   []*sharing
	list     []Host    // of the last Follow
	bound    []Leaser  // of the last Follow
	prepared time.Time // time of the last Prepare whose policy is not in force yet; 0: none
}

// sharing is an agent with its budgets.
type sharing struct {
	*shared.Agent
	server  shared.Server
	budgets []shared.Budget
	shaper  []int // index of the shaper, by budget
	stop    func()
}

// Host is the plan of a shaper, which takes part in budgets under a name of its own.
type Host struct {
	Plan *compiled.Plan
	Name string // name of the shaper among the hosts of its budgets
	MTU  int    // MTU of the interface, bytes; 0: the MTU of the last Follow, or 1500
}

// New returns Agents without shapers. Leases have times of the clock, in ns. notify prints
// events for the operator, in printable lines.
func New(clock func() int64, notify func(string, ...any)) *Agents {
	return &Agents{clock: clock, notify: func(format string, args ...any) {
		notify("%s", say.Printable(fmt.Sprintf(format, args...)))
	}}
}

// Follow makes the meters of these shapers follow their leases. list has their current plans; an
// entry of shapers is nil while the shaper is not attached. Budgets that were there before keep
// their shares. The first call waits until all budgets have their shares or rescue shares, so a
// shaper attached afterwards passes packets at once.
func (s *Agents) Follow(ctx context.Context, list []Host, shapers []Leaser) error {
	s.lock.Lock()
	defer s.lock.Unlock()
	s.list, s.bound, s.prepared = list, shapers, time.Time{}
	wait := !s.followed
	s.followed = true
	return s.update(ctx, list, shapers, wait)
}

// Prepare waits until new budgets in these policies have their shares or rescue shares, at most a
// second. After a reload their meters then pass packets at once. The caller must call Follow
// afterwards, even if the reload fails. Prepare does nothing for budgets that only change their
// server or interval.
func (s *Agents) Prepare(ctx context.Context, policies ...Host) error {
	s.lock.Lock()
	defer s.lock.Unlock()
	s.prepared = time.Now()
	for i := range policies {
		if len(s.list) > 0 && policies[i].MTU == 0 {
			policies[i].MTU = s.list[0].MTU
		}
	}
	shapers := append(slices.Clone(s.bound), make([]Leaser, len(policies))...)
	return s.update(ctx, append(slices.Clone(s.list), policies...), shapers, true)
}

// Abandoned reports whether budgets were prepared for a reload that did not happen.
func (s *Agents) Abandoned() bool {
	s.lock.Lock()
	defer s.lock.Unlock()
	return !s.prepared.IsZero() && time.Since(s.prepared) > prepareTimeout
}

// prepareTimeout is longer than a reload takes. The kernel verifies the program in a second
// or two.
const prepareTimeout = 10 * time.Second

// update starts and stops agents to manage exactly the budgets of list, and binds them to the
// meters of the attached shapers. The caller holds the lock.
func (s *Agents) update(ctx context.Context, list []Host, shapers []Leaser, wait bool) error {
	if s.ended {
		return nil
	}
	groups := groupBudgets(list)
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
		preventCoreDump() // it would contain the password
		client, err := shared.Open(g.server)
		if err == nil {
			g.Agent, err = shared.NewAgent(client, g.budgets,
				shared.AgentConfig{Store: g.server.String(), Clock: s.clock, Notify: s.report})
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
			_ = g.Start(starting) // report prints errors
		}
		g.start()
	}
	for _, g := range kept {
		if wait {
			_ = g.Await(starting)
		}
	}
	for _, a := range s.agents {
		meters := make([]shared.LeasedMeter, len(a.budgets))
		for i, b := range a.budgets {
			if sh := shapers[a.shaper[i]]; sh != nil {
				meters[i] = leasedMeter{sh, b.Name}
			}
		}
		if err := a.Bind(meters); err != nil {
			return err
		}
	}
	return nil
}

// start runs the agent in a goroutine.
func (a *sharing) start() {
	running, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	a.stop = func() { cancel(); <-ended }
	go func() {
		defer close(ended)
		a.Run(running)
	}()
}

// end stops the agent. If leave is set, it returns the shares to the server: the shapers must
// not pass packets any more.
func (a *sharing) end(leave bool) {
	a.stop()
	if !leave {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), leaveTimeout)
	defer cancel()
	_ = a.Leave(ctx) // otherwise the lease expires
}

// Statuses returns the status of the budgets of a shaper.
func (s *Agents) Statuses(iface, direction string) (out []shared.Status) {
	s.eachStatus(HostName(iface, direction), func(_ *sharing, st *shared.Status) { out = append(out, *st) })
	return out
}

// States returns the state of the budgets of a shaper, by its name, for other processes.
func (s *Agents) States(host string) (out []State) {
	s.eachStatus(host, func(a *sharing, st *shared.Status) {
		out = append(out, StateOf(st, a.server.String()))
	})
	return out
}

// eachStatus calls f with the status of each budget of a shaper, by its name.
func (s *Agents) eachStatus(host string, f func(a *sharing, st *shared.Status)) {
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

// End stops all agents. If leave is set, it returns all shares to the servers. Otherwise the leases
// expire, and shapers still attached fall to their rescue shares.
func (s *Agents) End(leave bool) {
	s.lock.Lock()
	defer s.lock.Unlock()
	for _, a := range s.agents {
		a.end(leave)
	}
	s.agents, s.ended = nil, true
}

// startTimeout is the longest wait of a shaper for its first share: ten intervals of the default
// length.
const startTimeout = time.Second

// groupBudgets groups the budgets by server and interval. Of several budgets with the same
// name in one shaper, it uses the first.
func groupBudgets(list []Host) (out []*sharing) {
	type id struct{ budget, host string }
	seen := map[id]bool{}
	for i, sh := range list {
		for _, s := range OnServers(sh.Plan) {
			key := id{s.BudgetName, sh.Name}
			if seen[key] {
				continue
			}
			seen[key] = true
			t, server := TermsOf(s), shared.Server(s.Budget.Address)
			t.Packet = sh.packet(s)
			at := slices.IndexFunc(out, func(g *sharing) bool {
				return g.server == server && g.budgets[0].Terms.Interval == t.Interval
			})
			if at < 0 {
				at, out = len(out), append(out, &sharing{server: server})
			}
			g := out[at]
			g.budgets = append(g.budgets, shared.Budget{Name: s.BudgetName, Host: sh.Name, Terms: t})
			g.shaper = append(g.shaper, i)
		}
	}
	return out
}

// packet returns the number of tokens of the largest packet at a stage.
func (h *Host) packet(stage *compiled.Stage) int64 {
	if stage.Packets {
		return 1
	}
	return int64(h.Plan.Length.PacketLength(cmp.Or(h.MTU, 1500)))
}

// TermsOf returns the terms of a stage's budget on a server, without those of the interface.
func TermsOf(s *compiled.Stage) lease.Terms {
	b := s.Budget
	return lease.Terms{
		Weight: int64(b.Weight), Floor: Unit(s.Packets).Floor(), Rescue: b.Rescue.Of(1_000_000),
		Hosts: int64(b.Hosts), Interval: int64(b.Interval), Deadline: int64(b.Interval / 2),
		Size:   AmountsOf(compiled.LimitsOf(s.Source.Params)),
		Beside: s.Kind.Info().Beside,
	}
}

// HostName returns the name of a shaper among the hosts of its budgets: host name, interface and
// direction. Characters not allowed in names become underscores.
func HostName(iface, direction string) string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return strings.Map(func(r rune) rune {
		if 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' ||
			strings.ContainsRune("._-:@", r) {
			return r
		}
		return '_'
	}, host+":"+iface+":"+direction)
}

// leaveTimeout is the longest wait of an ending shaper for the server.
const leaveTimeout = time.Second

// leasedMeter is a shaper's meter of a budget.
type leasedMeter struct {
	Leaser
	budget string
}

// AmountsOf converts the limits of a meter to amounts of package lease.
func AmountsOf(l compiled.BucketLimits) (a lease.Amounts) {
	for i := range l {
		a.Rate[i], a.Burst[i] = l[i].Rate, l[i].Burst
	}
	return a
}

// leaseOf converts a plan of package lease to the lease of a meter.
func leaseOf(p lease.Plan) compiled.Lease {
	l := compiled.Lease{Until: p.Until}
	for i, a := range p.Phase {
		for b := range a.Rate {
			l.Limits[i][b] = compiled.BucketLimit{Rate: a.Rate[b], Burst: a.Burst[b]}
		}
	}
	return l
}

// Apply makes the meter follow a plan.
func (m leasedMeter) Apply(p lease.Plan) error { return m.SetLease(m.budget, leaseOf(p)) }

// Counts returns the amounts that packets requested of the meter.
func (m leasedMeter) Counts() (lease.Counts, error) {
	c, err := m.Demand(m.budget)
	return lease.Counts(c), err
}

// report prints an event on one line.
func (s *Agents) report(e shared.Event) {
	st := e.Status
	share := UnitOf(st.Floor).Rates
	switch e.Kind {
	case shared.Joined:
		s.notify("budget %s: %s of %s, with %s", e.Budget, share(st.Share), share(st.Size),
			say.Count(st.Hosts, "host"))
	case shared.Lost:
		s.notify("budget %s: %v: limited to the rescue share of %s", e.Budget, e.Err, share(st.Rescue))
	case shared.Found:
		s.notify("budget %s: the store answers again: %s of %s, with %s", e.Budget, share(st.Share),
			share(st.Size), say.Count(st.Hosts, "host"))
	case shared.Refused, shared.Failed:
		s.notify("budget %s: %v", e.Budget, e.Err)
	case shared.Reset:
		s.notify("budget %s: the store lost its state: shares grow again when all hosts have reported theirs",
			e.Budget)
	case shared.Crowded:
		s.notify("budget %s: %s share a burst of %s: an idle host gets less than one packet of it", e.Budget,
			say.Count(st.Hosts, "host"), UnitOf(st.Floor).Bursts(st.Size))
	case shared.Unguarded:
		s.notify("budget %s: the server's user lacks the permission +info: a failover may exceed the budget for a moment",
			e.Budget)
	case shared.Disagreed:
		s.notify("budget %s: %s has a smaller size, which applies to all hosts: %s", e.Budget, st.Smallest,
			share(st.Size))
	}
}

// OnServers returns the stages of a plan whose budgets are on servers.
func OnServers(plan *compiled.Plan) (out []*compiled.Stage) {
	for _, i := range plan.Budgets() {
		if s := &plan.Stages[i]; s.Leased {
			out = append(out, s)
		}
	}
	return out
}

// OnServer reports whether a plan contains budgets on servers.
func OnServer(plan *compiled.Plan) bool { return len(OnServers(plan)) > 0 }

// OnHost returns the names of a plan's budgets of this host.
func OnHost(plan *compiled.Outline) (names []string) {
	for i := range plan.Stages {
		if s := &plan.Stages[i]; s.BudgetName != "" && !s.Leased {
			names = append(names, s.BudgetName)
		}
	}
	return names
}
