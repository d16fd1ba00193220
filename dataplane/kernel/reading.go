package kernel

import "github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/image"

// Read reads the counters.
func (s *Shaper) Read() (r Reading, err error) {
	r.At = Now()
	leaves, err := s.leafCounts()
	if err != nil {
		return r, err
	}
	if r.Stats, err = s.stats(leaves); err == nil {
		r.Queues, err = s.queues(leaves)
	}
	return r, err
}

// Earlier returns the latest kept reading from which now is far enough for a rate: between
// MinReadingAge and 10 s. ok is false if there is none.
func (s *Shaper) Earlier(now Reading) (r Reading, ok bool) {
	return image.EarlierReading(s.readings, &s.Outline, now)
}

// Keep keeps a reading for Earlier, in every process. It does nothing if the last one is too young
// for anybody to use the one before it. Errors do not matter: without a reading a caller of Earlier
// waits for one.
func (s *Shaper) Keep(r Reading) { image.KeepReading(s.readings, &s.Outline, r) }
