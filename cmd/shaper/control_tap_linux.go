package main

import (
	"context"
	"io"
	"slices"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/changes"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/control"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/live"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/stats"
)

// tapControl is the API of a shaper tap. It reads the shapers as other commands do.
type tapControl struct{ c *runningTap }

// open returns all directions. The caller must close them.
func (t tapControl) open() ([]live.Handle, error) {
	list := live.OpenTap(t.c.name)
	if len(list) == 0 {
		return nil, live.ErrBusy
	}
	return list, nil
}

// Status returns the status of all directions, as shaper status --json does.
func (t tapControl) Status(context.Context) (any, error) {
	list, err := t.open()
	defer live.CloseAll(list)
	out := []stats.Status{}
	for _, sh := range list {
		out = append(out, stats.StatusOf(sh, stats.LookAtChanges))
	}
	return out, err
}

// Stats returns the counters of all directions, as shaper stats --json does.
func (t tapControl) Stats(ctx context.Context) (any, error) {
	return statsOfAll(ctx, stats.LookAtChanges, func(f func([]live.Handle) error) error {
		list, err := t.open()
		if err != nil {
			return err
		}
		defer live.CloseAll(list)
		return f(list)
	})
}

// Customers reads the customers of all directions.
func (t tapControl) Customers(ctx context.Context, top int, by string) (func(io.Writer) error, error) {
	list, err := t.open()
	if err != nil {
		return nil, err
	}
	defer live.CloseAll(list)
	var out []stats.RankedCustomers
	for _, sh := range list {
		ranked, err := (&stats.CustomerFlags{Top: top, By: by}).Rank(ctx, sh.Info(), sh.Customers)
		if err != nil {
			return nil, err
		}
		out = append(out, ranked)
	}
	return func(w io.Writer) error { return writeCustomers(w, out) }, nil
}

// Customer returns one customer.
func (t tapControl) Customer(_ context.Context, name string) (any, error) {
	t.c.changes.Lock()
	defer t.c.changes.Unlock()
	book := t.c.changes.Book
	out := customerJSON{Name: name, Changes: control.ListStates(book.Of(changes.Target{Kind: changes.Customer, Name: name}), time.Now())}
	err := out.add(len(t.c.list), func(i int) (row customerDirectionJSON, plan string, err error) {
		sh := t.c.list[i]
		customer, err := sh.Customer(name, book)
		return customerDirectionJSON{sh.Info().Interface, sh.Info().Direction.String(), stats.CountsOf(&customer.CustomerStats)}, customer.Plan, err
	})
	return out, err
}

// Changes returns the changes, with those whose time is just over.
func (t tapControl) Changes(context.Context) ([]changes.Change, error) {
	return slices.Collect(t.c.changes.Copy().All()), nil
}

// Sizes returns the numbers of customers in all directions and of changed targets.
func (t tapControl) Sizes(context.Context) (customers, changed int, err error) {
	for _, sh := range t.c.list {
		policy, _ := sh.Policy()
		customers += numberOfCustomers(policy)
	}
	t.c.changes.Lock()
	defer t.c.changes.Unlock()
	return customers, len(t.c.changes.Book), nil
}

// Set makes changes, all or none.
func (t tapControl) Set(_ context.Context, list []changes.Change) error {
	t.c.changes.Lock()
	defer t.c.changes.Unlock()
	return t.c.changes.Set(list)
}

// Reload reads the policy file again, as SIGHUP does.
func (t tapControl) Reload(ctx context.Context) (any, error) {
	var out reloadJSON
	err := askOwner(ctx, t.c.calls, func() error {
		err := t.c.notify.reload(t.c.status(), func() error { return t.c.rereadPolicy(context.WithoutCancel(ctx)) })
		if err != nil {
			return rejected(err)
		}
		policy, err := t.c.list[0].Policy()
		out.Policy = policy.Name
		return err
	})
	return out, err
}
