package nettest

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"
)

// InVM is true if the test runs in an emulated machine, which is about ten times slower.
var InVM = os.Getenv("SHAPER_VM") != ""

// Quiet skips a test of rates, delays or durations, which needs a quiet machine, unless -run names
// it, as make live does. The name of the test must begin with TestQuiet.
func Quiet(t testing.TB) {
	t.Helper()
	const prefix = "TestQuiet"
	if !strings.HasPrefix(t.Name(), prefix) {
		t.Fatalf("%s needs a quiet machine: its name must begin with %s", t.Name(), prefix)
	}
	if !InVM && !strings.Contains(flag.Lookup("test.run").Value.String(), prefix) {
		t.Skip("needs a quiet machine: make live")
	}
}

// Slower returns a longer time on a busy machine: d times the number of runnable tasks per CPU,
// at most 20 times. Use it for the time after which nothing is expected to arrive any more.
func Slower(d time.Duration) time.Duration {
	text, err := os.ReadFile("/proc/loadavg")
	var loads [3]float64
	var tasks int
	if err != nil {
		return d
	}
	if _, err := fmt.Sscan(strings.ReplaceAll(string(text), "/", " "), &loads[0], &loads[1], &loads[2],
		&tasks); err != nil {
		return d
	}
	return d * time.Duration(min(max(tasks/runtime.NumCPU(), 1), 20))
}

// Deep reports whether tests with random inputs must use all of them, by SHAPER_DEEP=1, as make
// deep does. Otherwise they use a part.
func Deep() bool { return os.Getenv("SHAPER_DEEP") != "" }

// Steady repeats a measurement until it succeeds, with longer and longer pauses. The test fails
// after five failed attempts, not counting those during which the machine stood still: timers of
// this process were late by more than stall. If all attempts were such, the test is skipped. The
// test must call Quiet first.
func Steady(t *testing.T, measure func() error) {
	t.Helper()
	Quiet(t)
	const stall, most, enough = 20 * time.Millisecond, 10, 5
	judged := 0
	var err error
	for attempt := 0; attempt < most && judged < enough; attempt++ {
		time.Sleep(time.Duration(attempt) * 2 * time.Second)
		lateness := watchTimers()
		err = measure()
		late := lateness()
		if err == nil {
			return
		}
		t.Logf("%v (timers up to %v late)", err, late)
		if late < stall || InVM {
			judged++
		}
	}
	if judged == 0 {
		t.Skip("the machine is not quiet: its timers were late in each attempt")
	}
	t.Error(err)
}

// watchTimers measures how late this process's timers are until the result is called.
func watchTimers() (lateness func() time.Duration) {
	stop, result := make(chan struct{}), make(chan time.Duration)
	go func() {
		const pause = time.Millisecond
		worst := time.Duration(0)
		for {
			begin := time.Now()
			select {
			case <-stop:
				result <- worst
				return
			case <-time.After(pause):
				worst = max(worst, time.Since(begin)-pause)
			}
		}
	}()
	return func() time.Duration {
		close(stop)
		return <-result
	}
}
