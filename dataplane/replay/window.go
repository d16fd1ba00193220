package replay

import (
	"context"
	"io"
)

const (
	// maxRecord bounds a record of a capture: a packet with its header, or a
	// pcapng block. Larger ones are taken for broken.
	maxRecord = 1 << 20
	chunkSize = 256 << 10
	chunks    = 4
)

// window is a view of a stream that slides forward. Chunks are read ahead in
// a goroutine, so that the disk, or gzip, works beside the meters. Bytes are
// handed out in place and may be changed there until the next peek.
type window struct {
	ctx  context.Context
	full chan chunk
	free chan []byte
	buf  []byte // what data lies in: maxRecord of room, then a chunk
	data []byte // not yet taken
	off  int64  // of data in the stream
	err  error  // after data
}

type chunk struct {
	buf []byte
	n   int
	err error
}

// newWindow reads ahead from src until it ends or ctx does.
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

// peek returns the next n bytes, at most maxRecord. Where the stream ends
// first, it returns what there is with the reason: io.EOF, an error of the
// source, or the context's.
func (w *window) peek(n int) ([]byte, error) {
	if n <= len(w.data) {
		return w.data[:n:n], nil
	}
	return w.fill(n)
}

// fill is peek where the next chunk is needed.
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

// take moves on by n bytes that were peeked at.
func (w *window) take(n int) {
	w.data = w.data[n:]
	w.off += int64(n)
}
