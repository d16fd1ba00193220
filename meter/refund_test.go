package meter

import (
	"math"
	"math/big"
	"testing"
	"time"
)

// refundSlow gives the tokens of a charge back in a model, at a time.
func refundSlow(m slowMeter, now int64, c Charge) {
	n := ratOf(int64(c.N))
	forget := func(packets []slowTaken, slot int64) {
		for i, p := range packets {
			if p.at.Cmp(windowOf(c.At, slot)) == 0 && p.n == int64(c.N) {
				packets[i].n = 0
				return
			}
		}
	}
	switch m := m.(type) {
	case *slowBuckets:
		m.Refill(now)
		add := func(i int, n *big.Rat) {
			sum := new(big.Rat).Add(m.Tokens[i], n)
			m.Tokens[i] = lesser(sum, m.Burst[i])
			if i == 0 && m.Coupled {
				sum.Sub(sum, m.Tokens[0]).Add(sum, m.Tokens[1])
				m.Tokens[1] = lesser(sum, m.Burst[1])
			}
		}
		switch {
		case m.peak:
			add(1, n)
			if c.Color == Green {
				add(0, n)
			}
		case m.single || c.Color == Green:
			add(0, n)
		default:
			add(1, n)
		}
	case *slowWarm:
		m.level = lesser(n.Add(n, m.level), m.burst)
	case *slowWindow:
		if m.window.Cmp(windowOf(c.At, m.length)) == 0 {
			m.carried -= int64(c.N)
		}
	case *slowCounter:
		forget(m.packets, m.length)
	case *slowLog:
		forget(m.packets, m.slot)
	}
}

// slowBuckets is the model of any meter with buckets.
type slowBuckets struct {
	oracle
	peak, single bool
}

func (b *slowBuckets) isIdle(int64) bool { return false }

// TestRefund meters packets and gives back those of every third charge at a later time, in any
// order, beside models in exact arithmetic. Buckets are empty, full, or overflow meanwhile.
func TestRefund(t *testing.T) {
	second := time.Second
	for name, params := range map[string]compiler{
		"token-bucket": TokenBucket{Rate: ByteRate(1000), Burst: 3000},
		"gcra":         TokenBucket{Rate: Rate{Bytes: 7, Period: 3 * time.Millisecond}, Burst: 3000, GCRA: true},
		"srtcm":        SRTCM{CIR: ByteRate(1000), CBS: 3000, EBS: 2000},
		"trtcm":        TRTCM{CIR: ByteRate(1000), CBS: 3000, PIR: ByteRate(1500), PBS: 4000},
		"trtcm4115":    TRTCM4115{CIR: ByteRate(1000), CBS: 3000, EIR: ByteRate(500), EBS: 2000},
		"coupled":      TRTCM4115{CIR: ByteRate(1000), CBS: 3000, EIR: ByteRate(500), EBS: 2000, Coupling: true},
		"wide one":     TokenBucket{Rate: Rate{Bytes: 1_000_003, Period: 999 * second}, Burst: 1 << 40},
		"wide srtcm":   SRTCM{CIR: Rate{Bytes: 1_000_003, Period: 999 * second}, CBS: 1 << 40, EBS: 1 << 40},
		"wide trtcm":   TRTCM{CIR: Rate{Bytes: 1_000_003, Period: 999 * second}, CBS: 1 << 40, PIR: Rate{Bytes: 2_000_003, Period: 999 * second}, PBS: 1 << 40},
		"warm-up":      TokenBucket{Rate: ByteRate(1000), Burst: 3000, Warmup: 2 * second},
		"fixed":        FixedWindow{Limit: 3000, Window: 2 * second},
		"counter":      SlidingCounter{Limit: 3000, Window: 2 * second},
		"window":       SlidingWindow{Limit: 3000, Window: 2 * second, Slots: 10},
		"log":          SlidingLog{Limit: 3000, Window: 2 * second, Entries: 20},
		"short log":    SlidingLog{Limit: 3000, Window: 2 * second, Entries: 3},
		"tsw":          TSWTCM{CIR: ByteRate(1000), PIR: ByteRate(2000), Window: second},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := params.Profile()
			if err != nil {
				t.Fatal(err)
			}
			r := logged(t)
			c, e := p.Bursts()
			refunds := 0
			for range 200 {
				tc, te := r.Int64N(c+1), e
				m := NewWithTokens(p, tc, te)
				var slow slowMeter
				switch q := params.(type) {
				case SRTCM, TRTCM, TRTCM4115:
					o := newOracle(q)
					o.Tokens[0] = ratOf(tc)
					slow = &slowBuckets{*o, p.Kind() == kindTRTCM, false}
				case TokenBucket:
					if slow = newSlow(params, tc); q.Warmup == 0 {
						slow = &slowBuckets{slow.(*slowBucket).oracle, false, true}
					}
				default:
					slow = newSlow(params, tc)
				}
				scale := min(1+c/3000, math.MaxInt/1500)
				now := int64(1e9) + r.Int64N(1e9)
				var held []Charge
				for i := range 200 {
					now += r.Int64N(1 + [3]int64{0, 1e8, 4e9}[r.IntN(3)]/(1+r.Int64N(100)))
					if len(held) > 0 && r.IntN(3) == 0 {
						k := r.IntN(len(held))
						m.Refund(held[k])
						refundSlow(slow, now, held[k])
						held = append(held[:k], held[k+1:]...)
						refunds++
						continue
					}
					n, in := r.Int64N(1500)*scale, Color(r.IntN(3))
					got, want := m.Color(now, int(n), in), slow.color(now, int(n), in)
					gotC, gotE := m.Tokens(now)
					wantC, wantE := slow.tokens()
					if got != want || gotC != wantC || gotE != wantE {
						t.Fatalf("packet %d, %d bytes of %v: got %v, tokens %d and %d, want %v, %d and %d", i,
							n, in, got, gotC, gotE, want, wantC, wantE)
					}
					if got != Red && r.IntN(3) == 0 {
						held = append(held, Charge{now, int(n), in, got})
					}
				}
			}
			if refunds < 200 {
				t.Errorf("%d charges were given back: the test is too easy", refunds)
			}
		})
	}
}

