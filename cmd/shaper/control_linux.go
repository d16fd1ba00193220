package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/spf13/pflag"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/control"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/live"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/stats"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
)

// controlFlags are the flags of the sockets for other programs.
type controlFlags struct{ path, group, readPath, readGroup string }

func (c *controlFlags) add(f *pflag.FlagSet) {
	f.StringVar(&c.path, "control", "", "serve the API for reading and changing at the unix socket `PATH`")
	f.StringVar(&c.group, "control-group", "", "let `GROUP` use the socket of --control, too")
	f.StringVar(&c.readPath, "control-read", "", "serve the API for reading only at the unix socket `PATH`")
	f.StringVar(&c.readGroup, "control-read-group", "", "let `GROUP` use the socket of --control-read, too")
}

func (c *controlFlags) on() bool { return c.path != "" || c.readPath != "" }

func (c *controlFlags) check() error {
	switch {
	case c.group != "" && c.path == "":
		return cli.Usagef("--control-group needs --control")
	case c.readGroup != "" && c.readPath == "":
		return cli.Usagef("--control-read-group needs --control-read")
	case c.on() && c.path == c.readPath:
		return cli.Usagef("--control and --control-read need two paths")
	}
	if _, err := c.groups(); err != nil {
		return &cli.UsageError{Err: err}
	}
	return nil
}

// paths returns the paths of the sockets.
func (c *controlFlags) paths() (out []string) {
	for _, path := range []string{c.path, c.readPath} {
		if path != "" {
			out = append(out, path)
		}
	}
	return out
}

// groups returns the IDs of the groups.
func (c *controlFlags) groups() (out []int, err error) {
	for _, name := range []string{c.group, c.readGroup} {
		if name == "" {
			continue
		}
		id, err := control.GroupID(name)
		if err != nil {
			return nil, err
		}
		out = append(out, id)
	}
	return out, nil
}

// serve creates the sockets and serves an API there. Close ends it.
func (c *controlFlags) serve(api control.API) (*control.Server, error) {
	var sockets []*control.Socket
	for _, at := range []struct {
		path, group string
		readOnly    bool
	}{{c.path, c.group, false}, {c.readPath, c.readGroup, true}} {
		if at.path == "" {
			continue
		}
		s, err := control.Listen(at.path, at.group, at.readOnly)
		if err != nil {
			control.Serve(api, sockets...).Close()
			return nil, err
		}
		sockets = append(sockets, s)
	}
	return control.Serve(api, sockets...), nil
}

// customerJSON is one customer, with its counters in each direction.
type customerJSON struct {
	Name       string                  `json:"name"`
	Plan       string                  `json:"plan"`
	Changes    []control.Change        `json:"changes"` // in force
	Directions []customerDirectionJSON `json:"directions"`
}

type customerDirectionJSON struct {
	Interface string `json:"interface"`
	Direction string `json:"direction"`
	stats.CustomerCounts
}

// reloadJSON is the answer to a reload.
type reloadJSON struct {
	Policy string `json:"policy"` // name
}

// add adds the directions that have a customer. If none has it, it returns the error of the last.
func (c *customerJSON) add(directions int, read func(int) (row customerDirectionJSON, plan string, err error)) error {
	var unknown error
	for i := range directions {
		row, plan, err := read(i)
		if errors.As(err, new(*policyfile.UnknownError)) {
			unknown = err
			continue
		}
		if err != nil {
			return err
		}
		c.Plan, c.Directions = plan, append(c.Directions, row)
	}
	if len(c.Directions) > 0 {
		return nil
	}
	return unknown
}

// ownerTime is the time to wait until the goroutine that owns the shapers takes a request. It
// may be reading a policy.
const ownerTime = 3 * time.Second

// askOwner calls a function in the goroutine that receives from a channel.
func askOwner(ctx context.Context, to chan<- func(), f func() error) error {
	done := make(chan error, 1)
	late := time.NewTimer(ownerTime)
	defer late.Stop()
	select {
	case to <- func() { done <- f() }:
		return <-done
	case <-late.C:
		return live.ErrBusy
	case <-ctx.Done():
		return ctx.Err()
	}
}

// rejected marks an error of reloading that a policy causes.
func rejected(err error) error {
	if cli.IsUsage(err) || errors.As(err, new(*dataplane.FieldError)) {
		return &control.InputError{Status: http.StatusUnprocessableEntity, Err: err}
	}
	return err
}

// statsOfAll reads shapers twice, unless earlier readings of them exist. shapers calls a function
// with them.
func statsOfAll(ctx context.Context, look stats.ChangesLook, shapers func(func([]live.Handle) error) error) ([]stats.Stats, error) {
	var out []stats.Stats
	last := map[string]live.Sample{}
	for round := 0; ; round++ {
		ready := false
		err := shapers(func(list []live.Handle) error {
			of, complete, err := stats.SampleAll(list, last)
			if ready = complete || round > 0; err != nil || !ready {
				return err
			}
			out = []stats.Stats{}
			for i, sh := range list {
				out = append(out, stats.Of(sh, of[i].Before, of[i].Now, look))
			}
			return nil
		})
		if err != nil || ready {
			return out, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(kernel.MinReadingAge):
		}
	}
}

func numberOfCustomers(policy *policyfile.Compiled) int {
	if policy.Plan.Customers == nil {
		return 0
	}
	return len(policy.Plan.Customers.Of)
}

// writeCustomers writes lists of customers as a JSON list, row by row: there may be a million.
func writeCustomers(w io.Writer, list []stats.RankedCustomers) error {
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
