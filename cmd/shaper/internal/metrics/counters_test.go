package metrics

import (
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/live"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// notExported are the counters of an observation without a metric.
var notExported = []string{
	"sample.Reading.At", // Prometheus has times of its own
	// The bytes of a color are exported. Those of its packets with an action would be three more families.
	"sample.Reading.Stats.Marked.Bytes", "sample.Reading.Stats.CE.Bytes", "sample.Reading.Stats.Queued.Bytes",
	"sample.Reading.Stats.Behind.Bytes", // always 0
}

// TestEachCounter checks that each counter of a shaper, in the kernel or in shaper tap, changes the metrics.
func TestEachCounter(t *testing.T) {
	t.Parallel()
	exported := map[string]bool{}
	for _, tapped := range []bool{false, true} {
		observe := func() *Observation {
			o := observed(t, `
classes:
  - name: voice
    match: {dscp: ef}
    meter: {type: srtcm, cir: 1mbit, cbs: 3000, ebs: 2000}
    green: {queue: slow}
    yellow: {queue: slow}
  - name: keys
    meter: {type: token-bucket, rate: 1mbit, burst: 5000, per: src, keys: 10}
queues: {slow: {rate: 1mbit, limit: 20ms}}
`)
			o.sample.Queues = []dataplane.QueueState{{Name: "slow"}}
			if o.About.Pacer = kernel.HTB; tapped {
				o.sample.Keys = make([]meter.TableStats, 2)
				o.About.Pacer, o.About.Place.Hook = "", live.ByTap
			}
			return &o
		}
		without := string(expose([]Observation{*observe()}))
		n := len(countersOf(observe()))
		for i := range n {
			o := observe()
			c := countersOf(o)[i]
			c.add()
			exported[c.name] = exported[c.name] || string(expose([]Observation{*o})) != without
		}
	}
	for name, ok := range exported {
		if !ok && !slices.Contains(notExported, withoutIndexes(name)) {
			t.Errorf("%s has no metric", name)
		}
	}
	t.Logf("%d counters", len(exported))
}

// counter is a number in an observation.
type counter struct {
	name string // with indexes of arrays, such as colors
	add  func() // adds 1000
}

// countersOf returns the counters of an observation.
func countersOf(o *Observation) []counter {
	return slices.Concat(countersIn("sample", reflect.ValueOf(&o.sample).Elem()),
		countersIn("lost", reflect.ValueOf(&o.lost).Elem()))
}

// countersIn returns the numbers in v.
func countersIn(name string, v reflect.Value) (out []counter) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			out = append(out, countersIn(name+"."+v.Type().Field(i).Name, v.Field(i))...)
		}
	case reflect.Array:
		for i := range v.Len() {
			out = append(out, countersIn(fmt.Sprintf("%s[%d]", name, i), v.Index(i))...)
		}
	case reflect.Slice:
		for i := range v.Len() {
			out = append(out, countersIn(name, v.Index(i))...)
		}
	case reflect.Int, reflect.Int64:
		return []counter{{name, func() { v.SetInt(v.Int() + 1000) }}}
	case reflect.Uint64:
		return []counter{{name, func() { v.SetUint(v.Uint() + 1000) }}}
	}
	return out
}

// withoutIndexes returns the name of a counter without the indexes of arrays.
func withoutIndexes(name string) string { return indexes.ReplaceAllString(name, "") }

var indexes = regexp.MustCompile(`\[\d+\]`)
