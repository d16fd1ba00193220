package replay

import (
	"context"
	"io"
)

const (
	// maxRecord is the maximum size of a record in bytes: a packet with its
	// header, or a pcapng block. A larger one is treated as broken.
	maxRecord = 1 << 20
	chunkSize = 256 << 10
	chunks    = 4
)

// window is a sliding view of a stream. A goroutine reads chunks ahead, so that
// reading from disk or decompressing runs in parallel with metering. Bytes are
// returned in place; the caller may change them until the next peek.
type window struct {
	ctx  context.Context
	full chan chunk
	free chan []byte
	buf  []byte // backing array of data: maxRecord spare bytes, then a chunk
	data []byte // bytes not yet consumed
	off  int64  // position of data in the stream, bytes
	err  error  // the error that follows data
}

type chunk struct {
	buf []byte
	n   int
	err error
}

// newWindow reads ahead from src until src or ctx ends.
func newWindow(ctx context.Context, src io.Reader) *window {
	w := &window{ctx: ctx, full: make(chan chunk, chunks), free: make(chan []byte, chunks)}
	for range chunks {
		w.free <- make([]byte, maxRecord+chunkSize)
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

// peek returns the next n bytes, at most maxRecord. If the stream ends first,
// it returns the remaining bytes with the reason: io.EOF, an error of the
// source, or the cause of the context's end.
func (w *window) peek(n int) ([]byte, error) {
	if n <= len(w.data) {
		return w.data[:n:n], nil
	}
	return w.fill(n)
}

// fill is peek if the next chunk is needed.
func (w *window) fill(n int) ([]byte, error) {
	for len(w.data) < n {
		if w.err != nil {
			return w.data, w.err
		}
		select {
		case c, ok := <-w.full:
			if !ok {
				w.err = context.Cause(w.ctx)
				continue
			}
			rest := len(w.data)
			start := maxRecord - rest
			copy(c.buf[start:], w.data)
			w.data = c.buf[start : maxRecord+c.n]
			if w.buf != nil {
				w.free <- w.buf
			}
			w.buf, w.err = c.buf, c.err
		case <-w.ctx.Done():
			w.err = context.Cause(w.ctx)
		}
	}
	return w.data[:n:n], nil
}

// advance consumes n bytes returned by peek.
func (w *window) advance(n int) {
	w.data = w.data[n:]
	w.off += int64(n)
}
