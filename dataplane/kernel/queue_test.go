package kernel

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/a-seed-32e5a53f/shaper/bpf"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/qdisc"
	"github.com/a-seed-32e5a53f/shaper/dataplane/nettest"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

const ms = int64(time.Millisecond)

// mega is a byte a microsecond.
var mega = bps(8e6)

// aware is a meter that colors packets as they came: DSCP 1 is yellow, 2 red.
func aware() *dataplane.Meter {
	return &dataplane.Meter{Params: meter.TRTCM{CIR: bps(1e9), CBS: 1e9, PIR: bps(1e9), PBS: 1e9}, Aware: true, PreColor: dscpColors}
}

// allInto is a policy that has packets of all colors wait in one queue.
func allInto(cfg queue.Config) *dataplane.Policy {
	into := &dataplane.Action{Queue: &dataplane.Queue{Name: "q", Config: cfg}}
	return oneClass(dataplane.Class{Meter: aware(), Green: into, Yellow: into, Red: into})
}

// datagram is a frame whose IPv4 packet has n bytes.
func datagram(at int64, tos byte, n int) dataplane.Packet {
	b := ipv4(be16(ethernet(), 0x800), 0, tos, 17, n-20, 0, from4, to4)
	b = append(b, make([]byte, n-20)...)
	return dataplane.Packet{Time: at, Data: b, WireLen: len(b), Link: dataplane.LinkEthernet}
}

// fate is what a queue did, in a word: the wait in ns, or the reason of a drop.
func fate(v *dataplane.Verdict) string {
	switch {
	case v.Done.Dropped():
		return v.Reason.String()
	case v.Done&dataplane.Queued == 0:
		return "pass"
	case v.Done&dataplane.ECNSet != 0:
		return fmt.Sprint(v.Departure-v.Now, " ce")
	}
	return fmt.Sprint(v.Departure - v.Now)
}

// inGo is the pipeline as an engine.
type inGo struct{ *dataplane.Pipeline }

func (inGo) Accepts(dataplane.LinkType) error { return nil }
func (inGo) Batch() int                       { return 1 }
func (g inGo) Process(packets []dataplane.Packet, verdicts []dataplane.Verdict) error {
	for i := range packets {
		g.Pipeline.Process(&packets[i], &verdicts[i])
	}
	return nil
}
func (g inGo) Stats() ([]dataplane.ClassStats, error) { return g.Pipeline.Stats(), nil }
func (g inGo) Tokens(stage int) (tc, te int64, err error) {
	tc, te = g.Pipeline.Tokens(stage)
	return tc, te, nil
}

// canWait are the ways into the programs by which packets can wait, and the
// pipeline.
func canWait() []plane {
	out := slices.DeleteFunc(slices.Clone(planes), func(p plane) bool { return !p.mark || p.name == "egress-raw" })
	return append(out, plane{name: "go", open: func(t testing.TB, p *dataplane.Policy) engine {
		t.Helper()
		l, err := dataplane.New(p)
		if err != nil {
			t.Fatal(err)
		}
		return inGo{l}
	}})
}

