package policyfile

import (
	"errors"
	"fmt"
	"math/big"
	"strings"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/pattern"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

var (
	// Those of tc, and those of SI with /s behind them.
	bitUnits = map[string]int64{
		"bit": 1, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9, "tbit": 1e12,
		"Kbit": 1e3, "Mbit": 1e6, "Gbit": 1e9, "Tbit": 1e12,
	}
	sizeUnits = map[string]int64{
		"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12,
		"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40,
	}
	timeUnits = map[string]int64{
		"ns": 1, "us": 1e3, "µs": 1e3, "ms": 1e6, "s": 1e9, "min": 60e9, "h": 3600e9, "d": 24 * 3600e9,
	}
)

const maxDigits = 18 // before and after the point of a number

// leadingDigits returns the number of digits at the beginning of s.
func leadingDigits(s string) int {
	return len(s) - len(strings.TrimLeft(s, "0123456789"))
}

// cutQuantity splits a quantity into its number and its unit, with or without a space between them.
// A policy contains many, so no regular expression does it.
func cutQuantity(s string) (number, unit string, ok bool) {
	n := min(leadingDigits(s), maxDigits)
	if n == 0 || strings.Contains(s, "\n") {
		return "", "", false
	}
	if rest := s[n:]; strings.HasPrefix(rest, ".") {
		if m := min(leadingDigits(rest[1:]), maxDigits); m > 0 {
			n += 1 + m
		}
	}
	if unit = s[n:]; len(unit) > 1 && unit[0] == ' ' && unit[1] != ' ' {
		unit = unit[1:]
	}
	return s[:n], unit, true
}

// isSeparateUnit reports whether a word is the unit of the word before it, a number such as rate=50.
func isSeparateUnit(before, word string) bool {
	_, value, assigns := strings.Cut(before, "=")
	if _, unit, ok := cutQuantity(value); !assigns || !ok || unit != "" {
		return false
	}
	unit, _, _ := strings.Cut(word, "/")
	return unit == "p" || unit != "" && (timeUnits[unit] != 0 || short().MatchString(unit))
}

// JoinUnits joins a number and its unit, such as rate=50 and Mbit/s, with a space.
func JoinUnits(words []string) (out []string) {
	for _, w := range words {
		if last := len(out) - 1; last >= 0 && isSeparateUnit(out[last], w) {
			out[last] += " " + w
		} else {
			out = append(out, w)
		}
	}
	return out
}

// splitQuantity splits a quantity into its exact number and its unit.
func splitQuantity(s string) (number, unit string, value *big.Rat, ok bool) {
	if number, unit, ok = cutQuantity(s); !ok {
		return "", "", nil, false
	}
	value, ok = new(big.Rat).SetString(number)
	return number, unit, value, ok
}

// tooLong returns an error for a number with more digits than a quantity can have.
func tooLong(s string) error {
	for rest := s; rest != ""; {
		n := leadingDigits(rest)
		if n > maxDigits {
			return fmt.Errorf("%q has a number of more than %d digits", s, maxDigits)
		}
		rest = rest[max(n, 1):]
	}
	return nil
}

// ParseRate reads a rate: bits per second with the unit bit, kbit, mbit, gbit or tbit
// (decimal, also Kbit, Mbit/s and so on), or an amount per time, such as 125MB/s or 10kB/1min.
func ParseRate(s string) (meter.Rate, error) {
	if err := tooLong(s); err != nil {
		return meter.Rate{}, err
	}
	if amount, period, ok := strings.Cut(s, "/"); ok {
		return parseFraction(s, amount, period, sizeUnits, "a size with a unit, such as 10kB")
	}
	number, unit, value, ok := splitQuantity(s)
	if !ok {
		return meter.Rate{}, fmt.Errorf(
			"%q is not a rate: write a number with a unit, such as 10mbit or 1.25MB/s", s)
	}
	factor, ok := bitUnits[unit]
	if !ok {
		return meter.Rate{}, refuseRate(number, unit)
	}
	return exactRate(s, value.Mul(value, big.NewRat(factor, 8e9)))
}

// ParsePacketRate reads a rate in packets, such as 100p/1s.
func ParsePacketRate(s string) (meter.Rate, error) {
	if err := tooLong(s); err != nil {
		return meter.Rate{}, err
	}
	amount, period, ok := strings.Cut(s, "/")
	if !ok {
		return meter.Rate{}, fmt.Errorf(
			"%q is not a rate in packets: a meter with count: packets needs one such as 100p/1s", s)
	}
	return parseFraction(s, amount, period, map[string]int64{"p": 1},
		"a number of packets, such as 100p, for a meter that counts packets")
}

func parseFraction(s, amount, period string, units map[string]int64, want string) (meter.Rate, error) {
	number, unit, value, ok := splitQuantity(amount)
	factor, known := units[unit]
	if bits := bitUnits[unit]; bits != 0 && units["B"] != 0 {
		factor, known = bits, true
		value.Quo(value, big.NewRat(8, 1))
	}
	if ok && !known && unit != "" && units["B"] != 0 && short().MatchString(unit) {
		return meter.Rate{}, refuseRate(number, unit)
	}
	if !ok || !known {
		return meter.Rate{}, fmt.Errorf("%q is not a rate: want %s before the slash", s, want)
	}
	if _, unit := timeUnits[period]; unit || period == "m" {
		period = "1" + period
	}
	d, err := ParseDuration(period)
	if err != nil {
		return meter.Rate{}, fmt.Errorf("%q is not a rate: %w", s, err)
	}
	if d == 0 {
		return meter.Rate{}, fmt.Errorf("%q is not a rate: its time is zero", s)
	}
	return exactRate(s, value.Mul(value, big.NewRat(factor, int64(d))))
}

// exactRate converts a rate s of r bytes per ns.
func exactRate(s string, r *big.Rat) (meter.Rate, error) {
	if !r.Num().IsInt64() || !r.Denom().IsInt64() {
		return meter.Rate{}, fmt.Errorf("%q has more digits than an exact rate can hold", s)
	}
	return meter.Rate{Bytes: r.Num().Int64(), Period: time.Duration(r.Denom().Int64())}, nil
}

// ParseSize reads a number of bytes. B, kB, MB, GB and TB are decimal, KiB, MiB, GiB and
// TiB are binary, a bare number is bytes.
func ParseSize(s string) (int64, error) {
	if err := tooLong(s); err != nil {
		return 0, err
	}
	number, unit, value, ok := splitQuantity(s)
	if !ok {
		return 0, &notSizeError{s, "a number of bytes, or one with a unit such as 64KiB or 20ms"}
	}
	factor, ok := sizeUnits[unit]
	if unit == "" {
		factor, ok = 1, true
	}
	if !ok {
		if err := ambiguousSize(number, unit); err != nil {
			return 0, err
		}
		return 0, &notSizeError{
			s, "a number with one of B kB MB GB KiB MiB GiB, a bare number of bytes, or a time such as 20ms",
		}
	}
	value.Mul(value, big.NewRat(factor, 1))
	if !value.IsInt() || !value.Num().IsInt64() {
		return 0, fmt.Errorf("%q is not a whole number of bytes", s)
	}
	return value.Num().Int64(), nil
}

// notSizeError is the error for a text which is not a size, not even one with an ambiguous unit.
type notSizeError struct{ text, want string }

func (e *notSizeError) Error() string {
	return fmt.Sprintf("%q is not a size: write %s", e.text, e.want)
}

// parseBytes is ParseSize for a parameter other than a time or a rate. want describes a valid
// value.
func parseBytes(s, want string) (int64, error) {
	v, err := ParseSize(s)
	if err == nil {
		return v, nil
	}
	if _, rate := ParseRate(s); rate == nil || errors.As(err, new(*notSizeError)) {
		return 0, &notSizeError{s, want}
	}
	return 0, err
}

// isDuration reports whether a quantity has a unit of time.
func isDuration(s string) bool {
	_, unit, ok := cutQuantity(s)
	_, known := timeUnits[unit]
	return ok && known
}

// ParseDuration reads a time with the unit ns, us, ms, s, min, h or d.
func ParseDuration(s string) (time.Duration, error) {
	if err := tooLong(s); err != nil {
		return 0, err
	}
	number, unit, value, ok := splitQuantity(s)
	factor, known := timeUnits[unit]
	if ok && unit == "m" {
		return 0, fmt.Errorf("%q is ambiguous: m is minutes or milli: write %smin or %sms", s, number, number)
	}
	if !ok || !known {
		return 0, fmt.Errorf("%q is not a time: write a number with one of ns us ms s min h d", s)
	}
	value.Mul(value, big.NewRat(factor, 1))
	if !value.IsInt() || !value.Num().IsInt64() {
		return 0, fmt.Errorf("%q is not a whole number of nanoseconds below 292 years", s)
	}
	return time.Duration(value.Num().Int64()), nil
}

// FormatDuration writes a time as ParseDuration reads it: as a whole number, in the longest possible unit. No
// unit is longer than longest.
func FormatDuration(d, longest time.Duration) string {
	for _, unit := range []string{"h", "min", "s", "ms", "us"} {
		if factor := time.Duration(timeUnits[unit]); factor <= longest && d%factor == 0 {
			return fmt.Sprintf("%d%s", d/factor, unit)
		}
	}
	return fmt.Sprintf("%dns", d)
}

// scale lists the possible meanings of a prefix in an ambiguous unit such as kb.
var scale = map[byte]struct{ bits, decimal, binary, word string }{
	'k': {"kbit", "kB", "KiB", "kilo"},
	'm': {"mbit", "MB", "MiB", "mega"},
	'g': {"gbit", "GB", "GiB", "giga"},
	't': {"tbit", "TB", "TiB", "tera"},
}

var short = pattern.Lazy(`^(?i)([kmgt])?i?(b|bp|bps|bits?|bits?/s|bytes?)?$`)

// refuseRate returns the error of a unit which is no unit of rate, or differs between tools.
func refuseRate(number, unit string) error {
	if unit == "" {
		return fmt.Errorf("%q is a rate without a unit: write %sbit for bits or %sB/s for bytes per second",
			number, number, number)
	}
	if exact := strings.TrimSuffix(strings.ToLower(unit), "s"); bitUnits[exact] != 0 {
		return fmt.Errorf("unknown unit %q: write %s%s", unit, number, exact)
	}
	m := short().FindStringSubmatch(unit)
	switch {
	case m != nil && strings.HasPrefix(strings.ToLower(m[2]), "bit"):
		return fmt.Errorf("unknown unit %q: rates are decimal, write one of bit kbit mbit gbit tbit", unit)
	case m == nil:
		return fmt.Errorf("%q is not a unit of rate: write one of bit kbit mbit gbit tbit, or a size in a time such as 125MB/s",
			unit)
	case m[1] == "":
		return fmt.Errorf(
			"%q is ambiguous: bits to some tools, bytes per second to others (tc): write %sbit or %sB/s",
			unit, number, number)
	}
	s := scale[strings.ToLower(m[1])[0]]
	return fmt.Errorf("%q is ambiguous: %sbits per second to some tools, %sbytes per second to others (tc): write %s%s or %s%s/s",
		unit, s.word, s.word, number, s.bits, number, s.decimal)
}

// ambiguousSize returns the error of a size unit with different meanings in different tools, or nil
// for other units.
func ambiguousSize(number, unit string) error {
	m := short().FindStringSubmatch(unit)
	if m == nil || unit == "" {
		return nil
	}
	if bitUnits[strings.ToLower(unit)] != 0 {
		return fmt.Errorf(
			"%q is a unit of rate, not of size: write bytes, such as 64KiB, or a time, such as 20ms", unit)
	}
	if m[1] == "" {
		return fmt.Errorf("%q is ambiguous: bits or bytes: write %sB for bytes", unit, number)
	}
	s := scale[strings.ToLower(m[1])[0]]
	if strings.EqualFold(unit, s.binary) {
		return fmt.Errorf("unit %q: units are case-sensitive, write %s%s", unit, number, s.binary)
	}
	return fmt.Errorf("%q is ambiguous: a power of 1000 to some tools, of 1024 to others: write %s%s or %s%s",
		unit, number, s.decimal, number, s.binary)
}
