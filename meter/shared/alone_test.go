package shared

import (
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/meter/shared/lease"
)

// TestEachParameterAlone sets each parameter of each kind alone, by reflection, and checks that the store
// refuses it, or that the arguments of its script or its keys depend on it.
func TestEachParameterAlone(t *testing.T) {
	t.Parallel()
	s := idleStore(t)
	base := map[string]meter.Params{}
	for _, p := range []meter.Params{
		meter.TokenBucket{Rate: meter.Per(10, time.Second), Burst: 20},
		meter.FixedWindow{Limit: 20, Window: time.Second},
		meter.SlidingCounter{Limit: 20, Window: time.Second},
		meter.SlidingLog{Limit: 20, Window: time.Second, Entries: 64},
	} {
		base[p.Kind().String()] = p
	}
	limiter := func(p meter.Params) *Limiter {
		l, err := s.Limiter(Limit{Name: "a", Params: p, Fail: FailRescue, Share: 0.5})
		if err != nil {
			return nil
		}
		return l
	}
	names := []string{"GCRA"} // fields whose value is only the name of the kind
	for _, kind := range meter.Kinds() {
		p := base[kind.String()]
		if p == nil {
			continue // TestLimitErrors has a kind that the store does not have
		}
		for i := range reflect.TypeOf(p).NumField() {
			v := reflect.New(reflect.TypeOf(p)).Elem()
			v.Set(reflect.ValueOf(p))
			name := reflect.TypeOf(p).Field(i).Name
			switch f := v.Field(i); x := f.Interface().(type) {
			case meter.Rate:
				f.Set(reflect.ValueOf(meter.Per(2*x.Bytes, x.Period)))
			case time.Duration:
				f.SetInt(max(2*int64(x), int64(time.Millisecond)))
			case int64, int:
				f.SetInt(f.Int() * 2)
			case uint64:
				f.SetUint(7)
			case bool:
				f.SetBool(!x)
			default:
				t.Fatalf("%v: %s is a %T, which the test cannot set", kind, name, x)
			}
			with, without := limiter(v.Interface().(meter.Params)), limiter(p)
			if with == nil {
				t.Logf("%v: %s is refused", kind, name)
				continue
			}
			same := with.args == without.args && with.prefix == without.prefix
			if same && !slices.Contains(names, name) {
				t.Errorf("%v: %s has no effect on the script", kind, name)
			}
		}
	}
}

// TestEachTermAlone sets each field of a host's terms alone, by reflection, and checks that calls depend on
// it, unless only the host reads it.
func TestEachTermAlone(t *testing.T) {
	t.Parallel()
	ofHost := []string{"Beside", "Packet", "Hosts"} // lease.Host computes its requests and phases with them
	without := arguments(nil, &lease.Request{})
	var set func(name string, v reflect.Value, r *lease.Request)
	set = func(name string, v reflect.Value, r *lease.Request) {
		switch v.Kind() {
		case reflect.Struct:
			for i := range v.NumField() {
				set(name+"."+v.Type().Field(i).Name, v.Field(i), r)
			}
		case reflect.Array:
			for i := range v.Len() {
				set(name, v.Index(i), r)
			}
		default:
			before := reflect.ValueOf(v.Interface())
			if v.Kind() == reflect.Bool {
				v.SetBool(true)
			} else {
				v.SetInt(7000)
			}
			if reflect.DeepEqual(arguments(nil, r), without) != slices.Contains(ofHost, name[1:]) {
				t.Errorf("%s: the arguments of a call and the list of fields of hosts contradict", name)
			}
			v.Set(before)
		}
	}
	r := &lease.Request{}
	set("", reflect.ValueOf(&r.Terms).Elem(), r)
}
