package tap

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// Plane carries frames between two devices, and shapes them on the way.
type Plane struct {
	// Inside and Outside have the same number of ports.
	Inside, Outside Device
	// Egress shapes what goes from Inside to Outside, Ingress what comes back;
	// nil lets all pass.
	Egress, Ingress *Shaper
	// Drain is how long packets that wait have to leave when the plane ends.
	Drain time.Duration
}

// GoneError says which device is there no more. It is an ErrGone.
type GoneError struct{ Device string }

func (e *GoneError) Error() string { return e.Device + ": " + ErrGone.Error() }
func (e *GoneError) Unwrap() error { return ErrGone }

// Run carries frames until the context ends, which is no error, or a device is
// gone. Then packets that wait have time to leave, except those that came by the
// device that is gone; those that do not are lost and counted. The shapers keep
// what they know, for another Run.
func (p *Plane) Run(ctx context.Context) error {
	inside, outside := p.Inside.Ports(), p.Outside.Ports()
	if len(inside) != len(outside) {
		return fmt.Errorf("%s has %d queues and %s has %d: they must be as many", p.Inside.Name(), len(inside), p.Outside.Name(), len(outside))
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var all sync.WaitGroup
	errs := make(chan error, 2*len(inside))
	start := func(from, to Port, shaper *Shaper, fromName, toName string) {
		l := newLane(from, to, shaper)
		all.Go(func() {
			defer stop()
			switch side, err := l.run(ctx, p.Drain); {
			case errors.Is(err, ErrGone):
				errs <- &GoneError{[...]string{fromName, toName}[side]}
			case err != nil:
				errs <- fmt.Errorf("%s: %w", [...]string{fromName, toName}[side], err)
			}
		})
	}
	for i := range inside {
		start(inside[i], outside[i], p.Egress, p.Inside.Name(), p.Outside.Name())
		start(outside[i], inside[i], p.Ingress, p.Outside.Name(), p.Inside.Name())
	}
	all.Wait()
	close(errs)
	return <-errs // the first, or nil
}

// burst is how many frames a lane takes at a time.
const burst = 64

// lane carries frames from one port to another. One goroutine owns it.
type lane struct {
	from, to  Port
	shaper    *Shaper    // nil lets all pass
	coalescer *coalescer // nil where the other port does not cut UDP super packets
	wheel     *wheel[[]byte]
	pool      pool
	read      [][]byte // buffers of MaxFrame, read into
	leaving   [][]byte
	merged    [][]byte
	whole     [][]byte    // what is written, as it was before
	done      [][]byte    // of those leaving, the pool's
	inbox     []departing // of this lane, settled elsewhere; the shaper's lock is its lock
	packet    dataplane.Packet
	verdict   dataplane.Verdict
}

func newLane(from, to Port, shaper *Shaper) *lane {
	l := &lane{from: from, to: to, shaper: shaper, wheel: newWheel[[]byte](Now())}
	if cuts, ok := to.(interface{ CutsUDP() bool }); ok && cuts.CutsUDP() {
		l.coalescer = newCoalescer(4)
	}
	for range burst {
		l.read = append(l.read, make([]byte, MaxFrame))
	}
	return l
}

// Sides of a lane, of which an error may be.
const (
	reading = iota
	writing
)

// run carries frames until the context ends and what waits has left, or drain
// is over.
func (l *lane) run(ctx context.Context, drain time.Duration) (side int, err error) {
	unlock, err := LockThread()
	if err != nil {
		return reading, err
	}
	defer unlock()
	defer l.end()
	woken := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(woken)
		l.from.Wake()
	})
	defer func() {
		if !stop() {
			<-woken // the port may be closed once Run returned
		}
	}()
	l.begin()
	over := int64(math.MaxInt64) // when the drain is
	for {
		n, err := l.from.Read(l.read)
		if err != nil {
			return reading, err
		}
		if ctx.Err() != nil {
			n = 0 // what comes now is not ours any more
			if over == math.MaxInt64 {
				over = Now() + int64(drain)
			}
		}
		deadline := l.turn(n)
		if err := l.write(); err != nil {
			return writing, err
		}
		if ctx.Err() != nil && (deadline == math.MaxInt64 || Now() >= over) {
			return reading, nil
		}
		if n < burst {
			if err := l.from.Wait(min(deadline, over)); err != nil {
				return reading, err
			}
		}
	}
}

func (l *lane) begin() {
	if s := l.shaper; s != nil {
		s.lock.Lock()
		defer s.lock.Unlock()
		s.wake[l] = l.from.Wake
	}
}