// TestQueueRows has packets wait in queues of a byte a microsecond, by hand.
func TestQueueRows(t *testing.T) {
	needRoot(t)
	t.Parallel()
	const (
		green, yellow, red = 0, 1 << 2, 2 << 2
		capable            = 1
	)
	type row struct {
		at   int64 // ns
		tos  byte
		n    int
		want string
	}
	certain := [3]queue.Early{meter.Yellow: {Min: 500, Max: 1500, Probability: queue.Certain}, meter.Red: {Min: 0, Max: 500, Probability: 0}}
	for _, test := range []struct {
		name string
		cfg  queue.Config
		rows []row
	}{
		{"time", queue.Config{Time: time.Millisecond}, []row{
			{0, green, 1000, "0"},
			{0, red, 1000, "1000000"}, // the limit
			{0, green, 20, "queue-full"},
			{1, green, 20, "queue-full"},
			{ms - 1, green, 20, "queue-full"}, // a ns above it
			{ms, green, 1000, "1000000"},
			{2*ms + 1, yellow, 21, "999999"},
			{3*ms + 21_000, green, 100, "0"}, // just free
			{9 * ms, green, 100, "0"},
			{9*ms - 5, green, 100, "100000"}, // time does not go back
		}},
		{"bytes", queue.Config{Bytes: 3000}, []row{
			{0, green, 1400, "0"}, // leaves at once, and counts no more
			{0, green, 1000, "1400000"},
			{0, green, 1000, "2400000"},
			{0, green, 1001, "queue-full"},
			{0, green, 1000, "3400000"},
			{0, green, 20, "queue-full"},
			{1_400_000 - 1, green, 20, "queue-full"},
			{1_400_000, green, 1001, "queue-full"},
			{1_400_000, green, 999, "3000000"},
			{1_400_000, green, 20, "queue-full"},
		}},
		{"packets", queue.Config{Packets: 2}, []row{
			{0, green, 1000, "0"},
			{0, green, 1000, "1000000"},
			{0, green, 1000, "2000000"},
			{0, green, 20, "queue-full"},
			{ms - 1, green, 20, "queue-full"},
			{ms, green, 20, "2000000"},
			{ms, green, 20, "queue-full"},
		}},
		{"one packet", queue.Config{Packets: 1}, []row{
			{0, green, 1000, "0"}, {0, green, 1000, "1000000"}, {0, green, 20, "queue-full"}, {ms, green, 20, "1000000"},
		}},
		{"a packet above the limit", queue.Config{Bytes: 1000}, []row{
			{0, green, 1001, "queue-full"}, {0, green, 1000, "0"}, {0, green, 1000, "1000000"},
		}},
		{"a fraction is rounded up, and not carried on", queue.Config{Rate: meter.Rate{Bytes: 30, Period: 100}, Time: time.Second}, []row{
			{0, green, 25, "0"}, {0, green, 25, "84"}, {0, green, 25, "167"}, {0, green, 25, "250"}, {0, green, 25, "334"},
		}},
		{"wred on bytes", queue.Config{Bytes: 3000, WRED: certain}, []row{
			{0, red, 1000, "0"}, // leaves at once
			{0, red, 1000, "1000000"},
			{0, red, 1000, "wred"},
			{0, yellow, 1000, "wred"}, // 1000 wait
			{0, green, 1000, "2000000"},
			{0, yellow, 1000, "wred"},
			{0, green, 1000, "3000000"},
			{0, green, 1000, "queue-full"},
			{3*ms - 1, red, 100, "wred"},
			{3 * ms, red, 100, "1000000"}, // the last one leaves: nothing waits
		}},
		{"wred at its bounds", queue.Config{Bytes: 3000, WRED: [3]queue.Early{{Min: 1000, Max: 1001, Probability: queue.Certain}, {Min: 1001, Max: 1001}}}, []row{
			{0, green, 1500, "0"},
			{0, green, 999, "1500000"},
			{0, green, 1000, "2499000"}, // 999 wait
			{1_500_000, yellow, 20, "1999000"},
			{1_500_000, green, 1000, "wred"}, // 1020
			{1_500_000, yellow, 20, "wred"},
			{2_499_000, yellow, 980, "1020000"}, // 20 wait
			{2_499_000, yellow, 20, "2000000"},  // 1000
			{2_499_000, yellow, 20, "wred"},     // 1020
			{3_519_000, green, 20, "1000000"},   // 20
		}},
		{"wred on packets", queue.Config{Packets: 2, WRED: [3]queue.Early{meter.Yellow: {Min: 1, Max: 2}}}, []row{
			{0, yellow, 100, "0"}, {0, yellow, 100, "100000"}, {0, yellow, 100, "200000"}, {0, yellow, 100, "queue-full"}, {0, green, 100, "queue-full"},
		}},
		{"wred on a wait", queue.Config{Time: 3 * time.Millisecond, WRED: [3]queue.Early{{Min: ms, Max: 2 * ms}}}, []row{
			{0, green, 1000, "0"}, {0, green, 1000, "1000000"}, {0, green, 1000, "wred"}, {1, green, 1000, "1999999"}, {1, yellow, 1000, "2999999"}, {1, yellow, 1000, "queue-full"},
		}},
		{"ce instead", queue.Config{Bytes: 3000, ECN: true, WRED: [3]queue.Early{{Max: 1001, Probability: queue.Certain}}}, []row{
			{0, green, 1000, "0"},
			{0, green, 1000, "1000000"},
			{0, green | capable, 1000, "2000000 ce"},
			{0, green | capable, 1000, "wred"}, // above max
			{0, green, 1000, "wred"},
		}},
		{"no ce where it is not asked for", queue.Config{Bytes: 3000, WRED: [3]queue.Early{{Max: 1001, Probability: queue.Certain}}}, []row{
			{0, green, 1000, "0"}, {0, green, 1000, "1000000"}, {0, green | capable, 1000, "wred"},
		}},
		{"codel", queue.Config{Packets: 100, ECN: true, CoDel: queue.CoDel{Target: time.Millisecond, Interval: time.Millisecond}}, []row{
			{0, green, 1000, "0"},
			{0, green, 1000, "1000000"}, // at the target
			{0, green, 1000, "codel"},   // it would leave an interval later
			{0, green | capable, 1000, "2000000"},
			{0, green | capable, 1000, "3000000 ce"},
			{5 * ms, green, 1000, "0"},
			{5 * ms, green, 1000, "1000000"},
			{5 * ms, green, 1000, "codel"},
		}},
		{"ce by wred goes through codel", queue.Config{
			Packets: 9, ECN: true, Seed: 3, WRED: [3]queue.Early{meter.Yellow: {Max: 2, Probability: queue.Certain}},
			CoDel: queue.CoDel{Target: time.Millisecond, Interval: time.Millisecond},
		}, []row{
			{0, green, 1000, "0"},
			{0, green, 1000, "1000000"},
			{0, yellow | capable, 1000, "2000000 ce"},
			{0, green, 1000, "codel"}, // the second that CoDel takes
		}},
	} {
		if test.cfg.Rate == (meter.Rate{}) {
			test.cfg.Rate = mega
		}
		for _, plane := range canWait() {
			if inVM && (plane.name == "egress" || test.name != "bytes" && test.name != "codel" && test.name != "ce instead") {
				continue
			}
			t.Run(test.name+"/"+plane.name, func(t *testing.T) {
				e := plane.open(t, allInto(test.cfg))
				for i, r := range test.rows {
					var v [1]dataplane.Verdict
					p := []dataplane.Packet{datagram(r.at, r.tos, r.n)}
					if err := e.Process(p, v[:]); err != nil {
						t.Fatal(err)
					}
					if got := fate(&v[0]); got != r.want {
						t.Fatalf("row %d: %s, want %s", i, got, r.want)
					}
					if ce := p[0].Data[15]&3 == 3; ce != strings.HasSuffix(r.want, "ce") {
						t.Errorf("row %d: %s, and TOS %#x", i, r.want, p[0].Data[15])
					}
				}
			})
		}
	}
}

