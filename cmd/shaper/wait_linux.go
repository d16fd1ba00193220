package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/live"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
)

// isMissing reports whether there is no interface of that name. It ignores other errors: the
// next use of the interface reports them.
func isMissing(name string) bool {
	_, err := netlink.LinkByName(name)
	return errors.As(err, new(netlink.LinkNotFoundError))
}

// announceWait prints that shaper waits for an interface that does not exist yet. If wait is
// false, it returns an error instead.
func announceWait(w io.Writer, name string, wait bool) error {
	if !wait {
		return fmt.Errorf("%w: use --wait to wait for it", &kernel.NoInterfaceError{Name: name})
	}
	fmt.Fprintf(w, "shaper: there is no interface %s yet: waiting for it to appear\n", name)
	return nil
}

// awaitNew returns when an interface of that name exists, or when ctx is done. If wait is
// false and there is none, it returns an error.
func awaitNew(ctx context.Context, s cli.Streams, n notifier, name string, wait bool, lost <-chan os.Signal) error {
	if !isMissing(name) {
		return nil
	}
	if err := announceWait(s.Err, name, wait); err != nil {
		return err
	}
	n.ready("waiting for " + name)
	for isMissing(name) && ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-lost:
			return cli.ErrInterrupted
		case <-time.After(live.PollInterval):
		}
	}
	return nil
}

// waitForInterface cleans up after an interface that is gone, and attaches the policy again
// when it is back. It returns false if shaper run must end before that. end is the time of
// --for.
func (r *running) waitForInterface(ctx context.Context, end <-chan time.Time) (bool, error) {
	r.warn("%s is gone (deleted, or moved to another network namespace): waiting for it to come back", r.name)
	r.dropShapers()
	return r.attachWhenPresent(ctx, end)
}

// attachWhenPresent attaches the policy as soon as the interface exists. It returns false if
// shaper run must end before that.
func (r *running) attachWhenPresent(ctx context.Context, end <-chan time.Time) (bool, error) {
	r.notify.ready("waiting for " + r.name)
	away, err := kernel.MarkAway(r.name, r.policy.Name, r.flags.Directions.List...)
	if err != nil {
		return false, err
	}
	defer away.End()
	r.board.Publish(r.observe())
	poll := time.NewTicker(live.PollInterval) // clients that ask often must not delay it
	defer poll.Stop()
	for {
		select {
		case <-ctx.Done():
			return false, nil
		case <-end:
			return false, nil
		case <-r.hangups.lost:
			return false, nil
		case <-r.board.Asked():
			r.board.Publish(r.observe())
			continue
		case read := <-r.reads:
			read()
			continue
		case <-poll.C:
		}
		left := away.Directions()
		if len(left) == 0 {
			r.warn("%s: ended by another process", r.name)
			return false, nil
		}
		r.flags.Directions.List = left
		err := r.attach()
		if err == nil || !errors.As(err, new(*kernel.NoInterfaceError)) {
			return err == nil, err
		}
		r.dropShapers()
	}
}

// dropShapers cleans up after an interface that is gone. It keeps the last policy, which
// another process may have loaded.
func (r *running) dropShapers() {
	if err := r.keepState(); err != nil {
		r.warn("%v", err)
	}
	for _, sh := range r.list {
		if policy, err := policyfile.CompileLabel(sh.Label); err == nil {
			r.policy = policy
		}
		if err := sh.Detach(); err != nil {
			r.warn("%s: %v", live.Name(&sh.About), err)
		}
		sh.Close()
	}
	r.watchdog.reset()
	if len(r.list) > 0 && !slices.ContainsFunc(r.list, func(sh *kernel.Shaper) bool { return !sh.Until.IsZero() }) {
		r.until, r.flags.confirm = time.Time{}, 0 // it was confirmed
	}
	r.list = nil
	r.guard.End()
	r.guard = nil
}
