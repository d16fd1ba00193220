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

// LeasedMeter is a host's meter of a budget. It passes the amounts of a plan.
type LeasedMeter interface {
	// Apply makes the meter follow a plan. It returns once the plan is in
	// effect.
	Apply(lease.Plan) error
	// Counts returns the tokens requested by packets, by color.
	Counts() (lease.Counts, error)
}

// Budget is one of an Agent's budgets.
type Budget struct {
	Name  string
	Host  string // name of this host's meter, unique within the budget
	Terms lease.Terms
}

// AgentConfig is the configuration of an Agent.
type AgentConfig struct {
	Clock func() int64 // clock of plans, ns; it must never stop or go back
	// called by the agent, one call at a time; it must not call the agent; nil: not called
	Notify func(Event)
	Store  string // name of the store in errors, such as Server.String; "": none
}

// Agent calls a store for the budgets of a process, once per interval for all
// of them, and makes their meters follow. No packet waits for it. Its methods
// are safe for concurrent use, except Start and Run, which one goroutine at a
// time may call.
type Agent struct {
	client             redis.UniversalClient
	script             *redis.Script
	config             AgentConfig
	interval, deadline time.Duration

	turn    sync.Mutex // held by a call, Bind, Replace and Leave
	lines   map[string]*line
	mu      sync.Mutex // guards members and their status; writers hold both locks
	members []*member
}

// member is a budget of an agent.
type member struct {
	Budget
	host     *lease.Host
	meter    LeasedMeter
	applied  lease.Plan   // plan of the meter
	read     lease.Counts // last counts of the meter
	counts   lease.Counts // sum over all meters of the budget, also earlier ones
	fault    error        // error of the meter in the last call
	status   Status
	started  bool     // whether the budget is Joined, Lost or Refused
	reported reported // used by calls only, not guarded by mu

	stranger lease.Amounts // rescue share unknown to the store
	unknown  int64         // end of stranger, ns of the clock
}

// NewAgent returns an agent for budgets with the same interval and deadline. It
// does not call the store yet. The client should be one returned by Open.
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
			return nil, fmt.Errorf("budget %s: interval %v differs from %v of budget %s", b.Name,
				time.Duration(b.Terms.Interval), a.interval, budgets[0].Name)
		}
		m := &member{Budget: b, host: lease.NewHost(b.Host, instance(), b.Terms)}
		m.status = Status{Budget: b.Name, Host: b.Host, Floor: b.Terms.Floor, Size: b.Terms.Size}
		m.bound(0)
		a.members = append(a.members, m)
	}
	return a, nil
}

// instance returns a number unique to this process, below 2^53.
func instance() int64 {
	var b [8]byte
	_, _ = crand.Read(b[:]) // never fails
	return int64(binary.LittleEndian.Uint64(b[:])>>11) | 1
}

// Bind assigns meters to the budgets, in the order of NewAgent or Replace; nil
// is no meter. The meters follow the current plans.
func (a *Agent) Bind(meters []LeasedMeter) error {
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

// Start calls the store until every budget has a share, or is Lost or Refused; it returns the first
// error of those. A learning store grants no shares for the length of a lease. Run continues from
// there, even after an error.
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

// Await waits like Start for budgets added by Replace, while Run calls the
// store.
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

// started reports whether all budgets have started, and returns the first
// budget's error.
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

// Run calls the store once per interval until ctx ends. Call Leave afterwards,
// when the meters no longer pass packets.
func (a *Agent) Run(ctx context.Context) {
	// Agents starting together call at different times from here on.
	next := time.Now().Add(rand.N(a.interval))
	for sleep(ctx, time.Until(next)) {
		a.call(ctx)
		next = next.Add(a.interval * max(1+time.Since(next)/a.interval, 1))
	}
}

// Leave returns the host's shares. Its meters must not pass packets any more.
// If there is no answer before ctx ends, the leases end by themselves.
func (a *Agent) Leave(ctx context.Context) error {
	a.turn.Lock()
	defer a.turn.Unlock()
	return a.leave(ctx, a.members)
}

func (a *Agent) leave(ctx context.Context, members []*member) error {
	for _, l := range a.lines {
		l.waitIdle(ctx) // a request arriving after this one would register the host again
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

// call makes one call for all budgets. A panic on the way counts as a lost call.
func (a *Agent) call(ctx context.Context) {
	a.turn.Lock()
	defer a.turn.Unlock()
	sent := a.config.Clock()
	var asked []*member
	var requests []lease.Request
	for _, m := range a.members {
		var r lease.Request
		if err := guard(func() (err error) { r, err = m.request(sent); return err }); err != nil {
			a.fail(m, sent, err)
			continue
		}
		asked, requests = append(asked, m), append(requests, r)
	}
	within, cancel := context.WithTimeout(ctx, a.deadline)
	defer cancel()
	var answers []answer
	failed := guard(func() error { answers = a.ask(within, asked, requests); return nil })
	now := a.config.Clock()
	for i, m := range asked {
		err := failed
		if err == nil {
			err = guard(func() error { a.settle(m, sent, now, &answers[i]); return nil })
		}
		if err != nil {
			a.fail(m, now, err)
		}
	}
}

// request begins a call. If the meter does not follow the plan, it passes more
// than the request reports, and there must be no call.
func (m *member) request(now int64) (lease.Request, error) {
	m.fault = m.count()
	r := m.host.Request(now, m.counts)
	return r, m.apply()
}

// settle ends a call sent at a time.
func (a *Agent) settle(m *member, sent, now int64, r *answer) {
	if took := now - sent; r.err == nil && took > int64(a.deadline) {
		r.err, r.pending = a.explain(late(time.Duration(took), a.deadline)), true
	}
	if r.err != nil {
		m.host.Lost(now)
	} else {
		m.host.Reply(now, r.Reply, r.kept)
	}
	m.fault = cmp.Or(m.apply(), m.fault)
	a.record(m, now, r)
}

// fail ends a call that could not be made, or whose answer could not be used. The meter's lease
// ends at its time.
func (a *Agent) fail(m *member, now int64, err error) {
	m.fault = err
	m.host.Lost(now)
	_ = guard(m.apply) // err is the cause
	if guard(func() error { a.record(m, now, &answer{err: err, skipped: true}); return nil }) != nil {
		a.mu.Lock()
		m.status.Err = err
		a.mu.Unlock()
	}
}

// count adds the tokens requested since the last call to counts.
func (m *member) count() error {
	if m.meter == nil {
		return nil
	}
	counts, err := m.meter.Counts()
	if err != nil {
		return err
	}
	for i, n := range counts {
		m.counts[i] += max(n, m.read[i]) - m.read[i] // a reset meter shows lower counts
	}
	m.read = counts
	return nil
}

// apply makes the meter follow the host's plan.
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
