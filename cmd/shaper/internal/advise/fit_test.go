package advise

import (
	"math/rand/v2"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// colors counts yellow and red packets by the rules of the RFCs, in exact fractions.
func colors(s *Stream, p meter.Params) (yellow, red int64) {
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
		switch p.(type) {
		case meter.TokenBucket:
			if m.c.refill(a.at); !m.c.take(n) {
				red++
			}
		case meter.TRTCM:
			m.c.refill(a.at)
			m.e.refill(a.at)
			switch {
			case !m.e.take(n):
				red++
			case !m.c.take(n):
				yellow++
			}
		default:
			overflow(m.c, m.e, a.at, p)
			switch {
			case m.c.take(n):
			case m.e.take(n):
				yellow++
			default:
				red++
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

// TestFit checks that the wanted shares hold with the bursts, and not with one byte less.
func TestFit(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	const packets = 200
	for range 25 {
		s := randomStream(r, packets)
		s.group()
		rate := 1_000_000 * (1 + r.Int64N(100))
		cir, eir := meter.BitRate(rate), meter.BitRate(1_000_000*(1+r.Int64N(100)))
		pir := meter.BitRate(rate + 1_000_000*(1+r.Int64N(100)))
		w := Want{
			Loss: dataplane.Fraction{Num: r.Int64N(5), Den: 100}, Excess: dataplane.Fraction{Num: 5 + r.Int64N(20), Den: 100},
		}
		var list []meter.Params
		for _, like := range []meter.Params{meter.TokenBucket{Rate: cir}, meter.SRTCM{CIR: cir}, meter.TRTCM{CIR: cir, PIR: pir}, meter.TRTCM4115{CIR: cir, EIR: eir}} {
			p, err := s.fit(like, w)
			if err != nil {
				t.Fatal(err)
			}
			list = append(list, p)
		}
		red, excess := packets*w.Loss.Num/100, packets*w.Excess.Num/100
		holds := func(p meter.Params, name string) {
			t.Helper()
			y, rd := colors(s, p)
			if _, single := p.(meter.TokenBucket); rd > red || !single && y+rd > excess {
				t.Errorf("%+v (%s): got %d yellow and %d red, want at most %d red, %d of both", p, name, y, rd, red, excess)
			}
		}
		fails := func(p meter.Params, why string) {
			t.Helper()
			if y, rd := colors(s, p); rd <= red && y+rd <= excess {
				t.Errorf("%+v has %s: got %d yellow and %d red, which holds", p, why, y, rd)
			}
		}
		for _, p := range list {
			holds(p, "advised")
			switch p := p.(type) {
			case meter.TokenBucket:
				p.Burst--
				if _, rd := colors(s, p); rd <= red {
					t.Errorf("%+v has one byte less: got %d red, which holds", p, rd)
				}
			case meter.SRTCM:
				less := p
				if less.CBS--; less.CBS > 0 {
					fails(less, "one byte less of CBS")
				}
				if less = p; less.EBS > 0 {
					less.EBS--
					fails(less, "one byte less of EBS")
				}
			case meter.TRTCM:
				less := p
				less.PBS--
				fails(less, "one byte less of PBS")
				less = p
				less.CBS--
				fails(less, "one byte less of CBS")
			case meter.TRTCM4115:
				less := p
				if less.CBS--; less.CBS > 0 {
					fails(less, "one byte less of CBS")
				}
				if less = p; less.EBS > 0 {
					less.EBS--
					fails(less, "one byte less of EBS")
				}
			}
		}
	}
}