// TestQueueWraps holds rings that wrap round again and again to the pipeline,
// at loads below and above the rate.
func TestQueueWraps(t *testing.T) {
	needRoot(t)
	t.Parallel()
	early := [3]queue.Early{{}, {Min: 20, Max: 60, Probability: queue.Certain / 3}, {Min: 1, Max: 30, Probability: queue.Certain / 2}}
	for name, cfg := range map[string]queue.Config{
		"packets 1":   {Rate: mega, Packets: 1},
		"packets 64":  {Rate: mega, Packets: 64, WRED: early},
		"packets 65":  {Rate: mega, Packets: 65, ECN: true, CoDel: queue.CoDel{Target: 2 * time.Millisecond, Interval: 20 * time.Millisecond}},
		"packets max": {Rate: bps(8e4), Packets: queue.MaxPackets},
		"bytes":       {Rate: meter.Rate{Bytes: 1_000_003, Period: time.Second}, Bytes: 10_007, Seed: 9},
	} {
		if inVM && name != "packets 65" && name != "bytes" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			r := seeded(t)
			packets := make([]dataplane.Packet, rounds(100_000))
			at := int64(0)
			for i := range packets {
				// A busy time, and one in which the queue runs empty.
				gap := 400 * int64(time.Microsecond)
				if i/5000%2 == 1 {
					gap *= 4
				}
				at += r.Int64N(gap)
				packets[i] = datagram(at, byte(r.Uint32())&0xf, 20+r.IntN(600))
			}
			policy := allInto(cfg)
			follow(t, policy, walker(512)(t, policy), packets)
		})
	}
}

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

