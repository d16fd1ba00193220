package walk

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
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/engine"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/image"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/kerneltest"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/qdisc"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/record"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// runQueued runs a program with queues on a packet, and returns the verdict and the skb.
func (h *hooked) runQueued(t *testing.T, p dataplane.Packet, in skb) (v dataplane.Verdict, out skb) {
	t.Helper()
	h.now = max(h.now, p.Time)
	record := bpf.ShaperRecord{Time: uint64(h.now), Wire: uint32(p.WireLen), Link: uint16(p.Link)}
	records := h.loaded.Maps[bpf.ShaperMapRecords]
	if err := records.Put(uint32(0), &record); err != nil {
		t.Fatal(err)
	}
	if _, err := h.program.Run(&ebpf.RunOptions{
		Data: p.Data, DataOut: h.room[:len(p.Data)+256], Context: in, ContextOut: &out,
	}); err != nil {
		t.Fatal(err)
	}
	if err := records.Lookup(uint32(0), &record); err != nil {
		t.Fatal(err)
	}
	h.decodeVerdict(&record, &p, &v)
	return v, out
}

// newPaced loads the program of a policy for a pacer.
func newPaced(t *testing.T, policy *dataplane.Policy, pacer record.Pacer, dry bool) *hooked {
	t.Helper()
	return newHooked(t, policy, image.EgressEntry,
		func(c *bpf.ShaperConstants) { c.Pacer, c.Dry = image.PacerNumber[pacer], engine.Flag(dry) })
}

// TestQueueDepartures checks that fq gets a packet's departure time as its tstamp, unless the
// sender set a slightly later one.
func TestQueueDepartures(t *testing.T) {
	kerneltest.NeedRoot(t)
	t.Parallel()
	const now, ahead = 1_000_000 * kerneltest.Millisecond, 2_000 * kerneltest.Millisecond
	policy := queueAll(queue.Config{Rate: kerneltest.EightMbit, Time: 10 * time.Second})
	policy.Classes[0].Match.DSCP = []dataplane.Range{{First: 0, Last: 2}}
	h := newPaced(t, policy, record.FQ, false)
	d := int64(now) // departure time of the queue
	for i, r := range []struct {
		tos    byte
		tstamp int64
		want   func() int64
	}{
		{0, 0, func() int64 { return d }},
		{0, 0, func() int64 { return d }},
		{0, now + 2*kerneltest.Millisecond - 1, func() int64 { return d }}, // before the departure time
		{0, now + 3*kerneltest.Millisecond, func() int64 { return d }},     // at the departure time
		{4, now + 4*kerneltest.Millisecond + 1, func() int64 { return now + 4*kerneltest.Millisecond + 1 }},
		{8, now + 5*kerneltest.Millisecond + ahead, func() int64 { return now + 5*kerneltest.Millisecond + ahead }},
		{0, now + 6*kerneltest.Millisecond + ahead + 1, func() int64 { return d }}, // too far ahead: of another clock
		{0, -1, func() int64 { return d }},
		{0, 1 << 62, func() int64 { return d }},
		{0, 1, func() int64 { return d }},
		{40, now + 7, func() int64 { return now + 7 }}, // not queued
		{40, 0, func() int64 { return 0 }},
		{0, 0, func() int64 { return d }},
	} {
		v, out := h.runQueued(t, datagram(now, r.tos, 1000),
			skb{Tstamp: uint64(r.tstamp), Priority: qdisc.Handle(1)})
		if want := r.want(); int64(out.Tstamp) != want {
			t.Errorf("row %d: tstamp %d: got %d, want %d", i, r.tstamp, int64(out.Tstamp), want)
		}
		if out.Priority != qdisc.Handle(1) {
			t.Errorf("row %d: got priority %#x, want %#x", i, out.Priority, qdisc.Handle(1))
		}
		if r.tos == 40 {
			if v.Done != dataplane.Pass {
				t.Errorf("row %d: got %+v, want it passed", i, v)
			}
			continue
		}
		if v.Departure != d || v.Done&dataplane.Queued == 0 {
			t.Errorf("row %d: got %+v, want departure at %d", i, v, d)
		}
		d += kerneltest.Millisecond
	}
}

