package policyfile

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/changes"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

const amendedTable = `customer,address,plan,rate,cir
plain,192.0.2.1,home,,
own,192.0.2.2,biz,150mbit,
ext,192.0.2.3,home,,30mbit
other,192.0.2.4,home,,30mbit
quiet,192.0.2.5,quiet,,
`

const amendedPlans = ispClasses + `customers: {file: c.csv}
plans:
  home: {type: trtcm, cir: 50mbit, cbs: 1MiB, pir: 60mbit, pbs: 20ms}
  biz: {type: token-bucket, rate: 200mbit, burst: 40ms}
  quiet: {queue: {rate: 20mbit, limit: 50ms}}
`

// compileTable compiles a policy with customers in memory.
func compileTable(t *testing.T, policy, table string) *Compiled {
	t.Helper()
	f, err := loadCustomers(policy, table)
	if err != nil {
		t.Fatal(err)
	}
	plan, err := f.Compile()
	if plan == nil {
		t.Fatal(err)
	}
	return &Compiled{File: f, Plan: plan}
}

func mbit(n int64) meter.Rate { return meter.BitRate(n * 1e6) }

// TestAmendedService checks the plans of customers after changes.
func TestAmendedService(t *testing.T) {
	c := compileTable(t, amendedPlans, amendedTable)
	off, on := true, false
	type terms = changes.Terms
	type words = map[string]string
	for _, test := range []struct {
		name, customer string
		terms          terms
		want           any // the parameters; with an error those that apply without the wrong terms
		err            string
	}{
		{"no change", "own", terms{}, meter.TokenBucket{Rate: mbit(150), Burst: 750_000}, ""},
		{"rate", "own", terms{Parameters: words{"rate": "100mbit"}}, meter.TokenBucket{Rate: mbit(100), Burst: 500_000}, ""},
		{"own rate kept", "own", terms{Parameters: words{"burst": "1MB"}}, meter.TokenBucket{Rate: mbit(150), Burst: 1_000_000}, ""},
		{"own rate kept while off", "own", terms{Off: &off}, meter.TokenBucket{Rate: mbit(150), Burst: 750_000}, ""},
		{"on", "own", terms{Off: &on}, meter.TokenBucket{Rate: mbit(150), Burst: 750_000}, ""},
		{"own rate discarded", "own", terms{Plan: "biz"}, meter.TokenBucket{Rate: mbit(200), Burst: 1_000_000}, ""},
		{"own rate discarded with a parameter", "own", terms{Plan: "biz", Parameters: words{"burst": "20ms"}}, meter.TokenBucket{Rate: mbit(200), Burst: 500_000}, ""},
		{"another plan", "own", terms{Plan: "home"}, meter.TRTCM{CIR: mbit(50), CBS: 1 << 20, PIR: mbit(60), PBS: 150_000}, ""},
		{"another plan with a parameter", "plain", terms{Plan: "biz", Parameters: words{"rate": "8mbit"}}, meter.TokenBucket{Rate: mbit(8), Burst: 40_000}, ""},
		{"own parameter of several", "ext", terms{Parameters: words{"pir": "80mbit"}}, meter.TRTCM{CIR: mbit(30), CBS: 1 << 20, PIR: mbit(80), PBS: 200_000}, ""},
		{"unknown customer", "nobody", terms{Off: &off}, nil, `no customer "nobody" in the policy`},
		{"unknown plan", "own", terms{Plan: "x"}, meter.TokenBucket{Rate: mbit(150), Burst: 750_000}, `customer "own": no plan named "x" in the policy`},
		{"off with an unknown plan", "own", terms{Plan: "x", Off: &off}, meter.TokenBucket{Rate: mbit(150), Burst: 750_000}, `customer "own": no plan named "x" in the policy`},
		{"unknown parameter", "own", terms{Parameters: words{"cir": "1mbit"}}, meter.TokenBucket{Rate: mbit(150), Burst: 750_000}, `customer "own": cir: plan "biz" has no such parameter`},
		{"parameter of the plan before", "own", terms{Plan: "home", Parameters: words{"rate": "1mbit"}}, meter.TRTCM{CIR: mbit(50), CBS: 1 << 20, PIR: mbit(60), PBS: 150_000}, `customer "own": rate: plan "home" has no such parameter`},
		{"invalid rate", "own", terms{Parameters: words{"rate": "fast"}}, meter.TokenBucket{Rate: mbit(150), Burst: 750_000}, `customer "own": rate`},
		{"zero", "own", terms{Parameters: words{"burst": "0B"}}, meter.TokenBucket{Rate: mbit(150), Burst: 750_000}, `customer "own": `},
		{"contradiction", "plain", terms{Parameters: words{"pir": "1mbit"}}, meter.TRTCM{CIR: mbit(50), CBS: 1 << 20, PIR: mbit(60), PBS: 150_000}, `customer "plain": `},
	} {
		t.Run(test.name, func(t *testing.T) {
			target := changes.Target{Kind: changes.Customer, Name: test.customer}
			book := changes.Book{}
			if !reflect.DeepEqual(test.terms, terms{}) {
				book.Apply(changes.Change{Target: target, Terms: test.terms})
			}
			number, service, err := c.ChangeCompiler(book, time.Now()).Service(test.customer)
			if got := fmt.Sprint(err); err != nil && test.err == "" || !strings.HasPrefix(got, test.err) {
				t.Errorf("got error %v, want %s", err, test.err)
			}
			if service == nil || test.want == nil {
				if service != nil || test.want != nil {
					t.Errorf("got plan %v, want %v", service, test.want)
				}
				return
			}
			if got, want := fmt.Sprintf("%T%+v", service.Source.Params, service.Source.Params),
				fmt.Sprintf("%T%+v", test.want, test.want); got != want {
				t.Errorf("got %s, want %s", got, want)
			}
			if got := service.Actions[0] != nil && service.Actions[0].Drop; got != test.terms.IsOff() ||
				number != c.Plan.Customers.Number(test.customer) {
				t.Errorf("customer %d: off %v, want %d, %v", number, got,
					c.Plan.Customers.Number(test.customer), test.terms.IsOff())
			}
		})
	}
}

