package tcpmodel

import (
	"errors"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/meter"
)

// FuzzRun checks of any path that it ends, that the bottleneck passes no more than its bound, that
// the counts agree with each other, and that a second run has the same result.
func FuzzRun(f *testing.F) {
	f.Add(uint32(40_000), uint16(1448), uint32(50_000), uint32(32768), uint8(1), uint8(0), uint32(0),
		uint16(0))
	f.Add(uint32(5_000), uint16(1448), uint32(10_000), uint32(10_000), uint8(4), uint8(1), uint32(20_000),
		uint16(64))
	f.Add(uint32(100_000), uint16(536), uint32(2_000), uint32(600), uint8(200), uint8(2), uint32(0),
		uint16(1))
	f.Add(uint32(100), uint16(1), uint32(1_000), uint32(52), uint8(30), uint8(7), uint32(500), uint16(0))
	f.Fuzz(func(
		t *testing.T, rtt uint32, mss uint16, kbit, size uint32, flows, kind uint8,
		line uint32, window uint16,
	) {
		p := Path{
			RTT:      time.Duration(rtt) * time.Microsecond,
			MSS:      int(mss),
			Flows:    int(flows),
			Control:  Control(kind & 1),
			Paced:    kind&2 > 0,
			Window:   int64(window) * int64(mss),
			Settle:   -1,
			Duration: time.Second,
		}
		if line > 0 {
			p.Line = meter.BitRate(int64(line) * 1000)
		}
		kbit = min(kbit, 20_000*uint32(max(mss, 1))/1000) // 2,500 packets
		rate := meter.BitRate(int64(kbit) * 1000)
		bottleneck := byTime(rate, time.Duration(size)*time.Microsecond)
		bound := int64(0)
		if kind&4 == 0 {
			profile, err := meter.TokenBucket{Rate: rate, Burst: int64(size)}.Profile()
			if err != nil {
				return
			}
			bottleneck, bound = Policer(profile), int64(size)*8
		}
		r, err := Run(p, bottleneck)
		if err != nil {
			if errors.Is(err, ErrTooFast) {
				t.Error(err)
			}
			return
		}
		full, _ := p.withDefaults()
		if most := int64(kbit)*1000 + bound + 8*int64(full.packet()); r.Passed > most ||
			r.Goodput > r.Passed {
			t.Errorf("%d of %d bit/s passed, goodput %d: %+v", r.Passed, most, r.Goodput, p)
		}
		if r.Dropped > r.Packets || r.Loss() > 1 {
			t.Errorf("%+v: %+v", r, p)
		}
		if again, _ := Run(p, bottleneck); !reflect.DeepEqual(again, r) {
			t.Errorf("%+v, then %+v: %+v", r, again, p)
		}
		admit, err := bottleneck()
		if err != nil {
			t.Fatal(err)
		}
		n, err := newNetwork(full, admit)
		if err != nil {
			t.Fatal(err)
		}
		for end := int64(0); end < int64(full.Duration); end += int64(full.Duration) / 8 {
			if err := n.run(end); err != nil {
				t.Fatal(err)
			}
			for _, f := range n.flows[:n.started] {
				checkFlow(t, f)
			}
		}
	})
}

// checkFlow compares the counts of a sender with its segments.
func checkFlow(t *testing.T, f *flow) {
	t.Helper()
	var inflight, sacked, marked int64
	var waiting []int64
	for seq := f.segments.first; seq < f.segments.end; seq++ {
		s := f.segments.at(seq)
		switch s.fate {
		case flying:
			inflight++
		case delivered:
			sacked++
		case lost:
			waiting = append(waiting, seq)
		}
		if s.marked {
			marked++
		}
	}
	if inflight != f.inflight || sacked != f.sacked || marked != f.marked {
		t.Errorf("%d in flight, %d delivered, %d marked: counted %d, %d, %d", inflight, sacked, marked,
			f.inflight, f.sacked, f.marked)
	}
	var popped []int64
	for seq, ok := f.nextLost(); ok; seq, ok = f.nextLost() {
		popped = append(popped, seq)
	}
	if !slices.Equal(popped, waiting) {
		t.Errorf("%d wait to be sent again: want %d", popped, waiting)
	}
	for _, seq := range popped {
		f.waiting.push(seq)
	}
	if f.cwnd < 1 || f.due == infinite && f.wake == infinite && f.segments.len() > 0 {
		t.Errorf("window of %d, timers %d and %d", f.cwnd, f.due, f.wake)
	}
}

// TestCubeRoot checks that the root is rounded down.
func TestCubeRoot(t *testing.T) {
	for _, x := range []uint64{
		0, 1, 7, 8, 9, 26, 27, 63, 64, 1 << 30, 1<<30 - 1, 1<<60 - 1, 1 << 60, 2_684_354_560,
		9_000_000_000_000_000_000,
	} {
		r := uint64(cubeRoot(x))
		if r*r*r > x || (r+1)*(r+1)*(r+1) <= x {
			t.Errorf("%d: %d", x, r)
		}
	}
}
