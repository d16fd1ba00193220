package tcpmodel

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

const ms = time.Millisecond

// mustRun returns the result of a path.
func mustRun(t testing.TB, p Path, b Bottleneck) Result {
	t.Helper()
	r, err := Run(p, b)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func policer(t testing.TB, rate meter.Rate, burst int64) Bottleneck {
	t.Helper()
	p, err := meter.TokenBucket{Rate: rate, Burst: burst}.Profile()
	if err != nil {
		t.Fatal(err)
	}
	return Policer(p)
}

func byTime(rate meter.Rate, limit time.Duration) Bottleneck {
	return Queue(queue.Config{Rate: rate, Time: limit})
}

// wantNear checks that a value is within a part of the wanted one.
func wantNear(t *testing.T, what string, got, want, part float64) {
	t.Helper()
	if math.Abs(got-want) > part*want {
		t.Errorf("%s: %.4g: want %.4g within %.0f %%", what, got, want, 100*part)
	}
}

// dropping is a bottleneck without a rate that drops packets by their number, from 0.
func dropping(drop func(n int) bool) Bottleneck {
	return func() (gate, error) {
		n := -1
		return func(now int64, _ int) (int64, bool) {
			n++
			return now, !drop(n)
		}, nil
	}
}

// TestFullQueue checks that flows fill a link whose queue holds a window of RTT * rate, and get
// no more than the link carries.
func TestFullQueue(t *testing.T) {
	const payload = 10e6 * 1448 / 1500
	for _, control := range []Control{CUBIC, Reno} {
		for _, flows := range []int{1, 4} {
			for _, paced := range []bool{false, true} {
				r := mustRun(t, Path{RTT: 20 * ms, Control: control, Flows: flows, Paced: paced},
					byTime(meter.BitRate(10e6), 40*ms))
				wantNear(t, control.String(), float64(r.Goodput), payload, 0.005)
				for _, f := range r.Flows {
					wantNear(t, "flow", float64(f), payload/float64(flows), 0.5)
				}
			}
		}
	}
}

// TestLine checks that a line below the policer's rate is filled without a loss.
func TestLine(t *testing.T) {
	r := mustRun(t, Path{RTT: 20 * ms, Line: meter.BitRate(8e6)}, policer(t, meter.BitRate(10e6), 3000))
	wantNear(t, "goodput", float64(r.Goodput), 8e6*1448/1500, 0.001)
	if r.Dropped+r.Retransmits+r.Timeouts != 0 || r.Loss() != 0 {
		t.Errorf("%+v: want no loss", r)
	}
}

// TestSawtooth checks the goodput of a paced flow through a link that can hardly queue. The window
// of Reno goes from a half to the whole of (RTT + queue) * rate, linearly (3/4 on average), that of CUBIC in
// its Reno-friendly region from 0.7 (0.85).
func TestSawtooth(t *testing.T) {
	for control, part := range map[Control]float64{Reno: 0.75, CUBIC: 0.85} {
		r := mustRun(t, Path{RTT: 50 * ms, Control: control, Paced: true, Duration: 2 * time.Minute},
			byTime(meter.BitRate(20e6), 2*ms))
		wantNear(t, control.String(), float64(r.Goodput), part*20e6*1448/1500*52/50, 0.03)
	}
}

// TestPeriodicLoss compares with the formulas for a loss of each k-th packet: Mathis, Semke,
// Mahdavi and Ott, "The macroscopic behavior of the TCP congestion avoidance algorithm", CCR 27,
// 1997, without delayed acknowledgments because windows grow by acknowledged segments; and
// RFC 9438 §5.1, equation 6, which is at least the former (§4.3).
func TestPeriodicLoss(t *testing.T) {
	for _, test := range []struct {
		control Control
		k, rtt  float64 // packets, s
		part    float64 // tolerance
	}{
		{Reno, 400, 0.02, 0.1},
		{Reno, 400, 0.1, 0.1},
		{Reno, 1600, 0.02, 0.06},
		{Reno, 1600, 0.1, 0.06},
		{Reno, 10_000, 0.1, 0.04},
		{Reno, 100_000, 0.02, 0.04},
		// The smaller of two terms is at most two fifths of the larger one, so it hardly adds to it.
		{CUBIC, 1600, 0.02, 0.1},
		{CUBIC, 100_000, 0.1, 0.12},
		{CUBIC, 100_000, 0.2, 0.12},
	} {
		every := dropping(func(n int) bool { return n%int(test.k) == int(test.k)-1 })
		window := math.Sqrt(1.5 * test.k)
		if test.control == CUBIC {
			window = max(window, math.Pow(0.4*3.7/(4*0.3), 0.25)*math.Pow(test.rtt*test.k, 0.75))
		}
		cycle := time.Duration(test.k / window * test.rtt * 1e9)
		for _, paced := range []bool{false, true} {
			r := mustRun(t, Path{
				RTT: time.Duration(test.rtt * 1e9), Control: test.control, Paced: paced, Settle: 3 * cycle,
				Duration: 20 * cycle,
			}, every)
			wantNear(t, fmt.Sprintf("%+v", test), float64(r.Goodput), window*1448*8/test.rtt, test.part)
			wantNear(t, "loss", r.Loss(), 1/test.k, 0.05)
		}
	}
}

// TestSlowStart counts the packets of each round trip: 10 (RFC 6928), then twice as many.
func TestSlowStart(t *testing.T) {
	rounds := make([]int, 5)
	p := Path{RTT: 50 * ms, Settle: -1, Duration: 5*50*ms - 1, Control: Reno}
	mustRun(t, p, func() (gate, error) {
		return func(now int64, _ int) (int64, bool) {
			rounds[now/int64(p.RTT)]++
			return now, true
		}, nil
	})
	if want := []int{10, 20, 40, 80, 160}; !reflect.DeepEqual(rounds, want) {
		t.Errorf("%d packets in each round trip: want %d", rounds, want)
	}
}

// TestRecovery drops single packets and counts what is sent again.
func TestRecovery(t *testing.T) {
	among := func(numbers ...int) func(int) bool {
		return func(n int) bool {
			for _, d := range numbers {
				if n == d {
					return true
				}
			}
			return false
		}
	}
	for _, test := range []struct {
		what                  string
		drop                  func(n int) bool
		window                int64 // segments
		retransmits, timeouts int64
	}{
		{"no loss", among(), 30, 0, 0},
		{"one loss", among(14), 30, 1, 0},
		{"three losses in a window", among(14, 18, 19), 30, 3, 0},
		// Segment 3 is sent again after the 16 packets of two windows: its loss is known by later ones.
		{"a lost retransmission", func() func(int) bool {
			seen := map[int]bool{}
			return func(n int) bool {
				if n == 3 || n == 24 {
					seen[n] = true
					return true
				}
				return false
			}
		}(), 30, 2, 0},
		{"the last of a window", among(9), 30, 1, 0},
		// A probe tells that the window was lost.
		{"a whole window", func(n int) bool { return n < 10 }, 30, 10, 0},
		{"a window and its probe", func(n int) bool { return n < 11 }, 30, 11, 1},
		// With one segment in flight the probe would be later than the timeout.
		{"the only segment", among(0), 1, 1, 1},
	} {
		for _, control := range []Control{CUBIC, Reno} {
			r := mustRun(t, Path{
				RTT: 50 * ms, Settle: -1, Duration: 2 * time.Second, Control: control,
				Window: test.window * 1448,
			}, dropping(test.drop))
			if r.Retransmits != test.retransmits || r.Timeouts != test.timeouts {
				t.Errorf("%s, %v: %d retransmissions and %d timeouts: want %d and %d", test.what, control,
					r.Retransmits, r.Timeouts, test.retransmits, test.timeouts)
			}
		}
	}
}

// TestNothingPasses checks the times of retransmissions if a policer is too small for a packet: a
// probe after two round trips (RFC 8985 §7.2), then timeouts whose distances double.
func TestNothingPasses(t *testing.T) {
	var times []int64
	mustRun(t, Path{RTT: 50 * ms, Settle: -1, Duration: 10 * time.Second}, func() (gate, error) {
		return func(now int64, _ int) (int64, bool) {
			times = append(times, now)
			return now, false
		}, nil
	})
	times = times[10:]
	if len(times) < 4 || times[0] != int64(100*ms) {
		t.Fatalf("packets after the first window at %v: want a probe at 100 ms", times)
	}
	for i := range times[3:] {
		if a, b := times[i+2]-times[i+1], times[i+3]-times[i+2]; b != 2*a || a < minTimeout {
			t.Errorf("timeouts after %d and %d ns: want at least 200 ms, and the double", a, b)
		}
	}
}

// TestPaced checks that pacing spreads packets: a burst of 7 packets then lets several times more
// through.
func TestPaced(t *testing.T) {
	p := Path{RTT: 40 * ms}
	bursts := mustRun(t, p, policer(t, meter.BitRate(50e6), 10_500))
	p.Paced = true
	if paced := mustRun(t, p, policer(t, meter.BitRate(50e6), 10_500)); paced.Goodput < 4*bursts.Goodput {
		t.Errorf("paced %d bit/s, in bursts %d", paced.Goodput, bursts.Goodput)
	}
}

// TestColors checks that yellow packets pass a meter with three colors: twice the rate does.
func TestColors(t *testing.T) {
	p, err := meter.TRTCM{CIR: meter.BitRate(10e6), CBS: 1e5, PIR: meter.BitRate(20e6), PBS: 1e5}.Profile()
	if err != nil {
		t.Fatal(err)
	}
	path := Path{RTT: 20 * ms}
	if got, want := mustRun(t, path, Policer(p)),
		mustRun(t, path, policer(t, meter.BitRate(20e6), 1e5)); !reflect.DeepEqual(got, want) {
		t.Errorf("trTCM %+v: want that of PIR, %+v", got, want)
	}
}

func TestSmallest(t *testing.T) {
	p := Path{RTT: 20 * ms, Paced: true}
	rate := meter.BitRate(10e6)
	var last int64
	for _, target := range []int64{5e6, 7e6, 9e6} {
		burst, r, err := SmallestBurst(p, rate, target)
		if err != nil || r.Goodput < target || burst < last {
			t.Errorf("%d bit/s: burst %d, %+v, %v", target, burst, r, err)
		}
		if again := mustRun(t, p, policer(t, rate, burst)); !reflect.DeepEqual(again, r) {
			t.Errorf("%d bit/s: %+v with the burst: want %+v", target, again, r)
		}
		last = burst
	}
	limit, r, err := SmallestQueue(p, queue.Config{Rate: rate}, 9.6e6)
	if err != nil || r.Goodput < 9.6e6 || limit > 40*ms || limit < ms {
		t.Errorf("queue of %v, %+v, %v", limit, r, err)
	}
	// The headers of packets make 10 Mbit/s of payload impossible.
	if burst, r, err := SmallestBurst(p, rate, 10e6); err != nil || burst != 0 || r.Packets != 0 {
		t.Errorf("burst %d for all of the rate, %+v, %v", burst, r, err)
	}
	if limit, _, err := SmallestQueue(p, queue.Config{Rate: rate}, 10e6); err != nil || limit != 0 {
		t.Errorf("queue %v for all of the rate, %v", limit, err)
	}
}

func TestErrors(t *testing.T) {
	for name, want := range map[string]Control{"cubic": CUBIC, "CUBIC": CUBIC, "reno": Reno} {
		if c, err := ParseControl(name); err != nil || c != want || c.String() != want.String() {
			t.Errorf("%s: %v, %v", name, c, err)
		}
	}
	for _, name := range []string{"bbr", "BBR2", "", "vegas"} {
		if _, err := ParseControl(name); err == nil {
			t.Errorf("%q is a congestion control", name)
		}
	}
	good := policer(t, meter.BitRate(1e6), 10_000)
	for _, p := range []Path{
		{},
		{RTT: time.Minute},
		{RTT: ms, MSS: -1},
		{RTT: ms, MSS: 1 << 20},
		{RTT: ms, Header: -1},
		{RTT: ms, Flows: MaxFlows + 1},
		{RTT: ms, Flows: -1},
		{RTT: ms, Control: 7},
		{RTT: ms, Window: 100},
		{RTT: ms, Duration: -1},
		{RTT: ms, Duration: 2 * time.Hour},
		{RTT: ms, Line: meter.Rate{Bytes: -1, Period: 1}},
	} {
		if _, err := Run(p, good); err == nil {
			t.Errorf("%+v runs", p)
		}
	}
	if _, err := Run(Path{RTT: ms}, byTime(meter.Rate{}, ms)); err == nil {
		t.Error("a queue without a rate runs")
	}
	if _, err := Run(Path{RTT: 10 * time.Microsecond, Duration: time.Hour},
		dropping(func(int) bool { return false })); !errors.Is(err, ErrTooFast) {
		t.Errorf("an unlimited path: %v", err)
	}
}

func BenchmarkRun(b *testing.B) {
	for range b.N {
		mustRun(b, Path{RTT: 40 * ms, Settle: -1, Duration: time.Second, Paced: true},
			policer(b, meter.BitRate(50e6), 250_000))
	}
}
