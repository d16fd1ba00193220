package walk

import (
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/a-seed-32e5a53f/shaper/bpf"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/image"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/kerneltest"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// TestWrites checks that a packet writes only the words of buckets whose level it changes. CPUs
// contend for a word that is written.
func TestWrites(t *testing.T) {
	kerneltest.NeedRoot(t)
	t.Parallel()
	for _, test := range []struct {
		name   string
		params meter.Params
		n      int // length of the packet that is checked
		want   [2]bool
	}{
		{"trtcm, green", meter.TRTCM{CIR: kerneltest.EightMbit, CBS: 9000, PIR: kerneltest.EightMbit, PBS: 9000}, 500, [2]bool{true, true}},
		{"trtcm, red", meter.TRTCM{CIR: kerneltest.EightMbit, CBS: 1000, PIR: kerneltest.EightMbit, PBS: 1000}, 2000, [2]bool{}},
		{"4115, C overflows into a full E", meter.TRTCM4115{CIR: kerneltest.EightMbit, CBS: 9000, EIR: kerneltest.EightMbit, EBS: 9000, Coupling: true}, 500, [2]bool{true, false}},
		{"srtcm, yellow", meter.SRTCM{CIR: kerneltest.EightMbit, CBS: 1000, EBS: 9000}, 2000, [2]bool{true, true}},
		{"token bucket, red", meter.TokenBucket{Rate: kerneltest.EightMbit, Burst: 1000}, 2000, [2]bool{}},
	} {
		policy := oneClass(dataplane.Class{Meter: &dataplane.Meter{Params: test.params}})
		policy.Length.Overhead = -20
		h := newHooked(t, policy, image.EgressEntry, nil)
		var words [2][2]uint64 // before and after
		for i, p := range []dataplane.Packet{
			framed(meter.Green, 100, int64(time.Second)), framed(meter.Green, test.n, int64(10*time.Second)),
		} {
			var v dataplane.Verdict
			if err := h.run(&p, &v, skb{}); err != nil {
				t.Fatalf("%s: %v", test.name, err)
			}
			var state bpf.ShaperState
			if err := h.maps.States.LookupWithFlags(h.image.Stages[0].Slot, &state,
				ebpf.LookupLock); err != nil {
				t.Fatal(err)
			}
			words[i] = state.Word
		}
		for i, want := range test.want {
			if got := words[0][i] != words[1][i]; got != want {
				t.Errorf("%s: word %d written: %v, want %v", test.name, i, got, want)
			}
		}
	}
}
