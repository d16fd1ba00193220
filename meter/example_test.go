package meter_test

import (
	"fmt"
	"time"

	"github.com/a-seed-32e5a53f/shaper/meter"
)

func Example() {
	profile, err := meter.TRTCM{
		CIR: meter.BitRate(8_000_000), CBS: 1500, // one byte per microsecond
		PIR: meter.BitRate(16_000_000), PBS: 3000,
	}.Profile()
	if err != nil {
		fmt.Println(err)
		return
	}
	m := meter.New(profile)
	for i := range 4 {
		now := time.Duration(i) * 250 * time.Microsecond
		fmt.Println(now, m.Color(int64(now), 1500, meter.Green))
	}
	// Output:
	// 0s green
	// 250µs yellow
	// 500µs red
	// 750µs yellow
}

// A color-aware meter is told the color that the packet came with, here from
// a marker upstream. Red stays red and spends nothing.
func ExampleMeter_Color_aware() {
	profile, _ := meter.SRTCM{CIR: meter.BitRate(1_000_000), CBS: 3000, EBS: 1500}.Profile()
	m := meter.New(profile)
	for _, before := range []meter.Color{meter.Red, meter.Yellow, meter.Green, meter.Green, meter.Green} {
		fmt.Println(before, "->", m.Color(0, 1500, before))
	}
	// Output:
	// red -> red
	// yellow -> yellow
	// green -> green
	// green -> green
	// green -> red
}

// Packets that a driver delivers together share one reading of the clock.
func ExampleMeter_Colors() {
	profile, _ := meter.SRTCM{CIR: meter.BitRate(1_000_000), CBS: 3000, EBS: 1500}.Profile()
	m := meter.New(profile)
	colors := make([]meter.Color, 4)
	m.Colors(0, []int{1500, 1500, 1500, 64}, nil, colors) // nil: color-blind
	fmt.Println(colors)
	// Output:
	// [green green yellow red]
}

func ExampleMeter_Explain() {
	profile, _ := meter.SRTCM{CIR: meter.BitRate(8_000_000), CBS: 1500, EBS: 3000}.Profile()
	m := meter.New(profile)
	m.Color(0, 1000, meter.Green)
	fmt.Println(m.Explain(100_000, 700, meter.Green))
	// Output:
	// 700 B green -> yellow, Tc 600 -> 600, Te 3000 -> 2300 (RFC 2697 §3: input green, Tc < B and Te >= B: yellow, Te -= B)
}

// New parameters keep what the buckets hold.
func ExampleMeter_SetProfile() {
	slow, _ := meter.SRTCM{CIR: meter.BitRate(1_000_000), CBS: 10_000, EBS: 5000}.Profile()
	fast, _ := meter.SRTCM{CIR: meter.BitRate(9_000_000), CBS: 8000, EBS: 5000}.Profile()
	m := meter.New(slow)
	m.Color(0, 1500, meter.Green)
	m.SetProfile(0, fast)
	fmt.Println(m.Tokens(0))
	// Output:
	// 8000 5000
}
