package main

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/changes"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/control"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/live"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/remote"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
)

// customerFlags choose a running shaper, and how it is reached.
type customerFlags struct {
	live.Flags
	from remote.Flag

	anyDirection bool // a direction does not matter, because customers are only looked up
}

func (f *customerFlags) add(cmd *cobra.Command) {
	f.Flags.Add(cmd)
	f.from.Add(cmd)
}

// runningCustomers are the customers of a running shaper.
type runningCustomers struct {
	change func([]live.CustomerItem) (control.CustomerEffects, error)
	each   func(live.CustomerQuery, func(*live.CustomerTerms) error) (keys []string, err error)
	// changes returns the changes in force, by shaper set, quotas and schedules
	changes func() ([]remote.InterfaceChanges, error)
	close   func()
}

// choose finds the customers of the shapers of an interface, or through a control socket.
func (f *customerFlags) choose(cmd *cobra.Command, name string) (*runningCustomers, error) {
	c, err := f.from.Client()
	if err != nil {
		return nil, err
	}
	ctx := cmd.Context()
	if c != nil {
		const both = "both directions have the same customers"
		if err := c.Refuse(cmd, both, "direction"); err != nil && !f.anyDirection {
			return nil, err
		}
		t := remote.Target{Flags: &f.Flags, Name: name}
		return &runningCustomers{
			func(items []live.CustomerItem) (control.CustomerEffects, error) {
				return c.ChangeCustomers(ctx, &t, items)
			},
			func(q live.CustomerQuery, each func(*live.CustomerTerms) error) ([]string, error) {
				return c.EachCustomer(ctx, &t, q, each)
			},
			func() ([]remote.InterfaceChanges, error) { return c.Changes(ctx, &t) },
			func() {},
		}, nil
	}
	shapers, err := f.Choose(name)
	if err != nil {
		return nil, err
	}
	return &runningCustomers{
		func(items []live.CustomerItem) (control.CustomerEffects, error) {
			reply, err := live.ChangeCustomers(shapers, live.CustomerRequest{
				Items: items, Author: live.Author("shaper customer"),
			})
			return control.EffectsOf(&reply), err
		},
		func(q live.CustomerQuery, each func(*live.CustomerTerms) error) ([]string, error) {
			return live.EachCustomer(ctx, shapers, q, each)
		},
		func() ([]remote.InterfaceChanges, error) {
			all, err := changesIn(shapers)
			return []remote.InterfaceChanges{all}, err
		},
		func() { live.CloseAll(shapers) },
	}, nil
}

// liveCustomerCommands returns the commands of customers that need a running shaper.
func liveCustomerCommands(s cli.Streams) []*cobra.Command {
	return []*cobra.Command{newCustomerAdd(s), newCustomerRemove(s), newCustomerList(s), newCustomerExport(s)}
}

func newCustomerAdd(s cli.Streams) *cobra.Command {
	var f customerFlags
	var file string
	patch, asJSON := false, false
	cmd := &cobra.Command{
		Use:   customerAdd.use,
		Short: customerAdd.short,
		Long: `Add a customer, or replace one with the same name: then it keeps its tokens and
its counters. A customer that is already like that stays unchanged. COLUMN=VALUE is
as in the file of customers of the policy: plan=gold, address=192.0.2.7, a
parameter such as rate=50mbit, or quota=500GB. With idle=10min the customer is
removed after that time without a packet. With --file, all customers of a file in
the format of a file of customers are added, or none.`,
		Example: `  shaper customer add eth0 alice address=192.0.2.7 plan=gold
  shaper customer add eth0 session-17 address="192.0.2.8 2001:db8:8::/64" plan=home rate=50mbit idle=10min
  shaper customer add eth0 alice --patch plan=silver
  shaper customer add eth0 --file new.csv`,
		Args: cli.WantArgs(1, math.MaxInt, "an interface"),
		RunE: func(cmd *cobra.Command, args []string) error {
			items, err := addedCustomers(args[1:], file)
			if err != nil {
				return err
			}
			for i := range items {
				if patch {
					items[i].Do = live.Patch
				}
			}
			return changeCustomers(cmd, s, &f, items, asJSON)
		},
	}
	f.add(cmd)
	cmd.Flags().StringVar(&file, "file", "", "add the customers of `FILE`, all or none; -: standard input")
	cmd.Flags().BoolVar(&patch, "patch", false,
		"keep all that is not given; the customer must exist, and an empty value removes a parameter")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the effects as JSON, one a line")
	return cmd
}

