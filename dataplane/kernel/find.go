package kernel

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// A shaper is found by its program: what is attached is the truth, and nothing
// else can be left behind. The program's maps have its counters and, in one
// called about, what the programs themselves do not need.
const aboutMap = "about"

// aboutRoom is what an about map has beyond its first text, in bytes.
const aboutRoom = 1 << 10

// namespace is the inode of this thread's network namespace.
func namespace() (uint64, error) {
	ns, err := os.Stat("/proc/thread-self/ns/net")
	if err != nil {
		return 0, err
	}
	return ns.Sys().(*syscall.Stat_t).Ino, nil
}

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
		return nil, explain(err)
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
	return explain(m.Put(uint32(0), padded))
}

func readAbout(m *ebpf.Map) (*About, error) {
	const tries = 5 // one that is being written is torn
	for try := 0; ; try++ {
		text, err := m.LookupBytes(uint32(0))
		if err != nil {
			return nil, explain(err)
		}
		a := &About{}
		err = json.Unmarshal(bytes.TrimRight(text, "\x00"), a)
		if err == nil {
			return a, nil
		}
		if try == tries {
			return nil, fmt.Errorf("a shaper was attached by another version: %w", err)
		}
	}
}

// List returns all shapers of this network namespace, whichever process
// attached them. It needs CAP_SYS_ADMIN beside what attaching needs.
func List() ([]*Shaper, error) {
	here, err := namespace()
	if err != nil {
		return nil, err
	}
	var out []*Shaper
	for id := ebpf.ProgramID(0); ; {
		id, err = ebpf.ProgramGetNextID(id)
		if errors.Is(err, unix.ENOENT) {
			break
		}
		if err == nil {
			var s *Shaper
			if s, err = open(id, here); err == nil && s != nil {
				out = append(out, s)
			}
		}
		if err != nil && !errors.Is(err, unix.ENOENT) {
			for _, s := range out {
				s.Close()
			}
			if errors.Is(err, unix.EPERM) {
				return nil, fmt.Errorf("%w: finding a shaper needs root, or CAP_SYS_ADMIN with CAP_BPF and CAP_NET_ADMIN", unix.EPERM)
			}
			return nil, err
		}
	}
	slices.SortFunc(out, func(a, b *Shaper) int {
		return strings.Compare(a.Interface+" "+a.Direction.String(), b.Interface+" "+b.Direction.String())
	})
	return out, nil
}

// find returns the shaper of an interface, or nil.
func find(name string, direction Hook) (*Shaper, error) {
	all, err := List()
	if err != nil {
		return nil, err
	}
	var out *Shaper
	for _, s := range all {
		if s.Interface == name && s.Direction == direction && out == nil {
			out = s
		} else {
			s.Close()
		}
	}
	return out, nil
}

// open returns the shaper whose program it is, or nil if that is none, is
// attached no more, or is in another network namespace.
func open(id ebpf.ProgramID, here uint64) (*Shaper, error) {
	p, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return nil, err
	}
	defer p.Close()
	info, err := p.Info()
	if err != nil {
		return nil, err
	}
	if !slices.Contains(programs[:], info.Name) {
		return nil, nil
	}
	ids, _ := info.MapIDs()
	s := &Shaper{shared: &shared{made: new([MaxTables * 2]*ebpf.Map)}}
	for _, id := range ids {
		m, err := ebpf.NewMapFromID(id)
		if err != nil {
			s.Close()
			return nil, err
		}
		if to := s.mapOf(m); to != nil && *to == nil {
			*to = m
		} else {
			m.Close()
		}
	}
	if s.about == nil || slices.Contains(slices.Collect(maps.Values(s.shared.given())), nil) {
		s.Close()
		return nil, nil // somebody else's of that name, or one that is not attached yet
	}
	a, err := readAbout(s.about)
	if err != nil {
		s.Close()
		return nil, err
	}
	s.About = *a
	s.Program = id
	if a.Namespace == here {
		if s.hook, err = a.Place.reopen(); err == nil && s.hook.program() == id {
			return s, nil
		}
	}
	s.Close()
	return nil, nil
}

// mapOf says where a map of a program belongs.
func (s *Shaper) mapOf(m *ebpf.Map) **ebpf.Map {
	info, err := m.Info()
	if err != nil {
		return nil
	}
	if info.Name == aboutMap {
		return &s.about
	}
	return s.shared.all()[info.Name]
}
