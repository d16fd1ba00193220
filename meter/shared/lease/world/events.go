package world

// event is an event of the simulation.
type event struct {
	at    int64
	order uint64 // order among events of the same time
	host  int32
	index int32 // of a message or a function
	call  uint32
	kind  kind
}

type kind uint8

const (
	call    kind = iota // calls a function
	timer               // a host's next call
	arrival             // a request arrives at the store
	answer              // a reply arrives at the host
	lost                // a call reaches its deadline
	expiry              // a phase of a host's plan ends
)

// events is a heap whose nodes have four children. A world of 1,000 hosts
// pushes and pops a hundred million events per hour.
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
