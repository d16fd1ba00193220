package compiled_test

import (
	"reflect"
	"slices"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/dataplane/policytest"
)

// bySource are fields which planes read in the policy, by the Source of a part.
var bySource = []string{
	"Policy.Meters", "Policy.Queues", "Policy.Links", "Policy.Envelopes", "Customers.Plans", // lists of names
	"Envelope.Name",
	"Meter.Rank",                                 // the order of flows
	"Queue.TargetAtRate", "Queue.IntervalAtRate", // for WithRates
	"Customers.Cgroups", // of the kernel plane
	"Customers.Nested",  // only lets Compile accept nested prefixes
}

// TestEachFieldAlone checks that each field of a policy changes its plan, also apart from the Sources,
// unless Compile refuses the field.
func TestEachFieldAlone(t *testing.T) {
	t.Parallel()
	settings := 0
	for _, b := range policytest.Bases() {
		without := planOf(t, b.New())
		for _, s := range b.Settings() {
			if settings++; slices.Contains(bySource, s.Field) {
				continue
			}
			if reflect.DeepEqual(planOf(t, b.With(s)), without) {
				t.Errorf("%s: %v: no effect", b.Name, s)
			}
		}
	}
	t.Logf("%d settings", settings)
}

// planOf returns the plan of a policy without its sources.
func planOf(t *testing.T, p *dataplane.Policy) *compiled.Plan {
	t.Helper()
	plan, err := compiled.Compile(p)
	if err != nil {
		t.Fatal(err)
	}
	dropSources(reflect.ValueOf(plan))
	return plan
}

// dropSources clears all fields named Source.
func dropSources(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			dropSources(v.Elem())
		}
	case reflect.Array, reflect.Slice:
		for i := range v.Len() {
			dropSources(v.Index(i))
		}
	case reflect.Struct:
		for i := range v.NumField() {
			switch f := v.Type().Field(i); {
			case f.Name == "Source":
				v.Field(i).SetZero()
			case f.IsExported():
				dropSources(v.Field(i))
			}
		}
	}
}
