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

// arenaSize is the number of bytes of packets that are collected before they
// are processed, even if the batch is not full. One packet may exceed it.
const arenaSize = 8 << 20

// DefaultMaxGap is the largest step between two timestamps without a warning.
const DefaultMaxGap = 24 * time.Hour

// Config has the options of Run. The zero Config only meters.
type Config struct {
	Output io.Writer     // receives the capture as it would have left the box; nil: none
	MaxGap time.Duration // largest step between two timestamps without a warning; 0: DefaultMaxGap
	// Each is called for every packet of the input, in order. p.ID is the
	// packet's number, from 1. The arguments are valid until it returns. nil:
	// not called.
	Each func(p *dataplane.Packet, v *dataplane.Verdict) error
	// Settled is called with the outcome of every packet that was Waiting when
	// Each was called, identified by v.ID. nil: not called.
	Settled func(v *dataplane.Verdict) error
}

// Summary is the result of Run.
type Summary struct {
	Began       bool // the file header was readable, so there is an output
	Packets     int64
	First, Last int64 // smallest and largest timestamp, ns since 1970
	Warnings    []string
}

// Engine meters packets: a pipeline in Go, or the kernel.
type Engine interface {
	// Accepts returns an error if packets of a link type cannot be metered.
	Accepts(link dataplane.LinkType) error
	// Batch returns the maximum number of packets per call of Process.
	Batch() int
	// Process runs packets through a policy in order. It writes their outcome
	// to verdicts and marks their Data.
	Process(packets []dataplane.Packet, verdicts []dataplane.Verdict) error
	// Settle is as in dataplane.Pipeline.
	Settle(now int64, v *dataplane.Verdict) bool
}

// Go is the Engine that runs a pipeline, one packet at a time.
type Go struct{ *dataplane.Pipeline }

// Batch returns 1.
func (Go) Batch() int { return 1 }

// Process runs the packets through the pipeline.
func (g Go) Process(packets []dataplane.Packet, verdicts []dataplane.Verdict) error {
	for i := range packets {
		g.Pipeline.Process(&packets[i], &verdicts[i])
	}
	return nil
}

