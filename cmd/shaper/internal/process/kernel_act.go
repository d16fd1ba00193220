package process

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/changes"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/control"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/detach"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/live"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
)

// What clients of the API ask of a process is done as another process would do it: the owner notices it in
// its next check.

// try starts the guard, which rolls back if this process is killed.
func (k *kernelPlane) try(until time.Time) error {
	if !k.deadline.rollback.IsZero() && !k.settled() {
		return &control.InputError{
			Status: http.StatusUnprocessableEntity,
			Err:    errors.New("the policy before waits for shaper confirm: confirm it first"),
		}
	}
	k.deadline.trial = until
	return k.startGuard()
}

// endTrial rolls back what was not confirmed, and prints why.
func (k *kernelPlane) endTrial(why string) {
	back, err := kernel.RollBack(policyfile.PlanOf, k.deadline.trial, k.list...)
	if err != nil {
		k.warn("%s: the policy that nobody confirmed is still in force: %v", k.name, err)
	}
	for _, sh := range back {
		k.logRollback(sh, why)
		k.seen[sh.Direction].logged = sh.Loaded
	}
	k.deadline.trial = time.Time{}
}

// confirmNow makes policies permanent that would roll back.
func (k *kernelPlane) confirmNow(
	ctx context.Context, author changes.Author,
) (out []control.Confirmed, err error) {
	err = k.turns.ask(ctx, k.turns.calls, func() error {
		list, err := kernel.Confirm(k.list...)
		for _, sh := range list {
			out = append(out, control.ConfirmedOf(&sh.About))
			k.seen[sh.Direction].confirm()
			k.warn("%s: confirmed by %s", live.Name(&sh.About), author)
		}
		return err
	})
	if err == nil && len(out) == 0 {
		err = control.ErrNothing
	}
	return out, err
}

// remove detaches directions, and waits until the owner has noticed it.
func (k *kernelPlane) remove(
	ctx context.Context, directions []dataplane.Direction, author changes.Author,
) (*detach.Detached, error) {
	name := ""
	if err := k.read(ctx, func([]serviceDirection) error { name = k.name; return nil }); err != nil {
		return nil, err
	}
	v, err := live.Look(name)
	if err != nil {
		return nil, err
	}
	defer func() { live.CloseAll(v.List) }()
	v.Narrow(name, directions)
	out, err := detach.Remove(v, name, directions, author)
	if out == nil && err == nil {
		err = &control.InputError{
			Status: http.StatusNotFound, Err: fmt.Errorf("%s: %w", name, detach.ErrNothing),
		}
	}
	if err == nil {
		k.look(ctx)
	}
	return out, err
}

// look makes the owner check the shapers, and waits for that.
func (k *kernelPlane) look(ctx context.Context) {
	looked, late := make(chan struct{}), time.After(turnTime)
	select {
	case k.turns.looks <- looked:
	case <-k.turns.over:
		return
	case <-ctx.Done():
		return
	case <-late:
		return
	}
	select {
	case <-looked:
	case <-late:
	}
}
