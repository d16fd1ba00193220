package kernel

import (
	"time"
)

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

// kept returns the readings in the map.
func (s *Shaper) kept() (out [keptReadings]keptReading, err error) {
	for slot := range out {
		k := emptyReading(&s.Outline)
		if err := s.readings.Lookup(uint32(slot), k); err != nil {
			return out, err
		}
		if k.sum() != k[readingSum] {
			k[readingTime] = 0
		}
		out[slot] = k
	}
	return out, nil
}

// Earlier returns the latest kept reading from which now is far enough for a rate: between
// MinReadingAge and 10 s. ok is false if there is none.
func (s *Shaper) Earlier(now Reading) (r Reading, ok bool) {
	list, err := s.kept()
	if err != nil {
		return r, false
	}
	current := emptyReading(&s.Outline)
	current.set(&now)
	for _, k := range list {
		age := time.Duration(now.At - k[readingTime])
		if k[readingTime] > r.At && MinReadingAge <= age && age <= maxReadingAge && k.precedes(current) {
			r, ok = k.reading(&now), true
		}
	}
	return r, ok
}

// Keep keeps a reading for Earlier, in every process. It does nothing if the last one is so
// young that nobody could use the one before it. Errors do not matter: without a reading a
// caller of Earlier waits for one.
func (s *Shaper) Keep(r Reading) {
	list, err := s.kept()
	if err != nil {
		return
	}
	oldest, youngest := 0, 0
	for slot, k := range list {
		if k[readingTime] < list[oldest][readingTime] {
			oldest = slot
		}
		if k[readingTime] > list[youngest][readingTime] {
			youngest = slot
		}
	}
	if time.Duration(r.At-list[youngest][readingTime]) < MinReadingAge {
		return
	}
	k := emptyReading(&s.Outline)
	k.set(&r)
	k[readingSum] = k.sum()
	_ = s.readings.Put(uint32(oldest), k)
}
