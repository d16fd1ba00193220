package walk

import (
	"time"

	"github.com/a-seed-32e5a53f/shaper/bpf"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/cause"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/engine"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/image"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/record"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/remedy"
	"github.com/a-seed-32e5a53f/shaper/dataplane/pipeline"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/cilium/ebpf"
)

// Limits of bpf/src/packet.h.
const (
	frameBytes = 1 << 20 // room for the packets of one run, bytes
	maxRead    = 40      // bytes that a read may reach beyond the end of a packet
)

// maxBatch is the default number of packets in one run of the program. The system call
// costs as much as 50 packets.
const maxBatch = 512

// Walker runs packets from memory, with given timestamps, through the eBPF code for live packets.
// Its methods must not be called concurrently. The caller must call Close.
type Walker struct {
	image   *image.Image
	maps    *image.Maps
	loaded  *ebpf.Collection
	program *ebpf.Program
	records engine.Memory[bpf.ShaperRecord]
	frames  engine.Memory[[frameBytes]byte] // one value
	batch   int
	now     int64
	lacks   *pipeline.LackRuns // nil: Verdict.Lack is not measured
}

// New loads the program of a plan into the kernel, without attaching it. batch is
// the maximum number of packets per system call; 0 means a fast default. The error joins
// dataplane.FieldErrors if the kernel plane rejects the plan; fair queues and links are
// rejected as well.
func New(plan *compiled.Plan, batch int) (*Walker, error) {
	if q, fair := image.LinkedAndFair(plan); q != nil {
		field, but := "link", ""
		if fair.Fair() {
			q, field, but = fair, "fair", " (but fair: false can)"
		}
		return nil, &remedy.Error{Err: &dataplane.FieldError{
			Object: q.Source, Field: field,
			Reason: "is scheduled by the kernel's qdiscs, which cannot run in virtual time" + but,
		}, Remedy: remedy.UseUserSpace}
	}
	g, err := image.Encode(plan, image.IngressEntry, "")
	if err != nil {
		return nil, err
	}
	if batch == 0 {
		batch = maxBatch
	}
	w := &Walker{image: g, batch: batch, now: -1 << 63}
	if err := w.load(); err != nil {
		w.Close()
		return nil, err
	}
	return w, nil
}

// load makes the maps and loads the program.
func (w *Walker) load() (err error) {
	spec, err := bpf.LoadWalk()
	if err != nil {
		return err
	}
	if w.maps, err = image.NewMaps(); err != nil {
		return err
	}
	if _, err := w.image.Inherit(&record.About{}, nil); err != nil {
		return err
	}
	if err := w.image.Initialize(w.maps); err != nil {
		return err
	}
	w.image.Constants.Handed = 1
	spec.Maps[bpf.WalkMapRecords].MaxEntries = uint32(w.batch)
	w.loaded, err = w.image.LoadProgram(spec, bpf.WalkProgShaperWalk, w.maps.ByName())
	if err != nil {
		return err
	}
	w.program = w.loaded.Programs[bpf.WalkProgShaperWalk]
	if w.records, err = engine.MapMemory[bpf.ShaperRecord](w.loaded.Maps[bpf.WalkMapRecords]); err != nil {
		return err
	}
	w.frames, err = engine.MapMemory[[frameBytes]byte](w.loaded.Maps[bpf.WalkMapFrames])
	return err
}

// Close releases the program, its maps and their memory.
func (w *Walker) Close() {
	w.records.Close()
	w.frames.Close()
	if w.loaded != nil {
		w.loaded.Close()
	}
	if w.maps != nil {
		w.maps.Close()
	}
}

// Batch returns the maximum number of packets per system call.
func (w *Walker) Batch() int { return w.batch }

// Accepts returns nil if packets of a link type can be metered, and otherwise an error with the
// reason.
func (w *Walker) Accepts(link dataplane.LinkType) error {
	switch link {
	case dataplane.LinkEthernet, dataplane.LinkRaw, dataplane.LinkRawBSD, dataplane.LinkRawOBSD,
		dataplane.LinkIPv4, dataplane.LinkIPv6:
		return w.image.Plan.Accepts(link)
	}
	return remedy.UseUserSpace.Errorf("no interface has packets of link type %v", link)
}

// Process runs packets through the policy in order. It writes a verdict for each packet,
// and the policy's marks to the packet's Data and Mark. The clock is the largest
// timestamp so far, so it never goes backwards. verdicts must be at least as long as
// packets.
func (w *Walker) Process(packets []dataplane.Packet, verdicts []dataplane.Verdict) error {
	for len(packets) > 0 {
		n := w.writePackets(packets)
		context := struct{ Len, Type, Mark uint32 }{Mark: uint32(n)}
		if _, err := w.program.Run(&ebpf.RunOptions{Data: make([]byte, 14), Context: context}); err != nil {
			return cause.Of(err)
		}
		for i := range n {
			w.readVerdict(&w.records.Values[i], &packets[i], &verdicts[i])
		}
		packets, verdicts = packets[n:], verdicts[n:]
	}
	return nil
}

