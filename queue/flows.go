package queue

// Flows is the number of flows distinguished by a fair queue, as in RFC 8290 §5.2.5.
const Flows = 1024

// Quantum is the number of bytes per turn of a flow in a fair queue. CoDel spares a packet if no
// more than this is queued behind it. It is an Ethernet frame with 1500 bytes of payload.
const Quantum = 1514

// Flow hashes header fields to a flow number for Packet.Flow: SplitMix64 over
// each field in turn.
func Flow(seed uint64, fields ...uint64) uint16 {
	for _, f := range fields {
		seed = splitMix64(seed ^ f)
	}
	return uint16(seed % Flows)
}

// flows holds the backlog of a queue, a FIFO per flow. An ordinary queue is a single flow. Flows
// take turns by deficit round robin, new flows before old ones (RFC 8290 §4).
type flows[T any] struct {
	list    []flow[T]
	fresh   ring[int32] // new flows, as indexes into list
	old     ring[int32]
	head    *flow[T] // flow to serve next; nil until peek selects one
	packets int
	bytes   int64
}

type flow[T any] struct {
	packets ring[queued[T]]
	bytes   int64
	deficit int64
	codel   codel
	listed  bool // whether the flow is in fresh or old
}

func newFlows[T any](s *LinkQueue) flows[T] {
	n := 1
	if s.Fair {
		n = Flows
	}
	f := flows[T]{list: make([]flow[T], n)}
	for i := range f.list {
		f.list[i].codel = newCoDel(s.CoDel)
	}
	return f
}

func (f *flows[T]) push(p queued[T]) {
	i := int(p.Flow) % len(f.list)
	to := &f.list[i]
	if !to.listed {
		to.listed, to.deficit = true, Quantum
		f.fresh.push(int32(i))
	}
	to.packets.push(p)
	to.bytes += int64(p.Bytes)
	f.packets += p.Packet.packets()
	f.bytes += int64(p.Bytes)
}

// peek returns the next packet to send. The queue must not be empty.
func (f *flows[T]) peek() *queued[T] {
	if len(f.list) == 1 {
		f.head = &f.list[0]
	}
	for f.head == nil {
		turns := &f.fresh
		if turns.len == 0 {
			turns = &f.old
		}
		i := *turns.item(0)
		switch next := &f.list[i]; {
		case next.deficit <= 0:
			next.deficit += Quantum
			turns.pop()
			f.old.push(i)
		case next.packets.len > 0:
			f.head = next
		case turns == &f.fresh: // an emptied new flow becomes old, or it would get priority each time
			turns.pop()
			f.old.push(i)
		default:
			turns.pop()
			next.listed = false
		}
	}
	return f.head.packets.item(0)
}

// pop removes the next packet to send and returns it with its flow.
func (f *flows[T]) pop() (queued[T], *flow[T]) {
	f.peek()
	from := f.head
	return f.removeFrom(from), from
}

// removeFrom removes the first packet of a flow.
func (f *flows[T]) removeFrom(from *flow[T]) queued[T] {
	p := from.packets.pop()
	from.bytes -= int64(p.Bytes)
	f.packets -= p.Packet.packets()
	f.bytes -= int64(p.Bytes)
	if from.packets.len == 0 && f.head == from {
		f.head = nil
	}
	return p
}

// charge subtracts a packet of n bytes from a flow's deficit and ends its
// selection.
func (f *flows[T]) charge(to *flow[T], n int) {
	to.deficit -= int64(n)
	f.head = nil
}

// shed removes the first packet of the flow with the largest backlog in bytes
// (RFC 8290 §4.1). Among equal flows, the one with the lowest number loses a
// packet.
func (f *flows[T]) shed() queued[T] {
	most := int32(-1)
	for _, turns := range [...]*ring[int32]{&f.fresh, &f.old} {
		for k := range turns.len {
			i := *turns.item(k)
			other := &f.list[i]
			if other.packets.len > 0 && (most < 0 || other.bytes > f.list[most].bytes ||
				other.bytes == f.list[most].bytes && i < most) {
				most = i
			}
		}
	}
	return f.removeFrom(&f.list[most])
}
