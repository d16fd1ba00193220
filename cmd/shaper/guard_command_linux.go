package main

import (
	"github.com/spf13/cobra"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/live"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/process"
)

func newGuard(s cli.Streams) *cobra.Command {
	return &cobra.Command{
		Use:    guardCommand.use,
		Short:  guardCommand.short,
		Hidden: true,
		Args:   cli.OneArg("interface"),
		RunE: func(*cobra.Command, []string) error {
			process.SetName()
			return live.RunGuard(s.In)
		},
	}
}
