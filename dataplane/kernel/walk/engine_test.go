package walk

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/a-seed-32e5a53f/shaper/bpf"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/engine"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/image"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/record"
)

// processor meters packets by a program in the kernel.
type processor interface {
	Accepts(link dataplane.LinkType) error
	Batch() int
	Process(packets []dataplane.Packet, verdicts []dataplane.Verdict) error
	Stats() ([]dataplane.ClassStats, error)
	Tokens(stage int) (tc, te int64, err error)
}

// hooked runs the program of a hook on packets passed by BPF_PROG_TEST_RUN, one at a time.
// The embedded Walker decodes the verdicts.
type hooked struct {
	Walker
	hook image.Entry
	room []byte // buffer for the resulting packet
}

// fitPacket truncates a packet so that the hook's test run accepts it, and reports whether it
// does. At tc the kernel rejects frames shorter than the header of their EtherType.
func (h *hooked) fitPacket(p *dataplane.Packet) bool {
	link := dataplane.LinkType(h.image.Constants.Link)
	if link == dataplane.LinkRaw && p.Link == dataplane.LinkEthernet && len(p.Data) >= 14 {
		p.Link, p.Data, p.WireLen = link, p.Data[14:], p.WireLen-14
	}
	if p.Link != link {
		return false
	}
	if h.hook == image.XdpEntry {
		p.Data = p.Data[:min(len(p.Data), 70_000)] // in fragments
		return len(p.Data) >= 14
	}
	p.Data = p.Data[:min(len(p.Data), 3700)]
	if len(p.Data) < 15 {
		return false
	}
	switch binary.BigEndian.Uint16(p.Data[12:]) {
	case 0x0800:
		return len(p.Data) >= 14+20
	case 0x86dd:
		return len(p.Data) >= 14+40
	}
	return true
}

// newHooked loads the program of a hook as Attach does. change edits the constants first.
func newHooked(
	t testing.TB, policy *dataplane.Policy, hook image.Entry, change func(*bpf.ShaperConstants),
) *hooked {
	t.Helper()
	h := newUnopened(t, policy, hook, change)
	if err := h.open(); err != nil {
		t.Fatal(err)
	}
	return h
}

// newUnopened encodes the policy for newHooked.
func newUnopened(
	t testing.TB, policy *dataplane.Policy, hook image.Entry, change func(*bpf.ShaperConstants),
) *hooked {
	t.Helper()
	g, err := encodePolicy(policy, hook, "")
	if err != nil {
		t.Fatal(err)
	}
	h := &hooked{
		Walker: Walker{image: g, batch: 1, now: math.MinInt64}, hook: hook, room: make([]byte, 1<<17),
	}
	t.Cleanup(h.Close)
	h.image.Constants.Handed, h.image.Constants.Link = 1, uint8(dataplane.LinkEthernet)
	if change != nil {
		change(&h.image.Constants)
	}
	return h
}

// makeMaps creates the maps.
func (h *hooked) makeMaps() (err error) {
	if h.maps, err = image.NewMaps(); err != nil {
		return err
	}
	h.image.Inherit(&record.About{}, nil)
	return h.image.Initialize(h.maps)
}

// open creates the maps and loads the program.
func (h *hooked) open() error {
	spec, err := engine.ShaperSpec()
	if err != nil {
		return err
	}
	if err := h.makeMaps(); err != nil {
		return err
	}
	h.loaded, err = h.image.LoadProgram(spec, image.Programs[h.hook], h.maps.ByName())
	if err != nil {
		return err
	}
	h.program = h.loaded.Programs[image.Programs[h.hook]]
	return nil
}

// loopback is the index of the interface of test runs.
const loopback = 1

// openShared is open for a program that several interfaces share. Another interface has maps of its own.
// It returns false if the program cannot be shared.
func (h *hooked) openShared(t testing.TB) (bool, error) {
	if err := h.makeMaps(); err != nil {
		return false, err
	}
	own := func(m *image.Maps) map[string]*ebpf.Map {
		flows, err := h.image.NewFlows()
		if err != nil {
			t.Fatal(err)
		}
		bound, err := image.NewReadings(h.image.Plan.Outline())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { flows.Close(); bound.Close() })
		return m.OwnMaps(bound, bound, flows)
	}
	if !h.image.CanShare(h.maps) {
		return false, nil
	}
	maps := own(h.maps)
	s, err := h.image.LoadShared(maps)
	if err != nil {
		return false, err
	}
	t.Cleanup(s.Close)
	other := &hooked{Walker: Walker{image: h.image}}
	if other.maps, err = image.NewMaps(); err != nil {
		return false, err
	}
	t.Cleanup(other.maps.Close)
	if err := h.image.Initialize(other.maps); err != nil {
		return false, err
	}
	if err := s.Put(s.Place(loopback+1), own(other.maps)); err != nil {
		return false, err
	}
	h.loaded, h.program = s.Loaded, s.Program
	return true, s.Put(s.Place(loopback), maps)
}

