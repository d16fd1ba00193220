package replay

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

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
	// Notable is Each for those packets only that were dropped, are yellow or red, or are
	// Waiting. It is called after Each.
	Notable func(p *dataplane.Packet, v *dataplane.Verdict)
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
	Notes       []string // what is good to know, although nothing is wrong
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

// Go is the Engine that runs a pipeline.
type Go struct{ *dataplane.Pipeline }

// Batch returns 1 if the policy has links, because Settle must be called after each packet,
// and 32 otherwise.
func (g Go) Batch() int {
	if len(g.Plan().Links) > 0 {
		return 1
	}
	return 32
}

// Process runs the packets through the pipeline.
func (g Go) Process(packets []dataplane.Packet, verdicts []dataplane.Verdict) error {
	g.ProcessBatch(packets, verdicts)
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
	if w.need(2) == nil && bytes.HasPrefix(w.data, []byte{0x1f, 0x8b}) {
		w = newWindow(ctx, &unzip{from: &stream{w}})
	}
	r := run{engine: engine, cfg: cfg, window: w, now: math.MinInt64, held: held{pages: map[int64]*page{}}}
	r.kept.Packet = new(dataplane.Packet)
	if r.cfg.MaxGap == 0 {
		r.cfg.MaxGap = DefaultMaxGap
	}
	if cfg.Output != nil {
		r.out = newOutput(cfg.Output)
	}
	f, err := openCapture(w)
	if err == nil {
		r.format = f
		r.makeBatch(engine.Batch())
		err = r.loop()
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
		if e := errors.Join(r.release(math.MaxInt64), r.out.endRun(), r.out.flush()); e != nil {
			err = e
		}
	}
	r.summary.Warnings = r.warnings()
	r.summary.Notes = r.notes()
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
	window       *window
	format       format
	out          *output // nil: no output
	summary      Summary
	link         dataplane.LinkType
	linkAccepted bool  // link is the type of the previous packet
	linkUnknown  bool  // dataplane does not know it
	last         int64 // timestamp of the previous packet, ns
	now          int64 // largest timestamp so far, ns
	scheduled    departures
	waiting      int  // packets that the engine has not settled
	held         held // their records
	seen         [len(oddities)]occurrences

	// The next batch: n packets.
	n        int
	records  []record
	packets  []dataplane.Packet
	verdicts []dataplane.Verdict

	// settled and kept are arguments of Engine.Settle and format.parse. Local variables
	// would be allocated on every call, because they are passed to interfaces.
	settled dataplane.Verdict
	kept    record
}

func (r *run) makeBatch(size int) {
	r.records = make([]record, size)
	r.packets = make([]dataplane.Packet, size)
	r.verdicts = make([]dataplane.Verdict, size)
	for i := range r.records {
		r.records[i].Packet = &r.packets[i]
	}
}

func (r *run) loop() error {
	for {
		if r.window.mustRelease() {
			if err := r.releaseWindow(); err != nil {
				return err
			}
		}
		rec := &r.records[r.n]
		if err := r.format.next(rec); err != nil {
			if err == io.EOF {
				return nil
			}
			return err
		}
		r.summary.Began = true
		if !rec.isPacket {
			if err := r.copyRecord(*rec); err != nil {
				return err
			}
			continue
		}
		if !r.linkAccepted || rec.Link != r.link {
			if err := r.engine.Accepts(rec.Link); err != nil {
				return err
			}
			r.link, r.linkAccepted, r.linkUnknown = rec.Link, true, !rec.Link.Known()
		}
		r.advanceClock(rec)
		if r.out != nil && rec.fcs != 0 {
			rec.checkFCS()
		}
		rec.Mark, rec.ID = 0, r.summary.Packets
		r.n++
		if r.n == len(r.records) {
			if err := r.process(); err != nil {
				return err
			}
		}
	}
}

// releaseWindow ends the use of the records that were read.
func (r *run) releaseWindow() error {
	if err := r.process(); err != nil {
		return err
	}
	if r.out != nil {
		if err := r.out.endRun(); err != nil {
			return err
		}
	}
	r.window.release()
	return nil
}

