package tap

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"sync"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// Plane forwards frames between two devices and shapes them.
type Plane struct {
	// Inside and Outside must have the same number of ports.
	Inside, Outside Device
	// Egress shapes frames from Inside to Outside, Ingress frames from Outside
	// to Inside. nil passes all frames.
	Egress, Ingress *ActivePolicy
	// Drain is the time for queued packets to depart after the end of Run's
	// context.
	Drain time.Duration
}

// GoneError reports which device no longer exists. It wraps ErrGone.
type GoneError struct{ Device string }

func (e *GoneError) Error() string { return e.Device + ": " + ErrGone.Error() }
func (e *GoneError) Unwrap() error { return ErrGone }

// Run forwards frames until ctx ends, which is not an error, or a device is gone. Then queued
// packets have Drain to depart, except packets from a device which is gone. The rest are dropped
// and counted. The policies keep their state for another Run.
func (p *Plane) Run(ctx context.Context) error {
	inside, outside := p.Inside.Ports(), p.Outside.Ports()
	if len(inside) != len(outside) {
		return fmt.Errorf("%s has %d queues and %s has %d: the numbers must be equal", p.Inside.Name(),
			len(inside), p.Outside.Name(), len(outside))
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var all sync.WaitGroup
	errs := make(chan error, 2*len(inside))
	start := func(from, to Port, shaper *ActivePolicy, fromName, toName string) {
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
	return <-errs // the first error, or nil
}

// burst is the maximum number of frames that a lane reads at once.
const burst = 64

// busy is the number of turns without a wait after which a lane calls the Go scheduler. The thread
// of the lane watched the ports of other lanes before. The call makes another thread watch them;
// otherwise it takes up to 10 ms until one does.
const busy = 2

// lane forwards frames from one port to another. One goroutine owns it.
type lane struct {
	from, to  Port
	shaper    *ActivePolicy // nil: pass all frames
	coalescer *coalescer    // nil if the other port does not split UDP super packets
	wheel     *wheel[[]byte]
	pool      pool
	read      [][]byte // buffers of MaxFrame for reading
	leaving   [][]byte
	merged    [][]byte
	whole     [][]byte    // the buffers passed to Write, with their original lengths
	done      [][]byte    // buffers of the pool in leaving
	inbox     []departing // queued frames of this lane, settled by other lanes; guarded by shaper.lock
	packet    dataplane.Packet
	verdict   dataplane.Verdict
}

func newLane(from, to Port, shaper *ActivePolicy) *lane {
	l := &lane{from: from, to: to, shaper: shaper, wheel: newWheel[[]byte](Now())}
	if cuts, ok := to.(interface{ CutsUDP() bool }); ok && cuts.CutsUDP() {
		l.coalescer = newCoalescer(4)
	}
	for range burst {
		l.read = append(l.read, make([]byte, MaxFrame))
	}
	return l
}

// Side of a lane on which an error occurred.
const (
	reading = iota
	writing
)

// run forwards frames until the end of ctx, and then until all queued frames have departed or drain
// has elapsed.
func (l *lane) run(ctx context.Context, drain time.Duration) (side int, err error) {
	defer l.unregister()
	woken := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(woken)
		l.from.Wake()
	})
	defer func() {
		if !stop() {
			<-woken // no Wake after Run returned: the port may be closed
		}
	}()
	l.register()
	drained := int64(math.MaxInt64) // end of the drain time
	for turns := 1; ; turns++ {
		n, err := l.from.Read(l.read)
		if err != nil {
			return reading, err
		}
		if ctx.Err() != nil {
			n = 0 // no longer forwarded
			if drained == math.MaxInt64 {
				drained = Now() + int64(drain)
			}
		}
		deadline := l.turn(n)
		if err := l.write(); err != nil {
			return writing, err
		}
		if ctx.Err() != nil && (deadline == math.MaxInt64 || Now() >= drained) {
			return reading, nil
		}
		if n == 0 {
			if err := l.from.Wait(min(deadline, drained)); err != nil {
				return reading, err
			}
			turns = 0
		}
		if turns == busy {
			runtime.Gosched()
		}
	}
}

