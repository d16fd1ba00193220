package engine

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Now returns the current time on the clock of leases and of the programs:
// CLOCK_MONOTONIC, in ns.
func Now() int64 {
	now, err := Monotonic()
	if err != nil {
		panic(err) // this clock exists in each kernel
	}
	return int64(now)
}

// Monotonic returns the time on the programs' clock, CLOCK_MONOTONIC, in ns.
func Monotonic() (uint64, error) {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		return 0, fmt.Errorf("clock: %w", err)
	}
	return uint64(t.Nano()), nil
}
