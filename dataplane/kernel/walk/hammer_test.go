package walk

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/kerneltest"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// allowedCPUs returns the first two CPUs that the test may use, or the only one.
func allowedCPUs(t *testing.T) (cpus []int) {
	t.Helper()
	var allowed unix.CPUSet
	if err := unix.SchedGetaffinity(0, &allowed); err != nil {
		t.Fatal(err)
	}
	for i := 0; len(cpus) < min(2, allowed.Count()); i++ {
		if allowed.IsSet(i) {
			cpus = append(cpus, i)
		}
	}
	return cpus
}

// onCPU runs f on a CPU and sends its error.
func onCPU(cpu int, f func() error) <-chan error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: a pinned thread must not be reused
		var set unix.CPUSet
		set.Set(cpu)
		err := unix.SchedSetaffinity(0, &set)
		if err == nil {
			err = f()
		}
		done <- err
	}()
	return done
}

// hammer runs the program on several CPUs at once for d. It returns the time per packet on each
// CPU, and the CPU time of the thread that got most of it.
func (c *hammered) hammer(
	t *testing.T, program *ebpf.Program, cpus []int, frame func(meter.Color) []byte, d time.Duration,
) (took []time.Duration, busy time.Duration) {
	t.Helper()
	took = make([]time.Duration, len(cpus))
	each := make([]time.Duration, len(cpus))
	faults := make([]error, len(cpus))
	var ready, done sync.WaitGroup
	for i, cpu := range cpus {
		ready.Add(1)
		done.Go(func() {
			runtime.LockOSThread() // never unlocked: a pinned thread must not be reused
			var set unix.CPUSet
			set.Set(cpu)
			if faults[i] = unix.SchedSetaffinity(0, &set); faults[i] != nil {
				ready.Done()
				return
			}
			data := frame(c.input[i])
			ready.Done()
			ready.Wait()
			n := 0
			before := threadTime()
			for begin := time.Now(); time.Since(begin) < d; n++ {
				_, packet, err := program.Benchmark(data, kerneltest.Rounds(20_000), nil)
				if err != nil {
					faults[i] = fmt.Errorf("CPU %d: %w", cpu, err)
					return
				}
				took[i] += packet
			}
			took[i] /= time.Duration(n)
			each[i] = threadTime() - before
		})
	}
	done.Wait()
	for _, err := range faults {
		if err != nil {
			t.Fatal(err)
		}
	}
	return took, slices.Max(each)
}

// threadTime is the CPU time of the calling thread.
func threadTime() time.Duration {
	var at unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &at) // never fails
	return time.Duration(at.Nano())
}
