package policyfile

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/changes"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// directedPolicy has rates for each direction wherever they are allowed.
const directedPolicy = `classes:
  - {name: customers, per: customer, meter: plan}
  - {name: rest, match: {proto: udp}, green: {queue: rest}}
  - {name: own, match: {proto: tcp}, green: {queue: own}}
  - {name: plain, green: {queue: plain}}
links:
  site: {rate: {down: 40mbit, up: 8mbit}}
  ap: {link: site, rate: 6mbit, guarantee: {down: 2mbit, up: 1mbit}}
queues:
  rest: {link: ap, rate: {down: 5mbit, up: 4mbit}, guarantee: {down: 1mbit, up: 500kbit}, limit: 100ms}
  own: {rate: {down: 30mbit, up: 1mbit}, limit: 100ms}
  plain: {rate: {up: 3mbit, down: 30mbit}, limit: 100ms, fair: false}
plans:
  queued: {queue: {link: ap, rate: {down: 3mbit, up: 2mbit}, guarantee: {down: 1mbit, up: 500kbit}, limit: 50ms, codel: true}}
  open: {queue: {link: site, limit: 50ms, fair: flow}}
  metered: {type: token-bucket, rate: {down: 8mbit, up: 4mbit}, burst: 100ms}
  colors: {type: trtcm, cir: {down: 8mbit, up: 4mbit}, cbs: 10kB, pir: 16mbit, pbs: 10ms}
customers: {file: c.csv}
`

const directedHeader = "customer,address,plan,down,up,down-guarantee,up-guarantee\n"

// describe writes the rates of a plan.
func describeRates(p *compiled.Plan) string {
	var out []string
	for _, l := range p.Links {
		out = append(out, fmt.Sprintf("%s %v %v", l.Name, l.Rate, l.Guarantee))
	}
	for _, q := range p.Queues {
		out = append(out, fmt.Sprintf("%s %v %v", q.Name, q.Drain, q.Guarantee))
	}
	for i := range p.Customers.Of {
		s := p.Customers.Service(uint32(i + 1))
		if s.Profile != nil {
			out = append(out, fmt.Sprintf("%+v", s.Source.Params))
			continue
		}
		out = append(out, fmt.Sprintf("%v %v %v", s.Source.Drain(), s.Source.Guarantee, s.LinkQueue.CoDel.Target))
	}
	return strings.Join(out, "; ")
}

// TestDirectedRates checks the rates of both directions, in policies and in rows.
func TestDirectedRates(t *testing.T) {
	t.Parallel()
	c := compileTable(t, directedPolicy, directedHeader+
		"1,10.0.0.1,queued,,,,\n2,10.0.0.2,queued,2mbit,,,\n3,10.0.0.3,queued,,1mbit,,250kbit\n"+
		"4,10.0.0.4,open,,1mbit,,\n5,10.0.0.5,metered,,,,\n6,10.0.0.6,metered,1mbit,,,\n7,10.0.0.7,colors,,,,\n")
	bucket := func(rate, burst int64) string {
		return fmt.Sprintf("%+v", meter.TokenBucket{Rate: mbit(rate), Burst: burst})
	}
	for _, test := range []struct {
		direction dataplane.Direction
		want      []string
	}{
		{dataplane.Egress, []string{
			"site 40mbit 0bit", "ap 6mbit 2mbit", "own 30mbit 0bit",
			"rest 5mbit 1mbit", "own 30mbit 0bit", "plain 30mbit 0bit",
			// Two packets of 1500 bytes take 8 ms at 3 Mbit/s, and 12 ms at 2 Mbit/s.
			"3mbit 1mbit 8ms", "2mbit 1mbit 12ms", "3mbit 1mbit 8ms", "40mbit 0bit 5ms",
			bucket(8, 100_000), bucket(1, 12_500),
			fmt.Sprintf("%+v", meter.TRTCM{CIR: mbit(8), CBS: 10_000, PIR: mbit(16), PBS: 20_000}),
		}},
		{dataplane.Ingress, []string{
			"site 8mbit 0bit", "ap 6mbit 1mbit", "own 1mbit 0bit",
			"rest 4mbit 500kbit", "own 1mbit 0bit", "plain 3mbit 0bit",
			"2mbit 500kbit 12ms", "2mbit 500kbit 12ms", "1mbit 250kbit 24ms", "1mbit 0bit 24ms",
			bucket(4, 50_000), bucket(4, 50_000),
			fmt.Sprintf("%+v", meter.TRTCM{CIR: mbit(4), CBS: 10_000, PIR: mbit(16), PBS: 20_000}),
		}},
	} {
		got := strings.Split(describeRates(c.Plan.For(test.direction)), "; ")
		if strings.Join(got, "\n") != strings.Join(test.want, "\n") {
			t.Errorf("%v: got\n%s\nwant\n%s", test.direction, strings.Join(got, "\n"), strings.Join(test.want, "\n"))
		}
	}
}

