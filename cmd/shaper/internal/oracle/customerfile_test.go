package oracle

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// tableOf reads a CSV file of customers with two plans, and returns the customers in words.
func tableOf(t *testing.T, options, table string) ([]string, error) {
	t.Helper()
	site := Site{Dir: t.TempDir()}
	if err := os.WriteFile(filepath.Join(site.Dir, "c.csv"), []byte(table), 0o600); err != nil {
		t.Fatal(err)
	}
	p, err := site.parse([]byte(fmt.Sprintf(`
classes: [{name: a, per: customer, meter: plan}]
plans: {p: {type: trtcm, cir: 8kbit, cbs: 100, pir: 16kbit, pbs: 100ms}, q: {queue: {rate: 8kbit, limit: 9ms}}}
customers: {file: c.csv%s}`, options)))
	if err != nil {
		return nil, err
	}
	var out []string
	for _, who := range p.customers.list {
		words := []string{who.name}
		for _, b := range who.blocks {
			words = append(words, b.String())
		}
		for _, id := range who.vlans {
			words = append(words, fmt.Sprint(id))
		}
		if b, ok := who.state.(*buckets); ok {
			words = append(words, b.c.size.RatString(), b.p.size.RatString())
		} else {
			words = append(words, who.queue.limit.RatString())
		}
		out = append(out, strings.Join(words, " "))
	}
	return out, nil
}

func TestCustomerFiles(t *testing.T) {
	same := []string{"Smith, 1 10.0.0.1 10.1.0.0-10.1.255.255 2001:db8::-2001:db8:ffff:ffff:ffff:ffff:ffff:ffff 100 200", `the "2" 3000000`}
	for name, table := range map[string]string{
		"plain":    "customer,address,plan,limit\n\"Smith, 1\",10.0.0.1 10.1.0.0/16 2001:db8::/32,p,\n\"the \"\"2\"\"\",,q,3ms\n",
		"CRLF":     "customer,address,plan,limit\r\n\"Smith, 1\",10.0.0.1 10.1.0.0/16 2001:db8::/32,p,\r\n\"the \"\"2\"\"\",,q,3ms",
		"BOM":      "\ufeffcustomer,address,plan,limit\n\"Smith, 1\",10.0.0.1 10.1.0.0/16 2001:db8::/32,p,\n\"the \"\"2\"\"\",,q,3ms\n",
		"comments": "# a,b\n\n  \nPLAN , Addresses,note,Limit,CUSTOMER\n#p\np,\"10.0.0.1,10.1.0.0/16;\n 2001:db8::/32 \",x,,\"Smith, 1\"\n \nq,,,  3ms ,\"the \"\"2\"\"\"\n",
		"semi":     "customer;address;plan;limit\nSmith, 1;10.0.0.1, 10.1.0.0/16 2001:db8::/32;p;\n\"the \"\"2\"\"\";;q;3ms\n",
		"quotes":   "customer;address;plan;limit;\"price, EUR\"\nSmith, 1;10.0.0.1, 10.1.0.0/16 2001:db8::/32;p;;1\n\"the \"\"2\"\"\";;q;3ms;1,5\n",
		"tab":      "customer\taddress\tplan\tlimit\nSmith, 1\t10.0.0.1;10.1.0.0/16 2001:db8::/32\tp\t\n \t\n\"the \"\"2\"\"\"\t\tq\t3ms\n",
	} {
		t.Run(name, func(t *testing.T) {
			if got, err := tableOf(t, "", table); err != nil || !slices.Equal(got, same) {
				t.Errorf("got %q, %v; want %q", got, err, same)
			}
		})
	}
	for _, test := range []struct{ options, table, want string }{
		{"", "customer,address,plan,cbs,pir\na,,p,50ms,32kbit\n", "a 50 400"},
		{"", "customer,address,plan,pir\na,,p\n,,\n\" \",\nb,,p,, \n", "a 100 200;b 100 200"},
		{", key: vlan", "customer,vlan,plan\na,\"0,4095\",p\n", "a 0 4095 100 200"},
		{", key: [svlan, cvlan]", "customer,vlan,svlan,cvlan,plan\na,x,2,3,p\n", "a 8195 100 200"},
		{", nested: true", "customer,address,plan\na,10.0.0.0/24 10.0.0.0/8,p\nb,10.0.0.0/25,p\n", "a 10.0.0.0-10.0.0.255 10.0.0.0-10.255.255.255 100 200;b 10.0.0.0-10.0.0.127 100 200"},
		{"", "customer,address,plan\na,10.0.0.0/24 10.0.0.0/8,p\n", "a 10.0.0.0-10.0.0.255 10.0.0.0-10.255.255.255 100 200"},
		{"", "customer,address,plan\na,10.0.0.5-9 10.0.1.5 - 10.0.2.3 2001:db8::a-f,p\n", "a 10.0.0.5-10.0.0.9 10.0.1.5-10.0.2.3 2001:db8::a-2001:db8::f 100 200"},
		{", columns: {customer: Customer ID, address: [IPv4, IPv6], plan: Tariff, pir: Max}, unit: kbit", "Customer ID;Name, first;IPv6;IPv4;Tariff;Max\na;x;::1;10.0.0.1;p;32\nb;;;;p;\n", "a ::1 10.0.0.1 100 400;b 100 200"},
		{", columns: {customer: ID, addresses: ID}, plan: q", "id\n10.0.0.1\n", "10.0.0.1 10.0.0.1 9000000"},
		{", plan: q", "customer,address,plan\na,,p\nb,,\n", "a 100 200;b 9000000"},
		{", unit: kbit", "customer,address,plan,pir\na,,p,32\nb,,p,0.032M\nc,,p,32 kbps\nd,,p,32000\ne,,p,\n", "a 100 400;b 100 400;c 100 400;d 100 400000;e 100 200"},
		{", unit: kB/s", "customer,address,plan,pir\na,,p,4\nb,,p,4kB\nc,,p,0.004M\nd,,p,32kbit\n", "a 100 400;b 100 400;c 100 400;d 100 400"},
	} {
		if got, err := tableOf(t, test.options, test.table); err != nil ||
			strings.Join(got, ";") != test.want {
			t.Errorf("%q: got %q, %v; want %s", test.table, got, err, test.want)
		}
	}
}

