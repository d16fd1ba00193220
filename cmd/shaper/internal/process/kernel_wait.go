package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/live"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/standby"
)

// isMissing reports whether there is no interface of this name. It ignores other errors: the next
// use of the interface reports them.
func isMissing(name string) bool {
	_, err := netlink.LinkByName(name)
	return errors.As(err, new(netlink.LinkNotFoundError))
}

// announceWait announces that shaper waits for a missing interface. If wait is false, it returns an
// error instead.
func announceWait(w io.Writer, name string, wait bool) error {
	if !wait {
		return fmt.Errorf("%w: use --wait to wait for it",
			live.NearInterface(&kernel.NoInterfaceError{Name: name}))
	}
	fmt.Fprintf(w, "shaper: there is no interface %s yet: waiting for it to appear\n", name)
	return nil
}

// awaitInterface returns when an interface of this name exists, or when ctx is done. If wait is
// false and there is none, it returns an error.
func (s *service) awaitInterface(ctx context.Context, name string, wait bool) error {
	if !isMissing(name) {
		return nil
	}
	if err := announceWait(s.err, name, wait); err != nil {
		return err
	}
	s.notify.ready("waiting for " + name)
	for isMissing(name) && ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-s.hangups.lost:
			return cli.ErrInterrupted
		case <-time.After(live.PollInterval):
		}
	}
	return nil
}

// waitForInterface cleans up after an interface is gone, and attaches the policy again when it is
// back. It returns false if shaper run must end before.
func (k *kernelPlane) waitForInterface(ctx context.Context) (bool, error) {
	k.warn("%s is gone (deleted, or moved to another network namespace): waiting for it to come back", k.name)
	k.dropShapers()
	return k.attachWhenPresent(ctx)
}

// attachWhenPresent attaches the policy as soon as the interface exists. It returns false if shaper
// run must end before.
func (k *kernelPlane) attachWhenPresent(ctx context.Context) (bool, error) {
	k.notify.ready("waiting for " + k.name)
	away, err := standby.MarkAway(k.name, k.policy.Name, k.wanted...)
	if err != nil {
		return false, err
	}
	defer away.End()
	k.board.Publish(k.observe())
	poll := time.NewTicker(live.PollInterval) // frequent requests of clients must not delay it
	defer poll.Stop()
	for {
		select {
		case <-ctx.Done():
			return false, nil
		case <-k.end:
			return false, nil
		case <-k.hangups.lost:
			return false, nil
		case <-k.board.Requests():
			k.board.Publish(k.observe())
			continue
		case read := <-k.turns.reads:
			read()
			continue
		case <-poll.C:
		}
		left := away.Directions()
		if len(left) == 0 {
			k.warn("%s: ended by another process", k.name)
			return false, nil
		}
		k.wanted = left
		err := k.attach()
		if err == nil || !errors.As(err, new(*kernel.NoInterfaceError)) {
			return err == nil, err
		}
		k.dropShapers()
	}
}

// dropShapers cleans up after an interface is gone. It keeps the last policy, perhaps loaded by
// another process.
func (k *kernelPlane) dropShapers() {
	if err := k.keepState(); err != nil {
		k.warn("%v", err)
	}
	for _, sh := range k.list {
		label := sh.Label
		if !sh.Until.IsZero() && sh.Until.Equal(k.deadline.trial) && sh.Before != nil {
			label = sh.Before.Label // nobody confirmed the new policy
		}
		if policy, err := policyfile.CompileLabel(label); err == nil {
			k.policy = policy
		}
		if err := sh.Detach(); err != nil {
			k.warn("%s: %v", live.Name(&sh.About), err)
		}
		sh.Close()
	}
	k.watchdog.reset()
	if len(k.list) > 0 &&
		!slices.ContainsFunc(k.list, func(sh *kernel.Shaper) bool { return !sh.Until.IsZero() }) {
		k.deadline.rollback, k.confirm = time.Time{}, 0 // it was confirmed
	}
	k.list = nil
	k.guard.End()
	k.guard = nil
}
