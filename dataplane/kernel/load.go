package kernel

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/features"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"

	"github.com/a-seed-32e5a53f/shaper/bpf"
)

// oldest is the first kernel that has all that the programs use, as
// LINUX_VERSION_CODE: 5.18, bpf_xdp_load_bytes. What is older was not tried.
const oldest = 5<<16 | 18<<8

// explain says what is to be done about an error of the bpf system call.
func explain(err error) error {
	if err == nil {
		return nil
	}
	version, _ := features.LinuxVersionCode()
	var refused *ebpf.VerifierError
	switch {
	case version != 0 && version < oldest && !errors.Is(err, unix.EPERM):
		return fmt.Errorf("kernel %d.%d is too old: shaper needs 5.18 or newer: %w", version>>16, version>>8&0xff, err)
	case errors.As(err, &refused) && strings.Contains(err.Error(), "!root"):
		return fmt.Errorf("%w: the verifier needs CAP_PERFMON to look at the program: run as root, or with CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON", unix.EPERM)
	case errors.Is(err, unix.EPERM) && !errors.As(err, &refused):
		return fmt.Errorf("%w: run as root, or with CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON", unix.EPERM)
	case errors.Is(err, ebpf.ErrNotSupported):
		return fmt.Errorf("this kernel lacks a part of eBPF (CONFIG_BPF_SYSCALL, CONFIG_BPF_JIT, CONFIG_NET_CLS_ACT): %w", err)
	}
	return err
}

// shared are the maps that outlive a policy.
type shared struct {
	states, keys, counters, backlogs, waiting *ebpf.Map
	made                                      *[MaxTables * 2]*ebpf.Map // tables of keys, by slot: those of this process
}

// all are the maps, by name.
func (s *shared) all() map[string]**ebpf.Map {
	return map[string]**ebpf.Map{
		bpf.ShaperMapStates: &s.states, bpf.ShaperMapKnownKeys: &s.keys, bpf.ShaperMapCounters: &s.counters,
		bpf.ShaperMapBacklogs: &s.backlogs, bpf.ShaperMapWaiting: &s.waiting,
	}
}

// given are the maps as those of a program.
func (s *shared) given() map[string]*ebpf.Map {
	out := map[string]*ebpf.Map{}
	for name, m := range s.all() {
		out[name] = *m
	}
	return out
}

func (s *shared) close() {
	for _, m := range s.all() {
		(*m).Close()
	}
	if s.made != nil {
		s.release()
	}
}

// release lets go of the tables of keys that this process made.
func (s *shared) release() {
	for i := range s.made {
		s.keep(int32(i), nil)
	}
}

// of returns the maps for another policy: the same, with rings of its own where
// those of the policy before do not fit.
func (s *shared) of(g *image, before *About) (*shared, error) {
	out := *s
	if g.sameRings(before) {
		return &out, nil
	}
	var err error
	if out.waiting, err = g.newRings(); err != nil {
		return nil, err
	}
	if err := g.keepWaiting(before, s, out.waiting); err != nil {
		out.waiting.Close()
		return nil, err
	}
	return &out, nil
}

func newShared() (*shared, error) {
	// Before 5.11 maps counted against RLIMIT_MEMLOCK; without privilege the
	// maps say so themselves.
	_ = rlimit.RemoveMemlock()
	spec, err := bpf.LoadShaper()
	if err != nil {
		return nil, err
	}
	s := &shared{made: new([MaxTables * 2]*ebpf.Map)}
	for name, m := range s.all() {
		if *m, err = ebpf.NewMap(spec.Maps[name]); err != nil {
			s.close()
			return nil, explain(err)
		}
	}
	return s, nil
}

// load makes the program of a policy. It takes the maps given by name, those
// of the policy are its own. The caller closes the collection; a program that
// is attached keeps its maps.
func (g *image) load(spec *ebpf.CollectionSpec, program string, maps map[string]*ebpf.Map) (*ebpf.Collection, error) {
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
		func() error { return array(own, spec, bpf.ShaperMapVectors, g.vectors) },
		func() error { return array(own, spec, bpf.ShaperMapTables, g.tables) },
		func() error { return array(own, spec, bpf.ShaperMapBounds6, g.bounds) },
		func() error { return array(own, spec, bpf.ShaperMapClasses, g.classes) },
		func() error { return array(own, spec, bpf.ShaperMapStages, g.stages) },
		func() error { return array(own, spec, bpf.ShaperMapQueues, g.queues) },
		func() error { return g.fillHighs(own, spec) },
	} {
		if err := fill(); err != nil {
			return nil, explain(err)
		}
	}
	spec.Maps[bpf.ShaperMapWaiting].MaxEntries = uint32(max(g.ring, 1))
	options := ebpf.CollectionOptions{MapReplacements: map[string]*ebpf.Map{}}
	for _, given := range []map[string]*ebpf.Map{own, maps} {
		for name, m := range given {
			options.MapReplacements[name] = m
		}
	}
	c, err := ebpf.NewCollectionWithOptions(spec, options)
	return c, explain(err)
}

// array makes a map of the policy that the program can only read.
func array[T any](own map[string]*ebpf.Map, spec *ebpf.CollectionSpec, name string, values []T) error {
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
