package kernel

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/a-seed-32e5a53f/shaper/bpf"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/cause"
)

// stateMaps are the maps that outlive a policy.
type stateMaps struct {
	states, keys, backlogs, departures, expiry *ebpf.Map
	queues                                     *ebpf.Map // of one policy, but rates change in it
	leases                                     *ebpf.Map
	budgets, locks                             *ebpf.Map // of the host, or unused maps
	prefixes, searches, customers, plans       *ebpf.Map // of customers
	counters                                   counterMaps
	ownTables                                  *[MaxTables * 2]*ebpf.Map // tables of keys that this process made, by slot
}

// mapFields returns the fields by the names of the maps in bpf/src/maps.h.
func (s *stateMaps) mapFields() map[string]**ebpf.Map {
	return map[string]**ebpf.Map{
		bpf.ShaperMapStates: &s.states, bpf.ShaperMapKnownKeys: &s.keys, bpf.ShaperMapCounters: &s.counters.Map,
		bpf.ShaperMapBacklogs: &s.backlogs, bpf.ShaperMapWaiting: &s.departures, bpf.ShaperMapExpiry: &s.expiry,
		bpf.ShaperMapQueues: &s.queues, bpf.ShaperMapPrefixes: &s.prefixes, bpf.ShaperMapSearches: &s.searches, bpf.ShaperMapCustomers: &s.customers, bpf.ShaperMapPlans: &s.plans,
		bpf.ShaperMapLeases: &s.leases, bpf.ShaperMapBudgets: &s.budgets, bpf.ShaperMapLocks: &s.locks,
	}
}

// byName returns the maps by name.
func (s *stateMaps) byName() map[string]*ebpf.Map {
	out := map[string]*ebpf.Map{}
	for name, m := range s.mapFields() {
		out[name] = *m
	}
	return out
}

// openMaps returns the open maps, except tables of keys.
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

// closeOwnTables closes the tables of keys that this process made.
func (s *stateMaps) closeOwnTables() {
	for i := range s.ownTables {
		s.setOwnTable(int32(i), nil)
	}
}

// closeExcept closes the maps that other does not have.
func (s *stateMaps) closeExcept(other *stateMaps) {
	kept := other.openMaps()
	for _, m := range s.openMaps() {
		if !slices.Contains(kept, m) {
			m.Close()
		}
	}
}

// forPlan returns the maps for the image of another plan: the same ones, except that maps
// with too few slots are replaced by larger ones, the queues by new ones, and rings of
// departures by new ones if their layout changes. claims are the plan's host budgets, or nil.
func (s *stateMaps) forPlan(g *image, before *About, claims *budgetClaims) (*stateMaps, error) {
	out := *s
	err := out.useBudgetMaps(claims)
	if err == nil {
		out.queues, err = newArray(bpf.ShaperMapQueues, g.queues)
	}
	if err == nil {
		err = out.grow(g)
	}
	if err == nil {
		g.changesCustomers, err = s.fitCustomers(g, before)
	}
	if err == nil && !g.changesCustomers {
		err = out.makeCustomerMaps(g)
	}
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

// emptyStateMaps returns no maps, for the caller to set.
func emptyStateMaps() *stateMaps { return &stateMaps{ownTables: new([MaxTables * 2]*ebpf.Map)} }

// newStateMaps makes the maps whose size does not depend on the policy.
func newStateMaps() (*stateMaps, error) {
	s := emptyStateMaps()
	for name, m := range s.mapFields() {
		if maxSlots[name] != 0 {
			continue // grow makes it
		}
		var err error
		if *m, err = newMap(name, 0); err != nil {
			s.close()
			return nil, err
		}
	}
	return s, nil
}

// loadProgram loads one program of a spec with the image's policy. given are the maps that
// outlive a policy, by name; the policy's own maps are made here. The caller closes the
// collection. An attached program keeps its maps open.
func (g *image) loadProgram(spec *ebpf.CollectionSpec, program string, given map[string]*ebpf.Map) (*ebpf.Collection, error) {
	for name := range spec.Programs {
		if name != program {
			delete(spec.Programs, name)
		}
	}
	if err := spec.Variables[bpf.ShaperVarPolicy].Set(g.constants); err != nil {
		return nil, err
	}
	options := ebpf.CollectionOptions{MapReplacements: map[string]*ebpf.Map{}}
	own, err := g.newPolicyMaps()
	defer closeAll(own) // the program has its own references
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

// newPolicyMaps makes the maps of a policy, which programs only read. If it fails it
// returns the maps made so far with the error.
func (g *image) newPolicyMaps() (map[string]*ebpf.Map, error) {
	out := map[string]*ebpf.Map{}
	for _, err := range []error{
		addArray(out, bpf.ShaperMapVectors, g.vectors),
		addArray(out, bpf.ShaperMapTables, g.tables),
		addArray(out, bpf.ShaperMapBounds6, g.bounds),
		addArray(out, bpf.ShaperMapClasses, g.classes),
		addArray(out, bpf.ShaperMapStages, g.stages),
		addArray(out, bpf.ShaperMapFlows, make([]bpf.ShaperFlow, int(g.spread)*flowLeaves)),
		addHash(out, bpf.ShaperMapHighs, g.highs),
	} {
		if err != nil {
			return out, err
		}
	}
	return out, nil
}

// addArray adds newArray to out.
func addArray[T any](out map[string]*ebpf.Map, name string, values []T) error {
	m, err := newArray(name, values)
	if err == nil {
		out[name] = m
	}
	return err
}

// addHash makes a hash map with these entries and adds it to out.
func addHash[K comparable, V any](out map[string]*ebpf.Map, name string, entries map[K]V) error {
	m, err := newMap(name, uint32(len(entries)))
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
