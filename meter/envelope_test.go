package meter

import (
	"math/big"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

// slowEnvelope is MEF 10.3 §12 in exact arithmetic, from the rules.
type slowEnvelope struct {
	params EnvelopeParams
	tc, te []*big.Rat
	last   int64
	begun  bool
}

func newSlowEnvelope(t EnvelopeParams) *slowEnvelope {
	e := &slowEnvelope{params: t}
	for _, f := range t.Flows {
		e.tc, e.te = append(e.tc, whole(f.CBS)), append(e.te, whole(f.EBS))
	}
	return e
}

func (e *slowEnvelope) color(flow int, now int64, n int, in Color) Color {
	if !e.begun {
		e.begun, e.last = true, now
	}
	dt := new(big.Rat).SetInt(since(max(now, e.last), e.last))
	e.last = max(now, e.last)
	capped := func(in *big.Rat, most Rate) *big.Rat {
		if most.Bytes == 0 {
			return in
		}
		return lesser(in, new(big.Rat).Mul(rational(most), dt))
	}
	add := func(level *big.Rat, in *big.Rat, size int64) *big.Rat {
		level.Add(level, in)
		over := new(big.Rat).Sub(level, whole(size))
		if over.Sign() <= 0 {
			return new(big.Rat)
		}
		level.Set(whole(size))
		return over
	}
	carryC, carryE := new(big.Rat), new(big.Rat)
	for i, f := range e.params.Flows {
		inC := new(big.Rat).Mul(rational(f.CIR), dt)
		over := add(e.tc[i], capped(inC.Add(inC, carryC), e.params.CIRMax), f.CBS)
		inE := new(big.Rat).Mul(rational(f.EIR), dt)
		inE.Add(inE, carryE)
		carryC = over
		if f.Coupling {
			inE.Add(inE, over)
			carryC = new(big.Rat)
		}
		carryE = add(e.te[i], capped(inE, e.params.EIRMax), f.EBS)
	}
	b := whole(int64(n))
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
	t := EnvelopeParams{CIRMax: rate(), EIRMax: rate()}
	for range 1 + r.IntN(pick(r, 3, 3, 3, 20)) {
		f := TRTCM4115{CIR: rate(), CBS: r.Int64N(3000), EIR: rate(), EBS: 1 + r.Int64N(3000), Coupling: r.IntN(2) == 0}
		if r.IntN(5) == 0 {
			f.CBS, f.EBS = f.EBS, 0
		}
		t.Flows = append(t.Flows, f)
	}
	return t
}

func compareEnvelope(t *testing.T, r *rand.Rand, params EnvelopeParams, packets int) {
	t.Helper()
	e, err := NewEnvelope(params)
	if err != nil {
		return // more than is exact
	}
	o := newSlowEnvelope(params)
	for i, f := range params.Flows {
		if r.IntN(3) == 0 {
			c, x := r.Int64N(f.CBS+2)-1, r.Int64N(f.EBS+1)
			e.SetTokens(i, c, x)
			o.tc[i], o.te[i] = whole(min(max(c, 0), f.CBS)), whole(x)
		}
	}
	now := pick(r, 0, -5, -1<<61, 1e18, r.Int64N(1e18))
	for i := range packets {
		flow := r.IntN(len(params.Flows))
		f := params.Flows[flow]
		tc, te := e.Tokens(flow, now)
		n := int(pick(r, tc+r.Int64N(3)-1, te+r.Int64N(3)-1, f.CBS, f.EBS+1, 0, r.Int64N(100), -1, 1<<62))
		in := Color(max(r.IntN(6)-3, 0))
		var got Color
		if x := (Explanation{}); r.IntN(2) == 0 {
			x = e.Explain(flow, now, n, in)
			got = x.Color
			if x.TcBefore != tc || x.TeBefore != te || x.Clause.Text() == "" || !strings.HasPrefix(x.Clause.String(), "rfc4115-") {
				t.Fatalf("%+v, had %d, %d", x, tc, te)
			}
		} else {
			got = e.Color(flow, now, n, in)
		}
		if want := o.color(flow, now, n, in); got != want {
			t.Fatalf("%+v packet %d: flow %d, %d B at %d, %v before: %v, model %v", params, i, flow, n, now, in, got, want)
		}
		for j := range params.Flows {
			tc, te := e.Tokens(j, now)
			if wantC, wantE := floor(o.tc[j]), floor(o.te[j]); tc != wantC || te != wantE {
				t.Fatalf("%+v packet %d at %d: flow %d of %d has %d, %d; model %d, %d", params, i, now, j, len(params.Flows), tc, te, wantC, wantE)
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

// TestEnvelopeAtItsBounds has as many units as are exact, in many flows that
// have all been idle: what each passes on adds up.
func TestEnvelopeAtItsBounds(t *testing.T) {
	r := logged(t)
	for _, flows := range []int{2, 8, 16, 17, 64} {
		for _, coupling := range []bool{false, true} {
			params := EnvelopeParams{}
			burst := int64(72057594 / 2 / flows)
			for range flows {
				params.Flows = append(params.Flows, TRTCM4115{BitRate(1e9 + 1), burst, BitRate(1e9 + 1), burst, coupling})
			}
			compareEnvelope(t, r, params, 4)
			e, _ := NewEnvelope(params)
			e.Color(0, 0, 10, Green)
			e.Color(flows-1, 1e12, 0, Red)
			if tc, te := e.Tokens(flows-1, 1e12); tc != burst || te != burst {
				t.Errorf("%d flows, %d coupled: %d, %d left, want %d", flows, flows, tc, te, burst)
			}
		}
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

// TestEnvelopeTrace is worked out by hand: 8 Mbit/s is a byte a µs.
func TestEnvelopeTrace(t *testing.T) {
	const µs = 1000
	mega := BitRate(8e6)
	high := TRTCM4115{CIR: mega, CBS: 100, EIR: mega, EBS: 50}
	low := TRTCM4115{CIR: Rate{}, CBS: 100, EIR: Rate{}, EBS: 50}
	coupled := high
	coupled.Coupling = true
	type row struct {
		flow int
		at   int64
		n    int
		in   Color
		want Color
		all  [4]int64 // Tc, Te of the high flow, then of the low
	}
	for _, test := range []struct {
		name   string
		params EnvelopeParams
		rows   []row
	}{
		{"what overflows goes to the next rank, color by color", EnvelopeParams{Flows: []TRTCM4115{high, low}}, []row{
			{1, 0, 100, Green, Green, [4]int64{100, 50, 0, 50}},
			{1, 0, 50, Green, Yellow, [4]int64{100, 50, 0, 0}},
			{0, 0, 30, Green, Green, [4]int64{70, 50, 0, 0}},
			{0, 29 * µs, 0, Red, Red, [4]int64{99, 50, 0, 29}},
			{0, 31 * µs, 0, Red, Red, [4]int64{100, 50, 1, 31}},
			{1, 31 * µs, 2, Green, Yellow, [4]int64{100, 50, 1, 29}},
			{1, 31 * µs, 1, Green, Green, [4]int64{100, 50, 0, 29}},
		}},
		{"with coupling green overflows into its own yellow, yellow to the next", EnvelopeParams{Flows: []TRTCM4115{coupled, low}}, []row{
			{1, 0, 100, Green, Green, [4]int64{100, 50, 0, 50}},
			{1, 0, 50, Yellow, Yellow, [4]int64{100, 50, 0, 0}},
			{0, 0, 50, Yellow, Yellow, [4]int64{100, 0, 0, 0}},
			{1, 20 * µs, 0, Green, Green, [4]int64{100, 40, 0, 0}},
			{1, 30 * µs, 0, Green, Green, [4]int64{100, 50, 0, 10}},
		}},
		{"no bucket gets more than its cap", EnvelopeParams{CIRMax: BitRate(4e6), EIRMax: BitRate(2e6), Flows: []TRTCM4115{high, low}}, []row{
			{0, 0, 100, Green, Green, [4]int64{0, 50, 100, 50}},
			{0, 0, 50, Green, Yellow, [4]int64{0, 0, 100, 50}},
			{0, 40 * µs, 21, Green, Red, [4]int64{20, 10, 100, 50}},
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
			all[2], all[3] = e.Tokens(1, r.at)
			if got != r.want || all != r.all {
				t.Errorf("%s, row %d: %v with %v, want %v with %v", test.name, i, got, all, r.want, r.all)
			}
		}
	}
}

func TestEnvelopeRefusals(t *testing.T) {
	one := TRTCM4115{CIR: BitRate(8e9), CBS: 1000, EIR: BitRate(8e9), EBS: 0}
	for _, test := range []struct {
		params EnvelopeParams
		want   string
	}{
		{EnvelopeParams{}, "flows are missing"},
		{EnvelopeParams{CIRMax: Rate{-1, 1}, EIRMax: Rate{1, 0}}, "CIRMax is negative\nEIRMax needs a period above zero\nflows are missing"},
		{EnvelopeParams{Flows: []TRTCM4115{{}}}, "CBS and EBS are both zero"},
		{EnvelopeParams{Flows: []TRTCM4115{{CIR: BitRate(1), CBS: 72057594}, {CIR: BitRate(1), CBS: 1}}}, "largest burst that stays exact at their rates, 72057594 bytes"},
		{EnvelopeParams{CIRMax: Rate{1 << 62, 1}, Flows: []TRTCM4115{one, {CIR: BitRate(1e9), CBS: 10}}}, "CIRMax"},
		{EnvelopeParams{Flows: []TRTCM4115{{CIR: Rate{1 << 40, 1}, CBS: 1}, {CIR: Rate{1, 1 << 50}, CBS: 1}}}, "CIR"},
	} {
		if _, err := NewEnvelope(test.params); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%+v: %v, want %q", test.params, err, test.want)
		}
	}
}