func TestRefusedCustomerFiles(t *testing.T) {
	for _, test := range []struct {
		options, table string
		line           int // 0: not checked
	}{
		{"", "", 0},
		{"", "customer,address\n", 1},
		{"", "address,plan\n", 1},
		{"", "\n#\ncustomer,plan,Plan\n", 3},
		{"", "customer,plan\na,p\n", 2},
		{"", "customer,address,plan\na,,p\n\n#\na,,p\n", 5},
		{"", "customer,address,plan\n,,p\n", 2},
		{"", "customer,address,plan\n" + strings.Repeat("é", 65) + ",,p\n", 2},
		{"", "customer,address,plan\na\x07,,p\n", 2},
		{"", "customer,address,plan\na\xff,,p\n", 0},
		{"", "customer,address,plan\na,,r\n", 2},
		{"", "customer,address,plan\na,,\n", 2},
		{"", "customer,address,plan\na,,p,x\n", 2},
		{"", "customer,address,plan,a\rb\na,,p,x\n", 1},
		{"", "customer,address,plan\n\"a,,p,\n", 0},
		{"", "customer,address,plan\n\"a\nb\",,p\n", 2},
		{"", "customer,address,plan,rate\na,,p,8kbit\n", 2},
		{"", "customer,address,plan,pir\na,,p,4kbit\n", 2},
		{"", "customer,address,plan,limit\na,,q,9kB\n", 2},
		{"", "customer,address,plan,burst\na,,q,9kB\n", 2},
		{"", "customer,address,plan\na,10.0.0.256,p\n", 2},
		{"", "customer,address,plan\na,10.0.0.1/24,p\n", 2},
		{"", "customer,address,plan\na,::ffff:10.0.0.1,p\n", 2},
		{"", "customer,address,plan\na,fe80::1%eth0,p\n", 2},
		{"", "customer,address,plan\na,10.0.0.1,p\nb,10.0.0.1/32,p\n", 3},
		{"", "customer,address,plan\na,10.0.0.1,p\nb,10.0.0.0/8,p\n", 3},
		{", nested: true", "customer,address,plan\na,10.0.0.1,p\nb,10.0.0.1,p\n", 3},
		{"", "customer,address,plan\na,10.0.0.9-5,p\n", 2},
		{"", "customer,address,plan\na,10.0.0.9-,p\n", 2},
		{"", "customer,address,plan\na,10.0.0.9-::1,p\n", 2},
		{"", "customer,address,plan\na,64:ff9b::10.0.0.1-5,p\n", 2},
		{"", "customer,address,plan\na,10.0.0.5-9,p\nb,10.0.0.9-12,p\n", 3},
		{", nested: true", "customer,address,plan\na,10.0.0.5-9,p\nb,10.0.0.9-12,p\n", 3},
		{"", "customer,address,plan,pir\na,,p,32M\n", 2},
		{", unit: kbit", "customer,address,plan,pir\na,,p,32MB\n", 2},
		{", unit: MB/s", "customer,address,plan,pir\na,,p,32Mb\n", 2},
		{", unit: kbps", "customer,address,plan,pir\na,,p,32\n", 0},
		{", plan: x", "customer,address,plan,pir\na,,,\n", 2},
		{", columns: {customer: a, address: b}", "a,b,plan\n", 0},
		{", columns: {customer: a, address: b, plan: c}", "a,b,plan\n", 1},
		{", columns: {customer: a, address: b, plan: c}", "a,b,c,C\n", 1},
		{", columns: {customer: a, address: b, plan: c, mac: d}", "a,b,c,d\n", 0},
		{", columns: {customer: a, address: [b, B], plan: c}", "a,b,c,d\n", 0},
		{", columns: {customer: [a], address: b, plan: c}", "a,b,c,d\n", 0},
		{", nested: maybe", "customer,address,plan\na,10.0.0.1,p\n", 0},
		{", key: mac", "customer,address,plan\na,10.0.0.1,p\n", 0},
		{", key: [cvlan, svlan]", "customer,svlan,cvlan,plan\na,1,2,p\n", 0},
		{", key: vlan", "customer,vlan,plan\na,4096,p\n", 2},
		{", key: vlan", "customer,vlan,plan\na,1,p\nb,2 1,p\n", 3},
		{", key: vlan", "customer,address,plan\na,1,p\n", 2},
		{", key: [svlan, cvlan]", "customer,svlan,cvlan,plan\na,1,,p\n", 2},
		{", key: [svlan, cvlan]", "customer,svlan,cvlan,plan\na,1,2,p\nb,1,2,p\n", 3},
	} {
		got, err := tableOf(t, test.options, test.table)
		if err == nil || test.line > 0 &&
			!strings.Contains(err.Error(), fmt.Sprintf("c.csv:%d: ", test.line)) {
			t.Errorf("%s, %q: got %q, %v; want an error in line %d", test.options, test.table, got, err,
				test.line)
		}
	}
}

