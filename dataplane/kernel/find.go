package kernel

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/cause"
)

// A program's maps have its counters and, in one called about, its record: what
// the program itself does not need.
const aboutMap = "about"

// aboutRoom is what an about map has beyond its first text, in bytes.
const aboutRoom = 1 << 10

// newAbout makes the map that keeps a, with room for more bytes of it.
func newAbout(a *About, room int) (*ebpf.Map, error) {
	text, err := json.Marshal(a)
	if err != nil {
		return nil, err
	}
	m, err := ebpf.NewMap(&ebpf.MapSpec{
		Name: aboutMap, Type: ebpf.Array, KeySize: 4, ValueSize: uint32(len(text) + room + aboutRoom), MaxEntries: 1,
	})
	if err != nil {
		return nil, cause.Of(err)
	}
	return m, writeAbout(m, a)
}

func writeAbout(m *ebpf.Map, a *About) error {
	text, err := json.Marshal(a)
	if err != nil {
		return err
	}
	if len(text) > int(m.ValueSize()) {
		return fmt.Errorf("map %s: %d bytes do not fit %d", aboutMap, len(text), m.ValueSize())
	}
	padded := make([]byte, m.ValueSize())
	copy(padded, text)
	return cause.Of(m.Put(uint32(0), padded))
}

// recordVersion is the format of a record: of About, and of what bpf/src/policy.h
// has in it. TestRecordVersion holds that it changes with them.
const recordVersion = 4

// VersionError says that a shaper was attached by a version whose record this one
// cannot read. It can be detached, or replaced by run.
type VersionError struct{ Version int }

func (e *VersionError) Error() string {
	return fmt.Sprintf("attached by another version of shaper (its record has format %d, this one reads %d)", e.Version, recordVersion)
}

// DamageError says that a record is none that a shaper has written. Like a
// *VersionError it is final; other errors of reading a record are not.
type DamageError struct{ Err error }

func (e *DamageError) Error() string { return fmt.Sprintf("its record is damaged: %v", e.Err) }
func (e *DamageError) Unwrap() error { return e.Err }

// unusable says whether a record will never be read by this version.
func unusable(err error) bool {
	return errors.As(err, new(*VersionError)) || errors.As(err, new(*DamageError))
}

// parse reads a record. What it names is used only after check.
func parseRecord(text []byte) (*About, error) {
	a := &About{}
	err := json.Unmarshal(text, a)
	if a.Version != recordVersion && (err == nil || a.Version != 0) {
		return a, &VersionError{a.Version}
	}
	if err == nil {
		err = a.validate()
	}
	if err != nil {
		err = &DamageError{err}
	}
	return a, err
}

// check refuses a record that no shaper has written.
func (a *About) validate() error {
	o := &a.Outline
	ok := (a.Direction == Egress || a.Direction == Ingress) && o.Valid() &&
		len(o.Classes) == len(a.Classes) && len(o.Stages) == len(a.Stages) && len(o.Queues) == len(a.Queued) && len(o.Links) == len(a.Links)
	for _, s := range a.Stages {
		for _, b := range s.Profile.Buckets {
			ok = ok && b.Den > 0 && b.Size >= 0
		}
	}
	for _, q := range a.Queued {
		ok = ok && (q.Den > 0 || q.Linked != 0)
	}
	if !ok {
		return errors.New("a number is out of range")
	}
	return nil
}

func readAbout(m *ebpf.Map) (*About, error) {
	const tries = 5 // one that is being written is torn
	for try := 0; ; try++ {
		text, err := m.LookupBytes(uint32(0))
		if err != nil {
			return nil, cause.Of(err)
		}
		a, err := parseRecord(bytes.TrimRight(text, "\x00"))
		if err == nil || errors.As(err, new(*VersionError)) || try == tries {
			return a, err
		}
	}
}

// record is the text that a shaper keeps beside its program. It is nil if the
// program is not ours but for its name.
func (a attachment) recordText() ([]byte, error) {
	p, err := ebpf.NewProgramFromID(a.Program)
	if err != nil {
		return nil, err
	}
	defer p.Close()
	m, err := mapNamed(p, aboutMap)
	if m == nil || err != nil {
		return nil, err
	}
	defer m.Close()
	text, err := m.LookupBytes(uint32(0))
	return bytes.TrimRight(text, "\x00"), err
}

// mapNamed is the map of a program that has a name, or nil.
func mapNamed(p *ebpf.Program, name string) (out *ebpf.Map, err error) {
	err = eachMap(p, func(m *ebpf.Map, of string) bool {
		if of == name && out == nil {
			out = m
			return true
		}
		return false
	})
	return out, err
}

// eachMap calls keep for each map of a program, and closes what it does not keep.
func eachMap(p *ebpf.Program, keep func(m *ebpf.Map, name string) bool) error {
	info, err := p.Info()
	if err != nil {
		return err
	}
	ids, _ := info.MapIDs()
	for _, id := range ids {
		m, err := ebpf.NewMapFromID(id)
		if errors.Is(err, unix.ENOENT) {
			continue // the program went meanwhile
		}
		if err != nil {
			return err
		}
		info, err := m.Info()
		if err == nil && keep(m, info.Name) {
			continue
		}
		m.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

// open returns the shaper of an attachment, or nil if the program is not ours but
// for its name. An unusable one can only be detached.
func (a attachment) openShaper() (*Shaper, error) {
	p, err := ebpf.NewProgramFromID(a.Program)
	if err != nil {
		return nil, err
	}
	defer p.Close()
	s := &Shaper{maps: &stateMaps{ownTables: new([MaxTables * 2]*ebpf.Map)}}
	if err := eachMap(p, func(m *ebpf.Map, name string) bool {
		to := s.maps.mapFields()[name]
		switch {
		case name == aboutMap:
			to = &s.about
		case to == &s.maps.counters.Map:
			s.maps.counters.add(m) // there may be several
			return true
		}
		if to == nil || *to != nil {
			return false
		}
		*to = m
		return true
	}); err != nil {
		s.Close()
		return nil, err
	}
	if s.about == nil {
		s.Close()
		return nil, nil
	}
	about, err := readAbout(s.about)
	if err == nil && slices.Contains(slices.Collect(maps.Values(s.maps.byName())), nil) {
		err = &VersionError{about.Version}
	}
	if err == nil {
		s.About = *about
		s.hook, err = a.Open()
	}
	if err != nil {
		s.Close()
		return nil, err
	}
	s.Program, s.Place = a.Program, a.Place
	return s, nil
}
