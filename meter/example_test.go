package meter_test

import (
	"fmt"
	"sync"
	"time"

	"github.com/a-seed-32e5a53f/shaper/meter"
)

// A two-rate meter colors four packets of 1500 bytes that arrive every 250 µs.
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

// The single-rate three-color marker: C refills at CIR, and its overflow fills E.
func ExampleSRTCM() {
	profile, _ := meter.SRTCM{CIR: meter.BitRate(8_000_000), CBS: 1500, EBS: 3000}.Profile()
	m := meter.New(profile)
	for range 4 {
		fmt.Println(m.Color(0, 1500, meter.Green))
	}
	// Output:
	// green
	// yellow
	// yellow
	// red
}

// The two-rate three-color marker: a green packet takes tokens from both buckets.
func ExampleTRTCM() {
	profile, _ := meter.TRTCM{
		CIR: meter.BitRate(8_000_000), CBS: 1500,
		PIR: meter.BitRate(16_000_000), PBS: 3000,
	}.Profile()
	m := meter.New(profile)
	for range 3 {
		fmt.Print(m.Color(0, 1500, meter.Green), ", then ")
		fmt.Println(m.Tokens(0)) // Tc and Tp
	}
	// Output:
	// green, then 0 1500
	// yellow, then 0 0
	// red, then 0 0
}

// The marker of RFC 4115: a green packet takes no excess tokens, and the rates are
// independent.
func ExampleTRTCM4115() {
	profile, _ := meter.TRTCM4115{
		CIR: meter.BitRate(8_000_000), CBS: 1500,
		EIR: meter.BitRate(1_000_000), EBS: 1500,
	}.Profile()
	m := meter.New(profile)
	for range 3 {
		fmt.Print(m.Color(0, 1500, meter.Green), ", then ")
		fmt.Println(m.Tokens(0)) // Tc and Te
	}
	// Output:
	// green, then 0 1500
	// yellow, then 0 0
	// red, then 0 0
}

// A token bucket has two colors: a packet that does not conform is red.
func ExampleTokenBucket() {
	profile, _ := meter.TokenBucket{Rate: meter.BitRate(8_000_000), Burst: 3000}.Profile()
	m := meter.New(profile)
	fmt.Println(m.Color(0, 1500, meter.Green), m.Color(0, 1500, meter.Green), m.Color(0, 1500, meter.Green))
	fmt.Println(m.Color(1_500_000, 1500, meter.Green)) // 1.5 ms later
	// Output:
	// green green red
	// green
}

// GCRA, the leaky bucket as a meter, is a token bucket by another name. Tokens are its
// remaining, RetryAfter is its retry_after, and ResetAfter its reset_after: the time
// until the limiter is full again.
func ExampleTokenBucket_gcra() {
	profile, err := meter.TokenBucket{Rate: meter.Per(1, time.Second), Burst: 3}.Profile()
	if err != nil {
		fmt.Println(err)
		return
	}
	m := meter.New(profile)
	for i := range 5 {
		now := int64(i) * int64(100*time.Millisecond)
		color := m.Color(now, 1, meter.Green)
		remaining, _ := m.Tokens(now)
		retry, _ := m.RetryAfter(now, 1)
		reset, _ := m.ResetAfter(now)
		fmt.Println(color, remaining, retry, reset)
	}
	// Output:
	// green 2 0s 1s
	// green 1 0s 1.9s
	// green 0 800ms 2.8s
	// red 0 700ms 2.7s
	// red 0 600ms 2.6s
}

// Profile reports every invalid parameter.
func ExampleProfile() {
	_, err := meter.TRTCM{CIR: meter.BitRate(2_000_000), PIR: meter.BitRate(1_000_000), PBS: 3000}.Profile()
	fmt.Println(err)
	// Output:
	// PIR 1mbit is below CIR 2mbit: it must be equal or greater (RFC 2698 §2)
	// CBS must be above zero (RFC 2698 §2)
}

// Rates are exact fractions.
func ExampleRate() {
	fmt.Println(meter.BitRate(10_000_000), meter.ByteRate(125), meter.Per(10_000, time.Minute))
	burst, _ := meter.BitRate(10_000_000).Burst(20 * time.Millisecond)
	fmt.Println(burst, "bytes arrive in 20 ms")
	// Output:
	// 10mbit 1kbit 10000B/1m0s
	// 25000 bytes arrive in 20 ms
}

// A color-aware meter receives the color that the packet already has, here from a marker
// upstream. Red stays red and takes no tokens.
func ExampleMeter_Color_aware() {
	profile, _ := meter.SRTCM{CIR: meter.BitRate(1_000_000), CBS: 3000, EBS: 1500}.Profile()
	m := meter.New(profile)
	for _, in := range []meter.Color{meter.Red, meter.Yellow, meter.Green, meter.Green, meter.Green} {
		fmt.Println(in, "->", m.Color(0, 1500, in))
	}
	// Output:
	// red -> red
	// yellow -> yellow
	// green -> green
	// green -> green
	// green -> red
}

