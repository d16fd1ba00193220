package say

import (
	"fmt"
	"math/big"
	"strconv"
	"strings"

	"github.com/a-seed-32e5a53f/shaper/meter"
)

// Count writes a number of things, such as 1 class or 1,234 classes.
func Count[N int | int64](n N, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	if strings.HasSuffix(thing, "s") {
		thing += "e"
	}
	return Grouped(int64(n)) + " " + thing + "s"
}

// Grouped writes a number with commas between thousands.
func Grouped(n int64) string {
	s := strconv.FormatInt(n, 10)
	first := strings.IndexAny(s, "0123456789")
	for i := len(s) - 3; i > first; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// Percent writes a part of a whole in percent, or "" if the whole is 0.
func Percent(part, whole int64) string {
	if whole == 0 {
		return ""
	}
	return fmt.Sprintf("%.1f", 100*float64(part)/float64(whole))
}

// tokens writes a number of tokens, which are bytes or packets.
func tokens(n int64, packets bool) string {
	if packets {
		return fmt.Sprintf("%d p", n)
	}
	return fmt.Sprintf("%d B", n)
}

// Bytes writes a size of memory with four digits.
func Bytes(n int64) string { return Scaled(n, 1024, "B", "KiB", "MiB", "GiB") }

// Scaled writes n with four digits, in the largest unit up to n. Each unit is factor times the
// previous one.
func Scaled(n int64, factor float64, units ...string) string {
	v := float64(n)
	for len(units) > 1 && v >= factor {
		v, units = v/factor, units[1:]
	}
	return fmt.Sprintf("%.4g %s", v, units[0])
}

// Speed writes a rate in bit/s with three digits and a prefix such as M, without the unit.
func Speed(bits int64) string {
	v := float64(bits)
	for _, unit := range []string{"", "k", "M", "G", "T"} {
		if v < 999.5 || unit == "T" {
			return strings.TrimSpace(fmt.Sprintf("%.3g %s", v, unit))
		}
		v /= 1000
	}
	return ""
}

// Rate writes a rate exactly, of bytes or packets.
func Rate(r meter.Rate, packets bool) string {
	if packets {
		return fmt.Sprintf("%dp/%v", r.Bytes, r.Period)
	}
	return r.String()
}

// FillTime writes the time in which a rate fills n bytes, with three digits.
func FillTime(n int64, r meter.Rate) string {
	if r.Bytes == 0 {
		return "never refills"
	}
	return duration(float64(n) * float64(r.Period) / float64(r.Bytes))
}

// Time writes a time in ns with three digits.
func Time(ns int64) string { return duration(float64(ns)) }

// duration writes a time in ns with three digits, from 1000 s on in whole seconds.
func duration(ns float64) string {
	if ns >= 999.5e9 {
		return fmt.Sprintf("%.0f s", ns/1e9)
	}
	for _, u := range []struct {
		ns   float64
		name string
	}{{1e9, "s"}, {1e6, "ms"}, {1e3, "us"}} {
		if ns >= u.ns {
			return fmt.Sprintf("%.3g %s", ns/u.ns, u.name)
		}
	}
	return fmt.Sprintf("%.3g ns", ns)
}

// Seconds writes a time in ns in seconds.
func Seconds(ns int64) string { return fmt.Sprintf("%.3f s", float64(ns)/1e9) }

// Unclassified is the name of the row of unclassified packets.
const Unclassified = "-"

// BitsPerSecond returns a rate in bit/s; 0 for none.
func BitsPerSecond(r meter.Rate) float64 {
	if r.Period == 0 {
		return 0
	}
	bits, _ := new(big.Rat).Mul(big.NewRat(r.Bytes, int64(r.Period)), big.NewRat(8e9, 1)).Float64()
	return bits
}