// TestAmended checks that customers with equal terms share a plan, that others keep theirs, that
// changes without effect are reported, and that the policy itself is unchanged.
func TestAmended(t *testing.T) {
	c := compileTable(t, amendedPlans, amendedTable)
	before := c.Plan.Customers
	plans, of := append([]compiled.Service(nil), before.Plans...), append([]uint32(nil), before.Of...)
	book := changes.Book{}
	change := func(name string, terms changes.Terms) {
		book.Apply(changes.Change{Target: changes.Target{Kind: changes.Customer, Name: name}, Terms: terms})
	}
	rate := map[string]string{"pir": "80mbit"}
	change("ext", changes.Terms{Parameters: rate})
	change("other", changes.Terms{Parameters: rate})
	change("plain", changes.Terms{Parameters: rate})
	change("gone", changes.Terms{Parameters: rate})
	change("own", changes.Terms{Plan: "home"})
	book.Apply(changes.Change{
		Target: changes.Target{Kind: changes.Link, Name: "uplink"},
		Terms:  changes.Terms{Parameters: map[string]string{"rate": "1mbit"}},
	})
	out, stale := c.Amended("path", book, time.Now())
	if len(stale) != 2 || stale[0].Error() != `no customer "gone" in the policy` ||
		stale[1].Error() != `no link "uplink" in the policy` {
		t.Errorf("got %v, want errors of the customer and of the link", stale)
	}
	now := out.Plan.Customers
	index := func(name string) uint32 { return now.Of[now.Number(name)-1] }
	if index("ext") != index("other") || index("ext") == index("plain") || index("own") != 0 ||
		index("quiet") != before.Of[before.Number("quiet")-1] || len(now.Plans) != len(plans)+2 {
		t.Errorf("got plans %v of %d, want two new ones", now.Of, len(now.Plans))
	}
	if !reflect.DeepEqual(before.Of, of) || !reflect.DeepEqual(before.Plans, plans) ||
		out.Changes != "path" || c.Changes != "" {
		t.Error("the policy has changed")
	}
	again, _ := out.Amended("path", changes.Book{}, time.Now())
	if again.Plan != c.Plan {
		t.Error("without changes the plan is not that of the policy")
	}
}

