package replay

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/pipeline"
)

// Engine meters packets: a pipeline in Go, or the kernel.
type Engine interface {
	// Accepts returns an error if packets of a link type cannot be metered.
	Accepts(link dataplane.LinkType) error
	// Batch returns the maximum number of packets per call of Process.
	Batch() int
	// Process runs packets through a policy in order. It writes their outcome
	// to verdicts and marks their Data. Some packets may be parsed: see Packet.Parsed.
	Process(packets []dataplane.Packet, verdicts []dataplane.Verdict) error
	// Settle is as in pipeline.Pipeline.
	Settle(now int64, v *dataplane.Verdict) bool
}

// Go is the Engine of a pipeline.
type Go struct{ *pipeline.Pipeline }

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
	g.ProcessParsed(packets, verdicts)
	return nil
}

// Run replays a capture (pcap or pcapng, optionally gzipped) through an engine. The packets'
// timestamps are the clock; Config.MaxStep handles its steps. The output is in the format of the
// input, without the dropped packets, and with marks in the headers. The timestamp of a queued
// packet is its departure, and records are in the order (departure, number).
//
// The output is a valid capture even if Run fails, or empty if the input lacks a readable header.
// After a *BrokenError it contains all readable packets; after the end of ctx, all packets up to
// then. Only after an *OutputError may it end within a record.
func Run(ctx context.Context, in io.Reader, engine Engine, cfg Config) (Summary, error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	w := newWindow(ctx, in)
	if w.need(2) == nil && bytes.HasPrefix(w.data, []byte{0x1f, 0x8b}) {
		w = newWindow(ctx, &unzip{from: &stream{w}})
	}
	r := run{
		engine: engine, cfg: cfg, window: w, held: held{pages: map[int64]*page{}},
		cutter: newCutter(cfg.MSS, cfg.UDPSegment),
	}
	r.kept.Packet = new(dataplane.Packet)
	r.timeline = newTimeline(cfg.MaxStep, cfg.MaxGap)
	if cfg.Output != nil {
		r.out = newOutput(cfg.Output)
	}
	if cfg.FCS != 0 {
		r.trailers.next = math.MaxInt64
	}
	f, err := openCapture(w, cfg.FCS)
	if err == nil {
		r.format = f
		r.makeBatch(engine.Batch())
		if !cfg.FlushEach && (cfg.Output != nil || cfg.Flush != nil) {
			w.pause = flushAfter
		}
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
	if r.summary.Packets > 0 {
		r.summary.Last = max(r.timeline.now, r.summary.First)
	}
	r.summary.Both, r.summary.Cut, r.summary.Steps = r.both.result(), r.cutter.count, r.timeline.count
	r.summary.Warnings, r.summary.Notes = r.warnings(), r.notes()
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
	frames       bool  // some packet is an Ethernet frame
	last         int64 // time of the previous packet, ns
	timed        bool  // a packet had a timestamp
	timeline     timeline
	scheduled    departures
	waiting      int  // packets not yet settled by the engine
	held         held // their records
	seen         [len(oddities)]occurrences
	truncated    bool // a packet of the batch is
	cutter       cutter
	trailers     trailers
	both         bothCounter

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
	if r.cfg.FlushEach {
		size = 1
	}
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
		switch err := r.format.next(rec); err {
		case nil:
		case errPaused:
			if err := r.flush(); err != nil {
				return err
			}
			continue
		case io.EOF:
			return nil
		default:
			return err
		}
		if err := r.take(rec); err != nil {
			return err
		}
		if r.cfg.FlushEach {
			if err := r.flush(); err != nil {
				return err
			}
		}
	}
}

// take writes a record without a packet, or adds a packet to the batch.
func (r *run) take(rec *record) error {
	r.summary.Began = true
	if !rec.isPacket {
		return r.copyRecord(*rec)
	}
	r.count(rec)
	if r.cfg.Select.active() && !r.selects(rec) {
		return nil
	}
	if !r.linkAccepted || rec.Link != r.link {
		if err := r.engine.Accepts(rec.Link); err != nil {
			return err
		}
		r.link, r.linkAccepted, r.linkUnknown = rec.Link, true, !rec.Link.Known()
		r.frames = r.frames || isFrame(rec.Link)
	}
	r.begin(rec)
	if rec.ID >= r.trailers.next {
		r.trailers.look(r, rec)
	}
	if r.cfg.Arrived != nil {
		if err := r.cfg.Arrived(rec.Packet); err != nil {
			return err
		}
	}
	if r.out != nil && rec.fcs != 0 {
		rec.checkFCS()
	}
	r.n++
	if r.n == len(r.records) {
		return r.process()
	}
	return nil
}

// releaseWindow ends the use of the records read.
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

// flush writes all decided packets, for a reader at the end of a pipe.
func (r *run) flush() error {
	if err := r.process(); err != nil {
		return err
	}
	if r.out != nil {
		if err := errors.Join(r.out.endRun(), r.out.flush()); err != nil {
			return err
		}
	}
	if r.cfg.Flush != nil {
		return r.cfg.Flush()
	}
	return nil
}

// process runs the batch through the engine.
func (r *run) process() error {
	n := r.n
	if n == 0 {
		return nil
	}
	r.n = 0
	for i := range n { // all at once, to overlap the cache misses of their headers
		if p := &r.packets[i]; !r.cutter.plain(p) {
			r.cutter.packet(r, p)
		}
	}
	if err := r.engine.Process(r.packets[:n], r.verdicts[:n]); err != nil {
		return err
	}
	if r.truncated {
		r.noteHeaders(n)
	}
	shared := r.cfg.Shared
	if r.both.complete(r.link, len(r.cfg.Select.Inside)) {
		shared = nil
	}
	for i := 0; i < n && r.cfg.Each != nil; i++ {
		if err := r.cfg.Each(&r.packets[i], &r.verdicts[i]); err != nil {
			r.summary.Packets -= int64(n - 1 - i) // later packets of the batch
			r.summary.Read = r.packets[i].ID
			return err
		}
	}
	if r.cfg.Batch != nil {
		r.cfg.Batch(r.packets[:n], r.verdicts[:n])
	}
	unread := r.seen[unknownLink].packets > 0
	for i := range n {
		rec, v := &r.records[i], &r.verdicts[i]
		if unread && v.Class < 0 && !rec.Link.Known() {
			r.summary.Unread++
			r.summary.UnreadLink = rec.Link
		}
		if shared != nil && v.Class >= 0 && shared[v.Class] {
			r.both.packet(rec, v.Class, r.cfg.Select.Inside)
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

// collect fetches the outcome of all packets settled by the engine until now.
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
		rec.fcsCorrect, rec.Shift = kept.fcsCorrect, kept.shift
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

// copyRecord writes a record without a packet.
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
		// kept as it is if the format leaves no room for the carry
		_ = r.format.restamp(rec, rec.Time-rec.Shift)
	}
	if rec.fcsCorrect {
		rec.updateFCS()
	}
	return r.out.lent(rec.raw)
}
