package tcpmodel

// ring is a queue of values numbered without gaps.
type ring[T any] struct {
	first, end int64 // numbers of the oldest value, and of the next one
	values     []T   // power of two
}

func (r *ring[T]) len() int { return int(r.end - r.first) }

// at returns the value with a number from first to end-1.
func (r *ring[T]) at(n int64) *T { return &r.values[n&int64(len(r.values)-1)] }

func (r *ring[T]) push(v T) {
	if r.len() == len(r.values) {
		more := make([]T, max(16, 2*len(r.values)))
		for n := r.first; n < r.end; n++ {
			more[n&int64(len(more)-1)] = *r.at(n)
		}
		r.values = more
	}
	r.end++
	*r.at(r.end - 1) = v
}

func (r *ring[T]) pop() T {
	r.first++
	return *r.at(r.first - 1)
}
