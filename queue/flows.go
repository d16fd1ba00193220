package queue

import "fmt"

// Flows is the number of flows distinguished by a fair queue, as in RFC 8290 §5.2.5. A queue that is
// fair to hosts distinguishes as many hosts, and as many flows of each.
const Flows = 1024

// Quantum is the number of bytes per turn of a flow or a host in a fair queue. CoDel spares a packet
// if no more than this is queued behind it. It is an Ethernet frame with 1500 bytes of payload.
const Quantum = 1514

// Flow hashes header fields to a flow number for Packet.Flow: SplitMix64 over
// each field in turn. With another seed it returns a number for Packet.Host.
func Flow(seed uint64, fields ...uint64) uint16 {
	for _, f := range fields {
		seed = splitMix64(seed ^ f)
	}
	return uint16(seed % Flows)
}

// Fair determines what shares a queue evenly (RFC 8290).
type Fair uint8

const (
	FairNone  Fair = iota // first in, first out
	FairFlows             // flows
	FairHosts             // hosts, and flows share the part of their host
)

// String returns none, flows or hosts.
func (f Fair) String() string {
	if names := [...]string{"none", "flows", "hosts"}; int(f) < len(names) {
		return names[f]
	}
	return fmt.Sprintf("Fair(%d)", uint8(f))
}

// flows holds the backlog of a queue, a list of packets per flow. An ordinary queue is a single flow.
type flows[T any] struct {
	store   *store[T]
	fair    Fair
	root    int32 // in store.nodes
	packets int
	bytes   int64
}

// store holds the packets and flows of all queues of a link. The memory of one is reused for any
// queue.
type store[T any] struct {
	forest
	packets slab[queued[T]]
}

// queued is a packet.
type queued[T any] struct {
	arrived int64 // ns
	bytes   uint32
	count   int32 // Packet.packets
	next    int32 // next packet of the flow, in store.packets; the first one follows the last one
	ecn     bool  // ECN-capable
	fate    Fate  // Admit or AdmitCE, by WRED
	value   T
}

// first returns the first packet of a flow.
func (s *store[T]) first(leaf *flowNode) *queued[T] {
	return s.packets.at(s.packets.at(leaf.last).next)
}

func newFlows[T any](s *LinkQueue, in *store[T]) flows[T] {
	return flows[T]{store: in, fair: s.Fair, root: in.addRoot(s.Fair != FairNone)}
}

// push adds a packet arriving at now. fate is Admit or AdmitCE.
func (f *flows[T]) push(now int64, p *Packet, fate Fate, value T) {
	s, to := f.store, f.root
	n, bytes := p.packets(), int64(p.Bytes)
	f.packets += n
	f.bytes += bytes
	top := s.nodes.at(to)
	top.queued++
	top.bytes += bytes
	if f.fair == FairHosts {
		to = s.added(to, p.Host%Flows, false, now, bytes)
	}
	if f.fair != FairNone {
		to = s.added(to, p.Flow%Flows, true, now, bytes)
	}
	i := s.packets.add()
	q, leaf := s.packets.at(i), s.nodes.at(to)
	// A composite literal would be made elsewhere and copied.
	q.arrived, q.bytes, q.count, q.ecn, q.fate, q.value = now, uint32(p.Bytes), int32(n), p.ECN, fate, value
	if q.next = i; leaf.last != 0 {
		last := s.packets.at(leaf.last)
		q.next, last.next = last.next, i
	}
	leaf.last = i
}

// peek returns the next packet to send. The queue must not be empty.
func (f *flows[T]) peek() *queued[T] {
	return f.store.first(f.store.leaf(f.root))
}

// pop removes the next packet to send and returns it with its flow.
func (f *flows[T]) pop() (queued[T], *flowNode) {
	from := f.store.leaf(f.root)
	return f.removeFrom(from), from
}

// removeFrom removes the first packet of a flow.
func (f *flows[T]) removeFrom(from *flowNode) queued[T] {
	s := f.store
	last := s.packets.at(from.last)
	i := last.next
	first := s.packets.at(i)
	p := *first
	last.next = p.next
	if i == from.last {
		from.last = 0
	}
	*first = queued[T]{}
	s.packets.remove(i)
	f.packets -= int(p.count)
	f.bytes -= int64(p.bytes)
	s.removed(from, int64(p.bytes))
	return p
}

// charge subtracts a packet of n bytes from a flow's deficit and ends its
// selection.
func (f *flows[T]) charge(to *flowNode, n int64) { f.store.charge(to, n) }

// shed removes the first packet of the flow with the largest backlog in bytes
// (RFC 8290 §4.1). Among equal flows, the one with the lowest number loses a
// packet. It is a flow of the host with the largest backlog, selected likewise.
func (f *flows[T]) shed() queued[T] {
	n := f.store.nodes.at(f.root)
	for n.turns != 0 {
		n = f.store.largest(f.store.turns.at(n.turns))
	}
	return f.removeFrom(n)
}

// codelDrops reports whether CoDel selects a packet of a flow that departs at now after a delay, ns.
func (f *flows[T]) codelDrops(from *flowNode, c *CoDel, now, delay int64, p *queued[T]) bool {
	return f.store.drops(from, c, now, delay, int(p.count))
}

// resetCoDel gives the CoDel of all flows its initial state.
func (f *flows[T]) resetCoDel() { f.store.resetCoDel(f.root) }