// TestAmendedEnded checks that a change whose time is over causes no error, whatever the policy has.
func TestAmendedEnded(t *testing.T) {
	c, now, off := compileTable(t, amendedPlans, amendedTable), time.Unix(1e9, 0), true
	book := changes.Book{}
	gone := changes.Target{Kind: changes.Customer, Name: "gone"}
	book.Apply(changes.Change{Target: gone, Terms: changes.Terms{Off: &off}, Until: now})
	if _, stale := c.Amended("", book, now.Add(-1)); len(stale) != 1 {
		t.Errorf("before its end: got %v, want an error", stale)
	}
	if _, stale := c.Amended("", book, now); len(stale) != 0 || len(book) != 1 {
		t.Errorf("after its end: got %v, and the book %v, want no error, and the same book", stale, book)
	}
}

// TestAmendedRate checks that a rate which a policy does not allow is an error of the change.
func TestAmendedRate(t *testing.T) {
	c := compileTable(t, `classes:
  - {name: a, match: {proto: tcp}, green: {queue: own}}
  - {name: b, match: {proto: udp}, green: {queue: fifo}}
  - {name: c, green: {queue: shared}}
links: {wan: {rate: 1mbit}}
queues: {own: {rate: 1mbit, limit: 1s}, fifo: {rate: 1mbit, limit: 1s, fair: false}, shared: {link: wan, limit: 1s}}
`, "")
	for _, test := range []struct {
		kind       changes.TargetKind
		name, rate string
		want       string
	}{
		{changes.Link, "wan", "5", `link "wan": rate: "5" is a rate without a unit`},
		{changes.Link, "wan", "0bit", `link "wan": rate must be above zero`},
		{changes.Queue, "own", "0bit", `queue "own": rate must be above zero`},
		{changes.Queue, "fifo", "0bit", `queue "fifo": rate must be above zero`},
		{changes.Queue, "shared", "1mbit", `queue "shared": rate cannot be set`},
	} {
		target, book := changes.Target{Kind: test.kind, Name: test.name}, changes.Book{}
		book.Apply(changes.Change{
			Target: target, Terms: changes.Terms{Parameters: map[string]string{"rate": test.rate}},
		})
		err := c.ChangeCompiler(book, time.Now()).Rate(target)
		var terms *TermsError
		if !errors.As(err, &terms) || terms.Target != target || !strings.HasPrefix(err.Error(), test.want) {
			t.Errorf("%v %s: got %v, want a TermsError %q", target, test.rate, err, test.want)
		}
	}
}

// TestAmendedCoDel checks that the defaults of CoDel are those of a changed rate, and that what the policy
// says stays.
func TestAmendedCoDel(t *testing.T) {
	const ms = time.Millisecond
	for codel, want := range map[string]queue.CoDel{
		"":                                      {Target: 24 * ms, Interval: 100 * ms}, // 3000 bytes at 1 Mbit/s
		"fair: false":                           {},
		"codel: true, fair: false":              {Target: 24 * ms, Interval: 100 * ms},
		"codel: {}":                             {Target: 24 * ms, Interval: 100 * ms},
		"codel: false":                          {},
		"codel: {target: 7ms}":                  {Target: 7 * ms, Interval: 100 * ms},
		"codel: {interval: 90ms}":               {Target: 24 * ms, Interval: 90 * ms},
		"codel: {target: 5ms, interval: 100ms}": {Target: 5 * ms, Interval: 100 * ms},
		"codel: {target: 200ms}, fair: false":   {Target: 200 * ms, Interval: 400 * ms},
		"codel: {target: 1ms, interval: 100ms}": {Target: ms, Interval: 100 * ms},
	} {
		c := compileTable(t,
			"classes: [{name: a, green: {queue: q}}]\nqueues: {q: {rate: 20mbit, limit: 1s, "+codel+"}}\n",
			"")
		target, book := changes.Target{Kind: changes.Queue, Name: "q"}, changes.Book{}
		book.Apply(changes.Change{
			Target: target, Terms: changes.Terms{Parameters: map[string]string{"rate": "1mbit"}},
		})
		plan, stale := c.ChangeCompiler(book, time.Now()).Rates()
		if len(stale) > 0 || plan.Queues[0].CoDel != want {
			t.Errorf("%q: got %v, %v, want %v", codel, plan.Queues[0].CoDel, stale, want)
		}
	}
}

