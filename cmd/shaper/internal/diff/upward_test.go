package diff

import (
	"slices"
	"strings"
	"testing"
)

// TestDirections compares policies with one rate, and with one for each direction.
func TestDirections(t *testing.T) {
	t.Parallel()
	const one = `classes: [{name: c, per: customer, meter: plan}, {name: d, green: {queue: q}}]
links: {site: {rate: 9mbit}, ap: {link: site, guarantee: 2mbit}}
queues: {q: {link: ap, limit: 10kB}}
plans: {m: {type: token-bucket, rate: 8mbit, burst: 1000}, n: {queue: {rate: 4mbit, limit: 10ms}}}
customers: {file: x}
`
	const rows = "customer,address,plan,down,up\nann,192.0.2.1,m,,\nbob,192.0.2.2,n,,\n"
	both := strings.NewReplacer("rate: 9mbit", "rate: {down: 9mbit, up: 3mbit}",
		"guarantee: 2mbit", "guarantee: {down: 1mbit, up: 2mbit}", "rate: 8mbit", "rate: {down: 8mbit, up: 7mbit}",
		"rate: 4mbit", "rate: {down: 6mbit, up: 4mbit}").Replace(one)
	for _, test := range []struct {
		a, b, rowsB string
		want        []string
	}{
		{one, one, rows, nil},
		{both, both, rows, nil},
		{one, both, rows, []string{
			"link site: rate up: 9mbit -> 3mbit", "link ap: guarantee: 2mbit -> 1mbit", "queue q: limit up: ",
			"plan m: rate up: 8mbit -> 7mbit", "plan n: rate: 4mbit -> 6mbit", "plan n: limit up: ",
		}},
		{both, one, rows, []string{
			"link site: rate up: 3mbit -> 9mbit", "link ap: guarantee: 1mbit -> 2mbit",
			"plan m: rate up: 7mbit -> 8mbit", "plan n: rate: 6mbit -> 4mbit",
		}},
		{one, one, strings.Replace(rows, "bob,192.0.2.2,n,,", "bob,192.0.2.2,n,,1mbit", 1), []string{
			"customer bob: own parameters: none -> ",
		}},
		{one, one, strings.Replace(rows, "ann,192.0.2.1,m,,", "ann,192.0.2.1,m,,1mbit", 1), []string{
			"customer ann: own parameters: none -> ",
		}},
	} {
		var got []string
		for _, c := range Policies(load(t, test.a, rows), load(t, test.b, test.rowsB)) {
			got = append(got, c.String())
		}
		for _, want := range test.want {
			if !slices.ContainsFunc(got, func(s string) bool { return strings.HasPrefix(s, want) }) {
				t.Errorf("no %q in\n%s", want, strings.Join(got, "\n"))
			}
		}
		if len(test.want) == 0 && got != nil {
			t.Errorf("differences of equal policies:\n%s", strings.Join(got, "\n"))
		}
	}
}
