package lint

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
)

// TestCustomers checks the findings about customers and their plans.
func TestCustomers(t *testing.T) {
	const (
		per  = "classes: [{name: a, per: customer, meter: plan, match: {proto: udp}, yellow: {dscp: af12}}, {name: b}]\n"
		none = "classes: [{name: a, match: {proto: udp}}, {name: b}]\n"
		rest = "customers: {file: c.csv}\nplans: {p: {type: token-bucket, rate: 1mbit, burst: 1499}, q: {queue: {rate: 1mbit, limit: 1s}}}\n"
	)
	many := strings.Split("a b c d e f g h i j k l", " ")
	for _, test := range []struct {
		name, classes, columns string
		want                   []string
	}{
		{"used", per, "", []string{"p.yaml:3:53: burst of 1499 B is below the MTU: a packet of 1500 bytes never fits, even on an idle link (RFC 2697 §2)"}},
		{"not used", none, "", []string{"p.yaml:2:12: no class has per: customer, so customers are treated like all others"}},
		{"a misspelled column", none, ",Gaurantee", []string{"p.yaml:2:12: no class has per: customer, so customers are treated like all others", `c.csv:2: 1 column ignored: "Gaurantee" (did you mean "guarantee"?)`}},
		{"a column", none, ",e-mail", []string{"p.yaml:2:12: no class has per: customer, so customers are treated like all others", `c.csv:2: 1 column ignored: "e-mail"`}},
		{
			"columns", none, "," + strings.Join(many, ",") + ",,\x1b",
			[]string{
				"p.yaml:2:12: no class has per: customer, so customers are treated like all others",
				`c.csv:2: 13 columns ignored: "a", "b", "c", "d", "e", "f", "g", "h", "i", "j" and 3 more`,
			},
		},
	} {
		csv := "# customers\ncustomer,address,plan" + test.columns + "\n1,10.0.0.1,p\n"
		f, err := policyfile.LoadWith("p.yaml", []byte(test.classes+rest),
			func(string) (string, error) { return csv, nil })
		if err != nil {
			t.Fatal(err)
		}
		plain, err := policyfile.Load("p.yaml", []byte(none))
		if err != nil {
			t.Fatal(err)
		}
		plan, err := plain.Compile()
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, finding := range Policy(f, plan, Options{MTU: 1500, RTT: 50 * time.Millisecond}) {
			if finding.Level == Warning && !strings.Contains(finding.Text, "can drop") {
				got = append(got, finding.Place+": "+finding.Text)
			}
		}
		if !reflect.DeepEqual(got, test.want) {
			t.Errorf("%s: got\n%s, want\n%s", test.name, strings.Join(got, "\n"),
				strings.Join(test.want, "\n"))
		}
	}
}

