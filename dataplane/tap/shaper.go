package tap

import (
	"fmt"
	"math"
	"slices"
	"sync"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// Shaper is a policy at work in one direction, for any number of queues at
// once: they share its meters, and take turns a batch at a time. All methods
// are safe for concurrent use.
type Shaper struct {
	memory  int64   // bytes that packets may take that wait
	budgets Budgets // nil without

	lock     sync.Mutex // of all below
	pipeline *dataplane.Pipeline
	tickets  slab             // packets that a link has yet to settle
	moved    []departing      // packets that are to wait in whichever lane comes first: theirs has ended
	held     int64            // bytes of buffers of packets that wait
	lost     Lost             // so far
	wake     map[*lane]func() // those that run
}

// Lost counts packets that left a policy and did not reach the other device, in
// bytes of whole frames, but metered ones for want of memory.
type Lost struct {
	Refused dataplane.Count // by the device: full, down, or the frame too long for it
	Memory  dataplane.Count // there was no memory to let them wait
	Ended   dataplane.Count // they waited when the plane ended
}

// departing is a frame with its time to leave, ns.
type departing struct {
	frame []byte
	at    int64
}

// DefaultMemory is what packets that wait may take, in bytes, unless the
// caller says otherwise.
const DefaultMemory = 256 << 20

// NewShaper returns a shaper with the plan of a policy. memory bounds the buffers of
// queued packets, in bytes; 0 is DefaultMemory.
func NewShaper(plan *dataplane.Plan, memory int64) *Shaper {
	if memory == 0 {
		memory = DefaultMemory
	}
	return &Shaper{memory: memory, pipeline: dataplane.NewPipeline(plan), wake: map[*lane]func(){}}
}

// Budgets are those of the host, which shapers share: a kernel.Member. Join returns
// what meters packets in place of the stages of a plan that have such a budget, by stage.
// Its caller calls settle when the plan is in force.
type Budgets interface {
	Join(plan *dataplane.Plan) (meters map[int]dataplane.Shared, settle func() error, err error)
}

// Join has the shaper take part in budgets of the host, before its plane runs. Without
// it their meters are the shaper's own.
func (s *Shaper) Join(b Budgets) error {
	meters, settle, err := b.Join(s.pipeline.Plan())
	if err != nil {
		return err
	}
	s.budgets = b
	s.lock.Lock()
	for stage, shared := range meters {
		s.pipeline.Share(stage, shared)
	}
	s.lock.Unlock()
	return settle()
}

// ActiveError says that a policy is in force, though what was left of the one before
// could not be removed.
type ActiveError struct{ Err error }

func (e *ActiveError) Error() string { return fmt.Sprintf("the new policy is active, but: %v", e.Err) }

func (e *ActiveError) Unwrap() error { return e.Err }

// Reload replaces the policy, at once, as dataplane.Pipeline.Inherit says.
// Packets that wait leave when they would have. A plan whose budgets others use with
// other parameters changes nothing; after an *ActiveError the new one is active. One
// reload at a time.
func (s *Shaper) Reload(plan *dataplane.Plan) ([]dataplane.Change, error) {
	next := dataplane.NewPipeline(plan)
	settle := func() error { return nil }
	if s.budgets != nil {
		meters, settled, err := s.budgets.Join(plan)
		if err != nil {
			return nil, err
		}
		for stage, shared := range meters {
			next.Share(stage, shared)
		}
		settle = settled
	}
	changes := s.replace(next)
	if err := settle(); err != nil {
		return changes, &ActiveError{err}
	}
	return changes, nil
}

// replace puts a pipeline in the place of the one before.
func (s *Shaper) replace(next *dataplane.Pipeline) []dataplane.Change {
	s.lock.Lock()
	defer s.lock.Unlock()
	var v dataplane.Verdict
	for s.pipeline.Settle(math.MaxInt64, &v) {
		switch frame, of := s.settled(&v); {
		case frame == nil:
		case s.wake[of] != nil:
			of.inbox = append(of.inbox, departing{frame, v.Departure})
		default:
			s.moved = append(s.moved, departing{frame, v.Departure})
		}
	}
	changes := next.Inherit(s.pipeline)
	s.pipeline = next
	for _, wake := range s.wake {
		wake()
	}
	return changes
}

// settled is the frame of a packet that a link let go, with the lane that it
// came by, or nil where it was dropped or lost.
func (s *Shaper) settled(v *dataplane.Verdict) (frame []byte, of *lane) {
	t := s.tickets.take(v.ID)
	switch {
	case v.Done.Dropped():
		s.held -= int64(cap(t.frame))
		return nil, nil
	case t.frame == nil:
		s.forget(v)
		return nil, nil
	case v.Done&dataplane.ECNSet != 0:
		var p dataplane.Packet
		describe(&p, t.frame)
		dataplane.Parse(&p)
		p.SetCE()
	}
	return t.frame, t.lane
}

// forget counts a packet for which there is no memory.
func (s *Shaper) forget(v *dataplane.Verdict) {
	s.lost.Memory = s.lost.Memory.Plus(dataplane.Count{Packets: int64(v.Packets), Bytes: int64(v.Length)})
}

// Stats returns the counters, as dataplane.Pipeline does, and what was lost
// behind it.
func (s *Shaper) Stats() ([]dataplane.ClassStats, Lost) {
	now := s.Snapshot()
	return now.Stats, now.Lost
}

// Snapshot is the state of a shaper at one moment.
type Snapshot struct {
	Stats  []dataplane.ClassStats // as dataplane.Pipeline has them
	Lost   Lost
	Tokens [][2]int64         // by stage of the plan, in whole bytes or packets
	Keys   []meter.TableStats // by stage
	Queues []dataplane.QueueState
}

// Snapshot returns the state now.
func (s *Shaper) Snapshot() Snapshot {
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

// SetLease gives the meter of a budget on a server its limits from now on, as
// dataplane.Pipeline does. Its times are those of Now.
func (s *Shaper) SetLease(budget string, lease dataplane.Lease) error {
	s.lock.Lock()
	defer s.lock.Unlock()
	s.pipeline.SetLease(Now(), budget, lease)
	return nil
}

// Asked is dataplane.Pipeline.Asked.
func (s *Shaper) Asked(budget string) ([3]uint64, error) {
	s.lock.Lock()
	defer s.lock.Unlock()
	return s.pipeline.Asked(budget), nil
}

// Waiting is what packets that wait take, in bytes.
func (s *Shaper) Waiting() int64 {
	s.lock.Lock()
	defer s.lock.Unlock()
	return s.held
}

// ticket is a packet that a link has yet to settle.
type ticket struct {
	frame []byte // nil: there was no memory
	lane  *lane  // that it came by, and leaves by
}

// slab keeps tickets by number.
type slab struct {
	tickets []ticket
	free    []int64
}

// next is the number that put gives next.
func (s *slab) next() int64 {
	if n := len(s.free); n > 0 {
		return s.free[n-1]
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

func (s *slab) take(i int64) ticket {
	t := s.tickets[i]
	s.tickets[i] = ticket{}
	s.free = append(s.free, i)
	return t
}
