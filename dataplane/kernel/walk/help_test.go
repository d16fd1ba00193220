package walk

import (
	"errors"
	"slices"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/image"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/kerneltest"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/record"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/remedy"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

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
func remedyOf(err error) remedy.Advice {
	var e *remedy.Error
	if errors.As(err, &e) {
		return e.Remedy
	}
	return ""
}

// onlyStage compiles a policy of one meter and returns its stage.
func onlyStage(t testing.TB, m *dataplane.Meter) *compiled.Stage {
	t.Helper()
	return &kerneltest.Compiled(t,
		&dataplane.Policy{Classes: []dataplane.Class{{Name: "a", Meter: m}}}).Stages[0]
}

// encodePolicy compiles and encodes a policy.
func encodePolicy(policy *dataplane.Policy, hook image.Entry, pacer record.Pacer) (*image.Image, error) {
	plan, err := compiled.Compile(policy)
	if err != nil {
		return nil, err
	}
	return image.Encode(plan, hook, pacer)
}

// newWalker compiles a policy and loads its walker.
func newWalker(policy *dataplane.Policy, batch int) (*Walker, error) {
	plan, err := compiled.Compile(policy)
	if err != nil {
		return nil, err
	}
	return New(plan, batch)
}

// integers returns the integers of a profile, which must have some.
func integers(p *meter.Profile) meter.Integers {
	i, err := p.Integers()
	if err != nil {
		panic(err)
	}
	return i
}