// TestChangeInTree checks which plans a customer with a queue in a tree of links can get without a reload.
func TestChangeInTree(t *testing.T) {
	const policy = `classes: [{name: all, per: customer, meter: plan}]
links: {site: {rate: 40mbit}, ap-1: {link: site, rate: 25mbit}, ap-2: {link: site}, other: {rate: 1mbit}}
plans:
  p: {queue: {rate: 20mbit, limit: 50ms, fair: flow}}
  ecn: {queue: {rate: 10mbit, limit: 50ms, fair: flow, ecn: true}}
  fifo: {queue: {rate: 20mbit, limit: 50ms}}
  hosts: {queue: {rate: 20mbit, limit: 50ms, fair: [dst, flow]}}
  there: {queue: {link: other, limit: 50ms, fair: flow}}
  gold: {queue: {rate: 20mbit, guarantee: 5mbit, limit: 50ms, fair: flow}}
customers: {file: c.csv}
`
	c := compileTable(t, policy, "customer,address,plan,link\n1,10.0.0.1,p,ap-1\n2,10.0.0.2,p,\n")
	target := changes.Target{Kind: changes.Customer, Name: "1"}
	for _, test := range []struct {
		terms      changes.Terms
		link, want string // the link, and the error
	}{
		{changes.Terms{Parameters: map[string]string{"link": "ap-2", "rate": "5mbit"}}, "ap-2", ""},
		{changes.Terms{Plan: "ecn"}, "ap-1", ""},
		{changes.Terms{Plan: "gold"}, "ap-1", ""},
		{changes.Terms{Plan: "fifo"}, "ap-1", `customer "1": plan "fifo" has a queue that is fair in another way: change the policy and reload it`},
		{changes.Terms{Plan: "hosts"}, "ap-1", `customer "1": plan "hosts" has a queue that is fair in another way: change the policy and reload it`},
		{changes.Terms{Plan: "there"}, "ap-1", `customer "1": plan "there" has its queue in another tree of links: change the policy and reload it`},
		{changes.Terms{Parameters: map[string]string{"weight": "0"}}, "ap-1", `customer "1": weight must be at least 1`},
	} {
		book := changes.Book{}
		book.Apply(changes.Change{Target: target, Terms: test.terms})
		_, service, err := c.ChangeCompiler(book, time.Now()).Service("1")
		if got := fmt.Sprint(err); err != nil && test.want == "" || !strings.HasPrefix(got, test.want) ||
			err == nil && test.want != "" {
			t.Errorf("%+v: got error %v, want %s", test.terms, err, test.want)
		}
		if service == nil || service.Source.Link == nil || service.Source.Link.Name != test.link {
			t.Errorf("%+v: got %+v, want link %s", test.terms, service, test.link)
		}
	}
	// A customer without a link gets a plan that no customer has so far.
	book := changes.Book{}
	book.Apply(changes.Change{
		Target: changes.Target{Kind: changes.Customer, Name: "2"}, Terms: changes.Terms{Plan: "ecn"},
	})
	_, service, err := c.ChangeCompiler(book, time.Now()).Service("2")
	if err != nil || service.Name != "ecn" || !service.LinkQueue.ECN ||
		service.Tree != c.Plan.Customers.Service(2).Tree {
		t.Errorf("got %+v, error %v, want plan ecn in the tree of customers without a link", service, err)
	}
	for _, parameters := range []map[string]string{nil, {"rate": "10mbit"}} {
		book := changes.Book{}
		book.Apply(changes.Change{
			Target: changes.Target{Kind: changes.Customer, Name: "2"},
			Terms:  changes.Terms{Plan: "gold", Parameters: parameters},
		})
		_, _, err := c.ChangeCompiler(book, time.Now()).Service("2")
		if want := `customer "2": link is missing`; !strings.HasPrefix(fmt.Sprint(err), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}
