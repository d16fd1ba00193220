package main

import (
	"github.com/spf13/cobra"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/serve"
)

// defaultServeDir is the directory of the configuration.
const defaultServeDir = "/etc/shaper"

func newServe(s cli.Streams) *cobra.Command {
	check := false
	cmd := &cobra.Command{
		Use:     serveCommand.use,
		GroupID: serveCommand.group,
		Short:   serveCommand.short,
		Long: `Shape all interfaces that DIR/shaper.yaml chooses, those that appear later included,
in one process. DIR is /etc/shaper by default, and paths in the file are relative to
it. An entry of interfaces: has a name or a pattern (match), a policy or a rate, and
the options of shaper run: direction, hook, pacer, gso-limit, pin, repair, dry-run.
An interface belongs to the first entry that matches; patterns do not match loopback
interfaces.

SIGHUP reads the files again: a policy with an error changes none of its interfaces,
an error in shaper.yaml nothing at all. When shaper ends, it detaches, except for
policies with pin: true, which the next start takes over.`,
		Example: "  shaper serve\n  shaper serve docs/serve\n  shaper serve --check",
		Args:    cli.AtMostOne,
		RunE: func(cmd *cobra.Command, args []string) error {
			dir := defaultServeDir
			if len(args) > 0 {
				dir = args[0]
			}
			if check {
				return serve.Check(s, dir)
			}
			return serve.Run(cmd.Context(), s, dir)
		},
	}
	cmd.Flags().BoolVar(&check, "check", false, "check the files and exit")
	return cmd
}
