package main

import (
	"github.com/spf13/cobra"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/check"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/lint"
)

func newCheck(s cli.Streams) *cobra.Command {
	var f cli.PolicyFlags
	asJSON, strict := false, false
	o := lint.Options{ChargedTwice: chargedTwice}
	cmd := &cobra.Command{
		Use:     "check [POLICY]",
		GroupID: "plan",
		Short:   "Compile a policy, show it in exact units, and lint it",
		Long: `Compile a policy file, or a policy given by --rate or --meter, and print it in
exact units, with warnings and their reasons. If the policy does not compile,
print each error with its position.`,
		Example: `  shaper check docs/customer.yaml
  shaper check --meter "srtcm cir=10mbit cbs=1000 ebs=64KiB" --yellow dscp=af12
  shaper check --rate 50mbit`,
		Args: func(cmd *cobra.Command, args []string) error {
			if f.Given() {
				return cli.NoArgs(cmd, args)
			}
			return cli.OneArg("policy file")(cmd, args)
		},
		RunE: func(_ *cobra.Command, args []string) error {
			defer cli.Interrupted.AllowExit()()
			if len(args) == 1 {
				f.File = args[0]
			}
			policy, err := f.Load()
			if err != nil {
				return err
			}
			return check.Policy(s, policy, o, asJSON, strict)
		},
	}
	f.AddOneLiner(cmd)
	flags := cmd.Flags()
	flags.BoolVar(&asJSON, "json", false, "print JSON")
	flags.BoolVar(&strict, "strict", false, "fail if there are warnings")
	flags.Var(cli.NewTimeFlag(&o.RTT, cli.DefaultRTT), "rtt",
		"round-trip `TIME` assumed when judging bursts for TCP")
	flags.Int64Var(&o.MTU, "mtu", cli.DefaultMTU, "MTU assumed by warnings, in `BYTES`")
	return cmd
}
