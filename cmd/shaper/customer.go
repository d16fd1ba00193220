package main

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/check"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/spelling"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
)

func newCustomer(s cli.Streams) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "customer",
		GroupID: "shape",
		Short:   "Show customers, and add, remove and list them while they are shaped",
		Long: `Show a customer of a policy, or of a running shaper. Add and remove customers
while a shaper runs: nothing is reloaded, and other customers are not affected.
The file of customers of the policy is the base, and these changes are on top of
it: they stay in force when the policy is reloaded, and, with --state, after a
restart.`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newCustomerShow(s))
	cmd.AddCommand(liveCustomerCommands(s)...)
	return cmd
}

// customerShow holds the flags of shaper customer show.
type customerShow struct {
	policy string
	json   bool
}

func newCustomerShow(s cli.Streams) *cobra.Command {
	var f customerShow
	cmd := &cobra.Command{
		Use:   "show CUSTOMER --policy FILE | IFACE CUSTOMER",
		Short: "Show whose an address is: the customer, its plan and its rates",
		Long: `Show a customer of a policy, with its line in the file of customers, or one of a
running shaper, with who added it. CUSTOMER is a name, an address, a VLAN ID, or
two of them such as 100,7, depending on the key of customers. An address belongs
to the customer with the longest prefix that contains it. A name precedes an
address.

The exit code is 1 if there is no such customer, and 2 if the policy or the
command line has an error.`,
		Example: `  shaper customer show 192.0.2.11 --policy docs/isp.yaml
  shaper customer show "Example, Inc." --policy docs/isp.yaml
  shaper customer show eth0 100.64.0.1`,
		Args: cli.WantArgs(1, 2, "a customer, or an interface and a customer"),
	}
	running := addLiveShow(cmd, s)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		switch {
		case f.policy != "" && cmd.Flags().Changed("direction"):
			return cli.Usagef("--direction is for a running shaper: a customer of a policy has both directions")
		case len(args) == 2 && f.policy != "":
			return cli.Usagef("give an interface or --policy FILE, not both")
		case len(args) == 2:
			return running(args[0], args[1], f.json)
		case f.policy == "":
			return cli.Usagef("give --policy FILE, or an interface before the customer")
		}
		return f.run(s, args[0])
	}
	cmd.Flags().StringVarP(&f.policy, "policy", "p", "", "show a customer of the policy in `FILE` (YAML)")
	cmd.Flags().BoolVar(&f.json, "json", false, "print JSON")
	return cmd
}

func (f *customerShow) run(s cli.Streams, text string) error {
	policy, err := (&cli.PolicyFlags{File: f.policy}).Load()
	if err != nil {
		return err
	}
	if policy.Plan.Customers == nil {
		return cli.Usagef("%s has no customers", f.policy)
	}
	found, err := findCustomer(policy.Plan.Customers, text)
	if err != nil {
		return err
	}
	if f.json {
		err = say.WriteJSON(s.Out, found.toJSON(policy))
	} else {
		err = found.write(s, policy)
	}
	if err == nil && found.number == 0 {
		return cli.ErrNothing
	}
	return err
}

// foundCustomer is the result of a search.
type foundCustomer struct {
	text   string       // what was searched
	number uint32       // from 1; 0: none
	prefix netip.Prefix // of an address that was searched
}

// findID returns the number of the customer with a key as it is printed, such as a MAC address, or 0.
func findID(c *compiled.Customers, text string) uint32 {
	first, second, two := strings.Cut(text, ",")
	if text = strings.TrimSpace(first); two {
		text += ", " + strings.TrimSpace(second)
	}
	if n, err := strconv.ParseUint(text, 0, 64); err == nil {
		text = strconv.FormatUint(n, 10)
	}
	for i := range c.Source.List {
		for _, id := range c.Source.List[i].IDs {
			if strings.EqualFold(c.Source.IDText(id), text) {
				return uint32(i + 1)
			}
		}
	}
	return 0
}

// findCustomer finds the customer of a name, or else of an address or VLAN.
func findCustomer(c *compiled.Customers, text string) (f foundCustomer, err error) {
	f.text = text
	if f.number = c.Number(text); f.number != 0 {
		return f, nil
	}
	near := func() string { return spelling.DidYouMean(text, c.Names()) }
	switch c.Key {
	case dataplane.ByOuterVLAN:
		if id, ok := vlanNumber(text); ok {
			f.number = c.ByID(uint64(id))
			return f, nil
		}
		return f, fmt.Errorf("no customer is named %q, and it is not a VLAN ID from 0 to 4095%s", text, near())
	case dataplane.ByTwoVLANs:
		outer, inner, _ := strings.Cut(text, ",")
		first, ok := vlanNumber(strings.TrimSpace(outer))
		second, both := vlanNumber(strings.TrimSpace(inner))
		if ok && both {
			f.number = c.ByID(uint64(first<<12 | second))
			return f, nil
		}
		return f, fmt.Errorf("no customer is named %q, and it is not two VLAN IDs such as 100,7%s", text, near())
	}
	if !c.Key.ByAddress() {
		f.number = findID(c, text)
		return f, nil
	}
	addr, err := netip.ParseAddr(text)
	switch {
	case err != nil:
		return f, fmt.Errorf("no customer is named %q, and it is not an address such as 192.0.2.1%s", text, near())
	case addr.Zone() != "":
		return f, cli.Usagef("%q has a zone: give the address without it", text)
	}
	addr = addr.Unmap()
	if f.number = c.ByAddress(addr); f.number != 0 {
		for _, p := range c.Source.List[f.number-1].Prefixes {
			if p.Contains(addr) && (!f.prefix.IsValid() || p.Bits() > f.prefix.Bits()) {
				f.prefix = p
			}
		}
	}
	return f, nil
}

