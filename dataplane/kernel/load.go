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
	states, counters *ebpf.Map
}

func (s *shared) close() {
	s.states.Close()
	s.counters.Close()
}

func newShared() (*shared, error) {
	// Before 5.11 maps counted against RLIMIT_MEMLOCK; without privilege the
	// maps say so themselves.
	_ = rlimit.RemoveMemlock()
	spec, err := bpf.LoadShaper()
	if err != nil {
		return nil, err
	}
	s := &shared{}
	if s.states, err = ebpf.NewMap(spec.Maps[bpf.ShaperMapStates]); err != nil {
		return nil, explain(err)
	}
	if s.counters, err = ebpf.NewMap(spec.Maps[bpf.ShaperMapCounters]); err != nil {
		s.states.Close()
		return nil, explain(err)
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
		func() error { return g.fillHighs(own, spec) },
	} {
		if err := fill(); err != nil {
			return nil, explain(err)
		}
	}
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
