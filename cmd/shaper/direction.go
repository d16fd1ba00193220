package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// directionFlag is the direction of the packets of a capture.
type directionFlag struct{ direction dataplane.Direction }

func (d *directionFlag) add(cmd *cobra.Command) {
	cmd.Flags().Var(d, "direction", "find customers by the address for this `DIRECTION`: egress or ingress")
}

func (d *directionFlag) String() string { return d.direction.String() }
func (d *directionFlag) Type() string   { return "DIRECTION" }

func (d *directionFlag) Set(s string) error {
	switch s {
	case "egress":
		d.direction = dataplane.Egress
	case "ingress":
		d.direction = dataplane.Ingress
	default:
		return fmt.Errorf("want egress or ingress")
	}
	return nil
}
