package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/changes"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/control"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/live"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/spelling"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/stats"
)

// addLiveShow adds the flags of customer show for a running shaper, and returns a function that prints a
// customer of one.
func addLiveShow(cmd *cobra.Command, s cli.Streams) func(name, customer string, asJSON bool) error {
	var f customerFlags
	f.add(cmd)
	return func(name, customer string, asJSON bool) error {
		customers, err := f.choose(cmd, name)
		if err != nil {
			return err
		}
		defer customers.close()
		return showLiveCustomer(s, customers, name, customer, asJSON)
	}
}

// find returns the customer of a name, or else of an address, or else of another key such as a VLAN ID.
func (c *runningCustomers) find(iface, text string) (*live.CustomerTerms, error) {
	var found *live.CustomerTerms
	query := func(q live.CustomerQuery) (keys []string, err error) {
		keys, err = c.each(q, func(t *live.CustomerTerms) error {
			found = t
			return nil
		})
		if err != nil {
			err = fmt.Errorf("%s: %w", iface, err)
		}
		return keys, err
	}
	keys, err := query(live.CustomerQuery{Exact: text})
	if _, invalid := policyfile.ParseCustomerAddress(text); err == nil && found == nil && invalid == nil {
		_, err = query(live.CustomerQuery{Address: text})
	}
	if err != nil || found != nil {
		return found, err
	}
	var names []string
	_, _ = c.each(live.CustomerQuery{}, func(t *live.CustomerTerms) error { // an error ends the search
		if names = append(names, t.Name); t.HasKey(keys, text) {
			found = t
			return io.EOF
		}
		return nil
	})
	if found != nil {
		return found, nil
	}
	return nil, fmt.Errorf("%s: no customer has the name or the address %s%s", iface, say.Printable(text),
		spelling.DidYouMean(text, names))
}

// liveCustomerJSON is the output of shaper customer show --json for a running shaper.
type liveCustomerJSON struct {
	control.CustomerTerms
	Changes []control.Change `json:"changes"` // in force, by shaper set, quotas and schedules
}

func showLiveCustomer(s cli.Streams, customers *runningCustomers, name, customer string, asJSON bool) error {
	t, err := customers.find(name, customer)
	if err != nil {
		return err
	}
	out := liveCustomerJSON{control.TermsOf(t), []control.Change{}}
	all, err := customers.changes()
	if err != nil { // the customer is known all the same
		fmt.Fprintf(s.Err, "shaper: warning: the changes in force are unknown: %v\n", err)
	}
	for _, at := range all {
		at.Warn(s.Err)
		for i := range at.List {
			if c := &at.List[i]; c.Kind == changes.Customer && c.Name == t.Name {
				out.Changes = append(out.Changes, *c)
			}
		}
	}
	if asJSON {
		return say.WriteJSON(s.Out, out)
	}
	p := say.NewPrinter(s.Out)
	p.Printf("%s\n", say.Printable(t.Name))
	for _, name := range slices.Sorted(maps.Keys(t.Cells)) {
		p.Printf("  %-9s %s\n", name, say.Printable(t.Cells[name]))
	}
	p.Printf("  %-9s %s\n", "source", sourceOf(t))
	for i := range out.Changes {
		p.Printf("  %-9s %s\n", "changed", stats.ChangeWords(&out.Changes[i]))
	}
	if t.Idle > 0 {
		p.Printf("  %-9s removed after %s without a packet\n", "idle", policyfile.FormatDuration(t.Idle, time.Hour))
	}
	return p.Err
}

// sourceOf says where the terms of a customer come from.
func sourceOf(t *live.CustomerTerms) string {
	if !t.Added {
		return "the file of customers"
	}
	out := "added"
	if by := t.Author.String(); by != "" {
		out += " by " + say.Printable(by)
	}
	if !t.Since.IsZero() {
		out += t.Since.Local().Format(", 2006-01-02 15:04:05")
	}
	return out
}
