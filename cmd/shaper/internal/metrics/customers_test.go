package metrics

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
)

const customerPolicy = `
classes:
  - {name: control, match: {dscp: cs6}}
  - {name: web, per: customer, match: {dport: 443}, meter: plan}
  - {name: rest, per: customer, meter: {type: plan, then: sum}}
  - {name: strangers, meter: {type: token-bucket, rate: 1mbit, burst: 9000B}}
meters:
  sum: {type: token-bucket, rate: 5mbit, burst: 9000B, color: aware}
customers: {file: customers.csv}
plans:
  a: {type: token-bucket, rate: 1mbit, burst: 9000B}
  "b\"\\": {type: token-bucket, rate: 2mbit, burst: 9000B}
`

// withCustomers is a shaper with customerPolicy and these lines in the file of customers.
func withCustomers(t testing.TB, lines ...string) (Observation, *compiled.Customers) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "customers.csv")
	if err := os.WriteFile(path, []byte("customer,address,plan\n"+strings.Join(lines, "\n")),
		0o600); err != nil {
		t.Fatal(err)
	}
	policy, err := policyfile.Source{
		Name: "a.yaml", Path: filepath.Join(filepath.Dir(path), "a.yaml"), Text: customerPolicy,
	}.Compile()
	if err != nil {
		t.Fatal(err)
	}
	o := Observation{name: "a.yaml", attached: true, effective: true}
	o.plan, o.About.Outline, o.About.Label = policy.Plan, *policy.Plan.Outline(), policy.Label()
	o.About.Interface, o.About.Loaded = "eth0", time.Unix(1700000000, 0)
	o.sample.Stats = make([]dataplane.ClassStats, len(policy.Plan.Classes)+1)
	o.sample.Tokens = make([][2]int64, len(policy.Plan.Stages))
	return o, policy.Plan.Customers
}

// known is a policy with these customers.
func known(plan *compiled.Customers) func() *policyfile.Compiled {
	return func() *policyfile.Compiled {
		return &policyfile.Compiled{Plan: &compiled.Plan{Customers: plan}}
	}
}

// given makes an observation have these counters of customers, by name.
func (o *Observation) given(stats map[string]dataplane.CustomerStats) {
	o.counters = named(stats)
}

// named are counters of customers by name.
type named map[string]dataplane.CustomerStats

func (n named) Of(plan *compiled.Customers) ([]dataplane.CustomerStats, error) {
	out := make([]dataplane.CustomerStats, len(plan.Of))
	for i := range out {
		out[i] = n[plan.Source.List[i].Name]
	}
	return out, nil
}
func (named) Close() {}

// green is the counters of a customer with green packets of 1 byte.
func green(n int64) (s dataplane.CustomerStats) {
	s.Colors[meter.Green] = dataplane.Count{Packets: n, Bytes: n}
	return s
}

// customersOf returns the samples of customers. Their labels are alphabetical.
func customersOf(t testing.TB, text []byte) map[string]float64 {
	t.Helper()
	got := parse(t, text)
	maps.DeleteFunc(got,
		func(name string, _ float64) bool { return !strings.HasPrefix(name, "shaper_customer") })
	return got
}

