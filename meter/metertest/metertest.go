// Package metertest is a model of meters in exact rational arithmetic, for tests. It is written
// from the texts of RFC 2697 §3, RFC 2698 §3, RFC 4115 §3 and MEF 10.3 §12. It imports no package
// of this module, so it is independent of the meters compared with it by tests.
//
// The package is for tests. Any version may change it incompatibly.
package metertest

import (
	"fmt"
	"math/big"
)

// Color is a drop precedence.
type Color int

// Colors, from the best to the worst.
const (
	Green Color = iota
	Yellow
	Red
)

// String returns green, yellow or red.
func (c Color) String() string {
	if names := [...]string{"green", "yellow", "red"}; 0 <= c && int(c) < len(names) {
		return names[c]
	}
	return fmt.Sprintf("Color(%d)", int(c))
}

// Rule selects the buckets a packet takes tokens from.
type Rule int

const (
	// OneBucket takes from C. A fitting packet keeps its input color.
	OneBucket Rule = iota
	// EitherBucket takes from C for green, or from E for yellow: RFC 2697 and RFC 4115.
	EitherBucket
	// BothBuckets takes from P, and from C as well for green: RFC 2698.
	BothBuckets
)

// String returns one-bucket, either-bucket or both-buckets.
func (r Rule) String() string {
	if names := [...]string{"one-bucket", "either-bucket", "both-buckets"}; 0 <= r && int(r) < len(names) {
		return names[r]
	}
	return fmt.Sprintf("Rule(%d)", int(r))
}

// Buckets is a model of a meter. Index 0 is bucket C, index 1 is bucket E or P.
type Buckets struct {
	Rule    Rule
	Coupled bool        // the overflow of C goes into E: RFC 2697, and the coupling flag of MEF 10.3
	Rate    [2]*big.Rat // bytes per ns
	Burst   [2]*big.Rat // bytes
	Tokens  [2]*big.Rat // bytes
	Now     int64       // time of the latest refill, ns
	Begun   bool        // Now is valid: the first refill starts the clock
}

// Bucket is the configuration of a bucket: Bytes per Period ns, none if Bytes is 0, and a burst in
// bytes.
type Bucket struct{ Bytes, Period, Burst int64 }

// New returns the model of a meter with full buckets.
func New(rule Rule, coupled bool, buckets ...Bucket) *Buckets {
	b := &Buckets{Rule: rule, Coupled: coupled}
	for i := range b.Rate {
		b.Rate[i], b.Burst[i], b.Tokens[i] = new(big.Rat), new(big.Rat), new(big.Rat)
		if i >= len(buckets) {
			continue
		}
		if c := buckets[i]; c.Bytes > 0 {
			b.Rate[i].SetFrac64(c.Bytes, c.Period)
		}
		b.Burst[i].SetInt64(buckets[i].Burst)
		b.Tokens[i].Set(b.Burst[i])
	}
	return b
}

// Clone returns a copy without shared state.
func (b *Buckets) Clone() *Buckets {
	own := *b
	for i := range own.Tokens {
		own.Rate[i], own.Burst[i] = new(big.Rat).Set(b.Rate[i]), new(big.Rat).Set(b.Burst[i])
		own.Tokens[i] = new(big.Rat).Set(b.Tokens[i])
	}
	return &own
}

// Refill adds the tokens arriving until a time, ns, and caps each bucket at its burst. A time
// before the latest counts as the latest.
//
// RFC 2697: "If Tc is less than CBS, Tc is incremented by one, else if Te is less than EBS, Te is
// incremented by one". In continuous time, E gains the overflow of C.
func (b *Buckets) Refill(now int64) {
	if !b.Begun {
		b.Begun, b.Now = true, now
	}
	dt := new(big.Rat)
	if now > b.Now {
		dt.SetInt(new(big.Int).Sub(big.NewInt(now), big.NewInt(b.Now)))
		b.Now = now
	}
	for i := range b.Tokens {
		b.Tokens[i].Add(b.Tokens[i], new(big.Rat).Mul(dt, b.Rate[i]))
		over := new(big.Rat).Sub(b.Tokens[i], b.Burst[i])
		if over.Sign() <= 0 {
			continue
		}
		b.Tokens[i].Set(b.Burst[i])
		if i == 0 && b.Coupled {
			b.Tokens[1].Add(b.Tokens[1], over)
		}
	}
}

// Color refills the buckets and meters a packet of n bytes.
func (b *Buckets) Color(now, n int64, in Color) Color {
	b.Refill(now)
	switch {
	case in == Red:
	case b.Rule == OneBucket:
		if b.take(0, n) {
			return in
		}
	case b.Rule == EitherBucket:
		if in == Green && b.take(0, n) {
			return Green
		}
		if b.take(1, n) {
			return Yellow
		}
	case b.Rule == BothBuckets:
		if !b.take(1, n) {
			return Red
		}
		if in == Green && b.take(0, n) {
			return Green
		}
		return Yellow
	}
	return Red
}

// take takes n bytes from a bucket, and reports whether it held them.
func (b *Buckets) take(i int, n int64) bool {
	size := new(big.Rat).SetInt64(n)
	if b.Tokens[i].Cmp(size) < 0 {
		return false
	}
	b.Tokens[i].Sub(b.Tokens[i], size)
	return true
}
