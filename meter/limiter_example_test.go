package meter_test

import (
	"context"
	"fmt"
	"time"

	"github.com/a-seed-32e5a53f/shaper/meter"
)

// Wait blocks a sender until its bytes may pass.
func ExampleLocked_Wait() {
	profile, _ := meter.TokenBucket{Rate: meter.ByteRate(100_000), Burst: 1500}.Profile()
	limit := meter.NewLocked(profile)
	begin := time.Now()
	for range 3 {
		if err := limit.Wait(context.Background(), meter.Now, 1000); err != nil {
			fmt.Println(err)
		}
	}
	fmt.Println("3000 bytes after 15 ms:", time.Since(begin) >= 15*time.Millisecond)
	fmt.Println(limit.Wait(context.Background(), meter.Now, 1501))
	// Output:
	// 3000 bytes after 15 ms: true
	// 1501 bytes are more than the meter ever lets through
}

// Decide returns all the numbers for the reply to a request.
func ExampleMeter_Decide() {
	profile, _ := meter.TokenBucket{Rate: meter.Per(5, time.Second), Burst: 2}.Profile()
	m := meter.New(profile)
	for range 3 {
		d := m.Decide(0, 1)
		fmt.Println(d.Color, "remaining", d.Remaining, "retry after", d.RetryAfter, "reset after",
			d.ResetAfter)
	}
	// Output:
	// green remaining 1 retry after 0s reset after 200ms
	// green remaining 0 retry after 0s reset after 400ms
	// red remaining 0 retry after 200ms reset after 400ms
}

// Five requests a second, ten at once.
func ExampleMeter_Allow() {
	profile, _ := meter.TokenBucket{Rate: meter.Per(5, time.Second), Burst: 10}.Profile()
	m := meter.New(profile)
	now, allowed := meter.Now(), 0
	for range 30 {
		if m.Allow(now, 1) {
			allowed++
		}
	}
	fmt.Println(allowed)
	// Output:
	// 10
}

// TakeUpTo leases the bytes that are green now.
func ExampleMeter_TakeUpTo() {
	profile, _ := meter.TokenBucket{Rate: meter.ByteRate(1000), Burst: 5000}.Profile()
	m := meter.New(profile)
	fmt.Println(m.TakeUpTo(0, 4000), m.TakeUpTo(0, 4000))
	// Output:
	// 4000 1000
}

// A sender that paces itself asks when it may send, instead of blocking.
func ExampleMeter_Reserve() {
	profile, _ := meter.TokenBucket{Rate: meter.ByteRate(1_000_000), Burst: 1500}.Profile()
	m := meter.New(profile)
	for range 3 {
		r := m.Reserve(0, 1500, 2*time.Millisecond)
		fmt.Println(r.OK, r.Delay)
	}
	// Output:
	// true 0s
	// true 1.5ms
	// false 0s
}