// vlanNumber reads a VLAN ID.
func vlanNumber(s string) (uint32, bool) {
	id, err := strconv.ParseUint(s, 10, 12)
	return uint32(id), err == nil
}

// mostShown is the maximum number of addresses printed as text.
const mostShown = 20

// write prints the customer as text.
func (f *foundCustomer) write(s cli.Streams, policy *policyfile.Compiled) error {
	p := say.NewPrinter(s.Out)
	if f.number == 0 {
		p.Printf("nobody: %s belongs to no customer, so its packets skip the classes with per: customer\n", f.text)
		return p.Err
	}
	c := &policy.Policy.Customers.List[f.number-1]
	p.Printf("customer %s\n", say.Printable(c.Name))
	width, parts := 0, f.parts(policy, c)
	for _, part := range parts {
		width = max(width, len(part.Key))
	}
	for _, part := range parts {
		p.Printf("  %-*s  %s\n", width, part.Key, part.Text)
	}
	return p.Err
}

// parts describes the customer.
func (f *foundCustomer) parts(policy *policyfile.Compiled, c *dataplane.Customer) []say.Part {
	parts := []say.Part{{Key: "place", Text: policy.Place(c, "")}}
	if f.prefix.IsValid() {
		at := fmt.Sprintf("%s is in %s", f.text, prefixText(f.prefix))
		parts = append(parts, say.Part{Key: "match", Text: at})
	}
	key, list := "addresses", prefixTexts(c.Prefixes)
	if from := policy.Policy.Customers; !from.Key.ByAddress() {
		key, list = idsName(from.Key), idTexts(from, c)
	}
	if more := len(list) - mostShown; more > 0 {
		list = append(list[:mostShown:mostShown], say.Count(more, "other"))
	}
	if list == nil {
		list = []string{"none, so it gets no packets"}
	}
	parts = append(parts, say.Part{Key: key, Text: strings.Join(list, ", ")})

	plan, own := c.Plan.Name, policy.OwnParameters(c.Plan)
	for _, name := range slices.Sorted(maps.Keys(own)) {
		plan += fmt.Sprintf(", own %s %s", name, own[name])
	}
	parts = append(append(parts, say.Part{Key: "plan", Text: plan}), check.PlanParts(policy.Policy, c.Plan)...)
	if q := policy.QuotaOf(c.Name, c.Plan.Name); q != nil {
		text := fmt.Sprintf("%s B every %s, then plan %s", say.Grouped(q.Limit), q.Every, q.Then)
		parts = append(parts, say.Part{Key: "quota", Text: text})
	}
	return parts
}

// customerShowJSON is the output of customer show --json.
type customerShowJSON struct {
	Search    string            `json:"search"`
	Customer  *string           `json:"customer"` // null: nobody
	Place     string            `json:"place,omitempty"`
	Match     string            `json:"match,omitempty"` // prefix that contains the address
	Addresses []string          `json:"addresses,omitempty"`
	IDs       []string          `json:"ids,omitempty"` // VLAN IDs, for two tags such as 100,7; MACs; others
	Plan      string            `json:"plan,omitempty"`
	Own       map[string]string `json:"own_parameters,omitempty"`
	Quota     int64             `json:"quota_bytes,omitempty"`

	*check.PlanJSON
}

func (f *foundCustomer) toJSON(policy *policyfile.Compiled) customerShowJSON {
	out := customerShowJSON{Search: f.text}
	if f.number == 0 {
		return out
	}
	c := &policy.Policy.Customers.List[f.number-1]
	out.Customer, out.Place, out.Plan = &c.Name, policy.Place(c, ""), c.Plan.Name
	if f.prefix.IsValid() {
		out.Match = prefixText(f.prefix)
	}
	out.Addresses, out.IDs = prefixTexts(c.Prefixes), idTexts(policy.Policy.Customers, c)
	out.Own = policy.OwnParameters(c.Plan)
	if q := policy.QuotaOf(c.Name, c.Plan.Name); q != nil {
		out.Quota = q.Limit
	}
	plan := check.NewPlanJSON(policy.Policy, c.Plan)
	out.PlanJSON = &plan
	return out
}

func prefixTexts(list []netip.Prefix) (out []string) {
	for _, p := range list {
		out = append(out, prefixText(p))
	}
	return out
}

// prefixText writes a prefix, or a single address without its length.
func prefixText(p netip.Prefix) string {
	if p.IsSingleIP() {
		return p.Addr().String()
	}
	return p.String()
}

// idTexts writes the numbers of a customer: VLAN IDs, for two tags such as 100,7, MAC addresses and others.
func idTexts(from *dataplane.Customers, c *dataplane.Customer) (out []string) {
	for _, id := range c.IDs {
		out = append(out, strings.ReplaceAll(from.IDText(id), ", ", ","))
	}
	return out
}

// idsName is the title of idTexts.
func idsName(k dataplane.CustomerKey) string {
	switch k {
	case dataplane.ByOuterVLAN, dataplane.ByTwoVLANs:
		return "vlans"
	case dataplane.CustomerByMAC, dataplane.CustomerByVLANMAC:
		return "macs"
	}
	return k.String() + "s"
}
