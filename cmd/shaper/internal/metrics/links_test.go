package metrics

import (
	"strings"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// TestMetricsLinks checks the metrics of links: one of the user-space plane, one below it of which the plane
// does not know how long it held packets, and one without a class.
func TestMetricsLinks(t *testing.T) {
	t.Parallel()
	o := observed(t, "classes: [{name: all}]")
	o.links = []dataplane.LinkState{
		{
			Name: "site", Above: -1, Guaranteed: meter.BitRate(9e6), Reach: meter.BitRate(10e6),
			Sent:    dataplane.Count{Packets: 3, Bytes: 4500},
			Backlog: dataplane.Count{Packets: 2, Bytes: 3000},
			Held:    1500 * time.Millisecond, HeldKnown: true,
		},
		{Name: "ap", Above: 0, Guaranteed: meter.BitRate(1e6), Reach: meter.BitRate(2e6)},
		{Name: "gone", Above: 0, Missing: true},
	}
	got := parse(t, expose([]Observation{o}))
	const (
		site = `{direction="egress",interface="eth0",link="site",parent=""}`
		ap   = `{direction="egress",interface="eth0",link="ap",parent="site"}`
	)
	want := map[string]float64{
		"shaper_link_sent_packets_total" + site: 3, "shaper_link_sent_bytes_total" + site: 4500,
		"shaper_link_queued_packets" + site: 2, "shaper_link_queued_bytes" + site: 3000,
		"shaper_link_held_seconds_total" + site: 1.5,
		"shaper_link_guaranteed_rate" + site:    9e6, "shaper_link_maximum_rate" + site: 10e6,
		"shaper_link_sent_packets_total" + ap: 0, "shaper_link_sent_bytes_total" + ap: 0,
		"shaper_link_queued_packets" + ap: 0, "shaper_link_queued_bytes" + ap: 0,
		"shaper_link_guaranteed_rate" + ap: 1e6, "shaper_link_maximum_rate" + ap: 2e6,
	}
	for name, v := range got {
		if w, ok := want[name]; strings.Contains(name, "shaper_link_") && (!ok || v != w) {
			t.Errorf("%s is %v, want %v (%v)", name, v, w, ok)
		}
		delete(want, name)
	}
	if len(want) > 0 {
		t.Errorf("missing: %v", want)
	}
}
