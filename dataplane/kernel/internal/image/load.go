package image

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/a-seed-32e5a53f/shaper/bpf"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/cause"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/engine"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/record"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/registry"
)

// Maps are the maps that outlive a policy.
type Maps struct {
	States, Keys, Backlogs, Departures, Expiry *ebpf.Map
	queues                                     *ebpf.Map // of one policy, but rates change in it
	Leases                                     *ebpf.Map
	Budgets, Locks                             *ebpf.Map // of the host, or unused maps
	prefixes, searches, Customers, plans       *ebpf.Map // of customers
	Counters                                   counterMaps
	// this process's tables of keys, by slot
	ownTables *[MaxTables * 2]*ebpf.Map
}

// MapFields returns the fields by the names of the maps in bpf/src/maps.h.
func (s *Maps) MapFields() map[string]**ebpf.Map {
	return map[string]**ebpf.Map{
		bpf.ShaperMapStates: &s.States, bpf.ShaperMapKnownKeys: &s.Keys,
		bpf.ShaperMapCounters: &s.Counters.Map, bpf.ShaperMapBacklogs: &s.Backlogs,
		bpf.ShaperMapWaiting: &s.Departures, bpf.ShaperMapExpiry: &s.Expiry, bpf.ShaperMapQueues: &s.queues,
		bpf.ShaperMapPrefixes: &s.prefixes, bpf.ShaperMapSearches: &s.searches,
		bpf.ShaperMapCustomers: &s.Customers, bpf.ShaperMapPlans: &s.plans, bpf.ShaperMapLeases: &s.Leases,
		bpf.ShaperMapBudgets: &s.Budgets,
		bpf.ShaperMapLocks:   &s.Locks,
	}
}

// ByName returns the maps by name.
func (s *Maps) ByName() map[string]*ebpf.Map {
	out := map[string]*ebpf.Map{}
	for name, m := range s.MapFields() {
		out[name] = *m
	}
	return out
}

// openMaps returns the open maps, except tables of keys.
func (s *Maps) openMaps() []*ebpf.Map {
	return append(slices.Collect(maps.Values(s.ByName())), s.Counters.older...)
}

func (s *Maps) Close() {
	for _, m := range s.openMaps() {
		m.Close()
	}
	if s.ownTables != nil {
		s.closeOwnTables()
	}
}

// closeOwnTables closes this process's tables of keys.
func (s *Maps) closeOwnTables() {
	for i := range s.ownTables {
		s.setOwnTable(int32(i), nil)
	}
}

// CloseExcept closes the maps missing in other.
func (s *Maps) CloseExcept(other *Maps) {
	kept := other.openMaps()
	for _, m := range s.openMaps() {
		if !slices.Contains(kept, m) {
			m.Close()
		}
	}
}

// ForPlan returns the maps for the image of another plan: the same ones, but maps with too few
// slots are replaced by larger ones, the queues by new ones, and rings of departures by new ones if
// their layout changes. claims are the plan's host budgets, or nil.
func (s *Maps) ForPlan(g *Image, before *record.About, claims *registry.Claims) (*Maps, error) {
	out := *s
	err := out.useBudgetMaps(claims)
	if err == nil {
		out.queues, err = engine.NewArray(bpf.ShaperMapQueues, g.Queues)
	}
	if err == nil {
		err = out.grow(g)
	}
	if err == nil {
		g.ChangesCustomers, err = s.FitCustomers(g, before)
	}
	if err == nil && !g.ChangesCustomers {
		err = out.makeCustomerMaps(g)
	}
	if err == nil && !g.sameRings(before) {
		if out.Departures, err = g.newRings(); err == nil {
			err = g.copyDepartures(before, s, out.Departures)
		}
	}
	if err != nil {
		out.CloseExcept(s)
		return nil, err
	}
	return &out, nil
}

// EmptyMaps returns no maps, for the caller to set.
func EmptyMaps() *Maps { return &Maps{ownTables: new([MaxTables * 2]*ebpf.Map)} }

