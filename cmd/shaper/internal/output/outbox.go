package output

import (
	"io"
	"sync"
)

// outboxSize is the maximum number of bytes buffered in an outbox.
const outboxSize = 1 << 20

// Outbox is a writer that never blocks: a stopped terminal, or an unread pipe, must not delay the
// detaching of a shaper. Bytes beyond its size are lost. Flush waits for the reader.
type Outbox struct {
	to io.Writer

	mu      sync.Mutex
	changed sync.Cond
	pending []byte
	busy    bool // drain is running
	err     error
}

// NewOutbox returns an outbox in front of to.
func NewOutbox(to io.Writer) *Outbox {
	o := &Outbox{to: to}
	o.changed.L = &o.mu
	return o
}

// Write never blocks and never fails.
func (o *Outbox) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.pending)+len(b) <= outboxSize {
		o.pending = append(o.pending, b...)
	}
	if !o.busy && o.err == nil {
		o.busy = true
		go o.drain()
	}
	return len(b), nil
}

func (o *Outbox) drain() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for len(o.pending) > 0 && o.err == nil {
		b := o.pending
		o.pending = nil
		o.mu.Unlock()
		_, err := o.to.Write(b)
		o.mu.Lock()
		o.err = err
	}
	o.busy = false
	o.changed.Broadcast()
}

// Flush waits until all bytes are written, and returns the first error of writing.
func (o *Outbox) Flush() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	for o.busy {
		o.changed.Wait()
	}
	return o.err
}
