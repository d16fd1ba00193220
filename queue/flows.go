package queue

// Flows is how many flows a fair queue tells apart; RFC 8290 §5.2.5 has as many.
const Flows = 1024

// Quantum is how many bytes a flow of a fair queue may send before others have
// their turn, and how many may wait behind a packet that CoDel spares: an
// Ethernet frame of 1500 bytes.
const Quantum = 1514

// Flow is the flow of a packet with these fields, for Packet.Flow: SplitMix64
// of each after the other.
func Flow(seed uint64, fields ...uint64) uint16 {
	for _, f := range fields {
		seed = mix(seed ^ f)
	}
	return uint16(seed % Flows)
}

// flows holds the packets that wait in a queue, a FIFO for each flow; a queue that
// is not fair has one flow. Flows take turns by deficit round robin, new flows
// before old ones (RFC 8290 §4).
type flows[T any] struct {
	list    []flow[T]
	fresh   ring[int32] // new flows: indexes into list
	old     ring[int32]
	head    *flow[T] // the flow to serve next; nil until first has chosen one
	packets int
	bytes   int64
}

type flow[T any] struct {
	packets ring[waiting[T]]
	bytes   int64
	deficit int64
	codel   codel
	listed  bool // in fresh or old
}

func newFlows[T any](s *Share) flows[T] {
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

func (f *flows[T]) push(w waiting[T]) {
	i := int(w.Flow) % len(f.list)
	to := &f.list[i]
	if !to.listed {
		to.listed, to.deficit = true, Quantum
		f.fresh.push(int32(i))
	}
	to.packets.push(w)
	to.bytes += int64(w.Bytes)
	f.packets++
	f.bytes += int64(w.Bytes)
}

// first returns the next packet to send. The queue must not be empty.
func (f *flows[T]) first() *waiting[T] {
	if len(f.list) == 1 {
		f.head = &f.list[0]
	}
	for f.head == nil {
		turns := &f.fresh
		if turns.len == 0 {
			turns = &f.old
		}
		i := *turns.at(0)
		switch w := &f.list[i]; {
		case w.deficit <= 0:
			w.deficit += Quantum
			turns.pop()
			f.old.push(i)
		case w.packets.len > 0:
			f.head = w
		case turns == &f.fresh: // else it could return as a new flow each time it empties
			turns.pop()
			f.old.push(i)
		default:
			turns.pop()
			w.listed = false
		}
	}
	return f.head.packets.at(0)
}

// pop removes the next packet to send, and returns it with its flow.
func (f *flows[T]) pop() (waiting[T], *flow[T]) {
	f.first()
	from := f.head
	return f.takeFrom(from), from
}

// takeFrom removes the first packet of a flow.
func (f *flows[T]) takeFrom(from *flow[T]) waiting[T] {
	w := from.packets.pop()
	from.bytes -= int64(w.Bytes)
	f.packets--
	f.bytes -= int64(w.Bytes)
	if from.packets.len == 0 && f.head == from {
		f.head = nil
	}
	return w
}

// sent charges a flow for a packet of n bytes.
func (f *flows[T]) sent(by *flow[T], n int) {
	by.deficit -= int64(n)
	f.head = nil
}

// shed removes the first packet of the flow with the most bytes (RFC 8290 §4.1);
// of equal ones, that of the flow with the lowest number.
func (f *flows[T]) shed() waiting[T] {
	most := int32(-1)
	for _, turns := range [...]*ring[int32]{&f.fresh, &f.old} {
		for k := range turns.len {
			i := *turns.at(k)
			w := &f.list[i]
			if w.packets.len > 0 && (most < 0 || w.bytes > f.list[most].bytes || w.bytes == f.list[most].bytes && i < most) {
				most = i
			}
		}
	}
	return f.takeFrom(&f.list[most])
}
