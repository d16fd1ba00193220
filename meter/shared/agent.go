package shared

import (
	"cmp"
	"context"
	crand "crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
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
	Notify func(Event)  // called by the agent, one at a time; it must not call the agent. nil for nobody
	Store  string       // in errors, such as Server.String; "" for none
}

// Agent calls a store for the budgets of a process, once in an interval for all of
// them, and has their meters follow. No packet waits for it. Its methods may be called
// by any goroutine, but Start and Run by one only.
type Agent struct {
	client             redis.UniversalClient
	script             *redis.Script
	config             AgentConfig
	interval, deadline time.Duration

	turn    sync.Mutex // a call, Bind, Replace and Leave hold it
	lines   map[string]*line
	mu      sync.Mutex // of what follows; it is written with both
	members []*member
}

// member is a budget of an agent.
type member struct {
	Budget
	host    *lease.Host
	meter   Meter
	applied lease.Plan   // by the meter
	read    lease.Counts // of the meter
	counts  lease.Counts // of all meters that the budget had
	fault   error        // of the meter, in the last call
	status  Status
	started bool // it has been Joined, Lost or Refused
	told    told // not of mu: calls alone use it

	stranger lease.Amounts // the rescue share that the store does not know of
	unknown  int64         // until then, ns of the clock
}

// NewAgent returns an agent of budgets that have the same interval and deadline. It
// does not call the store yet. The client should be one of Open.
func NewAgent(client redis.UniversalClient, budgets []Budget, c AgentConfig) (*Agent, error) {
	if len(budgets) == 0 {
		return nil, errors.New("an agent needs a budget")
	}
	first := budgets[0].Terms
	a := &Agent{
		client: client, script: leaseScript, config: c, lines: map[string]*line{},
		interval: time.Duration(first.Interval), deadline: time.Duration(first.Deadline),
	}
	for _, b := range budgets {
		if err := cmp.Or(checkMember(b.Name), checkMember(b.Host)); err != nil {
			return nil, err
		}
		if err := b.Terms.Check(); err != nil {
			return nil, fmt.Errorf("budget %s: %w", b.Name, err)
		}
		if b.Terms.Interval != first.Interval || b.Terms.Deadline != first.Deadline {
			return nil, fmt.Errorf("budget %s: interval %v differs from %v of budget %s", b.Name, time.Duration(b.Terms.Interval), a.interval, budgets[0].Name)
		}
		m := &member{Budget: b, host: lease.NewHost(b.Host, instance(), b.Terms)}
		m.status = Status{Budget: b.Name, Host: b.Host, Floor: b.Terms.Floor, Size: b.Terms.Size}
		m.bound(0)
		a.members = append(a.members, m)
	}
	return a, nil
}

// instance is a number that no other process has, below 2^53.
func instance() int64 {
	var b [8]byte
	_, _ = crand.Read(b[:]) // never fails
	return int64(binary.LittleEndian.Uint64(b[:])>>11) | 1
}

// Bind gives the budgets their meters, in the order of NewAgent or Replace, or nil where
// there is none. They take the plans of the moment.
func (a *Agent) Bind(meters []Meter) error {
	a.turn.Lock()
	defer a.turn.Unlock()
	for i, m := range a.members {
		m.meter, m.applied = meters[i], lease.Plan{}
		if m.meter == nil {
			continue
		}
		counts, err1 := m.meter.Counts()
		err2 := m.meter.Apply(m.host.Plan())
		if err := cmp.Or(err1, err2); err != nil {
			return fmt.Errorf("budget %s: %w", m.Name, err)
		}
		m.read, m.applied = counts, m.host.Plan()
	}
	return nil
}

// Start calls the store until every budget has a share, or is Lost or Refused: the error
// is the first of those. A store that learns gives no shares for the length of a lease.
// Whatever it returns, Run goes on from there.
func (a *Agent) Start(ctx context.Context) error {
	for {
		begin := time.Now()
		a.call(ctx)
		done, err := a.started()
		if done {
			return err
		}
		if !sleep(ctx, a.interval-time.Since(begin)) {
			return cmp.Or(err, ctx.Err())
		}
	}
}

