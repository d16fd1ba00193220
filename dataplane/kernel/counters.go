package kernel

import (
	"errors"
	"fmt"
	"math"

	"github.com/cilium/ebpf"

	"github.com/a-seed-32e5a53f/shaper/bpf"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/cause"
)

// counterMaps are the counters of a program, and those of earlier programs whose policies
// needed fewer slots. A class has the same slot in all of them.
type counterMaps struct {
	*ebpf.Map
	older []*ebpf.Map
}

// newestFirst returns all maps.
func (c *counterMaps) newestFirst() []*ebpf.Map { return append([]*ebpf.Map{c.Map}, c.older...) }

// add adds one of the maps of a program. The order of calls does not matter: the newest map
// is the largest.
func (c *counterMaps) add(m *ebpf.Map) {
	switch {
	case c.Map == nil:
		c.Map = m
	case c.MaxEntries() < m.MaxEntries():
		c.older = append(c.older, c.Map)
		c.Map = m
	default:
		c.older = append(c.older, m)
	}
}

// perCPU returns the counts in a slot: an entry for each map and CPU.
func (c *counterMaps) perCPU(slot uint32) ([]bpf.ShaperCounts, error) {
	var out []bpf.ShaperCounts
	for _, m := range c.newestFirst() {
		if slot >= m.MaxEntries() {
			continue
		}
		var perCPU []bpf.ShaperCounts
		if err := m.Lookup(slot, &perCPU); err != nil {
			return nil, fmt.Errorf("counters: %w", err)
		}
		out = append(out, perCPU...)
	}
	return out, nil
}

// clear sets the counts in a slot to 0. No program may use the slot.
func (c *counterMaps) clear(slot uint32) error {
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return err
	}
	zero := make([]bpf.ShaperCounts, cpus)
	for _, m := range c.newestFirst() {
		if slot >= m.MaxEntries() {
			continue
		}
		if err := m.Put(slot, zero); err != nil {
			return fmt.Errorf("counters: %w", err)
		}
	}
	return nil
}

// bindOlder makes a program keep the older maps open, so other processes find them with the
// program.
func (c *counterMaps) bindOlder(p *ebpf.Program) error {
	var errs []error
	for _, m := range c.older {
		errs = append(errs, cause.Of(p.BindMap(m)))
	}
	return errors.Join(errs...)
}

// readStats returns the sums of the counters of all CPUs: one entry per class, and a last
// one for unclassified packets. Counters wrap at 2^63.
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

// addCount adds to a count that wraps at 2^63.
func addCount(to *dataplane.Count, packets, bytes uint64) {
	to.Packets = (to.Packets + int64(packets)) & math.MaxInt64
	to.Bytes = (to.Bytes + int64(bytes)) & math.MaxInt64
}
