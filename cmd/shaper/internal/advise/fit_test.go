package advise

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// colors counts the yellow and red packets of each key by the rules of the RFCs, in exact fractions.
func colors(s *Stream, p meter.Params) (yellow, red []dataplane.Count) {
	yellow, red = make([]dataplane.Count, len(s.keys)), make([]dataplane.Count, len(s.keys))
	type pair struct{ c, e *exact }
	meters := map[int32]pair{}
	for _, a := range s.packets {
		m, known := meters[a.key]
		if !known {
			switch p := p.(type) {
			case meter.TokenBucket:
				m = pair{c: newExact(p.Rate, p.Burst)}
			case meter.SRTCM:
				m = pair{newExact(p.CIR, p.CBS), newExact(meter.Rate{Period: 1}, p.EBS)}
			case meter.TRTCM:
				m = pair{newExact(p.CIR, p.CBS), newExact(p.PIR, p.PBS)}
			case meter.TRTCM4115:
				m = pair{newExact(p.CIR, p.CBS), newExact(p.EIR, p.EBS)}
			}
			meters[a.key] = m
		}
		n := int64(a.n)
		count := func(list []dataplane.Count) {
			list[a.key] = list[a.key].Plus(dataplane.Count{Packets: 1, Bytes: n})
		}
		switch p.(type) {
		case meter.TokenBucket:
			if m.c.refill(a.at); !m.c.take(n) {
				count(red)
			}
		case meter.TRTCM:
			m.c.refill(a.at)
			m.e.refill(a.at)
			switch {
			case !m.e.take(n):
				count(red)
			case !m.c.take(n):
				count(yellow)
			}
		default:
			overflow(m.c, m.e, a.at, p)
			switch {
			case m.c.take(n):
			case m.e.take(n):
				count(yellow)
			default:
				count(red)
			}
		}
	}
	return yellow, red
}

// overflow refills C and E. In an srTCM, E gets what overflows C (RFC 2697 §3).
func overflow(c, e *exact, at int64, p meter.Params) {
	e.refill(at)
	if _, single := p.(meter.SRTCM); !single {
		c.refill(at)
		return
	}
	full := newExact(meter.Rate{Period: 1}, 0)
	full.burst.Set(c.burst)
	before := c.burst
	c.burst = newExact(meter.Rate{Period: 1}, 1<<60).burst // no bound, to see what overflows
	c.refill(at)
	c.burst = before
	if spill := full.tokens.Sub(c.tokens, c.burst); spill.Sign() > 0 {
		c.tokens.Set(c.burst)
		if e.tokens.Add(e.tokens, spill); e.tokens.Cmp(e.burst) > 0 {
			e.tokens.Set(e.burst)
		}
	}
}

// holds reports whether the wanted shares hold for each key. A token bucket has no yellow.
func (w LossTarget) holds(s *Stream, p meter.Params) bool {
	yellow, red := colors(s, p)
	excess := make([]dataplane.Count, len(red))
	for key := range red {
		excess[key] = red[key].Plus(yellow[key])
	}
	_, single := p.(meter.TokenBucket)
	return fits(s, red, w.Loss) && (single || fits(s, excess, w.Excess))
}

// less returns the meter with one byte less in each of its bursts that can have less.
func less(p meter.Params) (list []meter.Params) {
	shrunk := func(burst *int64, least int64, p func() meter.Params) {
		if *burst > least {
			*burst--
			list = append(list, p())
			*burst++
		}
	}
	switch p := p.(type) {
	case meter.TokenBucket:
		shrunk(&p.Burst, 0, func() meter.Params { return p })
	case meter.SRTCM:
		shrunk(&p.CBS, 1, func() meter.Params { return p })
		shrunk(&p.EBS, 0, func() meter.Params { return p })
	case meter.TRTCM:
		shrunk(&p.CBS, 0, func() meter.Params { return p })
		shrunk(&p.PBS, 0, func() meter.Params { return p })
	case meter.TRTCM4115:
		shrunk(&p.CBS, 1, func() meter.Params { return p })
		shrunk(&p.EBS, 0, func() meter.Params { return p })
	}
	return list
}

// checkFit checks that the wanted shares hold for each key with the advised bursts, and not with one
// byte less in any of them, and that the worst key is one that loses the largest share.
func checkFit(t *testing.T, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 8))
	s := randomStream(r, 200)
	s.group()
	rate := 1_000_000 * (1 + r.Int64N(100))
	cir, eir := meter.BitRate(rate), meter.BitRate(1_000_000*(1+r.Int64N(100)))
	pir := meter.BitRate(rate + 1_000_000*(1+r.Int64N(100)))
	w := LossTarget{
		Loss:   dataplane.Fraction{Num: r.Int64N(20), Den: 100},
		Excess: dataplane.Fraction{Num: 20 + r.Int64N(20), Den: 100},
	}
	found, err := s.bursts(cir, []meter.Params{
		meter.TokenBucket{Rate: cir},
		meter.SRTCM{CIR: cir},
		meter.TRTCM{CIR: cir, PIR: pir},
		meter.TRTCM4115{CIR: cir, EIR: eir},
	}, w, phase{})
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range found.Meters {
		if !w.holds(s, m.Params) {
			t.Errorf("seed %d: %s does not hold for %v", seed, m.Meter, w)
		}
		for _, p := range less(m.Params) {
			if w.holds(s, p) {
				t.Errorf("seed %d: %+v has a byte less than the advised %s, and holds for %v", seed, p,
					m.Meter, w)
			}
		}
		_, red := colors(s, m.Params)
		checkWorst(t, s, Point{Worst: m.Worst}, red)
	}
}

func TestFit(t *testing.T) {
	for seed := range uint64(40) {
		checkFit(t, seed)
	}
}

func FuzzFit(f *testing.F) {
	f.Add(uint64(40))
	f.Fuzz(func(t *testing.T, seed uint64) { checkFit(t, seed) })
}

// TestIgnored checks that a meter with a parameter that the search for bursts does not use is refused, and
// so is a kind of meter that it does not know.
func TestIgnored(t *testing.T) {
	rate := meter.BitRate(8e6)
	for _, tt := range []struct {
		params meter.Params
		want   []string
	}{
		{meter.TokenBucket{Rate: rate, Burst: 1}, nil},
		{meter.TokenBucket{Rate: rate, Burst: 1, GCRA: true}, nil},
		{meter.TokenBucket{Rate: rate, Burst: 1, Warmup: 1}, []string{"Warmup"}},
		{meter.SRTCM{CIR: rate, CBS: 1, EBS: 1}, nil},
		{meter.TRTCM{CIR: rate, CBS: 1, PIR: rate, PBS: 1}, nil},
		{meter.TRTCM4115{CIR: rate, CBS: 1, EIR: rate, EBS: 1, Coupling: true}, nil},
		{meter.FixedWindow{Limit: 1, Window: 1}, []string{"type"}},
	} {
		if got := ignored(tt.params); !slices.Equal(got, tt.want) {
			t.Errorf("%v %+v: got %q, want %q", tt.params.Kind(), tt.params, got, tt.want)
		}
	}
}
