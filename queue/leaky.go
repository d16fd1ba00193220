// Package queue paces packets through a leaky bucket: they leave at a rate,
// one after the other, and are dropped where the bucket is full.
//
// A queue here is a rule for departure times, not a buffer. Whoever asks holds
// the packet until it leaves: replay writes the time into the capture, a live
// plane waits. The rule is
//
//	depart = max(now, next)
//	next   = depart + length/rate
//
// in exact arithmetic: a departure keeps its fraction of a nanosecond, is
// rounded up where it is used, and no rounding is carried on.
package queue

import (
	"errors"
	"math"
	"math/big"
	"math/bits"
	"time"

	"github.com/a-seed-32e5a53f/shaper/meter"
)

// Config describes a leaky bucket. At least one limit is above zero; a packet
// is dropped where it would break one of those that are.
type Config struct {
	Rate    meter.Rate
	Time    time.Duration // longest wait
	Bytes   int64         // waiting, this packet included
	Packets int64         // waiting, this packet included
}

// maxTerm bounds both terms of the exact fraction, so that a packet's time on
// the wire is one multiplication and one division in 128 bits.
const maxTerm = 1 << 50

// Leaky is a leaky bucket as a queue. It is for one goroutine at a time.
type Leaky struct {
	cfg      Config
	num, den uint64 // length*num/den is the ns that a packet takes
	next     int64  // ns, whole part
	frac     uint64 // ns/den beyond it
	empty    bool   // no packet has come yet

	// waiting holds departures in order, kept only for limits in bytes or
	// packets.
	waiting []departure
	head    int
	backlog int64 // bytes
}

type departure struct {
	at    int64 // ns, rounded up
	bytes int64
}

// New returns an empty queue. The error joins all that is wrong with cfg, as
// meter.FieldErrors of rate and limit.
func New(cfg Config) (*Leaky, error) {
	var errs []error
	q := &Leaky{cfg: cfg, empty: true}
	if cfg.Rate.Bytes <= 0 || cfg.Rate.Period <= 0 {
		errs = append(errs, &meter.FieldError{Field: "rate", Reason: "must be above zero"})
	} else if r := big.NewRat(int64(cfg.Rate.Period), cfg.Rate.Bytes); r.Num().Int64() > maxTerm || r.Denom().Int64() > maxTerm {
		errs = append(errs, &meter.FieldError{Field: "rate", Reason: "is too fine to stay exact: choose a rounder one"})
	} else {
		q.num, q.den = r.Num().Uint64(), r.Denom().Uint64()
	}
	switch {
	case cfg.Time < 0 || cfg.Bytes < 0 || cfg.Packets < 0:
		errs = append(errs, &meter.FieldError{Field: "limit", Reason: "is negative"})
	case cfg.Time == 0 && cfg.Bytes == 0 && cfg.Packets == 0:
		errs = append(errs, &meter.FieldError{Field: "limit", Reason: "is missing: say how long a packet may wait, such as 100ms"})
	}
	if errs != nil {
		return nil, errors.Join(errs...)
	}
	return q, nil
}

// Admit asks for the departure of a packet of n bytes that came at now (ns, on
// a clock that does not go back). It returns the time to send it, rounded up
// to a ns, or false where a limit drops it. It allocates only where a limit in
// bytes or packets lets more packets wait than ever before.
func (q *Leaky) Admit(now int64, n int) (depart int64, ok bool) {
	at, frac := q.next, q.frac
	if q.empty || at < now {
		at, frac = now, 0
	}
	depart = at
	if frac > 0 {
		depart++
	}
	if q.cfg.Time > 0 && depart-now > int64(q.cfg.Time) {
		return 0, false
	}
	if q.cfg.Bytes > 0 || q.cfg.Packets > 0 {
		q.leave(now)
		if q.cfg.Bytes > 0 && q.backlog+int64(n) > q.cfg.Bytes ||
			q.cfg.Packets > 0 && int64(len(q.waiting)-q.head) >= q.cfg.Packets {
			return 0, false
		}
		if depart > now {
			q.wait(departure{depart, int64(n)})
		}
	}
	next, rest, ok := q.after(at, frac, uint64(max(n, 0)))
	if !ok {
		return 0, false
	}
	q.next, q.frac, q.empty = next, rest, false
	return depart, true
}

// after adds the time that n bytes take, and says whether an int64 holds it.
func (q *Leaky) after(at int64, frac, n uint64) (int64, uint64, bool) {
	hi, lo := bits.Mul64(n, q.num)
	lo, carry := bits.Add64(lo, frac, 0)
	if hi += carry; hi >= q.den {
		return 0, 0, false
	}
	ns, rest := bits.Div64(hi, lo, q.den)
	if ns > uint64(math.MaxInt64-1) || at > math.MaxInt64-1-int64(ns) {
		return 0, 0, false
	}
	return at + int64(ns), rest, true
}

// leave forgets the packets that have left by now.
func (q *Leaky) leave(now int64) {
	for q.head < len(q.waiting) && q.waiting[q.head].at <= now {
		q.backlog -= q.waiting[q.head].bytes
		q.head++
	}
}

// wait remembers a packet. Room at the front is used again once it is half of
// the slice, so that each entry moves once on average.
func (q *Leaky) wait(d departure) {
	if len(q.waiting) == cap(q.waiting) && q.head > len(q.waiting)/2 || q.head == len(q.waiting) {
		q.waiting = q.waiting[:copy(q.waiting, q.waiting[q.head:])]
		q.head = 0
	}
	q.waiting = append(q.waiting, d)
	q.backlog += d.bytes
}