// skb is struct __sk_buff of linux/bpf.h.
type skb struct {
	_        [2]uint32
	Mark     uint32
	_        [5]uint32
	Priority uint32
	_        [27]uint32
	_        uint64 // flow_keys
	Tstamp   uint64
	WireLen  uint32
	GSOSegs  uint32
	_        uint64 // sk
	GSOSize  uint32
	_        uint32 // tstamp_type
	_        uint64 // hwtstamp
}

// run runs the program on one packet and decodes the verdict. context is the packet's skb, at
// hooks that have one.
func (h *hooked) run(p *dataplane.Packet, v *dataplane.Verdict, context skb) error {
	h.now = max(h.now, p.Time)
	record := bpf.ShaperRecord{
		Time: uint64(h.now), Wire: uint32(max(p.WireLen, len(p.Data))), Mark: p.Mark, Link: uint16(p.Link),
	}
	records := h.loaded.Maps[bpf.ShaperMapRecords]
	if err := records.Put(uint32(0), &record); err != nil {
		return err
	}
	var after skb
	options := ebpf.RunOptions{Data: p.Data, DataOut: h.room[:len(p.Data)+256]}
	if h.hook != image.XdpEntry {
		context.Mark = p.Mark
		options.Context, options.ContextOut = context, &after
	}
	code, err := h.program.Run(&options)
	if err != nil {
		return fmt.Errorf("%d bytes: %w", len(p.Data), err)
	}
	if err := records.Lookup(uint32(0), &record); err != nil {
		return err
	}
	h.decodeVerdict(&record, p, v)
	drop := v.Done.Dropped() && h.image.Constants.Dry == 0
	want := h.returnCode(drop)
	if drop && v.Reason == dataplane.CoDel && h.hook == image.EgressEntry {
		want = 7 // TC_ACT_REDIRECT, to no device
	}
	if code != want {
		return fmt.Errorf("verdict %v: the program returned %d, want %d", v.Done, int32(code), int32(want))
	}
	if len(options.DataOut) != len(p.Data) {
		return fmt.Errorf("%d bytes became %d", len(p.Data), len(options.DataOut))
	}
	copy(p.Data, options.DataOut)
	p.Mark = record.Mark
	if h.hook != image.XdpEntry && h.image.Constants.Dry == 0 && after.Mark != p.Mark {
		return fmt.Errorf("the skb has mark %d, want %d", after.Mark, p.Mark)
	}
	return nil
}

// returnCode is the program's return value: TC_ACT_SHOT or TCX_NEXT, XDP_DROP or XDP_PASS.
func (h *hooked) returnCode(drop bool) uint32 {
	switch {
	case h.hook == image.XdpEntry && drop:
		return 1
	case h.hook == image.XdpEntry || drop:
		return 2
	}
	return math.MaxUint32
}

func (h *hooked) Process(packets []dataplane.Packet, verdicts []dataplane.Verdict) error {
	for i := range packets {
		if err := h.run(&packets[i], &verdicts[i], skb{}); err != nil {
			return err
		}
	}
	return nil
}

// setExpiry sets the deadline of the program, ns.
func (h *hooked) setExpiry(t *testing.T, at uint64) {
	t.Helper()
	if err := h.maps.Expiry.Put(uint32(0), at); err != nil {
		t.Fatal(err)
	}
}

// acceptedPackets returns copies of the packets that an engine accepts.
func acceptedPackets(e processor, packets []dataplane.Packet) []dataplane.Packet {
	h, _ := e.(*hooked)
	var out []dataplane.Packet
	for _, p := range packets {
		p.WireLen = max(p.WireLen, len(p.Data))
		if (h == nil || h.fitPacket(&p)) && e.Accepts(p.Link) == nil {
			p.Data = slices.Clone(p.Data)
			out = append(out, p)
		}
	}
	return out
}
