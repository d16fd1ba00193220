package shared

import (
	"errors"
	"fmt"
	"math"
	"math/big"
	"math/bits"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/a-seed-32e5a53f/shaper/meter"
)

// Params are the parameters of a limit: meter.TokenBucket, meter.GCRA, meter.FixedWindow,
// meter.SlidingCounter or meter.SlidingLog.
type Params interface {
	Profile() (*meter.Profile, error)
}

// Fail says how a limit decides while the store is lost.
type Fail uint8

const (
	FailClosed Fail = iota // nothing is allowed
	FailOpen               // everything is allowed
	FailRescue             // a local meter allows a share of the limit
)

// Limit describes a limit.
type Limit struct {
	Name   string // up to 64 bytes: part of the names of its keys
	Params Params
	Fail   Fail
	// Share is the part of the limit that this process allows for each key while the
	// store is lost, above 0 and at most 1, such as 0.1 for each of ten hosts. Rates,
	// bursts and limits are rounded down. For FailRescue only.
	Share float64
}

const (
	maxName    = 64  // bytes of a limit's name
	maxKey     = 256 // bytes of a budget or key
	maxEntries = 1 << 16
	// maxExact bounds all numbers in scripts. It is half of what a double counts
	// exactly, so that no quotient is rounded to a whole number that it is not.
	maxExact = 1 << 52
)

// Limiter decides about one limit. It is safe for concurrent use.
type Limiter struct {
	store  *Store
	limit  Limit
	kind   kind
	prefix string // of its keys, after the budget
	most   int64  // the burst, or limit
	den    int64  // of a bucket: ticks in a token; else 1
	per    int64  // of a bucket: ticks in a µs
	window int64  // µs
	args   [3]int64
	rescue *rescue // for FailRescue
}