// end counts what still waits as lost.
func (l *lane) end() {
	s := l.shaper
	if s == nil {
		return
	}
	s.lock.Lock()
	defer s.lock.Unlock()
	delete(s.wake, l)
	for _, d := range l.inbox {
		s.lose(&s.lost.Ended, d.frame)
	}
	for frame, _, ok := l.wheel.take(math.MaxInt64); ok; frame, _, ok = l.wheel.take(math.MaxInt64) {
		s.lose(&s.lost.Ended, frame)
	}
	if len(s.wake) > 0 {
		return // others have the rest
	}
	for s.pipeline.Settle(math.MaxInt64, &l.verdict) {
		if frame, _ := s.settled(&l.verdict); frame != nil {
			s.lose(&s.lost.Ended, frame)
		}
	}
	for _, d := range s.moved {
		s.lose(&s.lost.Ended, d.frame)
	}
	s.moved = nil
}

// lose counts a frame that waited and will not leave.
func (s *Shaper) lose(to *dataplane.Count, frame []byte) {
	s.held -= int64(cap(frame))
	add(to, frame)
}

// add counts a frame as what it would have been cut into.
func add(to *dataplane.Count, frame []byte) {
	var p dataplane.Packet
	describe(&p, frame)
	to.Packets += int64(max(p.Segments, 1))
	to.Bytes += int64(p.WireLen)
}

// turn takes the n frames that were read through the policy, gathers those that
// leave now, and says when the next one does.
func (l *lane) turn(n int) (deadline int64) {
	s := l.shaper
	if s == nil {
		l.leaving = append(l.leaving, l.read[:n]...)
		return math.MaxInt64
	}
	s.lock.Lock()
	defer s.lock.Unlock()
	now := Now()
	for _, d := range l.inbox {
		l.wheel.add(d.at, d.frame)
	}
	for _, d := range s.moved {
		l.wheel.add(d.at, d.frame)
	}
	l.inbox, s.moved = l.inbox[:0], s.moved[:0]
	for frame, _, ok := l.wheel.take(now); ok; frame, _, ok = l.wheel.take(now) {
		l.release(frame)
	}
	for _, b := range l.read[:n] {
		if len(b) > HeaderLen {
			l.take(b, now)
		}
	}
	for s.pipeline.Settle(now, &l.verdict) {
		frame, of := s.settled(&l.verdict)
		switch wake := s.wake[of]; {
		case frame == nil:
		case of == l || wake == nil:
			l.release(frame)
		default:
			of.inbox = append(of.inbox, departing{frame, l.verdict.Departure})
			wake()
		}
	}
	deadline = math.MaxInt64
	if at, ok := l.wheel.next(); ok {
		deadline = at
	}
	if at, ok := s.pipeline.Due(); ok {
		deadline = min(deadline, at)
	}
	return deadline
}

// take takes a frame through the policy.
func (l *lane) take(b []byte, now int64) {
	s, p, v := l.shaper, &l.packet, &l.verdict
	describe(p, b)
	p.Time, p.Mark, p.ID = now, 0, s.tickets.next()
	s.pipeline.Process(p, v)
	switch {
	case v.Done.Dropped():
	case v.Done&dataplane.Waiting != 0:
		s.tickets.put(ticket{l.hold(b), l})
	case v.Departure > now:
		if held := l.hold(b); held != nil {
			l.wheel.add(v.Departure, held)
		} else {
			s.forget(v)
		}
	default:
		l.leaving = append(l.leaving, b)
	}
}

// hold copies a frame that is to wait, or returns nil where there is no memory.
func (l *lane) hold(b []byte) []byte {
	s := l.shaper
	if s.held+int64(sizes[sizeOf(b)]) > s.memory {
		return nil
	}
	held := l.pool.copy(b)
	s.held += int64(cap(held))
	return held
}

// release lets a frame go that waited.
func (l *lane) release(frame []byte) {
	l.shaper.held -= int64(cap(frame))
	l.leaving = append(l.leaving, frame)
	l.done = append(l.done, frame)
}

// write writes what leaves.
func (l *lane) write() error {
	if len(l.leaving) == 0 {
		return nil
	}
	out := l.leaving
	if l.coalescer != nil {
		l.merged = l.coalescer.coalesce(l.merged[:0], out)
		out = l.merged
	}
	l.whole = append(l.whole[:0], out...)
	sent, err := l.to.Write(out)
	if sent < len(out) && l.shaper != nil {
		l.unsent(out, sent)
	}
	for _, frame := range l.done {
		l.pool.put(frame)
	}
	l.leaving, l.done = l.leaving[:0], l.done[:0]
	return err
}

// unsent counts the frames that a write has cut to nothing, and those that it
// did not come to because the device is gone.
func (l *lane) unsent(frames [][]byte, sent int) {
	s := l.shaper
	s.lock.Lock()
	defer s.lock.Unlock()
	for i, b := range frames {
		switch {
		case len(b) == 0:
			add(&s.lost.Refused, l.whole[i])
		case sent > 0:
			sent--
		default:
			add(&s.lost.Ended, b)
		}
	}
}
