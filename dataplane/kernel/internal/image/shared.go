package image

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/cilium/ebpf"

	"github.com/a-seed-32e5a53f/shaper/bpf"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/cause"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/engine"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/record"
)

// Shared is a loaded program for several interfaces with the same policy. Each of them, a sharer, has maps
// of its own: states, counters, queues and all others that change while the program runs, and the maps bound
// to the program. The program finds them in arrays of maps.
type Shared struct {
	Program *ebpf.Program
	Loaded  *ebpf.Collection
	arrays  map[string]*ebpf.Map
}

// Form identifies the programs that can be shared: those of the same policy, with maps of the same size.
type Form [sha256.Size]byte

// CanShare reports whether interfaces with these maps can share the image's program. Tables of keys,
// customers, leases and budgets belong to one program.
func (g *Image) CanShare(m *Maps) bool {
	return g.Constants.Keyed == 0 && g.Constants.Customers == 0 && len(m.Counters.older) == 0 &&
		!slices.ContainsFunc(g.Stages, func(s bpf.ShaperStage) bool { return s.Table != record.StorePrivate })
}

// ShareForm returns the form of the image's program, with the sharer's own maps by name.
func (g *Image) ShareForm(own map[string]*ebpf.Map) (f Form, err error) {
	h := sha256.New()
	fmt.Fprintln(h, g.entry, g.highs) // sorted by key
	for _, part := range []any{g.Constants, g.vectors, g.tables, g.bounds, g.classes, g.Stages} {
		if err := binary.Write(h, binary.LittleEndian, part); err != nil {
			return f, err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(own)) {
		fmt.Fprintln(h, name, own[name].MaxEntries(), own[name].ValueSize())
	}
	return Form(h.Sum(nil)), nil
}

// OwnMaps returns the maps that a sharer has for itself, by name. flows is nil without leaves for flows.
func (s *Maps) OwnMaps(about, readings, flows *ebpf.Map) map[string]*ebpf.Map {
	return map[string]*ebpf.Map{
		bpf.SharedMapStates: s.States, bpf.SharedMapCounters: s.Counters.Map,
		bpf.SharedMapBacklogs: s.Backlogs, bpf.SharedMapWaiting: s.Departures,
		bpf.SharedMapExpiry: s.Expiry, bpf.SharedMapQueues: s.queues, bpf.SharedMapFlows: flows,
		record.MapName: about, ReadingsMap: readings,
	}
}

// ReplaceCommon replaces the maps that all sharers of a program have in common by new ones. The policy does
// not use them, but the interface's next policy may.
func (s *Maps) ReplaceCommon() error {
	own := s.OwnMaps(nil, nil, nil)
	for name, field := range s.MapFields() {
		if _, ok := own[name]; ok {
			continue
		}
		(*field).Close()
		var err error
		if *field, err = engine.NewMap(name, 0); err != nil {
			return err
		}
	}
	return nil
}

// LoadShared loads the image's program for sharers with maps like own. Kernels before 6.2 cannot.
func (g *Image) LoadShared(own map[string]*ebpf.Map) (*Shared, error) {
	spec, err := engine.SharedSpec()
	if err != nil {
		return nil, err
	}
	s := &Shared{arrays: map[string]*ebpf.Map{}}
	places := spec.Maps[bpf.SharedMapStates].MaxEntries
	for name, m := range own {
		if s.arrays[name], err = engine.NewArrayOfMaps(name, places, m); err != nil {
			s.Close()
			return nil, err
		}
	}
	given := maps.Clone(s.arrays)
	delete(given, record.MapName)
	delete(given, ReadingsMap)
	name := Programs[g.entry]
	if s.Loaded, err = g.load(spec, name, given); err != nil {
		s.Close()
		return nil, err
	}
	s.Program = s.Loaded.Programs[name]
	if err := errors.Join(cause.Of(s.Program.BindMap(s.arrays[record.MapName])),
		cause.Of(s.Program.BindMap(s.arrays[ReadingsMap]))); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// Place returns the place of an interface among the sharers. Interfaces whose indexes differ by a multiple
// of the number of sharers have the same one.
func (s *Shared) Place(index int) uint32 {
	return uint32(index) % s.arrays[record.MapName].MaxEntries()
}

// Put gives the program the maps of a sharer. The kernel waits for running programs after each change of
// an array of maps, so the changes are made at once.
func (s *Shared) Put(place uint32, own map[string]*ebpf.Map) error {
	return s.each(func(array *ebpf.Map, name string) error { return cause.Of(array.Put(place, own[name])) })
}

// Remove takes the maps of a sharer away. The program must not run for it any more.
func (s *Shared) Remove(place uint32) error {
	return s.each(func(array *ebpf.Map, _ string) error {
		if err := array.Delete(place); !errors.Is(err, ebpf.ErrKeyNotExist) {
			return cause.Of(err)
		}
		return nil
	})
}

// each calls f for each array of maps, at once.
func (s *Shared) each(f func(array *ebpf.Map, name string) error) error {
	done := make(chan error)
	for name, array := range s.arrays {
		go func() { done <- f(array, name) }()
	}
	var errs []error
	for range s.arrays {
		errs = append(errs, <-done)
	}
	return errors.Join(errs...)
}

// Close closes the program, which stays attached, and its arrays.
func (s *Shared) Close() {
	closeAll(s.arrays)
	if s.Loaded != nil {
		s.Loaded.Close()
	}
}

// OwnMap returns the map of an interface in an array of maps of a shared program, for the caller to close.
func OwnMap(array *ebpf.Map, index int) (*ebpf.Map, error) {
	var m *ebpf.Map
	err := array.Lookup(uint32(index)%array.MaxEntries(), &m)
	return m, err
}

// IsShared reports whether a map of a program is an array of the sharers' maps.
func IsShared(m *ebpf.Map, name string) bool {
	return m.Type() == ebpf.ArrayOfMaps && name != bpf.ShaperMapKnownKeys
}
