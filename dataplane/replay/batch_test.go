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

// TestBatch checks that Batch has the packets of Each, after their calls of Each and before their calls of
// Settled.
func TestBatch(t *testing.T) {
	in := readCapture(t, filepath.Join(ownPcaps, "bursts.pcap"))
	link := &dataplane.Queue{
		Link: &dataplane.Link{Rate: meter.BitRate(1e7)}, Config: queue.Config{Packets: 100},
	}
	srtcm := &dataplane.Meter{Params: meter.SRTCM{CIR: meter.BitRate(5e6), CBS: 10_000, EBS: 20_000}}
	for name, class := range map[string]dataplane.Class{
		"green":   {},
		"yellow":  {Meter: srtcm, Red: &dataplane.Action{}},
		"waiting": {Green: &dataplane.Action{Queue: link}},
	} {
		class.Name = name
		var want, got []dataplane.Verdict
		settled := 0
		if _, err := Run(t.Context(), bytes.NewReader(in), newPipeline(t, class), Config{
			Each: func(p *dataplane.Packet, v *dataplane.Verdict) error {
				want = append(want, *v)
				return nil
			},
			Batch: func(packets []dataplane.Packet, verdicts []dataplane.Verdict) {
				for i := range verdicts {
					if packets[i].ID != verdicts[i].ID {
						t.Fatalf("%s: packet %d has the verdict of %d", name, packets[i].ID, verdicts[i].ID)
					}
				}
				if got = append(got, verdicts...); !slices.Equal(got, want) {
					t.Fatalf("%s: got %d packets, want %d, or other verdicts", name, len(got), len(want))
				}
			},
			Settled: func(v *dataplane.Verdict) error {
				settled++
				if v.ID > int64(len(got)) {
					t.Errorf("%s: packet %d is settled before its batch", name, v.ID)
				}
				return nil
			},
		}); err != nil {
			t.Fatal(err)
		}
		if len(want) == 0 || len(got) != len(want) || (settled == 0) != (name != "waiting") {
			t.Errorf("%s: got %d packets and %d settled ones, want %d", name, len(got), settled, len(want))
		}
	}
}
