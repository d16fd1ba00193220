package policyfile

import "strings"

// A table of a million customers consists of millions of small strings and slices. Slabs allocate
// them in chunks.
const (
	textChunk  = 1 << 16 // bytes
	entryChunk = 1 << 12 // entries
)

// textSlab keeps copies of strings.
type textSlab struct{ chunk strings.Builder }

func (t *textSlab) keep(s string) string {
	if t.chunk.Cap()-t.chunk.Len() < len(s) {
		t.chunk = strings.Builder{}
		t.chunk.Grow(max(textChunk, len(s)))
	}
	begin := t.chunk.Len()
	t.chunk.WriteString(s)
	return t.chunk.String()[begin:]
}

// slab keeps slices, each built by calls of add and then end.
type slab[T any] struct {
	chunk []T
	begin int // of the current slice
}

func (s *slab[T]) add(v T) {
	if len(s.chunk) == cap(s.chunk) {
		built := s.chunk[s.begin:]
		s.chunk = append(make([]T, 0, max(entryChunk, 2*len(built))), built...)
		s.begin = 0
	}
	s.chunk = append(s.chunk, v)
}

// size returns the number of entries added since the last call of end.
func (s *slab[T]) size() int { return len(s.chunk) - s.begin }

// end returns the entries added since the last call; nil if there is none.
func (s *slab[T]) end() []T {
	built := s.chunk[s.begin:len(s.chunk):len(s.chunk)]
	s.begin = len(s.chunk)
	if len(built) == 0 {
		return nil
	}
	return built
}
