package queue

// ring is a first-in-first-out list. It allocates only if it contains more
// items than ever before.
type ring[T any] struct {
	list []T // the length is a power of two
	head int
	len  int
}

func (r *ring[T]) item(i int) *T { return &r.list[(r.head+i)&(len(r.list)-1)] }

func (r *ring[T]) push(v T) {
	if r.len == len(r.list) {
		grown := make([]T, max(2*r.len, 8))
		n := copy(grown, r.list[r.head:])
		copy(grown[n:], r.list[:r.head])
		r.list, r.head = grown, 0
	}
	r.len++
	*r.item(r.len - 1) = v
}

func (r *ring[T]) pop() T {
	var none T
	v := *r.item(0)
	*r.item(0) = none
	r.head = (r.head + 1) & (len(r.list) - 1)
	r.len--
	return v
}
