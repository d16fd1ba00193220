package policyfile

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// exportPolicy has columns of a billing system, whose keys are as given.
func exportPolicy(keys string) string {
	return ispClasses + "customers: {file: c.csv, " + keys + "}\n" + ispPlans
}

const exportColumns = `columns: {customer: "Customer ID", address: [IPv4, IPv6], plan: Tariff, down: Download, up: Upload}`

// TestNamedColumns reads the same customers from exports of several forms.
func TestNamedColumns(t *testing.T) {
	const plain = `Customer ID,Name,IPv4,IPv6,Tariff,Download,Upload,Price
K-1,"Doe, J.",192.0.2.1,2001:db8:1::/48,quiet,50,10,"12,50"
K-2,Roe,192.0.2.8-9 192.0.2.77,,quiet,100M,,9
K-3,,,2001:db8:3::/48,biz-200,,,9
`
	semicolons := strings.NewReplacer(`"Doe, J."`, "Doe; J.", `"12,50"`, "12,50", ",", ";").Replace(plain)
	semicolons = strings.Replace(semicolons, "Doe; J.", `"Doe; J."`, 1)
	for name, text := range map[string]string{
		"plain":                  plain,
		"BOM, CRLF":              "\ufeff" + strings.ReplaceAll(plain, "\n", "\r\n"),
		"semicolons":             strings.ReplaceAll(semicolons, "12;50", "12,50"),
		"semicolons, and commas": strings.ReplaceAll(strings.Replace(semicolons, "Price", "Price, EUR", 1), "12;50", "12,50"),
		"tabs":                   strings.ReplaceAll(strings.ReplaceAll(strings.ReplaceAll(plain, `"Doe, J."`, "Doe"), `"12,50"`, "12"), ",", "\t"),
		"tabs, commas and semicolons": strings.ReplaceAll(strings.ReplaceAll(strings.ReplaceAll(plain, `"Doe, J."`, "Doe, J."), `"12,50"`, "12,50"), ",", "\t") +
			"\n",
		"case, blanks":     strings.Replace(plain, "Customer ID,Name,IPv4", " customer id ,Name, IPV4", 1),
		"quotes":           `"` + strings.Replace(plain, "Customer ID,Name,IPv4", `Customer ID","Name","IPv4"`, 1),
		"comment":          "# exported; from, the\tbilling system\n\n" + plain,
		"duplicate column": strings.ReplaceAll(strings.Replace(plain, "Price", "Name", 1), "address", ""),
	} {
		if name == "tabs, commas and semicolons" {
			text = strings.Replace(text, "Price", "Price, with VAT; EUR", 1)
			text = strings.ReplaceAll(text, "Doe\t J.", "Doe, J.")
			text = strings.ReplaceAll(text, "12\t50", "12,50")
		}
		f, err := loadCustomers(exportPolicy(exportColumns+", unit: mbit"), text)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		list := f.Policy.Customers.List
		var got []string
		for _, c := range list {
			up := c.Plan
			if upward := c.Plan.Upward(); upward != nil {
				up = upward
			}
			rates := ""
			if c.Plan.Queue != nil {
				rates = fmt.Sprint(c.Plan.Queue.Rate, up.Queue.Rate)
			}
			got = append(got, fmt.Sprint(c.Name, c.Plan.Name, c.Prefixes, rates))
		}
		want := []string{
			"K-1quiet[192.0.2.1/32 2001:db8:1::/48]50mbit 10mbit",
			"K-2quiet[192.0.2.8/31 192.0.2.77/32]100mbit 20mbit",
			"K-3biz-200[2001:db8:3::/48]",
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
		if _, ignored := f.Ignored(); ignored != nil {
			t.Errorf("%s: ignored columns %q", name, ignored)
		}
	}
}

// TestNamedKeys checks columns of VLANs, several contents in one column, and a plan for all.
func TestNamedKeys(t *testing.T) {
	for _, test := range []struct {
		keys, csv string
		want      []dataplane.Customer
	}{
		{
			"key: vlan, columns: {customer: id, vlan: [Access, Voice], plan: t}", "Voice,id,t,vlan,Access\n7 8,a,quiet,99,1\n,b,quiet,,3\n",
			[]dataplane.Customer{{Name: "a", IDs: []uint64{1, 7, 8}}, {Name: "b", IDs: []uint64{3}}},
		},
		{
			"key: [svlan, cvlan], columns: {customer: id, svlan: S, cvlan: C, plan: t}", "C,id,t,S\n7,a,quiet,1\n",
			[]dataplane.Customer{{Name: "a", IDs: []uint64{1<<12 | 7}}},
		},
		{
			"columns: {customer: IP, addresses: IP}, plan: quiet", "IP\n192.0.2.1\n2001:db8::5\n",
			[]dataplane.Customer{
				{Name: "192.0.2.1", Prefixes: prefixes("192.0.2.1/32")}, {Name: "2001:db8::5", Prefixes: prefixes("2001:db8::5/128")},
			},
		},
		{
			"plan: quiet", "customer,address,email\na,::1,x\n",
			[]dataplane.Customer{{Name: "a", Prefixes: prefixes("::1/128")}},
		},
		{
			"plan: window", "customer,address,plan\na,::1,quiet\n",
			[]dataplane.Customer{{Name: "a", Prefixes: prefixes("::1/128")}},
		},
	} {
		f, err := loadCustomers(exportPolicy(test.keys), test.csv)
		if err != nil {
			t.Errorf("%s: %v", test.keys, err)
			continue
		}
		for i := range test.want {
			test.want[i].Plan = f.Policy.Customers.Plans[3]
		}
		if got := f.Policy.Customers.List; !reflect.DeepEqual(got, test.want) {
			t.Errorf("%s: got %+v, want %+v", test.keys, got, test.want)
		}
	}
	// a row without a plan beside others
	f, err := loadCustomers(exportPolicy("plan: biz-200"), "customer,address,plan,rate\na,::1,,50mbit\nb,::2,quiet,\nc,::3,,\n")
	if err != nil {
		t.Fatal(err)
	}
	c := f.Policy.Customers
	if c.List[0].Plan.Name != "biz-200" || c.List[0].Plan == c.Plans[1] || c.List[1].Plan != c.Plans[3] ||
		c.List[2].Plan != c.Plans[1] {
		t.Errorf("got plans %v %v %v", c.List[0].Plan, c.List[1].Plan, c.List[2].Plan)
	}
	// the column of one direction
	f, err = loadCustomers(exportPolicy("columns: {customer: id, address: ip, plan: t, down: d}"), "id,ip,t,d\na,::1,quiet,50mbit\n")
	if err != nil {
		t.Fatal(err)
	}
	p := f.Policy.Customers.List[0].Plan
	if down, up := p.Queue.Rate.String(), p.Upward().Queue.Rate.String(); down != "50mbit" || up != "20mbit" {
		t.Errorf("got %s and %s, want 50mbit and the 20mbit of the plan", down, up)
	}
}

// TestNamedColumnErrors checks the exact errors of columns, unit and plan.
func TestNamedColumnErrors(t *testing.T) {
	const file = "Customer ID,IPv4,IPv6,Tariff,Download,Upload\n"
	const known = "address, addresses, burst, cbs, cir, customer, down, down-guarantee, ebs, eir, guarantee, limit, link, pbs, pir, plan, quota, rate, up, up-guarantee, weight, window"
	for _, test := range []struct{ keys, csv, want string }{
		{"columns: [a]", file, "p.yaml:3:35: columns must be a mapping, not a list"},
		{"columns: {}", file, "p.yaml:3:35: columns needs customer, the name of its column in the file\np.yaml:3:35: columns needs plan, the name of its column in the file, or customers a plan for all: plan: NAME\np.yaml:3:35: columns needs address, the name of its column in the file"},
		{"columns: {customer: a, address: b}, plan: nope", file, `p.yaml:3:68: no plan named "nope": define it under plans:`},
		{"columns: {customer: a, address: b}, plan: Quiet", file, `p.yaml:3:68: no plan named "Quiet" (did you mean "quiet"?): define it under plans:`},
		{"columns: {customer: a, address: b, plan: c, mac: d}", file, `p.yaml:3:70: unknown key "mac" in columns: want one of ` + known},
		{"columns: {customer: a, address: b, plan: c, vlan: d}", file, `p.yaml:3:70: unknown key "vlan" in columns: want one of ` + known},
		{"key: vlan, columns: {customer: a, vlan: b, plan: c, address: d}", file, `p.yaml:3:78: unknown key "address" in columns: want one of ` + strings.Replace(strings.TrimPrefix(known, "address, addresses, "), "up-guarantee, ", "up-guarantee, vlan, ", 1)},
		{"columns: {customer: [a], address: b, plan: c}", file, "p.yaml:3:46: customer must be a single value, not a list"},
		{"columns: {customer: a, address: b, plan: c, down: [d, e]}", file, "p.yaml:3:76: down must be a single value, not a list"},
		{"columns: {customer: a, address: [], plan: c}", file, "p.yaml:3:58: address needs a column"},
		{"columns: {customer: a, address: [b, B], plan: c}", file, `p.yaml:3:62: address: duplicate column "B"`},
		{"columns: {customer: a, address: [b, [c]], plan: c}", file, `p.yaml:3:62: address must be a single value, not a list`},
		{"columns: {customer: a, address: b, addresses: c, plan: c}", file, "p.yaml:3:72: address and addresses are the same: write one of them, with a list of columns"},
		{`columns: {customer: " ", address: b, plan: c}`, file, "p.yaml:3:46: customer: a column needs a name"},
		{"unit: m", file, `p.yaml:3:32: unit: "m" is not a unit of rate: write one of bit kbit mbit gbit tbit, or B/s kB/s MB/s GB/s TB/s`},
		{"unit: mbps", file, `p.yaml:3:32: unit: "mbps" is not a unit of rate: write one of bit kbit mbit gbit tbit, or B/s kB/s MB/s GB/s TB/s`},
		{"unit: MB", file, `p.yaml:3:32: unit: "MB" is not a unit of rate: write one of bit kbit mbit gbit tbit, or B/s kB/s MB/s GB/s TB/s`},
		{"unit: [mbit]", file, "p.yaml:3:32: unit must be a single value, not a list"},
		{"plan: [quiet]", file, "p.yaml:3:32: name must be a single value, not a list"},

		{exportColumns, "CustomerID,IPv4,IP v6,Plan,Download,Up\n", `c.csv:1: no column "Customer ID" for customer (did you mean "CustomerID"?): the first line names "CustomerID", "IPv4", "IP v6", "Plan", "Download", "Up"
c.csv:1: no column "IPv6" for address (did you mean "IP v6"?): the first line names "CustomerID", "IPv4", "IP v6", "Plan", "Download", "Up"
c.csv:1: no column "Tariff" for plan: the first line names "CustomerID", "IPv4", "IP v6", "Plan", "Download", "Up"
c.csv:1: no column "Upload" for up: the first line names "CustomerID", "IPv4", "IP v6", "Plan", "Download", "Up"`},
		{exportColumns, "Customer ID,IPv4,IPv6,Tariff,Download,Upload,ipv6\n", `c.csv:1: duplicate column "IPv6"`},
		{exportColumns, strings.Replace(file, "Upload", "up", 1) + "1,x,,quiet,50,5\n", `c.csv:1: no column "Upload" for up: the first line names "Customer ID", "IPv4", "IPv6", "Tariff", "Download", "up"
c.csv:2: down: "50" is a rate`},
		{exportColumns, "A;B;C\n", `c.csv:1: no column "Customer ID" for customer: the first line names "A", "B", "C"`},
		{
			"columns: {customer: id, address: ip, plan: t}", "# x\nid,ip,t,x;id;ip;t\n",
			"c.csv:2: the first line names the columns with several separators: put cells that contain a separator in quotes",
		},
		{exportColumns, "Customer ID;IPv4;\"IPv6\n", "c.csv:1: " + quoteOpen},
		{exportColumns, "", "c.csv:1: the file is empty: its first line must name the columns customer, plan and others"},
		{"columns: {customer: a, address: b, plan: c, rate: d, up: e}", "a,b,c,d,e\n", "c.csv:1: column rate is for both directions, and columns down and up for one each: remove one or the other"},
		{"columns: {customer: a, address: b, plan: c}, unit: mbit", "a,b,c\n", "c.csv:1: unit is for columns of rates, such as rate, and columns: names none: name one, or remove unit"},
	} {
		_, err := loadCustomers(exportPolicy(test.keys), test.csv)
		want := "etc/" + strings.ReplaceAll(test.want, "\n", "\netc/")
		if err == nil || !strings.HasPrefix(err.Error(), want) ||
			len(err.Error()) > len(want) && !strings.Contains(want, "is a rate") && !strings.Contains(want, `"A", "B"`) {
			t.Errorf("%s %q: got\n%v, want\n%s", test.keys, test.csv, err, want)
		}
	}
}

// TestRateUnit checks the rates that a unit completes.
func TestRateUnit(t *testing.T) {
	for _, test := range []struct{ unit, cell, want string }{
		{"", "50", `rate: "50" is a rate without a unit`},
		{"", "50M", `rate: "M" is ambiguous`},
		{"mbit", "50", "50mbit"},
		{"mbit", "12.5", "12500kbit"},
		{"Mbit", "50", "50mbit"},
		{"Mbit/s", "50", "50mbit"},
		{"mbit", "50M", "50mbit"},
		{"mbit", "50 M", "50mbit"},
		{"mbit", "50m", "50mbit"},
		{"mbit", "512k", "512kbit"},
		{"kbit", "50M", "50mbit"},
		{"kbit", "512", "512kbit"},
		{"bit", "5000000", "5mbit"},
		{"gbit", "1", "1gbit"},
		{"gbit", "0.5T", "500gbit"},
		{"mbit", "50Mbps", "50mbit"},
		{"mbit", "50 Mb/s", "50mbit"},
		{"mbit", "800kb", "800kbit"},
		{"mbit", "800000bps", "800kbit"},
		{"mbit", "50Mbit/s", "50mbit"},
		{"mbit", "3gbit", "3gbit"},
		{"mbit", "1MB/s", "8mbit"},
		{"mbit", "50MB", `rate: "MB" is ambiguous`},
		{"mbit", "50MBps", `rate: "MBps" is ambiguous`},
		{"mbit", "50Mi", `rate: "Mi" is ambiguous`},
		{"mbit", "50x", `rate: "x" is not a unit of rate`},
		{"mbit", "fast", `rate: "fast" is not a rate`},
		{"mbit", "12,5", `rate: ",5" is not a unit of rate`},
		{"mbit", "1000p/1s", `rate: "1000p/1s" is not a rate`},
		{"MB/s", "5", "40mbit"},
		{"MB/s", "5M", "40mbit"},
		{"kB/s", "5MB", "40mbit"},
		{"kB/s", "500kBps", "4mbit"},
		{"KiB/s", "1", "8192bit"},
		{"MB/s", "5Mb", `rate: "Mb" is ambiguous`},
		{"MB/s", "50Mbit/s", "50mbit"},
	} {
		keys := "unit: " + test.unit
		if test.unit == "" {
			keys = ""
		}
		f, err := loadCustomers(exportPolicy(keys), "customer,address,plan,rate\n1,::1,quiet,\""+test.cell+"\"\n")
		if err != nil {
			if !strings.HasPrefix(err.Error(), "etc/c.csv:2: "+test.want) {
				t.Errorf("unit %s, %s: got %v, want %s", test.unit, test.cell, err, test.want)
			}
			continue
		}
		if got := f.Policy.Customers.List[0].Plan.Queue.Rate; got.String() != test.want {
			t.Errorf("unit %s, %s: got %v, want %s", test.unit, test.cell, got, test.want)
		}
	}
}

// TestUnitColumns checks which columns a unit completes: all rates, and nothing else.
func TestUnitColumns(t *testing.T) {
	const plans = `plans:
  tb: {type: token-bucket, rate: 1mbit, burst: 4MiB}
  sr: {type: srtcm, cir: 1mbit, cbs: 4MiB, ebs: 4MiB}
  tr: {type: trtcm, cir: 1mbit, cbs: 4MiB, pir: 20gbit, pbs: 4MiB}
  4115: {type: trtcm4115, cir: 1mbit, cbs: 4MiB, eir: 1mbit, ebs: 4MiB}
  win: {type: fixed-window, limit: 125kB, window: 1s}
  q: {queue: {rate: 1gbit, limit: 50ms, link: l, guarantee: 1mbit, weight: 1}}
links: {l: {rate: 10gbit}}
`
	rate := meter.BitRate(5e6)
	same := map[string]bool{}
	for _, name := range ownNames {
		columns := name + ": d, cir: e" // with a column of rates, which is empty
		if name == "cir" {
			columns = "cir: d"
		}
		for _, plan := range []string{"tb", "sr", "tr", "4115", "win", "q"} {
			f, err := loadCustomers(ispClasses+"customers: {file: c.csv, unit: mbit, columns: {customer: a, address: b, plan: c, "+
				columns+"}}\n"+plans, "a,b,c,d,e\n1,::1,"+plan+",5,\n")
			if err != nil {
				continue // a plan without this parameter, or a text without a unit that needs one
			}
			p := f.Policy.Customers.List[0].Plan
			for _, p := range []*dataplane.ServicePlan{p, cmp.Or(p.Upward(), p)} {
				found := []meter.Rate{p.Guarantee}
				if p.Queue != nil {
					found = append(found, p.Queue.Rate)
				} else {
					for _, b := range p.Params.Buckets() {
						found = append(found, b.Rate)
					}
				}
				if slices.ContainsFunc(found, func(r meter.Rate) bool { return r.Cmp(rate) == 0 }) {
					same[name] = true
				}
			}
		}
	}
	for _, name := range ownNames {
		if same[name] != slices.Contains(rateNames, name) {
			t.Errorf("column %s: a rate of 5mbit %t, want %t", name, same[name], !same[name])
		}
	}
	// plans that count packets
	f, err := loadCustomers(`classes: [{name: a, per: customer, meter: {type: plan, count: packets}}]
customers: {file: c.csv, unit: mbit}
plans: {p: {type: token-bucket, rate: 100p/1s, burst: 10}}
`, "customer,address,plan,rate\n1,::1,p,50\n")
	if err == nil || !strings.HasPrefix(err.Error(), `etc/c.csv:2: rate: "50" is not a rate in packets`) {
		t.Errorf("got %+v, %v", f, err)
	}
}
