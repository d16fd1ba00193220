package metrics

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"sync"
	"time"
)

const (
	freshFor  = time.Second      // age up to which a snapshot is used without asking the owner
	publishIn = 3 * time.Second  // time for the owner to publish a new snapshot
	usableFor = 15 * time.Second // age up to which the last snapshot is used if the owner is late
)

// Board passes snapshots of shapers from their owner, a goroutine, to HTTP handlers. The owner
// never waits: it publishes when it is asked, at most once per freshFor. A handler waits for at
// most publishIn. A nil board never asks.
type Board struct {
	ask  chan struct{} // holds an element if a handler wants a snapshot
	rank *ranking      // nil: customers are not exported singly

	mu   sync.Mutex
	next chan struct{} // closed when the next snapshot is published
	last *snapshot
}

// snapshot holds the counters of all shapers of a command at one moment.
type snapshot struct {
	taken   time.Time
	shapers []Observation
	err     error // error of reading the shapers
	rank    *ranking

	render, pack sync.Once
	text, packed []byte
}

// NewBoard returns a board without a snapshot, on which at most so many customers of a shaper
// have metrics of their own.
func NewBoard(customers int) *Board {
	b := &Board{ask: make(chan struct{}, 1), next: make(chan struct{})}
	if customers > 0 {
		b.rank = &ranking{most: customers}
	}
	return b
}

// Customers reports whether single customers are exported, for which the owner must publish their
// counters.
func (b *Board) Customers() bool { return b.rank != nil }

// Requests returns a channel. The owner must publish for each value received from it. The channel of a
// nil board blocks indefinitely.
func (b *Board) Requests() <-chan struct{} {
	if b == nil {
		return nil
	}
	return b.ask
}

// Publish publishes a snapshot, or the error of reading it. The owner must not change the
// snapshot afterwards.
func (b *Board) Publish(shapers []Observation, err error) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.last = &snapshot{taken: time.Now(), shapers: shapers, err: err, rank: b.rank}
	close(b.next)
	b.next = make(chan struct{})
	select {
	case <-b.ask:
	default:
	}
}

// latest returns a fresh snapshot, or the last one if the owner does not publish in time.
func (b *Board) latest(ctx context.Context) (*snapshot, error) {
	b.mu.Lock()
	if b.last != nil && time.Since(b.last.taken) < freshFor {
		defer b.mu.Unlock()
		return b.last, b.last.err
	}
	select {
	case b.ask <- struct{}{}:
	default: // asked by another handler already
	}
	next := b.next
	b.mu.Unlock()

	late := time.NewTimer(publishIn)
	defer late.Stop()
	select {
	case <-next:
	case <-late.C:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.last == nil || time.Since(b.last.taken) > usableFor {
		return nil, fmt.Errorf("no counters for %v: shaper is busy or stopped", publishIn)
	}
	return b.last, b.last.err
}

// peek returns the last snapshot, or nil.
func (b *Board) peek() *snapshot {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.last
}

// body returns the metrics as text. The first caller renders it.
func (s *snapshot) body() []byte {
	s.render.Do(func() {
		s.rank.rank(s.shapers)
		s.text = expose(s.shapers, exposition.process)
	})
	return s.text
}

// compressed returns the text compressed with gzip. The first caller compresses it.
func (s *snapshot) compressed() []byte {
	s.pack.Do(func() {
		var b bytes.Buffer
		w, _ := gzip.NewWriterLevel(&b, gzip.BestSpeed) // the level is valid
		_, _ = w.Write(s.body())                        // a buffer does not fail
		_ = w.Close()
		s.packed = b.Bytes()
	})
	return s.packed
}
