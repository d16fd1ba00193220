package kernel

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/a-seed-32e5a53f/shaper/bpf"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/qdisc"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// skbHeld is struct __sk_buff of linux/bpf.h, with what holds a packet.
type skbHeld struct {
	_        [8]uint32
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

// held runs a program of queues on a packet, and returns what became of it.
func (h *hooked) held(t *testing.T, p dataplane.Packet, in skbHeld) (v dataplane.Verdict, out skbHeld) {
	t.Helper()
	h.now = max(h.now, p.Time)
	record := bpf.ShaperRecord{Time: uint64(h.now), Wire: uint32(p.WireLen), Link: uint16(p.Link)}
	records := h.loaded.Maps[bpf.ShaperMapRecords]
	if err := records.Put(uint32(0), &record); err != nil {
		t.Fatal(err)
	}
	if _, err := h.program.Run(&ebpf.RunOptions{Data: p.Data, DataOut: h.room[:len(p.Data)+256], Context: in, ContextOut: &out}); err != nil {
		t.Fatal(err)
	}
	if err := records.Lookup(uint32(0), &record); err != nil {
		t.Fatal(err)
	}
	h.decodeVerdict(&record, &p, &v)
	return v, out
}

// paced loads the program that leaves packets to a pacer.
func paced(t *testing.T, policy *dataplane.Policy, pacer Pacer, dry bool) *hooked {
	t.Helper()
	return newHooked(t, policy, egressEntry, func(c *bpf.ShaperConstants) { c.Pacer, c.Dry = pacerNumber[pacer], flag(dry) })
}

// TestQueueDepartures holds that for fq a packet has its time, unless its sender
// wants it a little later.
func TestQueueDepartures(t *testing.T) {
	needRoot(t)
	t.Parallel()
	const now, ahead = 1_000_000 * ms, 2_000 * ms
	policy := allInto(queue.Config{Rate: mega, Time: 10 * time.Second})
	policy.Classes[0].Match.DSCP = []dataplane.Range{{First: 0, Last: 2}}
	h := paced(t, policy, FQ, false)
	d := int64(now) // the departure
	for i, r := range []struct {
		tos    byte
		tstamp int64
		want   func() int64
	}{
		{0, 0, func() int64 { return d }},
		{0, 0, func() int64 { return d }},
		{0, now + 2*ms - 1, func() int64 { return d }}, // earlier than it may
		{0, now + 3*ms, func() int64 { return d }},     // as it may
		{4, now + 4*ms + 1, func() int64 { return now + 4*ms + 1 }},
		{8, now + 5*ms + ahead, func() int64 { return now + 5*ms + ahead }},
		{0, now + 6*ms + ahead + 1, func() int64 { return d }}, // of another clock
		{0, -1, func() int64 { return d }},
		{0, 1 << 62, func() int64 { return d }},
		{0, 1, func() int64 { return d }},
		{40, now + 7, func() int64 { return now + 7 }}, // in no queue
		{40, 0, func() int64 { return 0 }},
		{0, 0, func() int64 { return d }},
	} {
		v, out := h.held(t, datagram(now, r.tos, 1000), skbHeld{Tstamp: uint64(r.tstamp), Priority: qdisc.Handle(1)})
		if want := r.want(); int64(out.Tstamp) != want {
			t.Errorf("row %d: tstamp %d became %d: want %d", i, r.tstamp, int64(out.Tstamp), want)
		}
		if out.Priority != qdisc.Handle(1) {
			t.Errorf("row %d: priority became %#x", i, out.Priority)
		}
		if r.tos == 40 {
			if v.Done != dataplane.Pass {
				t.Errorf("row %d: %+v: want it to pass", i, v)
			}
			continue
		}
		if v.Departure != d || v.Done&dataplane.Queued == 0 {
			t.Errorf("row %d: %+v: want it to leave at %d", i, v, d)
		}
		d += ms
	}
}

// TestQueueLeaves holds that for HTB a packet has the class of its queue, and
// that none other gets there.
func TestQueueLeaves(t *testing.T) {
	needRoot(t)
	t.Parallel()
	link := &dataplane.Link{Name: "l", Rate: mega}
	slow := &dataplane.Queue{Name: "slow", Config: queue.Config{Rate: mega, Bytes: 1500}}
	fast := &dataplane.Queue{Name: "fast", Config: queue.Config{Bytes: 1500}, Link: link}
	policy := &dataplane.Policy{Classes: []dataplane.Class{
		{
			Name: "colors", Match: dataplane.Match{DSCP: []dataplane.Range{{First: 0, Last: 2}}}, Meter: aware(),
			Green: &dataplane.Action{Queue: fast}, Yellow: &dataplane.Action{Queue: slow}, Red: &dataplane.Action{Drop: true},
		},
		{Name: "pass", Match: dataplane.Match{DSCP: []dataplane.Range{{First: 3, Last: 10}}}},
	}}
	rows := []struct {
		tos      byte
		priority uint32
		want     func(h *hooked) uint32
	}{
		{0, 0, func(h *hooked) uint32 { return h.queues[0].ClassId }},
		{0, 7, func(h *hooked) uint32 { return h.queues[0].ClassId }},
		{4, qdisc.Handle(99), func(h *hooked) uint32 { return h.queues[1].ClassId }},
		{12, 0, func(*hooked) uint32 { return 0 }}, // of a class without a queue
		{12, 7, func(*hooked) uint32 { return 7 }},
		{12, qdisc.Handle(1), func(*hooked) uint32 { return 0 }},
		{12, qdisc.Handle(0xffff), func(*hooked) uint32 { return 0 }},
		{12, 0x5adf0001, func(*hooked) uint32 { return 0x5adf0001 }},
		{12, 0x00015ade, func(*hooked) uint32 { return 0x00015ade }},
		{80, qdisc.Handle(2), func(*hooked) uint32 { return 0 }}, // of no class
		{80, 6, func(*hooked) uint32 { return 6 }},
	}
	h := paced(t, policy, HTB, false)
	if a, b := h.queues[0].ClassId, h.queues[1].ClassId; a == b || a>>16 != qdisc.Major || b>>16 != qdisc.Major {
		t.Fatalf("classes %#x and %#x", a, b)
	}
	dry := paced(t, policy, "", true)
	for i, r := range rows {
		in := skbHeld{Priority: r.priority, Tstamp: 12345}
		if _, out := h.held(t, datagram(int64(i)*10*ms, r.tos, 1000), in); out.Priority != r.want(h) || out.Tstamp != in.Tstamp {
			t.Errorf("row %d: priority %#x became %#x, tstamp %d: want %#x", i, r.priority, out.Priority, out.Tstamp, r.want(h))
		}
		if _, out := dry.held(t, datagram(int64(i)*10*ms, r.tos, 1000), in); out.Priority != in.Priority || out.Tstamp != in.Tstamp {
			t.Errorf("row %d, dry: priority %#x, tstamp %d: want them as they were", i, out.Priority, out.Tstamp)
		}
	}
	if v, out := h.held(t, datagram(ms*1000, 8, 1000), skbHeld{}); !v.Done.Dropped() || out.Priority != 0 {
		t.Errorf("%+v, priority %#x: want a drop", v, out.Priority)
	}
}

// TestQueueDry holds that a program that only counts decides as another, and
// holds nothing.
func TestQueueDry(t *testing.T) {
	needRoot(t)
	t.Parallel()
	policy := allInto(queue.Config{Rate: mega, Bytes: 2000, ECN: true, WRED: [3]queue.Early{{Max: 1001, Probability: queue.Certain}}})
	h := paced(t, policy, "", true)
	for i, want := range []string{"0", "1000000", "2000000 ce", "queue-full"} {
		p := datagram(0, 1, 1000)
		before := slices.Clone(p.Data)
		v, out := h.held(t, p, skbHeld{Tstamp: 5, Priority: qdisc.Handle(1)})
		if fate(&v) != want || out.Tstamp != 5 || out.Priority != qdisc.Handle(1) || !slices.Equal(p.Data, before) {
			t.Errorf("packet %d: %s: want %s; tstamp %d, priority %#x", i, fate(&v), want, out.Tstamp, out.Priority)
		}
	}
	all, err := h.Stats()
	if err != nil {
		t.Fatal(err)
	}
	if c := all[0]; c.Queued[0] != (dataplane.Count{Packets: 3, Bytes: 3000}) || c.Drops[0][dataplane.CauseQueue].Packets != 1 {
		t.Errorf("counted %+v", c)
	}
}

// TestQueueSegments holds that a super-packet takes the time of all its
// segments.
func TestQueueSegments(t *testing.T) {
	needRoot(t)
	t.Parallel()
	for _, test := range []struct {
		name   string
		length dataplane.LengthRule
		each   int64 // that a segment of 500 bytes has
	}{
		{"l3", dataplane.LengthRule{}, 540},
		{"l2", dataplane.LengthRule{Base: dataplane.L2}, 554},
		{"l1", dataplane.LengthRule{Base: dataplane.L1}, 578},
	} {
		t.Run(test.name, func(t *testing.T) {
			policy := allInto(queue.Config{Rate: mega, Bytes: 100_000})
			policy.Length = test.length
			h := paced(t, policy, FQ, false)
			b := ipv4(be16(ethernet(), 0x800), 0, 0, 6, 20+3000, 0, from4, to4)
			b = append(tcp(b, 0, 1, 2), make([]byte, 3000)...)
			large := dataplane.Packet{Data: b, WireLen: len(b), Link: dataplane.LinkEthernet}
			wire := uint32(6 * (14 + 40 + 500))
			next := int64(0)
			for i := range 4 {
				v, out := h.held(t, large, skbHeld{GSOSize: 500, GSOSegs: 6, WireLen: wire})
				if v.Departure != next || int64(out.Tstamp) != next || int64(v.Length) != 6*test.each {
					t.Errorf("packet %d: %+v, tstamp %d: want %d bytes to leave at %d", i, v, out.Tstamp, 6*test.each, next)
				}
				next += 6 * test.each * 1000
			}
			all, err := h.Stats()
			if err != nil {
				t.Fatal(err)
			}
			if want := (dataplane.Count{Packets: 24, Bytes: 24 * test.each}); all[0].Queued[0] != want {
				t.Errorf("%+v are queued: want %+v", all[0].Queued[0], want)
			}
		})
	}
}

// TestPacers holds that a kernel without a pacer says so.
func TestQueuePacers(t *testing.T) {
	needRoot(t)
	plan := compiled(t, allInto(queue.Config{Rate: mega, Packets: 1}))
	for _, p := range []Pacer{FQ, HTB} {
		got, err := choosePacer(p, plan)
		if have := qdisc.Have(string(p)); fmt.Sprint(have) != fmt.Sprint(err) || got != p {
			t.Errorf("%s: %v, %v: want %v", p, got, err, have)
		}
		if err != nil && !strings.Contains(err.Error(), "this kernel has no "+string(p)+" qdisc") {
			t.Error(err)
		}
	}
	if got, err := choosePacer("", compiled(t, oneClass(dataplane.Class{}))); got != "" || err != nil {
		t.Errorf("without queues %q, %v", got, err)
	}
	got, err := choosePacer("", plan)
	if want := map[bool]Pacer{true: FQ, false: HTB}[qdisc.Have(string(FQ)) == nil]; got != want || !errors.Is(err, qdisc.Have(string(want))) && err != nil {
		t.Errorf("%q, %v: want %s", got, err, want)
	}
}
