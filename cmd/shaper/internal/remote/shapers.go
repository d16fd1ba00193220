package remote

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/live"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/stats"
)

// Target chooses shapers of the process.
type Target struct {
	*live.Flags
	Name string // of an interface, or a pattern; "": all
}

// query returns the parameters that choose the interfaces.
func (t *Target) query() url.Values {
	q := url.Values{}
	if t.Name != "" {
		q.Set("interface", t.Name)
	}
	return q
}

// skips reports whether a direction is not chosen.
func (t *Target) skips(direction string) bool {
	for _, d := range t.List {
		if d.String() == direction {
			return false
		}
	}
	return t.List != nil
}

// views asks for views.
func (c *Client) views(ctx context.Context, t *Target, path string) ([]stats.View, error) {
	q := t.query()
	q.Set("view", stats.ViewVersion())
	list, err := get[[]stats.View](ctx, c, path, q)
	return slices.DeleteFunc(list, func(v stats.View) bool {
		if v.Remains != nil {
			return t.skips(v.Remains.Direction)
		}
		return t.skips(v.Status.Direction)
	}), err
}

// rows asks for a list of JSON objects about directions.
func (c *Client) rows(ctx context.Context, t *Target, path string, q url.Values) ([]json.RawMessage, error) {
	all, err := get[[]json.RawMessage](ctx, c, path, q)
	var out []json.RawMessage
	for _, row := range all {
		var of struct{ Direction string }
		if err := c.decode(row, &of); err != nil {
			return nil, err
		}
		if !t.skips(of.Direction) {
			out = append(out, row)
		}
	}
	return out, err
}

// printRows prints a list of JSON objects, one a line.
func printRows(s cli.Streams, list []json.RawMessage) error {
	for _, row := range list {
		if err := say.WriteJSON(s.Out, row); err != nil {
			return err
		}
	}
	return nil
}

// none is the error for a target without shapers.
func (c *Client) none(t *Target) error {
	if name := t.Name; name != "" {
		return fmt.Errorf("%s is not shaped%s by the process of %s", say.Printable(name), t.AtDirection(),
			say.Printable(c.path))
	}
	return fmt.Errorf("no interface is shaped%s by the process of %s", t.AtDirection(), say.Printable(c.path))
}

// Status prints what shaper status prints.
func (c *Client) Status(ctx context.Context, s cli.Streams, t *Target, asJSON bool) error {
	if asJSON {
		list, err := c.rows(ctx, t, "/v1/status", t.query())
		if err == nil && len(list) == 0 && t.Name != "" {
			err = c.none(t)
		}
		if err != nil {
			return err
		}
		return printRows(s, list)
	}
	list, err := c.views(ctx, t, "/v1/status")
	if err != nil {
		return err
	}
	p := say.NewPrinter(s.Out)
	switch {
	case len(list) == 0 && t.Name != "":
		return c.none(t)
	case len(list) == 0:
		p.Printf("%v\n", c.none(t))
	}
	stats.PrintStatus(p, list)
	return p.Err
}

// watchInterval is the interval of stats --watch.
const watchInterval = time.Second

// Stats prints what shaper stats prints, with watch once a second.
func (c *Client) Stats(ctx context.Context, s cli.Streams, t *Target, asJSON, watch bool) error {
	for round := 1; ; round++ {
		var err error
		if asJSON {
			err = c.printList(ctx, s, t, "/v1/stats", t.query())
		} else {
			err = c.printStats(ctx, s, t, round, watch)
		}
		if watch && ctx.Err() != nil {
			return nil
		}
		if err != nil || !watch {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(watchInterval):
		}
	}
}

// printList prints a list of JSON objects about directions. It is an error if there are none.
func (c *Client) printList(ctx context.Context, s cli.Streams, t *Target, path string, q url.Values) error {
	list, err := c.rows(ctx, t, path, q)
	if err == nil && len(list) == 0 {
		err = c.none(t)
	}
	if err != nil {
		return err
	}
	return printRows(s, list)
}

func (c *Client) printStats(ctx context.Context, s cli.Streams, t *Target, round int, watch bool) error {
	list, err := c.views(ctx, t, "/v1/stats")
	if err == nil && len(list) == 0 {
		err = c.none(t)
	}
	if err != nil {
		return err
	}
	p := say.NewPrinter(s.Out)
	stats.PrintStats(p, list, round, watch)
	return p.Err
}

// Customers prints what shaper stats --customers prints.
func (c *Client) Customers(
	ctx context.Context, s cli.Streams, t *Target, f *stats.CustomerFlags, asJSON bool,
) error {
	q := t.query()
	q.Set("top", strconv.Itoa(f.Top))
	q.Set("by", f.By)
	if asJSON {
		return c.printList(ctx, s, t, "/v1/customers", q)
	}
	list, err := get[[]stats.CustomerList](ctx, c, "/v1/customers", q)
	list = slices.DeleteFunc(list, func(l stats.CustomerList) bool { return t.skips(l.Direction) })
	if err == nil && len(list) == 0 {
		err = c.none(t)
	}
	if err != nil {
		return err
	}
	p := say.NewPrinter(s.Out)
	stats.PrintCustomers(p, list)
	return p.Err
}

// Customer prints what shaper stats --customers prints for one customer.
func (c *Client) Customer(
	ctx context.Context, s cli.Streams, t *Target, f *stats.CustomerFlags, asJSON bool,
) error {
	if f.By == "rate" {
		return cli.Usagef("--by rate of one customer does not work through the control socket %s", say.Printable(c.path))
	}
	var found struct {
		Plan       string
		Directions []struct {
			Interface, Direction string
			stats.CustomerCounts
		}
	}
	a, err := c.ask(ctx, http.MethodGet, "/v1/customers/"+url.PathEscape(f.One), t.query(), nil)
	if err == nil {
		err = c.decode(a.body, &found)
	}
	if err != nil {
		return err
	}
	p, list := say.NewPrinter(s.Out), []stats.CustomerList(nil)
	for _, d := range found.Directions {
		if t.skips(d.Direction) {
			continue
		}
		row := stats.CustomerStats{Name: f.One, Plan: found.Plan, CustomerCounts: d.CustomerCounts}
		one := stats.CustomerList{
			Interface: d.Interface, Direction: d.Direction, Number: 1, List: []stats.CustomerStats{row},
		}
		if list = append(list, one); asJSON {
			p.Err = errors.Join(p.Err, say.WriteJSON(s.Out, one))
		}
	}
	if !asJSON {
		stats.PrintCustomers(p, list)
	}
	return p.Err
}

// Links prints what shaper stats --links prints.
func (c *Client) Links(ctx context.Context, s cli.Streams, t *Target, asJSON bool) error {
	if asJSON {
		return c.printList(ctx, s, t, "/v1/links", t.query())
	}
	q := t.query()
	q.Set("view", stats.ViewVersion())
	list, err := get[[]stats.LinkReadings](ctx, c, "/v1/links", q)
	list = slices.DeleteFunc(list, func(l stats.LinkReadings) bool { return t.skips(l.Direction) })
	if err == nil && len(list) == 0 {
		err = c.none(t)
	}
	if err != nil {
		return err
	}
	p := say.NewPrinter(s.Out)
	stats.PrintLinks(p, list)
	return p.Err
}
