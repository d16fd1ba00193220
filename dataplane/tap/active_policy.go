package tap

import (
	"iter"
	"math"
	"slices"
	"sync"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/dataplane/pipeline"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// ActivePolicy is an active policy in one direction, for any number of queues. The
// queues share its meters; their batches are processed one at a time. All
// methods are safe for concurrent use.
type ActivePolicy struct {
	memory  int64   // maximum memory of queued packets, bytes
	budgets Budgets // nil: none

	lock        sync.Mutex // guards all fields below
	pipeline    *pipeline.Pipeline
	tickets     slab             // packets not yet settled by a link
	orphans     []departing      // queued frames of ended lanes, for the next lane to take over
	queuedBytes int64            // memory of queued packets, bytes
	lost        Lost             // total
	wake        map[*lane]func() // running lanes
}

// Lost counts packets passed by a policy which did not reach the other device. Bytes are those of
// whole frames, except for Memory, which counts metered bytes.
type Lost struct {
	Refused dataplane.Count // refused by the device: full, down, or the frame too long
	Memory  dataplane.Count // not queued for lack of memory
	Ended   dataplane.Count // still queued when the plane ended
}

// departing is a frame and its departure, ns.
type departing struct {
	frame []byte
	at    int64
}

// DefaultMemory is the default memory for queued packets, in bytes.
const DefaultMemory = 256 << 20

// NewActivePolicy returns an active policy that runs a plan. memory is the maximum for the buffers of
// queued packets, in bytes; 0 means DefaultMemory.
func NewActivePolicy(plan *compiled.Plan, memory int64) *ActivePolicy {
	if memory == 0 {
		memory = DefaultMemory
	}
	return &ActivePolicy{memory: memory, pipeline: pipeline.FromPlan(plan), wake: map[*lane]func(){}}
}

// Budgets gives access to the budgets of the host, which shapers share; a hostbudget.Member
// implements it. Join returns, by stage, the meters that replace the stages of a plan with such a budget. The
// caller must call settle once the plan is active.
type Budgets interface {
	Join(plan *compiled.Plan) (meters map[int]pipeline.Shared, settle func() error, err error)
}

// Join makes the policy use the budgets of the host. It must be called before the plane runs.
// Without it, the policy uses its own meters for them.
func (s *ActivePolicy) Join(b Budgets) error {
	meters, settle, err := b.Join(s.pipeline.Plan())
	if err != nil {
		return err
	}
	s.budgets = b
	s.lock.Lock()
	for stage, shared := range meters {
		s.pipeline.ReplaceMeter(stage, shared)
	}
	s.lock.Unlock()
	return settle()
}

// Reload replaces the policy atomically and carries over state as described at
// pipeline.Pipeline.Inherit. Queued packets keep their departures. Reload
// fails without a change if other programs use a budget of the plan with other
// parameters. After a *dataplane.ActiveError the new policy is active. Only one Reload
// may run at a time.
func (s *ActivePolicy) Reload(plan *compiled.Plan) ([]compiled.ClassChange, error) {
	next := pipeline.FromPlan(plan)
	settle := func() error { return nil }
	if s.budgets != nil {
		meters, settled, err := s.budgets.Join(plan)
		if err != nil {
			return nil, err
		}
		for stage, shared := range meters {
			next.ReplaceMeter(stage, shared)
		}
		settle = settled
	}
	changes := s.replace(next)
	if err := settle(); err != nil {
		return changes, &dataplane.ActiveError{Err: err}
	}
	return changes, nil
}

// replace activates a pipeline in place of the previous one.
func (s *ActivePolicy) replace(next *pipeline.Pipeline) []compiled.ClassChange {
	s.lock.Lock()
	defer s.lock.Unlock()
	var v dataplane.Verdict
	for s.pipeline.Settle(math.MaxInt64, &v) {
		switch frame, owner := s.finish(&v); {
		case frame == nil:
		case s.wake[owner] != nil:
			owner.inbox = append(owner.inbox, departing{frame, v.Departure})
		default:
			s.orphans = append(s.orphans, departing{frame, v.Departure})
		}
	}
	changes := next.Inherit(s.pipeline)
	s.pipeline = next
	for _, wake := range s.wake {
		wake()
	}
	return changes
}

// SetRates changes the rates of queues and links, and the times of CoDel, to those of a plan, such as one of
// compiled.Plan.WithRates, as pipeline.Pipeline.SetRates does. Queued packets of a queue with
// a rate keep their departures; those of a link are sent at the new rate. Nothing changes on an
// error. Pass plans with the new rates to later calls of Reload.
func (s *ActivePolicy) SetRates(plan *compiled.Plan) error {
	s.lock.Lock()
	defer s.lock.Unlock()
	return s.pipeline.SetRates(Now(), plan)
}

// finish returns the frame of a packet settled by a link, and the lane of its port, or nil if the
// packet was dropped or lost.
func (s *ActivePolicy) finish(v *dataplane.Verdict) (frame []byte, owner *lane) {
	t := s.tickets.remove(v.ID)
	switch {
	case v.Done.Dropped():
		s.queuedBytes -= int64(cap(t.frame))
		return nil, nil
	case t.frame == nil:
		s.loseForMemory(v)
		return nil, nil
	case v.Done&dataplane.ECNSet != 0:
		var p dataplane.Packet
		describe(&p, t.frame)
		dataplane.Parse(&p)
		p.SetCE()
	}
	return t.frame, t.lane
}

// loseForMemory counts a packet lost for lack of memory.
func (s *ActivePolicy) loseForMemory(v *dataplane.Verdict) {
	s.lost.Memory = s.lost.Memory.Plus(dataplane.Count{Packets: int64(v.Packets), Bytes: int64(v.Length)})
}

// Stats returns the counters of pipeline.Pipeline.Stats and the packets lost
// after the policy.
func (s *ActivePolicy) Stats() ([]dataplane.ClassStats, Lost) {
	now := s.Snapshot()
	return now.Stats, now.Lost
}

// Snapshot is the state of an active policy at one moment.
type Snapshot struct {
	Stats  []dataplane.ClassStats // as returned by pipeline.Pipeline.Stats
	Lost   Lost
	Tokens [][2]int64         // by stage of the plan, whole bytes or packets
	Keys   []meter.TableStats // by stage of the plan
	Queues []dataplane.QueueState
}

// Snapshot returns the current state.
func (s *ActivePolicy) Snapshot() Snapshot {
	s.lock.Lock()
	defer s.lock.Unlock()
	stages := len(s.pipeline.Plan().Stages)
	out := Snapshot{
		Stats: slices.Clone(s.pipeline.Stats()), Lost: s.lost, Queues: s.pipeline.Queues(Now()),
		Tokens: make([][2]int64, stages), Keys: make([]meter.TableStats, stages),
	}
	for i := range stages {
		out.Tokens[i][0], out.Tokens[i][1] = s.pipeline.Tokens(i)
		out.Keys[i] = s.pipeline.Keys(i)
	}
	return out
}

// Links returns the states of the plan's links, as pipeline.Pipeline.Links does.
func (s *ActivePolicy) Links() []dataplane.LinkState {
	s.lock.Lock()
	defer s.lock.Unlock()
	return s.pipeline.Links(Now())
}

// Numbers of customers read, changed or saved while packets wait: about 0.2 ms.
const (
	customersAtOnce = 2048
	customersSaved  = 256
)

// Customers returns the counters of all customers, in the order of the policy; nil without
// customers. Packets are metered meanwhile, so they are not the counters of one moment.
func (s *ActivePolicy) Customers() (out []dataplane.CustomerStats) {
	for from, at := range s.customerParts(customersAtOnce) {
		s.lock.Lock()
		plan := from.Plan().Customers
		if plan != nil && at == 0 {
			out = make([]dataplane.CustomerStats, len(plan.Of))
		}
		if at <= len(out) {
			from.CopyCustomers(out[at:min(at+customersAtOnce, len(out))], at)
		}
		s.lock.Unlock()
	}
	return out
}

// CustomersOf returns the counters of the customers of a plan, in its order; zeros for those that the shaper
// does not have. Packets are metered meanwhile.
func (s *ActivePolicy) CustomersOf(plan *compiled.Customers) []dataplane.CustomerStats {
	out := make([]dataplane.CustomerStats, len(plan.Of))
	for at := 0; at < len(out); at += customersAtOnce {
		part := out[at:min(at+customersAtOnce, len(out))]
		s.lock.Lock()
		s.pipeline.CustomersOf(plan, at, part)
		s.lock.Unlock()
	}
	return out
}

// CustomerNamed returns the counters of a customer; zeros if the shaper does not have it.
func (s *ActivePolicy) CustomerNamed(name string) dataplane.CustomerStats {
	s.lock.Lock()
	defer s.lock.Unlock()
	return s.pipeline.CustomerNamed(name)
}

// ChangeCustomers is pipeline.Pipeline.ChangeCustomers. Packets are metered between changes.
func (s *ActivePolicy) ChangeCustomers(list []compiled.CustomerChange) {
	s.lock.Lock()
	to, plan := s.pipeline, s.pipeline.NeedsRoster()
	s.lock.Unlock()
	if plan != nil { // packets must not wait for it
		r := compiled.NewRoster(plan)
		s.lock.Lock()
		if s.pipeline == to && to.NeedsRoster() == plan {
			to.OwnCustomers(r)
		}
		s.lock.Unlock()
	}
	for chunk := range slices.Chunk(list, customersAtOnce) {
		s.lock.Lock()
		s.pipeline.ChangeCustomers(Now(), chunk)
		s.lock.Unlock()
	}
}

// SaveCustomers returns the meters of customers with packets, for RestoreCustomers. Packets are
// metered meanwhile.
func (s *ActivePolicy) SaveCustomers() (all []byte) {
	var part []byte
	for from, at := range s.customerParts(customersSaved) {
		if at == 0 {
			all = all[:0]
		}
		s.lock.Lock()
		part = from.AppendCustomers(part[:0], at, customersSaved)
		s.lock.Unlock()
		all = append(all, part...)
	}
	return all
}

// customerParts yields the pipeline and the first of each n customers, from 0, also of none. It
// starts again after a reload.
func (s *ActivePolicy) customerParts(n int) iter.Seq2[*pipeline.Pipeline, int] {
	current := func() (from *pipeline.Pipeline, customers int) {
		s.lock.Lock()
		defer s.lock.Unlock()
		if plan := s.pipeline.Plan().Customers; plan != nil {
			customers = len(plan.Of)
		}
		return s.pipeline, customers
	}
	return func(yield func(*pipeline.Pipeline, int) bool) {
		for from, at, more := (*pipeline.Pipeline)(nil), 0, true; more; {
			now, customers := current()
			if now != from {
				from, at = now, 0
			} else if at += n; at >= customers {
				return
			}
			more = yield(from, at)
		}
	}
}

// Customer is pipeline.Pipeline.Customer.
func (s *ActivePolicy) Customer(number uint32) dataplane.CustomerStats {
	s.lock.Lock()
	defer s.lock.Unlock()
	return s.pipeline.Customer(number)
}

// RestoreCustomers is pipeline.Pipeline.RestoreCustomers, for the time of Now.
func (s *ActivePolicy) RestoreCustomers(b []byte) error {
	s.lock.Lock()
	defer s.lock.Unlock()
	return s.pipeline.RestoreCustomers(b, Now())
}

// SetCustomerPlans is pipeline.Pipeline.SetCustomerPlans. Packets are metered between changes.
func (s *ActivePolicy) SetCustomerPlans(list []compiled.CustomerService) error {
	for chunk := range slices.Chunk(list, customersAtOnce) {
		s.setCustomerPlans(chunk)
	}
	return nil
}

func (s *ActivePolicy) setCustomerPlans(list []compiled.CustomerService) {
	s.lock.Lock()
	defer s.lock.Unlock()
	s.pipeline.SetCustomerPlans(Now(), list)
}

// SetLease sets the limits of a meter whose budget is on a server, as
// pipeline.Pipeline.SetLease does. Times are those of Now.
func (s *ActivePolicy) SetLease(budget string, lease compiled.Lease) error {
	s.lock.Lock()
	defer s.lock.Unlock()
	s.pipeline.SetLease(Now(), budget, lease)
	return nil
}

// Demand is pipeline.Pipeline.Demand.
func (s *ActivePolicy) Demand(budget string) ([3]uint64, error) {
	s.lock.Lock()
	defer s.lock.Unlock()
	return s.pipeline.Demand(budget), nil
}

// QueuedMemory returns the memory used by queued packets, in bytes.
func (s *ActivePolicy) QueuedMemory() int64 {
	s.lock.Lock()
	defer s.lock.Unlock()
	return s.queuedBytes
}

// ticket is a packet not yet settled by a link.
type ticket struct {
	frame []byte // nil: there was no memory
	lane  *lane  // lane which read it and will write it
}

// slab stores tickets by number. There are fewer than 2^31, see queue.MaxPackets.
type slab struct {
	tickets []ticket
	free    []int32
}

// next returns the number for the next put.
func (s *slab) next() int64 {
	if n := len(s.free); n > 0 {
		return int64(s.free[n-1])
	}
	return int64(len(s.tickets))
}

func (s *slab) put(t ticket) {
	if n := len(s.free); n > 0 {
		s.tickets[s.free[n-1]] = t
		s.free = s.free[:n-1]
		return
	}
	s.tickets = append(s.tickets, t)
}

func (s *slab) remove(i int64) ticket {
	t := s.tickets[i]
	s.tickets[i] = ticket{}
	s.free = append(s.free, int32(i))
	return t
}
