package replay

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"math"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// arenaSize is how many bytes of packets gather before they are processed, in a
// batch or not. A packet may exceed it.
const arenaSize = 8 << 20

// DefaultMaxGap is the largest step between two stamps that draws no warning.
const DefaultMaxGap = 24 * time.Hour

// Config says what Run does beside metering.
type Config struct {
	Output io.Writer     // gets the capture as it left; nil for none
	MaxGap time.Duration // 0 for DefaultMaxGap
	// Each is told every packet of the input, in order; nil for nobody. The
	// arguments are valid until it returns. p.ID is the packet's number, from 1.
	Each func(p *dataplane.Packet, v *dataplane.Verdict) error
	// Settled is told what became of a packet that was Waiting when Each was
	// told, by v.ID; nil for nobody.
	Settled func(v *dataplane.Verdict) error
}

// Summary is what Run saw.
type Summary struct {
	Began       bool // the file's header made sense: there is an output
	Packets     int64
	First, Last int64 // smallest and largest stamp, ns since the epoch, from 1970 to 2261
	Warnings    []string
}

// Engine meters packets: a pipeline in Go, or the kernel.
type Engine interface {
	// Accepts says why packets of a link type cannot be metered, or nil.
	Accepts(link dataplane.LinkType) error
	// Batch is how many packets Process takes at most.
	Batch() int
	// Process takes packets, in order, through a policy, writes what became
	// of them to verdicts, and marks into their Data.
	Process(packets []dataplane.Packet, verdicts []dataplane.Verdict) error
	// Settle is dataplane.Pipeline.Settle.
	Settle(now int64, v *dataplane.Verdict) bool
}

// Go is the Engine that is a pipeline, a packet at a time.
type Go struct{ *dataplane.Pipeline }

// Batch is 1.
func (Go) Batch() int { return 1 }

// Process takes packets through the pipeline.
func (g Go) Process(packets []dataplane.Packet, verdicts []dataplane.Verdict) error {
	for i := range packets {
		g.Pipeline.Process(&packets[i], &verdicts[i])
	}
	return nil
}

// Run replays a capture (pcap or pcapng, perhaps gzipped) through an engine.
// The packets' stamps are the clock. The output has the format of the input:
// dropped packets are gone, marks are in the headers, queued packets have their
// departure as their stamp, and records are in the order of (departure, number).
//
// Whatever Run returns, what it wrote is a valid capture, or nothing where it
// did not begin: on a *BrokenError all that could be read, on the context's end
// all that came before it. An *OutputError is the exception.
func Run(ctx context.Context, in io.Reader, engine Engine, cfg Config) (Summary, error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	w := newWindow(ctx, in)
	if magic, _ := w.peek(2); bytes.Equal(magic, []byte{0x1f, 0x8b}) {
		w = newWindow(ctx, &unzip{from: &stream{w}})
	}
	r := run{engine: engine, cfg: cfg, now: math.MinInt64, held: map[int64]*record{}}
	if r.cfg.MaxGap == 0 {
		r.cfg.MaxGap = DefaultMaxGap
	}
	if cfg.Output != nil {
		r.out = bufio.NewWriterSize(cfg.Output, chunkSize)
	}
	f, err := open(w)
	if err == nil {
		r.format = f
		r.batch(engine.Batch())
		err = r.loop(ctx)
		if e := r.process(); e != nil {
			err = e
		}
		if e := r.settle(math.MaxInt64); e != nil {
			err = e
		}
	}
	var broken *BrokenError
	if errors.As(err, &broken) && !r.summary.Began {
		broken.Unread = true
	}
	if r.out != nil && !errors.As(err, new(*OutputError)) {
		if e := errors.Join(r.release(math.MaxInt64), r.flush()); e != nil {
			err = e
		}
	}
	r.summary.Warnings = r.warnings()
	return r.summary, err
}

// OutputError is an error of Config.Output, after which what it holds may end
// within a record.
type OutputError struct{ Err error }

func (e *OutputError) Error() string { return e.Err.Error() }
func (e *OutputError) Unwrap() error { return e.Err }

// run is the state of one Run.
type run struct {
	engine  Engine
	cfg     Config
	format  format
	out     *bufio.Writer // nil without output
	summary Summary
	link    dataplane.LinkType
	linked  bool  // link was seen
	last    int64 // stamp of the packet before, ns
	now     int64 // the largest stamp so far, ns
	waiting waiting
	held    map[int64]*record // by number: those that the engine has yet to settle
	spare   []*leaving        // to be used again
	idle    []*record         // records that were held, to be used again
	seen    [len(oddities)]odd

	// The packets that are to be processed together, n of them.
	n        int
	records  []record
	packets  []dataplane.Packet
	verdicts []dataplane.Verdict
	arena    []byte // their bytes, where there may be several

	// The verdict that Engine.Settle writes. A local one would be allocated
	// on every call, because it is handed to an interface.
	settled dataplane.Verdict
}

func (r *run) batch(size int) {
	r.records = make([]record, size)
	r.packets = make([]dataplane.Packet, size)
	r.verdicts = make([]dataplane.Verdict, size)
}

