package check

import (
	"bytes"
	"strings"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/lint"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
)

// customersPolicy has customers with meters and with queues.
const customersPolicy = `classes:
  - {name: customers, per: customer, meter: plan, then: uplink}
  - {name: strangers, meter: {type: token-bucket, rate: 10mbit, burst: 64KiB}}
customers: {file: customers.csv}
plans:
  home-50: {type: trtcm, cir: 50mbit, cbs: 1MiB, pir: 60mbit, pbs: 1MiB, yellow: {dscp: af12}}
  biz-200: {type: token-bucket, rate: 200mbit, burst: 50ms}
  quiet: {queue: {rate: 20mbit, limit: 50ms, codel: true}}
meters:
  uplink: {type: token-bucket, rate: 1gbit, burst: 4MiB, color: aware}
`

const customersTable = `customer,addresses,plan,rate
4711,192.0.2.1 2001:db8:4711::/48,home-50,
4712,192.0.2.2 2001:db8:4712::/48,home-50,
"Example, Inc.","198.51.100.0/26, 2001:db8:5000::/40",biz-200,250mbit
4713,192.0.2.3,quiet,
4714,,home-50,
`

// checkedCustomers loads customersPolicy with a plan of the same classes without customers.
func checkedCustomers(t *testing.T) *policyfile.Compiled {
	read := func(string) (string, error) { return customersTable, nil }
	f, err := policyfile.LoadWith("isp.yaml", []byte(customersPolicy), read)
	if err != nil {
		t.Fatal(err)
	}
	plain, err := policyfile.Source{
		Name: "p.yaml",
		Text: "classes: [{name: a}, {name: b, meter: uplink}]\nmeters: {uplink: {type: token-bucket, rate: 1gbit, burst: 4MiB}}",
	}.Compile()
	if err != nil {
		t.Fatal(err)
	}
	return &policyfile.Compiled{File: f, Plan: plain.Plan}
}

// TestCheckCustomers checks the exact description of customers and plans.
func TestCheckCustomers(t *testing.T) {
	c := checkedCustomers(t)
	var out bytes.Buffer
	if err := Policy(cli.Streams{Out: &out}, c, lint.Options{MTU: cli.DefaultMTU, RTT: cli.DefaultRTT}, false,
		false); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`
class customers
  match   packets of customers
  meter   the one of the customer's plan, color-blind
  then    uplink: token-bucket, color-aware by dscp: rate 1gbit, burst 4194304 B (33.6 ms)
  green   pass
  yellow  pass
  red     drop

class strangers
  match   all remaining IP packets
`, `
customers
  table   5 customers with 7 addresses and prefixes
  key     destination address at egress, source address at ingress

plan home-50
  used    by 3 customers
  meter   trtcm: CIR 50mbit, CBS 1048576 B (168 ms), PIR 60mbit, PBS 1048576 B (140 ms)
  yellow  dscp=af12

plan biz-200
  used    by 1 customer, 1 with own parameters
  meter   token-bucket: rate 200mbit, burst 1250000 B (50 ms)

plan quiet
  used    by 1 customer
  queue   one for each customer
  rate    20mbit
  limit   50ms (125000 B)
  codel   target 5ms, interval 100ms
`} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("got\n%s, want\n%s", out.String(), want)
		}
	}
	out.Reset()
	if err := Policy(cli.Streams{Out: &out}, c, lint.Options{MTU: cli.DefaultMTU, RTT: cli.DefaultRTT}, true,
		false); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`"meters":[{"name":"customers","type":"plan","aware":false,"packets":false,"buckets":[]}`,
		`"customers":{"key":"address","nested":false,"customers":5,"prefixes":7,"vlans":0,"plans":[{"name":"home-50","customers":3,"customers_with_own_parameters":0,"meter":{"name":"home-50","type":"trtcm"`,
		`{"name":"quiet","customers":1,"customers_with_own_parameters":0,"queue":{"name":"quiet"`,
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("got\n%s, want\n%s", out.String(), want)
		}
	}
}
