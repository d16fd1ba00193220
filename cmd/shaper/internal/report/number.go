package report

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
)

// percent is part of whole, to the nearest tenth. It is 0 or 100 only if exact, and a dash if whole
// is 0.
func percent(part, whole int64) string {
	if whole == 0 {
		return "–"
	}
	p := 100 * float64(part) / float64(whole)
	switch {
	case part == 0:
		return "0 %"
	case part == whole:
		return "100 %"
	case p < 0.05:
		return "< 0.1 %"
	case p >= 99.95 && part < whole:
		return "> 99.9 %"
	}
	return strconv.FormatFloat(p, 'f', 1, 64) + " %"
}

// duration is ns with units, to the nearest millisecond from a second on.
func duration(ns int64) string {
	d := time.Duration(ns)
	if d >= time.Second {
		d = d.Round(time.Millisecond)
	}
	var long string
	if d >= time.Hour {
		long = say.Grouped(int64(d/time.Hour)) + " h "
	}
	if d >= time.Minute {
		long += fmt.Sprintf("%d min ", d/time.Minute%60)
	}
	short := (d % time.Minute).String() // one number, one unit
	unit := strings.LastIndexAny(short, "0123456789") + 1
	return long + short[:unit] + " " + short[unit:]
}

// brief is ns with a unit, to three digits.
func brief(ns int64) string {
	unit := int64(1)
	for ns/unit >= 1000 {
		unit *= 10
	}
	return duration((ns + unit/2) / unit * unit)
}

// meanRate is bytes over ns, to three digits. It is empty if no time passed.
func meanRate(bytes, ns int64) string {
	if ns <= 0 {
		return ""
	}
	rate := float64(bytes) * 8 / (float64(ns) / 1e9)
	prefix := ""
	for _, p := range []string{"k", "M", "G", "T"} {
		if rate < 999.5 {
			break
		}
		rate, prefix = rate/1000, p
	}
	digits := 0
	switch {
	case rate < 9.995:
		digits = 2
	case rate < 99.95:
		digits = 1
	}
	return fmt.Sprintf("mean %.*f %sbit/s", digits, rate, prefix)
}