// process runs the batch through the engine.
func (r *run) process() error {
	n := r.n
	if n == 0 {
		return nil
	}
	r.n = 0
	if err := r.engine.Process(r.packets[:n], r.verdicts[:n]); err != nil {
		return err
	}
	for i := range n {
		rec, v := &r.records[i], &r.verdicts[i]
		if r.cfg.Each != nil {
			if err := r.cfg.Each(&r.packets[i], v); err != nil {
				r.summary.Packets = r.packets[i].ID // it may have read more
				return err
			}
		}
		if r.cfg.Notable != nil && (v.Color != 0 || v.Done.Dropped() || v.Done&dataplane.Waiting != 0) {
			r.cfg.Notable(&r.packets[i], v)
		}
		if v.Done&dataplane.Waiting != 0 {
			r.waiting++
			if r.out != nil {
				r.held.put(v.ID, rec)
			}
		}
		if r.waiting > 0 {
			if err := r.collect(v.Now); err != nil {
				return err
			}
		}
		if r.out != nil {
			if err := r.write(rec, v); err != nil {
				return err
			}
		}
	}
	return nil
}

// collect fetches the outcome of all packets that the engine has settled by
// now.
func (r *run) collect(now int64) error {
	v := &r.settled
	for r.engine.Settle(now, v) {
		r.waiting--
		if r.cfg.Settled != nil {
			if err := r.cfg.Settled(v); err != nil {
				return err
			}
		}
		kept, ok := r.held.take(v.ID)
		if !ok || v.Done.Dropped() {
			continue
		}
		rec := &r.kept
		r.format.parse(rec, kept.raw)
		rec.fcsCorrect = kept.fcsCorrect
		if v.Done&dataplane.ECNSet != 0 {
			dataplane.Parse(rec.Packet)
			rec.SetCE()
		}
		if err := r.schedule(rec, v); err != nil {
			return err
		}
	}
	return nil
}

// advanceClock counts the packet and checks its timestamp and lengths.
func (r *run) advanceClock(rec *record) {
	s := &r.summary
	s.Packets++
	if rec.untimed && s.Packets > 1 {
		rec.Time, rec.outOfRange = r.last, false
	}
	r.last = rec.Time
	if gap := uint64(rec.Time) - uint64(r.now); gap > uint64(r.cfg.MaxGap) { // also if it is negative
		r.oddTime(rec.Time)
	} else {
		r.now, s.Last = rec.Time, rec.Time
	}
	if rec.overflow || rec.outOfRange || len(rec.Data) != rec.WireLen || r.linkUnknown {
		r.oddRecord(rec)
	}
}

// oddTime advances the clock if the timestamp is the first one, is before the latest one, or is far ahead of it.
func (r *run) oddTime(time int64) {
	s := &r.summary
	switch {
	case s.Packets == 1:
		s.First = time
		r.now = time
	case time < r.now:
		r.note(backwards)
		s.First = min(s.First, time)
	default:
		r.note(farFuture)
		r.now = time
	}
	s.Last = r.now
}

func (r *run) oddRecord(rec *record) {
	if rec.overflow {
		r.note(overflowing)
	}
	if rec.outOfRange {
		r.note(outside)
	}
	if len(rec.Data) < rec.WireLen {
		r.note(truncated)
	}
	if len(rec.Data) > rec.WireLen {
		r.note(longer)
	}
	if r.linkUnknown {
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
	return r.out.lent(rec.raw)
}

// write writes all departures before the packet, then the packet, unless it was
// dropped or departs later.
func (r *run) write(rec *record, v *dataplane.Verdict) error {
	if r.scheduled.due(v.Now) {
		if err := r.release(v.Now); err != nil {
			return err
		}
	}
	switch {
	case v.Done.Dropped() || v.Done&dataplane.Waiting != 0:
		return nil
	case v.Done&dataplane.Queued != 0 && v.Departure > v.Now:
		return r.schedule(rec, v)
	case v.Done&dataplane.Queued != 0:
		if err := r.finish(rec, v); err != nil {
			return err
		}
		return r.out.copied(rec.raw)
	}
	if rec.overflow {
		_ = r.format.restamp(rec, rec.Time) // kept as it is if the format has no room for the carry
	}
	if rec.fcsCorrect {
		rec.updateFCS()
	}
	return r.out.lent(rec.raw)
}
