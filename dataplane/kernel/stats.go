package kernel

import (
	"fmt"
	"math"

	"github.com/cilium/ebpf"

	"github.com/a-seed-32e5a53f/shaper/bpf"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// stats adds up the counters of all CPUs: an entry a class, by slot, and a last
// one for what no class took. Counters are modulo 2^63.
func stats(counters *ebpf.Map, classes []bpf.ShaperClass) ([]dataplane.ClassStats, error) {
	out := make([]dataplane.ClassStats, len(classes)+1)
	var perCPU []bpf.ShaperCounts
	for i := range out {
		slot := uint32(0)
		if i < len(classes) {
			slot = classes[i].Slot
		}
		if err := counters.Lookup(slot, &perCPU); err != nil {
			return nil, fmt.Errorf("counters: %w", err)
		}
		s := &out[i]
		for j := range perCPU {
			c := &perCPU[j]
			if i == len(classes) {
				add(&s.Untaken, c.Colors[0].Packets, c.Colors[0].Bytes)
				continue
			}
			for color := range c.Colors {
				add(&s.Colors[color], c.Colors[color].Packets, c.Colors[color].Bytes)
				add(&s.Marked[color], c.Marked[color].Packets, c.Marked[color].Bytes)
				add(&s.Queued[color], c.Queued[color].Packets, c.Queued[color].Bytes)
				for cause := range c.Drops[color] {
					add(&s.Drops[color][cause], c.Drops[color][cause].Packets, c.Drops[color][cause].Bytes)
				}
			}
		}
	}
	return out, nil
}

func add(to *dataplane.Count, packets, bytes uint64) {
	to.Packets = (to.Packets + int64(packets)) & math.MaxInt64
	to.Bytes = (to.Bytes + int64(bytes)) & math.MaxInt64
}
