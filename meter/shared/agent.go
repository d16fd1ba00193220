package shared

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/a-seed-32e5a53f/shaper/meter/shared/lease"
)

// Meter is a host's meter of a budget: it lets through what a plan allows.
type Meter interface {
	// Apply has the meter follow a plan from now on. It returns when packets do.
	Apply(lease.Plan) error
	// Counts returns the tokens that packets asked for, by color.
	Counts() (lease.Counts, error)
}

// Budget is one of an Agent's budgets.
type Budget struct {
	Name  string
	Host  string // the name of this host's meter, which no other meter of the budget has
	Terms lease.Terms
}

// AgentConfig are the parameters of an Agent.
type AgentConfig struct {
	Clock  func() int64 // ns of the clock that plans are in; it must never stop or go back
	Notify func(Event)  // called by the agent's goroutine; nil for nobody
}

// Event is something that an operator wants to know.
type Event struct {
	Budget string
	Host   string
	Kind   EventKind
	Err    error // of Lost, Refused and Failed
	Status Status
}

// EventKind says what happened. Each is reported once, when it begins.
type EventKind uint8

// Kinds of events.
const (
	Joined    EventKind = iota // the first share arrived
	Lost                       // the lease is over: the rescue share holds
	Found                      // the store answers again
	Refused                    // the store refuses this host
	Failed                     // the meter did not take a plan, or its counts could not be read
	Reset                      // the store lost its state, or another server took over
	Disagreed                  // another host gave a smaller size, Status.Smallest
)

// Status is what an agent knows of a budget.
type Status struct {
	Budget, Host string
	Heard        bool          // the store has answered
	Rescued      bool          // the lease is over
	Learning     bool          // the store learns what hosts hold
	Size         lease.Amounts // that is in force
	Share        lease.Amounts // that this host may use now
	Rescue       lease.Amounts // that it falls to
	Hosts, Late  int64
	Smallest     string // host that gave the smallest size, "" if all agree
	Refused      lease.Refusal
	Calls, Lost  uint64
	Err          error // of the last call, nil if it was answered
}

// Agent calls a store for the budgets of a process, once in an interval for all of
// them, and has their meters follow. No packet waits for it.
type Agent struct {
	client  redis.UniversalClient
	config  AgentConfig
	members []*member

	turn sync.Mutex // of members: a call holds it
	mu   sync.Mutex // of what Status returns
}

// member is a budget of the agent. The agent's goroutine owns it.
type member struct {
	Budget
	host    *lease.Host
	meter   Meter
	status  Status
	applied lease.Plan
	epoch   int64
	failing bool
	joined  bool
	small   string
}

// NewAgent returns an agent of budgets that have the same interval and deadline. It
// does not call the store yet.
func NewAgent(client redis.UniversalClient, budgets []Budget, c AgentConfig) (*Agent, error) {
	if len(budgets) == 0 {
		return nil, fmt.Errorf("an agent needs a budget")
	}
	a := &Agent{client: client, config: c}
	for _, b := range budgets {
		if err := b.Terms.Check(); err != nil {
			return nil, fmt.Errorf("budget %s: %w", b.Name, err)
		}
		if t, first := b.Terms, budgets[0].Terms; t.Interval != first.Interval || t.Deadline != first.Deadline {
			return nil, fmt.Errorf("budget %s: interval %v differs from %v of budget %s", b.Name, time.Duration(t.Interval), time.Duration(first.Interval), budgets[0].Name)
		}
		m := &member{Budget: b, host: lease.NewHost(b.Host, instance(), b.Terms)}
		m.status = Status{Budget: b.Name, Host: b.Host, Size: b.Terms.Size}
		a.members = append(a.members, m)
	}
	return a, nil
}

// instance is a number that no other process has, below 2^53.
func instance() int64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return int64(binary.LittleEndian.Uint64(b[:])>>11) | 1
}

// Bind gives the budgets their meters, in the order of NewAgent, or nil where there is
// none. They take the plans of the moment.
func (a *Agent) Bind(meters []Meter) error {
	a.turn.Lock()
	defer a.turn.Unlock()
	for i, m := range a.members {
		if m.meter = meters[i]; m.meter == nil {
			continue
		}
		if err := m.meter.Apply(m.host.Plan()); err != nil {
			return fmt.Errorf("budget %s: %w", m.Name, err)
		}
		m.applied = m.host.Plan()
	}
	return nil
}

// Start calls the store until every budget has a share, a call fails, or ctx ends. A
// store that learns has none to give for the length of a lease. The error says why
// the store did not answer; Run goes on all the same.
func (a *Agent) Start(ctx context.Context) error {
	interval := time.Duration(a.members[0].Terms.Interval)
	for {
		begin := time.Now()
		a.call(ctx)
		ready := true
		for _, m := range a.members {
			if err := m.status.Err; err != nil {
				return err
			}
			ready = ready && !m.status.Learning && m.status.Heard
		}
		if ready {
			return nil
		}
		if !sleep(ctx, interval-time.Since(begin)) {
			return ctx.Err()
		}
	}
}

