package policyfile

import (
	"encoding/csv"
	"fmt"
	"io"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// TestCustomerVariants checks that forms of the same table are read alike.
func TestCustomerVariants(t *testing.T) {
	const plain = "customer,address,plan,rate,note\n" +
		"4711,192.0.2.1 2001:db8::/48,biz-200,250mbit,x\n" +
		"Müller,198.51.100.0/24,home-50,,\n"
	quoted := `"customer","address","plan","rate","note"
"4711","192.0.2.1,2001:db8::/48","biz-200","250mbit","a ""quoted"" note
of two lines"
"Müller"," 198.51.100.0/24 ","home-50","",""
`
	for name, test := range map[string]struct {
		text  string
		lines [2]int // of the customers
	}{
		"plain":            {plain, [2]int{2, 3}},
		"SI units":         {strings.Replace(plain, "250mbit", "250 Mbit/s", 1), [2]int{2, 3}},
		"no line end":      {strings.TrimSpace(plain), [2]int{2, 3}},
		"CRLF":             {strings.ReplaceAll(plain, "\n", "\r\n"), [2]int{2, 3}},
		"CRLF, no end":     {strings.TrimSuffix(strings.ReplaceAll(plain, "\n", "\r\n"), "\n"), [2]int{2, 3}},
		"BOM":              {"\ufeff" + plain, [2]int{2, 3}},
		"BOM, comment":     {"\ufeff# exported, from 7; at 12:00\r\n" + strings.ReplaceAll(strings.ReplaceAll(plain, ",", ";"), "\n", "\r\n"), [2]int{3, 4}},
		"comments, blanks": {"\n# a \"comment\n \t \n" + strings.ReplaceAll(plain, "\n", "\n#x\n\r\n,,,,\n"), [2]int{8, 12}},
		"semicolons":       {strings.ReplaceAll(plain, ",", ";"), [2]int{2, 3}},
		"tabs":             {strings.ReplaceAll(plain, ",", "\t"), [2]int{2, 3}},
		"tabs, quotes":     {strings.ReplaceAll(quoted, `","`, "\"\t\""), [2]int{2, 4}},
		"quotes":           {quoted, [2]int{2, 4}},
		"quotes, CRLF":     {"\ufeff" + strings.ReplaceAll(quoted, "\n", "\r\n"), [2]int{2, 4}},
		"semicolons in addresses": {
			"customer,addresses,plan,rate,note\n4711,192.0.2.1;2001:db8::/48 ; ,biz-200,250mbit,x\nMüller,198.51.100.0/24,home-50,,\n", [2]int{2, 3},
		},
		"lines in addresses": {
			"customer,address,plan,rate,note\n4711,\"192.0.2.1\r\n 2001:db8::/48\",biz-200,250mbit,x\n\nMüller,198.51.100.0/24,home-50,,\n", [2]int{2, 5},
		},
		"blanks around cells": {" Customer ,ADDRESS\t,  \"plan\" ,Rate,note\n  4711 ,\t192.0.2.1 2001:db8::/48 , \"biz-200\"\t, 250mbit,x\nMüller,198.51.100.0/24,home-50\n", [2]int{2, 3}},
		"order of columns":    {"note,plan,rate,address,customer\nx,biz-200,250mbit,192.0.2.1 2001:db8::/48,4711\n,home-50,,198.51.100.0/24,Müller\n", [2]int{2, 3}},
		"commas in the header": {
			strings.Replace(strings.ReplaceAll(strings.ReplaceAll(quoted, `","`, `";"`), "192.0.2.1,2001",
				"192.0.2.1;2001"), `"note"`, `"n""o, te"`, 1),
			[2]int{2, 4},
		},
		"empty columns": {"customer,address,plan,rate,note,,\n4711,192.0.2.1 2001:db8::/48,biz-200,250mbit,x,,\nMüller,198.51.100.0/24,home-50,,,,,,\n", [2]int{2, 3}},
	} {
		f, err := loadCustomers(ispPolicy, test.text)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		c := f.Policy.Customers
		fast := *c.Plans[1]
		fast.Params = c.List[0].Plan.Params
		want := []dataplane.Customer{
			{Name: "4711", Prefixes: prefixes("192.0.2.1/32", "2001:db8::/48"), Plan: &fast},
			{Name: "Müller", Prefixes: prefixes("198.51.100.0/24"), Plan: c.Plans[0]},
		}
		if !reflect.DeepEqual(c.List, want) || c.List[0].Plan == c.Plans[1] || c.List[1].Plan != c.Plans[0] {
			t.Errorf("%s: got %+v, want %+v", name, c.List, want)
		}
		for i, line := range test.lines {
			if got, want := f.Place(&c.List[i], ""), fmt.Sprintf("etc/c.csv:%d", line); got != want {
				t.Errorf("%s: customer %d is at %s, want %s", name, i, got, want)
			}
		}
		if _, ignored := f.Ignored(); len(ignored) != 1 || ignored[0] != "note" && ignored[0] != `n"o, te` {
			t.Errorf("%s: ignored columns %q, want note", name, ignored)
		}
	}
}

// TestRowErrors checks the exact errors of a file of customers, and that an error loads
// nothing.
func TestRowErrors(t *testing.T) {
	const header = "customer,address,plan,rate,cir,cbs,limit\n"
	row := func(text string) string { return header + "1,10.0.0.1,home-50\n" + text + "\n" }
	for _, test := range []struct{ name, csv, want string }{
		{"empty", "", "1: the file is empty: its first line must name the columns customer, plan and others"},
		{"blank", "\ufeff\r\n# nothing\n", "1: the file is empty: its first line must name the columns customer, plan and others"},
		{"no customer", "\nname,address,plan\n", "2: column customer is missing: the first line must name the columns customer, plan, address; columns: in the policy maps other names"},
		{"no address", "customer,plan,vlan\n", "1: column address is missing: the first line must name the columns customer, plan, address; columns: in the policy maps other names"},
		{"near columns", "Custmer,Adress,PLAN\n", "1: column customer is missing (is it \"Custmer\"?): the first line must name the columns customer, plan, address; columns: in the policy maps other names\n1: column address is missing (is it \"Adress\"?): the first line must name the columns customer, plan, address; columns: in the policy maps other names"},
		{"rows without a column", "customer,adress,plan\n1,::1,gold\n1,::1,quiet\n", "1: column address is missing (is it \"adress\"?): the first line must name the columns customer, plan, address; columns: in the policy maps other names\n2: no plan named \"gold\": define it under plans:\n3: customer \"1\" is the name of an earlier customer (line 2): names must differ"},
		{"rows without a plan", "customer,address,tariff,rate\n1,::x,gold,5mbit\n,::1,quiet,5\n", "1: column plan is missing: the first line must name the columns customer, plan, address; columns: in the policy maps other names\n2: address: \"::x\" is not an address or a prefix such as 192.0.2.0/24\n3: customer is missing: each customer needs a name\n3: rate: \"5\" is a rate without a unit: write 5bit for bits or 5B/s for bytes per second"},
		{"no plan", "customer,address\n", "1: column plan is missing: the first line must name the columns customer, plan, address; columns: in the policy maps other names"},
		{"semicolons, and a comma", "customer;address;plan;price, EUR\n1;::1;home-50;5\n", "1: the first line has a comma, so commas are the separators: put cells with a comma in quotes"},
		{"tabs, and a comma", "customer\taddress\tplan\tprice, EUR\n1\t::1\thome-50\t5\n", "1: the first line has a comma, so commas are the separators: put cells with a comma in quotes"},
		{"column twice", "customer,address,plan,Plan\n", `1: duplicate column "Plan"`},
		{"parameter twice", "customer,address,plan,rate,RATE\n", `1: duplicate column "RATE"`},
		{"both names of a column", "customer,address,plan,addresses\n", `1: duplicate column "addresses"`},
		{"quote in the header", "customer,address,\"plan\n", "1: " + quoteOpen},
		{"carriage returns", "customer,address,plan\r1,::1,home-50\r", "1: a carriage return inside a line: end lines with a line feed, or with both"},
		{"UTF-16", "\xff\xfec\x00", "1: the file is UTF-16: save it as UTF-8"},
		{"Latin-1", header + "M\xfcller,::1,home-50\n", "2: byte 0xfc is not UTF-8: save the file as UTF-8"},
		{"wrong byte order mark", "\xef\xbb", "1: byte 0xef is not UTF-8: save the file as UTF-8"},

		{"name missing", row(",10.0.0.2,home-50"), "3: customer is missing: each customer needs a name"},
		{"name too long", row(strings.Repeat("ü", 65) + ",10.0.0.2,home-50"), "3: customer: the name has 65 characters, the maximum is 64"},
		{"name unprintable", row("a\x1bb,10.0.0.2,home-50"), `3: customer: name "a\x1bb" has unprintable characters`},
		{"name with a line", row("\"a\nb\",10.0.0.2,home-50"), `3: customer: name "a\nb" has unprintable characters`},
		{"plan missing", row("2,10.0.0.2"), "3: plan is missing: each customer needs a plan of the policy"},
		{"plan unknown", row("2,10.0.0.2,Home-50"), `3: no plan named "Home-50" (did you mean "home-50"?): define it under plans:`},
		{"address", row("2,10.0.0.256,home-50"), `3: address: "10.0.0.256" is not an address or a prefix such as 192.0.2.0/24`},
		{"second address", row("2,10.0.0.2 x,home-50"), `3: address: "x" is not an address or a prefix such as 192.0.2.0/24`},
		{"prefix length", row("2,10.0.0.0/33,home-50"), `3: address: "10.0.0.0/33" is not an address or a prefix such as 192.0.2.0/24`},
		{"bits beyond the prefix", row("2,10.0.0.1/24,home-50"), "3: address: 10.0.0.1/24 has bits beyond its length: write 10.0.0.0/24, or 10.0.0.1 for the single address"},
		{"zone", row("2,fe80::1%eth0,home-50"), `3: address: "fe80::1%eth0" is not an address or a prefix such as 192.0.2.0/24`},
		{"IPv4 in IPv6", row("2,::ffff:10.0.0.2,home-50"), `3: address: "::ffff:10.0.0.2" is IPv4 in IPv6: write 10.0.0.2/32`},
		{"IPv4 prefix in IPv6", row("2,::ffff:10.0.0.0/104,home-50"), `3: address: "::ffff:10.0.0.0/104" is IPv4 in IPv6: write 10.0.0.0/8`},
		{"parameter of another type", row("2,::1,home-50,50mbit"), `3: rate: plan "home-50" has no such parameter: a meter of type trtcm has cir, cbs, pir, pbs`},
		{"parameter of a meter in a queue", row("2,::1,quiet,,1mbit"), `3: cir: plan "quiet" has no such parameter: a queue has rate, down, up, limit, link, guarantee, down-guarantee, up-guarantee, weight`},
		{"parameter without unit", row("2,::1,home-50,,50"), `3: cir: "50" is a rate without a unit: write 50bit for bits or 50B/s for bytes per second`},
		{"limit of a queue in bytes", row("2,::1,quiet,,,,64KiB"), `3: limit: "64KiB" is not a time: write a number with one of ns us ms s min h d`},
		{"limit of a window", row("2,::1,window,,,,10mbit"), `3: limit: "10mbit" is not a size: write a number of bytes, such as 125kB, and their time as window: 1s`},
		{"limit of a window in words", row("2,::1,window,,,,none"), `3: limit: "none" is not a size: write a number of bytes, such as 125kB, and their time as window: 1s`},
		{"burst in time below a byte", row("2,::1,home-50,,8bit,1ms"), "3: cbs: 1ms at 8bit is less than one byte: give a longer time, or bytes"},
		{"more cells", row("2,::1,home-50,,,,,x"), "3: the line has 8 cells, the first line 7: put a cell that contains ',' in quotes"},
		{"commas without quotes", row("2,10.0.0.2,10.0.0.3,10.0.0.4,,,,home-50"), "3: the line has 8 cells, the first line 7: put a cell that contains ',' in quotes"},
		{"1001 cells", row(strings.Repeat(",", 1000) + "\n2,::1,x"), "3: the line has more than 1000 cells\n4: no plan named \"x\": define it under plans:"},
		{"1001 cells with quotes", row(`""` + strings.Repeat(",", 1000) + "\n2,::1,x"), "3: the line has more than 1000 cells\n4: no plan named \"x\": define it under plans:"},
		{"quote inside", row(`2,::1,home"50"`), "3: " + quoteInside},
		{"text after a quote", row(`2,::1,"home"-50`), "3: " + quoteAfter},
		{"quote open", row(`"2,::1,home-50`), "3: " + quoteOpen},
		{
			"lines after a quote", row("\"2,::1,home-50\n3,::1,x\n\"4\",\"\"\"\",home-50"),
			"3: " + quoteAfter + "\n4: no plan named \"x\": define it under plans:\n5: address: \"\\\"\" is not an address or a prefix such as 192.0.2.0/24",
		},
		{
			"own parameters after an error", row("2,::1,biz-200,5\n3,::2,biz-200,5mbit\n4,::3,biz-200,5"),
			"3: rate: \"5\" is a rate without a unit: write 5bit for bits or 5B/s for bytes per second (lines 3 and 5)",
		},
		{
			"long cell", row("2," + strings.Repeat("ä", 1e6) + ",home-50"),
			`3: address: "` + strings.Repeat("ä", 195) + "…" + strings.Repeat("ä", 174) + `" is not an address or a prefix such as 192.0.2.0/24`,
		},
		{"two in a line", row("2,x,y"), "3: no plan named \"y\": define it under plans:\n3: address: \"x\" is not an address or a prefix such as 192.0.2.0/24"},
	} {
		f, err := loadCustomers(ispPolicy, test.csv)
		want := "etc/c.csv:" + strings.ReplaceAll(test.want, "\n", "\netc/c.csv:")
		if err == nil || err.Error() != want || f != nil {
			t.Errorf("%s: got %v, %v, want\n%s", test.name, f, err, want)
		}
	}
}

// TestVLANErrors checks the exact errors of customers with VLANs.
func TestVLANErrors(t *testing.T) {
	for _, test := range []struct{ key, csv, want string }{
		{"vlan", "vlan,customer,plan\n4096,1,quiet\n", `2: vlan: "4096" is not a VLAN ID from 0 to 4095`},
		{"vlan", "vlan,customer,plan\n1 0x2 -3,1,quiet\n", "2: vlan: \"0x2\" is not a VLAN ID from 0 to 4095\netc/c.csv:2: vlan: \"-3\" is not a VLAN ID from 0 to 4095"},
		{"vlan", "svlan,cvlan,customer,plan\n", "1: column vlan is missing: the first line must name the columns customer, plan, vlan; columns: in the policy maps other names"},
		{"[svlan, cvlan]", "svlan,customer,plan\n", "1: column cvlan is missing: the first line must name the columns customer, plan, svlan, cvlan; columns: in the policy maps other names"},
		{"[svlan, cvlan]", "svlan,cvlan,customer,plan\n1,,1,quiet\n", "2: svlan and cvlan go together: fill both cells, or none"},
		{"[svlan, cvlan]", "svlan,cvlan,customer,plan\n1,1 2,1,quiet\n", `2: cvlan: "1 2" is not a VLAN ID from 0 to 4095`},
	} {
		policy := ispClasses + "customers: {file: c.csv, key: " + test.key + "}\n" + ispPlans
		if _, err := loadCustomers(policy, test.csv); err == nil || err.Error() != "etc/c.csv:"+test.want {
			t.Errorf("%s %q: got %v, want etc/c.csv:%s", test.key, test.csv, err, test.want)
		}
	}
}

// TestMaxCustomers checks the largest table, and the next one.
func TestMaxCustomers(t *testing.T) {
	var b strings.Builder
	b.WriteString("customer,address,plan\n")
	for i := range dataplane.MaxCustomers {
		fmt.Fprintf(&b, "%d,,quiet\n", i)
	}
	text := b.String()
	f, err := loadCustomers(ispPolicy, text)
	if err != nil || len(f.Policy.Customers.List) != dataplane.MaxCustomers {
		t.Fatal(err)
	}
	last := &f.Policy.Customers.List[dataplane.MaxCustomers-1]
	if got := f.Place(last, ""); got != "etc/c.csv:1048577" {
		t.Errorf("the last customer is at %s, want line 1048577", got)
	}
	if _, err := loadCustomers(ispPolicy, text+"a,,quiet\nb,,quiet\n"); err == nil ||
		err.Error() != "etc/c.csv:1048578: more than 1048576 customers, the maximum" {
		t.Error(err)
	}
}

// manyRows returns a table like those of an ISP: IPv4 and IPv6, and one in ten customers with a
// rate of its own.
func manyRows(n int) string {
	var b strings.Builder
	b.WriteString("\ufeffcustomer,address,plan,pir\r\n")
	for i := range n {
		own := ""
		if i%10 == 0 {
			own = fmt.Sprintf("%dmbit", 60+i/10%100)
		}
		fmt.Fprintf(&b, "%08d,10.%d.%d.%d 2001:db8:%x:%x::/64,home-50,%s\r\n", i, i>>16, i>>8&255, i&255,
			i>>16, i&0xffff, own)
	}
	return b.String()
}

// TestManyCustomers reads 100,000 customers with 99 plans of their own.
func TestManyCustomers(t *testing.T) {
	const n = 100_000
	f, err := loadCustomers(ispPolicy, manyRows(n))
	if err != nil {
		t.Fatal(err)
	}
	plans := map[*dataplane.ServicePlan]int{}
	for i, c := range f.Policy.Customers.List {
		plans[c.Plan]++
		v6 := fmt.Sprintf("2001:db8:%x:%x::/64", i>>16, i&0xffff)
		want := prefixes(fmt.Sprintf("10.%d.%d.%d/32", i>>16, i>>8&255, i&255), v6)
		if c.Name != fmt.Sprintf("%08d", i) || !slices.Equal(c.Prefixes, want) ||
			cap(c.Prefixes) != len(want) {
			t.Fatalf("customer %d: got %+v, want %v", i, c, want)
		}
	}
	if len(plans) != 100 || plans[f.Policy.Customers.Plans[0]] != n*9/10+n/1000 {
		t.Errorf("%d plans, %d customers have that of the policy", len(plans),
			plans[f.Policy.Customers.Plans[0]])
	}
}

// TestCustomersMemory checks that a policy does not keep the text of the file.
func TestCustomersMemory(t *testing.T) {
	const n, note = 10_000, 1000 // rows, and bytes of a column that is ignored
	heap := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := heap()
	f, err := loadCustomers(ispPolicy, "customer,address,plan,cir,note\n"+strings.Repeat(
		"1,::1,home-50,1mbit,"+strings.Repeat("x", note)+"\n", n))
	if err != nil {
		t.Fatal(err)
	}
	if kept := heap() - before; kept > n*note/2 {
		t.Errorf("a policy of %d customers keeps %d bytes", n, kept)
	}
	runtime.KeepAlive(f)
}

// BenchmarkCustomers reads tables. Compare the bytes per row with those of names and prefixes.
func BenchmarkCustomers(b *testing.B) {
	one := strings.Repeat("12345678,192.0.2.1,home-50,\n", 1_000_000)
	for name, text := range map[string]string{
		"100000": manyRows(100_000), "1000000": manyRows(1_000_000), "1000000 with one address": "customer,address,plan,pir\n" + one,
	} {
		n := strings.Count(text, "\n") - 1
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for range b.N {
				if _, err := loadCustomers(ispPolicy, text); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/row")
		})
	}
}