// Run replays a capture (pcap or pcapng, optionally gzipped) through an engine. The
// packets' timestamps are the clock. The output has the format of the input. Dropped
// packets are missing and marks are in the headers. The timestamp of a queued packet is
// its departure, and records are in the order (departure, number).
//
// The output is a valid capture even if Run fails, or empty if the input has no readable
// header. After a *BrokenError it contains all packets that could be read; after the end
// of ctx, all packets up to then. Only after an *OutputError may it end within a record.
func Run(ctx context.Context, in io.Reader, engine Engine, cfg Config) (Summary, error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	w := newWindow(ctx, in)
	if magic, _ := w.peek(2); bytes.Equal(magic, []byte{0x1f, 0x8b}) {
		w = newWindow(ctx, &unzip{from: &stream{w}})
	}
	r := run{engine: engine, cfg: cfg, now: math.MinInt64, unsettled: map[int64]*record{}}
	if r.cfg.MaxGap == 0 {
		r.cfg.MaxGap = DefaultMaxGap
	}
	if cfg.Output != nil {
		r.out = bufio.NewWriterSize(cfg.Output, chunkSize)
	}
	f, err := openCapture(w)
	if err == nil {
		r.format = f
		r.makeBatch(engine.Batch())
		err = r.loop(ctx)
		if e := r.process(); e != nil {
			err = e
		}
		if e := r.collect(math.MaxInt64); e != nil {
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

// OutputError is an error of Config.Output. The output may end within a record.
type OutputError struct{ Err error }

func (e *OutputError) Error() string { return e.Err.Error() }
func (e *OutputError) Unwrap() error { return e.Err }

// run is the state of one Run.
type run struct {
	engine       Engine
	cfg          Config
	format       format
	out          *bufio.Writer // nil: no output
	summary      Summary
	link         dataplane.LinkType
	linkKnown    bool  // link is the type of the previous packet
	last         int64 // timestamp of the previous packet, ns
	now          int64 // largest timestamp so far, ns
	scheduled    departures
	unsettled    map[int64]*record // records of packets that the engine has not settled, by packet number
	spare        []*departing      // for reuse
	spareRecords []*record         // for reuse
	seen         [len(oddities)]occurrences

	// The next batch: n packets.
	n        int
	records  []record
	packets  []dataplane.Packet
	verdicts []dataplane.Verdict
	arena    []byte // copies of their bytes, if a batch can have several

	// settled is the argument of Engine.Settle. A local variable would be allocated
	// on every call, because it is passed to an interface.
	settled dataplane.Verdict
}

func (r *run) makeBatch(size int) {
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
			if err := r.copyRecord(*rec); err != nil {
				return err
			}
			continue
		}
		if !r.linkKnown || rec.link != r.link {
			if err := r.engine.Accepts(rec.link); err != nil {
				return err
			}
			r.link, r.linkKnown = rec.link, true
		}
		r.advanceClock(rec)
		if r.out != nil {
			rec.checkFCS()
		}
		if len(r.records) > 1 {
			r.batchRecord(rec)
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

// batchRecord copies a record to the arena, so that it stays valid until the batch is
// processed.
func (r *run) batchRecord(rec *record) {
	start := len(r.arena)
	r.arena = append(r.arena, rec.raw...)
	rec.rebase(r.arena[start:len(r.arena):len(r.arena)])
}

// process runs the batch through the engine.
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
		if err := r.collect(v.Now); err != nil {
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

// hold copies the record of a packet that the engine has not settled.
func (r *run) hold(p *dataplane.Packet, rec *record) {
	var kept *record
	if n := len(r.spareRecords); n > 0 {
		kept, r.spareRecords = r.spareRecords[n-1], r.spareRecords[:n-1]
	} else {
		kept = &record{}
	}
	raw := append(kept.raw[:0], rec.raw...)
	*kept = *rec
	kept.rebase(raw)
	kept.network, kept.l3 = p.Kind, p.L3
	r.unsettled[p.ID] = kept
}

// collect fetches the outcome of all packets that the engine has settled by
// now.
func (r *run) collect(now int64) error {
	v := &r.settled
	for r.engine.Settle(now, v) {
		if r.cfg.Settled != nil {
			if err := r.cfg.Settled(v); err != nil {
				return err
			}
		}
		rec := r.unsettled[v.ID]
		if rec == nil {
			continue // there is no output
		}
		delete(r.unsettled, v.ID)
		if v.Done&dataplane.ECNSet != 0 {
			(&dataplane.Packet{Data: rec.data, Kind: rec.network, L3: rec.l3}).SetCE()
		}
		if err := r.schedule(rec, v); err != nil {
			return err
		}
		r.spareRecords = append(r.spareRecords, rec)
	}
	return nil
}

// advanceClock counts the packet and checks its timestamp.
func (r *run) advanceClock(rec *record) {
	s := &r.summary
	s.Packets++
	if s.Packets == 1 {
		s.First, s.Last = rec.time, rec.time
	} else {
		if rec.untimed {
			rec.time, rec.outOfRange = r.last, false
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
	if rec.outOfRange {
		r.note(outside)
	}
	if len(rec.data) < rec.wire {
		r.note(truncated)
	}
	if len(rec.data) > rec.wire {
		r.note(longer)
	}
	if !rec.link.Known() {
		r.note(unknownLink)
	}
}

// copyRecord writes a record that is not a packet.
func (r *run) copyRecord(rec record) error {
	if err := r.process(); err != nil {
		return err
	}
	if rec.newSection {
		if err := errors.Join(r.collect(math.MaxInt64), r.release(math.MaxInt64)); err != nil {
			return err
		}
	}
	if r.out == nil {
		return nil
	}
	return r.emit(rec.raw)
}

// write writes all departures before the packet, then the packet, unless it was
// dropped or queued.
func (r *run) write(rec *record, v *dataplane.Verdict) error {
	queued := v.Done&dataplane.Queued != 0
	if queued && v.Done&dataplane.Waiting == 0 {
		if err := r.schedule(rec, v); err != nil {
			return err
		}
	}
	if err := r.release(v.Now); err != nil || queued || v.Done.Dropped() {
		return err
	}
	if rec.overflow {
		_ = r.format.restamp(rec, rec.time) // kept as it is if the format has no room for the carry
	}
	rec.updateFCS()
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
