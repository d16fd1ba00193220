package image

import (
	"errors"
	"fmt"
	"math"
	"unsafe"

	"github.com/a-seed-32e5a53f/shaper/bpf"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/cause"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/engine"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/record"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/remedy"
	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// KeyState is struct key_state of bpf/src/policy.h.
type KeyState struct {
	Word        [2]uint64
	Stamp, Lock uint64
}

// SpareKeys is the number of entries of a table for each CPU beyond its bound. Each CPU reserves up
// to that many free entries of an LRU hash. With them a table evicts no key before its keys exceed
// the bound.
const SpareKeys = 128

// key encodes the key of a stage, and gives the stage a table.
func (e *encoder) key(s *bpf.ShaperStage, from *compiled.Stage) {
	s.Table, s.Empty = 0, engine.Flag(from.Initial.Den != 0)
	e.Constants.Keyed, e.Constants.Elsewhere = 1, 1
	e.keyed++
	if from.Idle {
		e.refuse(from.Source, "evict",
			"idle cannot run in the kernel, which evicts the least recently used key: write evict: lru",
			remedy.UseUserSpace)
	}
	switch from.Key.By {
	case dataplane.BySrc, dataplane.ByDst, dataplane.ByAddress:
		e.Constants.Reads |= 1<<bySrc | 1<<byDst
	case dataplane.ByFlow:
		e.Constants.Reads |= 1<<bySrc | 1<<byDst | 1<<bySport
	}
	const kind, dscp = 0x03, 0xfc // bits of struct key's tag
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
		case dataplane.ByAddress:
			if e.Plan.Direction == dataplane.Ingress {
				k.Src = addressMask(from.Key, family)
			} else {
				k.Dst = addressMask(from.Key, family)
			}
		case dataplane.ByMAC, dataplane.ByVLANMAC, dataplane.ByVNI, dataplane.ByTEID, dataplane.ByMark,
			dataplane.ByCgroup:
			s.By, k.Tag = keyBy[from.Key.By], 0
			e.Constants.KeyBy |= 1 << s.By
		default:
			e.refuse(from.Source, "per", from.Key.String()+" "+notInKernel, remedy.UseUserSpace)
		}
	}
}

// addressMask returns the bits of an address that are part of the key. Family 0 is IPv4.
func addressMask(k dataplane.Key, family int) (out bpf.ShaperAddr) {
	if family == 0 {
		out.Lo = uint64(k.Mask4())
	} else {
		mask := k.Mask6()
		out.Hi, out.Lo = mask.Hi, mask.Lo
	}
	return out
}

// TableSize returns the number of entries of a stage's table.
func TableSize(s *compiled.Stage) uint32 {
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		cpus = 1
	}
	return uint32(s.Keys + SpareKeys*cpus)
}

// NewTable makes a table of keys with a number of entries.
func NewTable(size uint32) (*ebpf.Map, error) {
	m, err := ebpf.NewMap(&ebpf.MapSpec{
		Name: "keys", Type: ebpf.LRUHash, MaxEntries: size,
		KeySize: uint32(unsafe.Sizeof(bpf.ShaperKey{})), ValueSize: uint32(unsafe.Sizeof(KeyState{})),
	})
	if err != nil {
		return nil, fmt.Errorf("table of %d keys: %w", size, cause.Of(err))
	}
	return m, nil
}

// inheritTables assigns slots to tables of keys. A table of the previous policy is kept if
// its keys and states have the same meaning in the new one.
func (g *Image) inheritTables(before *record.About) {
	slots := engine.SlotAllocator{Used: map[uint32]bool{}}
	for _, s := range before.Stages {
		if s.Table >= 0 {
			slots.Used[uint32(s.Table)] = true
		}
	}
	taken := map[int32]bool{}
	for i := range g.Stages {
		s := &g.Stages[i]
		if s.Table < 0 {
			continue
		}
		if from := g.from.Stages[i]; from >= 0 {
			was := &before.Stages[from]
			if sameKeys(s, &was.ShaperStage) && sameProfile(s, &was.ShaperStage) &&
				was.Room == TableSize(&g.Plan.Stages[i]) && !taken[was.Table] {
				s.Table = was.Table
				taken[s.Table] = true
				continue
			}
		}
		s.Table = int32(slots.Allocate())
	}
}

// sameKeys reports whether both stages have keys, of the same packet fields.
func sameKeys(a, b *bpf.ShaperStage) bool {
	return a.Table >= 0 && b.Table >= 0 && a.Mask == b.Mask && a.By == b.By &&
		a.Tagged == b.Tagged && a.Empty == b.Empty && a.Packets == b.Packets
}