// FuzzCustomers compares rows with those of encoding/csv, and reads any text as customers.
func FuzzCustomers(f *testing.F) {
	for _, seed := range []string{
		"customer,address,plan\n1,10.0.0.1,quiet\n", "\ufeffcustomer;address;plan\r\n1;\"10.0.0.0/8\n::1\";quiet\r\n",
		"a\t\"b\"\"c\"\n#x\n\n \n,\"\",\n", `"a" ,"b`, "customer,vlan,plan,rate\n\"1\",2 3;4,biz-200,1mbit", "a,\"b\"c\nd,e\"f\n",
		"customer,address,plan,quota\n1,::1,biz-200,5GB\n",
		"customer,address,plan,down,up,down-guarantee,up-guarantee\n1,::1,quiet,1mbit,,,\n2,::2,biz-200,,2mbit,,\n",
	} {
		f.Add(seed, uint8(0))
	}
	for _, seed := range []string{
		"id;v4;v6;t;d\n1;10.0.0.1-9;::1-f;quiet;50\n2;10.0.0.20 - 10.0.1.7;;;50M\n", "ID,v4,V6,t,d\na,::-ffff,,quiet,1Mbps\n",
		"id\tv4\tv6\tt\td\na\t10.0.0.0/8\t\tbiz-200\t\nb\t10.0.0.3-9\t\t\t2.5\n",
	} {
		f.Add(seed, uint8(3))
		f.Add(seed, uint8(4))
	}
	keys := []string{
		"key: address", "key: vlan", "key: [svlan, cvlan]",
		"columns: {customer: ID, address: [v4, v6], plan: t, rate: d}, unit: mbit, plan: quiet",
		"columns: {customer: ID, address: [v4, v6], plan: t, down: d}, unit: kB/s, nested: true",
	}
	f.Fuzz(func(t *testing.T, text string, key uint8) {
		policy := ispClasses + "customers: {file: c.csv, " + keys[int(key)%len(keys)] + "}\n" +
			strings.Replace(ispPlans, "burst: 4MiB",
				"burst: 4MiB, quota: {limit: 1GB, every: day, then: quiet}", 1)
		file, err := loadCustomers(policy, text)
		if err == nil {
			for i := range file.Policy.Customers.List {
				if c := &file.Policy.Customers.List[i]; c.Name == "" || c.Plan == nil {
					t.Errorf("customer %d: %+v", i, c)
				}
			}
		} else if file != nil {
			t.Error("an error has loaded a policy")
		}
		if want, ok := standardRows(text); ok {
			if got := allRows(t, text); !reflect.DeepEqual(got, want) {
				t.Errorf("got %q, want %q", got, want)
			}
		}
	})
}

