package meter

import (
	"math/big"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

// slowEnvelope implements MEF 10.3 §12 in exact arithmetic. Ranks are numbered as in the
// standard: n is the highest, 1 the lowest.
type slowEnvelope struct {
	params EnvelopeParams
	tc, te []*big.Rat
	last   int64
	begun  bool
}

func newSlowEnvelope(t EnvelopeParams) *slowEnvelope {
	e := &slowEnvelope{params: t}
	for _, f := range t.Flows {
		e.tc, e.te = append(e.tc, ratOf(f.Buckets.CBS)), append(e.te, ratOf(f.Buckets.EBS))
	}
	return e
}

// receive adds min(rate * dt + others, limit * dt) to a bucket, and returns the overflow.
func receive(bucket *big.Rat, size int64, dt *big.Rat, rate Rate, limit *Rate, others ...*big.Rat) *big.Rat {
	tokens := new(big.Rat).Mul(rational(rate), dt)
	for _, o := range others {
		tokens.Add(tokens, o)
	}
	if limit != nil {
		tokens = lesser(tokens, new(big.Rat).Mul(rational(*limit), dt))
	}
	full := new(big.Rat).Add(bucket, tokens)
	bucket.Set(lesser(full, ratOf(size)))
	return full.Sub(full, bucket)
}

func (e *slowEnvelope) color(flow int, now int64, n int, in Color) Color {
	if !e.begun {
		e.begun, e.last = true, now
	}
	dt := new(big.Rat).SetInt(nsSince(max(now, e.last), e.last))
	e.last = max(now, e.last)

	ranks := len(e.params.Flows)
	at := func(rank int) int { return ranks - rank }
	couples := func(rank int) bool {
		if rank == 0 {
			return e.params.Coupling
		}
		return e.params.Flows[at(rank)].Buckets.Coupling
	}
	none := new(big.Rat)
	green, yellow := make([]*big.Rat, ranks+2), make([]*big.Rat, ranks+2) // overflow by rank
	green[ranks+1], yellow[ranks+1] = none, none
	for rank := ranks; rank >= 1; rank-- {
		f, above := e.params.Flows[at(rank)], green[rank+1]
		if rank < ranks && couples(rank+1) {
			above = none
		}
		green[rank] = receive(e.tc[at(rank)], f.Buckets.CBS, dt, f.Buckets.CIR, f.CIRMax, above)
	}
	for rank := ranks; rank >= 1; rank-- {
		f, own, lowest := e.params.Flows[at(rank)], none, none
		if couples(rank) {
			own = green[rank]
		}
		if rank == ranks && couples(0) {
			lowest = green[1]
		}
		yellow[rank] = receive(e.te[at(rank)], f.Buckets.EBS, dt, f.Buckets.EIR, f.EIRMax, yellow[rank+1],
			own, lowest)
	}

	b := ratOf(int64(n))
	switch {
	case n >= 0 && in == Green && b.Cmp(e.tc[flow]) <= 0:
		e.tc[flow].Sub(e.tc[flow], b)
		return Green
	case n >= 0 && in != Red && b.Cmp(e.te[flow]) <= 0:
		e.te[flow].Sub(e.te[flow], b)
		return Yellow
	}
	return Red
}

func randomEnvelope(r *rand.Rand) EnvelopeParams {
	odd := pick(r, BitRate(1+r.Int64N(1e9)), Rate{1 + r.Int64N(50), time.Duration(1 + r.Int64N(50))})
	rate := func() Rate { return pick(r, Rate{}, BitRate(8e6), BitRate(24e9), Rate{1, 3}, odd) }
	limit := func() *Rate { return pick(r, nil, nil, new(rate())) }
	all := [2]*Rate{limit(), limit()}
	t := EnvelopeParams{Coupling: r.IntN(3) == 0}
	for range 1 + r.IntN(pick(r, 3, 3, 3, 20)) {
		f := TRTCM4115{
			CIR: rate(), CBS: r.Int64N(3000), EIR: rate(), EBS: 1 + r.Int64N(3000),
			Coupling: !t.Coupling && r.IntN(2) == 0,
		}
		if r.IntN(5) == 0 {
			f.CBS, f.EBS = f.EBS, 0
		}
		t.Flows = append(t.Flows, EnvelopeFlow{f, pick(r, all[0], limit()), pick(r, all[1], limit())})
	}
	return t
}

func compareEnvelope(t *testing.T, r *rand.Rand, params EnvelopeParams, packets int) {
	t.Helper()
	e, err := NewEnvelope(params)
	if err != nil {
		return // more than 64 bits count exactly
	}
	o := newSlowEnvelope(params)
	for i, f := range params.Flows {
		if r.IntN(3) == 0 {
			c, x := r.Int64N(f.Buckets.CBS+2)-1, r.Int64N(f.Buckets.EBS+1)
			e.SetTokens(i, c, x)
			o.tc[i], o.te[i] = ratOf(min(max(c, 0), f.Buckets.CBS)), ratOf(x)
		}
	}
	now := pick(r, 0, -5, -1<<61, 1e18, r.Int64N(1e18))
	for i := range packets {
		flow := r.IntN(len(params.Flows))
		f := params.Flows[flow].Buckets
		tc, te := e.Tokens(flow, now)
		n := int(pick(r, tc+r.Int64N(3)-1, te+r.Int64N(3)-1, f.CBS, f.EBS+1, 0, r.Int64N(100), -1, 1<<62))
		in := Color(max(r.IntN(6)-3, 0))
		var got Color
		if x := (Explanation{}); r.IntN(2) == 0 {
			x = e.Explain(flow, now, n, in)
			got = x.Color
			if x.TcBefore != tc || x.TeBefore != te || x.Clause.Text() == "" ||
				!strings.HasPrefix(x.Clause.String(), "rfc4115-") {
				t.Fatalf("got %+v, want %d, %d tokens before and a clause of RFC 4115", x, tc, te)
			}
		} else {
			got = e.Color(flow, now, n, in)
		}
		if want := o.color(flow, now, n, in); got != want {
			t.Fatalf("%+v packet %d: flow %d, %d B at %d, input %v: %v, model %v", params, i, flow, n, now,
				in, got, want)
		}
		for j := range params.Flows {
			tc, te := e.Tokens(j, now)
			if wantC, wantE := floorOf(o.tc[j]), floorOf(o.te[j]); tc != wantC || te != wantE {
				t.Fatalf("%+v packet %d at %d: flow %d of %d has %d, %d; model %d, %d", params, i, now, j,
					len(params.Flows), tc, te, wantC, wantE)
			}
		}
		now += pick(r, 0, 0, 1, r.Int64N(100), r.Int64N(1e4), r.Int64N(1e6), -r.Int64N(1000), r.Int64N(1e10))
		if r.IntN(50) == 0 && now < 1<<61 {
			now += r.Int64N(1 << 61)
		}
	}
}

func TestEnvelope(t *testing.T) {
	r := logged(t)
	for range 300 {
		compareEnvelope(t, r, randomEnvelope(r), 40)
	}
}

// TestEnvelopeFlags tries every combination of the coupling flags of an envelope and its
// flows. Exactly those that [R150] of MEF 10.3 forbids are rejected.
func TestEnvelopeFlags(t *testing.T) {
	r := logged(t)
	for n := 1; n <= 4; n++ {
		for flags := range 1 << n {
			for _, cf0 := range []bool{false, true} {
				params := EnvelopeParams{Coupling: cf0}
				for i := range n {
					params.Flows = append(params.Flows, EnvelopeFlow{
						TRTCM4115{
							CIR: BitRate(8e6), CBS: 100, EIR: BitRate(4e6), EBS: 150,
							Coupling: flags>>i&1 == 1,
						},
						pick(r, nil, new(BitRate(12e6))), pick(r, nil, new(BitRate(7e6))),
					})
				}
				refused := cf0 && flags != 0
				if _, err := NewEnvelope(params); (err != nil) != refused {
					t.Errorf("%d flows, CF %b, CF0 %v: got %v, want an error: %v", n, flags, cf0, err,
						refused)
				}
				compareEnvelope(t, r, params, 30)
			}
		}
	}
}

// TestEnvelopeBounds has the largest number of units, in many idle flows: the overflow
// of each adds to that of the next.
func TestEnvelopeBounds(t *testing.T) {
	r := logged(t)
	for _, flows := range []int{2, 8, 16, 17, 64} {
		for _, coupling := range []string{"none", "flows", "envelope"} {
			params := EnvelopeParams{Coupling: coupling == "envelope"}
			burst := int64(72057594 / 2 / flows)
			for range flows {
				flow := TRTCM4115{
					CIR: BitRate(1e9 + 1), CBS: burst,
					EIR: BitRate(1e9 + 1), EBS: burst,
					Coupling: coupling == "flows",
				}
				params.Flows = append(params.Flows, EnvelopeFlow{Buckets: flow})
			}
			compareEnvelope(t, r, params, 4)
			e, _ := NewEnvelope(params)
			e.Color(0, 0, 10, Green)
			e.Color(flows-1, 1e12, 0, Red)
			if tc, te := e.Tokens(flows-1, 1e12); tc != burst || te != burst {
				t.Errorf("%d flows, coupling of %s: %d, %d left, want %d", flows, coupling, tc, te, burst)
			}
		}
	}
	one := Rate{1, 1} // one unit in a byte
	for _, test := range []struct {
		params EnvelopeParams
		valid  bool
	}{
		{envelopeOf(TRTCM4115{CIR: one, CBS: 1 << 58, EBS: 1 << 57}, TRTCM4115{CIR: one, CBS: 1 << 57}), true},
		{envelopeOf(TRTCM4115{CIR: one, CBS: 1 << 58, EBS: 1 << 57}, TRTCM4115{CIR: one, CBS: 1<<57 + 1}), false},
		{envelopeOf(TRTCM4115{CIR: Rate{1 << 50, 1}, CBS: 1}), true},
		{envelopeOf(TRTCM4115{CIR: Rate{1<<50 + 1, 1}, CBS: 1}), false},
	} {
		if _, err := NewEnvelope(test.params); (err == nil) != test.valid {
			t.Errorf("%+v: got %v, want valid: %v", test.params, err, test.valid)
		}
	}
}

func TestEnvelopeAllocatesNothing(t *testing.T) {
	flow := TRTCM4115{CIR: BitRate(8e6), CBS: 100, EIR: BitRate(8e6), EBS: 100}
	params := envelopeOf(flow, flow, flow)
	params.Coupling, params.Flows[1].EIRMax = true, new(BitRate(9e6))
	e, err := NewEnvelope(params)
	if err != nil {
		t.Fatal(err)
	}
	now := int64(0)
	if n := testing.AllocsPerRun(1000, func() { now += 9999; e.Color(int(now)%3, now, 40, Green) }); n != 0 {
		t.Errorf("got %v allocations per packet, want 0", n)
	}
}

func FuzzEnvelope(f *testing.F) {
	f.Add(uint64(1))
	f.Add(uint64(77))
	f.Fuzz(func(t *testing.T, seed uint64) {
		r := rand.New(rand.NewPCG(seed, 0))
		compareEnvelope(t, r, randomEnvelope(r), 30)
	})
}

// envelopeOf returns an envelope without limits. Flows are from the highest rank to the lowest.
func envelopeOf(flows ...TRTCM4115) (params EnvelopeParams) {
	for _, f := range flows {
		params.Flows = append(params.Flows, EnvelopeFlow{Buckets: f})
	}
	return params
}

// TestEnvelopeTrace has rows worked out by hand. 8 Mbit/s is a byte per µs.
func TestEnvelopeTrace(t *testing.T) {
	const µs = 1000
	mega := BitRate(8e6)
	high := TRTCM4115{CIR: mega, CBS: 100, EIR: mega, EBS: 50}
	low := TRTCM4115{CIR: Rate{}, CBS: 100, EIR: Rate{}, EBS: 50}
	green := TRTCM4115{CIR: mega, CBS: 100, EIR: Rate{}, EBS: 50}
	coupled := high
	coupled.Coupling = true
	limited := envelopeOf(high, low)
	for i := range limited.Flows {
		limited.Flows[i].CIRMax, limited.Flows[i].EIRMax = new(BitRate(4e6)), new(BitRate(2e6))
	}
	one := envelopeOf(high, low, low)
	one.Flows[1].CIRMax, one.Flows[1].EIRMax = new(BitRate(2e6)), new(Rate{})
	wasted, cf0 := envelopeOf(green, green), envelopeOf(green, green)
	cf0.Coupling = true
	halved := envelopeOf(green, green)
	halved.Coupling = true
	halved.Flows[0].EIRMax = new(BitRate(4e6))
	type row struct {
		flow int
		at   int64
		n    int
		in   Color
		want Color
		all  [4]int64 // Tc, Te of the highest flow, then of the lowest
	}
	for _, test := range []struct {
		name   string
		params EnvelopeParams
		rows   []row
	}{
		{"overflow goes to the next rank, color by color", envelopeOf(high, low), []row{
			{1, 0, 100, Green, Green, [4]int64{100, 50, 0, 50}},
			{1, 0, 50, Green, Yellow, [4]int64{100, 50, 0, 0}},
			{0, 0, 30, Green, Green, [4]int64{70, 50, 0, 0}},
			{0, 29 * µs, 0, Red, Red, [4]int64{99, 50, 0, 29}},
			{0, 31 * µs, 0, Red, Red, [4]int64{100, 50, 1, 31}},
			{1, 31 * µs, 2, Green, Yellow, [4]int64{100, 50, 1, 29}},
			{1, 31 * µs, 1, Green, Green, [4]int64{100, 50, 0, 29}},
		}},
		{"with coupling, green overflows into its own yellow, yellow into the next", envelopeOf(coupled, low), []row{
			{1, 0, 100, Green, Green, [4]int64{100, 50, 0, 50}},
			{1, 0, 50, Yellow, Yellow, [4]int64{100, 50, 0, 0}},
			{0, 0, 50, Yellow, Yellow, [4]int64{100, 0, 0, 0}},
			{1, 20 * µs, 0, Green, Green, [4]int64{100, 40, 0, 0}},
			{1, 30 * µs, 0, Green, Green, [4]int64{100, 50, 0, 10}},
		}},
		{"no bucket gets more than its cap", limited, []row{
			{0, 0, 100, Green, Green, [4]int64{0, 50, 100, 50}},
			{0, 0, 50, Green, Yellow, [4]int64{0, 0, 100, 50}},
			{0, 40 * µs, 21, Green, Red, [4]int64{20, 10, 100, 50}},
		}},
		{"a cap of a flow also limits what it passes on", one, []row{
			{1, 0, 100, Green, Green, [4]int64{100, 50, 100, 50}},
			{2, 0, 100, Green, Green, [4]int64{100, 50, 0, 50}},
			{2, 0, 50, Green, Yellow, [4]int64{100, 50, 0, 0}},
			{0, 400 * µs, 0, Red, Red, [4]int64{100, 50, 0, 0}},  // 400 overflow the first, the second holds 100
			{0, 440 * µs, 0, Red, Red, [4]int64{100, 50, 10, 0}}, // of 40, 10 overflow the second
		}},
		{"without CF0, green that overflows the lowest rank is discarded", wasted, []row{
			{0, 0, 50, Yellow, Yellow, [4]int64{100, 0, 100, 50}},
			{1, 0, 50, Yellow, Yellow, [4]int64{100, 0, 100, 0}},
			{0, 10 * µs, 0, Red, Red, [4]int64{100, 0, 100, 0}},
		}},
		{"with CF0, it becomes yellow of the highest rank", cf0, []row{
			{0, 0, 50, Yellow, Yellow, [4]int64{100, 0, 100, 50}},
			{1, 0, 50, Yellow, Yellow, [4]int64{100, 0, 100, 0}},
			{1, 0, 15, Green, Green, [4]int64{100, 0, 85, 0}},
			{0, 10 * µs, 0, Red, Red, [4]int64{100, 5, 100, 0}},   // 20 for the lowest, which holds 15
			{0, 40 * µs, 0, Red, Red, [4]int64{100, 50, 100, 15}}, // 60: 45 fill the yellow bucket, 15 overflow
			{0, 40 * µs, 100, Green, Green, [4]int64{0, 50, 100, 15}},
			{0, 50 * µs, 0, Red, Red, [4]int64{10, 50, 100, 25}}, // only the CIR of the lowest remains
		}},
		{"up to EIRMax of the highest rank", halved, []row{
			{0, 0, 50, Yellow, Yellow, [4]int64{100, 0, 100, 50}},
			{1, 0, 50, Yellow, Yellow, [4]int64{100, 0, 100, 0}},
			{0, 10 * µs, 0, Red, Red, [4]int64{100, 5, 100, 0}},
			{0, 110 * µs, 0, Red, Red, [4]int64{100, 50, 100, 5}},
		}},
	} {
		e, err := NewEnvelope(test.params)
		if err != nil {
			t.Fatal(err)
		}
		for i, r := range test.rows {
			got := e.Color(r.flow, r.at, r.n, r.in)
			var all [4]int64
			all[0], all[1] = e.Tokens(0, r.at)
			all[2], all[3] = e.Tokens(len(test.params.Flows)-1, r.at)
			if got != r.want || all != r.all {
				t.Errorf("%s, row %d: got %v with %v, want %v with %v", test.name, i, got, all, r.want, r.all)
			}
		}
	}
}

func TestEnvelopeErrors(t *testing.T) {
	one := TRTCM4115{CIR: BitRate(8e9), CBS: 1000, EIR: BitRate(8e9), EBS: 0}
	limits := envelopeOf(one)
	limits.Flows[0].CIRMax, limits.Flows[0].EIRMax = &Rate{-1, 1}, &Rate{1, 0}
	fast := envelopeOf(one, TRTCM4115{CIR: BitRate(1e9), CBS: 10})
	fast.Flows[1].CIRMax = &Rate{1 << 62, 1}
	twice := envelopeOf(one, one)
	twice.Coupling, twice.Flows[1].Buckets.Coupling = true, true
	for _, test := range []struct {
		params EnvelopeParams
		want   string
	}{
		{EnvelopeParams{}, "flows are missing"},
		{limits, "CIRMax is negative\nEIRMax needs a period above zero"},
		{envelopeOf(TRTCM4115{}), "CBS and EBS are both zero"},
		{envelopeOf(TRTCM4115{}, TRTCM4115{CBS: -1}), "CBS and EBS are both zero: every packet would be red\nCBS is negative"},
		{envelopeOf(TRTCM4115{CIR: BitRate(1), CBS: 72057594}, TRTCM4115{CIR: BitRate(1), CBS: 1}), "largest burst that 64 bits count exactly at their rates, 72057594 bytes"},
		{fast, "CIRMax"},
		{envelopeOf(TRTCM4115{CIR: Rate{1 << 40, 1}, CBS: 1}, TRTCM4115{CIR: Rate{1, 1 << 50}, CBS: 1}), "CIR"},
		{twice, "cannot be combined with coupling of a flow (MEF 10.3 [R150])"},
	} {
		if _, err := NewEnvelope(test.params); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%+v: got %v, want %q", test.params, err, test.want)
		}
	}
}
