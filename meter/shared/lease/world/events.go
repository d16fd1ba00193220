package world

// event is something that happens at a time.
type event struct {
	at    int64
	order uint64 // of events of one time
	host  int32
	index int32 // of a message or of a function
	call  uint32
	kind  kind
}

type kind uint8

const (
	call    kind = iota // of a function
	timer               // of a host: its next call
	arrival             // of a request at the store
	answer              // the reply arrives
	lost                // the deadline ends
	expiry              // of a lease, or of what follows it
)

// events are a heap of which each node has four children: a world of 1,000 hosts pushes
// and pops a hundred million events in an hour.
type events struct {
	heap  []event
	order uint64
}

func (e *event) before(f *event) bool {
	return e.at < f.at || e.at == f.at && e.order < f.order
}

func (q *events) push(e event) {
	q.order++
	e.order = q.order
	q.heap = append(q.heap, e)
	h := q.heap
	i := len(h) - 1
	for i > 0 {
		up := (i - 1) / 4
		if !e.before(&h[up]) {
			break
		}
		h[i] = h[up]
		i = up
	}
	h[i] = e
}

func (q *events) pop() event {
	h := q.heap
	first, last := h[0], h[len(h)-1]
	h = h[:len(h)-1]
	q.heap = h
	if len(h) == 0 {
		return first
	}
	i := 0
	for {
		least := 4*i + 1
		if least >= len(h) {
			break
		}
		for c := least + 1; c < min(4*i+5, len(h)); c++ {
			if h[c].before(&h[least]) {
				least = c
			}
		}
		if !h[least].before(&last) {
			break
		}
		h[i] = h[least]
		i = least
	}
	h[i] = last
	return first
}