// allRows returns the rows of a text.
func allRows(t *testing.T, text string) (rows [][]string) {
	r := newCSVReader(text)
	for {
		problem, ok := r.read()
		if !ok {
			return rows
		}
		if problem == tooManyCells {
			continue
		}
		if problem != "" {
			t.Fatalf("line %d: %s", r.line, problem)
		}
		if r.at < len(r.text) {
			if want := 1 + strings.Count(r.text[:r.at], "\n"); r.next != want {
				t.Fatalf("the next line is %d, want %d", r.next, want)
			}
		}
		rows = append(rows, standardRow(r.cells))
	}
}

// standardRow has the line ends of encoding/csv, which replaces CRLF in quotes.
func standardRow(cells []string) (row []string) {
	for _, cell := range cells {
		row = append(row, strings.ReplaceAll(cell, "\r\n", "\n"))
	}
	return row
}

// standardRows returns the rows that encoding/csv reads. ok is false for texts that it rejects,
// and for texts with other white space, which it removes before a cell.
func standardRows(text string) (rows [][]string, ok bool) {
	text = strings.ReplaceAll(text, "\r\n", "\n")
	if strings.ContainsFunc(text,
		func(r rune) bool { return unicode.IsSpace(r) && r != ' ' && r != '\t' && r != '\n' }) {
		return nil, false
	}
	header := newCSVReader(text)
	r := csv.NewReader(strings.NewReader(header.text))
	r.Comma, r.Comment, r.FieldsPerRecord, r.TrimLeadingSpace = rune(header.comma), '#', -1, true
	if r.Comma == '\t' {
		r.TrimLeadingSpace = false // it would remove separators
	}
	for {
		row, err := r.Read()
		if err == io.EOF {
			return rows, true
		}
		if err != nil {
			return nil, false
		}
		for i, cell := range row {
			row[i] = strings.Trim(cell, " \t\r\n")
		}
		if strings.Join(row, "") != "" && len(row) <= maxCells {
			rows = append(rows, row)
		}
	}
}

