package shared

import (
	"errors"
	"fmt"
	"math/big"
	"math/bits"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/meter/unsaid"
)

// LimitParams are the parameters of a limit: meter.TokenBucket, meter.FixedWindow,
// meter.SlidingCounter or meter.SlidingLog.
type LimitParams interface {
	Profile() (*meter.Profile, error)
}

// Fail is the fail mode of a limit: how it decides while the store is lost.
type Fail uint8

const (
	FailClosed Fail = iota // nothing is allowed
	FailOpen               // everything is allowed
	FailRescue             // a local meter allows a share of the limit
)

// String returns closed, open or rescue.
func (f Fail) String() string {
	if names := [...]string{"closed", "open", "rescue"}; int(f) < len(names) {
		return names[f]
	}
	return fmt.Sprintf("Fail(%d)", uint8(f))
}

// Limit configures a Limiter.
type Limit struct {
	Name   string // part of its keys: 1 to 64 bytes
	Params LimitParams
	Fail   Fail
	// Share is the part of the limit for this process alone while the store is lost: above 0, at
	// most 1, and only with FailRescue. With ten hosts, 0.1 keeps their sum within the limit.
	// Bursts and limits are rounded down.
	Share float64
}

const (
	maxName    = 64  // bytes of a limit's name
	maxKey     = 256 // bytes of a budget or key
	maxEntries = 1 << 16
	// maxExact bounds the numbers that scripts divide. A double counts exactly
	// up to 2^53; half of that keeps floor and ceil of quotients exact, too.
	maxExact = 1 << 52
)

// Limiter makes the decisions of one limit. It is safe for concurrent use.
type Limiter struct {
	store  *Backend
	limit  Limit
	kind   kind
	prefix string   // prefix of its keys, after the budget
	most   int64    // burst or limit
	den    int64    // ticks per token of a bucket, else 1
	per    int64    // ticks per µs of a bucket
	window int64    // µs
	args   [3]int64 // parameters of the script
	rescue *rescue  // with FailRescue, else nil
}

