package process

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/http"
	"os"
	"slices"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/changes"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/control"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/detach"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/live"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/stats"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
)

// api answers the API in the forms of shaper status and shaper stats. Any goroutine may call its methods.
// The shapers are used only by their owner, or with their lock. Everything else is done in the calling
// goroutine, so a slow client delays no shaper.
type api struct{ *service }

// Of returns the same API if the pattern chooses its interface.
func (a api) Of(ctx context.Context, pattern string) (out control.API, err error) {
	err = a.plane.read(ctx, func([]serviceDirection) error {
		if !control.Chooses(pattern, a.name) {
			return &control.NoInterfaceError{Pattern: pattern}
		}
		return nil
	})
	return a, err
}

// readAttached calls f with the attached directions. Meanwhile the directions and the book of changes stay
// as they are. The error is live.ErrBusy if no direction is attached.
func (a api) readAttached(ctx context.Context, f func([]serviceDirection) error) error {
	return a.plane.read(ctx, func(list []serviceDirection) error {
		if len(list) == 0 {
			return live.ErrBusy
		}
		return f(list)
	})
}

// readChanges is readAttached with the book of changes, which f must not keep.
func (a api) readChanges(ctx context.Context, f func([]serviceDirection, changes.Book) error) error {
	return a.readAttached(ctx, func(list []serviceDirection) error { return f(list, a.changer.Book) })
}

// changesOf is a stats.ChangesLook, for functions called by readAttached.
func (a api) changesOf(sh live.Handle) (live.Changes, func() (*policyfile.Compiled, error), error) {
	return a.changes(), func() (*policyfile.Compiled, error) { return a.plane.policyOf(sh.Info()) }, nil
}

// Status returns the status of all directions, as shaper status --json does.
func (a api) Status(ctx context.Context) (any, error) {
	out := []any{}
	err := a.plane.read(ctx, func(list []serviceDirection) error {
		for _, d := range list {
			out = append(out, stats.StatusOf(d.Handle(), a.changesOf))
		}
		for _, row := range a.waiting(list) {
			out = append(out, row)
		}
		return nil
	})
	return out, err
}

// waiting returns the entries of status while no direction is attached.
func (a api) waiting(attached []serviceDirection) (out []stats.Remains) {
	if len(attached) > 0 {
		return nil
	}
	for _, direction := range a.wanted {
		out = append(out, stats.Waiting(a.name, direction, os.Getpid(), a.plane.policyName()))
	}
	return out
}

// ViewVersion returns the version of the views.
func (a api) ViewVersion() string { return stats.ViewVersion() }

// Views returns what shaper status prints, or with counters shaper stats.
func (a api) Views(ctx context.Context, counters bool) (any, error) {
	out := []stats.View{}
	if counters {
		err := a.sample(ctx, func(sh live.Handle, of *stats.Samples) {
			out = append(out, stats.ViewOf(sh, a.changesOf, of))
		})
		return out, err
	}
	err := a.plane.read(ctx, func(list []serviceDirection) error {
		for _, d := range list {
			out = append(out, stats.ViewOf(d.Handle(), a.changesOf, nil))
		}
		for _, row := range a.waiting(list) {
			out = append(out, stats.View{Remains: &row})
		}
		return nil
	})
	return out, err
}

// Stats returns the counters of all directions, as shaper stats --json does.
func (a api) Stats(ctx context.Context) (any, error) {
	var out []stats.Stats
	err := a.sample(ctx, func(sh live.Handle, of *stats.Samples) {
		out = append(out, stats.Of(sh, of.Before, of.Now, a.changesOf))
	})
	return out, err
}

