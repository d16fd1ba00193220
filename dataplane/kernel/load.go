package kernel

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"

	"github.com/a-seed-32e5a53f/shaper/bpf"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/cause"
)

// shared are the maps that outlive a policy.
type stateMaps struct {
	states, keys, backlogs, departures, expiry *ebpf.Map
	leases                                     *ebpf.Map
	budgets, locks                             *ebpf.Map // those of the host, or some that are not used
	counters                                   counterMaps
	ownTables                                  *[MaxTables * 2]*ebpf.Map // tables of keys, by slot: those of this process
}

// all are the maps, by name.
func (s *stateMaps) mapFields() map[string]**ebpf.Map {
	return map[string]**ebpf.Map{
		bpf.ShaperMapStates: &s.states, bpf.ShaperMapKnownKeys: &s.keys, bpf.ShaperMapCounters: &s.counters.Map,
		bpf.ShaperMapBacklogs: &s.backlogs, bpf.ShaperMapWaiting: &s.departures, bpf.ShaperMapExpiry: &s.expiry,
		bpf.ShaperMapLeases: &s.leases, bpf.ShaperMapBudgets: &s.budgets, bpf.ShaperMapLocks: &s.locks,
	}
}

// given are the maps as those of a program.
func (s *stateMaps) byName() map[string]*ebpf.Map {
	out := map[string]*ebpf.Map{}
	for name, m := range s.mapFields() {
		out[name] = *m
	}
	return out
}

// open are the maps that are open.
func (s *stateMaps) openMaps() []*ebpf.Map {
	return append(slices.Collect(maps.Values(s.byName())), s.counters.older...)
}

func (s *stateMaps) close() {
	for _, m := range s.openMaps() {
		m.Close()
	}
	if s.ownTables != nil {
		s.closeOwnTables()
	}
}

// release lets go of the tables of keys that this process made.
func (s *stateMaps) closeOwnTables() {
	for i := range s.ownTables {
		s.setOwnTable(int32(i), nil)
	}
}

// closeBut closes the maps that another set does not have.
func (s *stateMaps) closeExcept(other *stateMaps) {
	kept := other.openMaps()
	for _, m := range s.openMaps() {
		if !slices.Contains(kept, m) {
			m.Close()
		}
	}
}

// of returns the maps for another policy: the same, with larger ones where they
// lack room, and with rings of its own where those of the policy before do not
// fit.
func (s *stateMaps) forPlan(g *image, before *About, c *shares) (*stateMaps, error) {
	out := *s
	if err := out.useBudgetMaps(c); err != nil {
		out.closeExcept(s)
		return nil, err
	}
	err := out.grow(g)
	if err == nil && !g.sameRings(before) {
		if out.departures, err = g.newRings(); err == nil {
			err = g.copyDepartures(before, s, out.departures)
		}
	}
	if err != nil {
		out.closeExcept(s)
		return nil, err
	}
	return &out, nil
}

// newShared makes the maps, except those whose size depends on the policy.
func newStateMaps() (*stateMaps, error) {
	// Before 5.11 maps counted against RLIMIT_MEMLOCK; without privilege the
	// maps say so themselves.
	_ = rlimit.RemoveMemlock()
	spec, err := bpf.LoadShaper()
	if err != nil {
		return nil, err
	}
	s := &stateMaps{ownTables: new([MaxTables * 2]*ebpf.Map)}
	for name, m := range s.mapFields() {
		if maxSlots[name] != 0 {
			continue // grow makes it
		}
		if *m, err = ebpf.NewMap(spec.Maps[name]); err != nil {
			s.close()
			return nil, cause.Of(err)
		}
	}
	return s, nil
}

// load makes the program of a policy. It takes the maps that are given by name; those
// of the policy are its own. The caller closes the collection; a program that
// is attached keeps its maps.
func (g *image) loadProgram(spec *ebpf.CollectionSpec, program string, given map[string]*ebpf.Map) (*ebpf.Collection, error) {
	for name := range spec.Programs {
		if name != program {
			delete(spec.Programs, name)
		}
	}
	if err := spec.Variables[bpf.ShaperVarPolicy].Set(g.constants); err != nil {
		return nil, err
	}
	own := map[string]*ebpf.Map{}
	defer func() {
		for _, m := range own {
			m.Close()
		}
	}()
	for _, fill := range []func() error{
		func() error { return newArray(own, spec, bpf.ShaperMapVectors, g.vectors) },
		func() error { return newArray(own, spec, bpf.ShaperMapTables, g.tables) },
		func() error { return newArray(own, spec, bpf.ShaperMapBounds6, g.bounds) },
		func() error { return newArray(own, spec, bpf.ShaperMapClasses, g.classes) },
		func() error { return newArray(own, spec, bpf.ShaperMapStages, g.stages) },
		func() error { return newArray(own, spec, bpf.ShaperMapQueues, g.queues) },
		func() error { return g.fillHighs(own, spec) },
	} {
		if err := fill(); err != nil {
			return nil, cause.Of(err)
		}
	}
	options := ebpf.CollectionOptions{MapReplacements: map[string]*ebpf.Map{}}
	for _, list := range []map[string]*ebpf.Map{own, given} {
		for name, m := range list {
			options.MapReplacements[name] = m
			spec.Maps[name].MaxEntries = m.MaxEntries()
		}
	}
	// With a log the kernel takes a minute over a program that it does not reject.
	options.Programs.LogDisabled = true
	c, err := ebpf.NewCollectionWithOptions(spec, options)
	if errors.Is(err, unix.EACCES) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EPERM) {
		options.Programs.LogDisabled = false
		c, err = ebpf.NewCollectionWithOptions(spec, options)
	}
	return c, cause.Of(err)
}

// array makes a map of the policy that the program can only read.
func newArray[T any](own map[string]*ebpf.Map, spec *ebpf.CollectionSpec, name string, values []T) error {
	s := spec.Maps[name]
	s.MaxEntries = uint32(max(len(values), 1))
	m, err := ebpf.NewMap(s)
	if err != nil {
		return fmt.Errorf("map %s of %d entries: %w", name, len(values), err)
	}
	own[name] = m
	const batch = 1 << 14
	first := uint32(0)
	for chunk := range slices.Chunk(values, batch) {
		keys := make([]uint32, len(chunk))
		for i := range keys {
			keys[i] = first + uint32(i)
		}
		first += uint32(len(chunk))
		if _, err := m.BatchUpdate(keys, chunk, nil); err != nil {
			return fmt.Errorf("map %s: %w", name, err)
		}
	}
	return nil // not frozen: the verifier would read all of it as constants, and cannot
}

func (g *image) fillHighs(own map[string]*ebpf.Map, spec *ebpf.CollectionSpec) error {
	s := spec.Maps[bpf.ShaperMapHighs]
	s.MaxEntries = uint32(max(len(g.highs), 1))
	m, err := ebpf.NewMap(s)
	if err != nil {
		return err
	}
	own[bpf.ShaperMapHighs] = m
	for key, color := range g.highs {
		if err := m.Put(key, color); err != nil {
			return err
		}
	}
	return nil
}