// TestMetricsCustomers checks the totals of customers, and the metrics of single customers.
func TestMetricsCustomers(t *testing.T) {
	t.Parallel()
	const odd = `c "\ {x="1"}, é`
	o, plan := withCustomers(t, "one,192.0.2.1,a", "idle,192.0.2.2,a",
		`"`+strings.ReplaceAll(odd, `"`, `""`)+`",192.0.2.3,"b""\"`)
	stats := o.sample.Stats
	for i := range stats[:4] {
		n := int64(1) << (4 * i)
		for color := range stats[i].Colors {
			stats[i].Colors[color] = dataplane.Count{Packets: n << color, Bytes: 100 * n << color}
		}
		stats[i].Drops[meter.Red][dataplane.CauseColor] = dataplane.Count{Packets: n, Bytes: 100 * n}
		stats[i].Drops[meter.Green][dataplane.CauseQueue] = dataplane.Count{Packets: 2 * n, Bytes: 200 * n}
		stats[i].Behind.Packets = 4 * n
	}
	want := map[string]float64{}
	const at = `direction="egress",interface="eth0"`
	for name, v := range map[string]float64{
		"": 3, "_dropped_packets_total": 7 * 0x110, "_dropped_bytes_total": 300 * 0x110,
	} {
		want["shaper_customers"+name+"{"+at+"}"] = v
	}
	for i, color := range []string{"green", "yellow", "red"} {
		want[`shaper_customers_packets_total{color="`+color+`",`+at+`}`] = float64(int(0x110) << i)
		want[`shaper_customers_bytes_total{color="`+color+`",`+at+`}`] = float64(int(0x110) * 100 << i)
	}
	text := expose([]Observation{o})
	if got := customersOf(t, text); !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}

	o.policy = known(plan)
	o.given(map[string]dataplane.CustomerStats{
		"one": {Colors: [3]dataplane.Count{{Packets: 1, Bytes: 10}, {Packets: 2, Bytes: 20}, {Packets: 3, Bytes: 30}}, Dropped: dataplane.Count{Packets: 4, Bytes: 40}},
		odd: {Colors: [3]dataplane.Count{
			{Packets: 5, Bytes: 50}, {Packets: 6, Bytes: 60}, {Packets: 7, Bytes: 70},
		}, Dropped: dataplane.Count{Packets: 8, Bytes: 80}},
	})
	for name, first := range map[string]float64{"one": 1, odd: 5, "idle": 0} {
		plan := "a"
		if name == odd {
			plan = `b"\`
		}
		for i := range 4 {
			labels := fmt.Sprintf(`customer=%q,%s,plan=%q}`, name, at, plan)
			v := first + float64(i)
			if first == 0 {
				v = 0
			}
			if i == 3 {
				want["shaper_customer_dropped_packets_total{"+labels], want["shaper_customer_dropped_bytes_total{"+labels] = v,
					10*v
				continue
			}
			if v == 0 && meter.Color(i) == meter.Yellow { // no plan has yellow
				continue
			}
			labels = `color="` + meter.Color(i).String() + `",` + labels
			want["shaper_customer_packets_total{"+labels], want["shaper_customer_bytes_total{"+labels] = v,
				10*v
		}
	}
	want["shaper_customers_exported{"+at+"}"] = 3
	s := snapshot{shapers: []Observation{o}, rank: &ranking{most: 3}}
	text = s.body()
	if got := customersOf(t, text); !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	problems, err := promlint.New(bytes.NewReader(text)).Lint()
	if err != nil || len(problems) > 0 {
		t.Errorf("promlint: %v, %v", problems, err)
	}
}

// selected returns the names of the customers with metrics of their own, by direction.
func selected(t *testing.T, r *ranking, list ...Observation) (out [2]string) {
	t.Helper()
	got := customersOf(t, (&snapshot{shapers: list, rank: r}).body())
	for i, d := range []string{"egress", "ingress"} {
		var names []string
		for name := range got {
			if rest, ok := strings.CutPrefix(name, `shaper_customer_dropped_bytes_total{customer="`); ok &&
				strings.Contains(rest, d) {
				rest, _, _ = strings.Cut(rest, `"`)
				names = append(names, rest)
			}
		}
		slices.Sort(names)
		out[i] = strings.Join(names, " ")
		if n, ok := got[`shaper_customers_exported{direction="`+d+`",interface="eth0"}`]; ok &&
			int(n) != len(names) {
			t.Errorf("got %v exported, want %d", n, len(names))
		}
	}
	return out
}