// treePolicy has customers on links, by rows and by a plan.
const treePolicy = `classes: [{name: all, per: customer, meter: plan}]
links: {site: {rate: 40mbit}, ap-1: {link: site, rate: 25mbit}, ap-2: {link: site, guarantee: 5mbit}}
plans:
  p: {queue: {rate: 20mbit, limit: 50ms, fair: [dst, flow]}}
  fixed: {queue: {link: ap-2, guarantee: 1mbit, weight: 3, limit: 50ms, ecn: true}}
  biz: {type: token-bucket, rate: 200mbit, burst: 50ms}
  gold: {queue: {rate: 20mbit, guarantee: 3mbit, weight: 2, limit: 50ms}}
customers: {file: c.csv}
`

// TestCustomersOnLinks checks the places of customers in the tree: of the row, or of the plan.
func TestCustomersOnLinks(t *testing.T) {
	f, err := loadCustomers(treePolicy, "customer,address,plan,link,rate,guarantee,weight\n"+
		"1,10.0.0.1,p,ap-1,,,\n2,10.0.0.2,p,ap-1,,2mbit,7\n3,10.0.0.3,fixed,,,,\n4,10.0.0.4,p,,30mbit,,\n5,10.0.0.5,gold,ap-1,,,\n")
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{
		"ap-1 20mbit 0bit 0 dst flow", "ap-1 20mbit 2mbit 7 dst flow", "ap-2 40mbit 1mbit 3  ",
		" 30mbit 0bit 0 dst flow", "ap-1 20mbit 3mbit 2  ",
	} {
		p := f.Policy.Customers.List[i].Plan
		link := ""
		if p.Link != nil {
			link = p.Link.Name
		}
		if got := fmt.Sprintf("%s %v %v %d %v %v", link, p.Drain(), p.Guarantee, p.Weight, p.Hosts, p.Fair); got != want {
			t.Errorf("customer %d: got %q, want %q", i+1, got, want)
		}
	}
	plan, err := f.Compile()
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(plan.Trees); got != "[{[] [] [4]} {[0 1 2] [] [1 2 3 5]}]" {
		t.Errorf("got trees %s", got)
	}
	for _, test := range []struct{ row, want string }{
		{"1,::1,p,ap-3", `c.csv:2: no link named "ap-3": define it under links:`},
		{"1,::1,p,ap 1", `c.csv:2: no link named "ap 1" (did you mean "ap-1"?): define it under links:`},
		{"1,::1,fixed,ap-1", `c.csv:2: link: plan "fixed" has link ap-2 already: remove one`},
		{"1,::1,biz,ap-1", `c.csv:2: link: plan "biz" has no such parameter: a meter of type token-bucket has rate, burst`},
		{"1,::1,p,,,1mbit", "c.csv:2: link is missing: guarantee, priority and weight are for a queue on a link"},
		{"1,::1,gold", "c.csv:2: link is missing: guarantee, priority and weight are for a queue on a link"},
		{"1,::1,p,ap-1,,21mbit", "c.csv:2: guarantee of 21mbit is above the rate of 20mbit"},
		{"1,::1,p,ap-1,,,1001", "c.csv:2: weight 1001 is not between 1 and 1000"},
		{"1,::1,p,ap-1,,,0", "c.csv:2: weight must be at least 1"},
		{"1,::1,p,ap-1,,,0.5", `c.csv:2: weight: "0.5" is not`},
	} {
		f, err := loadCustomers(treePolicy, "customer,address,plan,link,rate,guarantee,weight\n"+test.row+"\n")
		if err == nil {
			_, err = f.Compile()
		}
		if err == nil || !strings.HasPrefix(err.Error(), "etc/"+test.want) {
			t.Errorf("%s: got %v, want %s", test.row, err, test.want)
		}
	}
}