// TestQueueConcurrent has two CPUs at one queue, with its own clock: departures
// never overlap, and what is let in keeps to the rate and the limit.
func TestQueueConcurrent(t *testing.T) { // not parallel: the CPUs are for this
	needRoot(t)
	cpus := allowedCPUs(t)
	if len(cpus) < 2 {
		t.Skip("there is but one CPU")
	}
	const length = 1000
	for _, test := range []struct {
		name  string
		cfg   queue.Config
		limit int64 // bytes
	}{
		{"time", queue.Config{Rate: bps(800e6), Time: 5 * time.Millisecond}, 500_000},
		{"bytes", queue.Config{Rate: bps(800e6), Bytes: 50_000}, 50_000},
		{"packets", queue.Config{Rate: bps(800e6), Packets: 100}, 100_000},
		{"a few packets", queue.Config{Rate: bps(80e6), Packets: 3}, 3000},
		{"fine", queue.Config{Rate: meter.Rate{Bytes: 100_000_007, Period: 999_999_937}, Packets: 64}, 64_000},
		{"idle", queue.Config{Rate: bps(800e9), Packets: 64}, 64_000},
		{"early", queue.Config{
			Rate: bps(800e6), Bytes: 50_000, WRED: [3]queue.Early{{Min: 10_000, Max: 50_000, Probability: queue.Certain / 2}},
			CoDel: queue.CoDel{Target: 100 * time.Microsecond, Interval: time.Millisecond},
		}, 50_000},
	} {
		if inVM && test.name != "bytes" && test.name != "time" {
			continue
		}
		t.Run(test.name, func(t *testing.T) {
			nettest.Steady(t, func() (starved error) {
				policy := oneClass(dataplane.Class{Green: &dataplane.Action{Queue: &dataplane.Queue{Name: "q", Config: test.cfg}}})
				h := newHooked(t, policy, egressEntry, func(c *bpf.ShaperConstants) { c.Handed, c.Pacer = 0, pacerNumber[HTB] })
				frame := func(meter.Color) []byte { return datagram(0, 0, length).Data }
				c := &hammered{}
				first := clock(t)
				c.hammer(t, h.program, cpus, frame, 300*time.Millisecond)
				var b bpf.ShaperBacklog
				if err := h.maps.backlogs.LookupWithFlags(h.queues[0].Slot, &b, ebpf.LookupLock); err != nil {
					t.Fatal(err)
				}
				end := clock(t)
				all, err := h.Stats()
				if err != nil {
					t.Fatal(err)
				}
				s := &all[0]
				in, dropped := s.Queued[0], s.Dropped(0)
				if total := in.Plus(dropped); total != s.Colors[0] || in.Bytes != in.Packets*length || in.Packets == 0 {
					t.Errorf("%+v are queued, %+v dropped, of %+v", in, dropped, s.Colors[0])
				}
				// The one that leaves at once, and one that each CPU may miss.
				most := perSecondOf(test.cfg.Rate)*float64(end-first)/1e9 + float64(test.limit) + 3*length
				if float64(in.Bytes) > most {
					t.Errorf("%d bytes were let in: want at most %.0f", in.Bytes, most)
				}
				if !inVM && test.name != "idle" && test.name != "early" && float64(in.Bytes) < 0.5*most {
					starved = fmt.Errorf("%d bytes were let in: want most of %.0f", in.Bytes, most)
				}
				if late := int64(b.Next) - end; float64(late) > float64(test.limit+3*length)/perSecondOf(test.cfg.Rate)*1e9 {
					t.Errorf("the queue is free %d ns later: more than its limit", late)
				}
				if test.cfg.Time > 0 {
					return starved
				}
				if b.Bytes != b.End*length || b.End > uint64(in.Packets) {
					t.Errorf("%d packets of %d bytes waited, of %d that were let in", b.End, b.Bytes, in.Packets)
				}
				q := &h.queues[0]
				last := bpf.ShaperDeparture{}
				n := 0
				for k := b.End - min(b.End, q.Mask+1); k < b.End; k++ {
					var w bpf.ShaperDeparture
					if err := h.maps.departures.Lookup(q.Ring+uint32(k&q.Mask), &w); err != nil {
						t.Fatal(err)
					}
					if w.Before != k*length {
						t.Fatalf("entry %d has %d bytes before it: want %d", k, w.Before, k*length)
					}
					if gap := w.At - last.At; last.At != 0 && float64(gap) < length*1e9/perSecondOf(test.cfg.Rate)-1 {
						t.Errorf("entry %d leaves %d ns after the one before", k, gap)
					}
					last = w
					n++
				}
				t.Logf("%d of %d let in, %.4f of what may be, %d entries", in.Packets, s.Colors[0].Packets, float64(in.Bytes)/most, n)
				return starved
			})
		})
	}
}

func perSecondOf(r meter.Rate) float64 { return float64(r.Bytes) * 1e9 / float64(r.Period) }