// Limiter returns the limiter of a limit. The error joins all that is wrong with it, as
// *meter.FieldError: also what the script could not count exactly.
func (s *Store) Limiter(limit Limit) (*Limiter, error) {
	l := &Limiter{store: s, limit: limit, den: 1}
	errs := []error{checkName("Name", limit.Name, maxName, ":")}
	if err := l.compile(); err != nil {
		errs = append(errs, err)
	} else if err := l.makeRescue(); err != nil {
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return l, nil
}

func fault(field, format string, args ...any) error {
	return &meter.FieldError{Field: field, Reason: fmt.Sprintf(format, args...)}
}

// compile turns the parameters into numbers for a script.
func (l *Limiter) compile() error {
	if l.limit.Params == nil {
		return fault("Params", "is missing: use meter.GCRA or another limit of package meter")
	}
	if _, err := l.limit.Params.Profile(); err != nil {
		return err
	}
	var err error
	switch p := l.limit.Params.(type) {
	case meter.TokenBucket:
		if p.Warmup != 0 {
			return fault("Warmup", "cannot run at a store: leave it out")
		}
		err = l.bucket(p.Rate, p.Burst)
	case meter.GCRA:
		err = l.bucket(p.Rate, p.Burst)
	case meter.FixedWindow:
		err = l.windowed(windowKind, "window", p.Limit, p.Window)
	case meter.SlidingCounter:
		err = l.counter(p.Limit, p.Window)
	case meter.SlidingLog:
		if p.Entries > maxEntries {
			return fault("Entries", "%d are more than %d: use meter.SlidingCounter", p.Entries, maxEntries)
		}
		err = l.windowed(logKind, "log", p.Limit, p.Window)
		l.args[2] = int64(p.Entries)
	default:
		return fault("Params", "%T cannot run at a store: use TokenBucket, GCRA, FixedWindow, SlidingCounter or SlidingLog", p)
	}
	return err
}

// bucket compiles a token bucket. In a µs come per/den tokens, reduced: a tick is 1/per
// µs and 1/den token.
func (l *Limiter) bucket(rate meter.Rate, burst int64) error {
	if rate == meter.Unlimited {
		return fault("Rate", "is unlimited: a store would decide nothing")
	}
	r := big.NewRat(rate.Bytes, int64(rate.Period))
	r.Mul(r, big.NewRat(int64(time.Microsecond), 1))
	per, den := r.Num(), r.Denom()
	// A quarter of the longest cycle, of maxExact ticks.
	if largest := new(big.Int).Quo(big.NewInt(maxExact/4), den); largest.Cmp(big.NewInt(burst)) < 0 {
		return fault("Burst", "of %d is above %d, the largest that a script counts exactly at a Rate of %s tokens per µs: use a smaller Burst, or a Rate that reduces to a simpler fraction", burst, largest, r)
	}
	l.kind, l.most, l.den, l.per = bucketKind, burst, den.Int64(), 0
	if per.IsInt64() {
		l.per = per.Int64()
	}
	// The cycle is four times the time to fill the bucket. Two hours at least, if there is
	// room, let the clock go back that far; a few ms must be there, for keys that are
	// about to expire.
	ticks := burst * l.den
	least, log2 := 16, 33
	if l.per > 0 {
		least = max(least, bits.Len64(uint64(4*((ticks-1)/l.per+1)-1)))
		log2 = max(least, min(log2, 52-bits.Len64(uint64(l.per))))
	}
	if l.per == 0 || l.per > maxExact>>log2 {
		return fault("Rate", "of %s tokens per µs is too fast or too fine for a script to count exactly: use one that reduces to a simpler fraction", r)
	}
	l.args = [3]int64{ticks, l.per, 1 << log2}
	l.prefix = fmt.Sprintf("%s:bucket.%d.%d", l.limit.Name, l.per, log2)
	return nil
}

// windowed compiles what has a limit and a window.
func (l *Limiter) windowed(k kind, name string, limit int64, window time.Duration) error {
	if window%time.Microsecond != 0 {
		return fault("Window", "of %v is not a whole number of microseconds, which the store counts in", window)
	}
	l.kind, l.most, l.window = k, limit, window.Microseconds()
	l.args = [3]int64{limit, l.window, 0}
	l.prefix = l.limit.Name + ":" + name
	if k != logKind {
		l.prefix += fmt.Sprintf(".%d", l.window)
	}
	return nil
}

// counter compiles a sliding counter. It multiplies a count, up to limit, and a time, up to
// window, in two parts of the count: multiples of split, and the rest.
func (l *Limiter) counter(limit int64, window time.Duration) error {
	if err := l.windowed(counterKind, "counter", limit, window); err != nil {
		return err
	}
	split := int64(1)
	if limit > maxExact/2/l.window {
		split = 1 << (bits.Len64(uint64(maxExact/2/l.window)) - 1)
	}
	if largest := maxExact / l.window * split; limit > largest {
		return fault("Limit", "of %d is above %d, the largest that a script counts exactly in a Window of %v: use a shorter Window, or count in larger units", limit, largest, window)
	}
	l.args[2] = split
	return nil
}

// key is the name of a key. Its hash tag, in braces, has all keys of a budget in one slot
// of a cluster.
func (l *Limiter) key(budget, key string) string {
	if key != "" {
		key = ":" + key
	}
	return "{shaper:" + budget + "}:" + l.prefix + key
}

// amount is n as the script counts it. More than ever fits is the same as more by one.
func (l *Limiter) amount(n int64) int64 { return min(n, l.most+1) * l.den }

// checkName refuses names that would not be names of one key.
func checkName(field, name string, longest int, not string) error {
	switch {
	case len(name) > longest:
		return fault(field, "has %d bytes: use %d at most", len(name), longest)
	case strings.ContainsAny(name, "{}"+not):
		return fault(field, "%q has one of %s, which separate the parts of a key: leave them out", name, strings.Join(strings.Split("{}"+not, ""), " "))
	case !utf8.ValidString(name) || strings.ContainsFunc(name, unicode.IsControl):
		return fault(field, "%q has a line break or another control character, or is not UTF-8: leave it out", name)
	case name == "" && field != "Key":
		return fault(field, "is empty")
	}
	return nil
}

// mulDiv is a*b/c, rounded down, and whether there is a rest. The result must fit.
func mulDiv(a, b, c int64) (int64, bool) {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	q, rest := bits.Div64(hi, lo, uint64(c))
	return int64(min(q, math.MaxInt64)), rest > 0
}
