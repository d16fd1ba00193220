package image

import (
	"errors"
	"fmt"
	"math"
	"unsafe"

	"github.com/cilium/ebpf"

	"github.com/a-seed-32e5a53f/shaper/bpf"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/cause"
)

// counterMaps are the counters of a program, and those of earlier programs whose policies needed
// fewer slots. A class keeps its slot in all of them.
type counterMaps struct {
	*ebpf.Map
	older []*ebpf.Map
}

// newestFirst returns all maps; none before the first policy.
func (c *counterMaps) newestFirst() []*ebpf.Map {
	if c.Map == nil {
		return nil
	}
	return append([]*ebpf.Map{c.Map}, c.older...)
}

// Add adds one of the maps of a program. The order of calls does not matter: the newest map
// is the largest.
func (c *counterMaps) Add(m *ebpf.Map) {
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

// countersRead is the size of the counts read by a system call, in bytes.
const countersRead = 1 << 20

// each calls f for each slot below slots, once for each map that contains the slot, with an entry
// for each CPU.
func (c *counterMaps) each(slots uint32, f func(slot uint32, perCPU []bpf.ShaperCounts)) error {
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return err
	}
	most := max(countersRead/cpus/int(unsafe.Sizeof(bpf.ShaperCounts{})), 1)
	for _, m := range c.newestFirst() {
		left, cursor := int(min(slots, m.MaxEntries())), new(ebpf.MapBatchCursor)
		most := min(most, left)
		keys, counts := make([]uint32, most), make([]bpf.ShaperCounts, most*cpus)
		for left > 0 {
			n, err := m.BatchLookup(cursor, keys, counts, nil)
			if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) { // the end of the map
				return fmt.Errorf("counters: %w", err)
			}
			n = min(n, left)
			for i, slot := range keys[:n] {
				f(slot, counts[i*cpus:][:cpus])
			}
			if left -= n; n == 0 {
				return fmt.Errorf("counters: slots are missing")
			}
		}
	}
	return nil
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

// BindOlder makes a program keep the older maps open, so other processes find them with the
// program.
func (c *counterMaps) BindOlder(p *ebpf.Program) error {
	var errs []error
	for _, m := range c.older {
		errs = append(errs, cause.Of(p.BindMap(m)))
	}
	return errors.Join(errs...)
}

// ReadStats returns the sums of the counters of all CPUs: one entry per class, whose slots
// are given, and a last one for unclassified packets. Counters wrap at 2^63.
func ReadStats(counters counterMaps, slotOf []uint32) ([]dataplane.ClassStats, error) {
	out := make([]dataplane.ClassStats, len(slotOf)+1)
	of := map[uint32]*dataplane.ClassStats{} // by slot
	slots := uint32(1)
	for i, slot := range slotOf {
		of[slot], slots = &out[i], max(slots, slot+1)
	}
	return out, counters.each(slots, func(slot uint32, perCPU []bpf.ShaperCounts) {
		for i := range perCPU {
			switch s := of[slot]; {
			case slot == 0:
				addUntaken(&out[len(slotOf)], &perCPU[i])
			case s != nil:
				addCounts(s, &perCPU[i])
			}
		}
	})
}

// addUntaken adds counts of unclassified packets.
func addUntaken(s *dataplane.ClassStats, c *bpf.ShaperCounts) {
	addCount(&s.Untaken, c.Colors[0])
	addCount(&s.UntakenDropped, c.Drops[0][dataplane.CauseColor])
}

// addCounts adds counts of a class.
func addCounts(s *dataplane.ClassStats, c *bpf.ShaperCounts) {
	for color := range c.Colors {
		addCount(&s.Colors[color], c.Colors[color])
		addCount(&s.Marked[color], c.Marked[color])
		addCount(&s.CE[color], c.Ce[color])
		addCount(&s.Queued[color], c.Queued[color])
		for cause := range c.Drops[color] {
			addCount(&s.Drops[color][cause], c.Drops[color][cause])
		}
	}
}

// addCount adds to a count wrapping at 2^63.
func addCount(to *dataplane.Count, c bpf.ShaperCount) {
	to.Packets = (to.Packets + int64(c.Packets)) & math.MaxInt64
	to.Bytes = (to.Bytes + int64(c.Bytes)) & math.MaxInt64
}
