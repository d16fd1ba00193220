package process

import (
	"context"
	"maps"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/changes"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/live"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// The methods in this file are for the API: any goroutine may call them. What needs the shapers is
// done by their owner or with their lock, and nothing else: they wait for no client.

// Read calls f with the attached directions, while nothing changes them nor the book of changes. The
// error is live.ErrBusy if there are none.
func (s *Service) Read(ctx context.Context, f func([]ServiceDirection) error) error {
	return s.plane.read(ctx, func(list []ServiceDirection) error {
		if len(list) == 0 {
			return live.ErrBusy
		}
		return f(list)
	})
}

// Waiting describes a service whose interface does not exist.
type Waiting struct {
	Interface  string
	Directions []dataplane.Direction
	Policy     string // name
}

// ReadOrWait is Read, but calls waiting if no direction is attached.
func (s *Service) ReadOrWait(
	ctx context.Context, f func([]ServiceDirection) error, waiting func(Waiting),
) error {
	return s.plane.read(ctx, func(list []ServiceDirection) error {
		if len(list) == 0 {
			waiting(Waiting{s.name, s.wanted, s.plane.policyName()})
			return nil
		}
		return f(list)
	})
}

// ReadChanges is Read with the book of changes, which f must not keep.
func (s *Service) ReadChanges(ctx context.Context, f func([]ServiceDirection, changes.Book) error) error {
	return s.Read(ctx, func(list []ServiceDirection) error { return f(list, s.changer.Book) })
}

// Changes returns the changes in a direction, and a function returning its policy, with or without
// them. Call it only from a function called by Read.
func (s *Service) Changes(sh live.Handle) (live.Changes, func() (*policyfile.Compiled, error), error) {
	return s.changes(), func() (*policyfile.Compiled, error) { return s.plane.policyOf(sh.Info()) }, nil
}

// changes returns the changes. The caller must hold the lock while it uses them.
func (s *Service) changes() live.Changes {
	return live.Changes{Book: s.changer.Book, Problem: s.changer.Problem()}
}

// Book returns a copy of the changes, with those whose time is just over.
func (s *Service) Book(ctx context.Context) (book changes.Book, err error) {
	err = s.ReadChanges(ctx, func(_ []ServiceDirection, now changes.Book) error {
		book = maps.Clone(now)
		return nil
	})
	return book, err
}

// Set makes changes, all or none.
func (s *Service) Set(ctx context.Context, list []changes.Change) error {
	if err := s.Read(ctx, func([]ServiceDirection) error { return nil }); err != nil {
		return err
	}
	return s.plane.set(list)
}

// Reload reads the policy file again, as SIGHUP does, and returns the name of the policy.
func (s *Service) Reload(ctx context.Context) (policy string, err error) {
	err = ask(ctx, s.turns.calls, func() error {
		err := s.reread(context.WithoutCancel(ctx))
		policy = s.plane.policyName()
		return err
	})
	return policy, err
}
