package tap

import (
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// fakeLen is the capacity of a queue of a Fake in each direction, in buffers.
const fakeLen = 1024

// Fake is a device made of channels, for tests: a test sends the frames to be read from ports, and
// receives the frames written to ports. It needs no privilege. In a testing/synctest bubble it is
// exact. All methods are safe for concurrent use.
type Fake struct {
	name   string
	ports  []*fakePort
	gone   chan struct{} // closed when the device is gone
	remove func()
	full   atomic.Bool
}

// NewFake returns a device with a number of queues.
func NewFake(name string, queues int) *Fake {
	f := &Fake{name: name, gone: make(chan struct{})}
	f.remove = sync.OnceFunc(func() { close(f.gone) })
	for range queues {
		f.ports = append(f.ports, &fakePort{
			device: f,
			in:     make(chan []byte, fakeLen),
			out:    make(chan []byte, fakeLen),
			bell:   make(chan struct{}, 1),
		})
	}
	return f
}

// Name returns the name passed to NewFake.
func (f *Fake) Name() string { return f.name }

// Ports returns the queues. Their indexes are the queue numbers of Send and
// Receive.
func (f *Fake) Ports() []Port {
	ports := make([]Port, len(f.ports))
	for q, p := range f.ports {
		ports[q] = p
	}
	return ports
}

// Close removes the device. A test may call it while a plane uses the device.
func (f *Fake) Close() error {
	f.remove()
	return nil
}

// SetFull makes the device refuse all frames, or accept them again.
func (f *Fake) SetFull(full bool) { f.full.Store(full) }

// Send delivers a copy of a buffer, a header and a frame, to a queue. It blocks
// while the queue holds 1024 buffers. It returns false if the device is gone.
func (f *Fake) Send(queue int, b []byte) bool {
	if f.isGone() {
		return false
	}
	select {
	case f.ports[queue].in <- slices.Clone(b):
		return true
	case <-f.gone:
		return false
	}
}

// TrySend is Send, but returns false instead of blocking.
func (f *Fake) TrySend(queue int, b []byte) bool {
	if f.isGone() {
		return false
	}
	select {
	case f.ports[queue].in <- slices.Clone(b):
		return true
	default:
		return false
	}
}

// Receive returns the oldest buffer written to a queue. It blocks until there
// is one. It returns false if the device is gone and the queue empty.
func (f *Fake) Receive(queue int) ([]byte, bool) {
	select {
	case b := <-f.ports[queue].out:
		return b, true
	case <-f.gone:
		return f.TryReceive(queue)
	}
}

// TryReceive is Receive, but returns false instead of blocking.
func (f *Fake) TryReceive(queue int) ([]byte, bool) {
	select {
	case b := <-f.ports[queue].out:
		return b, true
	default:
		return nil, false
	}
}

func (f *Fake) isGone() bool {
	select {
	case <-f.gone:
		return true
	default:
		return false
	}
}

// fakePort is a queue of a Fake.
type fakePort struct {
	device  *Fake
	in, out chan []byte
	bell    chan struct{}
	next    []byte // buffer received from in by Wait
}

func (p *fakePort) Read(into [][]byte) (int, error) {
	n := 0
	for n < len(into) {
		if p.device.isGone() {
			return n, ErrGone
		}
		if p.next == nil {
			select {
			case p.next = <-p.in:
			default:
				return n, nil
			}
		}
		if b := into[n]; len(p.next) <= cap(b) {
			into[n] = append(b[:0], p.next...)
			n++
		}
		p.next = nil
	}
	return n, nil
}

func (p *fakePort) Write(frames [][]byte) (int, error) {
	sent := 0
	for i, b := range frames {
		if p.device.isGone() {
			return sent, ErrGone
		}
		if !p.put(b) {
			frames[i] = b[:0]
			continue
		}
		sent++
	}
	return sent, nil
}

// put passes a copy of a buffer to the test if there is room.
func (p *fakePort) put(b []byte) bool {
	if p.device.full.Load() || len(b) < HeaderLen {
		return false
	}
	select {
	case p.out <- slices.Clone(b):
		return true
	default:
		return false
	}
}

func (p *fakePort) Wait(deadline int64) error {
	if p.device.isGone() {
		return ErrGone
	}
	left := deadline - Now()
	if p.next != nil || left <= 0 {
		return nil
	}
	var timeout <-chan time.Time
	if deadline != math.MaxInt64 {
		timeout = time.After(time.Duration(left))
	}
	select {
	case p.next = <-p.in:
	case <-p.bell:
	case <-timeout:
	case <-p.device.gone:
		return ErrGone
	}
	return nil
}

func (p *fakePort) Wake() {
	select {
	case p.bell <- struct{}{}:
	default:
	}
}