// TestRefundAtOnce gives each packet back right after Color: the state is that of a meter which
// the packet reached as red. Tables and envelopes give back to the right key and flow.
func TestRefundAtOnce(t *testing.T) {
	p, err := SRTCM{CIR: ByteRate(1000), CBS: 3000, EBS: 2000}.Profile()
	if err != nil {
		t.Fatal(err)
	}
	table, err := NewTable[int](p, TableConfig{Keys: 2})
	if err != nil {
		t.Fatal(err)
	}
	for i, key := range []int{1, 2} {
		at := int64(i) * 1e9
		table.Refund(key, Charge{at, 1000, Green, table.Color(key, at, 1000, Green)})
		if tc, te, known := table.Tokens(key, at); tc != 3000 || te != 2000 || !known {
			t.Errorf("key %d: tokens %d and %d, want 3000 and 2000", key, tc, te)
		}
	}
	charge := Charge{2e9, 1000, Green, table.Color(1, 2e9, 1000, Green)}
	table.Refund(2, charge) // full: nothing changes
	if tc, _, _ := table.Tokens(1, 2e9); tc != 2000 {
		t.Errorf("key 1 has %d tokens after a refund to key 2, want 2000", tc)
	}
	table.Color(3, 2e9, 1000, Green) // evicts key 2
	table.Refund(2, charge)
	if _, _, known := table.Tokens(2, 2e9); known {
		t.Error("a refund added an evicted key")
	}

	flow := TRTCM4115{CIR: ByteRate(1000), CBS: 3000, EIR: ByteRate(1000), EBS: 2000}
	e, err := NewEnvelope(EnvelopeParams{Flows: []EnvelopeFlow{{Buckets: flow}, {Buckets: flow}}})
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		n      int
		want   Color
		tc, te int64 // of both flows, after the refund
	}{{1000, Green, 3000, 2000}, {3001, Red, 3000, 2000}} {
		for i := range 2 {
			c := Charge{1e9, test.n, Green, e.Color(i, 1e9, test.n, Green)}
			if e.Refund(i, 1e9, c); c.Color != test.want {
				t.Errorf("flow %d: %d bytes are %v, want %v", i, test.n, c.Color, test.want)
			}
			if tc, te := e.Tokens(i, 1e9); tc != test.tc || te != test.te {
				t.Errorf("flow %d: tokens %d and %d after %d bytes, want %d and %d", i, tc, te, test.n,
					test.tc, test.te)
			}
		}
	}
	c := Charge{1e9, 1500, Yellow, e.Color(0, 1e9, 1500, Yellow)}
	e.Refund(0, 2e9, c) // its yellow bucket has 1500 of 2000 by now: 500 fit, the rest is lost
	if _, te := e.Tokens(0, 2e9); te != 2000 {
		t.Errorf("flow 0 has %d yellow tokens, want 2000", te)
	}
	if _, te := e.Tokens(1, 2e9); te != 2000 {
		t.Errorf("flow 1 has %d yellow tokens, want 2000", te)
	}
}

// TestRefundShifted gives a packet back to a window that Shift has moved away from a multiple of
// its length, and to the window before it.
func TestRefundShifted(t *testing.T) {
	for name, params := range map[string]Params{
		"fixed-window":    FixedWindow{Limit: 1000, Window: time.Second},
		"sliding-counter": SlidingCounter{Limit: 1000, Window: time.Second},
	} {
		p, err := params.Profile()
		if err != nil {
			t.Fatal(err)
		}
		m := New(p)
		m.Color(5_200_000_000, 100, Green)
		m.Shift(100_300_000_000, 95_100*time.Millisecond) // the window begins at 100.1 s
		const at = 100_400_000_000
		before, _ := m.Tokens(at)
		m.Refund(Charge{at, 300, Green, m.Color(at, 300, Green)})
		if tc, _ := m.Tokens(at); tc != before || before != 900 {
			t.Errorf("%s: %d tokens before the packet and %d after the refund, want 900", name, before, tc)
		}
	}
	p, err := SlidingCounter{Limit: 1000, Window: time.Second}.Profile()
	if err != nil {
		t.Fatal(err)
	}
	m := New(p)
	c := Charge{1_500_000_000, 300, Green, m.Color(1_500_000_000, 300, Green)}
	m.Color(2_200_000_000, 0, Green)
	m.Refund(c)
	if tc, _ := m.Tokens(2_200_000_000); tc != 1000 {
		t.Errorf("%d tokens after a refund to the window before, want 1000", tc)
	}
}

// TestRefundWarmUp gives back more bytes than the burst of a new profile.
func TestRefundWarmUp(t *testing.T) {
	profile := func(b TokenBucket) *Profile {
		p, err := b.Profile()
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	m := New(profile(TokenBucket{Rate: BitRate(8e6), Burst: 100_000}))
	c := Charge{0, 90_000, Green, m.Color(0, 90_000, Green)}
	m.SetProfile(0, profile(TokenBucket{Rate: BitRate(1), Burst: 38_000, Warmup: time.Second + 1}))
	m.Refund(c)
	if tc, _ := m.Tokens(0); tc < 10_000 || tc > 38_000 {
		t.Errorf("%d tokens, want the burst of 38000", tc)
	}
}
