package cli

import (
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// Directions is the value of a flag: egress, ingress or both.
type Directions struct {
	List  []dataplane.Direction
	Given bool // by the user
}

func (d *Directions) String() string {
	if len(d.List) == 2 {
		return "both"
	}
	if len(d.List) == 1 {
		return d.List[0].String()
	}
	return ""
}

func (d *Directions) Type() string { return "DIRECTION" }

func (d *Directions) Set(s string) error {
	d.Given = true
	switch s {
	case "egress":
		d.List = []dataplane.Direction{dataplane.Egress}
	case "ingress":
		d.List = []dataplane.Direction{dataplane.Ingress}
	case "both":
		d.List = []dataplane.Direction{dataplane.Egress, dataplane.Ingress}
	default:
		return fmt.Errorf("want egress, ingress or both")
	}
	return nil
}

// bothFlag is the value of the flag --both, which is short for --direction both.
type bothFlag struct{ *Directions }

// AddBoth adds the flag --both to a command.
func (d *Directions) AddBoth(cmd *cobra.Command) {
	cmd.Flags().VarPF(bothFlag{d}, "both", "",
		"shape both directions (same as --direction both)").NoOptDefVal = "true"
}

func (b bothFlag) String() string { return "false" }
func (b bothFlag) Type() string   { return "bool" }

func (b bothFlag) Set(text string) error {
	yes, err := strconv.ParseBool(text)
	if yes {
		return b.Directions.Set("both")
	}
	return err
}
