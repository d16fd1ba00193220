package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/budgets"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/pattern"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/spelling"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/meter/shared"
	"github.com/a-seed-32e5a53f/shaper/meter/shared/lease"
	"github.com/spf13/cobra"
)

// storeFlags name a server of budgets.
type storeFlags struct {
	store  shared.Server
	policy string
	asJSON bool
}

func newBudget(s cli.Streams) *cobra.Command {
	var f storeFlags
	cmd := &cobra.Command{
		Use:     budgetCommand.use,
		GroupID: budgetCommand.group,
		Short:   budgetCommand.short,
		Long: `Show the budgets on a Redis or Valkey server, set their size for all hosts, or
drop a host that will not return: until then the server reserves its rescue
share. Name the server with --store, or with a --policy whose budgets are on it.
Put a password into --password-file or the policy, because every user can see a
command's arguments.`,
		Example: `  shaper budget list --store redis://10.0.0.1:6379
  shaper budget set customer-42 rate=200mbit --policy docs/shared.yaml`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	flags := cmd.PersistentFlags()
	flags.StringVar(&f.store.URL, "store", "",
		"connect to the server at `URL`, such as redis://10.0.0.1:6379 or rediss://… for TLS")
	flags.StringVar(&f.store.PasswordFile, "password-file", "", "read the password from `FILE`")
	flags.StringVar(&f.store.CAFile, "ca-file", "", "trust the certificates in `FILE` (PEM)")
	flags.StringVar(&f.store.CertFile, "cert-file", "", "authenticate with the certificate in `FILE` (PEM)")
	flags.StringVar(&f.store.KeyFile, "key-file", "", "use the private key in `FILE` (PEM) with --cert-file")
	flags.StringVarP(&f.policy, "policy", "p", "", "use the server of the budgets in policy `FILE`")
	type action = func(ctx context.Context, c shared.Client, args []string) error
	sub := func(use, short, example string, args cobra.PositionalArgs, run action) *cobra.Command {
		sub := &cobra.Command{Use: use, Short: short, Example: "  shaper budget " + example, Args: args}
		sub.RunE = func(cmd *cobra.Command, args []string) error {
			client, err := f.open()
			if err != nil {
				return err
			}
			defer client.Close()
			ctx, cancel := context.WithTimeout(cmd.Context(), storeTimeout)
			defer cancel()
			err = run(ctx, client, args)
			if errors.Is(err, shared.ErrNoBudget) {
				names, _ := shared.ListBudgets(ctx, client) // after an error there is no suggestion
				err = fmt.Errorf("%w%s", err, spelling.DidYouMean(args[0], names))
			}
			return err
		}
		cmd.AddCommand(sub)
		return sub
	}
	list := sub("list", "List the budgets of a server", "list --store redis://10.0.0.1:6379", cli.NoArgs,
		func(ctx context.Context, c shared.Client, _ []string) error { return f.list(ctx, s, c) })
	show := sub("show NAME", "Show a budget and its hosts", "show customer-42 --store redis://10.0.0.1:6379",
		cli.OneArg("budget"),
		func(ctx context.Context, c shared.Client, args []string) error {
			return f.show(ctx, s, c, args[0])
		})
	for _, cmd := range []*cobra.Command{list, show} {
		cmd.Flags().BoolVar(&f.asJSON, "json", false, "print JSON, one line per budget")
	}
	sub("set NAME PARAMETER=VALUE...", "Set the size of a budget for all hosts, overriding their policies",
		"set customer-42 cir=100mbit cbs=1MiB --store redis://10.0.0.1:6379",
		cli.WantArgs(2, math.MaxInt, "a budget and its parameters"),
		func(ctx context.Context, c shared.Client, args []string) error {
			return setBudget(ctx, s, c, args[0], policyfile.JoinUnits(args[1:]))
		})
	sub("unset NAME", "Let the policies of the hosts decide the size again",
		"unset customer-42 --store redis://10.0.0.1:6379", cli.OneArg("budget"),
		func(ctx context.Context, c shared.Client, args []string) error {
			was, err := shared.UnsetBudget(ctx, c, args[0])
			if err == nil && !was {
				err = fmt.Errorf("budget %s: no size was set", args[0])
			}
			return printDone(s, err, "budget %s: the smallest size in the hosts' policies applies\n", args[0])
		})
	sub("drop NAME HOST", "Drop a host that will not return, and free its rescue share",
		"drop customer-42 gw1:eth0:egress --store redis://10.0.0.1:6379",
		cli.WantArgs(2, 2, "a budget and a host"),
		func(ctx context.Context, c shared.Client, args []string) error {
			return printDone(s, shared.DropHost(ctx, c, args[0], args[1]), "budget %s: dropped host %s\n",
				args[0], args[1])
		})
	return cmd
}

// storeTimeout is the time that a command waits for a server.
const storeTimeout = 5 * time.Second

// printDone prints a line unless there was an error.
func printDone(s cli.Streams, err error, format string, args ...any) error {
	if err == nil {
		_, err = fmt.Fprintf(s.Out, format, args...)
	}
	return err
}

// open returns a client of the server that the flags name.
func (f *storeFlags) open() (shared.Client, error) {
	switch {
	case f.store.URL != "" && f.policy != "":
		return nil, cli.Usagef("give --store URL or --policy FILE, not both")
	case f.store.URL == "" && f.policy == "":
		return nil, cli.Usagef("a server is missing: give --store URL or --policy FILE")
	case f.policy != "":
		policy, err := (&cli.PolicyFlags{File: f.policy}).Load()
		if err != nil {
			return nil, err
		}
		return openStoreOf(policy.Plan)
	}
	if u, err := url.Parse(f.store.URL); err == nil {
		if _, ok := u.User.Password(); ok {
			return nil,
				cli.Usagef("--store has a password, which every user can see in the list of processes: use --password-file or --policy")
		}
	}
	client, err := shared.Open(f.store)
	if err != nil {
		return nil, &cli.UsageError{Err: err}
	}
	return client, nil
}

// openStoreOf returns a client of the server of a plan's budgets. They must have one server.
func openStoreOf(plan *compiled.Plan) (shared.Client, error) {
	var stores []dataplane.Address
	for _, s := range budgets.OnServers(plan) {
		if len(stores) == 0 || stores[0] != s.Budget.Address {
			stores = append(stores, s.Budget.Address)
		}
	}
	switch len(stores) {
	case 0:
		return nil, cli.Usagef("the policy has no budget on a server")
	case 1:
		return shared.Open(shared.Server(stores[0]))
	}
	return nil, cli.Usagef("the budgets of the policy are on several servers: name one with --store")
}

// budgetStateJSON is the output of list --json and show --json, one line per budget. Rates are
// in bit/s, bursts in bytes. If Packets is set, rates are in eighths of a packet per second,
// and bursts in packets.
type budgetStateJSON struct {
	Name     string           `json:"name"`
	Packets  bool             `json:"packets"`
	Size     budgets.Amounts  `json:"size"`
	Set      bool             `json:"set"` // the size was set by shaper budget set
	Held     budgets.Amounts  `json:"held"`
	Learning bool             `json:"learning"`
	Late     int              `json:"late"`
	Smallest string           `json:"smallest,omitempty"`
	Hosts    []budgetHostJSON `json:"hosts"`
}

type budgetHostJSON struct {
	Name     string          `json:"name"`
	Share    budgets.Amounts `json:"share"`
	Rescue   budgets.Amounts `json:"rescue"`
	Demand   [2]int64        `json:"demand"`
	Weight   int64           `json:"weight"`
	CalledNS int64           `json:"called_ns"` // ago
	Late     bool            `json:"late"`
}

func stateJSON(b *shared.BudgetInfo) budgetStateJSON {
	out := budgetStateJSON{
		Name: b.Name, Packets: bool(unitOfBudget(b)), Size: budgets.Amounts(b.Size), Set: b.Set != nil,
		Held: budgets.Amounts(b.Held), Learning: b.Learning, Late: b.Late, Smallest: b.Smallest,
		Hosts: []budgetHostJSON{},
	}
	for _, h := range b.Hosts {
		out.Hosts = append(out.Hosts, budgetHostJSON{
			h.Name, budgets.Amounts(h.Share), budgets.Amounts(h.Rescue), h.Demand, h.Weight, int64(h.Called),
			h.Late,
		})
	}
	return out
}

func (f *storeFlags) list(ctx context.Context, s cli.Streams, c shared.Client) error {
	names, err := shared.ListBudgets(ctx, c)
	if err != nil {
		return err
	}
	g := &say.Table{
		Header: []any{"budget", "rate", "burst", "held", "hosts", "late"}, First: 2, Names: []int{0},
	}
	var errs []error // one damaged budget must not hide the others
	for _, name := range names {
		b, err := shared.ShowBudget(ctx, c, name)
		if err != nil {
			if errs = append(errs, err); ctx.Err() != nil {
				break
			}
			continue
		}
		if f.asJSON {
			if err := say.WriteJSON(s.Out, stateJSON(b)); err != nil {
				return err
			}
			continue
		}
		u := unitOfBudget(b)
		g.Add(name, u.Rates(b.Size), u.Bursts(b.Size), u.Rates(b.Held), say.Number(len(b.Hosts)),
			say.Number(b.Late))
	}
	switch {
	case f.asJSON:
	case len(names) == 0:
		errs = append(errs, printDone(s, nil, "the server has no budgets\n"))
	case len(errs) < len(names):
		errs = append(errs, printDone(s, nil, "%s\n", g.Render(say.Colored(s.Out))))
	}
	return errors.Join(errs...)
}

func (f *storeFlags) show(ctx context.Context, s cli.Streams, c shared.Client, name string) error {
	b, err := shared.ShowBudget(ctx, c, name)
	if err != nil {
		return err
	}
	if f.asJSON {
		return say.WriteJSON(s.Out, stateJSON(b))
	}
	p, u := say.NewPrinter(s.Out), unitOfBudget(b)
	by := ", set by shaper budget set"
	if b.Set == nil {
		by = ", the smallest of the hosts' policies"
	}
	p.Printf("budget %s\n  rate   %s%s\n  burst  %s\n  held   %s\n", b.Name, u.Rates(b.Size), by,
		u.Bursts(b.Size), u.Rates(b.Held))
	if b.Smallest != "" {
		p.Printf("  hosts disagree about the size: %s has the smallest\n", b.Smallest)
	}
	if b.Learning {
		p.Printf("  the server is learning the hosts' shares: no share grows\n")
	}
	if len(b.Hosts) > 0 {
		g := &say.Table{
			Header: []any{"host", "share", "burst", "demand", "rescue", "weight", "called"}, First: 2,
			Names: []int{0},
		}
		for _, h := range b.Hosts {
			called := h.Called.Round(time.Millisecond).String() + " ago"
			if h.Late {
				called += ", late"
			}
			demand := lease.Amounts{Rate: h.Demand}
			g.Add(h.Name, u.Rates(h.Share), u.Bursts(h.Share), u.Rates(demand), u.Rates(h.Rescue),
				say.Number(h.Weight), called)
		}
		p.Printf("\n%s\n", g.Render(say.Colored(s.Out)))
	}
	return p.Err
}

// unitOfBudget returns the unit of a budget; bytes if the budget has no hosts.
func unitOfBudget(b *shared.BudgetInfo) budgets.Unit {
	return budgets.Unit(slices.ContainsFunc(b.Hosts,
		func(h shared.HostInfo) bool { return budgets.UnitOf(h.Floor) == budgets.InPackets }))
}

// setBudget changes the given parameters of a budget and keeps the others.
func setBudget(ctx context.Context, s cli.Streams, c shared.Client, name string, assigns []string) error {
	b, missing := shared.ShowBudget(ctx, c, name)
	u := budgets.Unit(slices.ContainsFunc(assigns, packetRate().MatchString))
	if missing == nil && len(b.Hosts) > 0 {
		u = unitOfBudget(b)
	}
	given, rates, bursts, err := parseSize(u, assigns)
	if err != nil {
		return err
	}
	size := given
	if missing == nil {
		size = b.Size
		for i := range 2 {
			if rates[i] {
				size.Rate[i] = given.Rate[i]
			}
			if bursts[i] {
				size.Burst[i] = given.Burst[i]
			}
		}
	} else if !rates[0] || !bursts[0] {
		return fmt.Errorf("%w: give its rate and its burst", missing)
	}
	return printDone(s, shared.SetBudget(ctx, c, name, size), "budget %s: rate %s, burst %s for all hosts\n",
		name, u.Rates(size), u.Bursts(size))
}

// packetRate matches a rate in packets, such as rate=100p/1s.
var packetRate = pattern.Lazy(`=[0-9.]+ ?p/`)

// parseSize reads parameters such as rate=10mbit. rates and bursts report which were given.
func parseSize(u budgets.Unit, assigns []string) (size lease.Amounts, rates, bursts [2]bool, err error) {
	for _, a := range assigns {
		key, value, _ := strings.Cut(a, "=")
		i := 0
		switch key {
		case "pir", "eir", "pbs", "ebs":
			i = 1
		}
		switch key {
		case "rate", "cir", "pir", "eir":
			var r meter.Rate
			if r, err = u.ParseRate(value); err == nil {
				size.Rate[i], rates[i] = compiled.LimitsOf(meter.TokenBucket{Rate: r})[0].Rate, true
			}
		case "burst", "cbs", "pbs", "ebs":
			size.Burst[i], err = u.ParseBurst(value)
			bursts[i] = true
		default:
			err = errors.New("unknown parameter: want rate, burst, cir, cbs, pir, pbs, eir or ebs")
		}
		if err != nil {
			return size, rates, bursts, cli.Usagef("%s: %w", a, err)
		}
	}
	return size, rates, bursts, nil
}
