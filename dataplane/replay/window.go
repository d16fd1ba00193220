package replay

import (
	"context"
	"errors"
	"io"
	"time"
)

const (
	// maxRecord is the maximum size of a record in bytes: a packet with its
	// header, or a pcapng block. A larger one is treated as broken.
	maxRecord = 1 << 20
	chunkSize = 256 << 10
	chunks    = 8
	maxHeld   = chunks / 2 // maximum number of chunks held before a release
)

// window is a sliding view of a stream. A goroutine reads chunks ahead, so reading from disk or
// decompressing runs in parallel with metering. Bytes are taken in place; the caller may change
// them until the next release.
type window struct {
	ctx  context.Context
	full chan chunk
	free chan []byte
	held [][]byte // chunks with bytes taken since the last release, and the chunk of data
	data []byte   // bytes read but not consumed; maxRecord bytes of their chunk before them are spare
	off  int64    // position of data in the stream, bytes
	err  error    // the error behind data

	pause  time.Duration // need returns errPaused after this time without input; 0: it waits
	paused bool          // since the last input
	timer  *time.Timer   // of pause; nil before the first one
}

// errPaused is returned once if the input pauses. No bytes were consumed, so the caller can
// try again.
var errPaused = errors.New("the input pauses")

type chunk struct {
	buf []byte
	n   int
	err error
}

// newWindow reads ahead from src until src or ctx ends.
func newWindow(ctx context.Context, src io.Reader) *window {
	w := &window{ctx: ctx, full: make(chan chunk, chunks), free: make(chan []byte, chunks)}
	for range chunks {
		w.free <- nil // readAhead makes it, if the stream is long enough
	}
	go w.readAhead(src)
	return w
}

func (w *window) readAhead(src io.Reader) {
	defer close(w.full)
	for {
		var c chunk
		select {
		case c.buf = <-w.free:
		case <-w.ctx.Done():
			return
		}
		if c.buf == nil {
			c.buf = make([]byte, maxRecord+chunkSize)
		}
		for c.n == 0 && c.err == nil && w.ctx.Err() == nil {
			c.n, c.err = src.Read(c.buf[maxRecord:])
		}
		select {
		case w.full <- c:
		case <-w.ctx.Done():
			return
		}
		if c.err != nil {
			return
		}
	}
}

// need makes data at least n bytes long, at most maxRecord. If the stream ends
// first, data is the rest, and the error is the reason: io.EOF, an error of the
// source, or the cause of the context's end.
func (w *window) need(n int) error {
	if n <= len(w.data) {
		return nil
	}
	return w.fill(n)
}

// fill is need if the next chunk is needed.
func (w *window) fill(n int) error {
	first := len(w.held)
	for len(w.data) < n {
		if w.err != nil {
			return w.err
		}
		if w.ctx.Err() != nil {
			w.err = context.Cause(w.ctx)
			continue
		}
		timeout := w.startTimer()
		select {
		case c, ok := <-w.full:
			if !ok {
				w.err = context.Cause(w.ctx)
				continue
			}
			start := maxRecord - len(w.data)
			copy(c.buf[start:], w.data)
			w.data, w.err, w.paused = c.buf[start:maxRecord+c.n], c.err, false
			if len(w.held) > first { // only this loop used the last chunk
				w.free <- w.held[first]
				w.held = w.held[:first]
			}
			w.held = append(w.held, c.buf)
		case <-w.ctx.Done():
		case <-timeout:
			w.paused = true
			return errPaused
		}
	}
	return nil
}

// startTimer returns a channel ready after the pause, or nil if need must not return then.
func (w *window) startTimer() <-chan time.Time {
	switch {
	case w.pause == 0 || w.paused || len(w.full) > 0:
		return nil
	case w.timer == nil:
		w.timer = time.NewTimer(w.pause)
	default:
		w.timer.Reset(w.pause)
	}
	return w.timer.C
}

// take consumes the first n bytes of data and returns them. They are valid until the next release.
// Their capacity may include later bytes.
func (w *window) take(n int) []byte {
	raw := w.data[:n]
	w.data = w.data[n:]
	w.off += int64(n)
	return raw
}

// mustRelease reports whether the caller must call release before the next
// need.
func (w *window) mustRelease() bool { return len(w.held) > maxHeld }

// release ends the use of all consumed bytes.
func (w *window) release() {
	last := len(w.held) - 1
	for _, buf := range w.held[:last] {
		w.free <- buf
	}
	w.held = append(w.held[:0], w.held[last])
}