func (r *run) loop(ctx context.Context) error {
	for {
		if r.summary.Packets%1024 == 0 && ctx.Err() != nil {
			return context.Cause(ctx)
		}
		rec := &r.records[r.n]
		if err := r.format.next(rec); err != nil {
			if err == io.EOF {
				return nil
			}
			return err
		}
		r.summary.Began = true
		if !rec.packet {
			if err := r.pass(*rec); err != nil {
				return err
			}
			continue
		}
		if !r.linked || rec.link != r.link {
			if err := r.engine.Accepts(rec.link); err != nil {
				return err
			}
			r.link, r.linked = rec.link, true
		}
		r.clock(rec)
		if r.out != nil {
			rec.look()
		}
		if len(r.records) > 1 {
			r.keep(rec)
		}
		p := &r.packets[r.n]
		p.Data, p.WireLen, p.Time, p.Link, p.Mark = rec.data, rec.wire, rec.time, rec.link, 0
		p.ID = r.summary.Packets
		r.n++
		if r.n == len(r.records) || len(r.arena) >= arenaSize {
			if err := r.process(); err != nil {
				return err
			}
		}
	}
}

// keep copies a record to where it stays until it is processed.
func (r *run) keep(rec *record) {
	at := len(r.arena)
	r.arena = append(r.arena, rec.raw...)
	rec.move(r.arena[at:len(r.arena):len(r.arena)])
}

// process takes the packets that have gathered through the engine.
func (r *run) process() error {
	n := r.n
	if n == 0 {
		return nil
	}
	r.n, r.arena = 0, r.arena[:0]
	if err := r.engine.Process(r.packets[:n], r.verdicts[:n]); err != nil {
		return err
	}
	for i := range n {
		p, rec, v := &r.packets[i], &r.records[i], &r.verdicts[i]
		if r.cfg.Each != nil {
			if err := r.cfg.Each(p, v); err != nil {
				return err
			}
		}
		if v.Done&dataplane.Waiting != 0 && r.out != nil {
			r.hold(p, rec)
		}
		if err := r.settle(v.Now); err != nil {
			return err
		}
		if r.out != nil {
			if err := r.write(rec, v); err != nil {
				return err
			}
		}
	}
	return nil
}

// hold copies the record of a packet that the engine has yet to settle.
func (r *run) hold(p *dataplane.Packet, rec *record) {
	var held *record
	if n := len(r.idle); n > 0 {
		held, r.idle = r.idle[n-1], r.idle[:n-1]
	} else {
		held = &record{}
	}
	raw := append(held.raw[:0], rec.raw...)
	*held = *rec
	held.move(raw)
	held.network, held.l3 = p.Kind, p.L3
	r.held[p.ID] = held
}

// settle takes from the engine what became, by now, of packets that wait.
func (r *run) settle(now int64) error {
	v := &r.settled
	for r.engine.Settle(now, v) {
		if r.cfg.Settled != nil {
			if err := r.cfg.Settled(v); err != nil {
				return err
			}
		}
		rec := r.held[v.ID]
		if rec == nil {
			continue // nobody wants it
		}
		delete(r.held, v.ID)
		if v.Done&dataplane.ECNSet != 0 {
			(&dataplane.Packet{Data: rec.data, Kind: rec.network, L3: rec.l3}).SetCE()
		}
		if err := r.queue(rec, v); err != nil {
			return err
		}
		r.idle = append(r.idle, rec)
	}
	return nil
}

// clock counts the packet and looks at its stamp.
func (r *run) clock(rec *record) {
	s := &r.summary
	s.Packets++
	if s.Packets == 1 {
		s.First, s.Last = rec.time, rec.time
	} else {
		if rec.untimed {
			rec.time, rec.beyond = r.last, false
		}
		if rec.time < r.now {
			r.note(backwards)
		} else if uint64(rec.time)-uint64(r.now) > uint64(r.cfg.MaxGap) {
			r.note(farFuture)
		}
	}
	r.last, r.now = rec.time, max(r.now, rec.time)
	s.First, s.Last = min(s.First, rec.time), max(s.Last, rec.time)
	if rec.overflow {
		r.note(overflowing)
	}
	if rec.beyond {
		r.note(outside)
	}
	if len(rec.data) < rec.wire {
		r.note(cutShort)
	}
	if len(rec.data) > rec.wire {
		r.note(longer)
	}
	if !rec.link.Known() {
		r.note(unknownLink)
	}
}

// pass writes a record that is no packet.
func (r *run) pass(rec record) error {
	if err := r.process(); err != nil {
		return err
	}
	if rec.begins {
		if err := errors.Join(r.settle(math.MaxInt64), r.release(math.MaxInt64)); err != nil {
			return err
		}
	}
	if r.out == nil {
		return nil
	}
	return r.emit(rec.raw)
}

// write writes what left before the packet, then the packet, unless it was
// dropped or waits.
func (r *run) write(rec *record, v *dataplane.Verdict) error {
	queued := v.Done&dataplane.Queued != 0
	if queued && v.Done&dataplane.Waiting == 0 {
		if err := r.queue(rec, v); err != nil {
			return err
		}
	}
	if err := r.release(v.Now); err != nil || queued || v.Done.Dropped() {
		return err
	}
	if rec.overflow {
		_ = r.format.restamp(rec, rec.time) // as it stands where there is no room to carry
	}
	rec.seal()
	return r.emit(rec.raw)
}

func (r *run) emit(raw []byte) error {
	if _, err := r.out.Write(raw); err != nil {
		return &OutputError{err}
	}
	return nil
}

func (r *run) flush() error {
	if err := r.out.Flush(); err != nil {
		return &OutputError{err}
	}
	return nil
}
