package compiled

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// maxCustomerErrors bounds the memory of the errors in the list of customers. A list with the wrong
// column would have a million; those beyond the bound are counted.
const maxCustomerErrors = 100_000

// compileCustomers compiles the customer table and the plans. The addresses are those of another
// direction, unless that is nil.
func (c *compiler) compileCustomers(from *dataplane.Customers, other *Customers) {
	if from == nil {
		return
	}
	out := &Customers{Key: from.Key, Source: from}
	if other != nil {
		out.Of, out.numbers, out.table = other.Of, other.numbers, other.table
	} else {
		out.Of, out.numbers = make([]uint32, len(from.List)), make(map[string]uint32, len(from.List))
	}
	c.plan.Customers = out
	out.Packets = slices.ContainsFunc(c.plan.Stages, func(s Stage) bool { return s.Customers && s.Packets })
	switch {
	case from.Key > dataplane.CustomerByCgroup:
		c.add(from, "key", "is unknown: use ByInside, BySource, ByDestination, ByOuterVLAN, ByTwoVLANs, CustomerByMAC, CustomerByVLANMAC, CustomerByVNI, CustomerByTEID, CustomerByInner, CustomerByMark or CustomerByCgroup")
		return
	case len(from.List) > dataplane.MaxCustomers:
		c.add(from, "file",
			fmt.Sprintf("has %d customers: at most %d are allowed", len(from.List), dataplane.MaxCustomers))
		return
	}
	if from.Nested && !from.Key.ByAddress() {
		c.add(from, "nested", "is only for customers known by address")
	}
	indexes := map[*dataplane.ServicePlan]uint32{}
	indexOf := func(p *dataplane.ServicePlan) uint32 {
		i, ok := indexes[p]
		if !ok {
			i = uint32(len(out.Plans))
			indexes[p] = i
			out.Plans = append(out.Plans, c.compileService(p))
		}
		return i
	}
	c.findTemplates(from)
	names := map[string]bool{}
	for _, p := range from.Plans {
		if names[p.Name] {
			c.add(p, "name", fmt.Sprintf("%q is the name of an earlier plan: plan names must differ", p.Name))
		}
		names[p.Name] = true
		indexOf(p)
	}
	if other != nil { // in the order of its plans
		for i := range from.List {
			indexOf(from.List[i].Plan)
		}
		c.plantCustomers(out)
		return
	}
	c.checkCgroups(from)
	prefixes, ids := 0, 0
	for i := range from.List {
		prefixes, ids = prefixes+len(from.List[i].Prefixes), ids+len(from.List[i].IDs)
	}
	out.table.ids = newNumberTable[uint64](ids)
	table := tableBuilder{compiler: c, out: out, prefixes: make([]owned, 0, prefixes)}
	for i := range from.List {
		customer := &from.List[i]
		table.add(customer, uint32(i+1))
		if customer.Plan == nil {
			table.fail(customer, "plan", "is missing: name one")
		} else {
			if needsLink(customer.Plan) {
				table.fail(customer, "link", linkMissing)
			}
			out.Of[i] = indexOf(customer.Plan)
		}
	}
	table.finish(from.Nested)
	if more := table.errors - maxCustomerErrors; more > 0 {
		c.add(from, "file", fmt.Sprintf("has %d more errors in its customers", more))
	}
	c.plantCustomers(out)
}

// findTemplates finds the plans with queues without a link that customers have only with one of their own.
func (c *compiler) findTemplates(from *dataplane.Customers) {
	if !c.plan.Source.CustomersOnLinks() {
		return
	}
	used := map[*dataplane.ServicePlan]bool{}
	for i := range from.List {
		used[from.List[i].Plan] = true
	}
	c.templates = map[*dataplane.ServicePlan]bool{}
	for _, p := range from.Plans {
		c.templates[p] = p.Queue != nil && p.Link == nil && !used[p]
	}
}

// plantCustomers puts the customers with queues on links into their trees. If there are any, all links
// of the policy are compiled, because a customer can move to any.
func (c *compiler) plantCustomers(out *Customers) {
	onLinks := func(s Service) bool { return s.Tree >= 0 && s.Source.Link != nil }
	if slices.ContainsFunc(out.Plans, onLinks) {
		for _, l := range c.plan.Source.Links {
			c.compileLink(l)
		}
	}
	for i, at := range out.Of {
		if int(at) < len(out.Plans) && out.Plans[at].Tree >= 0 {
			tree := &c.plan.Trees[out.Plans[at].Tree]
			tree.Customers = append(tree.Customers, uint32(i+1))
		}
	}
}

