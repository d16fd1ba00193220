package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/changes"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/control"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/stats"
)

// Set makes changes at all chosen interfaces, or at none. It returns them as they were made. warning says why
// they are not kept.
func (c *Client) Set(ctx context.Context, t *Target, list []changes.Change) (
	made []control.Change, warning string, err error,
) {
	body := make([]control.Change, len(list))
	for i := range list {
		plain := list[i]
		plain.Since, plain.Author = time.Time{}, changes.Author{}
		body[i] = control.ChangeOf(&plain)
	}
	a, err := c.ask(ctx, http.MethodPost, "/v1/changes", t.query(), body)
	nameless := errors.As(err, new(*refusedError)) && !strings.Contains(err.Error(), t.Name)
	if nameless && literal(t.Name) == t.Name { // of shaper run or tap
		err = fmt.Errorf("%s: %w", t.Name, err)
	}
	if err != nil {
		return nil, "", err
	}
	return made, a.warning, c.decode(a.body, &made)
}

// InterfaceChanges are the changes at one interface.
type InterfaceChanges struct {
	Interface string
	Problem   string // why changes do not work, or are not kept
	List      []control.Change
}

// Changes returns the changes at each of the chosen interfaces.
func (c *Client) Changes(ctx context.Context, t *Target) (out []InterfaceChanges, err error) {
	list, err := c.views(ctx, t, "/v1/status")
	if err != nil {
		return nil, err
	}
	for _, v := range list {
		if v.Remains != nil || len(out) > 0 && out[len(out)-1].Interface == v.Status.Interface {
			continue // the directions of an interface have the same changes
		}
		row := InterfaceChanges{Interface: v.Status.Interface, Problem: v.Status.Problem}
		one := Target{t.Flags, literal(row.Interface)}
		if row.List, err = get[[]control.Change](ctx, c, "/v1/changes", one.query()); err != nil {
			return nil, err
		}
		out = append(out, row)
	}
	if len(out) == 0 {
		err = c.none(t)
	}
	return out, err
}

// literal returns a pattern that chooses only an interface of this name.
func literal(name string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(name)
}

// one makes a target without a name choose the only interface, and returns an error if there are several.
func (c *Client) one(ctx context.Context, t *Target, all bool) error {
	if t.Name != "" || all {
		return nil
	}
	list, err := c.views(ctx, t, "/v1/status")
	if err != nil {
		return err
	}
	var names []string
	for _, v := range list {
		name := v.Status.Interface
		if v.Remains != nil {
			name = v.Remains.Interface
		}
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	switch len(names) {
	case 0:
		return c.none(t)
	case 1:
		t.Name = literal(names[0])
		return nil
	}
	return t.SeveralError(names)
}

// Reload makes the process read its files again, and prints the effects as shaper reload does.
func (c *Client) Reload(
	ctx context.Context, s cli.Streams, t *Target, all bool, confirm time.Duration, asJSON bool,
) error {
	if err := c.one(ctx, t, all); err != nil {
		return err
	}
	q := t.query()
	if confirm > 0 {
		q.Set("confirm", fmt.Sprintf("%dns", confirm))
	}
	a, err := c.ask(ctx, http.MethodPost, "/v1/reload", q, nil)
	var refused *refusedError
	if errors.As(err, &refused) && refused.status == http.StatusUnprocessableEntity {
		return &cli.UsageError{Err: err} // as for a policy that this process reads
	}
	if err != nil {
		return err
	}
	var done control.Reloaded
	if err := c.decode(a.body, &done); err != nil {
		return err
	}
	p := say.NewPrinter(s.Out)
	stats.PrintReloaded(p, s.Err, done.Shapers, asJSON)
	if asJSON {
		return cli.AfterChange(p.Err)
	}
	if n := done.Interfaces - interfacesOf(done.Shapers); n > 0 {
		p.Printf("%s: unchanged\n", say.Count(n, "interface"))
	}
	if n := done.Attaching; n > 0 {
		p.Printf("%s: attaching\n", say.Count(n, "interface"))
	}
	if !done.Until.IsZero() {
		p.Printf("rolls back in %v unless you run shaper confirm\n", confirm)
	}
	return cli.AfterChange(p.Err)
}

// interfacesOf returns the number of interfaces of directions.
func interfacesOf(list []control.ReloadedShaper) int {
	names := map[string]bool{}
	for i := range list {
		names[list[i].Interface] = true
	}
	return len(names)
}

// Warn prints the problem, if there is one.
func (c *InterfaceChanges) Warn(w io.Writer) {
	if c.Problem != "" {
		fmt.Fprintf(w, "shaper: warning: %s: %s\n", c.Interface, say.Printable(c.Problem))
	}
}

// PrintChanges prints changes as shaper set IFACE does.
func PrintChanges(s cli.Streams, list []InterfaceChanges, asJSON bool) error {
	p := say.NewPrinter(s.Out)
	for _, at := range list {
		at.Warn(s.Err)
		for i := range at.List {
			if asJSON {
				p.Err = errors.Join(p.Err, say.WriteJSON(s.Out, at.List[i]))
			} else {
				p.Printf("%s: %s\n", at.Interface, stats.ChangeWords(&at.List[i]))
			}
		}
		if len(at.List) == 0 && !asJSON {
			p.Printf("%s: no changes by shaper set\n", at.Interface)
		}
	}
	return p.Err
}
