package image

import (
	"encoding/json"
	"reflect"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/record"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// TestFeeder checks that a queue's drops are counted for a class, and for a color, only if no
// other class or color ever fed the queue.
func TestFeeder(t *testing.T) {
	link := &dataplane.Link{Name: "wan", Rate: meter.BitRate(8e6)}
	q := &dataplane.Queue{Name: "q", Link: link, Config: queue.Config{Bytes: 10_000}}
	to := &dataplane.Action{Queue: q}
	m := &dataplane.Meter{Params: meter.SRTCM{CIR: meter.BitRate(1e6), CBS: 3000, EBS: 3000}}
	green, red := meter.Green, meter.Red
	for _, test := range []struct {
		name    string
		classes [][]dataplane.Class // of successive policies
		want    record.Feeder
	}{
		{"one color", [][]dataplane.Class{{{Name: "a", Meter: m, Red: to}, {Name: "b"}}}, record.Feeder{Class: "a", Color: &red}},
		{"two colors", [][]dataplane.Class{{{Name: "a", Meter: m, Red: to, Green: to}}}, record.Feeder{Class: "a", Color: nil}},
		{"all packets are green without a meter", [][]dataplane.Class{{{Name: "a", Red: to, Yellow: to, Green: to}}}, record.Feeder{Class: "a", Color: &green}},
		{"two classes", [][]dataplane.Class{{{Name: "a", Green: to}, {Name: "b", Green: to}}}, record.Feeder{}},
		{"two classes, then one", [][]dataplane.Class{{{Name: "a", Green: to}, {Name: "b", Green: to}}, {{Name: "a", Green: to}}}, record.Feeder{}},
		{"one class, then another", [][]dataplane.Class{{{Name: "a", Green: to}}, {{Name: "b", Green: to}}}, record.Feeder{}},
		{"one color, then another", [][]dataplane.Class{{{Name: "a", Meter: m, Green: to}}, {{Name: "a", Meter: m, Red: to}}, {{Name: "a", Meter: m, Red: to}}}, record.Feeder{Class: "a", Color: nil}},
		{"same class in another place", [][]dataplane.Class{{{Name: "a", Meter: m, Red: to}}, {{Name: "b"}, {Name: "a", Meter: m, Red: to}}}, record.Feeder{Class: "a", Color: &red}},
	} {
		t.Run(test.name, func(t *testing.T) {
			about := &record.About{}
			for _, classes := range test.classes {
				g, err := encoded(&dataplane.Policy{Classes: classes}, EgressEntry, record.HTB)
				if err != nil {
					t.Fatal(err)
				}
				g.Inherit(about, nil)
				next := &record.About{}
				g.Describe(next)
				raw, err := json.Marshal(next) // as the record is stored
				if err != nil {
					t.Fatal(err)
				}
				about = &record.About{}
				if err := json.Unmarshal(raw, about); err != nil {
					t.Fatal(err)
				}
			}
			if got := about.Queued[0].Feeder; !reflect.DeepEqual(got, test.want) {
				t.Errorf("got %+v, want %+v", got, test.want)
			}
		})
	}
}
