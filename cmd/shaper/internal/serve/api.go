package serve

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"sort"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/changes"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/control"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/live"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/process"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/stats"
)

// api answers the API for the interfaces chosen by a pattern; "" chooses all. Lists are those of the
// interfaces, one after the other.
type api struct {
	v       *supervisor
	pattern string
}

// shaped returns the services that shape, by the names of their interfaces.
func (a api) shaped(ctx context.Context) (out []target, err error) {
	err = a.v.do(ctx, func() {
		for _, m := range a.v.shaped(a.pattern) {
			out = append(out, target{m, m.Name})
		}
	})
	return out, err
}

// one returns the only service of the interfaces.
func (a api) one(ctx context.Context) (control.API, error) {
	list, err := a.shaped(ctx)
	switch {
	case err != nil:
		return nil, err
	case len(list) == 0:
		return nil, live.ErrBusy
	case len(list) > 1:
		return nil, control.ErrSeveral
	}
	return list[0].API(), nil
}

// Of chooses some of the interfaces.
func (a api) Of(ctx context.Context, pattern string) (control.API, error) {
	found := false
	err := a.v.do(ctx, func() {
		for _, m := range a.v.members {
			found = found || control.Chooses(pattern, m.Name)
		}
		for _, i := range a.v.idle {
			found = found || control.Chooses(pattern, i.Name)
		}
	})
	if err == nil && !found {
		err = &control.NoInterfaceError{Pattern: pattern}
	}
	return api{a.v, pattern}, err
}

// appendAll appends the elements of a list.
func appendAll(out []any, list any) []any {
	v := reflect.ValueOf(list)
	for i := range v.Len() {
		out = append(out, v.Index(i).Interface())
	}
	return out
}

// each collects the lists of all services. Those that end meanwhile are left out.
func (a api) each(ctx context.Context, read func(control.API) (any, error)) (out []any, err error) {
	list, err := a.shaped(ctx)
	out = []any{}
	for _, t := range list {
		part, err := read(t.API())
		if errors.Is(err, live.ErrBusy) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", t.name, err)
		}
		out = appendAll(out, part)
	}
	return out, err
}

// Status returns the status of all directions, and the chosen interfaces that are not shaped, with the
// reason.
func (a api) Status(ctx context.Context) (any, error) {
	out, err := a.each(ctx, func(of control.API) (any, error) { return of.Status(ctx) })
	if err != nil {
		return nil, err
	}
	rest, err := a.unshaped(ctx)
	return appendAll(out, rest), err
}

// ViewVersion returns the version of the views.
func (a api) ViewVersion() string { return stats.ViewVersion() }

// Views returns what shaper status prints, or with counters shaper stats.
func (a api) Views(ctx context.Context, counters bool) (any, error) {
	out, err := a.each(ctx, func(of control.API) (any, error) { return of.Views(ctx, counters) })
	if err != nil || counters {
		return out, err
	}
	rest, err := a.unshaped(ctx)
	for _, row := range rest {
		out = append(out, stats.View{Remains: &row})
	}
	return out, err
}

// unshaped returns the chosen interfaces that are not shaped, with the reason.
func (a api) unshaped(ctx context.Context) (out []stats.Remains, err error) {
	add := func(name, state string, e *policyfile.ServeInterfaces) {
		if e == nil || !control.Chooses(a.pattern, name) {
			return
		}
		for _, d := range e.Directions {
			out = append(out, stats.Remains{
				Interface: name, Direction: d.String(), State: state, Process: os.Getpid(),
				Policy: cmp.Or(e.Policy, "--rate "+e.Rate),
			})
		}
	}
	err = a.v.do(ctx, func() {
		for _, m := range a.v.members {
			if !m.ready {
				add(m.Name, "attaching", m.entry)
			}
		}
		for _, i := range a.v.idle {
			add(i.Name, "not shaped: "+i.why, a.v.files.config.Of(i.Name, i.Loopback))
		}
	})
	sort.SliceStable(out, func(i, j int) bool { return out[i].Interface < out[j].Interface })
	return out, err
}

// Stats returns the counters of all directions.
func (a api) Stats(ctx context.Context) (any, error) {
	return a.each(ctx, func(of control.API) (any, error) { return of.Stats(ctx) })
}

