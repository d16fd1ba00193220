package record

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/cilium/ebpf"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/cause"
)

// MapName is the name of the map with a shaper's record. It is bound to the program, which does not
// use it.
const MapName = "about"

// aboutRoom is the least size of an about map beyond its first record, bytes: later records may be longer.
// The size is a multiple of aboutUnit, so that records of the same policy at several interfaces have the
// same size.
const (
	aboutRoom = 1 << 10
	aboutUnit = 1 << 12
)

// New makes the map for a, with room for more bytes beyond aboutRoom.
func New(a *About, room int) (*ebpf.Map, error) {
	text, err := json.Marshal(a)
	if err != nil {
		return nil, err
	}
	size := (len(text) + room + aboutRoom + aboutUnit - 1) / aboutUnit * aboutUnit
	m, err := ebpf.NewMap(&ebpf.MapSpec{
		Name: MapName, Type: ebpf.Array, KeySize: 4, ValueSize: uint32(size), MaxEntries: 1,
	})
	if err != nil {
		return nil, cause.Of(err)
	}
	return m, writeRecord(m, text)
}

func Write(m *ebpf.Map, a *About) error {
	text, err := json.Marshal(a)
	if err != nil {
		return err
	}
	return writeRecord(m, text)
}

func writeRecord(m *ebpf.Map, text []byte) error {
	if len(text) > int(m.ValueSize()) {
		return fmt.Errorf("map %s: a record of %d bytes does not fit in %d", MapName, len(text),
			m.ValueSize())
	}
	padded := make([]byte, m.ValueSize())
	copy(padded, text)
	return cause.Of(m.Put(uint32(0), padded))
}

// Version is the version of the record's format: of About with the structs of bpf/src/policy.h in it,
// and of dataplane.ClassStats in the map of readings. TestRecordVersion fails if they change without
// it.
const Version = 13

// VersionError reports a shaper attached by another version of this package, whose record this one
// cannot read. Clear detaches such a shaper, and Attach replaces it.
type VersionError struct{ Version int }

func (e *VersionError) Error() string {
	return fmt.Sprintf("attached by another version of shaper (its record has format %d, this one reads %d)",
		e.Version, Version)
}

// DamageError reports invalid content of a record. Like a *VersionError it is permanent; other
// errors of reading a record may be temporary.
type DamageError struct{ Err error }

func (e *DamageError) Error() string { return fmt.Sprintf("its record is damaged: %v", e.Err) }

func (e *DamageError) Unwrap() error { return e.Err }

// IsUnusable reports whether this version can never read the record.
func IsUnusable(err error) bool {
	return errors.As(err, new(*VersionError)) || errors.As(err, new(*DamageError))
}

// Parse decodes and validates a record.
func Parse(text []byte) (*About, error) {
	a := &About{}
	err := json.Unmarshal(text, a)
	if a.Version != Version && (err == nil || a.Version != 0) {
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

// validate rejects a record whose use would panic: one with mismatched lengths, or with
// zero denominators.
func (a *About) validate() error {
	o := &a.Outline
	ok := (a.Direction == dataplane.Egress || a.Direction == dataplane.Ingress) && o.Valid() &&
		len(o.Classes) == len(a.Slots) && len(o.Stages) == len(a.Stages) && len(o.Queues) == len(a.Queued) &&
		len(o.Links) == len(a.Links)
	for _, s := range a.Stages {
		for _, b := range s.Profile.Buckets {
			ok = ok && b.Den > 0 && b.Size >= 0
		}
	}
	for _, q := range a.Queued {
		ok = ok && (PaceOf(&q.ShaperQueue).Den > 0 || q.Linked != 0)
	}
	if !ok {
		return errors.New("a number is out of range")
	}
	return nil
}

// Read returns the record in a map, also as the map contains it.
func Read(m *ebpf.Map) (a *About, text []byte, err error) {
	const tries = 5 // a read during a write returns a torn record
	for try := 0; ; try++ {
		text, err := m.LookupBytes(uint32(0))
		if err != nil {
			return nil, nil, cause.Of(err)
		}
		a, err := Parse(bytes.TrimRight(text, "\x00"))
		if err == nil || errors.As(err, new(*VersionError)) || try == tries {
			return a, text, err
		}
	}
}