// Await is Start for budgets that Replace has brought, while Run calls the store.
func (a *Agent) Await(ctx context.Context) error {
	for {
		done, err := a.started()
		if done {
			return err
		}
		if !sleep(ctx, min(a.interval/4, time.Second/100)) {
			return cmp.Or(err, ctx.Err())
		}
	}
}

// started reports whether nothing is left to wait for, and the first budget's error.
func (a *Agent) started() (done bool, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	done = true
	for _, m := range a.members {
		done = done && m.started
		if err == nil && m.status.Err != nil {
			err = fmt.Errorf("budget %s: %w", m.Name, m.status.Err)
		}
	}
	return done, err
}

// Run calls the store once in an interval until ctx ends. Call Leave then, when the
// meters let nothing through any more.
func (a *Agent) Run(ctx context.Context) {
	// Agents that start together call at different times, and go on so.
	next := time.Now().Add(rand.N(a.interval))
	for sleep(ctx, time.Until(next)) {
		a.call(ctx)
		next = next.Add(a.interval * max(1+time.Since(next)/a.interval, 1))
	}
}

// Leave gives back what the host holds. Its meters must let nothing through any more.
// Without an answer until ctx ends, the leases end all the same.
func (a *Agent) Leave(ctx context.Context) error {
	a.turn.Lock()
	defer a.turn.Unlock()
	return a.leave(ctx, a.members)
}

func (a *Agent) leave(ctx context.Context, members []*member) error {
	for _, l := range a.lines {
		l.settle(ctx) // a request that arrives after this one would be of a new host
	}
	requests := make([]lease.Request, len(members))
	for i, m := range members {
		requests[i] = m.host.Leave()
	}
	for i, r := range a.ask(ctx, members, requests) {
		if r.err != nil {
			return fmt.Errorf("leave budget %s: %w", members[i].Name, r.err)
		}
	}
	return nil
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

// call is one call for all budgets.
func (a *Agent) call(ctx context.Context) {
	a.turn.Lock()
	defer a.turn.Unlock()
	sent := a.config.Clock()
	var asked []*member
	var requests []lease.Request
	for _, m := range a.members {
		m.fault = m.count()
		r := m.host.Request(sent, m.counts)
		if err := m.apply(); err != nil {
			// The meter lets more through than the request says.
			m.fault = err
			m.host.Lost(sent)
			a.note(m, sent, &answer{err: err, skipped: true})
			continue
		}
		asked, requests = append(asked, m), append(requests, r)
	}
	within, cancel := context.WithTimeout(ctx, a.deadline)
	defer cancel()
	answers := a.ask(within, asked, requests)
	now := a.config.Clock()
	for i, m := range asked {
		r := &answers[i]
		if took := now - sent; r.err == nil && took > int64(a.deadline) {
			r.err, r.pending = a.explain(late(time.Duration(took), a.deadline)), true
		}
		if r.err != nil {
			m.host.Lost(now)
		} else {
			m.host.Reply(now, r.Reply, r.kept)
		}
		m.fault = cmp.Or(m.apply(), m.fault)
		a.note(m, now, r)
	}
}

// count adds up what packets asked the member's meters for.
func (m *member) count() error {
	if m.meter == nil {
		return nil
	}
	counts, err := m.meter.Counts()
	if err != nil {
		return err
	}
	for i, n := range counts {
		m.counts[i] += max(n, m.read[i]) - m.read[i] // a meter that began again has less
	}
	m.read = counts
	return nil
}

// apply has the meter follow the host's plan.
func (m *member) apply() error {
	plan := m.host.Plan()
	if m.meter == nil || plan == m.applied {
		return nil
	}
	if err := m.meter.Apply(plan); err != nil {
		return err
	}
	m.applied = plan
	return nil
}