// TestQueueRefusals holds that what pacers cannot do is refused by the field
// that asks for it.
func TestQueueRefusals(t *testing.T) {
	t.Parallel()
	link := &dataplane.Link{Name: "l", Rate: mega}
	ofLink := func(edit func(*dataplane.Queue)) *dataplane.Queue {
		q := &dataplane.Queue{Name: "q", Config: queue.Config{Bytes: 10_000}, Link: link}
		edit(q)
		return q
	}
	own := func(cfg queue.Config) *dataplane.Queue {
		if cfg.Rate == (meter.Rate{}) {
			cfg.Rate = mega
		}
		return &dataplane.Queue{Name: "q", Config: cfg}
	}
	plain := func(*dataplane.Queue) {}
	many := func(n int) *dataplane.Policy {
		policy := &dataplane.Policy{}
		for i := range n {
			q := own(queue.Config{Packets: 2})
			q.Name = fmt.Sprint("q", i)
			policy.Classes = append(policy.Classes, dataplane.Class{Name: q.Name, Green: &dataplane.Action{Queue: q}})
		}
		return policy
	}
	one := func(q *dataplane.Queue) *dataplane.Policy {
		return oneClass(dataplane.Class{Yellow: &dataplane.Action{Queue: q}, Red: &dataplane.Action{Queue: q}})
	}
	for _, test := range []struct {
		name   string
		policy *dataplane.Policy
		pacers []Pacer // that refuse it
		field  string
		object any
		reason string
	}{
		{"link", one(ofLink(plain)), []Pacer{FQ}, "link", &dataplane.Queue{}, string(UseHTB)},
		{"link in time", one(ofLink(func(q *dataplane.Queue) { q.Bytes, q.Time = 0, time.Second })), []Pacer{FQ}, "link", &dataplane.Queue{}, ""},
		{"packets of a link", one(ofLink(func(q *dataplane.Queue) { q.Bytes, q.Packets = 0, 9 })), []Pacer{HTB}, "limit", &dataplane.Queue{}, "in bytes"},
		{"wred in a link", one(ofLink(func(q *dataplane.Queue) { q.WRED[1] = queue.Early{Max: 10, Probability: 1} })), []Pacer{HTB}, "wred", &dataplane.Queue{}, "a rate of its own"},
		{"codel in a link", one(ofLink(func(q *dataplane.Queue) { q.CoDel = queue.CoDel{Target: 1, Interval: 1} })), []Pacer{HTB}, "codel", &dataplane.Queue{}, "a rate of its own"},
		{"fair by flow", one(ofLink(func(q *dataplane.Queue) {
			q.Fair, q.CoDel = dataplane.Key{By: dataplane.ByFlow}, queue.CoDel{Target: 1, Interval: 1}
		})), []Pacer{FQ}, "link", &dataplane.Queue{}, string(UseHTB)},
		{"fair by source", one(ofLink(func(q *dataplane.Queue) { q.Fair = dataplane.Key{By: dataplane.BySrc} })), []Pacer{HTB}, "fair", &dataplane.Queue{}, "write fair: flow"},
		{"fair with wred", one(ofLink(func(q *dataplane.Queue) {
			q.Fair, q.WRED[1] = dataplane.Key{By: dataplane.ByFlow}, queue.Early{Max: 10, Probability: 1}
		})), []Pacer{HTB}, "wred", &dataplane.Queue{}, "a rate of its own"},
		{"an hour", one(own(queue.Config{Time: time.Hour})), nil, "", nil, ""},
		{"above an hour", one(own(queue.Config{Time: time.Hour + 1})), []Pacer{FQ}, "limit", &dataplane.Queue{}, "1h0m0s that fq holds it"},
		{"an hour in bytes", one(own(queue.Config{Rate: bps(8), Bytes: 3600})), nil, "", nil, ""},
		{"above an hour in bytes", one(own(queue.Config{Rate: bps(8), Bytes: 3601})), []Pacer{FQ}, "limit", &dataplane.Queue{}, string(UseHTB)},
		{"years in bytes", one(own(queue.Config{Rate: meter.Rate{Bytes: 1, Period: time.Hour}, Bytes: 1 << 40})), []Pacer{FQ}, "limit", &dataplane.Queue{}, string(UseHTB)},
		{"hours in packets", one(own(queue.Config{Rate: bps(8e3), Packets: 60})), []Pacer{FQ}, "limit", &dataplane.Queue{}, string(UseHTB)},
		{"as many as there may be", many(MaxQueues), nil, "", nil, ""},
		{"too many", many(MaxQueues + 1), []Pacer{FQ, HTB, ""}, "queues", &dataplane.Policy{}, "257 are more than the 256"},
	} {
		for _, pacer := range []Pacer{FQ, HTB} {
			_, err := encodePolicy(test.policy, egressEntry, pacer)
			faults := fieldErrors(err)
			if !slices.Contains(test.pacers, pacer) {
				if err != nil && test.pacers == nil {
					t.Errorf("%s by %s: %v", test.name, pacer, err)
				}
				continue
			}
			if len(faults) != 1 {
				t.Errorf("%s by %s: %v: want one fault", test.name, pacer, err)
				continue
			}
			if f := faults[0]; f.Field != test.field || fmt.Sprintf("%T", f.Object) != fmt.Sprintf("%T", test.object) || !strings.Contains(f.Reason+": "+string(remedyOf(err)), test.reason) {
				t.Errorf("%s by %s: %T %s: %s: %s", test.name, pacer, f.Object, f.Field, f.Reason, remedyOf(err))
			}
		}
	}
	if _, err := newWalker(one(ofLink(plain)), 0); len(fieldErrors(err)) != 1 || remedyOf(err) != UseUserSpace {
		t.Errorf("a walker with a link: %v", err)
	}
}