func TestRefusedPlans(t *testing.T) {
	const plans = "plans: {p: {type: gcra, rate: 8kbit, burst: 100}}\n"
	const table = "customers: {file: testdata/none.csv}\n"
	for _, policy := range []string{
		"classes: [{name: a, per: customer, meter: plan}]\n" + plans,
		"classes: []\n" + plans + table, // no file
		"classes: []\n" + plans + "customers: {}\n",
		"classes: [{name: a, per: customer}]\n",
		"classes: [{name: a, meter: plan}]\n",
		"classes: [{name: a, per: src, meter: plan}]\n",
		"classes: [{name: a, per: customer, meter: {type: plan, rate: 8kbit}}]\n",
		"classes: [{name: a, per: customer, meter: {type: gcra, rate: 8kbit, burst: 1}}]\n",
		"classes: []\nplans: {p: {}}",
		"classes: []\nplans: {p: {type: plan}}",
		"classes: []\nplans: {p: {type: queue, rate: 8kbit, limit: 1ms}}",
		"classes: []\nplans: {p: {type: tswtcm, cir: 1kbit, pir: 2kbit, window: 1s}}",
		"classes: []\nplans: {p: {type: gcra, rate: 8kbit}}",
		"classes: []\nplans: {p: {type: gcra, rate: 8kbit, burst: 1, initial: empty}}",
		"classes: []\nplans: {p: {type: gcra, rate: 8kbit, burst: 1, per: src}}",
		"classes: []\nplans: {p: {type: token-bucket, rate: 8kbit, burst: 1, warmup: 1s}}",
		"classes: []\nplans: {p: {type: gcra, rate: 1p/1s, burst: 1}}",
		"classes: []\nplans: {p: {type: gcra, rate: 8kbit, burst: 1, red: {queue: none}}}",
		"classes: []\nplans: {p: {queue: {rate: 8kbit}}}",
		"classes: []\nplans: {p: {queue: {rate: 8kbit, limit: 9kB}}}",
		"classes: []\nplans: {p: {queue: {rate: 8kbit, limit: 9p}}}",
		"classes: []\nplans: {p: {queue: {rate: 8kbit, limit: 9ms, fair: x}}}",
		"classes: []\nplans: {p: {queue: {link: wan, limit: 9ms}}}",
		"classes: []\nplans: {p: {queue: {rate: 8kbit, limit: 9ms}, type: gcra, rate: 8kbit, burst: 1}}",
	} {
		if _, err := parsePolicy([]byte(policy)); err == nil {
			t.Errorf("got nil, want an error: %s", policy)
		}
	}
	counts := `
classes:
  - {name: a, per: customer, meter: {type: plan, count: packets}}
  - {name: b, per: customer, meter: {type: plan, count: %s}}
plans: {p: {type: fixed-window, limit: 9, window: 1s}}
customers: {file: c.csv}`
	for count, want := range map[string]string{"packets": "c.csv", "bytes": "counts bytes and packets"} {
		if _, err := parsePolicy([]byte(fmt.Sprintf(counts, count))); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("count %s: got %v, want an error about %s", count, err, want)
		}
	}
}
