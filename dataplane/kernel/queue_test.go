package kernel

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
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
	}
	// All of them are queues of one policy, so that a program is loaded once; each has a
	// second of its own.
	to := func(i int) [4]byte { return [4]byte{10, 1, 0, byte(i)} }
	policy := &dataplane.Policy{}
	for i, test := range tests {
		if test.cfg.Rate == (meter.Rate{}) {
			test.cfg.Rate = mega
		}
		c := allInto(test.cfg).Classes[0]
		c.Name, c.Green.Queue.Name = test.name, test.name
		c.Match.Dst = []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4(to(i)), 32)}
		policy.Classes = append(policy.Classes, c)
	}
	for _, plane := range canWait() {
		if inVM && plane.name == "egress" {
			continue
		}
		e := plane.open(t, policy)
		for i, test := range tests {
			if inVM && test.name != "bytes" && test.name != "codel" && test.name != "ce instead" {
				continue
			}
			t.Run(test.name+"/"+plane.name, func(t *testing.T) {
				for k, r := range test.rows {
					var v [1]dataplane.Verdict
					p := []dataplane.Packet{datagramTo(to(i), int64(i)*int64(time.Second)+r.at, r.tos, r.n)}
					if err := e.Process(p, v[:]); err != nil {
						t.Fatal(err)
					}
					if got := fate(&v[0]); got != r.want {
						t.Fatalf("row %d: %s, want %s", k, got, r.want)
					}
					if ce := p[0].Data[15]&3 == 3; ce != strings.HasSuffix(r.want, "ce") {
						t.Errorf("row %d: %s, and TOS %#x", k, r.want, p[0].Data[15])
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