// TestPlanQueues checks the findings about queues of plans: those of the plan itself have its place.
func TestPlanQueues(t *testing.T) {
	f, err := policyfile.LoadWith("p.yaml",
		[]byte("classes: [{name: a, per: customer, meter: plan}]\ncustomers: {file: c.csv}\n"+
			"plans:\n  good: {queue: {rate: 1mbit, limit: 12ms, codel: {target: 12ms}}}\n  bad: {queue: {rate: 1mbit, limit: 11ms, codel: {target: 5ms}}}\n"),
		func(string) (string, error) { return "customer,address,plan\n1,,good\n2,,bad\n", nil })
	if err != nil {
		t.Fatal(err)
	}
	plan, err := f.Compile()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, finding := range Policy(f, plan, Options{MTU: 1500, RTT: 50 * time.Millisecond}) {
		if strings.Contains(finding.Text, "1500 bytes") {
			got = append(got, finding.Place+": "+finding.Text)
		}
	}
	want := []string{
		"p.yaml:5:37: limit of 11ms is below the 12ms that a packet of 1500 bytes takes at 1mbit: a packet right behind another is always dropped",
		"p.yaml:5:50: codel's target of 5ms is below the 12ms that a packet of 1500 bytes takes at 1mbit: a backlog of one packet counts as a bad queue (RFC 8289 wants at least one MTU)",
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got\n%s, want\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestLongPlans checks the findings about plans with a burst or a queue of many seconds.
func TestLongPlans(t *testing.T) {
	for plan, want := range map[string]string{
		"type: token-bucket, rate: 1mbit, burst: 10s":                                           "",
		"type: token-bucket, rate: 1mbit, burst: 11s":                                           "p.yaml:3:53: p: burst of 1,375,000 bytes is 11 s of its rate",
		"type: trtcm, cir: 1mbit, cbs: 11s, pir: 2mbit, pbs: 100kB":                             "",
		"type: trtcm, cir: 1mbit, cbs: 100kB, pir: 2mbit, pbs: 11s":                             "p.yaml:3:67: p: PBS of 2,750,000 bytes is 11 s of its rate",
		"type: sliding-counter, limit: 11MB, window: 1h":                                        "",
		"queue: {rate: 1mbit, limit: 11s}":                                                      "p.yaml:3:41: plan p: a full queue delays each packet by 11 s",
		"queue: {rate: 1mbit, limit: 11s, codel: true}":                                         "",
		"type: token-bucket, rate: 1mbit, burst: 11s, quota: {limit: 1TB, every: day, then: q}": "p.yaml:3:53: p: burst of",
	} {
		c, err := policyfile.Source{
			Name:      "p.yaml",
			Text:      "classes: [{name: a, per: customer, meter: plan}]\ncustomers: {file: c.csv}\nplans: {p: {" + plan + "}, q: {type: token-bucket, rate: 1mbit, burst: 100kB}}\n",
			Customers: &policyfile.CustomerFile{Text: "customer,address,plan\n"},
		}.Compile()
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		for _, f := range Policy(c.File, c.Plan, Options{MTU: 1500, RTT: 50 * time.Millisecond}) {
			if f.Level == Warning &&
				(strings.Contains(f.Text, "of its rate") || strings.Contains(f.Text, "full queue")) {
				got += f.Place + ": " + f.Text
			}
		}
		if want == "" && got != "" || !strings.HasPrefix(got, want) {
			t.Errorf("%s: got %q, want %q", plan, got, want)
		}
	}
}

// TestOwnLimits checks the finding about customers whose own parameters make a burst or a limit too
// small.
func TestOwnLimits(t *testing.T) {
	const policy = "classes: [{name: a, per: customer, meter: %s}]\ncustomers: {file: c.csv}\n" +
		"plans: {p: {type: token-bucket, rate: 1mbit, burst: 12ms}, q: {queue: {rate: 1mbit, limit: 1s}}, w: {type: fixed-window, limit: 10kB, window: 1s}}\n"
	const never = " is below the MTU: a packet of 1500 bytes never fits, even on an idle link"
	for _, test := range []struct{ meter, rows, want string }{
		{"plan", "1,p,,,\n2,p,1mbit,1500,\n3,w,,,1500\n4,q,12kbit,,\n", ""},
		{"plan", "1,q,11kbit,,\n2,q,,,1ms\n", `c.csv:2: customer "1" and 1 more: limit of 1s is below the 1.090909091s that a packet of 1500 bytes takes at 11kbit: a packet right behind another is always dropped`},
		{"plan", "1,p,,,\n2,p,900kbit,,\n", `c.csv:3: customer "2": burst of 1350 B` + never + " (RFC 2697 §2)"},
		{"plan", "1,w,,,1499\n2,p,2mbit,1B,\n3,w,,,1499\n", `c.csv:2: customer "1" and 2 more: limit of 1499 B` + never},
		{"plan", "1,p,1mbit,1250000,\n2,p,1mbit,1250001,\n3,q,1mbit,,11s\n", `c.csv:3: customer "2" and 1 more: burst of 1,250,001 bytes is 10 s of its rate: after a pause it passes at once, so for that long the limit does not hold`},
		{"plan", "1,q,1mbit,,11s\n", `c.csv:2: customer "1": a full queue delays each packet by 11 s: TCP times out and sends again; use a shorter limit, or codel`},
		{"{type: plan, count: packets}", "", ""},
	} {
		plans := fmt.Sprintf(policy, test.meter)
		if test.rows == "" {
			plans = strings.ReplaceAll(strings.ReplaceAll(plans, "1mbit, burst: 12ms", "9p/s, burst: 9"),
				"10kB", "10")
			test.rows = "1,p,8p/s,1,\n"
		}
		f, err := policyfile.LoadWith("p.yaml", []byte(plans), func(string) (string, error) {
			return "customer,plan,rate,burst,limit,address\n" + test.rows, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		plan, err := f.Compile()
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		for _, finding := range Policy(f, plan, Options{MTU: 1500, RTT: 50 * time.Millisecond}) {
			if strings.HasPrefix(finding.Place, "c.csv") {
				got += finding.Place + ": " + finding.Text
			}
		}
		if got != test.want {
			t.Errorf("%s%s: got\n%s, want\n%s", plans, test.rows, got, test.want)
		}
	}
}

// TestSchedules checks the findings about schedules. A last entry for all other times is none.
func TestSchedules(t *testing.T) {
	const always, night = `{at: "sat-fri 00:00-24:00", plan: q}`, `{at: "22:00-06:00", plan: q}`
	for when, want := range map[string]string{
		night:                              "",
		always:                             `p.yaml:4:58: plan p: "sat-fri 00:00-24:00" is all the time, so plan q always applies instead`,
		"[" + always + ", " + night + "]":  `p.yaml:4:58: plan p: "sat-fri 00:00-24:00" is all the time, so the entries after it never apply`,
		"[" + night + ", " + always + "]":  "",
		"[" + always + ", " + always + "]": `p.yaml:4:58: plan p: "sat-fri 00:00-24:00" is all the time, so the entries after it never apply`,
	} {
		c, err := policyfile.Source{
			Name: "p.yaml",
			Text: "classes: [{name: a, per: customer, meter: plan, match: {proto: udp}, yellow: {dscp: af12}}]\ncustomers: {file: c.csv}\nplans:\n" +
				"  p: {type: token-bucket, rate: 1mbit, burst: 2kB, when: " + when + "}\n  q: {queue: {rate: 1mbit, limit: 1s}}\n",
			Customers: &policyfile.CustomerFile{Text: "customer,address,plan\n"},
		}.Compile()
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		for _, f := range Policy(c.File, c.Plan, Options{MTU: 1500, RTT: 50 * time.Millisecond}) {
			if strings.Contains(f.Text, "all the time") {
				got += f.Place + ": " + f.Text
			}
		}
		if got != want {
			t.Errorf("%s: got %q, want %q", when, got, want)
		}
	}
}

// TestPlansAlike checks the notes about colors that a class of customers treats alike. Without a
// plan that gives packets a color, there is no note about it.
func TestPlansAlike(t *testing.T) {
	const bucket, two = "type: token-bucket, rate: 1mbit, burst: 100kB",
		"type: srtcm, cir: 1mbit, cbs: 100kB, ebs: 100kB"
	const yellow, red = "class a treats green and yellow alike", "class a treats yellow and red alike"
	for _, test := range []struct {
		class string
		plan  string
		want  []string
	}{
		{"meter: plan", bucket, nil},
		{"meter: plan, red: pass", bucket, []string{"class a treats green and red alike"}},
		{"meter: plan", "queue: {rate: 1mbit, limit: 1s}", nil},
		{"meter: plan", two, []string{yellow}},
		{"meter: plan", two + ", yellow: {dscp: af12}", nil},
		{"meter: plan", two + ", green: {dscp: af11}", nil},
		{"meter: {type: plan, color: aware}", bucket, []string{yellow}},
		{"meter: plan, then: m", bucket, []string{yellow}},
		{"meter: plan, red: pass", two, []string{yellow, red}},
		{"meter: plan, yellow: drop", two, []string{red}},
		{"meter: plan, yellow: drop", "type: trtcm, cir: 1mbit, cbs: 200kB, pir: 2mbit, pbs: 100kB", nil},
	} {
		c, err := policyfile.Source{
			Name: "p.yaml",
			Text: "classes: [{name: a, per: customer, " + test.class +
				"}]\ncustomers: {file: c.csv}\nplans: {p: {" + test.plan + "}, q: {" + bucket + "}}\n" +
				"meters: {m: {" + two + ", color: aware}}\n",
			Customers: &policyfile.CustomerFile{Text: "customer,address,plan\n"},
		}.Compile()
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, f := range Policy(c.File, c.Plan, Options{MTU: 1500, RTT: 50 * time.Millisecond}) {
			if text, _, ok := strings.Cut(f.Text, ":"); ok && strings.HasSuffix(text, "alike") {
				got = append(got, text)
			}
		}
		if !reflect.DeepEqual(got, test.want) {
			t.Errorf("%s, %s: got %q, want %q", test.class, test.plan, got, test.want)
		}
	}
}

// TestCustomersOnLinks checks the findings about guarantees of customers, and about queues of plans that
// have a rate only with the link of a customer.
func TestCustomersOnLinks(t *testing.T) {
	policy := "classes: [{name: a, per: customer, meter: plan}]\ncustomers: {file: c.csv}\n" +
		"links: {site: {rate: 12mbit}, ap: {link: site}, empty: {link: site, rate: 1mbit}}\n" +
		"plans: {p: {queue: {rate: 12mbit, limit: 10ms}}, q: {queue: {link: ap, limit: 900us}}}\n"
	f, err := policyfile.LoadWith("p.yaml", []byte(policy), func(string) (string, error) {
		return "customer,address,plan,link,guarantee\n1,,p,ap,6mbit\n2,,p,ap,6mbit\n3,,p,ap,3mbit\n4,,p,site,6mbit\n5,,q,,\n", nil
	})
	if err != nil {
		t.Fatal(err)
	}
	plan, err := f.Compile()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, finding := range Policy(f, plan, Options{MTU: 1500, RTT: 50 * time.Millisecond}) {
		if !strings.Contains(finding.Text, "can drop") {
			got = append(got, finding.Place+": "+finding.Text)
		}
	}
	want := []string{
		"p.yaml:4:79: limit of 900µs is 1350 B at 12mbit, below the MTU: a packet of 1500 bytes never enters the queue of a customer",
		"p.yaml:3:35: the guarantees of the links, queues and customers of link ap add up to 1.25 times its rate of 12mbit: while all are busy, 3 customers of link ap can count on less than the guarantee, such as 1mbit of 6mbit",
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got\n%s, want\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestCustomersStarve checks the findings about priorities of customers on a link of 12 Mbit/s.
func TestCustomersStarve(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, queue, link, plan string // keys of a queue, of a link with customers, and of a plan
		customers               int
		want                    string
	}{
		{"rates below the link's", "priority: 1", "", "rate: 1mbit", 11, ""},
		{"rates of the link's", "priority: 1", "", "rate: 1mbit", 12, "p.yaml:5:12: the 12 customers with priority 0 are served before q, and the rates of customers up to this priority, with those that meters pass, are the whole 12mbit of link wan: the other queues can starve"},
		{"a guarantee", "priority: 1, guarantee: 1mbit", "", "rate: 1mbit", 12, ""},
		{"no rate", "priority: 1", "", "weight: 1", 1, "p.yaml:5:12: the customer with priority 0 is served before q, and a customer's queue has no rate of its own: it can starve the other queues of link wan"},
		{"one priority", "", "", "weight: 1", 1, ""},
		{"a queue before customers", "", "", "rate: 1mbit, priority: 2", 2, "p.yaml:2:13: queue q is served before the 2 customers with priority 2, and no meter limits the packets of class b in it: it can starve the other queues of link wan"},
		{"customers with guarantees", "", "", "rate: 2mbit, guarantee: 1mbit, priority: 2", 2, ""},
		{"a link with customers", "priority: 1", "link: wan", "rate: 6mbit", 2, "p.yaml:3:34: link ap is served before q, and the rates of customers up to this priority, with those that meters pass, are the whole 12mbit of link wan: the other queues can starve"},
		{"a link with a rate", "priority: 1", "link: wan, rate: 11mbit", "rate: 6mbit", 2, ""},
	} {
		on, links := "wan", "links: {wan: {rate: 12mbit}}\n"
		if test.link != "" {
			on, links = "ap", "links: {wan: {rate: 12mbit}, ap: {"+test.link+"}}\n"
		}
		text := "classes: [{name: a, per: customer, meter: plan}, {name: b, match: {proto: esp}, green: {queue: q}}]\n" +
			"queues: {q: {" + strings.TrimPrefix(test.queue+", link: wan, limit: 1s}}\n", ", ") + links +
			"customers: {file: c.csv}\nplans: {p: {queue: {link: " + on + ", limit: 1s, " + test.plan + "}}}\n"
		csv := "customer,address,plan\n"
		for i := range test.customers {
			csv += fmt.Sprintf("%d,10.0.0.%d,p\n", i, i)
		}
		c, err := policyfile.Source{
			Name: "p.yaml", Text: text, Customers: &policyfile.CustomerFile{Text: csv},
		}.Compile()
		if err != nil {
			t.Fatal(test.name, err)
		}
		got := ""
		for _, f := range Policy(c.File, c.Plan, Options{MTU: 1500, RTT: 50 * time.Millisecond}) {
			if strings.Contains(f.Text, "starve") {
				got += f.Place + ": " + f.Text
			}
		}
		if got != test.want {
			t.Errorf("%s: got\n%s, want\n%s", test.name, got, test.want)
		}
	}
}
