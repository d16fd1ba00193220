package replay

import (
	"bytes"
	"path/filepath"
	"slices"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// TestNotable checks that Notable has those packets of Each that are not green, were dropped or wait,
// each after the call of Each.
func TestNotable(t *testing.T) {
	in := readCapture(t, filepath.Join(ownPcaps, "bursts.pcap"))
	link := &dataplane.Queue{Link: &dataplane.Link{Rate: meter.BitRate(1e7)}, Config: queue.Config{Packets: 100}}
	srtcm := &dataplane.Meter{Params: meter.SRTCM{CIR: meter.BitRate(5e6), CBS: 10_000, EBS: 20_000}}
	for name, class := range map[string]dataplane.Class{
		"green":   {},
		"drop":    {Green: &dataplane.Action{Drop: true}},
		"yellow":  {Meter: srtcm, Red: &dataplane.Action{}},
		"waiting": {Green: &dataplane.Action{Queue: link}},
	} {
		class.Name = name
		var want, got []int64
		last := int64(0)
		if _, err := Run(t.Context(), bytes.NewReader(in), pipeline(t, class), Config{
			Each: func(p *dataplane.Packet, v *dataplane.Verdict) error {
				last = p.ID
				if v.Color != meter.Green || v.Done.Dropped() || v.Done&dataplane.Waiting != 0 {
					want = append(want, p.ID)
				}
				return nil
			},
			Notable: func(p *dataplane.Packet, v *dataplane.Verdict) {
				if p.ID != last || v.ID != last {
					t.Fatalf("%s: packet %d follows %d", name, p.ID, last)
				}
				got = append(got, p.ID)
			},
		}); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(got, want) || (len(got) == 0) != (name == "green") {
			t.Errorf("%s: got %d packets, want %d", name, len(got), len(want))
		}
	}
}
