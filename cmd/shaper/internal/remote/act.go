package remote

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/control"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/detach"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/reload"
)

// Confirm confirms policies as shaper confirm does.
func (c *Client) Confirm(ctx context.Context, s cli.Streams, t *Target, all, asJSON bool) error {
	if err := c.one(ctx, t, all); err != nil {
		return err
	}
	a, err := c.ask(ctx, http.MethodPost, "/v1/confirm", t.query(), nil)
	if err != nil {
		return err
	}
	var list []control.Confirmed
	if err := c.decode(a.body, &list); err != nil {
		return err
	}
	return cli.AfterChange(reload.PrintConfirmed(s, list, asJSON))
}

// Detach detaches as shaper detach does.
func (c *Client) Detach(ctx context.Context, s cli.Streams, t *Target, all, asJSON bool) error {
	if err := c.one(ctx, t, all); err != nil {
		return err
	}
	q := t.query()
	if t.List != nil {
		q.Set("direction", t.Directions.String())
	}
	if all {
		q.Set("all", "true")
	}
	a, err := c.ask(ctx, http.MethodPost, "/v1/detach", q, nil)
	if err != nil {
		refused, ok := errors.AsType[*refusedError](err)
		if all && ok && refused.status == http.StatusNotFound {
			err = cli.AllOfNone(err)
		}
		return err
	}
	var list []json.RawMessage
	if err := c.decode(a.body, &list); err != nil {
		return err
	}
	for _, text := range list {
		var row detach.Detached
		if err := c.decode(text, &row); err != nil {
			return err
		}
		err = errors.Join(err, detach.Print(s, &row, asJSON))
	}
	return cli.AfterChange(err)
}