// addedCustomers returns the customer of the arguments, or those of a file.
func addedCustomers(args []string, file string) ([]live.CustomerItem, error) {
	switch {
	case file != "" && len(args) > 0:
		return nil, cli.Usagef("give a customer or --file, not both")
	case file != "":
		return readCustomers(file)
	case len(args) == 0:
		return nil, cli.Usagef("give a customer, such as alice address=192.0.2.7 plan=gold, or --file")
	}
	item := live.CustomerItem{Name: args[0], Do: live.Put, Cells: map[string]string{}}
	for _, arg := range args[1:] {
		name, value, ok := strings.Cut(arg, "=")
		if _, twice := item.Cells[name]; !ok || name == "" || twice {
			return nil, cli.Usagef("%q: want each COLUMN=VALUE once, such as plan=gold", arg)
		}
		item.Cells[name] = value
	}
	if err := takeIdle(&item); err != nil {
		return nil, &cli.UsageError{Err: err}
	}
	return []live.CustomerItem{item}, nil
}

// takeIdle moves the cell idle to the item's time.
func takeIdle(item *live.CustomerItem) error {
	text, has := item.Cells["idle"]
	if !has {
		return nil
	}
	delete(item.Cells, "idle")
	idle, err := control.ParseIdle(text)
	item.Idle = &idle
	return err
}

// readCustomers reads a file of customers.
func readCustomers(path string) (items []live.CustomerItem, err error) {
	in := io.Reader(os.Stdin)
	if path != "-" {
		file, err := os.Open(path)
		if err != nil {
			return nil, cli.PlainPathError("--file", err)
		}
		defer file.Close()
		in = file
	}
	r := csv.NewReader(in)
	r.TrimLeadingSpace, r.Comment = true, '#'
	rows, err := r.ReadAll()
	if err != nil {
		return nil, fmt.Errorf("--file %s: %w", say.Printable(path), err)
	}
	if len(rows) < 2 {
		return nil, fmt.Errorf("--file %s: want a line with the names of the columns, and customers", say.Printable(path))
	}
	for i := range rows[0] {
		rows[0][i] = strings.ToLower(strings.TrimSpace(rows[0][i]))
	}
	at := slices.Index(rows[0], "customer")
	if at < 0 {
		return nil, fmt.Errorf("--file %s: column customer is missing", say.Printable(path))
	}
	for n, row := range rows[1:] {
		item := live.CustomerItem{Name: strings.TrimSpace(row[at]), Do: live.Put, Cells: map[string]string{}}
		for i, name := range rows[0] {
			if cell := strings.TrimSpace(row[i]); i != at && name != "" && cell != "" {
				if name == "addresses" {
					name = "address"
				}
				item.Cells[name] = cell
			}
		}
		if err := takeIdle(&item); err != nil {
			return nil, fmt.Errorf("--file %s: customer %d: %w", say.Printable(path), n+1, err)
		}
		items = append(items, item)
	}
	return items, nil
}

func newCustomerRemove(s cli.Streams) *cobra.Command {
	var f customerFlags
	reset, asJSON := false, false
	cmd := &cobra.Command{
		Use:   customerRemove.use,
		Short: customerRemove.short,
		Long: `Remove customers, all or none. A customer of the policy's file stays removed when
the policy is reloaded, until the file does not have it any more. With --reset the
customers become as they are in the file; those that it does not have are removed.`,
		Example: "  shaper customer remove eth0 alice",
		Args:    cli.WantArgs(2, math.MaxInt, "an interface and a customer"),
		RunE: func(cmd *cobra.Command, args []string) error {
			verb := live.Remove
			if reset {
				verb = live.Reset
			}
			var items []live.CustomerItem
			for _, name := range args[1:] {
				items = append(items, live.CustomerItem{Name: name, Do: verb})
			}
			return changeCustomers(cmd, s, &f, items, asJSON)
		},
	}
	f.add(cmd)
	cmd.Flags().BoolVar(&reset, "reset", false, "make the customers as in the file of customers, instead")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the effects as JSON, one a line")
	return cmd
}

// changeCustomers makes changes at the interface of the arguments, and prints their effects.
func changeCustomers(
	cmd *cobra.Command, s cli.Streams, f *customerFlags, items []live.CustomerItem, asJSON bool,
) error {
	name := cmd.Flags().Arg(0)
	customers, err := f.choose(cmd, name)
	if err != nil {
		return err
	}
	defer customers.close()
	if len(items) > changes.MaxList {
		return cli.Usagef("more than %d customers: make several files", changes.MaxList)
	}
	reply, err := customers.change(items)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	p := say.NewPrinter(s.Out)
	effects := map[live.CustomerEffect]int{}
	for _, r := range reply.Customers {
		if effects[live.CustomerEffect(r.Done)]++; asJSON {
			p.Err = errors.Join(p.Err, say.WriteJSON(s.Out, r))
		} else if len(items) <= live.ShownChanges {
			p.Printf("%s: customer %s: %s\n", name, say.Printable(r.Name), r.Done)
		}
	}
	if !asJSON && len(items) > live.ShownChanges {
		for _, done := range slices.Sorted(maps.Keys(effects)) {
			p.Printf("%s: %s %s\n", name, say.Count(effects[done], "customer"), done)
		}
	}
	return cli.AfterChange(p.Err)
}