// TestMetricsTop checks which customers have metrics of their own: those with the most bytes.
// One that was selected stays until another one has an eighth more bytes. The directions do
// not affect each other.
func TestMetricsTop(t *testing.T) {
	t.Parallel()
	egress, plan := withCustomers(t, "a,192.0.2.1,a", "b,192.0.2.2,a", "c,192.0.2.3,a", "d,192.0.2.4,a")
	egress.policy = known(plan)
	ingress := egress
	ingress.About.Direction = kernel.Ingress
	r := &ranking{most: 2}
	for i, step := range []struct {
		egress, ingress [4]int64 // bytes of the customers
		want            [2]string
	}{
		{[4]int64{0, 0, 0, 0}, [4]int64{1, 2, 3, 4}, [2]string{"a b", "c d"}},
		{[4]int64{1, 2, 3, 4}, [4]int64{1, 2, 3, 4}, [2]string{"c d", "c d"}},
		{[4]int64{899, 890, 800, 800}, [4]int64{800, 800, 800, 800}, [2]string{"c d", "c d"}},
		{[4]int64{901, 890, 800, 800}, [4]int64{899, 801, 800, 800}, [2]string{"a c", "c d"}},
		{[4]int64{901, 890, 1013, 1014}, [4]int64{0, 901, 800, 801}, [2]string{"c d", "b d"}},
	} {
		counts := func(o Observation, bytes [4]int64) Observation {
			stats := map[string]dataplane.CustomerStats{}
			for k, n := range bytes {
				stats[string(rune('a'+k))] = green(n)
			}
			o.given(stats)
			return o
		}
		if got := selected(t, r, counts(egress, step.egress),
			counts(ingress, step.ingress)); got != step.want {
			t.Errorf("step %d: got %q, want %q", i, got, step.want)
		}
	}
}

// TestMetricsReloaded checks that names and plans are those of the policy in force, if another
// process has loaded it, and that the policy is compiled once. Without its customers the other
// metrics are served, with the reason.
func TestMetricsReloaded(t *testing.T) {
	t.Parallel()
	o, plan := withCustomers(t, "a,192.0.2.1,a", "b,192.0.2.2,a")
	next, _ := withCustomers(t, "a,192.0.2.1,a", "new,192.0.2.2,a")
	next.About.Loaded = o.About.Loaded.Add(time.Second)
	r := &ranking{most: 1}
	o.policy = known(plan)
	o.given(map[string]dataplane.CustomerStats{"a": green(3), "b": green(5)})
	if got := selected(t, r, o)[0]; got != "b" {
		t.Errorf("got %q, want b", got)
	}
	next.given(map[string]dataplane.CustomerStats{"a": green(3), "new": green(7)})
	if got := selected(t, r, next)[0]; got != "new" {
		t.Errorf("got %q, want new", got)
	}
	next.About.Label = nil // must not be read again
	if got := selected(t, r, next)[0]; got != "new" {
		t.Errorf("got %q, want new", got)
	}
	next.About.Loaded = next.About.Loaded.Add(time.Second)
	text := string((&snapshot{shapers: []Observation{next}, rank: r}).body())
	if got := parse(t,
		[]byte(text)); got[`shaper_customers_exported{direction="egress",interface="eth0"}`] != 0 ||
		got[`shaper_attached{direction="egress",interface="eth0"}`] != 1 ||
		strings.Contains(text, "customer=") {
		t.Errorf("got %s, want no customers", text)
	}
	if !strings.HasPrefix(text,
		`# "eth0 egress: no metrics of single customers: the shaper was attached by another`) {
		t.Errorf("got %.200s, want the reason", text)
	}
	next.policy = known(plan)
	if got := selected(t, r, next)[0]; got != "a" {
		t.Errorf("got %q, want a", got)
	}
}

// BenchmarkMetricsCustomers is the time of a handler for a scrape with 100,000 customers.
func BenchmarkMetricsCustomers(b *testing.B) {
	lines := make([]string, 100_000)
	for i := range lines {
		lines[i] = fmt.Sprintf("customer %d,10.%d.%d.%d,a", i, i>>16, i>>8&255, i&255)
	}
	o, plan := withCustomers(b, lines...)
	stats := make([]dataplane.CustomerStats, len(lines))
	for i := range stats {
		stats[i] = green(int64(i) * 7919 % 1_000_003)
	}
	o.policy, o.counters = known(plan), readCounters(stats)
	for _, most := range []int{10, 1000, MaxCustomers} {
		b.Run(fmt.Sprint(most), func(b *testing.B) {
			b.ReportAllocs()
			r := &ranking{most: most}
			for b.Loop() {
				b.SetBytes(int64(len((&snapshot{shapers: []Observation{o}, rank: r}).body())))
			}
		})
	}
}

// readCounters are counters as read, in the order of the plan.
type readCounters []dataplane.CustomerStats

func (c readCounters) Of(*compiled.Customers) ([]dataplane.CustomerStats, error) {
	return c, nil
}
func (readCounters) Close() {}
