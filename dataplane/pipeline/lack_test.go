package pipeline

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// TestLack compares Verdict.Lack with the definition, applied to the tokens before the packet
// that Explain of another pipeline returns: a packet of Lack bytes less would have got a
// better color, one of Lack - 1 bytes less would not.
func TestLack(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	kbit := func(n int64) meter.Rate { return meter.BitRate(n * 1000) }
	for _, params := range []meter.Params{
		meter.TokenBucket{Rate: kbit(800), Burst: 4000},
		meter.TokenBucket{Rate: kbit(800), Burst: 4000, Warmup: time.Second},
		meter.SRTCM{CIR: kbit(800), CBS: 3000, EBS: 5000},
		meter.TRTCM{CIR: kbit(400), CBS: 3000, PIR: kbit(800), PBS: 4000},
		meter.TRTCM4115{CIR: kbit(400), CBS: 3000, EIR: kbit(400), EBS: 4000, Coupling: true},
		meter.FixedWindow{Limit: 8000, Window: 20 * time.Millisecond},
		meter.SlidingCounter{Limit: 8000, Window: 20 * time.Millisecond},
	} {
		for _, aware := range []bool{false, true} {
			policy := &dataplane.Policy{Classes: []dataplane.Class{
				{Name: "all", Meter: &dataplane.Meter{Params: params, Aware: aware}},
			}}
			plan, err := compiled.Compile(policy)
			if err != nil {
				t.Fatal(err)
			}
			measured, explained, unmeasured := FromPlan(plan), FromPlan(plan), FromPlan(plan)
			measured.MeasureLack(0)
			lacked, now := map[meter.Color]int{}, int64(0)
			complete := func() bool {
				return lacked[meter.Red] > 0 && (lacked[meter.Yellow] > 0 || len(params.Buckets()) == 1)
			}
			for i := 0; i < 3000 || !complete(); i++ {
				if i == 300_000 {
					t.Fatalf("%T, aware %v: only %v packets lacked tokens", params, aware, lacked)
				}
				// overload and about the rate in turn
				now += r.Int64N([]int64{4e6, 14e6}[i/1500%2])
				n, dscp := 100+r.IntN(1300), []byte{0, 0, 12, 14}[r.IntN(4)] // af12 is yellow, af13 red
				packet := func() *dataplane.Packet {
					return &dataplane.Packet{
						Data:    append([]byte{0x45, dscp << 2, byte(n >> 8), byte(n)}, make([]byte, 16)...),
						WireLen: n, Time: now, Link: dataplane.LinkRaw,
					}
				}
				var v, same dataplane.Verdict
				measured.Process(packet(), &v)
				unmeasured.Process(packet(), &same)
				step := explained.Explain(packet(), new(dataplane.Verdict))[0]
				if same.Lack != 0 {
					t.Fatalf("%v: Lack %d without MeasureLack", params, same.Lack)
				}
				want := wantLack(params, step)
				if int64(v.Lack) != want {
					t.Fatalf("%T, aware %v: %v: got a lack of %d, want %d", params, aware, step, v.Lack, want)
				}
				if want > 0 {
					lacked[v.Color]++
				}
			}
		}
	}
}

// TestLackRuns compares the largest lack of each run of a class and color with that of a pipeline
// that measures every packet, for fates that depend on the color alone and for others.
func TestLackRuns(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	kbit := func(n int64) meter.Rate { return meter.BitRate(n * 1000) }
	const gap = 100 * time.Millisecond
	skipped := 0
	for round := range 40 {
		params := []meter.Params{
			meter.TokenBucket{Rate: kbit(800), Burst: 4000},
			meter.SRTCM{CIR: kbit(800), CBS: 3000, EBS: 5000},
			meter.TRTCM{CIR: kbit(400), CBS: 3000, PIR: kbit(800), PBS: 4000},
			meter.TRTCM4115{CIR: kbit(400), CBS: 3000, EIR: kbit(400), EBS: 4000, Coupling: true},
			meter.SlidingCounter{Limit: 8000, Window: 20 * time.Millisecond},
		}[round%5]
		class := dataplane.Class{Name: "all", Meter: &dataplane.Meter{Params: params, Aware: round%2 == 0}}
		if round%3 == 0 {
			class.Red, class.Yellow = &dataplane.Action{ECN: dataplane.CEOrDrop},
				&dataplane.Action{ECN: dataplane.CEOrDrop}
		}
		plan, err := compiled.Compile(&dataplane.Policy{Classes: []dataplane.Class{class}})
		if err != nil {
			t.Fatal(err)
		}
		each, runs := FromPlan(plan), FromPlan(plan)
		each.MeasureLack(0)
		runs.MeasureLack(gap)
		type state struct {
			last       int64
			want, most int32
		}
		states, now := map[meter.Color]*state{}, int64(0)
		for range 2000 {
			now += r.Int64N([]int64{4e6, 14e6, 150e6}[r.IntN(60)%(r.IntN(3)+1)])
			n, dscp := 100+r.IntN(1300), []byte{0, 0, 12, 14}[r.IntN(4)]
			packet := func() *dataplane.Packet {
				return &dataplane.Packet{
					Data:    append([]byte{0x45, dscp << 2, byte(n >> 8), byte(n)}, make([]byte, 16)...),
					WireLen: n, Time: now, Link: dataplane.LinkRaw,
				}
			}
			var v, w dataplane.Verdict
			each.Process(packet(), &v)
			runs.Process(packet(), &w)
			if w.Lack != 0 && w.Lack != v.Lack {
				t.Fatalf("%T: got a lack of %d, want %d", params, w.Lack, v.Lack)
			}
			s := states[v.Color]
			if s == nil || now-s.last >= int64(gap) {
				s = &state{}
				states[v.Color] = s
			}
			s.last, s.want, s.most = now, max(s.want, v.Lack), max(s.most, w.Lack)
			if s.want != s.most {
				t.Fatalf("%T, %v: a run lacked at most %d, want %d", params, v.Color, s.most, s.want)
			}
			if v.Lack != w.Lack {
				skipped++
			}
		}
	}
	if skipped == 0 {
		t.Error("no packet was skipped")
	}
}

// wantLack is the lack by the clauses of the RFCs: the smallest number of bytes without which
// the packet would have fit a bucket that its color may use.
func wantLack(params meter.Params, s Step) int64 {
	n := int64(s.Length)
	_, peak := params.(meter.TRTCM)
	for less := int64(1); less <= n; less++ {
		b := n - less
		inC, inE := b <= s.TcBefore, b <= s.TeBefore && len(params.Buckets()) > 1
		switch {
		case s.Color == s.In || s.In == meter.Red:
			return 0
		case s.Color == meter.Yellow && inC, s.Color == meter.Red && peak && inE:
			return less
		case s.Color == meter.Red && !peak &&
			(inE || inC && (s.In == meter.Green || len(params.Buckets()) == 1)):
			return less
		}
	}
	return n
}
