package process

import (
	"context"
	"errors"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/changes"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/live"
)

// removeIdle removes customers that had no packet for the time that they are kept. The lock of the changes
// must be held.
func (s *service) removeIdle() error {
	list := s.plane.directions()
	if len(list) == 0 {
		return nil // they may have had packets that nobody counted
	}
	names, err := s.changer.IdleCustomers(time.Now(), func(name string) (sum int64, err error) {
		for _, d := range list {
			n, packetsErr := d.packetsOf(name)
			sum, err = sum+n, errors.Join(err, packetsErr)
		}
		return sum, err
	})
	for _, name := range names {
		terms, termsErr := s.changer.CustomerTerms(name)
		if err = errors.Join(err, termsErr); terms == nil {
			continue
		}
		request := live.CustomerRequest{
			Items:  []live.CustomerItem{{Name: name, Do: live.Remove, Match: terms.Version}},
			Author: changes.Author{With: "idle"},
		}
		go func() { // it needs the lock; if it fails, the customer is still idle the next time
			_, _ = s.changer.SubmitCustomers(context.Background(), request, s.plane.commitCustomers)
		}()
	}
	return err
}

// prepareCustomers makes the first request of the API fast. Without the API it saves the memory.
func (s *service) prepareCustomers(d serviceDirection) error {
	if !s.options.Control.Given() {
		return nil
	}
	r, err := d.Roster()
	if err == nil {
		r.Prepare()
	}
	return err
}

// ChangeCustomers adds, replaces and removes customers, all or none.
func (a api) ChangeCustomers(
	ctx context.Context, request live.CustomerRequest,
) (reply live.CustomerReply, err error) {
	if err := a.readAttached(ctx, func([]serviceDirection) error { return nil }); err != nil {
		return reply, err
	}
	return a.changer.SubmitCustomers(ctx, request, a.plane.commitCustomers)
}

// CustomerPage returns the terms of customers.
func (a api) CustomerPage(ctx context.Context, q live.CustomerQuery) (out live.CustomerPage, err error) {
	err = a.readLocked(ctx, func() error {
		out, err = a.changer.CustomerPage(q)
		return err
	})
	return out, err
}

// readLocked calls a function while the directions, the changes and the customers stay as they are.
func (a api) readLocked(ctx context.Context, f func() error) error {
	return a.readAttached(ctx, func([]serviceDirection) error {
		if a.plane.locksToRead() {
			return f()
		}
		a.changer.Lock()
		defer a.changer.Unlock()
		return f()
	})
}