// populateTables makes the new tables. A table whose parameters changed gets the keys of the
// previous one, with their present tokens. All tables are made before any key is read: making a
// table takes tens of ms, and packets of a key read meanwhile would still be charged to the
// previous table.
func (g *Image) populateTables(before *record.About, to *Maps) error {
	old := map[int32]bool{}
	for _, s := range before.Stages {
		old[s.Table] = true
	}
	var added []int // stages
	for i := range g.Stages {
		if table := g.Stages[i].Table; table >= 0 && !old[table] {
			added = append(added, i)
		}
	}
	for _, i := range added {
		s := &g.Stages[i]
		table, err := NewTable(TableSize(&g.Plan.Stages[i]))
		if err != nil {
			return err
		}
		to.setOwnTable(s.Table, table)
		if err := to.Keys.Put(uint32(s.Table), table); err != nil {
			return fmt.Errorf("tables of keys: %w", cause.Of(err))
		}
	}
	for _, i := range added {
		s := &g.Stages[i]
		if from := g.from.Stages[i]; from >= 0 && sameKeys(s, &before.Stages[from].ShaperStage) {
			if err := to.convertKeys(&before.Stages[from].ShaperStage, to.ownTables[s.Table], s); err != nil {
				return err
			}
		}
	}
	return nil
}

// convertKeys copies the keys of one table to another, and converts their states.
func (s *Maps) convertKeys(from *bpf.ShaperStage, table *ebpf.Map, to *bpf.ShaperStage) error {
	was, err := s.table(from.Table)
	if errors.Is(err, unix.EPERM) {
		return nil // another process made it, and CAP_SYS_ADMIN is missing to open it: start without keys
	}
	if err != nil {
		return err
	}
	defer was.Close()
	return eachBatch(was, func(keys []bpf.ShaperKey, states []KeyState) error {
		now := engine.Monotonic()
		for i := range states {
			v := &states[i]
			state := engine.LevelsAt(&bpf.ShaperState{Word: v.Word, Stamp: v.Stamp}, &from.Profile,
				now).Convert(&from.Profile, &to.Profile).State(now, &to.Profile)
			*v = KeyState{Word: state.Word, Stamp: state.Stamp}
		}
		_, err := table.BatchUpdate(keys, states, nil)
		return err
	})
}

// CountKeys returns the number of keys in the table of a slot.
func (s *Maps) CountKeys(slot int32) (n int, err error) {
	table, err := s.table(slot)
	if err != nil {
		return 0, err
	}
	defer table.Close()
	err = eachBatch(table, func(keys []bpf.ShaperKey, _ []KeyState) error {
		n += len(keys)
		return nil
	})
	return n, err
}

// eachBatch calls visit with the keys and values of a hash, many at a time. visit may
// change the slices.
func eachBatch[K, V any](table *ebpf.Map, visit func(keys []K, values []V) error) error {
	const batch = 1 << 14
	var cursor ebpf.MapBatchCursor
	keys, values := make([]K, batch), make([]V, batch)
	for {
		n, err := table.BatchLookup(&cursor, keys, values, nil)
		end := errors.Is(err, ebpf.ErrKeyNotExist)
		if err == nil || end {
			err = nil
			if n > 0 {
				err = visit(keys[:n], values[:n])
			}
		}
		if err != nil {
			return fmt.Errorf("%v: %w", table, err)
		}
		if end {
			return nil
		}
	}
}

// setOwnTable keeps a table of this process open, because opening it again takes CAP_SYS_ADMIN. It
// closes the previous table of the slot.
func (s *Maps) setOwnTable(slot int32, table *ebpf.Map) {
	s.ownTables[slot].Close()
	s.ownTables[slot] = table
}

// table opens the table of a slot. The caller closes it.
func (s *Maps) table(slot int32) (*ebpf.Map, error) {
	m, err := OpenTable(s.Keys, slot)
	if made := s.ownTables[slot]; errors.Is(err, unix.EPERM) && made != nil {
		return made.Clone()
	}
	return m, err
}

// OpenTable opens the table of a slot by its ID, which takes CAP_SYS_ADMIN.
func OpenTable(tables *ebpf.Map, slot int32) (*ebpf.Map, error) {
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

// FreeTables frees the tables of stages, except tables also in inUse.
func (s *Maps) FreeTables(stages, inUse []bpf.ShaperStage) error {
	skip := map[int32]bool{}
	for i := range inUse {
		skip[inUse[i].Table] = true
	}
	for i := range stages {
		table := stages[i].Table
		if table < 0 || skip[table] {
			continue
		}
		skip[table] = true
		s.setOwnTable(table, nil)
		if err := s.Keys.Delete(uint32(table)); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("tables of keys: %w", err)
		}
	}
	return nil
}