// sample reads all directions twice, unless earlier readings of them exist, and calls f with each of them.
func (a api) sample(ctx context.Context, f func(live.Handle, *stats.Samples)) error {
	last := map[string]live.Sample{}
	for round := 0; ; round++ {
		ready := false
		err := a.readAttached(ctx, func(list []serviceDirection) error {
			handles := handlesOf(list)
			of, complete, err := stats.SampleAll(handles, last)
			if ready = complete || round > 0; err != nil || !ready {
				return err
			}
			for i, sh := range handles {
				f(sh, &of[i])
			}
			return nil
		})
		if err != nil || ready {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(kernel.MinReadingAge):
		}
	}
}

// Links reads the links of all directions twice.
func (a api) Links(ctx context.Context, views bool) (any, error) {
	var before, now []stats.LinkReading
	read := func(into *[]stats.LinkReading) error {
		return a.readAttached(ctx, func(list []serviceDirection) (err error) {
			*into, err = stats.ReadLinks(handlesOf(list))
			return err
		})
	}
	err := read(&before)
	if err == nil {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(kernel.MinReadingAge):
		}
		err = read(&now)
	}
	if err == nil {
		var out []stats.LinkReadings
		if out, err = stats.JoinLinks(before, now); err == nil && views {
			return out, nil
		}
		return stats.LinksOf(out), err
	}
	if errors.Is(err, stats.ErrNoLinks) {
		err = &control.InputError{Status: http.StatusNotFound, Err: err}
	}
	return nil, err
}

// Customers reads the customers of all directions in this goroutine.
func (a api) Customers(ctx context.Context, top int, by string) (func(io.Writer) error, error) {
	out, err := a.ranked(ctx, top, by)
	if err != nil {
		return nil, err
	}
	return func(w io.Writer) error { return WriteCustomers(w, out) }, nil
}

// ranked reads the customers of all directions in this goroutine.
func (a api) ranked(ctx context.Context, top int, by string) ([]stats.RankedCustomers, error) {
	type source struct {
		about kernel.About
		read  customerReader
	}
	var sources []source
	err := a.readAttached(ctx, func(list []serviceDirection) error {
		for _, d := range list {
			read, err := d.CustomerReader()
			if err != nil {
				return err
			}
			sources = append(sources, source{*d.Info(), read})
		}
		return nil
	})
	defer func() {
		for _, s := range sources {
			s.read.Close()
		}
	}()
	if err != nil {
		return nil, err
	}
	var out []stats.RankedCustomers
	for _, s := range sources {
		ranked, err := (&stats.CustomerFlags{Top: top, By: by}).Rank(ctx, &s.about, s.read.Customers)
		if err != nil {
			return nil, err
		}
		out = append(out, ranked)
	}
	return out, nil
}

// Customer returns one customer.
func (a api) Customer(ctx context.Context, name string) (any, error) {
	out := customerJSON{Name: name}
	err := a.readChanges(ctx, func(list []serviceDirection, book changes.Book) error {
		target := changes.Target{Kind: changes.Customer, Name: name}
		out.Changes = control.ListStates(book.Of(target), time.Now())
		return out.add(list, book)
	})
	if err == nil {
		err = a.readLocked(ctx, func() error {
			terms, err := a.changer.CustomerTerms(name)
			if terms != nil {
				of := control.TermsOf(terms)
				out.Terms = &of
			}
			return err
		})
	}
	return out, err
}

// Changes returns the changes, with those whose time is just over.
func (a api) Changes(ctx context.Context) ([]changes.Change, error) {
	var book changes.Book
	err := a.readChanges(ctx, func(_ []serviceDirection, now changes.Book) error {
		book = maps.Clone(now)
		return nil
	})
	return slices.Collect(book.All()), err // in this goroutine: there may be many
}

// Set makes changes, all or none.
func (a api) Set(ctx context.Context, list []changes.Change) error {
	if err := a.readAttached(ctx, func([]serviceDirection) error { return nil }); err != nil {
		return err
	}
	return a.plane.set(list)
}

