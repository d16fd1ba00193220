package kernel

import (
	"math"

	"github.com/a-seed-32e5a53f/shaper/bpf"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// stats adds up the counters of all CPUs: an entry a class, by slot, and a last
// one for what no class took. Counters are modulo 2^63.
func readStats(counters counterMaps, classes []bpf.ShaperClass) ([]dataplane.ClassStats, error) {
	out := make([]dataplane.ClassStats, len(classes)+1)
	for i := range out {
		slot := uint32(0)
		if i < len(classes) {
			slot = classes[i].Slot
		}
		perCPU, err := counters.perCPU(slot)
		if err != nil {
			return nil, err
		}
		s := &out[i]
		for j := range perCPU {
			c := &perCPU[j]
			if i == len(classes) {
				addCount(&s.Untaken, c.Colors[0].Packets, c.Colors[0].Bytes)
				dropped := &c.Drops[0][dataplane.CauseColor]
				addCount(&s.UntakenDropped, dropped.Packets, dropped.Bytes)
				continue
			}
			for color := range c.Colors {
				addCount(&s.Colors[color], c.Colors[color].Packets, c.Colors[color].Bytes)
				addCount(&s.Marked[color], c.Marked[color].Packets, c.Marked[color].Bytes)
				addCount(&s.CE[color], c.Ce[color].Packets, c.Ce[color].Bytes)
				addCount(&s.Queued[color], c.Queued[color].Packets, c.Queued[color].Bytes)
				for cause := range c.Drops[color] {
					addCount(&s.Drops[color][cause], c.Drops[color][cause].Packets, c.Drops[color][cause].Bytes)
				}
			}
		}
	}
	return out, nil
}

func addCount(to *dataplane.Count, packets, bytes uint64) {
	to.Packets = (to.Packets + int64(packets)) & math.MaxInt64
	to.Bytes = (to.Bytes + int64(bytes)) & math.MaxInt64
}
