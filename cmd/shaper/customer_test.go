package main

import (
	"bytes"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/oracle"
)

// TestCustomerShow checks the output and the exit code of customer show.
func TestCustomerShow(t *testing.T) {
	dir := t.TempDir()
	policy := func(name, customers, table string) string {
		path := filepath.Join(dir, name+".yaml")
		text := "classes: [{name: a, per: customer, meter: plan}]\nplans:\n" +
			"  p: {type: token-bucket, rate: 8mbit, burst: 4000B, quota: {limit: 5GB, every: day, then: q}}\n" +
			"  q: {type: token-bucket, rate: 1mbit, burst: 2000B}\n" +
			"customers: {file: " + name + ".csv" + customers + "}\n"
		for path, text := range map[string]string{path: text, filepath.Join(dir, name+".csv"): table} {
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		return path
	}
	addresses := policy("a", ", nested: true, unit: mbit", "customer,address,plan,rate,quota\n"+
		"net,10.0.0.0/8,p,,\nhost,10.1.0.5 10.2.0.4-7 2001:db8::/32,p,50,7GB\n10.1.0.5,,q,,\nnone,,q,,\n")
	vlans := policy("v", ", key: vlan", "customer,vlan,plan\none,100 4095,q\n7,8,q\n")
	pairs := policy("w", `, key: [svlan, cvlan]`, "customer,svlan,cvlan,plan\none,100,7,q\n")
	many := policy("m", "", "customer,address,plan\nx,"+func() (list string) {
		for i := range 23 {
			list += fmt.Sprintf("10.0.%d.1 ", i)
		}
		return list
	}()+",q\n")
	for _, test := range []struct {
		policy, search string
		code           int
		want           string
	}{
		{addresses, "host", 0, "customer host\n  place      " + dir + "/a.csv:3\n  addresses  10.1.0.5, 10.2.0.4/30, 2001:db8::/32\n  plan       p, own rate 50mbit\n  meter      token-bucket: rate 50mbit, burst 4000 B (640 us)\n  quota      7,000,000,000 B every day, then plan q\n"},
		{addresses, "10.2.0.6", 0, "customer host\n  place      " + dir + "/a.csv:3\n  match      10.2.0.6 is in 10.2.0.4/30\n"},
		{addresses, "::ffff:10.2.0.6", 0, "customer host\n"},
		{addresses, "10.2.0.8", 0, "customer net\n  place      " + dir + "/a.csv:2\n  match      10.2.0.8 is in 10.0.0.0/8\n"},
		{addresses, "10.1.0.5", 0, "customer 10.1.0.5\n  place      " + dir + "/a.csv:4\n  addresses  none, so it gets no packets\n"},
		{addresses, "2001:db8:ffff::1", 0, "customer host\n"},
		{addresses, "11.0.0.0", 1, "nobody: 11.0.0.0 belongs to no customer, so its packets skip the classes with per: customer\n"},
		{addresses, "2001:db9::", 1, "nobody: 2001:db9:: belongs to no customer"},
		{addresses, "10.1.0.5/32", 1, `shaper: no customer is named "10.1.0.5/32", and it is not an address such as 192.0.2.1`},
		{addresses, "hots", 1, `shaper: no customer is named "hots", and it is not an address such as 192.0.2.1`},
		{addresses, "fe80::1%eth0", 2, `shaper: "fe80::1%eth0" has a zone: give the address without it`},
		{vlans, "4095", 0, "customer one\n  place  " + dir + "/v.csv:2\n  vlans  100, 4095\n"},
		{vlans, "7", 0, "customer 7\n"},
		{vlans, "101", 1, "nobody: 101 belongs to no customer"},
		{vlans, "4096", 1, `shaper: no customer is named "4096", and it is not a VLAN ID from 0 to 4095`},
		{pairs, "100,7", 0, "customer one\n  place  " + dir + "/w.csv:2\n  vlans  100,7\n"},
		{pairs, "100, 8", 1, "nobody: 100, 8 belongs to no customer"},
		{pairs, "100", 1, `shaper: no customer is named "100", and it is not two VLAN IDs such as 100,7`},
		{many, "x", 0, "customer x\n  place      " + dir + "/m.csv:2\n  addresses  10.0.0.1, 10.0.1.1, 10.0.2.1, 10.0.3.1, 10.0.4.1, 10.0.5.1, 10.0.6.1, 10.0.7.1, 10.0.8.1, 10.0.9.1, 10.0.10.1, 10.0.11.1, 10.0.12.1, 10.0.13.1, 10.0.14.1, 10.0.15.1, 10.0.16.1, 10.0.17.1, 10.0.18.1, 10.0.19.1, 3 others\n"},
		{"../../docs/customer.yaml", "x", 2, "shaper: ../../docs/customer.yaml has no customers"},
		{dir + "/none.yaml", "x", 2, "shaper: policy "},
		{"", "x", 2, "shaper: give --policy FILE, or an interface before the customer"},
	} {
		args := []string{"customer", "show", test.search}
		if test.policy != "" {
			args = append(args, "--policy", test.policy)
		}
		var out bytes.Buffer
		code := run(args, cli.Streams{Out: &out, Err: &out})
		if code != test.code || !strings.HasPrefix(out.String(), test.want) {
			t.Errorf("%s in %s: code %d,\n%s, want %d,\n%s", test.search, test.policy, code, &out, test.code, test.want)
		}
	}
	for search, want := range map[string]string{
		"10.2.0.6": `{"search":"10.2.0.6","customer":"host","place":"` + dir + `/a.csv:3","match":"10.2.0.4/30","addresses":["10.1.0.5","10.2.0.4/30","2001:db8::/32"],"plan":"p","own_parameters":{"rate":"50mbit"},"quota_bytes":7000000000,"meter":{"name":"p",`,
		"11.0.0.0": `{"search":"11.0.0.0","customer":null}` + "\n",
	} {
		var out bytes.Buffer
		code := run([]string{"customer", "show", search, "--json", "-p", addresses}, cli.Streams{Out: &out, Err: &out})
		if !strings.HasPrefix(out.String(), want) || (code == 0) != (search == "10.2.0.6") {
			t.Errorf("%s: code %d, %s, want %s", search, code, &out, want)
		}
	}
}

// TestRandomCustomerShow compares the customers of addresses with those of the model.
func TestRandomCustomerShow(t *testing.T) {
	t.Parallel()
	r := seededRand(t)
	found := 0
	for range *randomPolicyCount {
		text, path := randomCustomers(t, r, "wan", "lan", "ap")
		lines, err := oracle.Site{Dir: filepath.Dir(path)}.Customers([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		for _, addr := range insideAddrs {
			a := netip.MustParseAddr(addr)
			owners := map[string]bool{} // those that contain the address; with nested, the smallest wins
			for _, l := range lines {
				for _, b := range l.Addresses {
					if b[0].BitLen() == a.BitLen() && !a.Less(b[0]) && !b[1].Less(a) {
						owners[l.Name] = true
					}
				}
			}
			if len(owners) > 1 || strings.Contains(text, "vlan\n") || strings.Contains(text, "vlan]\n") {
				continue
			}
			var out bytes.Buffer
			code := run([]string{"customer", "show", addr, "--policy", path}, cli.Streams{Out: &out, Err: &out})
			want, wantCode := "nobody: ", 1
			for name := range owners {
				want, wantCode = "customer "+name+"\n", 0
				found++
			}
			if code != wantCode || !strings.HasPrefix(out.String(), want) {
				t.Fatalf("%s: code %d, %s, want %s, in\n%s", addr, code, &out, want, text)
			}
		}
	}
	if found < *randomPolicyCount/4 {
		t.Errorf("only %d addresses have a customer", found)
	}
}
