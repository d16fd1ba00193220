package serve

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/changes"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/control"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/detach"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/live"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// Reload reads the files again, as SIGHUP does, or the policies of the chosen interfaces. With confirm it
// reads only policies.
func (a api) Reload(ctx context.Context, confirm time.Duration) (control.Reloaded, error) {
	type result struct {
		control.Reloaded
		err error
	}
	done := make(chan result, 1)
	until := time.Now().Add(confirm).Round(0)
	if err := a.v.do(ctx, func() {
		finish := func(rows []control.ReloadedShaper, err error) {
			out := a.v.inForce(a.pattern)
			if out.Shapers = rows; confirm > 0 && len(rows) > 0 {
				out.Until = until
			}
			done <- result{out, err}
		}
		if confirm > 0 {
			a.v.try(a.pattern, until, finish)
		} else {
			a.v.reload(a.pattern, finish)
		}
	}); err != nil {
		return control.Reloaded{}, err
	}
	select {
	case r := <-done:
		if errors.Is(r.err, errReloading) {
			r.err = live.ErrBusy
		}
		if isInput(r.err) {
			r.err = &control.InputError{Status: http.StatusUnprocessableEntity, Err: r.err}
		}
		return r.Reloaded, r.err
	case <-ctx.Done():
		return control.Reloaded{}, ctx.Err()
	}
}

// Confirm makes the policies of the chosen interfaces permanent that would roll back.
func (a api) Confirm(ctx context.Context, author changes.Author) ([]control.Confirmed, error) {
	targets, err := a.shaped(ctx)
	if err != nil {
		return nil, err
	}
	rows := make([][]control.Confirmed, len(targets))
	err = each(targets, func(i int, t target) (err error) {
		rows[i], err = t.API().Confirm(ctx, author)
		if errors.Is(err, control.ErrNothing) || errors.Is(err, live.ErrBusy) {
			err = nil
		}
		return err
	})
	out := slices.Concat(rows...)
	if err == nil && len(out) == 0 {
		err = control.ErrNothing
	}
	_ = a.v.do(ctx, func() {
		for _, t := range a.v.trials {
			a.v.adopt(t)
		}
	})
	return out, err
}

// Detach detaches the chosen interfaces, until the next reload.
func (a api) Detach(
	ctx context.Context, directions []dataplane.Direction, author changes.Author,
) (any, error) {
	var targets []target
	out := []*detach.Detached{}
	if err := a.v.do(ctx, func() {
		for _, m := range a.v.members {
			if m.ready && control.Chooses(a.pattern, m.Name) {
				targets = append(targets, target{m, m.Name})
			}
		}
		if directions == nil {
			out = a.v.forgo(a.pattern, author)
		}
	}); err != nil {
		return nil, err
	}
	if len(targets)+len(out) == 0 {
		return nil, &control.NoInterfaceError{Pattern: a.pattern}
	}
	rows, none := make([]*detach.Detached, len(targets)), make([]error, len(targets))
	err := each(targets, func(i int, t target) (err error) {
		rows[i], err = t.Remove(ctx, directions, author)
		if errors.Is(err, detach.ErrNothing) {
			none[i], err = err, nil
		}
		return err
	})
	a.v.settle(ctx, targets)
	for _, row := range rows {
		if row != nil {
			out = append(out, row)
		}
	}
	if err == nil && len(out) == 0 {
		err = errors.Join(none...)
	}
	slices.SortFunc(out, func(a, b *detach.Detached) int { return strings.Compare(a.Interface, b.Interface) })
	return out, err
}

// forgo gives up interfaces that are not shaped yet, until the next reload.
func (v *supervisor) forgo(pattern string, author changes.Author) (out []*detach.Detached) {
	out = []*detach.Detached{}
	add := func(name string, e *policyfile.ServeInterfaces) {
		row := detach.New(name)
		for _, d := range e.Directions {
			row.Directions = append(row.Directions, detach.Direction{
				Direction: d.String(), State: detach.NoWait, Process: os.Getpid(),
				Policy: cmp.Or(e.Policy, "--rate "+e.Rate),
			})
		}
		out = append(out, row)
	}
	for _, m := range v.members {
		if !m.ready && control.Chooses(pattern, m.Name) {
			m.off = author.String()
			m.Detach()
			add(m.Name, m.entry)
		}
	}
	for _, i := range v.idle {
		e := v.files.config.Of(i.Name, i.Loopback)
		if !i.retry.IsZero() && e != nil && control.Chooses(pattern, i.Name) {
			i.retry, i.why = time.Time{}, "detached by "+author.String()
			add(i.Name, e)
		}
	}
	return out
}

// settle waits until members that have ended are forgotten.
func (v *supervisor) settle(ctx context.Context, list []target) {
	for _, t := range list {
		for ended := true; ended && ctx.Err() == nil; {
			select {
			case <-t.Ended():
			default:
				ended = false // it goes on with the other direction
				continue
			}
			if v.do(ctx, func() { ended = v.members[t.Index] == t.member }) != nil {
				return
			}
		}
	}
}

// inForce returns what is in force at the chosen interfaces.
func (v *supervisor) inForce(pattern string) (out control.Reloaded) {
	for _, m := range v.members {
		if !m.ready && control.Chooses(pattern, m.Name) {
			out.Attaching++
		}
	}
	names := map[string]bool{}
	for _, m := range v.shaped(pattern) {
		out.Interfaces++
		out.Policy = m.policy.compiled.Name
		names[out.Policy] = true
	}
	if len(names) > 1 {
		out.Policy = ""
	}
	return out
}

// isInput reports whether an error is about the content of a file.
func isInput(err error) bool {
	return errors.As(err, new(*dataplane.FieldError)) || cli.IsUsage(err)
}
