package queue

// slab holds values under numbers. The numbers begin with 1, so 0 can mean none. A slab allocates
// only if it holds more values than ever before, and values never move.
type slab[V any] struct {
	chunks []*[chunkSize]V
	free   []int32 // unused numbers
}

// chunkSize is a compromise. A link with little traffic should not use much memory, and an
// allocation should be rare.
const chunkSize = 64

func (s *slab[V]) at(i int32) *V { return &s.chunks[uint32(i)/chunkSize][uint32(i)%chunkSize] }

// add returns an unused number. Its value is as it was when the number was removed.
func (s *slab[V]) add() int32 {
	if len(s.free) == 0 {
		first := int32(len(s.chunks) * chunkSize)
		s.chunks = append(s.chunks, new([chunkSize]V))
		for i := first + chunkSize - 1; i >= max(first, 1); i-- {
			s.free = append(s.free, i)
		}
	}
	last := len(s.free) - 1
	i := s.free[last]
	s.free = s.free[:last]
	return i
}

func (s *slab[V]) remove(i int32) { s.free = append(s.free, i) }
