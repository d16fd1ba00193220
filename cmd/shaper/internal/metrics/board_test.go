package metrics

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// owner publishes a numbered snapshot whenever the board asks for one, and counts them.
func owner(ctx context.Context, b *Board, takes time.Duration) (published *atomic.Int32) {
	published = new(atomic.Int32)
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-b.Requests():
				time.Sleep(takes)
				b.Publish([]Observation{{name: fmt.Sprint(published.Add(1))}}, nil)
			}
		}
	}()
	return published
}

// TestBoardOncePerSecond checks that many scrapes share one snapshot per second, and that the
// owner publishes nothing without a scrape.
func TestBoardOncePerSecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		b := NewBoard(0)
		published := owner(ctx, b, 30*time.Millisecond)
		time.Sleep(time.Minute)
		if published.Load() != 0 {
			t.Errorf("got %d snapshots published, want 0: none was requested", published.Load())
		}
		var scrapes sync.WaitGroup
		for i := range 200 {
			scrapes.Go(func() {
				time.Sleep(time.Duration(i) * 10 * time.Millisecond)
				asked := time.Now()
				s, err := b.latest(ctx)
				if err != nil {
					t.Errorf("scrape %d: %v", i, err)
				} else if age := asked.Sub(s.taken); age >= freshFor {
					t.Errorf("scrape %d: got a snapshot %v old, want less than %v", i, age, freshFor)
				}
			})
		}
		scrapes.Wait()
		if published.Load() != 2 {
			t.Errorf("got %d snapshots in two seconds, want 2", published.Load())
		}
		time.Sleep(freshFor)
		if s, err := b.latest(ctx); err != nil || s.shapers[0].name != "3" {
			t.Errorf("got %v, %v: want the third snapshot", s, err)
		}
	})
}

// TestBoardLateOwner checks that the last snapshot is used if the owner is late, until it is
// too old. Without a snapshot there is an error.
func TestBoardLateOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := NewBoard(0)
		begin := time.Now()
		if s, err := b.latest(t.Context()); err == nil {
			t.Errorf("got %v before any snapshot, want an error", s)
		}
		if took := time.Since(begin); took != publishIn {
			t.Errorf("waited %v, want %v", took, publishIn)
		}
		b.Publish([]Observation{{name: "a"}}, nil)
		time.Sleep(usableFor - publishIn)
		if s, err := b.latest(t.Context()); err != nil || s.shapers[0].name != "a" {
			t.Errorf("got %v, %v: want the last snapshot", s, err)
		}
		if s, err := b.latest(t.Context()); err == nil {
			t.Errorf("got %v, which is older than %v, want an error", s, usableFor)
		}
		ctx, stop := context.WithCancel(t.Context())
		stop()
		if _, err := b.latest(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("a canceled request: got %v, want context.Canceled", err)
		}
		failed := errors.New("counters: no such map")
		b.Publish(nil, failed)
		if _, err := b.latest(t.Context()); !errors.Is(err, failed) {
			t.Errorf("got %v, want what the owner met", err)
		}
	})
}

// TestBoardAsksAgain checks that an owner that ignores a request gets another one, and none
// after it has published.
func TestBoardAsksAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := NewBoard(0)
		for range 2 {
			go func() { _, _ = b.latest(t.Context()) }()
			synctest.Wait()
			<-b.Requests() // and publishes nothing
		}
		go func() { _, _ = b.latest(t.Context()) }()
		synctest.Wait()
		b.Publish(nil, nil)
		select {
		case <-b.Requests():
			t.Error("got a request for a snapshot that was just published")
		default:
		}
	})
}

// TestBoardNil checks the nil board of a command without --metrics.
func TestBoardNil(t *testing.T) {
	var b *Board
	b.Publish(nil, nil)
	select {
	case <-b.Requests():
		t.Error("got a request for a snapshot")
	default:
	}
}