// TestQueueTree holds that classes have the rates of queues and links, in whole
// bytes a second, rounded up.
func TestQueueTree(t *testing.T) {
	t.Parallel()
	wan := &dataplane.Link{Name: "wan", Rate: bps(80e6)}
	policy := &dataplane.Policy{Length: dataplane.LengthRule{Base: dataplane.L1, Overhead: 3}, Classes: []dataplane.Class{
		{
			Name: "a", Green: &dataplane.Action{Queue: &dataplane.Queue{Name: "own", Config: queue.Config{Rate: meter.Rate{Bytes: 10, Period: 3 * time.Second}, Packets: 4}}},
			Yellow: &dataplane.Action{Queue: &dataplane.Queue{Name: "first", Config: queue.Config{Bytes: 5000}, Link: wan}},
			Red:    &dataplane.Action{Queue: &dataplane.Queue{Name: "second", Config: queue.Config{Time: 10 * time.Millisecond}, Link: wan, Priority: 3, Weight: 7}},
		},
		{Name: "b", Green: &dataplane.Action{Queue: &dataplane.Queue{
			Name: "fair", Config: queue.Config{Bytes: 30_000, CoDel: queue.CoDel{Target: 5, Interval: 6}, ECN: true}, Link: wan, Priority: 1,
			Fair: dataplane.Key{By: dataplane.ByFlow},
		}}},
	}}
	g, err := encodePolicy(policy, egressEntry, HTB)
	if err != nil {
		t.Fatal(err)
	}
	g.inherit(&About{})
	got := g.tree(&device{mtu: 1500, link: dataplane.LinkEthernet})
	id := func(i int) uint16 { return uint16(g.queues[i].ClassId) }
	want := &qdisc.Tree{
		Kind: qdisc.HTB, Horizon: got.Horizon, Overhead: 27, MTU: 1500, Links: []qdisc.Link{{ID: g.linkIDs[0], Rate: 10_000_000, Credit: leafCredit}},
		Leaves: []qdisc.Leaf{
			{ID: id(0), Rate: 4, Credit: leafCredit, Limit: 4*1500*3/2 + 64<<10},
			{ID: id(1), Parent: g.linkIDs[0], Quantum: 1514, Limit: 5000},
			{ID: id(2), Parent: g.linkIDs[0], Priority: 3, Quantum: 1514, Limit: 100_000},
			{ID: id(3), Parent: g.linkIDs[0], Priority: 1, Quantum: 1514, Limit: 30_000},
		},
	}
	if f, want := *got.Leaves[3].Fair, (qdisc.Fair{CoDel: queue.CoDel{Target: 5, Interval: 6}, ECN: true, Packets: 1500}); f != want {
		t.Errorf("a fair queue is %+v, want %+v", f, want)
	}
	got.Leaves[3].Fair = nil
	if fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", want) {
		t.Errorf("the tree is\n%+v, want\n%+v", got, want)
	}
	for _, r := range []struct {
		rule dataplane.LengthRule
		link dataplane.LinkType
		want int
	}{
		{dataplane.LengthRule{}, dataplane.LinkEthernet, -14},
		{dataplane.LengthRule{}, dataplane.LinkRaw, 0},
		{dataplane.LengthRule{Base: dataplane.L2, Overhead: 4}, dataplane.LinkEthernet, 4},
		{dataplane.LengthRule{Base: dataplane.L1}, dataplane.LinkEthernet, 24},
	} {
		g.plan.Length = r.rule
		if got := g.tree(&device{link: r.link}).Overhead; got != r.want {
			t.Errorf("%+v of link type %v: overhead %d, want %d", r.rule, r.link, got, r.want)
		}
	}
}

// TestQueueTurns holds that turns are by the ratio of weights, and long enough
// for the longest packet.
func TestQueueTurns(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		weights []int
		mtu     int
		want    []uint32
	}{
		{[]int{1, 9}, 1500, []uint32{1514, 9 * 1514}},
		{[]int{10, 90}, 1500, []uint32{1514, 9 * 1514}},
		{[]int{100, 900}, 1500, []uint32{1514, 9 * 1514}},
		{[]int{2, 3}, 1500, []uint32{1514, 2271}},
		{[]int{3, 7}, 1500, []uint32{1514, 3533}}, // 3532.67
		{[]int{1, 1000}, 65521, []uint32{65535, 65535000}},
		{[]int{5, 5}, 9000, []uint32{9014, 9014}},
		{[]int{5, 10}, 0, []uint32{1514, 3028}}, // not known
	} {
		link := &dataplane.Link{Name: "wan", Rate: mega}
		policy := &dataplane.Policy{}
		add := func(name string, weight, priority int) {
			q := &dataplane.Queue{Name: name, Config: queue.Config{Bytes: 1e5}, Link: link, Weight: weight, Priority: priority}
			policy.Classes = append(policy.Classes, dataplane.Class{Name: name, Green: &dataplane.Action{Queue: q}})
		}
		for i, w := range test.weights {
			add(fmt.Sprint("q", i), w, 1)
		}
		add("of another priority", 1, 0)
		g, err := encodePolicy(policy, egressEntry, HTB)
		if err != nil {
			t.Fatal(err)
		}
		g.inherit(&About{})
		leaves := g.tree(&device{mtu: test.mtu, link: dataplane.LinkEthernet}).Leaves
		for i, want := range test.want {
			if got := leaves[i].Quantum; got != want {
				t.Errorf("weights %v, MTU %d: queue %d has a turn of %d B, want %d", test.weights, test.mtu, i, got, want)
			}
		}
	}
}

