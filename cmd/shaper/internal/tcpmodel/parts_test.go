package tcpmodel

import (
	"math"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/meter"
)

// TestCubicWindow compares the window with RFC 9438 §4.2, W(t) = 0.4 * (t-K)^3 + W_max, for 20 s
// after a loss at 1000 segments. At this RTT Reno would be slower.
func TestCubicWindow(t *testing.T) {
	const rtt = int64(100 * ms)
	c := newCongestion(CUBIC, maxWindow)
	c.cwnd = 1000
	c.ssthresh = c.loss()
	c.cwnd = c.ssthresh
	if c.cwnd != 700 {
		t.Fatalf("window %d after a loss: want 700", c.cwnd)
	}
	c.sample(0, rtt, 0, 1)
	k := math.Cbrt(300 / 0.4)
	for now := int64(0); now < 20e9; now += rtt {
		want := 0.4*math.Pow(float64(now)/1e9-k, 3) + 1000
		if got := float64(c.cwnd); math.Abs(got-want) > 0.03*want {
			t.Fatalf("window %.0f after %v: want %.0f", got, time.Duration(now), want)
		}
		for left := c.cwnd; left > 0; left -= 2 {
			c.acked(now+rtt-rtt*left/c.cwnd, 2)
		}
	}
	// Fast convergence, §4.7: a second loss below the maximum halves the way up.
	c.cubic, c.cwnd = cubic{wmax: 1000}, 800
	c.loss()
	if c.cubic.wmax != 680 {
		t.Errorf("W_max %d: want 680", c.cubic.wmax)
	}
}

// TestHyStart checks both reasons to end slow start, on both sides of their limits.
func TestHyStart(t *testing.T) {
	train := func(gap, length int64, paced bool) bool {
		var h hystart
		for now := int64(0); now <= length; now += gap {
			if h.ends(now, int64(40*ms), int64(40*ms), 100, 0, 100, paced) {
				return true
			}
		}
		return false
	}
	for _, test := range []struct {
		gap, length int64
		paced, want bool
	}{
		{int64(ms), int64(20 * ms), false, false}, // half of the RTT and 1 ms
		{int64(ms), int64(21 * ms), false, true},
		{int64(ms), int64(40 * ms), true, false},
		{int64(ms), int64(42 * ms), true, true},
		{int64(3 * ms), int64(60 * ms), false, false}, // no train
	} {
		if got := train(test.gap, test.length, test.paced); got != test.want {
			t.Errorf("%+v: %v", test, got)
		}
	}
	for _, test := range []struct {
		samples     int
		min, rtt    time.Duration
		cwnd        int64
		want        bool
		description string
	}{
		{9, 40 * ms, 46 * ms, 100, true, "an eighth more"},
		{9, 40 * ms, 45 * ms, 100, false, "an eighth"},
		{8, 40 * ms, 46 * ms, 100, false, "few samples"},
		{9, 40 * ms, 46 * ms, 15, false, "a small window"},
		{9, 8 * ms, 11 * ms, 100, false, "below 4 ms"},
		{9, 8 * ms, 13 * ms, 100, true, "above 4 ms"},
		{9, 400 * ms, 417 * ms, 100, true, "above 16 ms"},
	} {
		var h hystart
		var got bool
		for i := range test.samples {
			got = h.ends(int64(i)*int64(3*ms), int64(test.rtt), int64(test.min), test.cwnd, 0, 100, false)
		}
		if got != test.want {
			t.Errorf("%s: %v", test.description, got)
		}
	}
}

// TestReduce checks proportional rate reduction, RFC 6937 §3, for a window of 20 that becomes 10.
func TestReduce(t *testing.T) {
	f := newFlow(Path{MSS: 1448, Window: 1e6}, nil)
	f.state, f.priorWindow, f.ssthresh, f.inflight = recovering, 20, 10, 19
	for delivered := range int64(16) { // one packet for two delivered, rounded up
		f.inflight--
		f.reduce(1, false, false)
		f.out += f.cwnd - f.inflight
		f.inflight = f.cwnd
		if want := (delivered + 2) / 2; f.out != want {
			t.Fatalf("%d sent after %d delivered: want %d", f.out, delivered+1, want)
		}
	}
	for _, test := range []struct {
		progress, lostMore bool
		want               int64
	}{{false, false, 5}, {true, true, 5}, {true, false, 6}} { // 2 delivered, 3 in flight
		f.reduced, f.out, f.inflight = 8, 8, 3
		f.reduce(2, test.progress, test.lostMore)
		if f.cwnd != test.want {
			t.Errorf("%+v: window %d", test, f.cwnd)
		}
	}
}

// TestReceiver checks when segments are acknowledged.
func TestReceiver(t *testing.T) {
	const never = infinite
	f := newFlow(Path{RTT: 100 * ms, MSS: 1448, Window: 1e6}, nil)
	for range 100 {
		f.segments.push(segment{})
	}
	for seq := range int64(quickSegments) {
		if !f.receive(0, seq) {
			t.Fatalf("segment %d is not acknowledged at once", seq)
		}
		f.receiver.acknowledge()
	}
	for i, step := range []struct {
		seq, wait int64 // time until the acknowledgment, 0: at once
	}{
		{16, delayedAck},
		{17, coalesced},
		{18, delayedAck},
		{19, coalesced},
		{21, 0},
		{22, 0},
		{23, 0},
		{24, heldFor},    // beyond a gap
		{22, 0},          // a duplicate
		{20, 0},          // fills the gap
		{25, delayedAck}, // after it
	} {
		now := int64(i) * int64(ms)
		if at := f.receive(now, step.seq); at != (step.wait == 0) || !at &&
			f.receiver.delayed != now+step.wait {
			t.Errorf("segment %d: at once %v, or after %d: want after %d", step.seq, at,
				f.receiver.delayed-now, step.wait)
		}
		if step.wait != delayedAck {
			f.receiver.acknowledge()
		}
		if step.wait != delayedAck && f.receiver.delayed != never {
			t.Errorf("segment %d: acknowledged twice", step.seq)
		}
	}
}