// Sizes returns the numbers of customers in all directions and of changed targets.
func (a api) Sizes(ctx context.Context) (customers, changed int, err error) {
	err = a.readChanges(ctx, func(list []serviceDirection, book changes.Book) error {
		changed = len(book)
		for _, d := range list {
			policy, err := d.Policy()
			if err != nil {
				return err
			}
			if policy.Plan.Customers != nil {
				customers += len(policy.Plan.Customers.Of)
			}
		}
		return nil
	})
	return customers, changed, err
}

// Reload reads the policy file again, as SIGHUP does.
func (a api) Reload(ctx context.Context, confirm time.Duration) (control.Reloaded, error) {
	out := control.Reloaded{Interfaces: 1}
	if confirm > 0 {
		out.Until = time.Now().Add(confirm).Round(0)
	}
	err := a.turns.ask(ctx, a.turns.calls, func() (err error) {
		out.Shapers, err = a.reread(context.WithoutCancel(ctx), out.Until)
		out.Policy = a.plane.policyName()
		return err
	})
	if cli.IsUsage(err) || errors.As(err, new(*dataplane.FieldError)) {
		err = &control.InputError{Status: http.StatusUnprocessableEntity, Err: err}
	}
	return out, err
}

// Confirm makes policies permanent that would roll back.
func (a api) Confirm(ctx context.Context, author changes.Author) ([]control.Confirmed, error) {
	return a.plane.confirmNow(ctx, author)
}

// Detach detaches some directions, nil means all: the service ends with the last one.
func (a api) Detach(
	ctx context.Context, directions []dataplane.Direction, author changes.Author,
) (any, error) {
	out, err := a.plane.remove(ctx, directions, author)
	return []*detach.Detached{out}, err
}

// customerJSON is one customer, with its counters in each direction.
type customerJSON struct {
	Name       string                  `json:"name"`
	Plan       string                  `json:"plan"`
	Terms      *control.CustomerTerms  `json:"terms,omitempty"`
	Changes    []control.Change        `json:"changes"` // in force
	Directions []customerDirectionJSON `json:"directions"`
}

type customerDirectionJSON struct {
	Interface string `json:"interface"`
	Direction string `json:"direction"`
	stats.CustomerCounts
}

// add adds the directions that have the customer. If none has it, it returns the error of the last.
func (c *customerJSON) add(list []serviceDirection, book changes.Book) error {
	var unknown error
	for _, d := range list {
		customer, err := d.Customer(c.Name, book)
		if errors.As(err, new(*policyfile.UnknownError)) {
			unknown = err
			continue
		}
		if err != nil {
			return err
		}
		about := d.Info()
		c.Plan = customer.Plan
		c.Directions = append(c.Directions, customerDirectionJSON{
			about.Interface, about.Direction.String(), stats.CountsOf(&customer.CustomerStats),
		})
	}
	if len(c.Directions) > 0 {
		return nil
	}
	return unknown
}

// WriteCustomers writes lists of customers as a JSON list, row by row: there may be a million.
func WriteCustomers(w io.Writer, list []stats.RankedCustomers) error {
	out := &failedWriter{w: w}
	out.text("[")
	for i, c := range list {
		if i > 0 {
			out.text(",")
		}
		head, err := json.Marshal(c.Head)
		if err != nil {
			return err
		}
		out.bytes(head[:len(head)-len("]}")]) // the rows are the last field
		for j := range c.Order {
			if j > 0 {
				out.text(",")
			}
			row, err := json.Marshal(c.Row(j))
			if err != nil {
				return err
			}
			out.bytes(row)
		}
		out.text("]}")
	}
	out.text("]\n")
	return out.err
}

// failedWriter keeps the first error.
type failedWriter struct {
	w   io.Writer
	err error
}

func (f *failedWriter) text(s string) { f.bytes([]byte(s)) }

func (f *failedWriter) bytes(b []byte) {
	if f.err == nil {
		_, f.err = f.w.Write(b)
	}
}
