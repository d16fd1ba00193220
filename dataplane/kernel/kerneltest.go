package kernel

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/nettest"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// needRoot skips a test that loads programs into the kernel.
func needRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs privilege to load eBPF programs: run the test as root")
	}
}

// inVM is true in an emulated machine. It is about ten times slower and has imprecise clocks.
var inVM = nettest.InVM

// rounds is n, or a tenth of it in a VM. Without nettest.Deep it is a third.
func rounds(n int) int {
	switch {
	case inVM:
		return max(n/10, 1)
	case !nettest.Deep():
		return max(n/3, 1)
	}
	return n
}

// seeded returns a source of random numbers. The seed is in the log of a failing test.
func seeded(t testing.TB) *rand.Rand {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// pick returns one of the values.
func pick[T any](r *rand.Rand, values ...T) T { return values[r.IntN(len(values))] }

// bps is a rate of n bits per second.
func bps(n int64) meter.Rate { return meter.BitRate(n) }

// fieldErrors unpacks the errors of a policy.
func fieldErrors(err error) []*dataplane.FieldError {
	var out []*dataplane.FieldError
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, err := range joined.Unwrap() {
			out = append(out, fieldErrors(err)...)
		}
		return out
	}
	var e *dataplane.FieldError
	if errors.As(err, &e) {
		out = append(out, e)
	}
	return out
}

// compiled compiles a policy.
func compiled(t testing.TB, policy *dataplane.Policy) *dataplane.Plan {
	t.Helper()
	plan, err := dataplane.Compile(policy)
	if err != nil {
		t.Fatal(err)
	}
	return plan
}

const ms = int64(time.Millisecond)

// mega is a rate of one byte per microsecond.
var mega = bps(8e6)

// customerPolicy returns a policy with these customers.
func customerPolicy(list []dataplane.Customer) *dataplane.Policy {
	return &dataplane.Policy{
		Classes:   []dataplane.Class{{Name: "customers", Match: dataplane.Match{Customer: true}, Meter: &dataplane.Meter{Name: "customers"}}},
		Customers: &dataplane.Customers{Key: dataplane.ByDestination, Nested: true, List: list},
	}
}

// be16 appends values in network byte order.
func be16(b []byte, values ...uint16) []byte {
	for _, v := range values {
		b = binary.BigEndian.AppendUint16(b, v)
	}
	return b
}

// patient is the time limit of an event that normally takes milliseconds.
const patient = 5 * time.Minute