// Limiter returns a limiter. The error joins all *meter.FieldErrors of the
// limit. In addition to the checks of package meter, it rejects numbers too
// large for the exact arithmetic of a script.
func (s *Backend) Limiter(limit Limit) (*Limiter, error) {
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

// compile computes the parameters of the script.
func (l *Limiter) compile() error {
	if l.limit.Params == nil {
		return fault("Params", "is missing: use meter.TokenBucket or another limit of package meter")
	}
	if _, err := l.limit.Params.Profile(); err != nil {
		return err
	}
	if err := l.checkUnsaid(); err != nil {
		return err
	}
	var err error
	switch p := l.limit.Params.(type) {
	case meter.TokenBucket:
		if p.Warmup != 0 {
			return fault("Warmup", "is not supported by a store: leave it out")
		}
		err = l.bucket(p.Rate, p.Burst)
	case meter.FixedWindow:
		err = l.windowed(windowKind, "window", p.Limit, p.Window)
	case meter.SlidingCounter:
		err = l.counter(p.Limit, p.Window)
	case meter.SlidingLog:
		if p.Entries > maxEntries {
			return fault("Entries", "%d are above %d: use meter.SlidingCounter", p.Entries, maxEntries)
		}
		err = l.windowed(logKind, "log", p.Limit, p.Window)
		l.args[2] = int64(p.Entries)
	default:
		return fault("Params",
			"%T is not supported by a store: use TokenBucket, FixedWindow, SlidingCounter or SlidingLog", p)
	}
	return err
}

// checkUnsaid rejects parameters unknown to the scripts.
func (l *Limiter) checkUnsaid() error {
	var known []string
	switch l.limit.Params.(type) {
	case meter.TokenBucket:
		known = []string{"Rate", "Burst", "Warmup", "GCRA"} // Warmup is refused, GCRA is a name
	case meter.FixedWindow, meter.SlidingCounter:
		known = []string{"Limit", "Window"}
	case meter.SlidingLog:
		known = []string{"Limit", "Window", "Entries"}
	default:
		return nil // compile refuses the type
	}
	for _, name := range unsaid.Fields(l.limit.Params, known...) {
		return fault(name, "is not supported by a store: leave it out")
	}
	return nil
}

// bucket compiles a token bucket gaining per/den tokens per µs, a reduced fraction. A tick is 1/per
// µs, in which the bucket gains 1/den token.
func (l *Limiter) bucket(rate meter.Rate, burst int64) error {
	if rate == meter.Unlimited {
		return fault("Rate", "is unlimited: there is nothing to decide")
	}
	r := big.NewRat(rate.Bytes, int64(rate.Period))
	r.Mul(r, big.NewRat(int64(time.Microsecond), 1))
	per, den := r.Num(), r.Denom()
	// The burst may be a quarter of the longest cycle, which is maxExact ticks.
	if largest := new(big.Int).Quo(big.NewInt(maxExact/4), den); largest.Cmp(big.NewInt(burst)) < 0 {
		return fault("Burst",
			"of %d is above %d, the largest that a script counts exactly at a Rate of %s tokens per µs: use a smaller Burst, or a Rate that reduces to a simpler fraction",
			burst, largest, r)
	}
	l.kind, l.most, l.den, l.per = bucketKind, burst, den.Int64(), 0
	if per.IsInt64() {
		l.per = per.Int64()
	}
	// The cycle is a power of two of µs: at least four times the time to fill the bucket, at least
	// 2^16 for keys expiring late, and 2^33, which is 2.4 h, if it fits. The server's clock may go
	// back by less than half of a cycle.
	ticks := burst * l.den
	least, log2 := 16, 33
	if l.per > 0 {
		least = max(least, bits.Len64(uint64(4*((ticks-1)/l.per+1)-1)))
		log2 = max(least, min(log2, 52-bits.Len64(uint64(l.per))))
	}
	if l.per == 0 || l.per > maxExact>>log2 {
		return fault("Rate",
			"of %s tokens per µs is too fast or too fine for a script to count exactly: use one that reduces to a simpler fraction",
			r)
	}
	l.args = [3]int64{ticks, l.per, 1 << log2}
	l.prefix = fmt.Sprintf("%s:bucket.%d.%d", l.limit.Name, l.per, log2)
	return nil
}

// windowed compiles a meter with a limit and a window.
func (l *Limiter) windowed(k kind, name string, limit int64, window time.Duration) error {
	if window%time.Microsecond != 0 {
		return fault("Window", "of %v is not a whole number of microseconds, which the store counts in",
			window)
	}
	l.kind, l.most, l.window = k, limit, window.Microseconds()
	l.args = [3]int64{limit, l.window, 0}
	l.prefix = l.limit.Name + ":" + name
	if k != logKind {
		l.prefix += fmt.Sprintf(".%d", l.window)
	}
	return nil
}

// counter compiles a sliding counter. Its script multiplies counts up to limit by times up to
// window. It splits each count into a multiple of split and a rest to keep products exact.
func (l *Limiter) counter(limit int64, window time.Duration) error {
	if err := l.windowed(counterKind, "counter", limit, window); err != nil {
		return err
	}
	split := int64(1)
	if limit > maxExact/2/l.window {
		split = 1 << (bits.Len64(uint64(maxExact/2/l.window)) - 1)
	}
	if largest := maxExact / l.window * split; limit > largest {
		return fault("Limit",
			"of %d is above %d, the largest that a script counts exactly in a Window of %v: use a shorter Window, or count in larger units",
			limit, largest, window)
	}
	l.args[2] = split
	return nil
}

// key returns a key. Its hash tag, in braces, places all keys of a budget in one slot of a
// cluster.
func (l *Limiter) key(budget, key string) string {
	if key == "" {
		return "{shaper:" + budget + "}:" + l.prefix
	}
	return "{shaper:" + budget + "}:" + l.prefix + ":" + key
}

// amount returns n in units of the script. All amounts above the limit count as
// one more than the limit.
func (l *Limiter) amount(n int64) int64 { return min(n, l.most+1) * l.den }

// checkName rejects empty names, except of Key, and names that could form
// another key.
func checkName(field, name string, longest int, not string) error {
	if name != "" && len(name) <= longest && plain(name, not) {
		return nil
	}
	switch {
	case len(name) > longest:
		return fault(field, "has %d bytes: the maximum is %d", len(name), longest)
	case strings.ContainsAny(name, "{}"+not):
		return fault(field, "%q contains one of %s, which separate the parts of a key: leave them out", name,
			strings.Join(strings.Split("{}"+not, ""), " "))
	case !utf8.ValidString(name) || strings.ContainsFunc(name, unicode.IsControl):
		return fault(field,
			"%q contains a line break, another control character or invalid UTF-8: leave it out", name)
	case name == "" && field != "Key":
		return fault(field, "is empty")
	}
	return nil
}

// plain reports whether a name consists of printable ASCII without separators,
// as most names do.
func plain(name, not string) bool {
	for i := range len(name) {
		if c := name[i]; c < ' ' || c > '~' || c == '{' || c == '}' || not != "" && c == not[0] {
			return false
		}
	}
	return true
}

// mulDiv returns a*b/c rounded down, which must fit an int64, and whether there
// is a remainder.
func mulDiv(a, b, c int64) (int64, bool) {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	q, rest := bits.Div64(hi, lo, uint64(c))
	return int64(q), rest > 0
}
