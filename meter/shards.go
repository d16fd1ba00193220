package meter

import (
	"fmt"
	"hash/maphash"
	"iter"
	"sync"
	"time"
)

// Shards is a Table for several goroutines. Its keys are spread over shards, which are tables with
// a lock each. Each shard holds its part of Keys, so a key may be evicted or find no room while
// another shard is not full. NewShards makes one; the methods of the zero Shards panic.
type Shards[K comparable] struct {
	seed   maphash.Seed
	shards []shard[K]
	// Held by calls to replace or save the profile or the keys of all shards, one shard after
	// another: shards of two calls must not mix.
	whole sync.Mutex
}

// shard keeps its lock on the cache line written by its table at each hit.
type shard[K comparable] struct {
	mu    sync.Mutex
	table Table[K]
	_     [64]byte // no two shards share a cache line
}

// NewShards returns an empty table with this number of shards, from 1 to config.Keys. Use about
// a thousand, not ten per core: if two goroutines need the same shard, one of them may be
// put to sleep, which takes microseconds.
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
		t.shards[i].table.beside = config.Keys * (shards - 1)
	}
	return t, nil
}

const zeroShards = "meter: make Shards with NewShards"

// shardOf returns the shard of a hash. It depends on the bits in the middle, as the tables use
// those at both ends.
func (t *Shards[K]) shardOf(hash uint64) *shard[K] {
	if len(t.shards) == 0 {
		panic(zeroShards)
	}
	return &t.shards[t.number(hash)]
}

func (t *Shards[K]) number(hash uint64) int {
	return int(uint64(uint32(hash>>8)) * uint64(len(t.shards)) >> 32)
}

// Color is Table.Color.
func (t *Shards[K]) Color(key K, now int64, n int, in Color) Color {
	if in == Red {
		return Red
	}
	hash := maphash.Comparable(t.seed, key)
	s := t.shardOf(hash)
	s.mu.Lock()
	c := s.table.color(hash, key, now, n, in)
	s.mu.Unlock()
	return c
}

// Decide is Table.Decide.
func (t *Shards[K]) Decide(key K, now int64, n int) Decision {
	hash := maphash.Comparable(t.seed, key)
	s := t.shardOf(hash)
	s.mu.Lock()
	d := s.table.decide(hash, key, now, n)
	s.mu.Unlock()
	return d
}

// Peek is Table.Peek.
func (t *Shards[K]) Peek(key K, now int64, n int, in Color) Color {
	hash := maphash.Comparable(t.seed, key)
	s := t.shardOf(hash)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.table.peek(hash, key, now, n, in)
}

// RetryAfter is Table.RetryAfter.
func (t *Shards[K]) RetryAfter(key K, now int64, n int) (time.Duration, bool) {
	hash := maphash.Comparable(t.seed, key)
	s := t.shardOf(hash)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.table.retryAfter(hash, key, now, n)
}

// Delete is Table.Delete.
func (t *Shards[K]) Delete(key K) bool {
	hash := maphash.Comparable(t.seed, key)
	s := t.shardOf(hash)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.table.delete(hash, key)
}

// Set is Table.Set. It fails if the shard of the key is full, even if others are not: make Keys
// twice the number of keys to Set, and at least 100 for each shard. Logs of keys must fit as in a
// Table with the keys of all shards.
func (t *Shards[K]) Set(key K, now int64, p *Profile) error {
	hash := maphash.Comparable(t.seed, key)
	s := t.shardOf(hash)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.table.set(hash, key, now, p)
}

// Unset is Table.Unset.
func (t *Shards[K]) Unset(key K, now int64) bool {
	hash := maphash.Comparable(t.seed, key)
	s := t.shardOf(hash)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.table.unset(hash, key, now)
}

// SetProfile is Table.SetProfile for one shard after another. If it returns an error, nothing
// changes.
func (t *Shards[K]) SetProfile(now int64, p *Profile) error {
	if len(t.shards) == 0 {
		panic(zeroShards)
	}
	t.whole.Lock()
	defer t.whole.Unlock()
	for i := range t.shards {
		s := &t.shards[i]
		s.mu.Lock()
		err := s.table.SetProfile(now, p)
		s.mu.Unlock()
		if err != nil {
			return err // the first shard's: all have the same kind
		}
	}
	return nil
}

// Len returns the number of keys in all shards.
func (t *Shards[K]) Len() int { return t.Stats().Keys }

// All is Table.All. No lock is held while the body of the loop runs.
func (t *Shards[K]) All() iter.Seq2[K, *Meter] {
	return func(yield func(K, *Meter) bool) {
		for i := range t.shards {
			s := &t.shards[i]
			for slot := 0; ; slot++ {
				s.mu.Lock()
				if slot >= len(s.table.slots) { // UnmarshalBinary may have made the table shorter
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

// Do calls f with exclusive access to the table of the key.
func (t *Shards[K]) Do(key K, f func(*Table[K])) {
	s := t.shardOf(maphash.Comparable(t.seed, key))
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
