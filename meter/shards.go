package meter

import (
	"fmt"
	"hash/maphash"
	"iter"
	"sync"
	"time"
)

// Shards is a Table for several goroutines: its keys are spread over tables with
// a lock each. Each has its part of the bound, so a key may be forgotten, or find
// no room, where there is some in another. NewShards makes them; the methods of the
// zero Shards panic.
type Shards[K comparable] struct {
	seed   maphash.Seed
	shards []shard[K]
}

// shard has its lock beside what its table writes at a hit.
type shard[K comparable] struct {
	mu    sync.Mutex
	table Table[K]
	_     [64]byte // cores that use two shards do not meet
}

// NewShards returns an empty table of so many shards, each with its part of the
// keys. Where two goroutines want the same one, one of them may be put to sleep,
// which takes microseconds: so a thousand is better than ten for each core.
func NewShards[K comparable](p *Profile, config TableConfig, shards int) (*Shards[K], error) {
	if shards < 1 || shards > config.Keys {
		return nil, &FieldError{"shards", fmt.Sprintf("%d are not between 1 and the number of keys", shards)}
	}
	t := &Shards[K]{seed: maphash.MakeSeed(), shards: make([]shard[K], shards)}
	config.Keys /= shards
	for i := range t.shards {
		if err := t.shards[i].table.init(p, config, t.seed); err != nil {
			return nil, err
		}
	}
	return t, nil
}

const zeroShards = "meter: Shards are made by NewShards"

// of returns the shard of a hash. Its bits in the middle decide: the tables use
// those at both ends.
func (t *Shards[K]) of(hash uint64) *shard[K] {
	if len(t.shards) == 0 {
		panic(zeroShards)
	}
	return &t.shards[uint64(uint32(hash>>8))*uint64(len(t.shards))>>32]
}

// Color is Table.Color.
func (t *Shards[K]) Color(key K, now int64, n int, in Color) Color {
	if in == Red {
		return Red
	}
	hash := maphash.Comparable(t.seed, key)
	s := t.of(hash)
	s.mu.Lock()
	c := s.table.color(hash, key, now, n, in)
	s.mu.Unlock()
	return c
}

// Decide is Table.Decide.
func (t *Shards[K]) Decide(key K, now int64, n int) Decision {
	hash := maphash.Comparable(t.seed, key)
	s := t.of(hash)
	s.mu.Lock()
	d := s.table.decide(hash, key, now, n)
	s.mu.Unlock()
	return d
}

// Peek is Table.Peek.
func (t *Shards[K]) Peek(key K, now int64, n int, in Color) Color {
	hash := maphash.Comparable(t.seed, key)
	s := t.of(hash)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.table.peek(hash, key, now, n, in)
}

// RetryAfter is Table.RetryAfter.
func (t *Shards[K]) RetryAfter(key K, now int64, n int) (time.Duration, bool) {
	hash := maphash.Comparable(t.seed, key)
	s := t.of(hash)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.table.retryAfter(hash, key, now, n)
}

// Delete is Table.Delete.
func (t *Shards[K]) Delete(key K) bool {
	hash := maphash.Comparable(t.seed, key)
	s := t.of(hash)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.table.delete(hash, key)
}

// Len is how many keys are known in all shards.
func (t *Shards[K]) Len() (n int) {
	for i := range t.shards {
		s := &t.shards[i]
		s.mu.Lock()
		n += s.table.Len()
		s.mu.Unlock()
	}
	return n
}

// All is Table.All. The lock of a shard is held for one key at a time, and none
// while the loop's body runs.
func (t *Shards[K]) All() iter.Seq2[K, *Meter] {
	return func(yield func(K, *Meter) bool) {
		for i := range t.shards {
			s := &t.shards[i]
			for slot := 0; ; slot++ {
				s.mu.Lock()
				if slot == len(s.table.slots) {
					s.mu.Unlock()
					break
				}
				key, m := s.table.at(slot)
				s.mu.Unlock()
				if m != nil && !yield(key, m) {
					return
				}
			}
		}
	}
}

// Do calls f with the table that has a key, which no other goroutine has
// meanwhile.
func (t *Shards[K]) Do(key K, f func(*Table[K])) {
	s := t.of(maphash.Comparable(t.seed, key))
	s.mu.Lock()
	defer s.mu.Unlock()
	f(&s.table)
}

// Stats returns the counts of all shards.
func (t *Shards[K]) Stats() TableStats {
	var sum TableStats
	for i := range t.shards {
		s := &t.shards[i]
		s.mu.Lock()
		counts := s.table.Stats()
		s.mu.Unlock()
		sum.Keys += counts.Keys
		sum.Evicted += counts.Evicted
		sum.Refused += counts.Refused
	}
	return sum
}
