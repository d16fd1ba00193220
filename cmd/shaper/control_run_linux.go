package main

import (
	"context"
	"io"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/changes"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/control"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/live"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/stats"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
)

// runControl is the API of a shaper run. The goroutine that owns the shapers does what needs
// them, and nothing else: it waits for no client.
type runControl struct{ r *running }

// read calls a function with the shapers. It is an error if there are none.
func (c runControl) read(ctx context.Context, f func([]*kernel.Shaper) error) error {
	return askOwner(ctx, c.r.reads, func() error {
		if len(c.r.list) == 0 {
			return live.ErrBusy
		}
		return f(c.r.list)
	})
}

// Status returns the status of all shapers, as shaper status --json does.
func (c runControl) Status(ctx context.Context) (any, error) {
	out := []any{}
	err := askOwner(ctx, c.r.reads, func() error {
		for _, sh := range c.r.list {
			out = append(out, stats.StatusOf(live.InKernel(sh), c.r.changesLook))
		}
		if len(out) > 0 {
			return nil
		}
		for _, direction := range c.r.flags.Directions.List {
			out = append(out, stats.Remains{Interface: c.r.name, Direction: direction.String(), State: "waiting", Process: os.Getpid(), Policy: c.r.policy.Name})
		}
		return nil
	})
	return out, err
}

// Stats returns the counters of all shapers, as shaper stats --json does.
func (c runControl) Stats(ctx context.Context) (any, error) {
	return statsOfAll(ctx, c.r.changesLook, func(f func([]live.Handle) error) error {
		return c.read(ctx, func(list []*kernel.Shaper) error {
			var all []live.Handle
			for _, sh := range list {
				all = append(all, live.InKernel(sh))
			}
			return f(all)
		})
	})
}

// customerSource is what a client needs to read the customers of a shaper by itself.
type customerSource struct {
	about    kernel.About
	policy   func() *policyfile.Compiled // as of Changer.AmendLater
	counters *kernel.CustomerCounters
}

// Customers reads the customers of all shapers in this goroutine.
func (c runControl) Customers(ctx context.Context, top int, by string) (func(io.Writer) error, error) {
	var sources []customerSource
	defer func() {
		for _, s := range sources {
			if s.counters != nil {
				s.counters.Close()
			}
		}
	}()
	err := c.read(ctx, func(list []*kernel.Shaper) error {
		for _, sh := range list {
			policy, err := changeable{sh, c.r}.Policy()
			if err != nil {
				return err
			}
			counters, err := sh.CustomerCounters()
			if err != nil {
				return err
			}
			sources = append(sources, customerSource{sh.About, c.r.changer.AmendLater(policy), counters})
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	var out []stats.RankedCustomers
	for _, s := range sources {
		ranked, err := (&stats.CustomerFlags{Top: top, By: by}).Rank(ctx, &s.about, s.read)
		if err != nil {
			return nil, err
		}
		out = append(out, ranked)
	}
	return func(w io.Writer) error { return writeCustomers(w, out) }, nil
}

func (s *customerSource) read() (int64, []live.Customer, error) {
	plan := s.policy().Plan.Customers
	if plan == nil || s.counters == nil {
		return 0, nil, live.ErrNoCustomers
	}
	at := kernel.Now()
	counted, err := s.counters.Of(plan)
	if err != nil {
		return 0, nil, err
	}
	return at, live.ListCustomers(plan, counted), nil
}

// Customer returns one customer.
func (c runControl) Customer(ctx context.Context, name string) (any, error) {
	out := customerJSON{Name: name}
	err := c.read(ctx, func(list []*kernel.Shaper) error {
		now, book := time.Now(), c.r.changer.Book
		out.Changes = control.ListStates(book.Of(changes.Target{Kind: changes.Customer, Name: name}), now)
		return out.add(len(list), func(i int) (row customerDirectionJSON, plan string, err error) {
			sh := list[i]
			policy, err := changeable{sh, c.r}.Policy()
			if err != nil {
				return row, "", err
			}
			_, service, err := policy.Amender(book, now).Service(name)
			if service == nil {
				return row, "", err
			}
			counted, err := sh.Customer(name)
			return customerDirectionJSON{sh.Interface, sh.Direction.String(), stats.CountsOf(&counted)}, service.Name, err
		})
	})
	return out, err
}

// Changes returns the changes, with those whose time is just over.
func (c runControl) Changes(ctx context.Context) ([]changes.Change, error) {
	var book changes.Book
	err := c.read(ctx, func([]*kernel.Shaper) error {
		book = maps.Clone(c.r.changer.Book)
		return nil
	})
	return slices.Collect(book.All()), err // in this goroutine: there may be many
}

// Sizes returns the numbers of customers in all shapers and of changed targets.
func (c runControl) Sizes(ctx context.Context) (customers, changed int, err error) {
	err = c.read(ctx, func(list []*kernel.Shaper) error {
		changed = len(c.r.changer.Book)
		for _, sh := range list {
			policy, err := changeable{sh, c.r}.Policy()
			if err != nil {
				return err
			}
			customers += numberOfCustomers(policy)
		}
		return nil
	})
	return customers, changed, err
}

// Set makes changes, all or none.
func (c runControl) Set(ctx context.Context, list []changes.Change) error {
	var run *live.Run
	err := c.read(ctx, func([]*kernel.Shaper) error {
		run = &live.Run{Calls: c.r.calls, Changer: c.r.changer}
		return nil
	})
	if err != nil {
		return err
	}
	return run.Set(list)
}

// Reload reads the policy file again, as SIGHUP does.
func (c runControl) Reload(ctx context.Context) (any, error) {
	var out reloadJSON
	err := askOwner(ctx, c.r.calls, func() error {
		err := c.r.notify.reload(c.r.status(), func() error { return c.r.rereadPolicy(context.WithoutCancel(ctx)) })
		out.Policy = c.r.policy.Name
		return rejected(err)
	})
	return out, err
}
