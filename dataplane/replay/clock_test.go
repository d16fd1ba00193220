package replay

import (
	"bytes"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// timesOf replays a capture and returns the time and the timestamp of each packet.
func timesOf(t *testing.T, in []byte, cfg Config) (times, stamps []int64, s Summary) {
	t.Helper()
	cfg.Each = func(p *dataplane.Packet, _ *dataplane.Verdict) error {
		times, stamps = append(times, p.Time), append(stamps, p.Time-p.Shift)
		return nil
	}
	s, err := Run(t.Context(), bytes.NewReader(in), transparent(t), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return times, stamps, s
}

// TestClockSteps checks the times of packets around steps of the capture's clock.
func TestClockSteps(t *testing.T) {
	const hour, day = 3600_000, 24 * 3600_000
	for _, test := range []struct {
		name       string
		stamps, at []int64 // ms
		steps      int64
	}{
		{"reordering", []int64{5000, 4000, 5001}, []int64{5000, 4000, 5001}, 0},
		{"set back", []int64{2 * hour, hour, hour + 10, hour + 500}, []int64{2 * hour, 2 * hour, 2*hour + 10, 2*hour + 500}, 1},
		{"set back by little", []int64{10_000, 8500, 9400}, []int64{10_000, 10_000, 10_900}, 1},
		{"set back, then a pause", []int64{2 * hour, hour, hour + hour/2}, []int64{2 * hour, 2 * hour, 2*hour + hour/2}, 1},
		{"set back twice", []int64{5 * hour, 3 * hour, 3*hour + 10, hour, hour + 10}, []int64{5 * hour, 5 * hour, 5*hour + 10, 5*hour + 10, 5*hour + 20}, 2},
		{"set back, then a pause that passes the earlier clock", []int64{100_000, 90_000, 101_001}, []int64{100_000, 100_000, 111_001}, 1},
		{"set back, and right again after a second", []int64{100_000, 90_000, 101_000}, []int64{100_000, 100_000, 101_000}, 1},
		{"set back, and right again", []int64{5 * hour, hour, hour + 10, 5*hour + 30}, []int64{5 * hour, 5 * hour, 5*hour + 10, 5*hour + 30}, 1},
		{"a pause of a day", []int64{5, 5 + day}, []int64{5, 5 + day}, 0},
		{"set ahead by more", []int64{5, 6 + day, 7 + day}, []int64{5, 5, 6}, 1},
		{"set ahead, reordered", []int64{5, 6 + day, 5 + day, 8 + day}, []int64{5, 5, 4, 7}, 1},
		{"a late packet", []int64{9000, 9010, 4000, 9020}, []int64{9000, 9010, 9010, 9020}, 1},
		{"interfaces with different clocks", []int64{2 * hour, hour, 2*hour + 10, hour + 12, 2*hour + 20, hour + 20}, []int64{2 * hour, 2 * hour, 2*hour + 10, 2*hour + 12, 2*hour + 20, 2*hour + 20}, 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			in := littleEndian().pcap(magicMicro, ethernet)
			for i, ms := range test.stamps {
				in.packet(uint32(ms/1000), uint32(ms%1000*1000), ethernetFrame(ipv4(100, 0, uint16(i))))
			}
			times, stamps, s := timesOf(t, in.bytes, Config{})
			for i := range times {
				if times[i] != test.at[i]*1e6 || stamps[i] != test.stamps[i]*1e6 {
					t.Errorf("packet %d: time %d, timestamp %d, want %d and %d ms", i+1, times[i], stamps[i],
						test.at[i], test.stamps[i])
				}
			}
			if s.Steps != test.steps || s.First != times[0] || s.Last != slices.Max(times) {
				t.Errorf("got %+v, want %d steps", s, test.steps)
			}
		})
	}
}

// TestClockUntimed checks that packets before the first timestamp have no clock: that timestamp is no
// step, and the capture begins there.
func TestClockUntimed(t *testing.T) {
	const start = 1_700_000_000_000_000 // µs
	frame := ethernetFrame(ipv4(100, 0, 1))
	section := func() *capture {
		c := littleEndian().section()
		// -1 s
		return c.iface(ethernet, 0, c.option(optionTSOffset, c.AppendUint64(nil, uint64(math.MaxUint64))...))
	}
	for name, test := range map[string]struct {
		in          *capture
		at          []int64 // ms after the first timestamp; -1: time 0
		first, last int64   // ms after the first timestamp, -1: time 0
	}{
		"one first":    {section().simple(frame).enhanced(0, start, frame).enhanced(0, start+5000, frame), []int64{-1, 0, 5}, 0, 5},
		"some first":   {section().simple(frame).simple(frame).enhanced(0, start, frame).simple(frame), []int64{-1, -1, 0, 0}, 0, 0},
		"in 1970":      {section().simple(frame).enhanced(0, 5e6, frame).enhanced(0, 6e6, frame), []int64{-1, 0, 1000}, 0, 1000},
		"all":          {section().simple(frame).simple(frame), []int64{-1, -1}, -1, -1},
		"none":         {section().enhanced(0, start, frame), []int64{0}, 0, 0},
		"late, behind": {section().simple(frame).enhanced(0, start, frame).enhanced(0, start-3000, frame).simple(frame), []int64{-1, 0, -3, -3}, 0, 0},
	} {
		zero := int64(start-1e6) * 1000 // of the first timestamp, ns
		if name == "in 1970" {
			zero = 4e9
		}
		ns := func(ms int64) int64 {
			if ms == -1 {
				return 0
			}
			return zero + ms*1e6
		}
		times, stamps, s := timesOf(t, test.in.bytes, Config{})
		for i, ms := range test.at {
			if want := ns(ms); times[i] != want || stamps[i] != want {
				t.Errorf("%s: packet %d: time %d, timestamp %d, want %d", name, i+1, times[i], stamps[i],
					want)
			}
		}
		behind := name == "late, behind"
		if s.Steps != 0 || s.First != ns(test.first) || s.Last != ns(test.last) || len(s.Warnings) > 0 &&
			!behind {
			t.Errorf("%s: %d steps, from %d to %d, warnings %q", name, s.Steps, s.First, s.Last, s.Warnings)
		}
	}
}

// TestClockMonotonic compares the times of a replay with those of a device, which meters by a clock that
// nobody sets: packets are apart by the same time, but for the pause at a step.
func TestClockMonotonic(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for range 50 {
		in := littleEndian().pcap(magicNano, ethernet)
		var device []int64 // the device's time of each packet, ns
		var stepped []bool
		steps, now, offset := int64(0), int64(0), int64(2_000_000_000e9)
		for i := range 400 {
			now += r.Int64N(900e6)
			step := i > 0 && r.IntN(40) == 0
			if step {
				steps++
				if r.IntN(4) == 0 {
					offset += 25*3600e9 + r.Int64N(1e16)
				} else {
					offset -= 3600e9 + r.Int64N(1e16)
				}
			}
			stamp := offset + now
			in.packet(uint32(stamp/1e9), uint32(stamp%1e9), ethernetFrame(ipv4(100, 0, uint16(i))))
			device, stepped = append(device, now), append(stepped, step)
		}
		times, _, s := timesOf(t, in.bytes, Config{})
		if s.Steps != steps {
			t.Errorf("got %d steps, want %d: %q", s.Steps, steps, s.Warnings)
		}
		for i := 1; i < len(times); i++ {
			want := device[i] - device[i-1]
			if stepped[i] {
				want = 0
			}
			if got := times[i] - times[i-1]; got != want {
				t.Fatalf("packet %d: %d ns after the previous one, want %d", i+1, got, want)
			}
		}
	}
}

// TestClockHostile replays random timestamps. The time never leaves the supported range, and advances by no
// more than the largest pause at once.
func TestClockHostile(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for range 20 {
		c := littleEndian().section()
		c.iface(ethernet, 0, c.resolution(9))
		stamp := uint64(0)
		for i := range 2000 {
			switch r.IntN(3) {
			case 0:
				stamp = r.Uint64N(uint64(lastTime))
			case 1:
				stamp = min(stamp+r.Uint64N(1<<uint(r.IntN(63))), uint64(lastTime))
			default:
				stamp -= min(stamp, r.Uint64N(1<<uint(r.IntN(63))))
			}
			c.enhanced(0, stamp, ethernetFrame(ipv4(100, 0, uint16(i))))
		}
		gap := time.Duration(1 + r.Int64N(math.MaxInt64))
		times, _, _ := timesOf(t, c.bytes,
			Config{MaxGap: gap, MaxStep: time.Duration(1 + r.Int64N(1<<uint(r.IntN(63))))})
		latest := times[0]
		for i, at := range times {
			if at > lastTime || at > latest && at-latest > int64(gap) {
				t.Fatalf("packet %d at %d ns, %d after the latest one", i+1, at, at-latest)
			}
			latest = max(latest, at)
		}
	}
}

// TestStepOutput checks that queued packets depart by the clock of their own timestamps, also if a
// link settles them after a step.
func TestStepOutput(t *testing.T) {
	in := littleEndian().pcap(magicMicro, ethernet)
	for i, at := range []uint32{1000, 1000, 100, 100} { // s
		in.packet(at, 0, ethernetFrame(ipv4(100, 0, uint16(i))))
	}
	for name, link := range map[string]*dataplane.Link{"queue": nil, "link": {Name: "wan", Rate: byteRate}} {
		q := &dataplane.Queue{Name: "q", Config: queue.Config{Packets: 10}, Link: link}
		if link == nil {
			q.Rate = byteRate
		}
		out, _ := mustReplay(t, in.bytes,
			newPipeline(t, dataplane.Class{Name: "all", Green: &dataplane.Action{Queue: q}}))
		var got []int64
		for _, p := range readBack(t, out) {
			got = append(got, p.at)
		}
		// One byte per µs, all at one time: each departs 100 µs after the one before.
		if want := []int64{1000e9, 1000e9 + 100e3, 100e9 + 200e3, 100e9 + 300e3}; !slices.Equal(got, want) {
			t.Errorf("%s: departures %d, want %d", name, got, want)
		}
	}
}

// TestStepMeters checks that a step of an hour back costs no tokens, and one ahead gives none.
func TestStepMeters(t *testing.T) {
	for _, step := range []int64{-3600, 48 * 3600} {
		in := littleEndian().pcap(magicMicro, ethernet)
		for i := range int64(1000) { // 100 bytes each 100 µs, one byte per µs
			at := 1_700_000_000_000_000 + 100*i
			if i >= 500 {
				at += step * 1e6
			}
			in.packet(uint32(at/1e6), uint32(at%1e6), ethernetFrame(ipv4(100, 0, uint16(i))))
		}
		p := newPipeline(t, dataplane.Class{
			Name:  "all",
			Meter: &dataplane.Meter{Name: "m", Params: meter.TokenBucket{Rate: byteRate, Burst: 199}},
		})
		if _, err := Run(t.Context(), bytes.NewReader(in.bytes), p, Config{}); err != nil {
			t.Fatal(err)
		}
		// The pause at the step, 100 µs, is not refilled: of 199 tokens at a packet, 99 remain.
		if red := p.Stats()[0].Colors[meter.Red].Packets; red != 1 {
			t.Errorf("a step of %d s: %d red packets, want the one at the step", step, red)
		}
	}
}
