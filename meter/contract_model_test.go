package meter

import (
	"math/big"
	"reflect"
	"testing"
)

// contract is a model of a meter with all its calls. The first call that has a time begins
// its clock.
type contract struct {
	params compiler
	begun  bool
	slow   slowMeter
}

// exactBuckets is the model of any meter of buckets. Its buckets may be negative.
type exactBuckets struct{ *oracle }

func (b exactBuckets) color(now int64, n int, in Color) Color {
	if n < 0 {
		b.oracle.color(now, 0, Red)
		return Red
	}
	return b.oracle.color(now, n, in)
}

func (b exactBuckets) tokens() (tc, te int64) {
	return max(floorOf(b.Tokens[0]), 0), max(floorOf(b.Tokens[1]), 0)
}

func (b exactBuckets) isIdle(int64) bool {
	return b.Tokens[0].Cmp(b.Burst[0]) == 0 && b.Tokens[1].Cmp(b.Burst[1]) == 0
}

func newContract(params compiler, tc, te int64) *contract {
	switch t := params.(type) {
	case TokenBucket:
		if t.Warmup > 0 {
			return &contract{params: params, slow: newSlow(params, tc)}
		}
	case SRTCM, TRTCM, TRTCM4115:
	default:
		return &contract{params: params, slow: newSlow(params, tc)}
	}
	b := exactBuckets{newOracle(params)}
	b.Tokens[0] = lesser(ratOf(max(tc, 0)), b.Burst[0])
	b.Tokens[1] = lesser(ratOf(max(te, 0)), b.Burst[1])
	return &contract{params: params, slow: b}
}

// copyAt returns a copy of the model at now. Calls of the copy do not change the model.
func (c *contract) copyAt(now int64) *contract {
	c.begin(now)
	own := *c
	switch s := c.slow.(type) {
	case exactBuckets:
		own.slow = exactBuckets{&oracle{s.Clone()}}
	default: // models of big.Rat: numbers are replaced, never changed
		p := reflect.New(reflect.TypeOf(s).Elem())
		p.Elem().Set(reflect.ValueOf(s).Elem())
		own.slow = p.Interface().(slowMeter)
	}
	return &own
}

func (c *contract) begin(now int64) {
	if _, average := c.slow.(*slowTSW); !c.begun && !average {
		c.slow.color(now, 0, Red)
	}
	c.begun = true
}

func (c *contract) color(now int64, n int, in Color) Color {
	c.begun = true
	return c.slow.color(now, n, in)
}

// modelAt returns the tokens of a copy at a time.
func (c *contract) modelAt(now int64) slowMeter {
	own := c.copyAt(now)
	own.slow.color(now, 0, Red)
	return own.slow
}

func (c *contract) tokens(now int64) (tc, te int64) { return c.modelAt(now).tokens() }

func (c *contract) remaining(now int64) int64 {
	tc, te := c.tokens(now)
	if _, peak := c.params.(TRTCM); peak {
		return min(tc, te)
	}
	return tc
}

func (c *contract) green(now int64, n int) bool { return c.copyAt(now).color(now, n, Green) == Green }

// debit takes n bytes from a bucket ahead of time.
func (c *contract) debit(n int64) {
	b := c.slow.(exactBuckets)
	b.Tokens[0].Sub(b.Tokens[0], ratOf(n))
}

// counts reports whether a bucket can owe n more bytes: it counts up to 2^61 units, or bytes
// if it is wide.
func (c *contract) counts(p *Profile, now int64, n int) bool {
	b := c.modelAt(now).(exactBuckets)
	lacks := new(big.Rat).Sub(b.Burst[0], b.Tokens[0])
	lacks.Add(lacks, ratOf(int64(n)))
	if p.rule == nil {
		lacks.Mul(lacks, ratOf(p.den))
	}
	return lacks.Cmp(ratOf(1<<61)) <= 0
}

// credit returns the bytes of a debit.
func (c *contract) credit(n int64) {
	b := c.slow.(exactBuckets)
	b.Tokens[0] = lesser(b.Tokens[0].Add(b.Tokens[0], ratOf(n)), b.Burst[0])
}

// become returns the model of a meter after SetProfile: it keeps its tokens, up to the
// bursts, less a part of a unit that the new rate cannot express. The model copies the size
// of that part from the meter.
func (c *contract) become(t testing.TB, params compiler, m *Meter, now int64) *contract {
	held := c.modelAt(now).(exactBuckets)
	next := newContract(params, 0, 0)
	next.begin(now)
	b := next.slow.(exactBuckets)
	buckets, _ := m.profile.buckets()
	l := m.profile.levels(m.state, m.profile.log, now)
	for i, bucket := range buckets {
		exact := lesser(held.Tokens[i], b.Burst[i])
		if exact.Sign() < 0 {
			exact.SetInt64(0)
		}
		got := new(big.Rat).Add(ratOf(l.at[i].bytes), big.NewRat(l.at[i].units, bucket.den))
		lost := new(big.Rat).Sub(exact, got)
		if lost.Sign() < 0 || lost.Cmp(big.NewRat(1, bucket.den)) >= 0 {
			t.Fatalf("%+v became %+v: bucket %d: got %v bytes, want %v", c.params, params, i, got, exact)
		}
		b.Tokens[i].Set(got)
	}
	return next
}
