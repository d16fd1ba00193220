package kernel

import (
	"fmt"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/a-seed-32e5a53f/shaper/bpf"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/cause"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// Of the programs, bpf/src/packet.h: bytes of the packets of a run, and how
// far a read may reach over one.
const (
	frameBytes = 1 << 20
	maxRead    = 40
)

// maxBatch is how many packets a run takes at most. The call costs as much as
// 50 packets.
const maxBatch = 512

// Walker meters packets that are handed to it, with their times, by the
// programs that meter live ones. One goroutine owns it; Close frees it.
type Walker struct {
	*image
	maps    *stateMaps
	loaded  *ebpf.Collection
	program *ebpf.Program
	records []bpf.ShaperRecord
	frames  []byte
	mapped  [][]byte
	batch   int
	now     int64
}

// NewWalker loads the program of a plan into the kernel. batch is how many
// packets are metered at a time, 0 for what is fast.
func NewWalker(plan *dataplane.Plan, batch int) (*Walker, error) {
	if q, fair := linkedAndFair(plan); q != nil {
		field := "link"
		if fair != nil {
			q, field = fair, "fair"
		}
		return nil, &RemedyError{&dataplane.FieldError{Object: q.Source, Field: field, Reason: "is scheduled by the kernel's qdiscs, which cannot run in virtual time"}, UseUserSpace}
	}
	g, err := encode(plan, ingressEntry, "")
	if err != nil {
		return nil, err
	}
	if batch == 0 {
		batch = maxBatch
	}
	w := &Walker{image: g, batch: batch, now: -1 << 63}
	if err := w.open(); err != nil {
		w.Close()
		return nil, err
	}
	return w, nil
}

func (w *Walker) open() (err error) {
	spec, err := bpf.LoadWalk()
	if err != nil {
		return err
	}
	if w.maps, err = newStateMaps(); err != nil {
		return err
	}
	w.inherit(&About{})
	if err := w.initialize(w.maps); err != nil {
		return err
	}
	w.constants.Handed = 1
	spec.Maps[bpf.WalkMapRecords].MaxEntries = uint32(w.batch)
	w.loaded, err = w.loadProgram(spec, bpf.WalkProgShaperWalk, w.maps.byName())
	if err != nil {
		return err
	}
	w.program = w.loaded.Programs[bpf.WalkProgShaperWalk]
	size := w.batch * int(unsafe.Sizeof(bpf.ShaperRecord{}))
	records, err := w.mmap(bpf.WalkMapRecords, size)
	if err != nil {
		return err
	}
	w.records = unsafe.Slice((*bpf.ShaperRecord)(unsafe.Pointer(&records[0])), w.batch)
	w.frames, err = w.mmap(bpf.WalkMapFrames, frameBytes)
	return err
}

// mmap maps the values of an array.
func (w *Walker) mmap(name string, size int) ([]byte, error) {
	b, err := unix.Mmap(w.loaded.Maps[name].FD(), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map %s: %w", name, err)
	}
	w.mapped = append(w.mapped, b)
	return b, nil
}

// Close frees what the kernel holds.
func (w *Walker) Close() {
	for _, b := range w.mapped {
		_ = unix.Munmap(b)
	}
	if w.loaded != nil {
		w.loaded.Close()
	}
	if w.maps != nil {
		w.maps.close()
	}
}

// Batch is how many packets Process takes at most.
func (w *Walker) Batch() int { return w.batch }

// Accepts says why packets of a link type cannot be metered, or nil.
func (w *Walker) Accepts(link dataplane.LinkType) error {
	switch link {
	case dataplane.LinkEthernet, dataplane.LinkRaw, dataplane.LinkRawBSD, dataplane.LinkRawOBSD, dataplane.LinkIPv4, dataplane.LinkIPv6:
		return w.plan.Length.Accepts(link)
	}
	return UseUserSpace.errorf("no interface has packets of link type %v", link)
}

// Process takes packets, in order, through the policy, writes what became of
// them to verdicts, and marks into their Data. The clock is the largest time
// seen.
func (w *Walker) Process(packets []dataplane.Packet, verdicts []dataplane.Verdict) error {
	for len(packets) > 0 {
		n := w.writePackets(packets)
		context := struct{ Len, Type, Mark uint32 }{Mark: uint32(n)}
		if _, err := w.program.Run(&ebpf.RunOptions{Data: make([]byte, 14), Context: context}); err != nil {
			return cause.Of(err)
		}
		for i := range n {
			w.readVerdict(&w.records[i], &packets[i], &verdicts[i])
		}
		packets, verdicts = packets[n:], verdicts[n:]
	}
	return nil
}

// hand writes packets where the program reads them, as many as there is room
// for, and says how many.
func (w *Walker) writePackets(packets []dataplane.Packet) int {
	start := 0
	for i := range packets {
		p := &packets[i]
		p.WireLen = max(p.WireLen, len(p.Data))
		size := min(len(p.Data), frameBytes-maxRead) // no header is further in
		if i == len(w.records) || start+size > frameBytes-maxRead {
			return i
		}
		w.now = max(w.now, p.Time)
		copy(w.frames[start:], p.Data[:size])
		w.records[i] = bpf.ShaperRecord{
			Time: uint64(w.now), Wire: uint32(p.WireLen), Captured: uint32(size), Start: uint32(start),
			Mark: p.Mark, Link: uint16(p.Link),
		}
		start += (size + 7) &^ 7
	}
	return len(packets)
}

// take reads a verdict and the marks of its packet.
func (w *Walker) readVerdict(r *bpf.ShaperRecord, p *dataplane.Packet, v *dataplane.Verdict) {
	w.decodeVerdict(r, p, v)
	if v.Done&(dataplane.Marked|dataplane.ECNSet) != 0 {
		copy(p.Data, w.frames[r.Start:r.Start+r.Captured])
		p.Mark = r.Mark
	}
}

// Settle has nothing: the kernel plane refuses links, whose order the kernel's
// own HTB decides.
func (w *Walker) Settle(int64, *dataplane.Verdict) bool { return false }

func (w *Walker) decodeVerdict(r *bpf.ShaperRecord, p *dataplane.Packet, v *dataplane.Verdict) {
	kind := dataplane.Kind(r.Kind)
	*v = dataplane.Verdict{
		Now:       int64(r.Time),
		Departure: int64(r.Time + r.Delay),
		ID:        p.ID,
		Length:    int(r.Length),
		Packets:   1,
		Class:     int32(r.Class),
		Done:      dataplane.Done(r.Done),
		Pre:       meter.Color(r.Pre),
		Color:     meter.Color(r.Color),
		Reason:    dataplane.NoMeter,
		HasDSCP:   kind >= dataplane.IPv4,
		DSCPIn:    r.DscpIn,
		DSCPOut:   r.DscpOut,
	}
	switch {
	case r.Class < 0:
		v.Reason = kind.Untaken()
	case v.Done.Dropped() && r.Cause >= uint8(dataplane.CauseQueue):
		v.Reason = dataplane.QueueFull + dataplane.Reason(r.Cause) - dataplane.Reason(dataplane.CauseQueue)
	case r.Stage >= 0:
		v.Reason = dataplane.Reason(w.plan.Stages[r.Stage].Kind.Clause(meter.Color(r.In), v.Color))
	}
}

// Stats returns the counters, as dataplane.Pipeline does.
func (w *Walker) Stats() ([]dataplane.ClassStats, error) {
	return readStats(w.maps.counters, w.classes)
}

// Keys returns how many keys a stage of the plan knows; 0 if it has one meter for all,
// and for stage -1.
// They are more than its Keys only if more came. From then on the kernel
// knows up to 128 more for each possible CPU, and forgets one that was not used lately where
// dataplane.Pipeline forgets the one used longest ago: verdicts may differ.
func (w *Walker) Keys(stage int) (int, error) {
	if stage < 0 || w.stages[stage].Table < 0 {
		return 0, nil
	}
	return w.maps.countKeys(w.stages[stage].Table)
}

// Tokens returns the tokens of a stage of the plan at the largest time seen, in
// whole bytes, as dataplane.Pipeline does.
func (w *Walker) Tokens(stage int) (tc, te int64, err error) {
	if stage < 0 {
		return 0, 0, nil
	}
	return readTokens(w.maps, &w.stages[stage], uint64(w.now))
}
