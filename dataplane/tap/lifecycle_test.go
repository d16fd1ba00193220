package tap

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/a-seed-32e5a53f/shaper/meter"
)

// TestPlaneWakes checks that no method of a port runs after Run has returned.
// The owner may close the port then, and its file descriptor may be reused.
func TestPlaneWakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inside := 0
		var lock sync.Mutex
		add := func(n int) {
			lock.Lock()
			defer lock.Unlock()
			inside += n
		}
		port := func() Port {
			return &oddPort{Port: NewFake("", 1).Ports()[0], wake: func() {
				add(1)
				time.Sleep(time.Second)
				add(-1)
			}}
		}
		ctx, cancel := context.WithCancel(t.Context())
		p := Plane{Inside: oddDevice{"a", port()}, Outside: oddDevice{"b", port()}}
		time.AfterFunc(time.Second, cancel)
		if err := p.Run(ctx); err != nil {
			t.Error(err)
		}
		lock.Lock()
		defer lock.Unlock()
		if inside != 0 {
			t.Errorf("got %d goroutines in Wake after Run, want 0", inside)
		}
	})
}

// TestPlaneConcurrent calls all methods of a shaper while it runs, for the race
// detector.
func TestPlaneConcurrent(t *testing.T) {
	s := newShaper(t, linkPolicy(meter.BitRate(800e6), nil), 1<<20)
	in, out := NewFake("in", 2), NewFake("out", 2)
	p := Plane{Inside: in, Outside: out, Egress: s, Ingress: s, Drain: time.Second}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- p.Run(ctx) }()
	var all sync.WaitGroup
	for q := range 2 {
		all.Go(func() {
			for i := range 2000 {
				in.Send(q, ipFrame(i, 100+i%1000, byte(i)<<2))
				out.Send(q, ipFrame(i, 100, 0))
				in.TryReceive(q)
				out.TryReceive(q)
			}
		})
	}
	all.Go(func() {
		for i := range 50 {
			policy := bucketPolicy(byteRateMega, 3000)
			if i%2 == 0 {
				policy = linkPolicy(byteRateMega, nil)
			}
			if _, err := s.Reload(compilePlan(t, policy)); err != nil {
				t.Error(err)
			}
			if i%2 == 1 {
				s.Snapshot()
			}
			s.Stats()
			if n := s.QueuedMemory(); n > 1<<20 {
				t.Errorf("got %d bytes queued, want at most %d", n, 1<<20)
			}
		}
	})
	all.Wait()
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if n := s.QueuedMemory(); n != 0 {
		t.Errorf("got %d bytes queued at the end, want 0", n)
	}
}
