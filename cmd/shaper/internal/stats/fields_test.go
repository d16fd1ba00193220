package stats

import (
	"encoding/json"
	"reflect"
	"slices"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/live"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
	"github.com/a-seed-32e5a53f/shaper/dataplane/policytest"
	"github.com/a-seed-32e5a53f/shaper/dataplane/tap"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// notInJSON are fields which the JSON of stats lacks.
var notInJSON = []string{
	// of the policy, without a state
	".Outline.DropUnclassified", ".Outline.Stages.Keys", ".Outline.Stages.Initial.Num",
	".Outline.Stages.Initial.Den", ".Outline.Stages.Idle",
	".Outline.Customers",                  // in stats --customers
	".Outline.Stages.Leased",              // shares lists budgets on servers, budgets those of the host
	".Outline.Queues.Name",                // in the sample too
	".Sample.Reading.Queues.Sent.Packets", // sent is a rate in bit/s
}

// source is all from which the JSON of stats is made, apart from the state of a shaper.
type source struct {
	Outline compiled.Outline
	Sample  live.Sample
	Lost    tap.Lost
}

// newSource returns a source with a part for each field. All counters differ.
func newSource() *source {
	s := &source{Outline: compiled.Outline{
		Classes: []compiled.ClassOutline{
			{Name: "a", Stage: 0, Queues: [3]int{0, 1, 1}},
			{Name: "b", Stage: 2, Queues: [3]int{0, -1, -1}},
			{Name: "c", Stage: 3, Queues: [3]int{-1, -1, -1}},
		},
		Stages: []compiled.StageOutline{
			{Name: "a", Then: 1, Buckets: []compiled.BucketOutline{{Name: "Tc", Size: 10}, {Name: "Te", Size: 20}}},
			{Name: "sum", Then: -1, Buckets: []compiled.BucketOutline{{Name: "Tc", Size: 30}}},
			{Name: "each", Then: -1, Key: dataplane.Key{By: dataplane.BySrc}, Keys: 9},
			{Name: "plan", Then: -1, Customers: true},
		},
		Queues: []compiled.QueueOutline{{Name: "q", Link: 0}, {Name: "r", Link: 1}, {Name: "s", Link: -1}},
		Links:  []string{"wan", "ap"},
		Above:  []int{-1, 0},
	}}
	s.Sample.Stats = make([]dataplane.ClassStats, 4)
	s.Sample.Queues = make([]dataplane.QueueState, 3)
	s.Sample.Tokens = make([][2]int64, 4)
	s.Sample.Keys = make([]meter.TableStats, 4)
	for i, v := range policytest.Values("", reflect.ValueOf(&s.Sample).Elem()) {
		if v.CanInt() {
			v.SetInt(int64(i+1) * 1_000_000)
		}
	}
	return s
}

// lossyShaper is a shaper that has lost packets.
type lossyShaper struct {
	idleShaper
	lost tap.Lost
}

func (s *lossyShaper) Lost() tap.Lost { return s.lost }

// render returns the JSON of stats of a shaper at a hook.
func (s *source) render(t *testing.T, hook string) string {
	t.Helper()
	sh := &lossyShaper{lost: s.Lost}
	sh.about = kernel.About{Interface: "eth0", Outline: s.Outline}
	now := s.Sample
	if sh.about.Place.Hook = hook; hook != live.ByTap {
		sh.about.Pacer, now.Keys = kernel.HTB, nil
	}
	before := newSource().Sample
	before.At = 0
	out, err := json.Marshal(Of(sh, before, now, lookAtChanges))
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// TestEachField checks that each field of an outline, each counter of a sample and each loss of shaper tap
// changes the JSON of stats, in the kernel or in shaper tap.
func TestEachField(t *testing.T) {
	t.Parallel()
	found := map[string]bool{}
	for _, hook := range []string{"tcx", live.ByTap} {
		without := newSource().render(t, hook)
		for i, v := range policytest.Values("", reflect.ValueOf(newSource()).Elem()) {
			for _, value := range otherValues(v.Value) {
				s := newSource()
				policytest.Values("", reflect.ValueOf(s).Elem())[i].Set(value)
				if s.Outline.Valid() {
					found[v.Name] = found[v.Name] || s.render(t, hook) != without
				}
			}
		}
	}
	for name, ok := range found {
		if !ok && !slices.Contains(notInJSON, policytest.FieldOf(name)) {
			t.Errorf("%s is not in the JSON", name)
		}
	}
	t.Logf("%d fields", len(found))
}

// otherValues returns values that a field may have instead of its present one.
func otherValues(v reflect.Value) []reflect.Value {
	of := func(x any) reflect.Value { return reflect.ValueOf(x).Convert(v.Type()) }
	switch {
	case v.Kind() == reflect.Bool:
		return []reflect.Value{of(!v.Bool())}
	case v.Kind() == reflect.String:
		return []reflect.Value{of(v.String() + "x")}
	case v.CanUint():
		return []reflect.Value{of(v.Uint() + 1)}
	}
	return []reflect.Value{of(v.Int() + 1000), of(v.Int() + 1), of(-1)}
}