// writePackets writes as many packets as there is room for to the memory of the program,
// and returns their number.
func (w *Walker) writePackets(packets []dataplane.Packet) int {
	start := 0
	for i := range packets {
		p := &packets[i]
		p.WireLen = max(p.WireLen, len(p.Data))
		size := min(len(p.Data), frameBytes-maxRead) // all headers lie before
		if i == len(w.records.Values) || start+size > frameBytes-maxRead {
			return i
		}
		w.now = max(w.now, p.Time)
		copy(w.frames.Values[0][start:], p.Data[:size])
		w.records.Values[i] = bpf.ShaperRecord{
			Time: uint64(w.now), Wire: uint32(p.WireLen), Captured: uint32(size), Start: uint32(start),
			Mark: p.Mark, Link: uint16(p.Link), Segment: uint32(p.Segment),
			Segments: uint32(max(p.Segments, 1)),
		}
		start += (size + 7) &^ 7
	}
	return len(packets)
}

// readVerdict reads the verdict and the marks of a packet.
func (w *Walker) readVerdict(r *bpf.ShaperRecord, p *dataplane.Packet, v *dataplane.Verdict) {
	w.decodeVerdict(r, p, v)
	if v.Done&(dataplane.Marked|dataplane.ECNSet) != 0 {
		copy(p.Data, w.frames.Values[0][r.Start:r.Start+r.Captured])
		p.Mark = r.Mark
	}
}

// MeasureLack is as in pipeline.Pipeline.
func (w *Walker) MeasureLack(gap time.Duration) { w.lacks = pipeline.NewLackRuns(w.image.Plan, gap) }

// measureLack sets the tokens that the packet lacked at its last meter.
func (w *Walker) measureLack(r *bpf.ShaperRecord, p *dataplane.Packet, v *dataplane.Verdict) {
	stage, s := &w.image.Plan.Stages[r.Stage], &w.image.Stages[r.Stage]
	if s.Table != record.StorePrivate {
		return
	}
	n := int(r.Length)
	if stage.Packets {
		n = max(p.Segments, 1)
	}
	if w.lacks.Skip(v, n) {
		return
	}
	tc, te := engine.LevelsAt(&bpf.ShaperState{Word: r.Word, Stamp: r.Stamp}, &s.Profile,
		r.Time).Tokens(&s.Profile)
	w.lacks.Set(v, stage.Lack(n, meter.Color(r.In), v.Color, tc, te))
}

// Settle returns false: New rejects links, so no verdict is ever pending.
func (w *Walker) Settle(int64, *dataplane.Verdict) bool { return false }

// decodeVerdict converts a record of the program to a verdict.
func (w *Walker) decodeVerdict(r *bpf.ShaperRecord, p *dataplane.Packet, v *dataplane.Verdict) {
	kind := dataplane.PacketKind(r.Kind)
	*v = dataplane.Verdict{
		Now:       int64(r.Time),
		Departure: int64(r.Time + r.Delay),
		ID:        p.ID,
		Length:    int(r.Length),
		Packets:   max(p.Segments, 1),
		Class:     int32(r.Class),
		Done:      dataplane.Done(r.Done),
		Pre:       meter.Color(r.Pre),
		Color:     meter.Color(r.Color),
		Reason:    dataplane.NoMeter,
		HasDSCP:   kind >= dataplane.IPv4,
		DSCPIn:    r.DscpIn,
		DSCPOut:   r.DscpOut,
		Customer:  r.Customer,
		Stage:     r.Stage,
	}
	if w.lacks != nil && v.Color != meter.Green && r.Stage >= 0 {
		w.measureLack(r, p, v)
	}
	switch {
	case r.Class < 0:
		v.Reason = kind.Untaken()
	case v.Done.Dropped() && r.Cause >= uint8(dataplane.CauseQueue):
		v.Reason = dataplane.QueueFull + dataplane.Reason(r.Cause) - dataplane.Reason(dataplane.CauseQueue)
	case r.Stage >= 0:
		kind := w.image.Plan.Stages[r.Stage].Kind
		if w.image.Plan.Stages[r.Stage].Customers {
			service := w.image.Plan.Customers.Service(r.Customer)
			if service.Profile == nil {
				v.Stage = -1
				return // NoMeter
			}
			kind = service.Kind
		}
		v.Reason = dataplane.Reason(kind.Clause(meter.Color(r.In), v.Color))
	}
}

// Stats returns the counters of each class, in the order of the policy, followed by
// those of unclassified packets, as pipeline.Pipeline.Stats does.
func (w *Walker) Stats() ([]dataplane.ClassStats, error) {
	return image.ReadStats(w.maps.Counters, w.image.CounterSlots())
}

// Keys returns the number of keys in the key table of a stage of the plan. It is 0 for a stage
// without keys, and for stage -1.
//
// The number exceeds the meter's Keys only if packets had more keys than that. The table
// then holds up to 128 additional keys per possible CPU and evicts approximately the
// least recently used key. pipeline.Pipeline evicts exactly the least recently used
// one, so the verdicts may differ from then on.
func (w *Walker) Keys(stage int) (int, error) {
	if stage < 0 || w.image.Stages[stage].Table < 0 {
		return 0, nil
	}
	return w.maps.CountKeys(w.image.Stages[stage].Table)
}

// Tokens returns the tokens of both buckets of a stage of the plan at the largest
// timestamp so far, in whole bytes or packets, as pipeline.Pipeline.Tokens does. They
// are 0 for stage -1.
func (w *Walker) Tokens(stage int) (tc, te int64, err error) {
	if stage < 0 {
		return 0, 0, nil
	}
	return image.ReadTokens(w.maps, &w.image.Stages[stage], uint64(w.now))
}
