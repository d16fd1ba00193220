package engine

import (
	"cmp"
	"errors"
	"fmt"
	"sync"

	"github.com/cilium/ebpf"

	"github.com/a-seed-32e5a53f/shaper/bpf"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/cause"
)

// parseShaper and parseShared parse the objects of the programs for one interface and for several.
var (
	parseShaper = sync.OnceValues(bpf.LoadShaper)
	parseShared = sync.OnceValues(bpf.LoadShared)
)

// ShaperSpec returns the specification of the programs and their maps, for the caller to change.
func ShaperSpec() (*ebpf.CollectionSpec, error) {
	spec, err := parseShaper()
	return spec.Copy(), err
}

// SharedSpec is ShaperSpec for the programs that several interfaces share.
func SharedSpec() (*ebpf.CollectionSpec, error) {
	spec, err := parseShared()
	return spec.Copy(), err
}

// NewArrayOfMaps makes an array with room for n maps of the same type and size as m. If name is that of a map
// of the programs, they are like that map, with its flags and locks.
func NewArrayOfMaps(name string, n uint32, m *ebpf.Map) (*ebpf.Map, error) {
	all, err := parseShaper()
	if err != nil {
		return nil, err
	}
	inner := &ebpf.MapSpec{Type: m.Type(), KeySize: m.KeySize(), ValueSize: m.ValueSize()}
	if spec := all.Maps[name]; spec != nil {
		inner = spec.Copy()
	}
	inner.MaxEntries = m.MaxEntries()
	array, err := ebpf.NewMap(&ebpf.MapSpec{
		Name: name, Type: ebpf.ArrayOfMaps, KeySize: 4, ValueSize: 4, MaxEntries: n, InnerMap: inner,
	})
	if err != nil {
		return nil, cause.Of(fmt.Errorf("create an array of %d maps %s: %w", n, name, err))
	}
	return array, nil
}

// NewMap makes a map of the programs with room for n entries; 0: as many as its C declares.
func NewMap(name string, n uint32) (*ebpf.Map, error) {
	all, err := parseShaper()
	if err != nil {
		return nil, err
	}
	spec := all.Maps[name].Copy()
	spec.MaxEntries = cmp.Or(n, spec.MaxEntries)
	m, err := ebpf.NewMap(spec)
	if err != nil {
		return nil, cause.Of(fmt.Errorf("create map %s with %d entries: %w", name, spec.MaxEntries, err))
	}
	return m, nil
}

// NewArray makes an array map with these values. The map is not frozen, because the verifier
// would then read all values as constants.
func NewArray[T any](name string, values []T) (*ebpf.Map, error) {
	m, err := NewMap(name, uint32(len(values)))
	if err != nil {
		return nil, err
	}
	if err := PutArray(m, values); err != nil {
		m.Close()
		return nil, err
	}
	return m, nil
}

// PutBatch writes entries to a map, many at a time.
func PutBatch[K, V any](m *ebpf.Map, keys []K, values []V) error {
	const batch = 1 << 14
	for len(keys) > 0 {
		n := min(len(keys), batch)
		if _, err := m.BatchUpdate(keys[:n], values[:n], nil); err != nil {
			return cause.Of(fmt.Errorf("%v: %w", m, err))
		}
		keys, values = keys[n:], values[n:]
	}
	return nil
}

// PutArray writes all values of an array map.
func PutArray[T any](m *ebpf.Map, values []T) error {
	keys := make([]uint32, len(values))
	for i := range keys {
		keys[i] = uint32(i)
	}
	return PutBatch(m, keys, values)
}

// ReadArray reads all values of an array map.
func ReadArray[T any](m *ebpf.Map, flags ebpf.MapLookupFlags) ([]T, error) {
	out := make([]T, m.MaxEntries())
	return out, EachChunk(m, flags, func(at int, values []T) { copy(out[at:], values) })
}

// EachChunk calls f with all values of an array map, many at a time. at is the index of the first
// value; the slice is used again after the call.
func EachChunk[T any](m *ebpf.Map, flags ebpf.MapLookupFlags, f func(at int, values []T)) error {
	const chunk = 1 << 12 // its values fit into the cache of a CPU
	n := int(m.MaxEntries())
	values, keys, cursor := make([]T, min(chunk, n)), make([]uint32, min(chunk, n)), new(ebpf.MapBatchCursor)
	for at := 0; at < n; {
		most := min(len(keys), n-at)
		got, err := m.BatchLookup(cursor, keys[:most], values[:most],
			&ebpf.BatchOptions{ElemFlags: uint64(flags)})
		if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return cause.Of(fmt.Errorf("%v: %w", m, err))
		}
		if got == 0 {
			return fmt.Errorf("%v: entries are missing", m)
		}
		f(at, values[:got])
		at += got
	}
	return nil
}

// AwaitPrograms waits until all programs running now have ended: the kernel does so when a map of
// maps changes.
func AwaitPrograms() error {
	inner := &ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1}
	outer, err := ebpf.NewMap(
		&ebpf.MapSpec{Type: ebpf.ArrayOfMaps, KeySize: 4, ValueSize: 4, MaxEntries: 1, InnerMap: inner})
	if err != nil {
		return cause.Of(err)
	}
	defer outer.Close()
	m, err := ebpf.NewMap(inner)
	if err != nil {
		return cause.Of(err)
	}
	defer m.Close()
	return cause.Of(outer.Put(uint32(0), m))
}

// MapID returns the ID of a map.
func MapID(m *ebpf.Map) (ebpf.MapID, error) {
	info, err := m.Info()
	if err != nil {
		return 0, err
	}
	id, _ := info.ID()
	return id, nil
}

// SlotAllocator allocates the slots of a map, with room for two policies.
type SlotAllocator struct {
	Used map[uint32]bool // by the previous policy
	next uint32          // all lower slots are used or allocated
}

// Allocate returns the lowest free slot.
func (s *SlotAllocator) Allocate() uint32 {
	for s.Used[s.next] {
		s.next++
	}
	s.next++
	return s.next - 1
}
