package kernel

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/engine"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/image"
)

// Programs are programs that the Shapers of this process share: one is loaded for the same policy at many
// interfaces of a network namespace, because the verifier takes longer than everything else. A policy with
// tables of keys, customers or budgets has a program for each interface, and so has every policy before
// kernel 6.2. The zero value is ready to use.
type Programs struct {
	mu      sync.Mutex
	list    map[image.Form][]*shared
	refused error // the kernel cannot load shared programs
}

// temporary are the errors after which the next program may be loaded.
var temporary = []error{unix.ENOMEM, unix.EMFILE, unix.ENFILE, unix.EAGAIN, unix.EINTR}

// Lasting reports whether every later attempt in this process may fail with the same error. The eBPF library
// asks the kernel once for each of its functions, and keeps the answer, even if it was wrong because memory
// or file descriptors were short.
func Lasting(err error) bool {
	return isOneOf(err, temporary) || isOneOf(err, []error{ebpf.ErrNotSupported, errUnnamed}) ||
		strings.Contains(err.Error(), "get token: ") // these errors of the library have no type
}

func isOneOf(err error, list []error) bool {
	return slices.ContainsFunc(list, func(e error) bool { return errors.Is(err, e) })
}

// shared is a shared program.
type shared struct {
	*image.Shared
	id   ebpf.ProgramID
	form image.Form
	used map[uint32]bool // places of sharers
}

// sharer is a place of an interface in a shared program.
type sharer struct {
	all   *Programs
	in    *shared
	place uint32
}

// add puts the maps of an interface into a shared program, which it loads if necessary. It returns nil if
// the interface needs a program of its own. note is the reason, once, if that is the kernel.
func (p *Programs) add(
	g *image.Image, own map[string]*ebpf.Map, index int,
) (s *sharer, note string, err error) {
	form, err := g.ShareForm(own)
	if err != nil {
		return nil, "", err
	}
	if s, err = p.take(g, form, own, index); err != nil {
		return nil, fmt.Sprintf("each interface has a program of its own: %v", err), nil
	}
	if s != nil {
		if err := s.in.Put(s.place, own); err != nil {
			return nil, "", errors.Join(err, s.free())
		}
	}
	return s, "", nil
}

// take takes the place of an interface in a program. It returns nil after an earlier error.
func (p *Programs) take(
	g *image.Image, form image.Form, own map[string]*ebpf.Map, index int,
) (*sharer, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.refused != nil {
		return nil, nil
	}
	for _, in := range p.list[form] {
		if place := in.Place(index); !in.used[place] {
			in.used[place] = true
			return &sharer{p, in, place}, nil
		}
	}
	loaded, err := g.LoadShared(own)
	if err != nil {
		if !isOneOf(err, temporary) {
			p.refused = err
		}
		return nil, err
	}
	info, err := loaded.Program.Info()
	if err != nil {
		loaded.Close()
		return nil, err
	}
	id, _ := info.ID()
	in := &shared{loaded, id, form, map[uint32]bool{loaded.Place(index): true}}
	if p.list == nil {
		p.list = map[image.Form][]*shared{}
	}
	p.list[form] = append(p.list[form], in)
	return &sharer{p, in, loaded.Place(index)}, nil
}

// of returns the place of an interface in a program, if this process has loaded it: an earlier Shaper was
// closed, and its program stayed attached.
func (p *Programs) of(program ebpf.ProgramID, index int) *sharer {
	if p == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, list := range p.list {
		for _, in := range list {
			if place := in.Place(index); in.id == program && in.used[place] {
				return &sharer{p, in, place}
			}
		}
	}
	return nil
}

// leave takes the interface's maps away from the program after it has been replaced or detached. It does
// not wait for packets that are still in the program.
func (s *sharer) leave() {
	if s == nil {
		return
	}
	go func() {
		if engine.AwaitPrograms() == nil { // otherwise packets could pass unmetered
			_ = s.free()
		}
	}()
}

// free frees the place. The program must not run for the interface.
func (s *sharer) free() error {
	err := s.in.Remove(s.place)
	s.all.mu.Lock()
	defer s.all.mu.Unlock()
	if delete(s.in.used, s.place); len(s.in.used) > 0 {
		return err
	}
	list := s.all.list
	list[s.in.form] = slices.DeleteFunc(list[s.in.form], func(p *shared) bool { return p == s.in })
	if len(list[s.in.form]) == 0 {
		delete(list, s.in.form)
	}
	s.in.Close()
	return err
}
