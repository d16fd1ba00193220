package process

import (
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/control"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/metrics"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
)

// Options are the options of shaper run and shaper tap.
type Options struct {
	Policy     cli.PolicyFlags
	Directions cli.Directions
	Await      bool          // wait for the interface to appear
	Span       time.Duration // end after this time; 0: no end
	Metrics    Metrics
	Control    ControlOptions
	State      StateOptions
}

// SetKernel sets how packets are shaped in the kernel, by the words of the flags --hook, --pacer and
// --gso-limit; "" means auto. An error begins with the name of the flag.
func (o *RunOptions) SetKernel(hook, pacer, gso string) error {
	switch hook {
	case "", "auto", "tcx", "tc", "xdp":
		o.Hook = kernel.Hook(hook)
	default:
		return fmt.Errorf("hook %q: want auto, tcx, tc or xdp", hook)
	}
	switch pacer {
	case "", "auto":
	case "fq", "htb":
		o.Pacer = kernel.Pacer(pacer)
	default:
		return fmt.Errorf("pacer %q: want auto, fq or htb", pacer)
	}
	switch gso {
	case "", "auto":
	case "off":
		o.GSOLimit = kernel.NoGSOLimit
	default:
		n, err := strconv.ParseUint(gso, 10, 32)
		if err != nil || n < 1500 || n > 524280 {
			return fmt.Errorf("gso-limit %q: want auto, off, or 1500 to 524280 bytes", gso)
		}
		o.GSOLimit = uint32(n)
	}
	return nil
}

// Add adds the flags common to both commands.
func (o *Options) Add(cmd *cobra.Command) {
	o.Directions.List = []dataplane.Direction{kernel.Egress}
	o.Policy.Add(cmd)
	flags := cmd.Flags()
	flags.Var(&o.Directions, "direction",
		"shape this `DIRECTION`: egress, ingress or both; each has its own meters")
	o.Directions.AddBoth(cmd)
	o.Metrics.add(flags)
	o.Control.add(flags)
	o.State.add(flags, cmd.Name())
}

// check checks the options independent of a policy.
func (o *Options) check() error {
	if d := &o.Directions; policyfile.HasTwoRates(o.Policy.One.Rate) && len(d.List) == 1 {
		if d.Given {
			return cli.Usagef("--rate %s has a rate for each direction: leave --direction out, or give one rate",
				say.Printable(o.Policy.One.Rate))
		}
		_ = d.Set("both")
	}
	if err := o.Metrics.check(); err != nil {
		return err
	}
	return o.Control.check()
}

// Metrics are the options of the metrics.
type Metrics struct {
	text      string // address; "" for none
	customers int    // number of customers with metrics of their own
	address   metrics.Address
}

func (m *Metrics) add(f *pflag.FlagSet) {
	f.StringVar(&m.text, "metrics", "",
		"serve Prometheus metrics at `ADDRESS`, such as 127.0.0.1:9190; without a host, listen on loopback only")
	f.IntVar(&m.customers, "metrics-customers", 0,
		"with --metrics, serve metrics of each of the `N` customers with the most bytes")
}

// Given reports whether any of the flags was given.
func (m *Metrics) Given() bool { return m.text != "" || m.customers != 0 }

// check checks the flags and sets the address.
func (m *Metrics) check() (err error) {
	switch {
	case m.customers < 0 || m.customers > metrics.MaxCustomers:
		return cli.Usagef("--metrics-customers %d: want 0 to %d", m.customers, metrics.MaxCustomers)
	case m.text == "" && m.customers > 0:
		return cli.Usagef("--metrics-customers needs --metrics")
	case m.text == "":
		return nil
	}
	if m.address, err = metrics.ParseAddress(m.text); err != nil {
		return &cli.UsageError{Err: err}
	}
	return nil
}

// during serves metrics while next runs, and sets the board to publish them.
func (m *Metrics) during(errors io.Writer, board **metrics.Board, next func() error) error {
	if m.text != "" {
		*board = metrics.NewBoard(m.customers)
		defer metrics.Serve(errors, m.address, *board).Close()
	}
	return next()
}

// ControlOptions are the options of the sockets for other programs.
type ControlOptions struct{ path, group, readPath, readGroup string }

func (c *ControlOptions) add(f *pflag.FlagSet) {
	f.StringVar(&c.path, "control", "", "serve the API for reading and changing at the unix socket `PATH`")
	f.StringVar(&c.group, "control-group", "", "let `GROUP` use the socket of --control, too")
	f.StringVar(&c.readPath, "control-read", "", "serve the API for reading only at the unix socket `PATH`")
	f.StringVar(&c.readGroup, "control-read-group", "", "let `GROUP` use the socket of --control-read, too")
}

// Given reports whether there are any sockets.
func (c *ControlOptions) Given() bool { return c.path != "" || c.readPath != "" }

func (c *ControlOptions) check() error {
	switch {
	case c.group != "" && c.path == "":
		return cli.Usagef("--control-group needs --control")
	case c.readGroup != "" && c.readPath == "":
		return cli.Usagef("--control-read-group needs --control-read")
	case c.Given() && c.path == c.readPath:
		return cli.Usagef("--control and --control-read need two paths")
	}
	if _, err := c.groups(); err != nil {
		return &cli.UsageError{Err: err}
	}
	return nil
}

// paths returns the paths of the sockets.
func (c *ControlOptions) paths() (out []string) {
	for _, path := range []string{c.path, c.readPath} {
		if path != "" {
			out = append(out, path)
		}
	}
	return out
}

// groups returns the IDs of the groups.
func (c *ControlOptions) groups() (out []int, err error) {
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

// during serves an API while next runs.
func (c *ControlOptions) during(api control.API, next func() error) error {
	if c.Given() {
		server, err := c.serve(api)
		if err != nil {
			return err
		}
		defer server.Close()
	}
	return next()
}

// serve creates the sockets and serves an API there. Close ends it.
func (c *ControlOptions) serve(api control.API) (*control.Server, error) {
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
