package policyfile

import (
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

const (
	ispClasses = "classes:\n  - {name: customers, per: customer, meter: plan}\n"
	ispPlans   = `plans:
  home-50: {type: trtcm, cir: 50mbit, cbs: 1MiB, pir: 60mbit, pbs: 20ms, yellow: {dscp: af12}}
  biz-200: {type: token-bucket, rate: 200mbit, burst: 4MiB}
  window: {type: fixed-window, limit: 125kB, window: 1s}
  quiet: {queue: {rate: 20mbit, limit: 50ms, codel: true}}
`
	ispPolicy = ispClasses + "customers: {file: c.csv}\n" + ispPlans
)

// files returns a reader of files in memory.
func files(texts map[string]string) ReadFile {
	return func(path string) (string, error) {
		if text, ok := texts[path]; ok {
			return text, nil
		}
		return "", errors.New("no such file")
	}
}

// loadCustomers loads a policy with the file c.csv.
func loadCustomers(policy, csv string) (*File, error) {
	return LoadWith("etc/p.yaml", []byte(policy), files(map[string]string{"c.csv": csv}))
}

func prefixes(texts ...string) (out []netip.Prefix) {
	for _, s := range texts {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

// TestCustomers checks all of a policy with customers.
func TestCustomers(t *testing.T) {
	f, err := loadCustomers(`
plans:
  home: {type: trtcm, cir: 50mbit, cbs: 1MiB, pir: 60mbit, pbs: 20ms, yellow: {dscp: af12}}
  quiet: {queue: {rate: 20mbit, limit: 50ms, codel: true, ecn: true}, red: {queue: bulk}}
customers: {file: c.csv, key: [src], nested: true}
classes:
  - {name: a, per: customer, meter: plan, then: uplink}
  - {name: b, per: customer, match: {proto: udp}, meter: {type: plan, color: aware, precolor: {from: pcp}, then: uplink}, red: pass}
meters: {uplink: {type: token-bucket, rate: 1gbit, burst: 1MiB, color: aware}}
queues: {bulk: {rate: 1mbit, limit: 1s}}
`, `customer,addresses,plan,pir,rate,LIMIT,email
1,192.0.2.1 2001:db8::/48;198.51.100.0/24,home,,,,a@example.com
2,192.0.2.2,home,80mbit,,,
3,,home,80000kbit,,
4,192.0.2.4,home,60mbit,,,
5,192.0.2.5,quiet,,30mbit,70ms,
6,192.0.2.6,quiet,,30mbit,70ms
`)
	if err != nil {
		t.Fatal(err)
	}
	p := f.Policy
	c := p.Customers
	if c.Key != dataplane.BySource || !c.Nested || len(c.Plans) != 2 || len(c.List) != 6 {
		t.Fatalf("customers: %+v", c)
	}
	mbit := meter.Rate{Bytes: 1, Period: 8000}
	home := meter.TRTCM{
		CIR: meter.Rate{Bytes: 1, Period: 160}, CBS: 1 << 20, PIR: meter.Rate{Bytes: 3, Period: 400},
		PBS: 150_000,
	}
	faster := home
	faster.PIR, faster.PBS = meter.Rate{Bytes: 1, Period: 100}, 200_000 // 20ms at the new rate
	codel := queue.CoDel{Target: 5 * time.Millisecond, Interval: 100 * time.Millisecond}
	quiet := &queue.Config{
		Rate: meter.Rate{Bytes: 1, Period: 400}, Time: 50 * time.Millisecond, CoDel: codel, ECN: true,
	}
	own := &queue.Config{
		Rate: meter.Rate{Bytes: 3, Period: 800}, Time: 70 * time.Millisecond, CoDel: codel, ECN: true,
	}
	yellow := &dataplane.Action{Marks: []dataplane.Mark{{Field: dataplane.DSCP, Value: 12}}}
	plans := []*dataplane.ServicePlan{
		{Name: "home", Params: home, Yellow: yellow},
		{Name: "quiet", Queue: quiet, Red: &dataplane.Action{Queue: p.Queues[0]}},
	}
	if !reflect.DeepEqual(c.Plans, plans) {
		t.Errorf("plans: got %+v %+v, want %+v %+v", c.Plans[0], c.Plans[1], plans[0], plans[1])
	}
	want := []dataplane.Customer{
		{Name: "1", Plan: plans[0], Prefixes: prefixes("192.0.2.1/32", "2001:db8::/48", "198.51.100.0/24")},
		{Name: "2", Plan: &dataplane.ServicePlan{Name: "home", Params: faster, Yellow: yellow}, Prefixes: prefixes("192.0.2.2/32")},
		{Name: "3", Plan: &dataplane.ServicePlan{Name: "home", Params: faster, Yellow: yellow}},
		{Name: "4", Plan: plans[0], Prefixes: prefixes("192.0.2.4/32")},
		{Name: "5", Plan: &dataplane.ServicePlan{Name: "quiet", Queue: own, Red: plans[1].Red}, Prefixes: prefixes("192.0.2.5/32")},
		{Name: "6", Plan: &dataplane.ServicePlan{Name: "quiet", Queue: own, Red: plans[1].Red}, Prefixes: prefixes("192.0.2.6/32")},
	}
	for i := range want {
		if !reflect.DeepEqual(c.List[i], want[i]) {
			t.Errorf("customer %d: got %+v, want %+v", i+1, c.List[i], want[i])
		}
	}
	list := c.List
	if list[0].Plan != c.Plans[0] || list[3].Plan != c.Plans[0] || list[1].Plan != list[2].Plan ||
		list[4].Plan != list[5].Plan || list[5].Plan == c.Plans[1] {
		t.Error("plans with the same values must be one")
	}
	uplink := p.Meters[0]
	a, b := p.Classes[0], p.Classes[1]
	if !a.Match.Customer || !reflect.DeepEqual(a.Meter, &dataplane.Meter{Name: "a", Then: uplink}) {
		t.Errorf("class a: %+v %+v", a, a.Meter)
	}
	if !b.Match.Customer ||
		!reflect.DeepEqual(b.Meter, &dataplane.Meter{
			Name: "b", Then: uplink, Aware: true, PreColor: dataplane.PreColor{From: dataplane.PCP},
		}) {
		t.Errorf("class b: %+v %+v", b, b.Meter)
	}
	if uplink.Params.(meter.TokenBucket).Rate == mbit {
		t.Error("uplink has another rate")
	}

	place, ignored := f.Ignored()
	if place != "etc/c.csv:1" || !reflect.DeepEqual(ignored, []string{"email"}) {
		t.Errorf("ignored columns: got %s %q, want etc/c.csv:1 [email]", place, ignored)
	}
	for _, test := range []struct {
		object any
		key    string
		want   string
	}{
		{&list[0], "address", "etc/c.csv:2"},
		{&list[5], "", "etc/c.csv:7"},
		{list[1].Plan, "pir", "etc/c.csv:3"},
		{list[4].Plan, "rate", "etc/c.csv:6"},
		{c.Plans[0], "pir", "etc/p.yaml:3:52"},
		{c.Plans[1], "limit", "etc/p.yaml:4:40"},
		{c, "key", "etc/p.yaml:5:31"},
		{c, "", "etc/p.yaml:5:12"},
		{a.Meter, "then", "etc/p.yaml:7:37"},
		{&p.Classes[0], "per", "etc/p.yaml:7:20"},
	} {
		if got := f.Place(test.object, test.key); got != test.want {
			t.Errorf("place of %q: got %s, want %s", test.key, got, test.want)
		}
	}
	first := &dataplane.FieldError{Object: &list[1], Field: "address", Reason: "is wrong"}
	second := &dataplane.FieldError{Object: c, Field: "key", Reason: "is wrong, too"}
	got := f.Placed(errors.Join(first, second)).Error()
	if want := "etc/p.yaml:5:31: key is wrong, too\netc/c.csv:3: address is wrong"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestCustomersCount checks that plans have the unit of their classes.
func TestCustomersCount(t *testing.T) {
	f, err := loadCustomers(`classes: [{name: a, per: customer, meter: {type: plan, count: packets}}]
customers: {file: c.csv}
plans: {p: {type: token-bucket, rate: 100p/1s, burst: 10}}
`, "customer,address,plan,rate\n1,::1,p,200p/1s\n")
	if err != nil {
		t.Fatal(err)
	}
	want := meter.TokenBucket{Rate: meter.Rate{Bytes: 1, Period: 5_000_000}, Burst: 10}
	if got := f.Policy.Customers.List[0].Plan.Params; got != want || !f.Policy.Classes[0].Meter.Packets {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// TestCustomerKeys checks the columns that each key reads.
func TestCustomerKeys(t *testing.T) {
	const header = "customer,address,vlan,svlan,cvlan,mac,vni,teid,mark,cgroup,plan\n"
	const row = `1,::/0,"0,12;4095",100,7,02:00:5E:10:00:0a 02:00:5e:10:00:01,5 0xffffff,9 0xffffffff,7 0xff000000,/a /b.slice/c,quiet`
	const pair = `1,::/0,12,100,7,02:00:5E:10:00:0a 02:00:5e:10:00:01,5,9,7,/a,quiet`
	for _, test := range []struct {
		key     string
		want    dataplane.Customer
		code    dataplane.CustomerKey
		ignored string
		row     string
	}{
		{"address", dataplane.Customer{Prefixes: prefixes("::/0")}, dataplane.ByInside, "vlan svlan cvlan mac vni teid mark cgroup", row},
		{"[address]", dataplane.Customer{Prefixes: prefixes("::/0")}, dataplane.ByInside, "vlan svlan cvlan mac vni teid mark cgroup", row},
		{"src", dataplane.Customer{Prefixes: prefixes("::/0")}, dataplane.BySource, "vlan svlan cvlan mac vni teid mark cgroup", row},
		{"dst", dataplane.Customer{Prefixes: prefixes("::/0")}, dataplane.ByDestination, "vlan svlan cvlan mac vni teid mark cgroup", row},
		{"vlan", dataplane.Customer{IDs: []uint64{0, 12, 4095}}, dataplane.ByOuterVLAN, "address svlan cvlan mac vni teid mark cgroup", row},
		{"[vlan]", dataplane.Customer{IDs: []uint64{0, 12, 4095}}, dataplane.ByOuterVLAN, "address svlan cvlan mac vni teid mark cgroup", row},
		{"[svlan, cvlan]", dataplane.Customer{IDs: []uint64{100<<12 | 7}}, dataplane.ByTwoVLANs, "address vlan mac vni teid mark cgroup", row},
		{"mac", dataplane.Customer{IDs: []uint64{0x02005e10000a, 0x02005e100001}}, dataplane.CustomerByMAC, "address vlan svlan cvlan vni teid mark cgroup", row},
		{"[vlan, mac]", dataplane.Customer{IDs: []uint64{12<<48 | 0x02005e10000a, 12<<48 | 0x02005e100001}}, dataplane.CustomerByVLANMAC, "address svlan cvlan vni teid mark cgroup", pair},
		{"vni", dataplane.Customer{IDs: []uint64{5, 0xffffff}}, dataplane.CustomerByVNI, "address vlan svlan cvlan mac teid mark cgroup", row},
		{"teid", dataplane.Customer{IDs: []uint64{9, 0xffffffff}}, dataplane.CustomerByTEID, "address vlan svlan cvlan mac vni mark cgroup", row},
		{"inner-address", dataplane.Customer{Prefixes: prefixes("::/0")}, dataplane.CustomerByInner, "vlan svlan cvlan mac vni teid mark cgroup", row},
		{"mark", dataplane.Customer{IDs: []uint64{7, 0xff000000}}, dataplane.CustomerByMark, "address vlan svlan cvlan mac vni teid cgroup", row},
		{"cgroup", dataplane.Customer{IDs: []uint64{0, 1}}, dataplane.CustomerByCgroup, "address vlan svlan cvlan mac vni teid mark", row},
	} {
		policy := ispClasses + "customers: {file: c.csv, key: " + test.key + "}\n" + ispPlans
		f, err := loadCustomers(policy, header+test.row+"\n2,,,,,,,,,,quiet\n")
		if err != nil {
			t.Errorf("%s: %v", test.key, err)
			continue
		}
		c := f.Policy.Customers
		first, second := test.want, dataplane.Customer{Name: "2", Plan: c.Plans[3]}
		first.Name, first.Plan = "1", c.Plans[3]
		if c.Key != test.code || !reflect.DeepEqual(c.List, []dataplane.Customer{first, second}) {
			t.Errorf("%s: got %d %+v, want %d %+v", test.key, c.Key, c.List, test.code, first)
		}
		var cgroups []string
		if test.code == dataplane.CustomerByCgroup {
			cgroups = []string{"/a", "/b.slice/c"}
		}
		if !slices.Equal(c.Cgroups, cgroups) {
			t.Errorf("%s: cgroups %q, want %q", test.key, c.Cgroups, cgroups)
		}
		if _, ignored := f.Ignored(); strings.Join(ignored, " ") != test.ignored {
			t.Errorf("%s: ignored columns %q, want %q", test.key, ignored, test.ignored)
		}
	}
}

// TestCustomerErrors checks the exact errors of the policy.
func TestCustomerErrors(t *testing.T) {
	const table = "customers: {file: c.csv}\n"
	class := func(text string) string { return "classes:\n  - {name: a, " + text + "}\n" }
	plans := func(text string) string { return ispClasses + table + "plans: {p: " + text + "}\n" }
	customers := func(text string) string { return ispClasses + "customers: " + text + "\n" + ispPlans }
	for _, test := range []struct{ name, policy, want string }{
		{"per alone", class("per: customer") + table + ispPlans, "2:20: per: customer needs meter: plan, the meter of the customer's plan"},
		{"per with another meter", class("per: customer, meter: x") + table + ispPlans, "2:37: per: customer needs meter: plan, the meter of the customer's plan"},
		{"per with a meter of a type", class("per: customer, meter: {type: trtcm}") + table + ispPlans, "2:37: per: customer needs meter: plan, the meter of the customer's plan, or {type: plan} with the options color, precolor, count and then"},
		{"per with a list", class("per: customer, meter: [plan]") + table + ispPlans, "2:37: per: customer needs meter: plan, the meter of the customer's plan, or {type: plan} with the options color, precolor, count and then"},
		{"per another word", class("per: src, meter: plan") + table + ispPlans, `2:20: per: "src" is not one of customer`},
		{"parameter in the class", class("per: customer, meter: {type: plan, cir: 1mbit}") + table + ispPlans, `2:50: unknown key "cir" in a meter of type plan: want one of color, count, precolor, then, type`},
		{"precolor of a blind meter", class("per: customer, meter: {type: plan, precolor: {from: dscp}}") + table + ispPlans, `2:60: precolor needs color: aware`},
		{"then twice", class("per: customer, meter: {type: plan, then: m}, then: m") + table + ispPlans + "meters: {m: {type: token-bucket, rate: 1mbit, burst: 2kB, color: aware}}\n", `2:66: duplicate then, here and in the meter`},
		{"per without customers", class("per: customer, meter: plan"), "2:20: per: customer needs customers: define them under customers:"},
		{"plan without per", class("meter: plan") + table + ispPlans, `2:22: no meter named "plan": meter: plan, the meter of a customer's plan, needs per: customer in a class`},
		{"type plan without per", class("meter: {type: plan}") + table + ispPlans, `2:29: type plan is only for the meter of a class with per: customer`},
		{"type plan of a named meter", ispPolicy + "meters: {m: {type: plan}}\n", `9:20: type plan is only for the meter of a class with per: customer`},
		{"different counts", "classes:\n- {name: a, per: customer, meter: plan}\n- {name: b, per: customer, meter: {type: plan, count: packets}}\n" + table + ispPlans, `3:55: class "a" and class "b" share the tokens of customers, so they need the same count`},

		{"customers a word", customers("c.csv"), `3:12: customers must be a mapping, not "c.csv"`},
		{"no file", customers("{key: src}"), "3:12: customers needs a file, such as file: customers.csv"},
		{"file a list", customers("{file: [a]}"), "3:19: file must be a single value, not a list"},
		{"file empty", customers(`{file: ""}`), "3:19: file needs a name, such as file: customers.csv"},
		{"file unprintable", customers(`{file: "a\x1b"}`), `3:19: file "a\x1b" has unprintable characters`},
		{"file missing", customers("{file: sub/x.csv, key: src}"), `3:19: file "sub/x.csv": no such file`},
		{"key", customers("{file: c.csv, key: ttl}"), "3:31: key must be one of address, src, dst, vlan, [svlan, cvlan], mac, [vlan, mac], vni, teid, inner-address, mark, cgroup"},
		{"key of two", customers("{file: c.csv, key: [cvlan, svlan]}"), "3:31: key must be one of address, src, dst, vlan, [svlan, cvlan], mac, [vlan, mac], vni, teid, inner-address, mark, cgroup"},
		{"key of two as a word", customers(`{file: c.csv, key: "svlan, cvlan"}`), "3:31: key must be one of address, src, dst, vlan, [svlan, cvlan], mac, [vlan, mac], vni, teid, inner-address, mark, cgroup"},
		{"key empty", customers("{file: c.csv, key: []}"), "3:31: key must be one of address, src, dst, vlan, [svlan, cvlan], mac, [vlan, mac], vni, teid, inner-address, mark, cgroup"},
		{"nested", customers("{file: c.csv, nested: yes}"), `3:34: nested: "yes" is not one of true, false`},
		{"unknown key", customers("{file: c.csv, keys: src}"), `3:26: unknown key "keys" in customers: want one of columns, file, key, nested, plan, unit`},
		{"no plans", ispClasses + table, "3:12: customers need plans: define them under plans:"},
		{"plans empty", ispClasses + table + "plans: {}\n", "3:12: customers need plans: define them under plans:"},
		{"plans alone", "classes: [{name: a}]\n" + ispPlans, "3:3: plans need customers: define them under customers:"},

		{"plan a word", plans("fast"), `4:12: a plan must be a mapping, not "fast"`},
		{"plan empty", plans("{}"), `4:12: plan "p" needs a meter type, such as type: trtcm, or a queue, such as queue: {rate: 20mbit, limit: 50ms}`},
		{"plan with both", plans("{type: trtcm, queue: {rate: 1mbit, limit: 1s}}"), `4:33: plan "p" has both a meter and a queue: remove one`},
		{"plan type", plans("{type: bucket}"), `4:19: unknown meter type "bucket": want one of fixed-window, gcra, sliding-counter, sliding-log, sliding-window, srtcm, token-bucket, trtcm, trtcm4115, tswtcm`},
		{"plan with a log", plans("{type: sliding-log, limit: 1kB, window: 1s}"), "4:19: a plan cannot have type sliding-log: want one of fixed-window, gcra, sliding-counter, srtcm, token-bucket, trtcm, trtcm4115"},
		{"plan with an average", plans("{type: tswtcm, cir: 1mbit, pir: 1mbit, window: 1s}"), "4:19: a plan cannot have type tswtcm: want one of fixed-window, gcra, sliding-counter, srtcm, token-bucket, trtcm, trtcm4115"},
		{"plan with per", plans("{type: gcra, rate: 1mbit, burst: 2kB, per: src}"), `4:50: unknown key "per" in a plan of type gcra: want one of burst, green, quota, rate, red, type, when, yellow`},
		{"plan with warm-up", plans("{type: token-bucket, rate: 1mbit, burst: 2kB, warmup: 10s}"), `4:58: unknown key "warmup" in a plan of type token-bucket: want one of burst, green, quota, rate, red, type, when, yellow`},
		{"plan with count", plans("{type: gcra, rate: 1mbit, burst: 2kB, count: packets}"), "4:50: count is an option of the class: write it there, as meter: {type: plan, count: ...}"},
		{"plan without burst", plans("{type: gcra, rate: 1mbit}"), "4:12: burst is missing: give a size, such as burst: 3000 (two packets of 1500 bytes)"},
		{"plan with an ambiguous rate", plans("{type: gcra, rate: 1mbps, burst: 2kB}"), `4:31: rate: "mbps" is ambiguous: megabits per second to some tools, megabytes per second to others (tc): write 1mbit or 1MB/s`},
		{"plan with an unknown queue", plans("{type: gcra, rate: 1mbit, burst: 2kB, red: {queue: bulk}}"), `4:63: no queue named "bulk": define it under queues:`},
		{"queue a name", plans("{queue: bulk}"), `4:20: the queue of a plan must be a mapping, not "bulk"`},
		{"queue without rate", plans("{queue: {limit: 50ms}}"), "4:20: the queue of a plan needs a rate, such as rate: 20mbit, or a link"},
		{"queue without limit", plans("{queue: {rate: 1mbit}}"), "4:20: the queue of a plan needs a limit in time, such as limit: 50ms"},
		{"queue with a limit in bytes", plans("{queue: {rate: 1mbit, limit: 64KiB}}"), `4:41: limit: "64KiB" is not a time: write a number with one of ns us ms s min h d`},
		{"queue with limit 0", plans("{queue: {rate: 1mbit, limit: 0s}}"), "4:41: limit must be above zero"},
		{"queue with wred", plans("{queue: {rate: 1mbit, limit: 1s, wred: {}}}"), `4:45: unknown key "wred" in the queue of a plan: want one of codel, ecn, fair, guarantee, limit, link, priority, rate, weight`},
		{"queue with a rate outside", plans("{queue: {rate: 1mbit, limit: 1s}, rate: 1mbit}"), `4:46: unknown key "rate" in a plan with a queue: want one of green, queue, quota, red, when, yellow`},
		{"duplicate plan", ispClasses + table + "plans: {p: {queue: {rate: 1mbit, limit: 1s}}, p: {}}\n", `4:47: duplicate key "p" in plans`},
	} {
		if _, err := loadCustomers(test.policy, "customer,address,plan\n"); err == nil ||
			err.Error() != "etc/p.yaml:"+test.want {
			t.Errorf("%s: got\n%v, want\netc/p.yaml:%s", test.name, err, test.want)
		}
	}
	var many strings.Builder
	many.WriteString(ispClasses + table + "plans:\n")
	for i := range 4097 {
		fmt.Fprintf(&many, "  p%d: {queue: {rate: 1mbit, limit: 1s}}\n", i)
	}
	if _, err := loadCustomers(many.String(), ""); err == nil ||
		err.Error() != "etc/p.yaml:4101:3: 4097 plans: at most 4096 are allowed" {
		t.Error(err)
	}
	// A meter named plan is one like any other.
	f, err := Load("p.yaml",
		[]byte(class("meter: plan")+"meters: {plan: {type: token-bucket, rate: 1mbit, burst: 2kB}}\n"))
	if err != nil || f.Policy.Classes[0].Meter != f.Policy.Meters[0] {
		t.Error(err)
	}
	if _, err := Load("p.yaml", []byte(ispPolicy)); err == nil ||
		err.Error() != "p.yaml:3:19: the file of customers cannot be read here" {
		t.Error(err)
	}
}