// Links returns the counters of links of all directions that have some.
func (a api) Links(ctx context.Context, views bool) (any, error) {
	none := error(live.ErrBusy)
	out, err := a.each(ctx, func(of control.API) (any, error) {
		list, err := of.Links(ctx, views)
		if errors.Is(err, stats.ErrNoLinks) {
			none, err = err, live.ErrBusy
		}
		return list, err
	})
	if err == nil && len(out) == 0 {
		err = none
	}
	return out, err
}

// Customers reads the customers of all directions.
func (a api) Customers(ctx context.Context, top int, by string) (func(io.Writer) error, error) {
	list, err := a.shaped(ctx)
	var out []stats.RankedCustomers
	for _, t := range list {
		part, err := t.Customers(ctx, top, by)
		switch {
		case errors.Is(err, live.ErrBusy), errors.Is(err, live.ErrNoCustomers) && len(list) > 1:
			continue
		case err != nil:
			return nil, fmt.Errorf("%s: %w", t.name, err)
		}
		out = append(out, part...)
	}
	if err == nil && len(out) == 0 {
		err = live.ErrNoCustomers
	}
	return func(w io.Writer) error { return process.WriteCustomers(w, out) }, err
}

// Customer returns one customer, with its directions at all interfaces.
func (a api) Customer(ctx context.Context, name string) (any, error) {
	list, err := a.shaped(ctx)
	if err != nil {
		return nil, err
	}
	unknown := error(live.ErrNoCustomers)
	var found []any
	for _, t := range list {
		c, err := t.API().Customer(ctx, name)
		switch {
		case errors.As(err, new(*policyfile.UnknownError)):
			unknown = err
		case errors.Is(err, live.ErrNoCustomers), errors.Is(err, live.ErrBusy):
		case err != nil:
			return nil, fmt.Errorf("%s: %w", t.name, err)
		default:
			found = append(found, c)
		}
	}
	if len(found) == 0 {
		return nil, unknown
	}
	return process.MergeCustomers(found), nil
}

// Changes returns the changes of one interface.
func (a api) Changes(ctx context.Context) ([]changes.Change, error) {
	of, err := a.one(ctx)
	if err != nil {
		return nil, err
	}
	return of.Changes(ctx)
}

// Sizes returns the sums of all interfaces.
func (a api) Sizes(ctx context.Context) (customers, changed int, err error) {
	list, err := a.shaped(ctx)
	for _, t := range list {
		c, n, err := t.API().Sizes(ctx)
		if err != nil && !errors.Is(err, live.ErrBusy) {
			return 0, 0, fmt.Errorf("%s: %w", t.name, err)
		}
		customers, changed = customers+c, changed+n
	}
	return customers, changed, err
}

// Set makes changes at all chosen interfaces, or at none. Without a choice there must be only one.
func (a api) Set(ctx context.Context, list []changes.Change) error {
	if a.pattern == "" {
		of, err := a.one(ctx)
		if err != nil {
			return err
		}
		return of.Set(ctx, list)
	}
	targets, err := a.shaped(ctx)
	if err == nil && len(targets) == 0 {
		err = live.ErrBusy
	}
	if err != nil {
		return err
	}
	check := func(_ int, t target) error { return t.CheckChanges(ctx, list) }
	if len(targets) > 1 {
		if err := each(targets, check); err != nil {
			return err
		}
	}
	return each(targets, func(_ int, t target) error { return t.API().Set(ctx, list) })
}

// ChangeCustomers changes the customers of one interface.
func (a api) ChangeCustomers(ctx context.Context, r live.CustomerRequest) (live.CustomerReply, error) {
	of, err := a.one(ctx)
	if err != nil {
		return live.CustomerReply{}, err
	}
	return of.ChangeCustomers(ctx, r)
}

// CustomerPage returns the terms of customers of one interface.
func (a api) CustomerPage(ctx context.Context, q live.CustomerQuery) (live.CustomerPage, error) {
	of, err := a.one(ctx)
	if err != nil {
		return live.CustomerPage{}, err
	}
	return of.CustomerPage(ctx, q)
}
