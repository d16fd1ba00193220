package live

import (
	"strings"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
)

// CustomerQuery selects customers. They are listed by name.
type CustomerQuery struct {
	After   string // names after this one
	Limit   int    // maximum number of customers in the answer; 0: MaxCustomerPage
	Name    string // part of the name; "": any
	Plan    string // name of the plan; "": any
	Address string // an address, or a prefix: its customer only; "": any
	Exact   string // the customer of this name only; "": any
	Added   *bool  // customers that were added or replaced, or those of the policy's file; nil: both
}

// MaxCustomerPage is the maximum number of customers in a CustomerPage.
const MaxCustomerPage = 1000

// CustomerPage is a part of a list of customers.
type CustomerPage struct {
	Customers []*CustomerTerms
	Columns   []string // columns of a file of customers with their keys
	Next      string   // CustomerQuery.After of the next page; "": there is none
	Version   string   // of the list of changes
}

// CustomerPage returns customers of all shapers.
func (c *Changer) CustomerPage(q CustomerQuery) (out CustomerPage, err error) {
	rosters, err := c.rosters()
	if err != nil {
		return out, err
	}
	if q.Limit <= 0 || q.Limit > MaxCustomerPage {
		q.Limit = MaxCustomerPage
	}
	out.Version = c.Customers.Version()
	none := true
	seen := map[string]bool{}
	var names []string
	for _, r := range rosters {
		if !r.HasTable() {
			continue
		}
		none = false
		out.Columns = r.KeyColumns()
		list, err := c.namesOf(r.Roster, q)
		if err != nil {
			return out, err
		}
		for _, name := range list {
			if !seen[name] {
				seen[name] = true
				names = append(names, name)
			}
		}
	}
	if none {
		return out, policyfile.ErrNoTable
	}
	policyfile.FirstNames(&names, q.Limit+1)
	if len(names) > q.Limit {
		names = names[:q.Limit]
		out.Next = names[q.Limit-1]
	}
	for _, name := range names {
		for _, r := range rosters {
			if t := termsOf(r.Roster, c.Customers.Book, name); t != nil {
				out.Customers = append(out.Customers, t)
				break
			}
		}
	}
	return out, nil
}

// namesOf returns the first names of a roster that a query selects, and one more.
func (c *Changer) namesOf(r *policyfile.Roster, q CustomerQuery) ([]string, error) {
	added := func(name string) bool { return q.Added == nil || *q.Added == (c.Customers.Book[name] != nil) }
	wanted := func(name, plan string) bool {
		return name > q.After && (q.Plan == "" || plan == q.Plan) && strings.Contains(name, q.Name) &&
			(q.Exact == "" || name == q.Exact) && added(name)
	}
	one := q.Exact
	if q.Address != "" {
		p, err := policyfile.ParseCustomerAddress(q.Address)
		if err != nil {
			return nil, err
		}
		if one = r.Of(p); one == "" || q.Exact != "" && one != q.Exact {
			return nil, nil
		}
	}
	if one != "" {
		if cells, ok := r.Definition(one); ok && wanted(one, cells["plan"]) {
			return []string{one}, nil
		}
		return nil, nil
	}
	return r.Select(q.Limit+1, wanted), nil
}
