package kerneltest

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/dataplane/nettest"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// NeedRoot skips a test loading programs into the kernel.
func NeedRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs privilege to load eBPF programs: run the test as root")
	}
}

// InVM is true in an emulated machine. It is about ten times slower, with imprecise clocks.
var InVM = nettest.InVM

// Rounds is n, or a tenth of it in a VM. Without nettest.Deep it is a third.
func Rounds(n int) int {
	switch {
	case InVM:
		return max(n/10, 1)
	case !nettest.Deep():
		return max(n/3, 1)
	}
	return n
}

// Seeded returns a source of random numbers. The seed is in the log of a failing test.
func Seeded(t testing.TB) *rand.Rand {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// Pick returns one of the values.
func Pick[T any](r *rand.Rand, values ...T) T { return values[r.IntN(len(values))] }

// FieldErrors unpacks the errors of a policy.
func FieldErrors(err error) []*dataplane.FieldError {
	var out []*dataplane.FieldError
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, err := range joined.Unwrap() {
			out = append(out, FieldErrors(err)...)
		}
		return out
	}
	var e *dataplane.FieldError
	if errors.As(err, &e) {
		out = append(out, e)
	}
	return out
}

// Compiled compiles a policy.
func Compiled(t testing.TB, policy *dataplane.Policy) *compiled.Plan {
	t.Helper()
	plan, err := compiled.Compile(policy)
	if err != nil {
		t.Fatal(err)
	}
	return plan
}

const Millisecond = int64(time.Millisecond)

// EightMbit is a rate of one byte per microsecond.
var EightMbit = meter.BitRate(8e6)

// CustomerPolicy returns a policy with these customers.
func CustomerPolicy(list []dataplane.Customer) *dataplane.Policy {
	return &dataplane.Policy{
		Classes: []dataplane.Class{{
			Name: "customers", Match: dataplane.Match{Customer: true},
			Meter: &dataplane.Meter{Name: "customers"},
		}},
		Customers: &dataplane.Customers{Key: dataplane.ByDestination, Nested: true, List: list},
	}
}

// Be16 appends values in network byte order.
func Be16(b []byte, values ...uint16) []byte {
	for _, v := range values {
		b = binary.BigEndian.AppendUint16(b, v)
	}
	return b
}

// Patient is the time limit of an event that normally takes milliseconds.
const Patient = 5 * time.Minute
