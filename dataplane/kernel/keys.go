package kernel

import (
	"errors"
	"fmt"
	"math"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/a-seed-32e5a53f/shaper/bpf"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/cause"
)

// known is struct known of bpf/src/policy.h.
type keyState struct {
	Word        [2]uint64
	Stamp, Lock uint64
}

// spare is how many keys a table has room for beyond its bound, for each CPU:
// each keeps as many places for itself, and so another one may find none before
// all are in use. So a table forgets nothing before it has more keys than its bound, and
// from then on always has more.
const spareKeys = 128

// key encodes the key of a stage.
func (e *encoder) key(s *bpf.ShaperStage, from *dataplane.PlanStage) {
	s.Table, s.Empty = 0, flag(from.Initial.Den != 0)
	e.constants.Keyed, e.constants.Elsewhere = 1, 1
	e.keyed++
	if from.Idle {
		e.refuse(from.Source, "evict", "idle cannot run in the kernel, which evicts the least recently used key: write evict: lru", UseUserSpace)
	}
	switch from.Key.By {
	case dataplane.BySrc, dataplane.ByDst:
		e.constants.Reads |= 1<<bySrc | 1<<byDst
	case dataplane.ByFlow:
		e.constants.Reads |= 1<<bySrc | 1<<byDst | 1<<bySport
	}
	const kind, dscp = 0x03, 0xfc // of a tag
	for family := range s.Mask {
		k := &s.Mask[family]
		k.Tag = kind
		switch from.Key.By {
		case dataplane.BySrc:
			k.Src = addressMask(from.Key, family)
		case dataplane.ByDst:
			k.Dst = addressMask(from.Key, family)
		case dataplane.ByFlow:
			k.Src, k.Dst = addressMask(from.Key, family), addressMask(from.Key, family)
			k.Sport, k.Dport, k.Proto = math.MaxUint16, math.MaxUint16, math.MaxUint8
		case dataplane.ByVLAN:
			s.Tagged, k.Tag, k.Vlan = 1, 0, 0x0fff
		case dataplane.ByDSCP:
			k.Tag = dscp
		}
	}
}

func addressMask(k dataplane.Key, family int) (out bpf.ShaperAddr) {
	if family == 0 {
		out.Lo = uint64(k.Mask4())
	} else {
		mask := k.Mask6()
		out.Hi, out.Lo = mask.Hi, mask.Lo
	}
	return out
}

// tableSize is how many keys a stage's table has room for.
func tableSize(s *dataplane.PlanStage) uint32 {
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		cpus = 1
	}
	return uint32(s.Keys + spareKeys*cpus)
}

// newTable makes a table of keys.
func newTable(size uint32) (*ebpf.Map, error) {
	m, err := ebpf.NewMap(&ebpf.MapSpec{
		Name: "keys", Type: ebpf.LRUHash, MaxEntries: size,
		KeySize: uint32(unsafe.Sizeof(bpf.ShaperKey{})), ValueSize: uint32(unsafe.Sizeof(keyState{})),
	})
	if err != nil {
		return nil, fmt.Errorf("table of %d keys: %w", size, cause.Of(err))
	}
	return m, nil
}

// inheritTables gives tables of keys their slots: those of the policy before
// where they mean the same.
func (g *image) inheritTables(before *About) {
	tables := slotAllocator{used: map[uint32]bool{}}
	for _, s := range before.Stages {
		if s.Table >= 0 {
			tables.used[uint32(s.Table)] = true
		}
	}
	taken := map[int32]bool{}
	for i := range g.stages {
		s := &g.stages[i]
		if s.Table < 0 {
			continue
		}
		if from := g.from.Stages[i]; from >= 0 {
			was := &before.Stages[from]
			if sameKeys(s, &was.ShaperStage) && sameProfile(s, &was.ShaperStage) && was.Room == tableSize(&g.plan.Stages[i]) && !taken[was.Table] {
				s.Table = was.Table
				taken[s.Table] = true
				continue
			}
		}
		s.Table = int32(tables.allocate())
	}
}

// sameKeys says whether both have keys, and the same.
func sameKeys(a, b *bpf.ShaperStage) bool {
	return a.Table >= 0 && b.Table >= 0 && a.Mask == b.Mask && a.Tagged == b.Tagged && a.Empty == b.Empty && a.Packets == b.Packets
}