// Run calls the store once in an interval until ctx ends, and then leaves the budgets:
// what this host held is free for others. The meters must let nothing through by then.
func (a *Agent) Run(ctx context.Context) {
	interval := time.Duration(a.members[0].Terms.Interval)
	next := time.Now()
	for sleep(ctx, time.Until(next)) {
		a.call(ctx)
		next = next.Add(interval)
		if now := time.Now(); next.Before(now) {
			next = now // a call took longer, or the process stood still
		}
	}
}

// Leave gives back what the host holds. Its meters must let nothing through any more.
func (a *Agent) Leave(ctx context.Context) error {
	requests := make([]lease.Request, len(a.members))
	for i, m := range a.members {
		requests[i] = m.host.Leave()
	}
	replies, _, err := a.ask(ctx, requests)
	for _, r := range replies {
		if r.err != nil {
			return r.err
		}
	}
	return err
}

func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// call is one call of all budgets.
func (a *Agent) call(ctx context.Context) {
	a.turn.Lock()
	defer a.turn.Unlock()
	requests := make([]lease.Request, len(a.members))
	for i, m := range a.members {
		var counts lease.Counts
		if m.meter != nil {
			c, err := m.meter.Counts()
			a.failed(m, err)
			counts = c
		}
		requests[i] = m.host.Request(a.config.Clock(), counts)
		a.apply(m)
	}
	replies, replicated, err := a.ask(ctx, requests)
	now := a.config.Clock()
	for i, m := range a.members {
		switch {
		case err != nil:
			m.host.Lost(now)
			a.note(m, now, lease.Reply{}, err)
		case replies[i].err != nil:
			m.host.Lost(now)
			a.note(m, now, lease.Reply{}, replies[i].err)
		default:
			m.host.Reply(now, replies[i].Reply, replicated[i])
			a.note(m, now, replies[i].Reply, nil)
		}
		a.apply(m)
	}
}

// apply has the meter follow the host's plan, if that has changed.
func (a *Agent) apply(m *member) {
	plan := m.host.Plan()
	if m.meter == nil || plan == m.applied {
		return
	}
	err := m.meter.Apply(plan)
	if err == nil {
		m.applied = plan
	}
	a.failed(m, err)
}

func (a *Agent) failed(m *member, err error) {
	if err != nil && !m.failing {
		a.notify(m, Failed, err)
	}
	m.failing = err != nil
}

func (a *Agent) notify(m *member, kind EventKind, err error) {
	if a.config.Notify != nil {
		a.config.Notify(Event{m.Name, m.Host, kind, err, m.status})
	}
}

// note keeps what a call has brought, and reports what is new.
func (a *Agent) note(m *member, now int64, r lease.Reply, err error) {
	before := m.status
	last, heard := m.host.Heard()
	plan := m.host.Plan()
	a.mu.Lock()
	s := &m.status
	s.Calls++
	s.Err = err
	s.Refused = r.Refused
	if err != nil {
		s.Lost++
	} else if r.Refused != lease.Granted {
		s.Err = fmt.Errorf("budget %s: %w", m.Name, refused{r.Refused, m.Host})
	}
	s.Heard, s.Rescued, s.Share, s.Rescue = heard, m.host.Rescued(now), plan.At(now), plan.Phase[2]
	if heard {
		s.Size, s.Hosts, s.Late, s.Smallest, s.Learning = last.Size, last.Hosts, last.Late, last.Smallest, last.Learning
	}
	a.mu.Unlock()
	switch {
	case s.Refused != lease.Granted && before.Refused != s.Refused:
		a.notify(m, Refused, s.Err)
	case s.Rescued && (!before.Rescued || before.Calls == 0):
		a.notify(m, Lost, s.Err)
	case heard && !last.Learning && !m.joined:
		m.joined = true
		a.notify(m, Joined, nil)
	case !s.Rescued && before.Rescued:
		a.notify(m, Found, nil)
	}
	if heard && m.epoch != last.Epoch {
		if m.epoch != 0 {
			a.notify(m, Reset, nil)
		}
		m.epoch = last.Epoch
	}
	if s.Smallest != m.small {
		if m.small = s.Smallest; m.small != "" {
			a.notify(m, Disagreed, nil)
		}
	}
}

// refused is a refusal as an error.
type refused struct {
	lease.Refusal
	host string
}

func (r refused) Error() string { return fmt.Sprintf("host %s is refused: %v", r.host, r.Refusal) }

// Status returns what the agent knows, in the order of its budgets. It may be called
// by any goroutine.
func (a *Agent) Status() []Status {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := make([]Status, len(a.members))
	for i, m := range a.members {
		out[i] = m.status
	}
	return out
}
