package report

import (
	"math"
	"strconv"
)

// tick is a labeled value on an axis.
type tick struct {
	at    float64
	label string
}

// unit is a unit of an axis.
type unit struct {
	name string
	size float64 // in bit/s or s
	from float64 // end of the shortest axis in this unit, in bit/s or s
}

var (
	rateUnits = []unit{
		{"bit/s", 1, 0},
		{"kbit/s", 1e3, 1e3},
		{"Mbit/s", 1e6, 1e6},
		{"Gbit/s", 1e9, 1e9},
		{"Tbit/s", 1e12, 1e12},
		{"Pbit/s", 1e15, 1e15},
	}
	timeUnits = []unit{
		{"ns", 1e-9, 0},
		{"µs", 1e-6, 1e-6},
		{"ms", 1e-3, 1e-3},
		{"s", 1, 1},
		{"min", 60, 600},
		{"h", 3600, 36_000},
		{"d", 86_400, 864_000},
	}
)

// ticksTo returns labeled ticks from 0 to high, at most count besides 0. high
// must be above 0 and finite.
func ticksTo(high float64, units []unit, count int) []tick {
	in := units[0]
	for _, u := range units {
		if high >= u.from {
			in = u
		}
	}
	ticks := []tick{{0, "0"}}
	step := evenStep(high/in.size, count)
	for i := 1; float64(i)*step <= high/in.size*(1+1e-12); i++ {
		v := float64(i) * step
		ticks = append(ticks, tick{v * in.size, strconv.FormatFloat(v, 'g', 4, 64) + " " + in.name})
	}
	return ticks
}

// evenStep returns the smallest of 1, 2 and 5 times a power of ten of which
// count + 1 steps exceed high.
func evenStep(high float64, count int) float64 {
	exponent := math.Floor(math.Log10(high / float64(count+1)))
	for _, m := range []float64{1, 2, 5} {
		if step := m * math.Pow(10, exponent); float64(count+1)*step > high*(1+1e-12) {
			return step
		}
	}
	return math.Pow(10, exponent+1)
}
