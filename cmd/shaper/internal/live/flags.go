package live

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
)

// Flags select shapers of this network namespace.
type Flags struct {
	cli.Directions
	Several bool   // shapers of several interfaces can be selected
	orAll   string // part of the error if several is not set, such as " or give --all"
	// NoneHint ends the error for a missing shaper; "": how to start one
	NoneHint string
}

// Add adds --direction to a command.
func (f *Flags) Add(cmd *cobra.Command) {
	cmd.Flags().Var(&f.Directions, "direction",
		"only this `DIRECTION`: egress or ingress (default: all that are shaped)")
}

// Choose returns the shapers of an interface, or for "" of the only shaped interface. The
// caller must close them.
func (f *Flags) Choose(name string) ([]Handle, error) {
	v, err := Look(name)
	if err != nil {
		return nil, err
	}
	v.Narrow(name, f.List)
	names := Names(v.List)
	switch {
	case len(names) == 1 || len(names) > 1 && f.Several:
		return v.List, nil
	case len(names) > 1:
		CloseAll(v.List)
		return nil, f.SeveralError(names)
	case len(v.Away) > 0:
		return nil, fmt.Errorf("%w; unless it has a terminal, kill -HUP %d makes it read its policy again",
			v.Away[0], v.Away[0].Process)
	}
	return nil, f.NoneError(name)
}

// SeveralError is the error for several shaped interfaces.
func (f *Flags) SeveralError(names []string) error {
	return cli.Usagef("several interfaces are shaped, name one%s: %s", f.orAll, strings.Join(names, ", "))
}

// NoneError is the error for a missing shaper, with the command to start one.
func (f *Flags) NoneError(name string) error {
	if name == "" {
		return fmt.Errorf("no shaper is attached%s: %s", f.AtDirection(),
			cmp.Or(f.NoneHint, "start one with shaper run IFACE --policy FILE"))
	}
	if _, err := kernel.Identify(name); errors.As(err, new(*kernel.NoInterfaceError)) {
		return NearInterface(err)
	}
	if hasTap(name) {
		return fmt.Errorf("the shaper tap of %s does not answer: it is stopped, or just ending", name)
	}
	return fmt.Errorf("%s is not shaped%s: %s", name, f.AtDirection(),
		cmp.Or(f.NoneHint, "start a shaper with shaper run "+name+" --policy FILE"))
}

// AtDirection names the direction in an error, such as " at egress"; "" if none was given.
func (f *Flags) AtDirection() string {
	if f.List == nil {
		return ""
	}
	return " at " + f.String()
}
