package diff

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// book holds the customers of a policy.
type book struct {
	file    *policyfile.File
	list    []dataplane.Customer
	named   map[*dataplane.ServicePlan]bool // plans of the policy; others have own parameters
	packets bool
	table   *dataplane.Customers
}

func newBook(file *policyfile.File) book {
	b := book{file: file, named: map[*dataplane.ServicePlan]bool{}}
	if c := file.Policy.Customers; c != nil {
		b.list, b.packets, b.table = c.List, countsPackets(file.Policy), c
		for _, p := range c.Plans {
			b.named[p] = true
		}
	}
	return b
}

// customers returns the differences between customers. A change of a plan is not one of its
// customers.
func customers(a, b *policyfile.File) (out []Difference) {
	from, to := newBook(a), newBook(b)
	if len(from.list)+len(to.list) == 0 {
		return nil
	}
	index := make(map[string]int32, len(from.list)) // there are fewer than 2^31
	for i := range from.list {
		index[from.list[i].Name] = int32(i)
	}
	kept := make([]bool, len(from.list))
	for i := range to.list {
		c := &to.list[i]
		j, found := index[c.Name]
		if !found {
			p := to.part(c)
			out = append(out, Difference{What: "added", Part: p.kind, Name: p.name, To: p.text()})
			continue
		}
		kept[j] = true
		if old := &from.list[j]; !same(&from, &to, old, c) {
			p, q := from.part(old), to.part(c)
			out = append(out, compare(&p, &q)...)
		}
	}
	for i, k := range kept {
		if !k {
			p := from.part(&from.list[i])
			out = append(out, Difference{What: "removed", Part: p.kind, Name: p.name, From: p.text()})
		}
	}
	return out
}

// idLists are the names of Customer.IDs, by key.
var idLists = map[dataplane.CustomerKey]string{
	dataplane.ByInside: "vlans", dataplane.BySource: "vlans", dataplane.ByDestination: "vlans", // always empty
	dataplane.ByOuterVLAN: "vlans", dataplane.ByTwoVLANs: "vlans", dataplane.CustomerByMAC: "macs",
	dataplane.CustomerByVLANMAC: "vlans and macs", dataplane.CustomerByVNI: "vnis",
	dataplane.CustomerByTEID: "teids", dataplane.CustomerByInner: "vlans", dataplane.CustomerByMark: "marks",
	dataplane.CustomerByCgroup: "cgroups",
}

// knownCustomer has the fields that same and part compare: the conversion fails to compile if
// there is another one.
type knownCustomer struct {
	Name     string
	Prefixes []netip.Prefix
	IDs      []uint64
	Plan     *dataplane.ServicePlan
}

var _ = knownCustomer(dataplane.Customer{})

// same reports whether two customers are the same without a look at the order of their
// addresses: most of a million are.
func same(from, to *book, a, b *dataplane.Customer) bool {
	if from.named[a.Plan] && to.named[b.Plan] && a.Plan.Name == b.Plan.Name &&
		from.table.Key == to.table.Key {
		limit, own := from.file.OwnQuota(a.Name)
		other, otherOwn := to.file.OwnQuota(b.Name)
		return limit == other && own == otherOwn && slices.Equal(a.Prefixes, b.Prefixes) &&
			slices.EqualFunc(a.IDs, b.IDs, func(x, y uint64) bool {
				return x == y && from.table.Key != dataplane.CustomerByCgroup ||
					from.table.IDText(x) == to.table.IDText(y)
			})
	}
	return false
}

// part describes a customer.
func (b *book) part(c *dataplane.Customer) part {
	out := part{kind: "customer", name: c.Name}
	out.add("plan", c.Plan.Name, c.Plan.Name)
	out.addList("addresses", "none", texts(c.Prefixes, netip.Prefix.String))
	out.addList(idLists[b.table.Key], "none", texts(c.IDs, func(v uint64) string {
		return strings.ReplaceAll(b.table.IDText(v), ", ", ".")
	}))
	if !b.named[c.Plan] {
		service := part{}
		service.addService(c.Plan, b.packets)
		var exact []string
		for _, p := range service.properties {
			exact = append(exact, p.exact)
		}
		out.add("own parameters", service.text(), strings.Join(exact, " "))
	}
	if limit, own := b.file.OwnQuota(c.Name); own {
		out.add("own quota", say.Grouped(limit)+" B", limit)
	}
	return out
}

// mostCustomers is the maximum number of changes of customers printed.
const mostCustomers = 10

// shortened returns the changes without those of customers beyond the first mostCustomers, and
// their number.
func shortened(list []Difference) (first []Difference, more int) {
	n := slices.IndexFunc(list, func(c Difference) bool { return c.Part == "customer" }) // they are the last
	if n < 0 {
		return list, 0
	}
	n = min(n+mostCustomers, len(list))
	return list[:n], len(list) - n
}
