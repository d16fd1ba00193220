package kernel

import (
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/a-seed-32e5a53f/shaper/bpf"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// exact is a meter in rational numbers, written from the RFCs. It shares
// nothing with package meter but the structs of parameters.
type exact struct {
	rate, size, holds [2]*big.Rat // bytes per ns, bytes
	color             func(e *exact, n *big.Rat, in meter.Color) meter.Color
	coupled           bool // what C has no room for goes into E
	last              int64
	begun             bool
}

func newExact(params dataplane.Params, initial dataplane.Share) *exact {
	e := &exact{}
	set := func(i int, rate meter.Rate, burst int64) {
		e.rate[i] = new(big.Rat)
		if rate.Bytes > 0 {
			e.rate[i].SetFrac64(rate.Bytes, int64(rate.Period))
		}
		e.size[i] = new(big.Rat).SetInt64(burst)
		e.holds[i] = new(big.Rat).SetInt64(initial.Of(burst))
	}
	switch p := params.(type) {
	case meter.TokenBucket:
		set(0, p.Rate, p.Burst)
		set(1, meter.Rate{}, 0)
		e.color = twoColors
	case meter.SRTCM:
		set(0, p.CIR, p.CBS)
		set(1, meter.Rate{}, p.EBS)
		e.color, e.coupled = eitherBucket, true
	case meter.TRTCM:
		set(0, p.CIR, p.CBS)
		set(1, p.PIR, p.PBS)
		e.color = bothBuckets
	case meter.TRTCM4115:
		set(0, p.CIR, p.CBS)
		set(1, p.EIR, p.EBS)
		e.color, e.coupled = eitherBucket, p.Coupling
	}
	return e
}

// at lets time pass.
func (e *exact) at(now int64) {
	if !e.begun {
		e.begun, e.last = true, now
	}
	dt := new(big.Rat).SetInt(new(big.Int).Sub(big.NewInt(now), big.NewInt(e.last)))
	if dt.Sign() <= 0 {
		return
	}
	e.last = now
	for i := range e.holds {
		e.holds[i].Add(e.holds[i], new(big.Rat).Mul(dt, e.rate[i]))
	}
	over := new(big.Rat).Sub(e.holds[0], e.size[0])
	if over.Sign() > 0 {
		e.holds[0].Set(e.size[0])
		if e.coupled {
			e.holds[1].Add(e.holds[1], over)
		}
	}
	if e.holds[1].Cmp(e.size[1]) > 0 {
		e.holds[1].Set(e.size[1])
	}
}

// take takes n bytes from a bucket that holds them.
func (e *exact) take(i int, n *big.Rat) bool {
	if e.holds[i].Cmp(n) < 0 {
		return false
	}
	e.holds[i].Sub(e.holds[i], n)
	return true
}

func twoColors(e *exact, n *big.Rat, in meter.Color) meter.Color {
	if in == meter.Red || !e.take(0, n) {
		return meter.Red
	}
	return in
}

// eitherBucket is RFC 2697 and RFC 4115: green takes from C, else from E.
func eitherBucket(e *exact, n *big.Rat, in meter.Color) meter.Color {
	switch {
	case in == meter.Green && e.take(0, n):
		return meter.Green
	case in != meter.Red && e.take(1, n):
		return meter.Yellow
	}
	return meter.Red
}

// bothBuckets is RFC 2698: what passes takes from P, green from C as well.
func bothBuckets(e *exact, n *big.Rat, in meter.Color) meter.Color {
	switch {
	case in == meter.Red || !e.take(1, n):
		return meter.Red
	case in == meter.Green && e.take(0, n):
		return meter.Green
	}
	return meter.Yellow
}

// The color before is read from the DSCP.
var dscpColors = dataplane.PreColor{From: dataplane.DSCP, Map: map[uint32]meter.Color{1: meter.Yellow, 2: meter.Red}}

// bare is an IPv4 header of which only the DSCP says anything; its frame has no
// link header, and the length rule subtracts what it has itself.
func bare(mark uint32, before meter.Color, n int, now int64) dataplane.Packet {
	b := make([]byte, 20)
	b[0], b[1] = 0x45, byte(before)<<2
	return dataplane.Packet{Data: b, WireLen: 20 + n, Link: dataplane.LinkRaw, Mark: mark, Time: now}
}

// streams is a policy of meters, one for every skb mark from 0 on.
func streams(meters []*dataplane.Meter) *dataplane.Policy {
	policy := &dataplane.Policy{Length: dataplane.LengthRule{Overhead: -20}}
	for i, m := range meters {
		policy.Classes = append(policy.Classes, dataplane.Class{
			Name:  fmt.Sprint("mark ", i),
			Match: dataplane.Match{Mark: []dataplane.Range{{First: uint32(i), Last: uint32(i)}}},
			Meter: m,
		})
	}
	return policy
}

// Two periods without a common divisor, ns: rates over them have no unit but
// the product's.
const (
	period1 = 6_000_011 * time.Nanosecond
	period2 = 5_999_989 * time.Nanosecond
)

// anyRate is from 1 bit/s to 400 Gbit/s, in all orders of magnitude.
func anyRate(r *rand.Rand) meter.Rate {
	fast := func(most float64) int64 { return int64(math.Exp(r.Float64() * math.Log(most))) }
	switch r.IntN(6) {
	case 0:
		return bps(pick[int64](r, 1, 2, 3, 7, 64e3, 1e6, 1e7, 1e9, 1e10, 1e11, 4e11))
	case 1:
		return bps(fast(4e11) | 1) // odd: the unit is an eighth of a ns
	case 2:
		return meter.Rate{Bytes: fast(3e5), Period: pick(r, period1, period2)}
	case 3:
		return meter.Rate{Bytes: fast(1e6), Period: time.Duration(1 + r.Int64N(1e7))}
	case 4:
		return meter.Rate{Bytes: 1 + r.Int64N(1000), Period: pick(r, time.Minute, time.Hour, 1000*time.Hour)}
	}
	return bps(fast(4e11))
}

// anyMeter is a meter of any kind, with bursts up to the largest that its
// rates allow.
func anyMeter(r *rand.Rand, kind int) *dataplane.Meter {
	for {
		a, b := anyRate(r), anyRate(r)
		if a.Cmp(b) > 0 {
			a, b = b, a
		}
		if kind > 1 && r.IntN(2) == 0 {
			a, b = b, a
		}
		if kind > 2 && r.IntN(6) == 0 {
			b = meter.Rate{}
		}
		params := func(cb, eb int64) dataplane.Params {
			return [...]dataplane.Params{
				meter.TokenBucket{Rate: a, Burst: cb},
				meter.TRTCM{CIR: a, CBS: cb, PIR: b, PBS: eb},
				meter.SRTCM{CIR: a, CBS: cb, EBS: eb},
				meter.TRTCM4115{CIR: a, CBS: cb, EIR: b, EBS: eb},
				meter.TRTCM4115{CIR: a, CBS: cb, EIR: b, EBS: eb, Coupling: true},
			}[kind]
		}
		profile, err := params(1, 1).Profile()
		if err != nil {
			continue // too fine to be exact
		}
		one, err := profile.Integers()
		if err != nil {
			continue
		}
		burst := func(i int) int64 {
			den := one.Den[i] // what both have in common
			if b := [2]meter.Rate{a, b}[i]; b.Bytes > 0 && !one.Coupled {
				own, err := meter.TokenBucket{Rate: b, Burst: 1}.Profile()
				if err != nil {
					panic(err)
				}
				den = integers(own).Den[0]
			}
			most := int64(1<<59) / den
			return min(most, pick(r, 1, 1, 64, 1500, 1500+r.Int64N(60_000), 65_535, 1e6, 1e9, most-1, most))
		}
		m := &dataplane.Meter{Params: params(burst(0), burst(1)), Aware: r.IntN(3) > 0, PreColor: dscpColors}
		if kind > 1 && r.IntN(8) == 0 {
			m.Params = pick(r, params(burst(0), 0), params(0, burst(1)))
		}
		if profile, err = m.Params.Profile(); err != nil {
			continue
		}
		if _, err := profile.Integers(); err != nil {
			continue
		}
		if r.IntN(3) == 0 {
			m.Initial = dataplane.Share{Num: r.Int64N(4), Den: 3}
		}
		return m
	}
}

// anyGap is the time between two packets of about size bytes: from none to
// years, and all that may be special to the integers of their meter.
func anyGap(r *rand.Rand, s *bpf.ShaperProfile, size int64) int64 {
	special := func(ns uint64) int64 { // up to 70 years, and one more or less
		return max(int64(min(ns, 1<<61))+r.Int64N(3)-1, 0)
	}
	b := &s.Buckets[r.IntN(2)]
	perBytes := func(n int64) int64 { // ns in which about n bytes arrive
		if b.Num == 0 {
			return r.Int64N(1e9)
		}
		ns, _ := new(big.Int).Quo(new(big.Int).Mul(big.NewInt(n), new(big.Int).SetUint64(b.Den)), new(big.Int).SetUint64(b.Num)).Float64()
		return int64(min(ns, 1<<57))
	}
	switch r.IntN(40) {
	case 0:
		return special(s.Horizon)
	case 1:
		return special(b.Full)
	case 2:
		return special(s.Horizon * (1 + r.Uint64N(5)) / 2)
	case 3:
		return r.Int64N(3e16) // a year
	case 4:
		return special(uint64(perBytes(b.Size / int64(b.Den)))) // fills it
	case 5, 6, 7:
		return int64(min(r.Uint64N(s.Horizon)/8, 1<<57))
	case 8, 9, 10, 11, 12, 13:
		return 0
	case 14, 15, 16:
		return r.Int64N(1000)
	case 17, 18, 19:
		return special(uint64(perBytes(size)))
	}
	return perBytes(r.Int64N(2*size + 1))
}

// TestMeters holds the kernel's meters to package meter and to exact
// arithmetic, color by color, and to the last fraction of a token.
func TestMeters(t *testing.T) {
	needRoot(t)
	t.Parallel()
	r := seeded(t)
	var meters []*dataplane.Meter
	for i := range rounds(1000) {
		meters = append(meters, anyMeter(r, i%5))
	}
	// Horizons of microseconds: two rates without a common unit.
	for i := range 3 {
		params := meter.TRTCM{CIR: meter.Rate{Bytes: 600_001, Period: period1}, CBS: 9000, PIR: meter.Rate{Bytes: 150_000_001, Period: period2}, PBS: 12_000}
		meters[i] = &dataplane.Meter{Params: params, Aware: true, PreColor: dscpColors}
	}
	w, err := newWalker(streams(meters), 64)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	var seen [5][3]int
	packets, shortest := 0, uint64(math.MaxUint64)
	for i, m := range meters {
		shortest = min(shortest, w.stages[w.plan.Stage(m)].Profile.Horizon)
		colors := meterStream(t, r, w, uint32(i), m, 200)
		for c, n := range colors {
			seen[i%5][c] += n
			packets += n
		}
		if t.Failed() {
			t.Fatalf("meter %T%+v aware %v initial %v", m.Params, m.Params, m.Aware, m.Initial)
		}
	}
	t.Logf("%d packets, by kind and color %v, shortest horizon %d ns", packets, seen, shortest)
	if shortest > 100_000 {
		t.Errorf("the shortest horizon is %d ns: no state was brought up to date", shortest)
	}
	for kind, colors := range seen {
		for c, n := range colors {
			if n < packets/200 {
				t.Errorf("kind %d: only %d packets are %v", kind, n, meter.Color(c))
			}
		}
	}
}

// meterStream sends packets through a meter of a walker and counts them by
// color.
func meterStream(t *testing.T, r *rand.Rand, w *Walker, mark uint32, m *dataplane.Meter, n int) (colors [3]int) {
	stage := &w.stages[w.plan.Stage(m)]
	profile, err := m.Params.Profile()
	if err != nil {
		t.Fatal(err)
	}
	model := newExact(m.Params, m.Initial)
	cb, eb := profile.Bursts()
	ours := meter.New(profile)
	if m.Initial.Den != 0 {
		ours = meter.NewWithTokens(profile, m.Initial.Of(cb), m.Initial.Of(eb))
	}
	sizes := func() int64 {
		return min(pick(r, 0, 1, 64, 1500, 65_535, r.Int64N(65_536), cb, eb, cb+1, eb+1, cb/2, eb/3, cb-min(cb, 1)), 1<<31)
	}
	now := r.Int64N(1<<62) - 1<<61
	w.now = math.MinInt64 // each meter has a time of its own, and 290 years are soon over
	packets := make([]dataplane.Packet, 0, w.batch)
	verdicts := make([]dataplane.Verdict, w.batch)
	befores := make([]meter.Color, w.batch)
	for n > 0 {
		packets = packets[:0]
		for range min(n, 1+r.IntN(1+r.IntN(w.batch))) {
			size := sizes()
			if gap := anyGap(r, &stage.Profile, size); gap < math.MaxInt64-now {
				now += gap
			}
			before := pick(r, meter.Green, meter.Green, meter.Green, meter.Yellow, meter.Red)
			befores[len(packets)] = before
			packets = append(packets, bare(mark, before, int(size), now))
		}
		n -= len(packets)
		if err := w.Process(packets, verdicts); err != nil {
			t.Fatal(err)
		}
		for i := range packets {
			before := befores[i]
			if !m.Aware {
				before = meter.Green
			}
			length := packets[i].WireLen - 20
			model.at(packets[i].Time)
			want := model.color(model, new(big.Rat).SetInt64(int64(length)), before)
			got := verdicts[i].Color
			if other := ours.Color(packets[i].Time, length, before); got != want || other != want {
				t.Errorf("%d bytes, %v before, at %d: %v by the kernel, %v by package meter: want %v with %v and %v in the buckets",
					length, before, packets[i].Time, got, other, want, model.holds[0], model.holds[1])
				return colors
			}
			colors[got]++
		}
		var state bpf.ShaperState
		if err := w.maps.states.LookupWithFlags(stage.Slot, &state, ebpf.LookupLock); err != nil {
			t.Fatal(err)
		}
		l := levelsAt(&state, &stage.Profile, uint64(now))
		for i, holds := range model.holds {
			den := int64(stage.Profile.Buckets[i].Den)
			if want := new(big.Rat).Mul(holds, new(big.Rat).SetInt64(den)); want.Cmp(new(big.Rat).SetInt64(l[i])) != 0 {
				t.Errorf("at %d: bucket %d holds %d/%d bytes: want %v", now, i, l[i], den, holds)
				return colors
			}
		}
		tc, te, err := w.Tokens(w.plan.Stage(m))
		if err != nil {
			t.Fatal(err)
		}
		if wantC, wantE := ours.Tokens(now); tc != wantC || te != wantE {
			t.Errorf("at %d: %d and %d tokens: want %d and %d", now, tc, te, wantC, wantE)
			return colors
		}
	}
	return colors
}

// TestFirstPacket holds that the clock of a meter begins with its first packet,
// whatever that one's color.
func TestFirstPacket(t *testing.T) {
	needRoot(t)
	t.Parallel()
	var meters []*dataplane.Meter
	var packets []dataplane.Packet
	for _, before := range []meter.Color{meter.Green, meter.Yellow, meter.Red} {
		for _, params := range []dataplane.Params{
			meter.TokenBucket{Rate: bps(8e3), Burst: 2000},
			meter.SRTCM{CIR: bps(8e3), CBS: 2000, EBS: 2000},
			meter.TRTCM{CIR: bps(8e3), CBS: 2000, PIR: bps(9e3), PBS: 2000},
			meter.TRTCM4115{CIR: bps(8e3), CBS: 2000, EIR: bps(8e3), EBS: 2000},
		} {
			mark, now := uint32(len(meters)), int64(len(meters))*1e9
			meters = append(meters, &dataplane.Meter{
				Name:   fmt.Sprintf("%T, %v first", params, before),
				Params: params, Aware: true, PreColor: dscpColors, Initial: dataplane.Share{Num: 0, Den: 1},
			})
			packets = append(packets, bare(mark, before, 1000, now), bare(mark, meter.Green, 1000, now+1e9), bare(mark, meter.Green, 1, now+1e9))
		}
	}
	policy := streams(meters)
	follow(t, policy, walker(1)(t, policy), packets)
}

// TestLateClocks hands in times that go back, as a CPU does that read the clock
// and was slow to the meter: no more is granted than the rate brought by the
// latest time.
func TestLateClocks(t *testing.T) {
	needRoot(t)
	t.Parallel()
	r := seeded(t)
	var meters []*dataplane.Meter
	for i := range rounds(300) {
		m := anyMeter(r, i%5)
		m.Aware = false
		meters = append(meters, m)
	}
	w, err := newWalker(streams(meters), 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	for i, m := range meters {
		stage := &w.stages[w.plan.Stage(m)]
		model := newExact(m.Params, m.Initial)
		var first, latest int64
		var granted [3]int64
		now := r.Int64N(1 << 61)
		for k := range 100 {
			size := min(pick(r, 1, 64, 1500, 65_535, model.whole(0), model.whole(1)/3), 1<<31)
			if gap := anyGap(r, &stage.Profile, size) / (1 + r.Int64N(4)); gap < 1<<62-now {
				now += gap
			}
			at := now
			if r.IntN(2) == 0 {
				at -= min(anyGap(r, &stage.Profile, size), now)
			}
			if k == 0 {
				first, latest = at, at
			}
			latest = max(latest, at)
			w.now = math.MinInt64
			packet, verdict := []dataplane.Packet{bare(uint32(i), meter.Green, int(size), at)}, make([]dataplane.Verdict, 1)
			if err := w.Process(packet, verdict); err != nil {
				t.Fatal(err)
			}
			granted[verdict[0].Color] += size
			if fault := excess(m.Params, model.limits(latest-first), granted); fault != "" {
				t.Fatalf("%T%+v after %d packets, %d ns: %s", m.Params, m.Params, k+1, latest-first, fault)
			}
		}
	}
}

// whole is the size of a bucket in bytes.
func (e *exact) whole(i int) int64 { return e.size[i].Num().Int64() }

// limits is what each bucket of a full meter can have granted after dt ns, in
// bytes.
func (e *exact) limits(dt int64) [2]*big.Rat {
	var out [2]*big.Rat
	for i := range out {
		out[i] = new(big.Rat).Mul(e.rate[i], new(big.Rat).SetInt64(dt))
		out[i].Add(out[i], e.size[i])
	}
	return out
}

// excess says which limit of a meter's RFC the bytes granted by color are
// above, or nothing.
func excess(params dataplane.Params, limits [2]*big.Rat, granted [3]int64) string {
	green, yellow := granted[meter.Green], granted[meter.Yellow]
	above := func(name string, n int64, limit *big.Rat) string {
		if new(big.Rat).SetInt64(n).Cmp(limit) > 0 {
			return fmt.Sprintf("%d bytes %s are above the limit, %s", n, name, limit.FloatString(3))
		}
		return ""
	}
	if fault := above("green", green, limits[0]); fault != "" {
		return fault
	}
	both := new(big.Rat).Add(limits[0], limits[1])
	switch p := params.(type) {
	case meter.TRTCM:
		return above("green and yellow", green+yellow, limits[1])
	case meter.TRTCM4115:
		if !p.Coupling {
			return above("yellow", yellow, limits[1])
		}
	}
	return above("green and yellow", green+yellow, both)
}

// TestCarry holds the change to another profile to exact arithmetic: each
// bucket keeps its bytes, rounded down to its units and cut to its burst.
func TestCarry(t *testing.T) {
	t.Parallel()
	r := seeded(t)
	for range 20_000 {
		var stages [2]bpf.ShaperProfile
		var params [2]dataplane.Params
		for i := range stages {
			params[i] = anyMeter(r, r.IntN(5)).Params
			profile, err := params[i].Profile()
			if err != nil {
				t.Fatal(err)
			}
			stages[i] = encodeProfile(integers(profile))
		}
		from, to := &stages[0], &stages[1]
		var l levels
		for i := range l {
			most := from.Buckets[i].Size
			l[i] = min(most, pick(r, 0, 1, 2, most, r.Int64N(most+1)))
		}
		got := l.convert(from, to)
		for i := range got {
			was, den := int64(from.Buckets[i].Den), int64(to.Buckets[i].Den)
			want := new(big.Rat).SetFrac64(l[i], was)
			want.Mul(want, new(big.Rat).SetInt64(den/halves)) // whole units of the new profile
			units := new(big.Int).Quo(want.Num(), want.Denom())
			if most := big.NewInt(to.Buckets[i].Size / halves); units.Cmp(most) > 0 {
				units = most
			}
			if got[i] != halves*units.Int64() {
				t.Fatalf("bucket %d: %d/%d bytes of %T%+v became %d/%d of %T%+v: want %d",
					i, l[i], was, params[0], params[0], got[i], den, params[1], params[1], halves*units.Int64())
			}
		}
		if same := l.convert(from, from); same != (levels{l[0] &^ 1, l[1] &^ 1}) {
			t.Fatalf("%v of %T%+v became %v under the same profile", l, params[0], params[0], same)
		}
	}
}

// TestLevels holds that a state says the levels it was made of, at once and
// later, where the lock's bit is set, and where its clock waits.
func TestLevels(t *testing.T) {
	t.Parallel()
	r := seeded(t)
	for range 20_000 {
		m := anyMeter(r, r.IntN(5))
		profile, err := m.Params.Profile()
		if err != nil {
			t.Fatal(err)
		}
		s := encodeProfile(integers(profile))
		var l levels
		for i := range l {
			most := s.Buckets[i].Size / halves
			l[i] = halves * min(most, pick(r, 0, 1, r.Int64N(most+1), most))
		}
		now := r.Uint64N(1 << 62)
		state := l.state(now, &s)
		if got := levelsAt(&state, &s, now); got != l {
			t.Fatalf("%T%+v: %v at %d is read as %v", m.Params, m.Params, l, now, got)
		}
		if got := levelsAt(&state, &s, now-r.Uint64N(now+1)); got != l {
			t.Fatalf("%T%+v: %v at %d is read as %v before", m.Params, m.Params, l, now, got)
		}
		waiting := l.unstartedState(&s)
		if got := levelsAt(&waiting, &s, now); got != l {
			t.Fatalf("%T%+v: %v is read as %v while the clock waits", m.Params, m.Params, l, got)
		}
		dt := uint64(anyGap(r, &s, 1500))
		for i := range state.Word {
			state.Word[i] |= closed
		}
		model := newExact(m.Params, dataplane.Share{})
		model.at(0)
		for i := range l {
			model.holds[i].SetFrac64(l[i], int64(s.Buckets[i].Den))
		}
		model.at(int64(dt))
		got := levelsAt(&state, &s, now+dt)
		for i, holds := range model.holds {
			if want := new(big.Rat).Mul(holds, new(big.Rat).SetInt64(int64(s.Buckets[i].Den))); want.Cmp(new(big.Rat).SetInt64(got[i])) != 0 {
				t.Fatalf("%T%+v: %v at %d is %v after %d ns: want %v in bucket %d", m.Params, m.Params, l, now, got, dt, want, i)
			}
		}
	}
}

// TestStatsWrap holds that counters go around at 2^63, and are never negative.
func TestStatsWrap(t *testing.T) {
	needRoot(t)
	t.Parallel()
	shared, err := newStateMaps()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(shared.close)
	if err := shared.grow(&image{}); err != nil {
		t.Fatal(err)
	}
	perCPU := make([]bpf.ShaperCounts, ebpf.MustPossibleCPU())
	var packets, bytes uint64
	for i := range perCPU {
		c := &perCPU[i]
		c.Colors[1].Packets, c.Colors[1].Bytes = math.MaxUint64-uint64(i), 1<<63-5+uint64(i)
		c.Drops[2][1].Packets, c.Marked[0].Bytes = 1<<63, math.MaxUint64
		c.Ce[1].Bytes = math.MaxUint64
		packets += c.Colors[1].Packets
		bytes += c.Colors[1].Bytes
	}
	if err := shared.counters.Put(uint32(3), perCPU); err != nil {
		t.Fatal(err)
	}
	for i := range perCPU {
		perCPU[i] = bpf.ShaperCounts{}
		perCPU[i].Colors[0].Packets = 1<<63 + 1
	}
	if err := shared.counters.Put(uint32(0), perCPU); err != nil {
		t.Fatal(err)
	}
	got, err := readStats(shared.counters, []bpf.ShaperClass{{Slot: 3}, {Slot: 1}})
	if err != nil {
		t.Fatal(err)
	}
	cpus := int64(len(perCPU))
	want := make([]dataplane.ClassStats, 3)
	want[0].Colors[1] = dataplane.Count{Packets: int64(packets & math.MaxInt64), Bytes: int64(bytes & math.MaxInt64)}
	want[0].Marked[0].Bytes = math.MaxInt64 - cpus + 1
	want[0].CE[1].Bytes = math.MaxInt64 - cpus + 1
	want[2].Untaken.Packets = cpus
	for i := range got {
		if got[i] != want[i] {
			t.Errorf("entry %d: %+v: want %+v", i, got[i], want[i])
		}
	}
}

func integers(p *meter.Profile) meter.Integers {
	i, err := p.Integers()
	if err != nil {
		panic(err)
	}
	return i
}
