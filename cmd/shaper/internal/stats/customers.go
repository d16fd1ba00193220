package stats

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sort"
	"time"

	"github.com/spf13/cobra"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/live"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// CustomerFlags are the flags of stats --customers.
type CustomerFlags struct {
	on  bool
	Top int
	By  string
	One string // name of the only customer; "": all
}

// Add adds the flags to a command.
func (c *CustomerFlags) Add(cmd *cobra.Command) {
	f := cmd.Flags()
	f.BoolVar(&c.on, "customers", false, "show the counters of customers instead, or of the CUSTOMER after IFACE")
	f.IntVar(&c.Top, "top", 20, "with --customers, show the first `N` customers; 0: all")
	f.StringVar(&c.By, "by", "bytes", "with --customers, sort by `COUNTER`: bytes, dropped or rate")
}

// Given reports whether --customers was given, and checks the other flags.
func (c *CustomerFlags) Given(cmd *cobra.Command) (bool, error) {
	switch {
	case !c.on && (cmd.Flags().Changed("top") || cmd.Flags().Changed("by")):
		return false, cli.Usagef("--top and --by need --customers")
	case c.Top < 0:
		return false, cli.Usagef("--top %d: want 0 or more", c.Top)
	case c.By != "bytes" && c.By != "dropped" && c.By != "rate":
		return false, cli.Usagef("--by %q: want bytes, dropped or rate", c.By)
	}
	return c.on, nil
}

// CustomerList is the output of stats --customers --json, one line per shaper.
type CustomerList struct {
	Interface string `json:"interface"`
	Direction string `json:"direction"`
	Number    int    `json:"number"` // of all customers
	// the rates are averages over this time; 0 without rates
	Interval time.Duration   `json:"rate_interval_ns,omitempty"`
	List     []CustomerStats `json:"customers"` // the first of them
}

// CustomerStats are the counters of a customer.
type CustomerStats struct {
	Name string `json:"name"`
	Plan string `json:"plan"`
	Rate *int64 `json:"rate_bit_s,omitempty"` // with --by rate
	CustomerCounts
}

// CustomerCounts are the packets of a customer, by color.
type CustomerCounts struct {
	dataplane.Count
	Green   dataplane.Count `json:"green"`
	Yellow  dataplane.Count `json:"yellow"`
	Red     dataplane.Count `json:"red"`
	Dropped dataplane.Count `json:"dropped"`
}

// CountsOf returns the counts of a customer.
func CountsOf(c *dataplane.CustomerStats) CustomerCounts {
	return CustomerCounts{
		Count: c.Total(), Dropped: c.Dropped, Green: c.Colors[meter.Green], Yellow: c.Colors[meter.Yellow],
		Red: c.Colors[meter.Red],
	}
}

// ShowCustomers prints the counters of customers.
func ShowCustomers(
	ctx context.Context, s cli.Streams, f *live.Flags, name string, flags CustomerFlags, asJSON bool,
) error {
	list, err := f.Choose(name)
	if err != nil {
		return err
	}
	defer live.CloseAll(list)
	p, all := say.NewPrinter(s.Out), []CustomerList(nil)
	for _, sh := range list {
		out, err := flags.read(ctx, sh)
		if err != nil {
			return fmt.Errorf("%s: %w", live.Name(sh.Info()), err)
		}
		if all = append(all, out); asJSON {
			p.Err = errors.Join(p.Err, say.WriteJSON(s.Out, out))
		}
	}
	if !asJSON {
		PrintCustomers(p, all)
	}
	return p.Err
}

// PrintCustomers prints lists of customers for people.
func PrintCustomers(p *say.Printer, all []CustomerList) {
	for i, list := range all {
		if i > 0 {
			p.Printf("\n")
		}
		printCustomers(p, list)
	}
}

// read reads the customers of a shaper, sorts them and keeps the first.
func (c *CustomerFlags) read(ctx context.Context, sh live.Handle) (CustomerList, error) {
	r, err := c.Rank(ctx, sh.Info(), sh.Customers)
	if err != nil {
		return CustomerList{}, err
	}
	out := r.Head
	for i := range r.Order {
		out.List = append(out.List, r.Row(i))
	}
	return out, nil
}

// RankedCustomers are the first customers of a shaper.
type RankedCustomers struct {
	Head  CustomerList // without the list
	Order []ranked
	rates bool
}