// TestQueueLeaves checks that HTB gets the class of a packet's queue as its priority, and that
// no other packet can select such a class.
func TestQueueLeaves(t *testing.T) {
	kerneltest.NeedRoot(t)
	t.Parallel()
	link := &dataplane.Link{Name: "l", Rate: kerneltest.EightMbit}
	slow := &dataplane.Queue{Name: "slow", Config: queue.Config{Rate: kerneltest.EightMbit, Bytes: 1500}}
	fast := &dataplane.Queue{Name: "fast", Config: queue.Config{Bytes: 1500}, Link: link}
	policy := &dataplane.Policy{Classes: []dataplane.Class{
		{
			Name: "colors", Match: dataplane.Match{DSCP: []dataplane.Range{{First: 0, Last: 2}}},
			Meter: keepColors(), Green: &dataplane.Action{Queue: fast},
			Yellow: &dataplane.Action{Queue: slow},
			Red:    &dataplane.Action{Drop: true},
		},
		{Name: "pass", Match: dataplane.Match{DSCP: []dataplane.Range{{First: 3, Last: 10}}}},
	}}
	rows := []struct {
		tos      byte
		priority uint32
		want     func(h *hooked) uint32
	}{
		{0, 0, func(h *hooked) uint32 { return h.image.Queues[0].ClassId }},
		{0, 7, func(h *hooked) uint32 { return h.image.Queues[0].ClassId }},
		{4, qdisc.Handle(99), func(h *hooked) uint32 { return h.image.Queues[1].ClassId }},
		{12, 0, func(*hooked) uint32 { return 0 }}, // policy class without a queue
		{12, 7, func(*hooked) uint32 { return 7 }},
		{12, qdisc.Handle(1), func(*hooked) uint32 { return 0 }},
		{12, qdisc.Handle(0xffff), func(*hooked) uint32 { return 0 }},
		{12, 0x5adf0001, func(*hooked) uint32 { return 0x5adf0001 }},
		{12, 0x00015ade, func(*hooked) uint32 { return 0x00015ade }},
		{80, qdisc.Handle(2), func(*hooked) uint32 { return 0 }}, // unclassified
		{80, 6, func(*hooked) uint32 { return 6 }},
	}
	h := newPaced(t, policy, record.HTB, false)
	if a, b := h.image.Queues[0].ClassId, h.image.Queues[1].ClassId; a == b || a>>16 != qdisc.Major ||
		b>>16 != qdisc.Major {
		t.Fatalf("got HTB classes %#x and %#x, want two of major %#x", a, b, qdisc.Major)
	}
	dry := newPaced(t, policy, "", true)
	for i, r := range rows {
		in := skb{Priority: r.priority, Tstamp: 12345}
		if _, out := h.runQueued(t, datagram(int64(i)*10*kerneltest.Millisecond, r.tos, 1000),
			in); out.Priority != r.want(h) ||
			out.Tstamp != in.Tstamp {
			t.Errorf("row %d: priority %#x: got %#x and tstamp %d, want %#x and %d", i, r.priority,
				out.Priority, out.Tstamp, r.want(h), in.Tstamp)
		}
		if _, out := dry.runQueued(t, datagram(int64(i)*10*kerneltest.Millisecond, r.tos, 1000),
			in); out.Priority != in.Priority ||
			out.Tstamp != in.Tstamp {
			t.Errorf("row %d, dry run: got priority %#x and tstamp %d, want %#x and %d", i, out.Priority,
				out.Tstamp, in.Priority, in.Tstamp)
		}
	}
	if v, out := h.runQueued(t, datagram(kerneltest.Millisecond*1000, 8, 1000), skb{}); !v.Done.Dropped() ||
		out.Priority != 0 {
		t.Errorf("got %+v and priority %#x, want a drop and 0", v, out.Priority)
	}
}

