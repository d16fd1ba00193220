package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/live"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
)

// missing says whether there is no interface of that name. Other errors are
// those of whatever uses it next.
func missing(name string) bool {
	_, err := netlink.LinkByName(name)
	return errors.As(err, new(netlink.LinkNotFoundError))
}

// awaitInterface returns when there is an interface of that name, or ctx is done.
func awaitInterface(ctx context.Context, name string) {
	for missing(name) {
		select {
		case <-ctx.Done():
			return
		case <-time.After(live.PollInterval):
		}
	}
}

// awaitNew is awaitInterface for one that has not been there yet. Without wait it
// has to be there.
func awaitNew(ctx context.Context, s streams, n notifier, name string, wait bool) error {
	if !missing(name) {
		return nil
	}
	if !wait {
		return fmt.Errorf("%w: use --wait to wait for it", &kernel.NoInterfaceError{Name: name})
	}
	fmt.Fprintf(s.err, "shaper: there is no interface %s yet: waiting for it to appear\n", name)
	n.ready("waiting for " + name)
	awaitInterface(ctx, name)
	return nil
}

// wait clears away what belonged to an interface that is gone, and attaches
// the policy again when it comes back. It says whether it did: false is the end.
func (r *running) wait(ctx context.Context, over <-chan time.Time) (bool, error) {
	r.warn("%s is gone (deleted, or moved to another network namespace): waiting for it to come back", r.name)
	r.forget()
	return r.await(ctx, over)
}

// await attaches the policy as soon as there is the interface. It says whether it
// did: false is the end.
func (r *running) await(ctx context.Context, over <-chan time.Time) (bool, error) {
	r.notify.ready("waiting for " + r.name)
	away, err := kernel.Wait(r.name, r.policy.Name, r.flags.directions.list...)
	if err != nil {
		return false, err
	}
	defer away.End()
	r.board.Publish(r.observe())
	for {
		select {
		case <-ctx.Done():
			return false, nil
		case <-over:
			return false, nil
		case <-r.board.Asked():
			r.board.Publish(r.observe())
			continue
		case <-time.After(live.PollInterval):
		}
		left := away.Directions()
		if len(left) == 0 {
			r.warn("%s: ended by another process", r.name)
			return false, nil
		}
		r.flags.directions.list = left
		err := r.attach()
		if err == nil || !errors.As(err, new(*kernel.NoInterfaceError)) {
			return err == nil, err
		}
		r.forget()
	}
}

// forget detaches from an interface that is gone. The policy is the last one,
// which another process may have given.
func (r *running) forget() {
	for _, sh := range r.list {
		if policy, err := policyfile.CompileLabel(sh.Label); err == nil {
			r.policy = policy
		}
		if err := sh.Detach(); err != nil {
			r.warn("%s: %v", live.Name(&sh.About), err)
		}
		sh.Close()
	}
	r.vigil.forget()
	if len(r.list) > 0 && !slices.ContainsFunc(r.list, func(sh *kernel.Shaper) bool { return !sh.Until.IsZero() }) {
		r.until, r.flags.confirm = time.Time{}, 0 // it was confirmed
	}
	r.list = nil
	r.guard.End()
	r.guard = nil
}
