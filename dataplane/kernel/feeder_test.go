package kernel

import (
	"encoding/json"
	"reflect"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// TestFeeder checks that a queue's drops are counted for a class, and for a color, only if no
// other class or color ever fed the queue.
func TestFeeder(t *testing.T) {
	link := &dataplane.Link{Name: "wan", Rate: bps(8e6)}
	q := &dataplane.Queue{Name: "q", Link: link, Config: queue.Config{Bytes: 10_000}}
	to := &dataplane.Action{Queue: q}
	m := &dataplane.Meter{Params: meter.SRTCM{CIR: bps(1e6), CBS: 3000, EBS: 3000}}
	green, red := meter.Green, meter.Red
	for _, test := range []struct {
		name    string
		classes [][]dataplane.Class // of successive policies
		want    feeder
	}{
		{"one color", [][]dataplane.Class{{{Name: "a", Meter: m, Red: to}, {Name: "b"}}}, feeder{"a", &red}},
		{"two colors", [][]dataplane.Class{{{Name: "a", Meter: m, Red: to, Green: to}}}, feeder{"a", nil}},
		{"all packets are green without a meter", [][]dataplane.Class{{{Name: "a", Red: to, Yellow: to, Green: to}}}, feeder{"a", &green}},
		{"two classes", [][]dataplane.Class{{{Name: "a", Green: to}, {Name: "b", Green: to}}}, feeder{}},
		{"two classes, then one", [][]dataplane.Class{{{Name: "a", Green: to}, {Name: "b", Green: to}}, {{Name: "a", Green: to}}}, feeder{}},
		{"one class, then another", [][]dataplane.Class{{{Name: "a", Green: to}}, {{Name: "b", Green: to}}}, feeder{}},
		{"one color, then another", [][]dataplane.Class{{{Name: "a", Meter: m, Green: to}}, {{Name: "a", Meter: m, Red: to}}, {{Name: "a", Meter: m, Red: to}}}, feeder{"a", nil}},
		{"same class in another place", [][]dataplane.Class{{{Name: "a", Meter: m, Red: to}}, {{Name: "b"}, {Name: "a", Meter: m, Red: to}}}, feeder{"a", &red}},
	} {
		t.Run(test.name, func(t *testing.T) {
			about := &About{}
			for _, classes := range test.classes {
				g, err := encoded(&dataplane.Policy{Classes: classes}, egressEntry, HTB)
				if err != nil {
					t.Fatal(err)
				}
				g.inherit(about)
				next := &About{}
				g.describe(next)
				raw, err := json.Marshal(next) // as the record is stored
				if err != nil {
					t.Fatal(err)
				}
				about = &About{}
				if err := json.Unmarshal(raw, about); err != nil {
					t.Fatal(err)
				}
			}
			if got := about.Queued[0].feeder; !reflect.DeepEqual(got, test.want) {
				t.Errorf("got %+v, want %+v", got, test.want)
			}
		})
	}
}
