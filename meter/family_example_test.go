package meter_test

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/a-seed-32e5a53f/shaper/meter"
)

// GCRA, the leaky bucket as a meter, is a token bucket by another name. Tokens are its
// remaining, RetryAfter is its retry_after, and ResetAfter its reset_after: how
// long until the limiter is full again.
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

// A meter for each source address; who has not been heard of for longest is
// forgotten for a new one.
func ExampleTable() {
	profile, _ := meter.TokenBucket{Rate: meter.BitRate(8_000_000), Burst: 1500}.Profile()
	table, err := meter.NewTable[netip.Addr](profile, meter.TableConfig{Keys: 2})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, source := range []string{"192.0.2.1", "192.0.2.1", "192.0.2.2", "2001:db8::1", "192.0.2.1"} {
		fmt.Println(source, table.Color(netip.MustParseAddr(source), 0, 1000, meter.Green))
	}
	fmt.Printf("%+v\n", table.Stats())
	// Output:
	// 192.0.2.1 green
	// 192.0.2.1 red
	// 192.0.2.2 green
	// 2001:db8::1 green
	// 192.0.2.1 green
	// {Keys:2 Evicted:2 Refused:0}
}

// Wait holds a sender back until its bytes may pass.
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

// Decide has all that the answer to a request says.
func ExampleMeter_Decide() {
	profile, _ := meter.TokenBucket{Rate: meter.Rate{Bytes: 5, Period: time.Second}, Burst: 2}.Profile()
	m := meter.New(profile)
	for range 3 {
		d := m.Decide(0, 1)
		fmt.Println(d.Color, "remaining", d.Remaining, "retry after", d.RetryAfter, "reset after", d.ResetAfter)
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

// Many customers, of whom some have no limit. Packets that a driver delivers
// together share one reading of the clock.
func ExampleColorEach() {
	limited, _ := meter.TokenBucket{Rate: meter.BitRate(8_000_000), Burst: 1500}.Profile()
	unlimited, _ := meter.TokenBucket{Rate: meter.Unlimited, Burst: 65536}.Profile()
	customers := []meter.Meter{meter.New(limited), meter.New(unlimited)}

	of := []*meter.Meter{&customers[0], &customers[1], &customers[0], &customers[1]}
	lengths := []int{1500, 1500, 100, 65536}
	colors := make([]meter.Color, len(of))
	meter.ColorEach(of, meter.Now(), lengths, nil, colors) // nil: color-blind
	fmt.Println(colors)
	// Output:
	// [green green red green]
}

// A meter is saved as its tokens and their time. When it is back it has refilled
// since. The time is of a clock that goes on meanwhile.
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

// What is green now is taken, and the rest is not: a lease.
func ExampleMeter_TakeUpTo() {
	profile, _ := meter.TokenBucket{Rate: meter.ByteRate(1000), Burst: 5000}.Profile()
	m := meter.New(profile)
	fmt.Println(m.TakeUpTo(0, 4000), m.TakeUpTo(0, 4000))
	// Output:
	// 4000 1000
}

// A sender that paces itself asks when it may send, instead of waiting.
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
