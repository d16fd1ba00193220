package walk

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/kerneltest"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// keepColors is a color-aware meter that never runs out, so a packet keeps its input color: DSCP 1
// is yellow, 2 red.
func keepColors() *dataplane.Meter {
	return &dataplane.Meter{
		Params: meter.TRTCM{CIR: meter.BitRate(1e9), CBS: 1e9, PIR: meter.BitRate(1e9), PBS: 1e9},
		Aware:  true, PreColor: dscpColors,
	}
}

// queueAll is a policy that queues packets of all colors in one queue.
func queueAll(cfg queue.Config) *dataplane.Policy {
	into := &dataplane.Action{Queue: &dataplane.Queue{Name: "q", Config: cfg}}
	return oneClass(dataplane.Class{Meter: keepColors(), Green: into, Yellow: into, Red: into})
}

// queueFate is the queueing delay in ns, with " ce" if the packet was marked, or the reason of a
// drop.
func queueFate(v *dataplane.Verdict) string {
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

// TestQueueRows checks hand-computed delays and drops of queues of one byte per microsecond.
func TestQueueRows(t *testing.T) {
	kerneltest.NeedRoot(t)
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
	certain := [3]queue.Early{
		meter.Yellow: {Min: 500, Max: 1500, Probability: queue.Certain},
		meter.Red:    {Min: 0, Max: 500, Probability: 0},
	}
	tests := []struct {
		name string
		cfg  queue.Config
		rows []row
	}{
		{"time", queue.Config{Time: time.Millisecond}, []row{
			{0, green, 1000, "0"},
			{0, red, 1000, "1000000"}, // the limit
			{0, green, 20, "queue-full"},
			{1, green, 20, "queue-full"},
			{kerneltest.Millisecond - 1, green, 20, "queue-full"}, // 1 ns above the limit
			{kerneltest.Millisecond, green, 1000, "1000000"},
			{2*kerneltest.Millisecond + 1, yellow, 21, "999999"},
			{3*kerneltest.Millisecond + 21_000, green, 100, "0"}, // the queue is just empty
			{9 * kerneltest.Millisecond, green, 100, "0"},
			{9*kerneltest.Millisecond - 5, green, 100, "100000"}, // an earlier time counts as the latest
		}},
		{"bytes", queue.Config{Bytes: 3000}, []row{
			{0, green, 1400, "0"}, // departs at once and no longer counts
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
			{kerneltest.Millisecond - 1, green, 20, "queue-full"},
			{kerneltest.Millisecond, green, 20, "2000000"},
			{kerneltest.Millisecond, green, 20, "queue-full"},
		}},
		{"one packet", queue.Config{Packets: 1}, []row{
			{0, green, 1000, "0"}, {0, green, 1000, "1000000"}, {0, green, 20, "queue-full"}, {kerneltest.Millisecond, green, 20, "1000000"},
		}},
		{"a packet above the limit", queue.Config{Bytes: 1000}, []row{
			{0, green, 1001, "queue-full"}, {0, green, 1000, "0"}, {0, green, 1000, "1000000"},
		}},
		{"departures round up, the queue keeps the fraction", queue.Config{Rate: meter.Rate{Bytes: 30, Period: 100}, Time: time.Second}, []row{
			{0, green, 25, "0"}, {0, green, 25, "84"}, {0, green, 25, "167"}, {0, green, 25, "250"}, {0, green, 25, "334"},
		}},
		{"wred on bytes", queue.Config{Bytes: 3000, WRED: certain}, []row{
			{0, red, 1000, "0"}, // departs at once
			{0, red, 1000, "1000000"},
			{0, red, 1000, "wred"},
			{0, yellow, 1000, "wred"}, // 1000 bytes are queued
			{0, green, 1000, "2000000"},
			{0, yellow, 1000, "wred"},
			{0, green, 1000, "3000000"},
			{0, green, 1000, "queue-full"},
			{3*kerneltest.Millisecond - 1, red, 100, "wred"},
			{3 * kerneltest.Millisecond, red, 100, "1000000"}, // the last packet departs: the backlog is empty
		}},
		{"wred at its bounds", queue.Config{Bytes: 3000, WRED: [3]queue.Early{{Min: 1000, Max: 1001, Probability: queue.Certain}, {Min: 1001, Max: 1001}}}, []row{
			{0, green, 1500, "0"},
			{0, green, 999, "1500000"},
			{0, green, 1000, "2499000"}, // 999 bytes are queued
			{1_500_000, yellow, 20, "1999000"},
			{1_500_000, green, 1000, "wred"}, // 1020
			{1_500_000, yellow, 20, "wred"},
			{2_499_000, yellow, 980, "1020000"}, // 20 bytes are queued
			{2_499_000, yellow, 20, "2000000"},  // 1000
			{2_499_000, yellow, 20, "wred"},     // 1020
			{3_519_000, green, 20, "1000000"},   // 20
		}},
		{"wred on packets", queue.Config{Packets: 2, WRED: [3]queue.Early{meter.Yellow: {Min: 1, Max: 2}}}, []row{
			{0, yellow, 100, "0"}, {0, yellow, 100, "100000"}, {0, yellow, 100, "200000"}, {0, yellow, 100, "queue-full"}, {0, green, 100, "queue-full"},
		}},
		{"wred on a delay", queue.Config{Time: 3 * time.Millisecond, WRED: [3]queue.Early{{Min: kerneltest.Millisecond, Max: 2 * kerneltest.Millisecond}}}, []row{
			{0, green, 1000, "0"}, {0, green, 1000, "1000000"}, {0, green, 1000, "wred"}, {1, green, 1000, "1999999"}, {1, yellow, 1000, "2999999"}, {1, yellow, 1000, "queue-full"},
		}},
		{"ce instead of wred drops", queue.Config{Bytes: 3000, ECN: true, WRED: [3]queue.Early{{Max: 1001, Probability: queue.Certain}}}, []row{
			{0, green, 1000, "0"},
			{0, green, 1000, "1000000"},
			{0, green | capable, 1000, "2000000 ce"},
			{0, green | capable, 1000, "wred"}, // above max
			{0, green, 1000, "wred"},
		}},
		{"no ce without ecn", queue.Config{Bytes: 3000, WRED: [3]queue.Early{{Max: 1001, Probability: queue.Certain}}}, []row{
			{0, green, 1000, "0"}, {0, green, 1000, "1000000"}, {0, green | capable, 1000, "wred"},
		}},
		{"codel", queue.Config{Packets: 100, ECN: true, CoDel: queue.CoDel{Target: time.Millisecond, Interval: time.Millisecond}}, []row{
			{0, green, 1000, "0"},
			{0, green, 1000, "1000000"}, // at the target
			{0, green, 1000, "codel"},   // its delay would be above the target for an interval
			{0, green | capable, 1000, "2000000"},
			{0, green | capable, 1000, "3000000 ce"},
			{5 * kerneltest.Millisecond, green, 1000, "0"},
			{5 * kerneltest.Millisecond, green, 1000, "1000000"},
			{5 * kerneltest.Millisecond, green, 1000, "codel"},
		}},
		{"codel counts packets marked by wred", queue.Config{
			Packets: 9, ECN: true, Seed: 3,
			WRED:  [3]queue.Early{meter.Yellow: {Max: 2, Probability: queue.Certain}},
			CoDel: queue.CoDel{Target: time.Millisecond, Interval: time.Millisecond},
		}, []row{
			{0, green, 1000, "0"},
			{0, green, 1000, "1000000"},
			{0, yellow | capable, 1000, "2000000 ce"},
			{0, green, 1000, "codel"}, // the second packet that CoDel acts on
		}},
	}
	// All cases are queues of one policy, so that each program is loaded once. Each case has its
	// own second.
	to := func(i int) [4]byte { return [4]byte{10, 1, 0, byte(i)} }
	policy := &dataplane.Policy{}
	for i, test := range tests {
		if test.cfg.Rate == (meter.Rate{}) {
			test.cfg.Rate = kerneltest.EightMbit
		}
		c := queueAll(test.cfg).Classes[0]
		c.Name, c.Green.Queue.Name = test.name, test.name
		c.Match.Dst = []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4(to(i)), 32)}
		policy.Classes = append(policy.Classes, c)
	}
	for _, plane := range planesWithQueues() {
		if kerneltest.InVM && plane.name == "egress" {
			continue
		}
		e := plane.open(t, policy)
		for i, test := range tests {
			if kerneltest.InVM && test.name != "bytes" && test.name != "codel" &&
				test.name != "ce instead of wred drops" {
				continue
			}
			t.Run(test.name+"/"+plane.name, func(t *testing.T) {
				for k, r := range test.rows {
					var v [1]dataplane.Verdict
					p := []dataplane.Packet{datagramTo(to(i), int64(i)*int64(time.Second)+r.at, r.tos, r.n)}
					if err := e.Process(p, v[:]); err != nil {
						t.Fatal(err)
					}
					if got := queueFate(&v[0]); got != r.want {
						t.Fatalf("row %d: got %s, want %s", k, got, r.want)
					}
					if ce := p[0].Data[15]&3 == 3; ce != strings.HasSuffix(r.want, "ce") {
						t.Errorf("row %d: got TOS %#x, want CE %v", k, p[0].Data[15], !ce)
					}
				}
			})
		}
	}
}