// tableBuilder fills the table of Customers and checks the customers.
type tableBuilder struct {
	*compiler
	out      *Customers
	prefixes []owned
	errors   int
}

// owned is a prefix of a customer.
type owned struct {
	netip.Prefix
	number uint32
}

// fail adds an error of a customer, unless there are too many.
func (b *tableBuilder) fail(customer *dataplane.Customer, field, reason string) {
	b.failBy(customer, 0, field, reason, "")
}

// failBy is fail for a conflict with another customer, by number.
func (b *tableBuilder) failBy(customer *dataplane.Customer, other uint32, field, reason, remedy string) {
	if b.errors++; b.errors > maxCustomerErrors {
		return
	}
	e := &dataplane.FieldError{Object: customer, Field: field, Reason: reason, Remedy: remedy}
	if other > 0 {
		e.Other = &b.out.Source.List[other-1]
	}
	b.errorList = append(b.errorList, e)
}

// add adds a customer.
func (b *tableBuilder) add(customer *dataplane.Customer, number uint32) {
	name := customer.Name
	switch other := b.out.numbers[name]; {
	case name == "":
		b.fail(customer, "customer", "is empty: give the customer a name")
	case utf8.RuneCountInString(name) > dataplane.MaxCustomerName ||
		strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) }):
		b.fail(customer, "customer", fmt.Sprintf("%.80q is not a name of 1 to %d printable characters", name,
			dataplane.MaxCustomerName))
	case other != 0:
		b.failBy(customer, other, "customer", fmt.Sprintf("%q is the name of an earlier customer", name),
			"names must differ")
	}
	b.out.numbers[name] = number
	if !b.out.Key.ByAddress() {
		b.addIDs(customer, number)
		return
	}
	if len(customer.IDs) > 0 {
		b.fail(customer, "ids", "are given, but customers are known by address")
	}
	for _, p := range customer.Prefixes {
		switch a := p.Addr(); {
		case !p.IsValid():
			b.fail(customer, "address", "contains an invalid prefix")
		case a.Is4In6() || a.Zone() != "":
			b.fail(customer, "address", fmt.Sprintf("%v is not a plain IPv4 or IPv6 prefix", p))
		case p != p.Masked():
			b.fail(customer, "address", fmt.Sprintf("%v has bits after its length: write %v", p, p.Masked()))
		default:
			b.prefixes = append(b.prefixes, owned{p, number})
		}
	}
}

// checkCgroups adds the errors of the cgroups of customers.
func (c *compiler) checkCgroups(from *dataplane.Customers) {
	if len(from.Cgroups) > 0 && from.Key != dataplane.CustomerByCgroup {
		c.add(from, "cgroups", "are given, but customers are known by "+from.Key.String())
	}
	seen := make(map[string]bool, len(from.Cgroups))
	for _, name := range from.Cgroups {
		if reason := dataplane.InvalidCgroup(name); reason != "" {
			c.add(from, "cgroup", fmt.Sprintf("%.200q %s", name, reason))
		}
		if seen[name] {
			c.add(from, "cgroup", fmt.Sprintf("%.200q is listed twice", name))
		}
		seen[name] = true
	}
}

// idLimits are the field and the largest number of the IDs of customers, by key.
var idLimits = map[dataplane.CustomerKey]struct {
	field   string
	largest uint64
}{
	dataplane.ByOuterVLAN:       {"vlan", 1<<12 - 1},
	dataplane.ByTwoVLANs:        {"vlan", 1<<24 - 1},
	dataplane.CustomerByMAC:     {"mac", dataplane.MaxMAC},
	dataplane.CustomerByVLANMAC: {"mac", 1<<60 - 1},
	dataplane.CustomerByVNI:     {"vni", 1<<24 - 1},
	dataplane.CustomerByTEID:    {"teid", 1<<32 - 1},
	dataplane.CustomerByMark:    {"mark", 1<<32 - 1},
}

