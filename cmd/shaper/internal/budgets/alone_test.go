package budgets

import (
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// TestEachParameterAlone sets each parameter of each kind of meter alone, by reflection, in a meter whose
// budget is on a server. Its terms must depend on it, or the policy is refused, or the meter itself uses it.
func TestEachParameterAlone(t *testing.T) {
	t.Parallel()
	ofMeter := []string{
		"TokenBucket.GCRA",   // the name of a token bucket
		"TRTCM4115.Coupling", // a lease has the limits of both buckets, and the meter moves tokens
	}
	rate := meter.BitRate(1_000_000)
	terms := func(p meter.Params) any {
		m := &dataplane.Meter{Name: "m", Params: p, Budget: &dataplane.Budget{
			Name: "office", Address: dataplane.Address{URL: "redis://192.0.2.1"},
		}}
		plan, err := compiled.Compile(&dataplane.Policy{Classes: []dataplane.Class{{Name: "c", Meter: m}}})
		if err != nil {
			return nil
		}
		return TermsOf(&plan.Stages[0])
	}
	var kinds, want []meter.Kind
	for _, p := range []meter.Params{
		meter.TokenBucket{Rate: rate, Burst: 9000},
		meter.TokenBucket{Rate: rate, Burst: 9000, GCRA: true},
		meter.SRTCM{CIR: rate, CBS: 9000, EBS: 8000},
		meter.TRTCM{CIR: rate, CBS: 9000, PIR: meter.BitRate(4_000_000), PBS: 8000},
		meter.TRTCM4115{CIR: rate, CBS: 9000, EIR: rate, EBS: 8000},
	} {
		without := terms(p)
		if without == nil {
			t.Fatalf("%+v is refused", p)
		}
		kinds = append(kinds, p.Kind())
		for i := range reflect.TypeOf(p).NumField() {
			v := reflect.New(reflect.TypeOf(p)).Elem()
			v.Set(reflect.ValueOf(p))
			switch f := v.Field(i); f.Interface().(type) {
			case meter.Rate:
				f.Set(reflect.ValueOf(meter.BitRate(2_000_000)))
			case time.Duration:
				f.SetInt(int64(time.Second))
			case int64:
				f.SetInt(f.Int() + 1000)
			case bool:
				f.SetBool(true)
			default:
				t.Fatalf("%T is of a type that the test cannot set", f.Interface())
			}
			name := reflect.TypeOf(p).Name() + "." + reflect.TypeOf(p).Field(i).Name
			with := terms(v.Interface().(meter.Params))
			if with != nil && with == without && !slices.Contains(ofMeter, name) {
				t.Errorf("%s has no effect on the terms", name)
			}
		}
	}
	for _, kind := range meter.Kinds() {
		if kind.Info().State == meter.StateBuckets {
			want = append(want, kind)
		}
	}
	if slices.Sort(kinds); !slices.Equal(kinds, want) {
		t.Errorf("checked %v, want %v", kinds, want)
	}
}