// TestDirectionsOfKeys checks which direction of an interface has which rates.
func TestDirectionsOfKeys(t *testing.T) {
	t.Parallel()
	for key, up := range map[string][2]bool{ // at egress, at ingress
		"address": {false, true}, "vlan": {false, true}, "[svlan, cvlan]": {false, true},
		"src": {true, true}, "dst": {false, false},
	} {
		policy := strings.Replace(directedPolicy, "file: c.csv", "file: c.csv, key: "+key, 1)
		c := compileTable(t, policy, "customer,plan,address,vlan,svlan,cvlan\n1,queued,,,,\n")
		for direction, want := range up {
			plan := c.Plan.For(dataplane.Direction(direction))
			if got := plan.Links[0].Rate.Cmp(mbit(8)) == 0; got != want {
				t.Errorf("key %s, %v: link at %v", key, dataplane.Direction(direction), plan.Links[0].Rate)
			}
			if again := plan.For(dataplane.Direction(direction)); again.Links[0].Rate != plan.Links[0].Rate {
				t.Errorf("key %s: For twice: %v", key, again.Links[0].Rate)
			}
		}
	}
}

// TestEqualDirections checks that equal rates for both directions are the same as one rate.
func TestEqualDirections(t *testing.T) {
	t.Parallel()
	equal := strings.NewReplacer("{down: 40mbit, up: 8mbit}", "{down: 40mbit, up: 40000kbit}",
		"{down: 2mbit, up: 1mbit}", "{down: 2mbit, up: 2mbit}", "{down: 5mbit, up: 4mbit}", "{down: 5mbit, up: 5mbit}",
		"{down: 1mbit, up: 500kbit}", "{down: 1mbit, up: 1mbit}", "{down: 30mbit, up: 1mbit}", "{down: 30mbit, up: 30mbit}",
		"{up: 3mbit, down: 30mbit}", "{up: 30mbit, down: 30mbit}", "{down: 3mbit, up: 2mbit}", "{down: 3mbit, up: 3mbit}",
		"{down: 8mbit, up: 4mbit}", "{down: 8mbit, up: 8mbit}").Replace(directedPolicy)
	one := strings.NewReplacer("{down: 40mbit, up: 40000kbit}", "40mbit", "{down: 2mbit, up: 2mbit}", "2mbit",
		"{down: 5mbit, up: 5mbit}", "5mbit", "{down: 1mbit, up: 1mbit}", "1mbit", "{down: 30mbit, up: 30mbit}", "30mbit",
		"{up: 30mbit, down: 30mbit}", "30mbit", "{down: 3mbit, up: 3mbit}", "3mbit", "{down: 8mbit, up: 8mbit}", "8mbit").
		Replace(equal)
	const row = "1,10.0.0.1,queued,2mbit,2mbit,,\n2,10.0.0.2,metered,1mbit,1mbit,,\n"
	pairs, plain := compileTable(t, equal, directedHeader+row), compileTable(t, one,
		"customer,address,plan,rate\n1,10.0.0.1,queued,2mbit\n2,10.0.0.2,metered,1mbit\n")
	if strings.Contains(one, "down") || pairs.Plan.Up != nil {
		t.Fatalf("a second plan, or\n%s", one)
	}
	if !reflect.DeepEqual(pairs.Plan, plain.Plan) {
		t.Errorf("got\n%+v, want\n%+v", pairs.Plan, plain.Plan)
	}
}

