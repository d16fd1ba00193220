package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/live"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/remote"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/stats"
)

func newStats(s cli.Streams) *cobra.Command {
	f := live.Flags{Several: true}
	var from remote.Flag
	var all live.AllFlag
	var customers stats.CustomerFlags
	asJSON, watch, links := false, false, false
	cmd := &cobra.Command{
		Use:     statsCommand.use,
		GroupID: statsCommand.group,
		Short:   statsCommand.short,
		Long: `Show the counters of a running shaper by class and color, the current rates, and
the tokens of the meters. Bytes are counted by the policy's length rule. With
--links, show the tree of links instead: for each link the packets sent, the
rates, the backlog below it, and how long its rate held packets back. With
--customers, show the counters of customers; CUSTOMER is a name, an address, a
VLAN ID or another key, as for shaper customer show. Without IFACE, show all
shaped interfaces.

` + remoteHelp,
		Example: `  shaper stats eth0
  shaper stats eth0 --watch
  shaper stats eth0 --customers --top 20 --by dropped
  shaper stats eth0 --customers 100.64.0.1
  shaper stats eth0 --links
  shaper stats --control /run/shaper.sock "veth*"`,
		Args: cli.WantArgs(0, 2, "at most an interface and a customer"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := all.Check(args); err != nil {
				return err
			}
			what := statsWhat{customers: customers, watch: watch, links: links, asJSON: asJSON}
			if err := what.check(cmd); err != nil {
				return err
			}
			c, err := from.Client()
			if err != nil {
				return err
			}
			if len(args) == 2 {
				if what.customers.One, err = what.find(cmd, &customerFlags{f, from, true}, args); err != nil {
					return err
				}
			}
			if c != nil {
				return what.ask(cmd.Context(), s, c, &remote.Target{Flags: &f, Name: cli.InterfaceArg(args)})
			}
			return what.show(cmd.Context(), s, &f, cli.InterfaceArg(args))
		},
	}
	f.Add(cmd)
	from.Add(cmd)
	all.Add(cmd, &f, "show all shaped interfaces (the default without IFACE)")
	customers.Add(cmd)
	stats.AddLinks(cmd, &links)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON, one line per shaper")
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "refresh every second")
	return cmd
}

// statsWhat is what stats shows.
type statsWhat struct {
	customers            stats.CustomerFlags
	ofCustomers          bool
	watch, links, asJSON bool
}

// check checks the flags of a command.
func (w *statsWhat) check(cmd *cobra.Command) (err error) {
	w.ofCustomers, err = w.customers.Given(cmd)
	switch {
	case err != nil:
		return err
	case w.ofCustomers && (w.watch || w.links):
		return cli.Usagef("--customers cannot be combined with --watch or --links")
	case w.links && w.watch:
		return cli.Usagef("--links cannot be combined with --watch")
	}
	return nil
}

// find returns the name of the customer of the second argument.
func (w *statsWhat) find(cmd *cobra.Command, f *customerFlags, args []string) (string, error) {
	if !w.ofCustomers {
		return "", cli.Usagef("unexpected argument %q: a customer needs --customers", args[1])
	}
	customers, err := f.choose(cmd, args[0])
	if err != nil {
		return "", err
	}
	defer customers.close()
	t, err := customers.find(args[0], args[1])
	if err != nil {
		return "", err
	}
	return t.Name, nil
}

// show reads the shapers itself.
func (w *statsWhat) show(ctx context.Context, s cli.Streams, f *live.Flags, name string) error {
	switch {
	case w.links:
		return stats.ShowLinks(ctx, s, f, name, w.asJSON)
	case w.ofCustomers:
		return stats.ShowCustomers(ctx, s, f, name, w.customers, w.asJSON)
	}
	return stats.Show(ctx, s, f, name, w.asJSON, w.watch)
}

// ask asks the process of the shapers.
func (w *statsWhat) ask(ctx context.Context, s cli.Streams, c *remote.Client, t *remote.Target) error {
	switch {
	case w.links:
		return c.Links(ctx, s, t, w.asJSON)
	case w.customers.One != "":
		return c.Customer(ctx, s, t, &w.customers, w.asJSON)
	case w.ofCustomers:
		return c.Customers(ctx, s, t, &w.customers, w.asJSON)
	}
	return c.Stats(ctx, s, t, w.asJSON, w.watch)
}
