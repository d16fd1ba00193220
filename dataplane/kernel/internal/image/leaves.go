package image

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/qdisc"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/record"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// Leaves are the HTB classes on a device, and which of them are the leaves of customers.
type Leaves struct {
	of      map[uint64]uint16 // class ID, by ID of the customer
	parents map[uint32]uint32 // handles of the classes above, by handle
}

// ReadLeaves returns the classes on a device, 0 for none, and the leaves of the customers in the maps.
func (s *Maps) ReadLeaves(about *record.About, index int) (*Leaves, error) {
	out := &Leaves{of: map[uint64]uint16{}}
	var err error
	if about.Pacer == record.HTB && index != 0 {
		if out.parents, err = qdisc.Classes(index); err != nil {
			return nil, err
		}
	}
	if !about.Leaves {
		return out, nil
	}
	t, err := s.ReadCustomers()
	if err != nil {
		return nil, err
	}
	for i := range t.customers {
		if c := &t.customers[i]; c.ClassId != 0 {
			out.of[c.Id] = uint16(c.ClassId)
		}
	}
	return out, nil
}

// Missing returns the number of leaves of customers that are not among classes, which are keys by handle.
func (l *Leaves) Missing(classes map[uint32]uint32) (n int) {
	for _, id := range l.of {
		if _, exists := classes[qdisc.Handle(id)]; !exists {
			n++
		}
	}
	return n
}

// DropsOf returns the packets dropped by leaves, by ID of the customer, and their sum. drops are those of
// classes, by their IDs.
func (l *Leaves) DropsOf(drops map[uint16]uint64) (of map[uint64]uint64, all uint64) {
	of = map[uint64]uint64{}
	if len(drops) == 0 {
		return of, 0
	}
	for customer, id := range l.of {
		if n := drops[id]; n > 0 {
			of[customer] = n
			all += n
		}
	}
	return of, all
}

// classIDs are the IDs of HTB classes that are in use, or were before.
type classIDs struct {
	used [1 << 16]bool
	next uint16 // all IDs above it that leaves may have are used
}

// IDs up to maxPair are for queues and links: of each policy, so many as the programs and their
// predecessors have room for. Each has a second ID, with qdisc.Over.
const maxPair = 1<<12 - 1

// MaxLeaves is the maximum number of leaves of customers.
const MaxLeaves = 1<<16 - 2*(maxPair+1)

// use marks the ID of a handle as used, with its second one.
func (c *classIDs) use(handle uint32) {
	id := uint16(handle)
	c.used[id] = true
	if id <= maxPair {
		c.used[id|qdisc.Over] = true
	}
}

// pair returns the lowest free ID for a queue or a link.
func (c *classIDs) pair() uint16 {
	for id := uint16(1); ; id++ {
		if !c.used[id] && !c.used[id|qdisc.Over] {
			c.use(uint32(id))
			return id
		}
	}
}

// leaf returns the highest free ID for the leaf of a customer, or 0 if there is none.
func (c *classIDs) leaf() uint16 {
	for ; c.next > maxPair; c.next-- {
		if id := c.next; !c.used[id] && (id < qdisc.Over || id > qdisc.Over|maxPair) {
			c.used[id] = true
			return id
		}
	}
	return 0
}

// flows returns the lowest free block of IDs for the leaves of flows.
func (c *classIDs) flows() (first uint16, err error) {
next:
	for first := maxPair + 1; first < qdisc.Over; first += flowLeaves {
		for i := range flowLeaves {
			if c.used[first+i] {
				continue next
			}
		}
		for i := range flowLeaves {
			c.used[first+i] = true
		}
		return uint16(first), nil
	}
	return 0, errNoIDs
}

var errNoIDs = errors.New("HTB has 65,536 classes, too few for those of both policies at once: detach the shaper, and attach it with the new policy")

// newClassIDs returns the IDs of a device whose shaper had another policy.
func newClassIDs(before *record.About, there *Leaves) *classIDs {
	c := &classIDs{next: math.MaxUint16}
	c.used[0], c.used[qdisc.Over] = true, true
	for i := range before.Queued {
		q := &before.Queued[i]
		c.use(q.ClassId)
		for id := range FlowIDs(&q.ShaperQueue) {
			c.used[id] = true
		}
	}
	for _, id := range before.Links {
		c.use(uint32(id))
	}
	for handle := range there.parents {
		c.used[uint16(handle)] = true
	}
	for _, id := range there.of {
		c.used[id] = true
	}
	return c
}

