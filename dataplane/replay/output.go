package replay

import "io"

const (
	outputSize = 256 << 10 // bytes collected before they are written
	directSize = 32 << 10  // bytes from which on a record is written without a copy
)

// output writes the resulting capture. Consecutive records that are adjacent in memory, in the
// window or in a queue, are handled as one run of bytes.
type output struct {
	to  io.Writer
	buf []byte // copies of bytes to write
	run []byte // bytes to write after buf, in the memory of others
}

func newOutput(to io.Writer) *output { return &output{to: to, buf: make([]byte, 0, outputSize)} }

// lent writes a record left unchanged until endRun.
func (o *output) lent(raw []byte) error {
	n := len(o.run)
	if total := n + len(raw); n > 0 && total <= cap(o.run) && &o.run[:total][n] == &raw[0] {
		o.run = o.run[:total]
		return nil
	}
	err := o.endRun()
	o.run = raw
	return err
}

// copied writes a record open to changes afterwards.
func (o *output) copied(raw []byte) error {
	if err := o.endRun(); err != nil {
		return err
	}
	return o.append(raw)
}

// endRun ends the use of lent records.
func (o *output) endRun() error {
	run := o.run
	o.run = nil
	return o.append(run)
}

func (o *output) append(raw []byte) error {
	if len(raw) >= directSize || len(raw) > cap(o.buf)-len(o.buf) {
		if err := o.flush(); err != nil {
			return err
		}
	}
	if len(raw) >= directSize {
		return o.write(raw)
	}
	o.buf = append(o.buf, raw...)
	return nil
}

// flush writes all bytes except those of the run.
func (o *output) flush() error {
	buf := o.buf
	o.buf = buf[:0]
	return o.write(buf)
}

func (o *output) write(b []byte) error {
	if len(b) == 0 {
		return nil
	}
	n, err := o.to.Write(b)
	if err == nil && n < len(b) {
		err = io.ErrShortWrite
	}
	if err != nil {
		return &OutputError{err}
	}
	return nil
}
