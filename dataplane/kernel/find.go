package kernel

import (
	"bytes"
	"errors"
	"maps"
	"slices"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/iface"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/image"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/record"
)

// recordText returns the record of the attached program, or nil without one: the program then is
// not ours, in spite of its name.
func (a attachment) recordText() ([]byte, error) {
	p, err := ebpf.NewProgramFromID(a.Program)
	if err != nil {
		return nil, err
	}
	defer p.Close()
	m, err := a.mapByName(p, record.MapName)
	if m == nil || err != nil {
		return nil, err
	}
	defer m.Close()
	text, err := m.LookupBytes(uint32(0))
	return bytes.TrimRight(text, "\x00"), err
}

// mapByName returns a map of the attached program, or nil for none of this name.
func (a attachment) mapByName(p *ebpf.Program, name string) (out *ebpf.Map, err error) {
	_, err = a.eachMap(p, func(m *ebpf.Map, of string) bool {
		if of == name && out == nil {
			out = m
			return true
		}
		return false
	})
	return out, err
}

// eachMap calls keep for each map of the attached program, and closes the map unless keep returns true. Of
// a program that several interfaces share, keep gets the maps of this one, and each map that all have in
// common. The error is ENOENT if the program was replaced meanwhile.
func (a attachment) eachMap(
	p *ebpf.Program, keep func(m *ebpf.Map, name string) bool,
) (shared bool, err error) {
	info, err := p.Info()
	if err != nil {
		return false, err
	}
	ids, _ := info.MapIDs()
	for _, id := range ids {
		m, err := ebpf.NewMapFromID(id)
		if errors.Is(err, unix.ENOENT) {
			continue // the program was freed meanwhile
		}
		if err != nil {
			return false, err
		}
		info, err := m.Info()
		if err == nil && image.IsShared(m, info.Name) {
			array := m
			shared = true
			m, err = image.OwnMap(array, a.Index)
			array.Close()
		}
		if err == nil && keep(m, info.Name) {
			continue
		}
		m.Close()
		if err != nil {
			return false, err
		}
	}
	return shared, nil
}

// openShaper returns the shaper of an attachment, or nil without a record: the program then is not
// ours, in spite of its name. If the record is unusable, IsUnusable(err) is true, and the program
// can only be detached.
func (a attachment) openShaper() (*Shaper, error) {
	p, err := ebpf.NewProgramFromID(a.Program)
	if err != nil {
		return nil, err
	}
	defer p.Close()
	s := &Shaper{generation: generation{maps: image.EmptyMaps()}}
	shared, err := a.eachMap(p, func(m *ebpf.Map, name string) bool {
		to := s.maps.MapFields()[name]
		switch {
		case name == record.MapName:
			to = &s.about
		case name == image.ReadingsMap:
			to = &s.readings
		case to == &s.maps.Counters.Map:
			s.maps.Counters.Add(m) // a program can have several
			return true
		}
		if to == nil || *to != nil {
			return false
		}
		*to = m
		return true
	})
	if err == nil && shared {
		err = s.maps.ReplaceCommon()
	}
	if err != nil {
		s.Close()
		return nil, err
	}
	if s.about == nil {
		s.Close()
		return nil, nil
	}
	about, text, err := record.Read(s.about)
	if err == nil &&
		(s.readings == nil || slices.Contains(slices.Collect(maps.Values(s.maps.ByName())), nil)) {
		err = &record.VersionError{Version: about.Version}
	}
	if err == nil {
		s.About, s.recordText = *about, text
		err = s.maps.ReadQueues(&s.About)
	}
	if err == nil {
		s.hook, err = a.Open()
	}
	if err != nil {
		s.Close()
		return nil, err
	}
	s.Program, s.Place = a.Program, a.Place
	return s, nil
}

// opened is an attached program of shaper.
type opened struct {
	attachment
	shaper   *Shaper // nil: its record is unusable
	unusable error   // IsUnusable is true
}

// openAttached opens the shapers of an interface in a direction, without programs that are not
// ours in spite of their names.
func openAttached(index int, direction dataplane.Direction) (out []opened, err error) {
	err = whileReplaced(func() error {
		out, err = openAttachedOnce(index, direction)
		return err
	})
	return out, err
}

func openAttachedOnce(index int, direction dataplane.Direction) (out []opened, err error) {
	list, err := attachmentsOnce(index, direction)
	if err != nil {
		return nil, err
	}
	for _, a := range list {
		s, err := a.openShaper()
		switch {
		case s != nil:
			out = append(out, opened{a, s, nil})
		case record.IsUnusable(err):
			out = append(out, opened{a, nil, err})
		case err != nil:
			closeOpened(out)
			return nil, err
		}
	}
	return out, nil
}

func closeOpened(list []opened) {
	for _, o := range list {
		if o.shaper != nil {
			o.shaper.Close()
		}
	}
}

// findShaper returns the shaper of an interface in a direction, or nil if there is none
// with a usable record. One whose record is unusable can only be cleared.
func findShaper(at iface.ID, direction dataplane.Direction) (found *Shaper, err error) {
	list, err := openAttached(at.Index, direction)
	for i, o := range list {
		if o.shaper != nil {
			o.shaper.Interface = interfaceName(at.Index)
			closeOpened(list[i+1:])
			return o.shaper, nil
		}
	}
	return nil, err
}