// NewMaps makes the maps whose size does not depend on the policy.
func NewMaps() (*Maps, error) {
	s := EmptyMaps()
	for name, m := range s.MapFields() {
		if MaxSlots[name] != 0 {
			continue // grow makes it
		}
		var err error
		if *m, err = engine.NewMap(name, 0); err != nil {
			s.Close()
			return nil, err
		}
	}
	return s, nil
}

// LoadProgram loads the image's program for one interface. given are the maps that outlive a policy, by
// name; the policy's own maps are made here. The caller closes the collection. An attached program keeps
// its maps open.
func (g *Image) LoadProgram(
	spec *ebpf.CollectionSpec, program string, given map[string]*ebpf.Map,
) (*ebpf.Collection, error) {
	flows, err := g.NewFlows()
	if err != nil {
		return nil, err
	}
	defer flows.Close() // the program keeps its own reference
	given = maps.Clone(given)
	given[bpf.ShaperMapFlows] = flows
	return g.load(spec, program, given)
}

// load loads one program of a spec with the image's policy, as LoadProgram does. given must have the flows.
func (g *Image) load(
	spec *ebpf.CollectionSpec, program string, given map[string]*ebpf.Map,
) (*ebpf.Collection, error) {
	for name := range spec.Programs {
		if name != program {
			delete(spec.Programs, name)
		}
	}
	if err := spec.Variables[bpf.ShaperVarPolicy].Set(g.Constants); err != nil {
		return nil, err
	}
	options := ebpf.CollectionOptions{MapReplacements: map[string]*ebpf.Map{}}
	own, err := g.newPolicyMaps()
	defer closeAll(own) // the program keeps its own references
	if err != nil {
		return nil, err
	}
	maps.Copy(options.MapReplacements, own)
	maps.Copy(options.MapReplacements, given)
	for name, m := range options.MapReplacements {
		spec.Maps[name].MaxEntries = m.MaxEntries()
	}
	// With a log, the verifier takes a minute for an accepted program. So the log is
	// requested only after a rejection.
	options.Programs.LogDisabled = true
	c, err := ebpf.NewCollectionWithOptions(spec, options)
	if errors.Is(err, unix.EACCES) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EPERM) {
		options.Programs.LogDisabled = false
		c, err = ebpf.NewCollectionWithOptions(spec, options)
	}
	return c, cause.Of(err)
}

// NewFlows makes the map with the flows of the policy's queues.
func (g *Image) NewFlows() (*ebpf.Map, error) {
	return engine.NewArray(bpf.ShaperMapFlows, make([]bpf.ShaperFlow, int(g.spread)*flowLeaves))
}

// newPolicyMaps makes the maps of a policy that programs only read. If it fails it
// returns the maps made so far with the error.
func (g *Image) newPolicyMaps() (map[string]*ebpf.Map, error) {
	out := map[string]*ebpf.Map{}
	for _, err := range []error{
		addArray(out, bpf.ShaperMapVectors, g.vectors),
		addArray(out, bpf.ShaperMapTables, g.tables),
		addArray(out, bpf.ShaperMapBounds6, g.bounds),
		addArray(out, bpf.ShaperMapClasses, g.classes),
		addArray(out, bpf.ShaperMapStages, g.Stages),
		addHash(out, bpf.ShaperMapHighs, g.highs),
	} {
		if err != nil {
			return out, err
		}
	}
	return out, nil
}

// addArray adds NewArray to out.
func addArray[T any](out map[string]*ebpf.Map, name string, values []T) error {
	m, err := engine.NewArray(name, values)
	if err == nil {
		out[name] = m
	}
	return err
}

// addHash makes a hash map with these entries and adds it to out.
func addHash[K comparable, V any](out map[string]*ebpf.Map, name string, entries map[K]V) error {
	m, err := engine.NewMap(name, uint32(len(entries)))
	if err != nil {
		return err
	}
	out[name] = m
	for key, value := range entries {
		if err := m.Put(key, value); err != nil {
			return cause.Of(fmt.Errorf("map %s: %w", name, err))
		}
	}
	return nil
}

func closeAll(maps map[string]*ebpf.Map) {
	for _, m := range maps {
		m.Close()
	}
}