// Rank sorts customers returned by read, and keeps the first.
func (c *CustomerFlags) Rank(
	ctx context.Context, about *kernel.About, read func() (int64, []live.Customer, error),
) (out RankedCustomers, err error) {
	at, list, err := read()
	if err != nil {
		return out, err
	}
	out.rates = c.By == "rate"
	out.Head = CustomerList{
		Interface: about.Interface, Direction: about.Direction.String(), Number: len(list),
		List: []CustomerStats{},
	}
	if c.One != "" {
		all := read
		read = func() (int64, []live.Customer, error) {
			at, list, err := all()
			i := slices.IndexFunc(list, func(row live.Customer) bool { return row.Name == c.One })
			if err != nil || i < 0 {
				return at, nil, err
			}
			return at, list[i : i+1], nil
		}
		list = slices.DeleteFunc(list, func(row live.Customer) bool { return row.Name != c.One })
		out.Head.Number = len(list)
	}
	var before map[string]dataplane.Count
	if out.rates {
		before = make(map[string]dataplane.Count, len(list))
		for i := range list {
			before[list[i].Name] = list[i].Total()
		}
		select {
		case <-ctx.Done():
			return out, context.Cause(ctx)
		case <-time.After(kernel.MinReadingAge):
		}
		begin := at
		if at, list, err = read(); err != nil {
			return out, err
		}
		out.Head.Interval = time.Duration(at - begin)
	}
	first := firsts{most: c.Top}
	for i := range list {
		customer := &list[i]
		by := customer.Total().Bytes
		switch c.By {
		case "dropped":
			by = customer.Dropped.Bytes
		case "rate":
			by = BitRate(before[customer.Name], customer.Total(), out.Head.Interval)
		}
		first.add(ranked{customer, by})
	}
	order := first.sorted()
	if len(order) < len(list) {
		for i := range order { // to let the others be freed
			customer := *order[i].customer
			order[i].customer = &customer
		}
	}
	out.Order = order
	return out, nil
}

// Row returns a row of the output.
func (r *RankedCustomers) Row(i int) CustomerStats {
	c := &r.Order[i]
	out := CustomerStats{
		Name: c.customer.Name, Plan: c.customer.Plan, CustomerCounts: CountsOf(&c.customer.CustomerStats),
	}
	if r.rates {
		out.Rate = &c.by
	}
	return out
}

// ranked is a customer with its number for sorting.
type ranked struct {
	customer *live.Customer
	by       int64
}

// firsts selects the first customers of a list, those with the largest numbers. It sorts them only
// when they are twice as many as needed.
type firsts struct {
	most int // maximum number of customers; 0: no maximum
	list []ranked
	cut  bool // others were left out: those with no larger number than list[most-1]
}

func (f *firsts) add(c ranked) {
	if f.cut && c.by <= f.list[f.most-1].by {
		return
	}
	f.list = append(f.list, c)
	if f.most > 0 && len(f.list) >= 2*f.most {
		f.list, f.cut = f.sorted(), true
	}
}

// sorted returns the first customers. Those with equal numbers stay in the order of the calls.
func (f *firsts) sorted() []ranked {
	sort.SliceStable(f.list, func(i, j int) bool { return f.list[i].by > f.list[j].by })
	if f.most > 0 && len(f.list) > f.most {
		return f.list[:f.most]
	}
	return f.list
}

// printCustomers prints customers as a table.
func printCustomers(p *say.Printer, c CustomerList) {
	p.Printf("%s %s: %s\n", c.Interface, c.Direction, say.Count(c.Number, "customer"))
	g := &say.Table{Header: []any{
		"customer", "plan", "packets", "bytes", "green\nbytes", "yellow\nbytes", "red\nbytes",
		"dropped\npackets",
	}, First: 3, Names: []int{0, 1}}
	if c.Interval > 0 {
		p.Printf("  rates    over the last %v\n", c.Interval.Round(10*time.Millisecond))
		g.Header = append(g.Header, "bit/s")
	}
	for _, row := range c.List {
		cells := []any{
			say.Printable(row.Name), row.Plan, say.Number(row.Packets), say.Number(row.Bytes),
			say.Number(row.Green.Bytes), say.Number(row.Yellow.Bytes), say.Number(row.Red.Bytes),
			say.Number(row.Dropped.Packets),
		}
		if row.Rate != nil {
			cells = append(cells, say.Number(*row.Rate))
		}
		g.Add(cells...)
	}
	p.Table(g)
	if more := c.Number - len(c.List); more > 0 {
		p.Printf("and %s (--top 0 shows all)\n", say.Count(more, "more customer"))
	}
}