// settleTables makes the tables that begin. One whose parameters changed has the
// keys of the one before, with what tokens they have now. To make one takes tens
// of ms, in which the kernel waits for programs: so all are made before any key
// is read, whose packets are still taken from the one before.
func (g *image) populateTables(before *About, to *stateMaps) error {
	old := map[int32]bool{}
	for _, s := range before.Stages {
		old[s.Table] = true
	}
	for i := range g.stages {
		s := &g.stages[i]
		if s.Table < 0 || old[s.Table] {
			continue
		}
		table, err := newTable(tableSize(&g.plan.Stages[i]))
		if err != nil {
			return err
		}
		to.setOwnTable(s.Table, table)
		if err := to.keys.Put(uint32(s.Table), table); err != nil {
			return fmt.Errorf("tables of keys: %w", cause.Of(err))
		}
	}
	for i := range g.stages {
		s := &g.stages[i]
		if s.Table < 0 || old[s.Table] {
			continue
		}
		if from := g.from.Stages[i]; from >= 0 && sameKeys(s, &before.Stages[from].ShaperStage) {
			if err := to.convertKeys(&before.Stages[from].ShaperStage, to.ownTables[s.Table], s); err != nil {
				return err
			}
		}
	}
	return nil
}

// carryKeys copies what the keys of one table have to another.
func (s *stateMaps) convertKeys(from *bpf.ShaperStage, table *ebpf.Map, to *bpf.ShaperStage) error {
	was, err := s.table(from.Table)
	if errors.Is(err, unix.EPERM) {
		return nil // another process made it, and who may not look for maps cannot find it: its keys begin anew
	}
	if err != nil {
		return err
	}
	defer was.Close()
	const batch = 1 << 14
	var cursor ebpf.MapBatchCursor
	keys, values := make([]bpf.ShaperKey, batch), make([]keyState, batch)
	for {
		now, err := monotonic()
		if err != nil {
			return err
		}
		n, err := was.BatchLookup(&cursor, keys, values, nil)
		end := errors.Is(err, ebpf.ErrKeyNotExist)
		if err != nil && !end {
			return fmt.Errorf("table of keys: %w", err)
		}
		for i := range n {
			v := &values[i]
			state := levelsAt(&bpf.ShaperState{Word: v.Word, Stamp: v.Stamp}, &from.Profile, now).convert(&from.Profile, &to.Profile).state(now, &to.Profile)
			*v = keyState{Word: state.Word, Stamp: state.Stamp}
		}
		if n > 0 {
			if _, err := table.BatchUpdate(keys[:n], values[:n], nil); err != nil {
				return fmt.Errorf("table of keys: %w", err)
			}
		}
		if end {
			return nil
		}
	}
}

// count is how many keys a table has now.
func (s *stateMaps) countKeys(slot int32) (int, error) {
	table, err := s.table(slot)
	if err != nil {
		return 0, err
	}
	defer table.Close()
	const batch = 1 << 14
	var cursor ebpf.MapBatchCursor
	keys, values := make([]bpf.ShaperKey, batch), make([]keyState, batch)
	for all := 0; ; {
		n, err := table.BatchLookup(&cursor, keys, values, nil)
		all += n
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			return all, nil
		}
		if err != nil {
			return 0, fmt.Errorf("table of keys: %w", err)
		}
	}
}

// keep holds a table that this process made: it could not find it again
// without CAP_SYS_ADMIN. Its slot may have been another's.
func (s *stateMaps) setOwnTable(slot int32, table *ebpf.Map) {
	s.ownTables[slot].Close()
	s.ownTables[slot] = table
}

// table returns the table of a slot, for the caller to close.
func (s *stateMaps) table(slot int32) (*ebpf.Map, error) {
	m, err := openTable(s.keys, slot)
	if made := s.ownTables[slot]; errors.Is(err, unix.EPERM) && made != nil {
		return made.Clone()
	}
	return m, err
}

func openTable(tables *ebpf.Map, slot int32) (*ebpf.Map, error) {
	var id ebpf.MapID
	if err := tables.Lookup(uint32(slot), &id); err != nil {
		return nil, fmt.Errorf("tables of keys: %w", err)
	}
	m, err := ebpf.NewMapFromID(id)
	if err != nil {
		return nil, fmt.Errorf("table of keys: %w", cause.Of(err))
	}
	return m, nil
}

// retire frees the tables of stages that others do not have.
func (s *stateMaps) freeTables(stages, others []bpf.ShaperStage) error {
	done := map[int32]bool{}
	for _, o := range others {
		done[o.Table] = true
	}
	for i := range stages {
		table := stages[i].Table
		if table < 0 || done[table] {
			continue
		}
		done[table] = true
		s.setOwnTable(table, nil)
		if err := s.keys.Delete(uint32(table)); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("tables of keys: %w", err)
		}
	}
	return nil
}