// Packets that a driver delivers together share one clock reading.
func ExampleMeter_Colors() {
	profile, _ := meter.SRTCM{CIR: meter.BitRate(1_000_000), CBS: 3000, EBS: 1500}.Profile()
	m := meter.New(profile)
	colors := make([]meter.Color, 4)
	m.Colors(0, []int{1500, 1500, 1500, 64}, nil, colors) // nil: color-blind
	fmt.Println(colors)
	// Output:
	// [green green yellow red]
}

// Explain returns the verdict with the tokens before and after, and the clause of the RFC.
func ExampleMeter_Explain() {
	profile, _ := meter.SRTCM{CIR: meter.BitRate(8_000_000), CBS: 1500, EBS: 3000}.Profile()
	m := meter.New(profile)
	m.Color(0, 1000, meter.Green)
	fmt.Println(m.Explain(100_000, 700, meter.Green))
	// Output:
	// 700 B green -> yellow, Tc 600 -> 600, Te 3000 -> 2300 (RFC 2697 §3: input green, Tc < B and Te >= B: yellow, Te -= B)
}

// New parameters keep the tokens, up to the new bursts.
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

// Many customers, some of them without a limit. Packets that a driver delivers together
// share one clock reading.
func ExampleColorEach() {
	limited, _ := meter.TokenBucket{Rate: meter.BitRate(8_000_000), Burst: 1500}.Profile()
	unlimited, _ := meter.TokenBucket{Rate: meter.Unlimited, Burst: 65536}.Profile()
	customers := []meter.Meter{meter.New(limited), meter.New(unlimited)}

	meters := []*meter.Meter{&customers[0], &customers[1], &customers[0], &customers[1]} // by packet
	lengths := []int{1500, 1500, 100, 65536}
	colors := make([]meter.Color, len(meters))
	meter.ColorEach(meters, meter.Now(), lengths, nil, colors) // nil: color-blind
	fmt.Println(colors)
	// Output:
	// [green green red green]
}

// A program saves the tokens of a meter and their time. Restore returns a meter that has
// refilled since. The clock must continue in the meantime.
func ExampleRestore() {
	profile, _ := meter.TokenBucket{Rate: meter.ByteRate(1000), Burst: 5000}.Profile()
	m := meter.New(profile)
	saved := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	m.Color(saved.UnixNano(), 5000, meter.Green)
	tc, te := m.Tokens(saved.UnixNano())

	again := meter.Restore(profile, saved.UnixNano(), tc, te)
	fmt.Println(again.Tokens(saved.Add(3 * time.Second).UnixNano()))
	// Output:
	// 3000 0
}

// Several goroutines meter by one Locked meter. Do reaches the methods that Locked lacks.
func ExampleLocked() {
	profile, _ := meter.TokenBucket{Rate: meter.BitRate(1_000_000), Burst: 64_000}.Profile()
	limit := meter.NewLocked(profile)
	var workers sync.WaitGroup
	for range 8 {
		workers.Go(func() { limit.Color(0, 1000, meter.Green) })
	}
	workers.Wait()
	limit.Do(func(m *meter.Meter) { fmt.Println(m.Tokens(0)) })
	// Output:
	// 56000 0
}

// A meter is saved, and restored when the program starts again.
func ExampleMeter_AppendBinary() {
	profile, err := meter.TokenBucket{Rate: meter.ByteRate(1000), Burst: 5000}.Profile()
	if err != nil {
		fmt.Println(err)
		return
	}
	m := meter.New(profile)
	m.Color(0, 5000, meter.Green)
	saved, err := m.AppendBinary(nil)
	if err != nil {
		fmt.Println(err)
		return
	}

	again := meter.New(profile)
	if err := again.UnmarshalBinary(saved); err != nil {
		fmt.Println("starts full:", err)
	}
	again.SetProfile(int64(2*time.Second), profile) // in case the parameters have changed since
	tc, _ := again.Tokens(int64(2 * time.Second))
	fmt.Println(tc, "bytes")
	// Output:
	// 2000 bytes
}

// A router restores a meter after a reboot, which took three seconds. Its monotonic clock began
// anew.
func ExampleMeter_Shift() {
	profile, _ := meter.TokenBucket{Rate: meter.ByteRate(1000), Burst: 5000}.Profile()
	m := meter.New(profile)
	monotonic, wall := int64(8e15), int64(1_700_000_000e9)
	m.Color(monotonic, 5000, meter.Green)
	saved, _ := m.AppendBinary(nil)
	offset := wall - monotonic // saved, too

	monotonic, wall = 1e9, wall+3e9
	again := meter.New(profile)
	if err := again.UnmarshalBinary(saved); err != nil {
		fmt.Println("starts full:", err)
	}
	again.Shift(monotonic, time.Duration(offset-(wall-monotonic)))
	tc, _ := again.Tokens(monotonic)
	fmt.Println(tc, "bytes")
	// Output:
	// 3000 bytes
}