// TestQueueDry checks that a dry run counts queued packets and drops, but does not change the
// packet or its skb.
func TestQueueDry(t *testing.T) {
	kerneltest.NeedRoot(t)
	t.Parallel()
	policy := queueAll(queue.Config{
		Rate: kerneltest.EightMbit, Bytes: 2000, ECN: true,
		WRED: [3]queue.Early{{Max: 1001, Probability: queue.Certain}},
	})
	h := newPaced(t, policy, "", true)
	for i, want := range []string{"0", "1000000", "2000000 ce", "queue-full"} {
		p := datagram(0, 1, 1000)
		before := slices.Clone(p.Data)
		v, out := h.runQueued(t, p, skb{Tstamp: 5, Priority: qdisc.Handle(1)})
		if queueFate(&v) != want || out.Tstamp != 5 || out.Priority != qdisc.Handle(1) ||
			!slices.Equal(p.Data, before) {
			t.Errorf("packet %d: got %s, tstamp %d, priority %#x, want %s, 5 and %#x", i, queueFate(&v),
				out.Tstamp, out.Priority, want, qdisc.Handle(1))
		}
	}
	all, err := h.Stats()
	if err != nil {
		t.Fatal(err)
	}
	if c := all[0]; c.Queued[0] != (dataplane.Count{Packets: 3, Bytes: 3000}) ||
		c.Drops[0][dataplane.CauseQueue].Packets != 1 {
		t.Errorf("got %+v, want 3 queued packets and 1 drop", c)
	}
}

// TestQueueSegments checks that a super-packet occupies its queue for the time of all its
// segments.
func TestQueueSegments(t *testing.T) {
	kerneltest.NeedRoot(t)
	t.Parallel()
	for _, test := range []struct {
		name   string
		length dataplane.LengthRule
		each   int64 // metered length of a segment with 500 bytes of payload
	}{
		{"l3", dataplane.LengthRule{}, 540},
		{"l2", dataplane.LengthRule{Base: dataplane.L2}, 554},
		{"l1", dataplane.LengthRule{Base: dataplane.L1}, 578},
	} {
		t.Run(test.name, func(t *testing.T) {
			policy := queueAll(queue.Config{Rate: kerneltest.EightMbit, Bytes: 100_000})
			policy.Length = test.length
			h := newPaced(t, policy, record.FQ, false)
			b := ipv4(kerneltest.Be16(ethernet(), 0x800), 0, 0, 6, 20+3000, 0, from4, to4)
			b = append(tcp(b, 0, 1, 2), make([]byte, 3000)...)
			large := dataplane.Packet{Data: b, WireLen: len(b), Link: dataplane.LinkEthernet}
			wire := uint32(6 * (14 + 40 + 500))
			next := int64(0)
			for i := range 4 {
				v, out := h.runQueued(t, large, skb{GSOSize: 500, GSOSegs: 6, WireLen: wire})
				if v.Departure != next || int64(out.Tstamp) != next || int64(v.Length) != 6*test.each {
					t.Errorf("packet %d: got %+v and tstamp %d, want %d bytes and departure at %d", i, v,
						out.Tstamp, 6*test.each, next)
				}
				next += 6 * test.each * 1000
			}
			all, err := h.Stats()
			if err != nil {
				t.Fatal(err)
			}
			if want := (dataplane.Count{Packets: 24, Bytes: 24 * test.each}); all[0].Queued[0] != want {
				t.Errorf("got %+v queued, want %+v", all[0].Queued[0], want)
			}
		})
	}
}

// TestQueuePacerChoice checks that a chosen pacer is used, that fq is preferred to HTB by default, and
// that the error for a kernel without the pacer names it.
func TestQueuePacerChoice(t *testing.T) {
	kerneltest.NeedRoot(t)
	plan := kerneltest.Compiled(t, queueAll(queue.Config{Rate: kerneltest.EightMbit, Packets: 1}))
	for _, p := range []record.Pacer{record.FQ, record.HTB} {
		got, err := image.ChoosePacer(p, plan)
		if have := qdisc.Have(string(p)); fmt.Sprint(have) != fmt.Sprint(err) || got != p {
			t.Errorf("%s: got %q, %v, want %[1]s, %v", p, got, err, have)
		}
		if err != nil && !strings.Contains(err.Error(), "this kernel has no "+string(p)+" qdisc") {
			t.Error(err)
		}
	}
	if got, err := image.ChoosePacer("", kerneltest.Compiled(t, oneClass(dataplane.Class{}))); got != "" ||
		err != nil {
		t.Errorf("without queues: got %q, %v, want none", got, err)
	}
	got, err := image.ChoosePacer("", plan)
	if want := map[bool]record.Pacer{
		true: record.FQ, false: record.HTB,
	}[qdisc.Have(string(record.FQ)) == nil]; got != want ||
		!errors.Is(err, qdisc.Have(string(want))) && err != nil {
		t.Errorf("got %q, %v, want %s", got, err, want)
	}
}