// TestQueueWraps compares queues with the pipeline while their rings wrap around many times, at
// loads below and above the rate.
func TestQueueWraps(t *testing.T) {
	kerneltest.NeedRoot(t)
	t.Parallel()
	early := [3]queue.Early{
		{},
		{Min: 20, Max: 60, Probability: queue.Certain / 3},
		{Min: 1, Max: 30, Probability: queue.Certain / 2},
	}
	for name, cfg := range map[string]queue.Config{
		"packets 1":   {Rate: kerneltest.EightMbit, Packets: 1},
		"packets 64":  {Rate: kerneltest.EightMbit, Packets: 64, WRED: early},
		"packets 65":  {Rate: kerneltest.EightMbit, Packets: 65, ECN: true, CoDel: queue.CoDel{Target: 2 * time.Millisecond, Interval: 20 * time.Millisecond}},
		"packets max": {Rate: meter.BitRate(8e4), Packets: queue.MaxPackets},
		"bytes":       {Rate: meter.Rate{Bytes: 1_000_003, Period: time.Second}, Bytes: 10_007, Seed: 9},
	} {
		if kerneltest.InVM && name != "packets 65" && name != "bytes" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			r := kerneltest.Seeded(t)
			packets := make([]dataplane.Packet, kerneltest.Rounds(100_000))
			at := int64(0)
			for i := range packets {
				// Alternate between overload and a load at which the queue runs empty.
				gap := 400 * int64(time.Microsecond)
				if i/5000%2 == 1 {
					gap *= 4
				}
				at += r.Int64N(gap)
				packets[i] = datagram(at, byte(r.Uint32())&0xf, 20+r.IntN(600))
			}
			policy := queueAll(cfg)
			followPipeline(t, policy, walker(512)(t, policy), packets)
		})
	}
}
