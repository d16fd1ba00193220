package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/live"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
)

// directions is a flag: egress, ingress or both.
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

// liveFlags choose among the shapers of this network namespace.
type liveFlags struct {
	directions
	several bool   // interfaces may be chosen at once
	orAll   string // for the message where they may not
}

func (f *liveFlags) add(cmd *cobra.Command) {
	cmd.Flags().Var(&f.directions, "direction", "only this `DIRECTION`: egress or ingress (default: all that are shaped)")
}

// atMostOne wants an interface, or nothing where there is only one shaped.
func atMostOne(cmd *cobra.Command, args []string) error {
	if len(args) > 1 {
		return usagef("want one interface, got %d: see %s --help", len(args), cmd.CommandPath())
	}
	return nil
}

// choose returns the shapers of the interface named, or of the only one that
// has any. The caller closes them.
func (f *liveFlags) choose(args []string) ([]live.Shaper, error) {
	v, err := live.Look()
	if err != nil {
		return nil, err
	}
	v.Narrow(named(args), f.list)
	names := live.Names(v.List)
	switch {
	case len(names) == 1 || len(names) > 1 && f.several:
		return v.List, nil
	case len(names) > 1:
		live.CloseAll(v.List)
		return nil, f.severalError(names)
	case len(v.Away) > 0:
		return nil, fmt.Errorf("%w; kill -HUP %d makes it read its policy again", v.Away[0], v.Away[0].Process)
	}
	return nil, f.noneError(named(args))
}

func named(args []string) string {
	if len(args) > 0 {
		return args[0]
	}
	return ""
}

func (f *liveFlags) severalError(names []string) error {
	return usagef("several interfaces are shaped, name one%s: %s", f.orAll, strings.Join(names, ", "))
}

// noneError says that no shaper is there, and how to start one.
func (f *liveFlags) noneError(name string) error {
	if name == "" {
		return fmt.Errorf("no shaper is attached%s: start one with shaper run IFACE --policy FILE", f.which())
	}
	if _, err := kernel.Identify(name); errors.As(err, new(*kernel.NoInterfaceError)) {
		return err
	}
	return fmt.Errorf("%s is not shaped%s: start a shaper with shaper run %[1]s --policy FILE", name, f.which())
}

func (f *liveFlags) which() string {
	if f.list == nil {
		return ""
	}
	return " at " + f.String()
}

// suits says what is wrong with a policy for any of these shapers, before one of
// them gets it.
func suits[S interface{ Check(*dataplane.Plan) error }](c *policyfile.Compiled, list []S) error {
	for _, sh := range list {
		if err := sh.Check(c.Plan); err != nil {
			return explainIn(c, err)
		}
	}
	return nil
}