// TestSecondReduction checks that the loss of a new segment sent in a recovery halves the window
// again, although it has been sent again before the recovery ends.
func TestSecondReduction(t *testing.T) {
	threshold := func(loseNew bool) int64 {
		p, err := Path{RTT: 50 * ms, Control: Reno, Paced: true}.withDefaults()
		if err != nil {
			t.Fatal(err)
		}
		var now30, lost int // packets of segment 30, and of new ones that were lost
		var seq int64       // of the packet at the bottleneck
		var f *flow
		n, err := newNetwork(p, func(now int64, _ int) (int64, bool) {
			if seq == 30 { // twice, so the recovery lasts two round trips
				now30++
				return now, now30 > 2
			}
			if loseNew && f.state == recovering && seq > f.high && lost == 0 {
				lost++
				return now, false
			}
			return now, true
		})
		if err != nil {
			t.Fatal(err)
		}
		f = n.flows[0]
		send := f.send
		f.send = func(now, s, serial int64) {
			seq = s
			send(now, s, serial)
		}
		if err := n.run(int64(500 * ms)); err != nil {
			t.Fatal(err)
		}
		if f.timeouts > 0 || loseNew != (lost > 0) {
			t.Fatalf("%d timeouts, %d new segments lost", f.timeouts, lost)
		}
		return f.ssthresh
	}
	if one, two := threshold(false), threshold(true); one < 20 || two > one*6/10 {
		t.Errorf("thresholds %d and %d: want the second one halved again", one, two)
	}
}

// TestChunks checks how much a sender collects, and when it waits for more.
func TestChunks(t *testing.T) {
	f := newFlow(Path{RTT: 40 * ms, MSS: 1448, Window: 1e6}, func(_, _, _ int64) {})
	f.cwnd, f.ssthresh, f.minRTT = 200, 200, int64(40*ms)
	if got := f.chunk(); got != 5 { // 200 * 1448 / 40 ms * 1.2 / 1024 is 8484 bytes
		t.Errorf("%d segments: want 5", got)
	}
	f.ssthresh = infinite
	if got := f.chunk(); got != 9 {
		t.Errorf("%d segments in slow start: want 9", got)
	}
	f.transmitNew(0, 1)
	for _, test := range []struct {
		now, last time.Duration // of this decision, and of the last transmission
		room      int64
		state     state
		want      bool
	}{
		{20 * ms, 20 * ms, 60, open, true},
		{20 * ms, 19 * ms, 1, open, true},
		{20 * ms, 18 * ms, 1, open, false},        // nothing was sent for 2 ms
		{20 * ms, 20 * ms, 66, open, false},       // a third of the window
		{19 * ms, 19 * ms, 60, open, false},       // the next acknowledgment is half an RTT away
		{20 * ms, 20 * ms, 60, recovering, false}, // in recovery
	} {
		f.lastSent, f.state = int64(test.last), test.state
		if got := f.defers(int64(test.now), test.room); got != test.want {
			t.Errorf("%+v: %v", test, got)
		}
	}
}

// TestHyStartSpares checks that CUBIC leaves slow start before it overflows a queue, and Reno not.
func TestHyStartSpares(t *testing.T) {
	p := Path{RTT: 50 * ms, Settle: -1, Duration: time.Second, Line: meter.BitRate(1e9)}
	if r := mustRun(t, p, byTime(meter.BitRate(50e6), 50*ms)); r.Dropped > 0 {
		t.Errorf("CUBIC: %d dropped", r.Dropped)
	}
	p.Control = Reno
	if r := mustRun(t, p, byTime(meter.BitRate(50e6), 50*ms)); r.Dropped == 0 {
		t.Error("Reno: nothing dropped")
	}
}

// TestSearch checks that the smallest size is found to a fiftieth, that a smaller one does not
// count if a larger one misses the target, and both ends.
func TestSearch(t *testing.T) {
	for _, test := range []struct {
		goodput   func(size int64) int64
		low, high int64
	}{
		{func(size int64) int64 { return size }, 5000, 5100},
		{func(size int64) int64 {
			if size > 6000 && size < 9000 {
				return 0
			}
			return size
		}, 9000, 9180},
		{func(int64) int64 { return 5000 }, 100, 100},
		{func(int64) int64 { return 4999 }, 0, 0},
		{func(size int64) int64 { return size / 1e6 * 5000 }, 1e6, 1e6},
	} {
		size, r, err := smallest(100, 1e6, 5000,
			func(size int64) (Result, error) { return Result{Goodput: test.goodput(size)}, nil })
		if err != nil || size < test.low || size > test.high || r.Goodput < 5000 && size > 0 {
			t.Errorf("size %d, %+v, %v: want %d to %d", size, r, err, test.low, test.high)
		}
	}
}
