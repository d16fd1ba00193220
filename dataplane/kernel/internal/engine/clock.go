package engine

import "golang.org/x/sys/unix"

// Now returns the current time on the clock of leases and of the programs:
// CLOCK_MONOTONIC, in ns.
func Now() int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic(err) // this clock exists in each kernel
	}
	return t.Nano()
}

// Monotonic is Now in the type of the times in maps.
func Monotonic() uint64 { return uint64(Now()) }
