package kernel

import (
	"errors"
	"math/rand/v2"
	"os"
	"slices"
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

// metersOf returns the distinct meters of a policy.
func metersOf(policy *dataplane.Policy) []*dataplane.Meter {
	var out []*dataplane.Meter
	for i := range policy.Classes {
		for m := policy.Classes[i].Meter; m != nil; m = m.Then {
			if !slices.Contains(out, m) {
				out = append(out, m)
			}
		}
	}
	return out
}

// remedyOf is the remedy of an error, or "".
func remedyOf(err error) Remedy {
	var e *RemedyError
	if errors.As(err, &e) {
		return e.Remedy
	}
	return ""
}

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

// onlyStage compiles a policy of one meter and returns its stage.
func onlyStage(t testing.TB, m *dataplane.Meter) *dataplane.PlanStage {
	t.Helper()
	return &compiled(t, &dataplane.Policy{Classes: []dataplane.Class{{Name: "a", Meter: m}}}).Stages[0]
}

// encodePolicy compiles and encodes a policy.
func encodePolicy(policy *dataplane.Policy, hook entry, pacer Pacer) (*image, error) {
	plan, err := dataplane.Compile(policy)
	if err != nil {
		return nil, err
	}
	return encode(plan, hook, pacer)
}

// newWalker compiles a policy and loads its walker.
func newWalker(policy *dataplane.Policy, batch int) (*Walker, error) {
	plan, err := dataplane.Compile(policy)
	if err != nil {
		return nil, err
	}
	return NewWalker(plan, batch)
}

// clock reads the clock of the programs, ns.
func clock(t *testing.T) int64 {
	t.Helper()
	now, err := monotonic()
	if err != nil {
		t.Fatal(err)
	}
	return int64(now)
}

// integers returns the integers of a profile that has some.
func integers(p *meter.Profile) meter.Integers {
	i, err := p.Integers()
	if err != nil {
		panic(err)
	}
	return i
}