// TestDirectedErrors checks that wrong rates of a direction are refused with their place.
func TestDirectedErrors(t *testing.T) {
	t.Parallel()
	policy := func(from, to string) string {
		if !strings.Contains(directedPolicy, from) {
			t.Fatal(from)
		}
		return strings.Replace(directedPolicy, from, to, 1)
	}
	const row = directedHeader + "1,10.0.0.1,queued,,,,\n"
	for _, test := range []struct{ policy, table, want string }{
		{policy("{down: 40mbit, up: 8mbit}", "{down: 40mbit}"), row, "p.yaml:7:16: rate needs both directions"},
		{policy("{down: 40mbit, up: 8mbit}", "{up: 40mbit}"), row, "p.yaml:7:16: rate needs both directions"},
		{policy("{down: 40mbit, up: 8mbit}", "{}"), row, "p.yaml:7:16: rate needs both directions"},
		{policy("up: 8mbit}", "up: 8mbit, left: 8mbit}"), row, `p.yaml:7:42: unknown key "left" in rate: want one of down, up`},
		{policy("up: 8mbit}", "up: 8mbit, up: 8mbit}"), row, `p.yaml:7:42: duplicate key "up" in rate`},
		{policy("up: 8mbit}", "up: 8}"), row, `p.yaml:7:35: up: "8" is a rate without a unit`},
		{policy("up: 8mbit}", "up: [8mbit]}"), row, "p.yaml:7:35: up must be a single value"},
		{policy("up: 8mbit}", "up: {down: 1mbit, up: 1mbit}}"), row, "p.yaml:7:35: up must be a single value"},
		{policy("{down: 40mbit, up: 8mbit}", "[40mbit, 8mbit]"), row, "p.yaml:7:16: rate must be a single value, not a list"},
		{policy("up: 8mbit}", "up: 0bit}"), row, "p.yaml:7:16: rate must be above zero (up)"},
		{
			policy("guarantee: {down: 2mbit, up: 1mbit}", "guarantee: {down: 2mbit, up: 7mbit}"), row,
			"p.yaml:8:44: guarantee of 7mbit is above the rate of 6mbit (up)",
		},
		{
			policy("up: 500kbit}, limit: 100ms", "up: 4500kbit}, limit: 100ms"), row,
			"p.yaml:10:63: guarantee of 4500kbit is above the rate of 4mbit (up)",
		},
		{
			policy("{down: 1mbit, up: 500kbit}, limit: 50ms", "{down: 1mbit, up: 2500kbit}, limit: 50ms"), row,
			"p.yaml:14:73: guarantee of 2500kbit is above the rate of 2mbit (up)",
		},
		{policy("cir: {down: 8mbit, up: 4mbit}", "cir: {down: 8mbit, up: 17mbit}"), row, "p.yaml:17:"},
		{policy("cir: {down: 8mbit, up: 4mbit}", "cir: {down: 8mbit}"), row, "p.yaml:17:30: cir needs both directions, such as cir: {down"},
		{policy("cbs: 10kB", "cbs: {down: 10kB, up: 10kB}"), row, "p.yaml:17:"},
		{policy("rate: {down: 8mbit, up: 4mbit}, burst", "rate: {down: 8mbit, up: 4}, burst"), row, `p.yaml:16:57: rate: "4" is a rate without a unit`},
		{directedPolicy, "customer,address,plan,down\n", "c.csv:1: columns down and up go together: add the other one"},
		{directedPolicy, "customer,address,plan,up\n", "c.csv:1: columns down and up go together"},
		{directedPolicy, "customer,address,plan,up-guarantee\n", "c.csv:1: columns down-guarantee and up-guarantee go together"},
		{directedPolicy, "customer,address,plan,rate,down,up\n", "c.csv:1: column rate is for both directions, and columns down and up for one each"},
		{directedPolicy, "customer,address,plan,guarantee,down-guarantee,up-guarantee\n", "c.csv:1: column guarantee is for both"},
		{directedPolicy, "customer,address,plan,down,up,up\n", `c.csv:1: duplicate column "up"`},
		{directedPolicy, row + "2,10.0.0.2,queued,,1,,\n", `c.csv:3: up: "1" is a rate without a unit`},
		{directedPolicy, row + "2,10.0.0.2,queued,0bit,,,\n", `c.csv:3: `},
		{directedPolicy, row + "2,10.0.0.2,queued,,,,3mbit\n", "c.csv:3: guarantee of 3mbit is above the rate of 2mbit (up)"},
		{directedPolicy, row + "2,10.0.0.2,colors,1mbit,,,\n", `c.csv:3: down: plan "colors" has no such parameter`},
		{directedPolicy, row + "2,10.0.0.2,metered,,,1mbit,\n", `c.csv:3: down-guarantee: plan "metered" has no such parameter`},
	} {
		f, err := loadCustomers(test.policy, test.table)
		if err == nil {
			_, err = f.Compile()
		}
		switch {
		case err == nil:
			t.Errorf("no error, want %s", test.want)
		case !strings.HasPrefix(err.Error(), "etc/"+test.want):
			t.Errorf("got %v, want %s", err, test.want)
		case strings.Contains(err.Error(), "\n"):
			t.Errorf("several errors: %v", err)
		}
	}
}

