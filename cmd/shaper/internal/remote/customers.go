package remote

import (
	"context"
	"net/http"
	"strconv"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/control"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/live"
)

// ChangeCustomers makes changes of customers of the interface, all or none.
func (c *Client) ChangeCustomers(
	ctx context.Context, t *Target, items []live.CustomerItem,
) (out control.CustomerEffects, err error) {
	body := make([]map[string]any, len(items))
	for i := range items {
		body[i] = control.RequestOf(&items[i])
	}
	a, err := c.ask(ctx, http.MethodPost, "/v1/customers", t.query(), body)
	if err != nil {
		return out, err
	}
	return out, c.decode(a.body, &out)
}

// EachCustomer is live.EachCustomer for the interface.
func (c *Client) EachCustomer(
	ctx context.Context, t *Target, q live.CustomerQuery, f func(*live.CustomerTerms) error,
) (keys []string, err error) {
	query := t.query()
	query.Set("limit", strconv.Itoa(live.MaxCustomerPage))
	for name, value := range map[string]string{
		"filter": q.Name, "plan": q.Plan, "address": q.Address, "name": q.Exact,
	} {
		if value != "" {
			query.Set(name, value)
		}
	}
	if q.Added != nil {
		query.Set("added", strconv.FormatBool(*q.Added))
	}
	for {
		page, err := get[control.CustomerPage](ctx, c, "/v1/customers", query)
		if err != nil {
			return nil, err
		}
		for i := range page.Customers {
			terms, err := page.Customers[i].Terms()
			if err == nil {
				err = f(terms)
			}
			if err != nil {
				return nil, err
			}
		}
		if page.Next == "" {
			return page.Columns, nil
		}
		query.Set("after", page.Next)
	}
}