// inheritLeaves assigns classes to the queues of customers in HTB. A customer keeps its class, unless its
// link has another one: HTB cannot move a class, so the packets in it stay there until they have left.
func (g *Image) inheritLeaves(ids *classIDs, there *Leaves) error {
	if g.Pacer != record.HTB || g.Plan.Customers == nil {
		return nil
	}
	from := g.Plan.Customers
	g.leafIDs = make([]uint16, len(from.Of))
	for i := range from.Of {
		s := &from.Plans[from.Of[i]]
		if s.Tree < 0 {
			continue
		}
		id := there.of[CustomerID(from.Source.List[i].Name)]
		if parent, exists := there.parents[qdisc.Handle(id)]; id == 0 || exists && parent != g.above(s) {
			if id = ids.leaf(); id == 0 {
				return fmt.Errorf("customers: %w", errNoIDs)
			}
		}
		g.leafIDs[i] = id
	}
	return nil
}

// hasLeaves reports whether queues of customers have classes.
func (g *Image) hasLeaves() bool {
	return slices.ContainsFunc(g.leafIDs, func(id uint16) bool { return id != 0 })
}

// PlaceLeaves assigns classes to the queues of customers of the active policy: those in use, and new ones for
// customers that move to other links. retiring are the IDs of classes that others have left.
func (g *Image) PlaceLeaves(about *record.About, there *Leaves, retiring []uint16) error {
	ids := newClassIDs(about, there)
	for _, id := range retiring {
		ids.used[id] = true
	}
	return g.inheritLeaves(ids, there)
}

// Placed returns the leaves of the image.
func (g *Image) Placed() *Leaves {
	out := &Leaves{of: map[uint64]uint16{}, parents: map[uint32]uint32{}}
	for i, id := range g.leafIDs {
		if id != 0 {
			out.of[CustomerID(g.Plan.Customers.Source.List[i].Name)] = id
			out.parents[qdisc.Handle(id)] = g.above(g.Plan.Customers.Service(uint32(i + 1)))
		}
	}
	return out
}

// LeafOf returns the handle of the class of a customer, by name; 0 for none.
func (g *Image) LeafOf(name string) uint32 {
	if number := g.Plan.Customers.Number(name); number != 0 {
		return g.leafHandle(int(number - 1))
	}
	return 0
}

// leafHandle returns the handle of the class of a customer, or 0.
func (g *Image) leafHandle(customer int) uint32 {
	if g.leafIDs == nil || g.leafIDs[customer] == 0 {
		return 0
	}
	return qdisc.Handle(g.leafIDs[customer])
}

// above returns the handle of the class above the leaves of a plan.
func (g *Image) above(s *compiled.Service) uint32 {
	if link := g.Plan.LinkOf(s); link >= 0 {
		return qdisc.Handle(g.linkIDs[link])
	}
	return netlink.HANDLE_ROOT
}

// leafFlows is the number of queues for flows in a leaf of a customer. With 128, fq_codel needs 10 KB.
const leafFlows = 128

// limits are the limits of queues in bytes, by their limit in time and their rate.
type limits map[timeLimit]int64

type timeLimit struct {
	time time.Duration
	rate meter.Rate
}

// resolve returns a queue that drains at a rate, with its limit in bytes.
func (l limits) resolve(q queue.LinkQueue, rate meter.Rate) queue.LinkQueue {
	key := timeLimit{q.Time, rate}
	bytes, known := l[key]
	if !known {
		resolved, _ := q.Resolve(rate) // Compile checked it
		bytes = resolved.Bytes
		l[key] = bytes
	}
	q.Time, q.Bytes = 0, bytes
	return q
}

// customerLeaf returns the leaf for the queue of a customer with a plan; share is its own.
func (g *Image) customerLeaf(s *compiled.Service, share share, longest int, known limits) qdisc.Leaf {
	link := g.Plan.LinkOf(s)
	leaf := qdisc.Leaf{Quantum: share.quantum(longest), Priority: share.priority, Guarantee: share.rate}
	rate := queue.Lowest(s.LinkQueue.Rate, g.Plan.Reach(link))
	if link >= 0 {
		leaf.Parent = g.linkIDs[link]
	} else {
		leaf.Credit = LeafCredit
	}
	if s.LinkQueue.Rate != (meter.Rate{}) {
		leaf.Rate = bytesPerSecond(s.LinkQueue.Rate)
	}
	resolved := known.resolve(s.LinkQueue, rate)
	leaf.Limit = uint32(min(resolved.Bytes, math.MaxUint32))
	if s.LinkQueue.Fair != queue.FairNone {
		leaf.Fair = fairOf(&resolved, &s.FlowKeys, rate)
		leaf.Fair.Flows = leafFlows
	}
	return leaf
}