// TestDirectedChanges changes the rates of one direction where the policy has one rate for both.
func TestDirectedChanges(t *testing.T) {
	t.Parallel()
	c := compileTable(t, `classes:
  - {name: customers, per: customer, meter: plan}
  - {name: rest, green: {queue: q}}
links: {ap: {rate: 9mbit}}
queues: {q: {rate: 5mbit, limit: 50ms}}
plans:
  home: {queue: {rate: 4mbit, limit: 50ms, codel: true}}
  bucket: {type: token-bucket, rate: 4mbit, burst: 10ms}
customers: {file: c.csv}
`, "customer,address,plan,rate,link\na,10.0.0.1,home,,ap\nb,10.0.0.2,bucket,8mbit,\n")
	target := func(kind changes.TargetKind, name string) changes.Target {
		return changes.Target{Kind: kind, Name: name}
	}
	book := changes.Book{}
	for t, parameters := range map[changes.Target]map[string]string{
		target(changes.Customer, "a"): {"up": "1mbit"},
		target(changes.Customer, "b"): {"down": "2mbit"},
		target(changes.Link, "ap"):    {"up": "3mbit"},
		target(changes.Queue, "q"):    {"down": "6mbit", "up": "2mbit"},
	} {
		book.Apply(changes.Change{Target: t, Terms: changes.Terms{Parameters: parameters}})
	}
	amended, stale := c.Amended("", book, time.Now())
	if stale != nil {
		t.Fatal(stale)
	}
	bucket := func(rate, burst int64) string {
		return fmt.Sprintf("%+v", meter.TokenBucket{Rate: mbit(rate), Burst: burst})
	}
	for direction, want := range []string{
		"ap 9mbit 0bit; q 6mbit 0bit; q 6mbit 0bit; 4mbit 0bit 6ms; " + bucket(2, 2500),
		"ap 3mbit 0bit; q 2mbit 0bit; q 2mbit 0bit; 1mbit 0bit 24ms; " + bucket(8, 10_000),
	} {
		got := strings.Split(describeRates(amended.Plan.For(dataplane.Direction(direction))), "; ")
		for _, part := range strings.Split(want, "; ") {
			if !strings.Contains("; "+strings.Join(got, "; ")+";", "; "+part+";") {
				t.Errorf("%v: got %q, want %s", dataplane.Direction(direction), got, part)
			}
		}
	}
	own, err := c.Own(target(changes.Link, "ap"))
	if err != nil || own.Parameters["rate"] != "9mbit" {
		t.Errorf("own terms: %v, %v", own, err)
	}
	wrong := changes.Terms{Parameters: map[string]string{"up": "x"}}
	book.Apply(changes.Change{Target: target(changes.Customer, "a"), Terms: wrong})
	if _, stale := c.Amended("", book, time.Now()); len(stale) != 1 ||
		!strings.Contains(stale[0].Error(), `customer "a": up: "x"`) {
		t.Errorf("got %v", stale)
	}
}
