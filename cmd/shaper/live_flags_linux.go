package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/live"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/metrics"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
)

// directions is the value of a flag: egress, ingress or both.
type directions struct{ list []kernel.Direction }

func (d *directions) String() string {
	if len(d.list) == 2 {
		return "both"
	}
	if len(d.list) == 1 {
		return d.list[0].String()
	}
	return ""
}

func (d *directions) Type() string { return "DIRECTION" }

func (d *directions) Set(s string) error {
	switch s {
	case "egress":
		d.list = []kernel.Direction{kernel.Egress}
	case "ingress":
		d.list = []kernel.Direction{kernel.Ingress}
	case "both":
		d.list = []kernel.Direction{kernel.Egress, kernel.Ingress}
	default:
		return fmt.Errorf("want egress, ingress or both")
	}
	return nil
}

// both is the value of the flag --both, which is short for --direction both.
type both struct{ *directions }

func (d *directions) addBoth(cmd *cobra.Command) {
	cmd.Flags().VarPF(both{d}, "both", "", "shape both directions (same as --direction both)").NoOptDefVal = "true"
}

func (b both) String() string { return "false" }
func (b both) Type() string   { return "bool" }

func (b both) Set(text string) error {
	yes, err := strconv.ParseBool(text)
	if yes {
		return b.directions.Set("both")
	}
	return err
}

// liveFlags select shapers of this network namespace.
type liveFlags struct {
	directions
	several bool   // shapers of several interfaces can be selected
	orAll   string // part of the error if several is not set, such as " or give --all"
}

func (f *liveFlags) add(cmd *cobra.Command) {
	cmd.Flags().Var(&f.directions, "direction", "only this `DIRECTION`: egress or ingress (default: all that are shaped)")
}

// choose returns the shapers of an interface, or for "" of the only shaped interface. The
// caller must close them.
func (f *liveFlags) choose(name string) ([]live.Handle, error) {
	v, err := live.Look()
	if err != nil {
		return nil, err
	}
	v.Narrow(name, f.list)
	names := live.Names(v.List)
	switch {
	case len(names) == 1 || len(names) > 1 && f.several:
		return v.List, nil
	case len(names) > 1:
		live.CloseAll(v.List)
		return nil, f.severalError(names)
	case len(v.Away) > 0:
		return nil, fmt.Errorf("%w; unless it has a terminal, kill -HUP %d makes it read its policy again", v.Away[0], v.Away[0].Process)
	}
	return nil, f.noneError(name)
}

// interfaceArg returns the interface in the arguments, or "".
func interfaceArg(args []string) string {
	if len(args) > 0 {
		return args[0]
	}
	return ""
}

func (f *liveFlags) severalError(names []string) error {
	return usagef("several interfaces are shaped, name one%s: %s", f.orAll, strings.Join(names, ", "))
}

// noneError is the error that there is no shaper, with the command to start one.
func (f *liveFlags) noneError(name string) error {
	if name == "" {
		return fmt.Errorf("no shaper is attached%s: start one with shaper run IFACE --policy FILE", f.atDirection())
	}
	if _, err := kernel.Identify(name); errors.As(err, new(*kernel.NoInterfaceError)) {
		return err
	}
	if live.HasTap(name) {
		return fmt.Errorf("the shaper tap of %s does not answer: it is stopped, or just ending", name)
	}
	return fmt.Errorf("%s is not shaped%s: start a shaper with shaper run %[1]s --policy FILE", name, f.atDirection())
}

// atDirection is the part of an error that names the direction, if one was given.
func (f *liveFlags) atDirection() string {
	if f.list == nil {
		return ""
	}
	return " at " + f.String()
}

// checkPolicy returns an error if any of the shapers cannot run a policy.
func checkPolicy[S interface{ Check(*dataplane.Plan) error }](c *policyfile.Compiled, list []S) error {
	for _, sh := range list {
		if err := sh.Check(c.Plan); err != nil {
			return explainIn(c, err)
		}
	}
	return nil
}

// metricsFlags are the flags of commands that serve metrics.
type metricsFlags struct {
	address   string // "" for none
	customers int
}

func (m *metricsFlags) add(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&m.address, "metrics", "", "serve Prometheus metrics at `ADDRESS`, such as 127.0.0.1:9190; without a host, listen on loopback only")
	f.IntVar(&m.customers, "metrics-customers", 0, "with --metrics, serve metrics of each of the `N` customers with the most bytes")
}

// parse checks the flags and returns the address.
func (m *metricsFlags) parse() (address metrics.Address, err error) {
	switch {
	case m.customers < 0 || m.customers > metrics.MaxCustomers:
		return address, usagef("--metrics-customers %d: want 0 to %d", m.customers, metrics.MaxCustomers)
	case m.address == "" && m.customers > 0:
		return address, usagef("--metrics-customers needs --metrics")
	case m.address == "":
		return address, nil
	}
	if address, err = metrics.ParseAddress(m.address); err != nil {
		err = &usageError{err}
	}
	return address, err
}
