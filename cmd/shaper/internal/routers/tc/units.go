package tc

import (
	"fmt"
	"math/big"
	"strconv"
	"strings"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/pattern"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// Units of tc, from get_rate64, get_size64 and get_time in iproute2 (lib/utils_math.c and
// tc/tc_util.c). Case does not matter, and numbers are decimal.
var (
	// bit/s; ps is per second, and bps is bytes per second.
	tcRateUnits = map[string]int64{
		"": 1, "bit": 1, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9, "tbit": 1e12,
		"kibit": 1 << 10, "mibit": 1 << 20, "gibit": 1 << 30, "tibit": 1 << 40,
		"bps": 8, "kbps": 8e3, "mbps": 8e6, "gbps": 8e9, "tbps": 8e12,
		"kibps": 8 << 10, "mibps": 8 << 20, "gibps": 8 << 30, "tibps": 8 << 40,
	}
	// bits; all prefixes are binary.
	tcSizeUnits = map[string]int64{
		"": 8, "b": 8, "k": 8 << 10, "kb": 8 << 10, "m": 8 << 20, "mb": 8 << 20, "g": 8 << 30, "gb": 8 << 30,
		"kbit": 1 << 10, "mbit": 1 << 20, "gbit": 1 << 30,
	}
	// µs
	tcTimeUnits = map[string]int64{
		"": 1, "us": 1, "usec": 1, "usecs": 1, "ms": 1e3, "msec": 1e3, "msecs": 1e3, "s": 1e6, "sec": 1e6,
		"secs": 1e6,
	}
)

var tcNumber = pattern.Lazy(`^(\d{1,18}\.?\d{0,18}|\.\d{1,18})([eE]\+?\d{1,2})?`)

// quantity reads a number with a unit, and rounds n/per down.
func quantity(s, what string, units map[string]int64, per int64) (n int64, exact bool, err error) {
	number := tcNumber().FindString(s)
	factor, ok := units[strings.ToLower(s[len(number):])]
	value, isNumber := new(big.Rat).SetString(number)
	if !ok || !isNumber {
		if strings.Contains(s, "$") {
			return 0, false, fmt.Errorf("%s is not known: set it in this file, or expand the script first", s)
		}
		return 0, false, fmt.Errorf("%q is not a %s of tc", s, what)
	}
	value.Mul(value, big.NewRat(factor, per))
	whole := new(big.Int).Quo(value.Num(), value.Denom())
	if !whole.IsInt64() {
		return 0, false, fmt.Errorf("%q is too large", s)
	}
	return whole.Int64(), value.IsInt(), nil
}

// tcRate is a rate expressible in tc.
type tcRate struct {
	bytes int64 // per second
	text  string
}

// parseTCRate reads a rate as tc does: it stores whole bytes per second and discards the rest.
// Percentages are of the link's rate.
func parseTCRate(s string, link meter.Rate) (tcRate, error) {
	if number, ok := strings.CutSuffix(s, "%"); ok {
		part, ok := new(big.Rat).SetString(number)
		if !ok || len(number) > 18 || strings.ContainsAny(number, "/eE") || part.Sign() < 0 {
			return tcRate{}, fmt.Errorf("%q is not a percentage", s)
		}
		if link == (meter.Rate{}) {
			return tcRate{}, fmt.Errorf(
				"%s is a share of the interface's rate: say it with --link, such as --link 1gbit", s)
		}
		part.Mul(part, big.NewRat(link.Bytes, int64(link.Period)))
		part.Mul(part, big.NewRat(1e9, 100))
		whole := new(big.Int).Quo(part.Num(), part.Denom())
		if !whole.IsInt64() {
			return tcRate{}, fmt.Errorf("%q is too large", s)
		}
		return tcRate{whole.Int64(), fmt.Sprintf("%s of the link's %v", s, link)}, nil
	}
	n, exact, err := quantity(s, "rate", tcRateUnits, 8)
	text := s
	if unit := strings.ToLower(strings.TrimLeft(s, "0123456789.")); strings.HasSuffix(unit, "bps") {
		text += ": bytes per second in tc"
	}
	if !exact {
		text += fmt.Sprintf(", cut to %d B/s", n)
	}
	return tcRate{n, text}, err
}

// rate returns the rate for a policy.
func (r tcRate) rate() meter.Rate { return meter.ByteRate(r.bytes) }

// positiveRate reads a rate above zero.
func positiveRate(s string, link meter.Rate) (*tcRate, error) {
	r, err := parseTCRate(s, link)
	if err == nil && r.bytes == 0 {
		err = fmt.Errorf("rate %s is less than a byte per second", s)
	}
	return &r, err
}

// parseTCSize reads a size in bytes. k is 1024. Bytes after a slash, the cell, have no effect.
func parseTCSize(s string) (int64, error) {
	s, _, _ = strings.Cut(s, "/")
	n, _, err := quantity(s, "size", tcSizeUnits, 8)
	return n, err
}

// parseTCTime reads a time. tc stores whole microseconds.
func parseTCTime(s string) (time.Duration, error) {
	n, _, err := quantity(s, "time", tcTimeUnits, 1)
	if err == nil && n > 1<<32 {
		return 0, fmt.Errorf("%q is too large", s)
	}
	return time.Duration(n) * time.Microsecond, err
}

// parseTCNumber reads an integer of at most the given number of bits: decimal, or hexadecimal
// with 0x. It rejects leading zeros, because some options of tc read them as octal.
func parseTCNumber(s string, bits int) (uint32, error) {
	if len(s) > 1 && s[0] == '0' && s[1] != 'x' {
		return 0, fmt.Errorf("%q has leading zeros, which may be decimal or octal: write it without", s)
	}
	n, err := strconv.ParseUint(s, 0, bits)
	if err != nil {
		return 0, fmt.Errorf("%q is not a number from 0 to %d", s, uint64(1)<<bits-1)
	}
	return uint32(n), nil
}

const tcRoot = 0xffffffff // TC_H_ROOT of linux/pkt_sched.h

// parseTCHandle reads a handle or class: two hexadecimal numbers of 16 bits, such as 1:10. The
// second is 0 if it is missing.
func parseTCHandle(s string) (uint32, error) {
	if s == "root" {
		return tcRoot, nil
	}
	major, minor, _ := strings.Cut(s, ":")
	var n [2]uint64
	for i, part := range []string{major, minor} {
		if part == "" {
			continue
		}
		v, err := strconv.ParseUint(strings.TrimPrefix(part, "0x"), 16, 16)
		if err != nil {
			return 0, fmt.Errorf("%q is not a handle such as 1:10", s)
		}
		n[i] = v
	}
	return uint32(n[0]<<16 | n[1]), nil
}

// parseTCClassID reads the ID of a class, such as 1:10. A number without colon is the second one
// (get_tc_classid in iproute2).
func parseTCClassID(s string) (uint32, error) {
	if s != "root" && !strings.Contains(s, ":") {
		s = ":" + s
	}
	return parseTCHandle(s)
}

// handleName writes a handle as tc does.
func handleName(h uint32) string {
	if h&0xffff == 0 {
		return fmt.Sprintf("%x:", h>>16)
	}
	return fmt.Sprintf("%x:%x", h>>16, h&0xffff)
}
