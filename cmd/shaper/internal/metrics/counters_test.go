package metrics

import (
	"reflect"
	"slices"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/live"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
	"github.com/a-seed-32e5a53f/shaper/dataplane/policytest"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// notExported are the counters of an observation without a metric.
var notExported = []string{
	"links.Rate.Bytes", "links.Rate.Period", // the maximum rate is exported
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
			o.links = []dataplane.LinkState{
				{Name: "slow", Above: -1, Reach: meter.BitRate(8e6), Guaranteed: meter.BitRate(8e6), HeldKnown: tapped},
			}
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
			if c.CanInt() {
				c.SetInt(c.Int() + 1000)
			} else {
				c.SetUint(c.Uint() + 1000)
			}
			exported[c.Name] = exported[c.Name] || string(expose([]Observation{*o})) != without
		}
	}
	for name, ok := range exported {
		if !ok && !slices.Contains(notExported, policytest.FieldOf(name)) {
			t.Errorf("%s has no metric", name)
		}
	}
	t.Logf("%d counters", len(exported))
}

// countersOf returns the numbers in an observation.
func countersOf(o *Observation) []policytest.Value {
	all := slices.Concat(policytest.Values("sample", reflect.ValueOf(&o.sample).Elem()),
		policytest.Values("links", reflect.ValueOf(&o.links).Elem()),
		policytest.Values("lost", reflect.ValueOf(&o.lost).Elem()))
	return slices.DeleteFunc(all, func(v policytest.Value) bool {
		return !v.CanInt() && !v.CanUint() || policytest.FieldOf(v.Name) == "links.Above" // a number of a link
	})
}
