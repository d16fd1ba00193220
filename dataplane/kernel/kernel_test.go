package kernel

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/a-seed-32e5a53f/shaper/bpf"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/nettest"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// needRoot skips a test that loads programs into the kernel.
func needRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("loading eBPF programs needs privilege: run the test as root")
	}
}

// inVM says that the test runs in an emulated machine, about ten times slower
// and with clocks that are worth little.
var inVM = nettest.InVM

// rounds is n, or a tenth of it in a VM.
func rounds(n int) int {
	if inVM {
		return max(n/10, 1)
	}
	return n
}

// seeded is a source of random numbers whose seed is in the log of a test that
// fails.
func seeded(t testing.TB) *rand.Rand {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// pick chooses one of some values.
func pick[T any](r *rand.Rand, values ...T) T { return values[r.IntN(len(values))] }

// engine is what meters packets by a program in the kernel.
type engine interface {
	Accepts(link dataplane.LinkType) error
	Batch() int
	Process(packets []dataplane.Packet, verdicts []dataplane.Verdict) error
	Stats() ([]dataplane.ClassStats, error)
	Tokens(stage int) (tc, te int64, err error)
}

// hooked runs the program of a hook on packets that are handed to it, one at a
// time. A walker reads what comes out.
type hooked struct {
	Walker
	hook entry
	room []byte // for the bytes that come out
}

// cut makes a packet one that a test run at the hook takes, and says whether it
// takes it at all. At tc the kernel refuses frames that end within what the
// EtherType promises.
func (h *hooked) cut(p *dataplane.Packet) bool {
	link := dataplane.LinkType(h.constants.Link)
	if link == dataplane.LinkRaw && p.Link == dataplane.LinkEthernet && len(p.Data) >= 14 {
		p.Link, p.Data, p.WireLen = link, p.Data[14:], p.WireLen-14
	}
	if p.Link != link {
		return false
	}
	if h.hook == xdpEntry {
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

// compiled is the plan of a policy.
func compiled(t testing.TB, policy *dataplane.Policy) *dataplane.Plan {
	t.Helper()
	plan, err := dataplane.Compile(policy)
	if err != nil {
		t.Fatal(err)
	}
	return plan
}

// planned is the only stage of a meter's plan.
func planned(t testing.TB, m *dataplane.Meter) *dataplane.PlanStage {
	t.Helper()
	return &compiled(t, &dataplane.Policy{Classes: []dataplane.Class{{Name: "a", Meter: m}}}).Stages[0]
}

// encodePolicy compiles and encodes a policy.
func encodePolicy(policy *dataplane.Policy, hook entry, pacer Pacer) (*image, error) {
	plan, err := dataplane.Compile(policy)
	if err != nil {
		return nil, err
	}
	return encode(plan, hook, pacer)
}

// newWalker is the walker of a policy.
func newWalker(policy *dataplane.Policy, batch int) (*Walker, error) {
	plan, err := dataplane.Compile(policy)
	if err != nil {
		return nil, err
	}
	return NewWalker(plan, batch)
}

// newHooked loads the program of a hook as attaching does, after change has
// had its way with the constants.
func newHooked(t testing.TB, policy *dataplane.Policy, hook entry, change func(*bpf.ShaperConstants)) *hooked {
	t.Helper()
	g, err := encodePolicy(policy, hook, "")
	if err != nil {
		t.Fatal(err)
	}
	h := &hooked{Walker: Walker{image: g, batch: 1, now: math.MinInt64}, hook: hook, room: make([]byte, 1<<17)}
	t.Cleanup(h.Close)
	h.constants.Handed, h.constants.Link = 1, uint8(dataplane.LinkEthernet)
	if change != nil {
		change(&h.constants)
	}
	if err := h.open(); err != nil {
		t.Fatal(err)
	}
	return h
}

func (h *hooked) open() error {
	spec, err := bpf.LoadShaper()
	if err != nil {
		return err
	}
	if h.maps, err = newStateMaps(); err != nil {
		return err
	}
	h.inherit(&About{})
	if err := h.initialize(h.maps); err != nil {
		return err
	}
	h.loaded, err = h.loadProgram(spec, programs[h.hook], h.maps.byName())
	if err != nil {
		return err
	}
	h.program = h.loaded.Programs[programs[h.hook]]
	return nil
}

// skb is struct __sk_buff of linux/bpf.h.
type skb struct {
	_       [2]uint32
	Mark    uint32
	_       [33]uint32
	_       [2]uint64 // flow_keys, tstamp
	WireLen uint32
	GSOSegs uint32
	_       uint64 // sk
	GSOSize uint32
	_       uint32 // tstamp_type
	_       uint64 // hwtstamp
}

// run hands one packet in and takes its verdict. context is what the kernel
// knows of it, where the hook has an skb.
func (h *hooked) run(p *dataplane.Packet, v *dataplane.Verdict, context skb) error {
	h.now = max(h.now, p.Time)
	record := bpf.ShaperRecord{Time: uint64(h.now), Wire: uint32(max(p.WireLen, len(p.Data))), Mark: p.Mark, Link: uint16(p.Link)}
	records := h.loaded.Maps[bpf.ShaperMapRecords]
	if err := records.Put(uint32(0), &record); err != nil {
		return err
	}
	var after skb
	options := ebpf.RunOptions{Data: p.Data, DataOut: h.room[:len(p.Data)+256]}
	if h.hook != xdpEntry {
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
	drop := v.Done.Dropped() && h.constants.Dry == 0
	want := h.code(drop)
	if drop && v.Reason == dataplane.CoDel && h.hook == egressEntry {
		want = 7 // TC_ACT_REDIRECT, to no device
	}
	if code != want {
		return fmt.Errorf("the program returned %d where %v was done: want %d", int32(code), v.Done, int32(want))
	}
	if len(options.DataOut) != len(p.Data) {
		return fmt.Errorf("%d bytes became %d", len(p.Data), len(options.DataOut))
	}
	copy(p.Data, options.DataOut)
	p.Mark = record.Mark
	if h.hook != xdpEntry && h.constants.Dry == 0 && after.Mark != p.Mark {
		return fmt.Errorf("the skb left with mark %d: want %d", after.Mark, p.Mark)
	}
	return nil
}

// code is what the program returns: TC_ACT_SHOT or TCX_NEXT, XDP_DROP or
// XDP_PASS.
func (h *hooked) code(drop bool) uint32 {
	switch {
	case h.hook == xdpEntry && drop:
		return 1
	case h.hook == xdpEntry || drop:
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

// handable returns the packets that an engine can be given, each a copy.
func handable(e engine, packets []dataplane.Packet) []dataplane.Packet {
	h, _ := e.(*hooked)
	var out []dataplane.Packet
	for _, p := range packets {
		p.WireLen = max(p.WireLen, len(p.Data))
		if (h == nil || h.cut(&p)) && e.Accepts(p.Link) == nil {
			p.Data = slices.Clone(p.Data)
			out = append(out, p)
		}
	}
	return out
}

// follow holds an engine to the pipeline: the verdict, the bytes and the mark
// of every packet, the tokens of every meter after every batch, and all
// counters in the end. It returns how many packets were compared.
func follow(t *testing.T, policy *dataplane.Policy, e engine, packets []dataplane.Packet) int {
	t.Helper()
	pipeline, err := dataplane.New(policy)
	if err != nil {
		t.Fatal(err)
	}
	packets = handable(e, packets)
	verdicts := make([]dataplane.Verdict, e.Batch())
	compared := 0
	for batch := range slices.Chunk(packets, e.Batch()) {
		same := make([]dataplane.Packet, len(batch))
		for i := range batch {
			same[i] = batch[i]
			same[i].Data = slices.Clone(batch[i].Data)
		}
		if err := e.Process(batch, verdicts[:len(batch)]); err != nil {
			t.Error(err)
			return compared
		}
		for i := range batch {
			var want dataplane.Verdict
			before := slices.Clone(same[i].Data)
			pipeline.Process(&same[i], &want)
			compared++
			if verdicts[i] != want {
				t.Errorf("packet %d:\nkernel   %+v\npipeline %+v\n%s", compared, verdicts[i], want, show(&same[i], before))
				return compared
			}
			if want.Done.Dropped() {
				continue
			}
			if !bytes.Equal(batch[i].Data, same[i].Data) || batch[i].Mark != same[i].Mark {
				t.Errorf("packet %d left otherwise:\nkernel   %x mark %d\npipeline %x mark %d\n%s",
					compared, batch[i].Data, batch[i].Mark, same[i].Data, same[i].Mark, show(&same[i], before))
				return compared
			}
		}
		for i := range pipeline.Plan().Stages {
			tc, te, err := e.Tokens(i)
			if err != nil {
				t.Fatal(err)
			}
			if wantC, wantE := pipeline.Tokens(i); tc != wantC || te != wantE {
				t.Errorf("after packet %d, at %d: meter %q %+v holds %d and %d: want %d and %d",
					compared, pipeline.Now(), pipeline.Plan().Stages[i].Name, pipeline.Plan().Stages[i].Source.Params, tc, te, wantC, wantE)
				return compared
			}
		}
	}
	got, err := e.Stats()
	if err != nil {
		t.Fatal(err)
	}
	if want := pipeline.Stats(); !slices.Equal(got, want) {
		t.Errorf("counters:\nkernel   %+v\npipeline %+v", got, want)
	}
	return compared
}

// show is a packet, in as many words as it takes to make it again.
func show(p *dataplane.Packet, before []byte) string {
	return fmt.Sprintf("link %v wire %d time %d mark %d: %x", p.Link, p.WireLen, p.Time, p.Mark, before[:min(len(before), 400)])
}

// metersOf returns the meters of a policy, each once.
func metersOf(policy *dataplane.Policy) []*dataplane.Meter {
	var out []*dataplane.Meter
	for i := range policy.Classes {
		for m := policy.Classes[i].Meter; m != nil; m = m.Then {
			if !slices.Contains(out, m) {
				out = append(out, m)
			}
		}
	}
	return out
}

// remedyOf is the remedy of an error, or "".
func remedyOf(err error) Remedy {
	var e *RemedyError
	if errors.As(err, &e) {
		return e.Remedy
	}
	return ""
}

// fieldErrors unpacks the errors of a policy.
func fieldErrors(err error) []*dataplane.FieldError {
	var out []*dataplane.FieldError
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, err := range joined.Unwrap() {
			out = append(out, fieldErrors(err)...)
		}
		return out
	}
	var e *dataplane.FieldError
	if errors.As(err, &e) {
		out = append(out, e)
	}
	return out
}

// Headers of packets, from the outside in. Each returns b with one more.

func be16(b []byte, values ...uint16) []byte {
	for _, v := range values {
		b = binary.BigEndian.AppendUint16(b, v)
	}
	return b
}

// ethernet is the addresses; the EtherType is what follows.
func ethernet() []byte { return []byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2} }

// ipv4 has options of 4*words bytes. The total length counts payload bytes.
func ipv4(b []byte, words int, tos, proto byte, payload int, fragment uint16, src, dst [4]byte) []byte {
	start := len(b)
	b = append(b, byte(0x45+words), tos)
	b = be16(b, uint16(20+4*words+payload), 1, fragment)
	b = append(b, 64, proto, 0, 0)
	b = append(append(b, src[:]...), dst[:]...)
	b = append(b, bytes.Repeat([]byte{1}, 4*words)...)
	sum := uint32(0)
	for i := start; i < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(b[start+10:], ^uint16(sum))
	return b
}

func ipv6(b []byte, class, next byte, payload int, src, dst [16]byte) []byte {
	b = binary.BigEndian.AppendUint32(b, 6<<28|uint32(class)<<20|0x54321)
	b = append(be16(b, uint16(payload)), next, 64)
	return append(append(b, src[:]...), dst[:]...)
}

// tcp has options of 4*words bytes.
func tcp(b []byte, words int, sport, dport uint16) []byte {
	b = be16(b, sport, dport, 0, 1, 0, 1)
	b = append(b, byte(5+words)<<4, 0x10)
	return append(be16(b, 1000, 0, 0), bytes.Repeat([]byte{1}, 4*words)...)
}

func udp(b []byte, sport, dport uint16, payload int) []byte {
	return be16(b, sport, dport, uint16(8+payload), 0)
}

// bps is a rate of n bits per second.
func bps(n int64) meter.Rate { return meter.BitRate(n) }