// successor is the program of a policy that takes the place of another's.
func (h *hooked) successor(t *testing.T, about *About, policy *dataplane.Policy) *hooked {
	t.Helper()
	g, err := encodePolicy(policy, egressEntry, "")
	if err != nil {
		t.Fatal(err)
	}
	next := &hooked{Walker: Walker{image: g, batch: 1, now: h.now}, hook: egressEntry, room: make([]byte, 1<<17)}
	next.constants.Handed, next.constants.Link = 1, uint8(dataplane.LinkEthernet)
	next.inherit(about)
	maps, err := h.maps.forPlan(g, about, nil)
	if err == nil {
		err = g.populate(about, h.maps, maps, nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	next.maps = maps
	spec, err := bpf.LoadShaper()
	if err != nil {
		t.Fatal(err)
	}
	if next.loaded, err = next.loadProgram(spec, programs[Egress], maps.byName()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(next.loaded.Close)
	next.program = next.loaded.Programs[programs[Egress]]
	about.recordImage(g)
	return next
}

// TestQueueInherits holds what queues keep over a change of policy to the
// pipeline, packet by packet.
func TestQueueInherits(t *testing.T) {
	if inVM {
		t.Skip("not in a VM: it would take long and show nothing new")
	}
	needRoot(t)
	t.Parallel()
	into := func(queues ...*dataplane.Queue) *dataplane.Policy {
		policy := &dataplane.Policy{}
		for i, q := range queues {
			policy.Classes = append(policy.Classes, dataplane.Class{
				Name: q.Name, Match: dataplane.Match{DSCP: []dataplane.Range{{First: uint32(i), Last: uint32(i)}}},
				Green: &dataplane.Action{Queue: q},
			})
		}
		return policy
	}
	named := func(name string, cfg queue.Config) *dataplane.Queue {
		if cfg.Rate == (meter.Rate{}) {
			cfg.Rate = mega
		}
		return &dataplane.Queue{Name: name, Config: cfg}
	}
	tell := queue.CoDel{Target: time.Millisecond, Interval: 5 * time.Millisecond}
	early := [3]queue.Early{{Max: 20, Probability: queue.Certain / 2}}
	third := meter.Rate{Bytes: 30, Period: 100_000 * 7}
	for _, test := range []struct {
		name          string
		before, after *dataplane.Policy
	}{
		{"the same", into(named("a", queue.Config{Packets: 20, WRED: early, CoDel: tell, Seed: 5})), into(named("a", queue.Config{Packets: 20, WRED: early, CoDel: tell, Seed: 5}))},
		{"another rate", into(named("a", queue.Config{Packets: 20})), into(named("a", queue.Config{Packets: 20, Rate: bps(16e6)}))},
		{"a fraction", into(named("a", queue.Config{Time: 100 * time.Millisecond, Rate: third})), into(named("a", queue.Config{Time: 90 * time.Millisecond, Rate: third}))},
		{"renamed", into(named("a", queue.Config{Packets: 20})), into(named("b", queue.Config{Packets: 20}))},
		{"another limit", into(named("a", queue.Config{Packets: 20})), into(named("a", queue.Config{Packets: 200}))},
		{"another axis", into(named("a", queue.Config{Packets: 20})), into(named("a", queue.Config{Time: 15 * time.Millisecond}))},
		{"one more, in time", into(named("a", queue.Config{Time: 20 * time.Millisecond, CoDel: tell})), into(named("b", queue.Config{Packets: 9}), named("a", queue.Config{Time: 20 * time.Millisecond, CoDel: tell}))},
		{"one less, in time", into(named("b", queue.Config{Packets: 9}), named("a", queue.Config{Time: 20 * time.Millisecond, CoDel: tell})), into(named("a", queue.Config{Time: 20 * time.Millisecond, CoDel: tell}))},
		{"one more", into(named("a", queue.Config{Packets: 20, CoDel: tell})), into(named("b", queue.Config{Packets: 9}), named("a", queue.Config{Packets: 20, CoDel: tell}))},
		{"in other order", into(named("b", queue.Config{Bytes: 20_000}), named("a", queue.Config{Packets: 20})), into(named("a", queue.Config{Packets: 20}), named("b", queue.Config{Bytes: 20_000}))},
		{"in other order, in time", into(named("b", queue.Config{Time: ms9}), named("a", queue.Config{Time: 2 * ms9})), into(named("a", queue.Config{Time: 2 * ms9}), named("b", queue.Config{Time: ms9}))},
	} {
		if inVM && test.name != "another rate" && test.name != "one more, in time" {
			continue
		}
		t.Run(test.name, func(t *testing.T) {
			h := newHooked(t, test.before, egressEntry, nil)
			l, err := dataplane.New(test.before)
			if err != nil {
				t.Fatal(err)
			}
			var about About
			about.recordImage(h.image)
			r := rand.New(rand.NewPCG(1, 2))
			at := int64(0)
			same := func(h *hooked, l *dataplane.Pipeline, stage string) {
				for i := range 200 {
					at += r.Int64N(900_000)
					p := datagram(at, byte(r.IntN(2))<<2, 20+r.IntN(1400))
					var got, want dataplane.Verdict
					if err := h.run(&p, &got, skb{}); err != nil {
						t.Fatal(err)
					}
					l.Process(&p, &want)
					if got != want {
						t.Fatalf("%s, packet %d:\nkernel   %+v\npipeline %+v", stage, i, got, want)
					}
				}
			}
			same(h, l, "before")
			for i, policy := range []*dataplane.Policy{test.after, test.after, test.before, test.after, test.before, test.before} {
				if inVM && i > 1 {
					break
				}
				next, err := dataplane.New(policy)
				if err != nil {
					t.Fatal(err)
				}
				next.Inherit(l)
				l = next
				h = h.successor(t, &about, policy)
				same(h, l, fmt.Sprint("after ", i))
			}
		})
	}
}

const ms9 = 9 * time.Millisecond

// TestQueueSlots holds that queues keep their slots and classes as long as they
// may, and that no two share one.
func TestQueueSlots(t *testing.T) {
	t.Parallel()
	link := &dataplane.Link{Name: "l", Rate: mega}
	policyOf := func(names ...string) *dataplane.Policy {
		policy := &dataplane.Policy{}
		for _, name := range names {
			q := &dataplane.Queue{Name: strings.TrimRight(name, "+-/")}
			q.Packets, q.Rate = 10, mega
			switch {
			case strings.HasSuffix(name, "+"):
				q.Packets = 100
			case strings.HasSuffix(name, "-"):
				q.Rate = bps(1e6)
			case strings.HasSuffix(name, "/"):
				q.Link, q.Rate, q.Packets, q.Bytes = link, meter.Rate{}, 0, 10_000
			}
			policy.Classes = append(policy.Classes, dataplane.Class{Name: q.Name, Green: &dataplane.Action{Queue: q}})
		}
		return policy
	}
	var about About
	slots, classes := map[string]uint32{}, map[string]uint32{}
	for i, step := range []struct {
		names string // + has another limit, - another rate, / is of a link
		slots string // that are kept
	}{
		{"a b c", ""},
		{"a b c", "a b c"},
		{"a b- c", "a c"},
		{"a b- c", "a b c"},
		{"c a b-", "a b c"}, // another order of rings
		{"c a+ b-", "b c"},
		{"c a+ d", "a c"},
		{"c a/ d", "c d"},
		{"c a/ d", "a c d"},
		{"x y z", ""},
		{"a", ""},
	} {
		g, err := encodePolicy(policyOf(strings.Fields(step.names)...), egressEntry, HTB)
		if err != nil {
			t.Fatal(err)
		}
		g.inherit(&about)
		usedSlots, usedClasses := map[uint32]string{}, map[uint32]string{}
		for _, q := range about.Queued {
			usedSlots[q.Slot] = "before"
		}
		for at, id := range g.linkIDs {
			usedClasses[qdisc.Handle(id)] = g.plan.Links[at].Name
		}
		kept := strings.Fields(step.slots)
		for j := range g.queues {
			q, name := &g.queues[j], g.plan.Queues[j].Name
			if slices.Contains(kept, name) {
				if q.Slot != slots[name] {
					t.Errorf("step %d: %s has slot %d: want %d, as before", i, name, q.Slot, slots[name])
				}
			} else if other, ok := usedSlots[q.Slot]; ok {
				t.Errorf("step %d: %s has slot %d of %s", i, name, q.Slot, other)
			}
			usedSlots[q.Slot] = name
			if other, ok := usedClasses[q.ClassId]; ok || q.ClassId>>16 != qdisc.Major || q.ClassId&0xffff == 0 {
				t.Errorf("step %d: %s has class %#x of %q", i, name, q.ClassId, other)
			}
			usedClasses[q.ClassId] = name
			was := slices.ContainsFunc(about.Outline.Queues, func(q dataplane.QueueOutline) bool { return q.Name == name })
			if was && q.ClassId != classes[name] {
				t.Errorf("step %d: %s has class %#x: want %#x, as before", i, name, q.ClassId, classes[name])
			}
			slots[name], classes[name] = q.Slot, q.ClassId
		}
		about.recordImage(g)
	}
	// There is room for as many queues as there may be, beside those before.
	about = About{}
	for _, prefix := range []string{"a", "b", "a", "b"} {
		var names []string
		for i := range MaxQueues {
			names = append(names, fmt.Sprint(prefix, i))
		}
		g, err := encodePolicy(policyOf(names...), egressEntry, HTB)
		if err != nil {
			t.Fatal(err)
		}
		g.inherit(&about)
		used := map[uint32]bool{}
		for _, q := range g.queues {
			if q.Slot >= maxSlots[bpf.ShaperMapBacklogs] || used[q.Slot] {
				t.Fatalf("%s: slot %d is beyond the end, or taken", prefix, q.Slot)
			}
			used[q.Slot] = true
		}
		about.recordImage(g)
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