// addIDs adds the IDs of a customer.
func (b *tableBuilder) addIDs(customer *dataplane.Customer, number uint32) {
	table := &b.out.table.ids
	if len(customer.Prefixes) > 0 {
		b.fail(customer, "address", "is given, but customers are known by "+b.out.Key.String())
	}
	limit, known := idLimits[b.out.Key]
	if !known {
		limit.field, limit.largest = "cgroup", uint64(len(b.out.Source.Cgroups))-1
	}
	for _, id := range customer.IDs {
		switch other := table.find(id, mix(id)); {
		case !known && len(b.out.Source.Cgroups) == 0:
			b.fail(customer, "cgroup", fmt.Sprintf("%d is no index of a cgroup: there are none", id))
			continue
		case id > limit.largest:
			b.fail(customer, limit.field, fmt.Sprintf("%d is above %d", id, limit.largest))
			continue
		case other != 0 && other != number:
			b.failBy(customer, other, limit.field, fmt.Sprintf("%s belongs to customer %q too",
				b.out.Source.IDText(id), b.name(other)), "")
		}
		table.set(id, mix(id), number)
	}
}

// name returns the name of a customer.
func (b *tableBuilder) name(number uint32) string { return b.out.Source.List[number-1].Name }

// finish checks that prefixes of different customers do not overlap, and makes the table of
// prefixes.
func (b *tableBuilder) finish(nested bool) {
	slices.SortFunc(b.prefixes, func(x, y owned) int {
		return cmp.Or(x.Addr().Compare(y.Addr()), cmp.Compare(x.Bits(), y.Bits()),
			cmp.Compare(x.number, y.number))
	})
	// the prefixes that contain the current one, the innermost last
	var around []owned
	v4, v6, nets := map[int]int{}, map[int]int{}, map[int]int{} // prefixes by length
	for _, p := range b.prefixes {
		for len(around) > 0 && !around[len(around)-1].Overlaps(p.Prefix) {
			around = around[:len(around)-1]
		}
		if len(around) > 0 {
			outer := around[len(around)-1]
			switch {
			case outer.number == p.number:
			case outer.Prefix == p.Prefix:
				b.failBy(&b.out.Source.List[p.number-1], outer.number, "address",
					fmt.Sprintf("%v belongs to customer %q too", printPrefix(p.Prefix), b.name(outer.number)), "")
			case !nested:
				b.failBy(&b.out.Source.List[p.number-1], outer.number, "address",
					fmt.Sprintf("%v lies inside %v of customer %q", printPrefix(p.Prefix), outer.Prefix,
						b.name(outer.number)), "set nested: true to allow it")
			}
		}
		around = append(around, p)
		switch {
		case p.Addr().Is4():
			v4[p.Bits()]++
		case p.Bits() > 64:
			v6[p.Bits()]++
		default:
			nets[p.Bits()]++
		}
	}
	t := &b.out.table
	t.v4 = newLengths(v4, func(bits int) uint32 { return dataplane.Key{V4: uint8(bits)}.Mask4() })
	t.v6 = newLengths(v6, func(bits int) dataplane.Addr { return dataplane.Key{V6: uint8(bits)}.Mask6() })
	t.nets = newLengths(nets, func(bits int) uint64 { return ^uint64(0) << (64 - bits) })
	for _, p := range b.prefixes {
		first, _ := prefixBounds(p.Prefix)
		switch bits := p.Bits(); {
		case p.Addr().Is4():
			ofLength(t.v4, bits).number.set(uint32(first.Lo), hash32(uint32(first.Lo)), p.number)
		case bits > 64:
			ofLength(t.v6, bits).number.set(first, hashAddr(first), p.number)
		default:
			ofLength(t.nets, bits).number.set(first.Hi, mix(first.Hi), p.number)
		}
	}
}

// printPrefix returns a prefix as people write it: an address without a length.
func printPrefix(p netip.Prefix) string {
	if p.IsSingleIP() {
		return p.Addr().String()
	}
	return p.String()
}

// newLengths returns empty tables for prefixes of these lengths, the longest first, with
// room for their numbers.
func newLengths[K comparable](counts map[int]int, mask func(bits int) K) (out []byLength[K]) {
	for _, bits := range slices.Backward(slices.Sorted(maps.Keys(counts))) {
		p := byLength[K]{bits: bits, number: newNumberTable[K](counts[bits])}
		if bits > 0 { // a mask of length 0 means the whole address
			p.mask = mask(bits)
		}
		out = append(out, p)
	}
	return out
}

// ofLength returns the table of a length.
func ofLength[K comparable](list []byLength[K], bits int) *byLength[K] {
	i := slices.IndexFunc(list, func(p byLength[K]) bool { return p.bits == bits })
	return &list[i]
}
