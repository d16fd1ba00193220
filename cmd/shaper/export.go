package main

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/output"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/routers"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
)

// exportFlags are the flags of shaper export.
type exportFlags struct {
	cli.PolicyFlags
	to, name, out string
	lossy         bool
}

func newExport(s cli.Streams) *cobra.Command {
	var f exportFlags
	cmd := &cobra.Command{
		Use:     "export --to DIALECT [POLICY]",
		GroupID: "plan",
		Short:   "Turn a policy into the configuration of a router, or of tc",
		Long: `Print a policy as a configuration that shaper import turns into the same policy.
Notes on standard error list the values that the router may round or clamp.

If the dialect cannot express a part of the policy, print it with the reason,
write nothing and exit with 1. With --lossy, omit it and continue.`,
		Example: `  shaper export --to junos --meter "trtcm cir=10mbit cbs=64KiB pir=20mbit pbs=128KiB"`,
		Args: func(cmd *cobra.Command, args []string) error {
			if f.Given() {
				return cli.NoArgs(cmd, args)
			}
			return cli.OneArg("policy file")(cmd, args)
		},
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) == 1 {
				f.File = args[0]
			}
			return f.run(s)
		},
	}
	f.AddOneLiner(cmd)
	flags := cmd.Flags()
	flags.StringVar(&f.to, "to", "", "write the language `DIALECT`: "+listed(routers.ExportNames()))
	flags.StringVar(&f.name, "name", "SHAPER", "call the policy `NAME`; for tc, the interface")
	flags.BoolVar(&f.lossy, "lossy", false, "omit parts that the dialect cannot express, and exit with 0")
	flags.StringVarP(&f.out, "output", "o", "", "write the configuration to `FILE`")
	return cmd
}

func (f *exportFlags) run(s cli.Streams) error {
	defer cli.Interrupted.AllowExit()()
	dialect := routers.All[f.to]
	switch {
	case f.to == "":
		return cli.Usagef("--to is missing: want %s", listed(routers.ExportNames()))
	case dialect == nil:
		return cli.Usagef("--to %q: want %s", f.to, listed(routers.ExportNames()))
	}
	policy, err := f.Load()
	if err != nil {
		return err
	}
	e := dialect.Export(policy.Policy, f.name)
	var errs []error
	for _, p := range e.Problems {
		if f.lossy {
			fmt.Fprintf(s.Err, "shaper: warning: omitted: %s\n", say.Printable(policy.Name+": "+p))
			continue
		}
		errs = append(errs, fmt.Errorf("%s: %s", policy.Name, p))
	}
	if n := len(errs); n > 0 {
		return errors.Join(append(errs, fmt.Errorf(
			"%s: %s cannot express %s: nothing was written: --lossy omits them", policy.Name, f.to,
			say.Count(n, "part")))...)
	}
	for _, note := range e.Notes {
		fmt.Fprintf(s.Err, "shaper: note: %s\n", say.Printable(note))
	}
	return writeResult(s, "configuration", f.out, e.Text)
}

// writeResult writes a text to a file, or to standard output for "" and "-".
func writeResult(s cli.Streams, what, path, text string) error {
	if path == "" {
		path = "-"
	}
	file, err := output.Create(what, path, s.Out, nil)
	if err != nil {
		return err
	}
	defer file.Abort()
	if _, err := io.WriteString(file, text); err != nil {
		return file.Wrap(err)
	}
	return file.Commit()
}