func (l *lane) register() {
	if s := l.shaper; s != nil {
		s.lock.Lock()
		defer s.lock.Unlock()
		s.wake[l] = l.from.Wake
	}
}

// unregister counts the frames still queued as lost.
func (l *lane) unregister() {
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
	for frame, _, ok := l.wheel.pop(math.MaxInt64); ok; frame, _, ok = l.wheel.pop(math.MaxInt64) {
		s.lose(&s.lost.Ended, frame)
	}
	if len(s.wake) > 0 {
		return // another lane takes over the rest
	}
	for s.pipeline.Settle(math.MaxInt64, &l.verdict) {
		if frame, _ := s.finish(&l.verdict); frame != nil {
			s.lose(&s.lost.Ended, frame)
		}
	}
	for _, d := range s.orphans {
		s.lose(&s.lost.Ended, d.frame)
	}
	s.orphans = nil
}

// lose counts a queued frame as lost.
func (s *ActivePolicy) lose(to *dataplane.Count, frame []byte) {
	s.queuedBytes -= int64(cap(frame))
	addFrame(to, frame)
}

// addFrame counts a frame as its later segments.
func addFrame(to *dataplane.Count, frame []byte) {
	var p dataplane.Packet
	describe(&p, frame)
	to.Packets += int64(max(p.Segments, 1))
	to.Bytes += int64(p.WireLen)
}

// turn runs the n frames read through the policy and collects the frames departing now. It returns
// the time of the next departure.
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
	for _, d := range s.orphans {
		l.wheel.add(d.at, d.frame)
	}
	l.inbox, s.orphans = l.inbox[:0], s.orphans[:0]
	for frame, _, ok := l.wheel.pop(now); ok; frame, _, ok = l.wheel.pop(now) {
		l.release(frame)
	}
	for _, b := range l.read[:n] {
		if len(b) > HeaderLen {
			l.process(b, now)
		}
	}
	for s.pipeline.Settle(now, &l.verdict) {
		frame, owner := s.finish(&l.verdict)
		switch wake := s.wake[owner]; {
		case frame == nil:
		case owner == l || wake == nil:
			l.release(frame)
		default:
			owner.inbox = append(owner.inbox, departing{frame, l.verdict.Departure})
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

// process runs a frame through the policy.
func (l *lane) process(b []byte, now int64) {
	s, p, v := l.shaper, &l.packet, &l.verdict
	describe(p, b)
	p.Time, p.Mark, p.ID = now, 0, s.tickets.next()
	s.pipeline.Process(p, v)
	switch {
	case v.Done.Dropped():
	case v.Done&dataplane.Waiting != 0:
		s.tickets.put(ticket{l.hold(b), l})
	case v.Departure > now:
		if kept := l.hold(b); kept != nil {
			l.wheel.add(v.Departure, kept)
		} else {
			s.loseForMemory(v)
		}
	default:
		l.leaving = append(l.leaving, b)
	}
}

// hold copies a frame for its time in a queue. It returns nil if there is no memory.
func (l *lane) hold(b []byte) []byte {
	s := l.shaper
	if _, size := sizeClass(len(b)); s.queuedBytes+int64(size) > s.memory {
		return nil
	}
	kept := l.pool.copy(b)
	s.queuedBytes += int64(cap(kept))
	return kept
}

// release moves a queued frame to leaving.
func (l *lane) release(frame []byte) {
	l.shaper.queuedBytes -= int64(cap(frame))
	l.leaving = append(l.leaving, frame)
	l.done = append(l.done, frame)
}

// write writes the frames in leaving.
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

// unsent counts the refused frames, which Write cut to length 0, and those not written because the
// device is gone.
func (l *lane) unsent(frames [][]byte, sent int) {
	s := l.shaper
	s.lock.Lock()
	defer s.lock.Unlock()
	for i, b := range frames {
		switch {
		case len(b) == 0:
			addFrame(&s.lost.Refused, l.whole[i])
		case sent > 0:
			sent--
		default:
			addFrame(&s.lost.Ended, b)
		}
	}
}
