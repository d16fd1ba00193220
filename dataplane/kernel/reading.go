package kernel

import (
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/image"
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
func (s *Shaper) kept() (out [image.KeptReadings]image.KeptReading, err error) {
	for slot := range out {
		k := image.EmptyReading(&s.Outline)
		if err := s.readings.Lookup(uint32(slot), k); err != nil {
			return out, err
		}
		if k.Sum() != k[image.ReadingSum] {
			k[image.ReadingTime] = 0
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
	current := image.EmptyReading(&s.Outline)
	current.Set(&now)
	for _, k := range list {
		age := time.Duration(now.At - k[image.ReadingTime])
		if k[image.ReadingTime] > r.At && MinReadingAge <= age && age <= image.MaxReadingAge &&
			k.Precedes(current) {
			r, ok = k.Reading(&now), true
		}
	}
	return r, ok
}

// Keep keeps a reading for Earlier, in every process. It does nothing if the last one is too young
// for anybody to use the one before it. Errors do not matter: without a reading a caller of Earlier
// waits for one.
func (s *Shaper) Keep(r Reading) {
	list, err := s.kept()
	if err != nil {
		return
	}
	oldest, youngest := 0, 0
	for slot, k := range list {
		if k[image.ReadingTime] < list[oldest][image.ReadingTime] {
			oldest = slot
		}
		if k[image.ReadingTime] > list[youngest][image.ReadingTime] {
			youngest = slot
		}
	}
	if time.Duration(r.At-list[youngest][image.ReadingTime]) < MinReadingAge {
		return
	}
	k := image.EmptyReading(&s.Outline)
	k.Set(&r)
	k[image.ReadingSum] = k.Sum()
	_ = s.readings.Put(uint32(oldest), k)
}