func newCustomerList(s cli.Streams) *cobra.Command {
	var f customerFlags
	q := live.CustomerQuery{}
	added, ofFile, asJSON := false, false, false
	cmd := &cobra.Command{
		Use:   customerList.use,
		Short: customerList.short,
		Example: `  shaper customer list eth0 --added
  shaper customer list eth0 --plan gold --filter smith`,
		Args: cli.WantArgs(1, 1, "an interface"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if added && ofFile {
				return cli.Usagef("give --added or --of-file, not both")
			}
			if added || ofFile {
				q.Added = &added
			}
			customers, err := f.choose(cmd, args[0])
			if err != nil {
				return err
			}
			defer customers.close()
			p, n := say.NewPrinter(s.Out), 0
			_, err = customers.each(q, func(t *live.CustomerTerms) error {
				if n++; asJSON {
					return say.WriteJSON(s.Out, control.TermsOf(t))
				}
				line := say.Printable(t.Name)
				for _, name := range slices.Sorted(maps.Keys(t.Cells)) {
					line += fmt.Sprintf("  %s=%s", name, say.Printable(t.Cells[name]))
				}
				if t.Added {
					line += "  (" + sourceOf(t) + ")"
				}
				p.Printf("%s\n", line)
				return p.Err
			})
			if err == nil && n == 0 && !asJSON {
				p.Printf("%s: no such customers\n", args[0])
			}
			return errors.Join(err, p.Err)
		},
	}
	f.add(cmd)
	cmd.Flags().StringVar(&q.Name, "filter", "", "only names that contain `TEXT`")
	cmd.Flags().StringVar(&q.Plan, "plan", "", "only customers of `PLAN`")
	cmd.Flags().StringVar(&q.Address, "address", "", "only the customer of `ADDRESS`")
	cmd.Flags().BoolVar(&added, "added", false, "only customers that were added or replaced while the shaper ran")
	cmd.Flags().BoolVar(&ofFile, "of-file", false, "only customers of the policy's file")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON, one customer a line")
	return cmd
}

func newCustomerExport(s cli.Streams) *cobra.Command {
	var f customerFlags
	cmd := &cobra.Command{
		Use:   customerExport.use,
		Short: customerExport.short,
		Long: `Print all customers in the format of a file of customers. As the file of the
policy it gives the same customers as those of the running shaper; after a reload
with it, shaper customer remove --reset discards the changes on top of it. Changes
by shaper set are not in it, nor are the times of idle customers.`,
		Example: "  shaper customer export eth0 > customers.csv",
		Args:    cli.WantArgs(1, 1, "an interface"),
		RunE: func(cmd *cobra.Command, args []string) error {
			customers, err := f.choose(cmd, args[0])
			if err != nil {
				return err
			}
			defer customers.close()
			var list []*live.CustomerTerms
			add := func(t *live.CustomerTerms) error {
				list = append(list, t)
				return nil
			}
			keys, err := customers.each(live.CustomerQuery{}, add)
			if err != nil {
				return fmt.Errorf("%s: %w", args[0], err)
			}
			return csv.NewWriter(s.Out).WriteAll(customerRows(list, keys))
		},
	}
	f.add(cmd)
	return cmd
}

// customerRows returns the rows of a file of customers. keys are the columns that it needs for their keys.
func customerRows(list []*live.CustomerTerms, keys []string) [][]string {
	columns := map[string]bool{"plan": true}
	for _, name := range keys {
		columns[name] = true
	}
	for _, t := range list {
		for name := range t.Cells {
			columns[name] = true
		}
	}
	// A file has columns for a rate of both directions, or for each of them.
	for both, each := range map[string][2]string{
		"rate": {"down", "up"}, "guarantee": {"down-guarantee", "up-guarantee"},
	} {
		if !columns[each[0]] && !columns[each[1]] {
			continue
		}
		columns[each[0]], columns[each[1]] = true, true
		delete(columns, both)
		for _, t := range list {
			if cell, has := t.Cells[both]; has {
				t.Cells[each[0]], t.Cells[each[1]] = cell, cell
			}
		}
	}
	names := slices.Sorted(maps.Keys(columns))
	rows := [][]string{append([]string{"customer"}, names...)}
	for _, t := range list {
		row := []string{t.Name}
		for _, name := range names {
			row = append(row, t.Cells[name])
		}
		rows = append(rows, row)
	}
	return rows
}
