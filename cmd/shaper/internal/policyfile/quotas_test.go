package policyfile

import (
	"reflect"
	"testing"
	"time"
	_ "time/tzdata" // so that the tests need no database on the host

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/calendar"
)

const quotaPlans = `plans:
  home:
    type: token-bucket
    rate: 50mbit
    burst: 1MiB
    quota: {limit: 500GB, every: month, then: slow, zone: Europe/Berlin}
    when: {at: "mon-fri 08:00-18:00", plan: business, zone: Europe/Berlin}
  paced:
    queue: {rate: 20mbit, limit: 50ms}
    quota: {limit: 1, every: hour, then: business}
    when:
      - {at: "22:00-06:00", plan: slow, zone: local}
      - {at: "sat,sun 00:00-24:00", plan: business}
  business: {type: token-bucket, rate: 100mbit, burst: 1MiB}
  slow: {type: token-bucket, rate: 1mbit, burst: 64KiB}
`

// TestRules checks the quotas and schedules of plans and the limits of customers.
func TestRules(t *testing.T) {
	f, err := loadCustomers(ispClasses+"customers: {file: c.csv}\n"+quotaPlans, `customer,address,plan,Quota,rate
1,192.0.2.1,home,,
2,192.0.2.2,home,800GB,70mbit
3,192.0.2.3,paced,2.5TiB
4,192.0.2.4,slow,,2mbit
`)
	if err != nil {
		t.Fatal(err)
	}
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	when := func(at string, zone *time.Location, plan string) When {
		s, err := calendar.ParseSchedule(at, zone)
		if err != nil {
			t.Fatal(err)
		}
		return When{s, plan}
	}
	for plan, want := range map[string]QuotaRules{
		"home":     {&Quota{500e9, calendar.Month, berlin, "slow"}, []When{when("mon-fri 08:00-18:00", berlin, "business")}},
		"paced":    {&Quota{1, calendar.Hour, time.UTC, "business"}, []When{when("22:00-06:00", time.Local, "slow"), when("sat,sun 00:00-24:00", time.UTC, "business")}},
		"business": {},
		"slow":     {},
		"missing":  {},
	} {
		if got := f.Rules(plan); !reflect.DeepEqual(got, want) || got.Any() != (want.Quota != nil) {
			t.Errorf("%s: got %+v %+v, want %+v %+v", plan, got.Quota, got.When, want.Quota, want.When)
		}
	}
	for i, want := range []*Quota{
		{500e9, calendar.Month, berlin, "slow"},
		{800e9, calendar.Month, berlin, "slow"},
		{5 << 39, calendar.Hour, time.UTC, "business"},
		nil,
	} {
		c := &f.Policy.Customers.List[i]
		if got := f.QuotaOf(c.Name, c.Plan.Name); !reflect.DeepEqual(got, want) {
			t.Errorf("customer %d: got %+v, want %+v", i+1, got, want)
		}
	}
	if !f.HasRules() || f.Rules("home").Quota.Limit != 500e9 {
		t.Error("the limit of a customer has changed that of its plan")
	}
	// Rules do not change the plans themselves.
	plain, err := loadCustomers(ispClasses+"customers: {file: c.csv}\nplans: {home: {type: token-bucket, rate: 50mbit, burst: 1MiB}}\n",
		"customer,address,plan\n")
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(f.Policy.Customers.Plans[0], plain.Policy.Customers.Plans[0]) || plain.HasRules() {
		t.Errorf("got %+v, want %+v", f.Policy.Customers.Plans[0], plain.Policy.Customers.Plans[0])
	}
	if got, want := f.Place(f.Policy.Customers.Plans[0], "quota"), "etc/p.yaml:9:12"; got != want {
		t.Errorf("the quota is at %s, want %s", got, want)
	}
}

// TestRulesPlan checks which plan applies, and until when.
func TestRulesPlan(t *testing.T) {
	f, err := loadCustomers(ispClasses+"customers: {file: c.csv}\n"+quotaPlans+`  night:
    queue: {rate: 20mbit, limit: 50ms}
    when: [{at: "22:00-06:00", plan: slow}, {at: "mon-sun 20:00-24:00", plan: business}]
  both:
    queue: {rate: 20mbit, limit: 50ms}
    when: {at: "00:00-24:00", plan: slow}
`, "customer,address,plan\n")
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		plan, at string
		used     bool
		want     string
		next     string
	}{
		{"home", "2026-11-24T09:00:00+01:00", false, "business", "2026-11-24T18:00:00+01:00"},
		{"home", "2026-11-24T09:00:00+01:00", true, "slow", "2026-11-24T18:00:00+01:00"},
		{"home", "2026-11-24T18:00:00+01:00", false, "", "2026-11-25T08:00:00+01:00"},
		{"home", "2026-11-28T12:00:00+01:00", true, "slow", "2026-11-30T08:00:00+01:00"},
		{"home", "2026-10-31T12:00:00+01:00", false, "", "2026-11-01T00:00:00+01:00"}, // a Saturday: the month ends first
		{"night", "2026-11-24T21:00:00Z", false, "business", "2026-11-24T22:00:00Z"},
		{"night", "2026-11-24T21:00:00Z", true, "business", "2026-11-24T22:00:00Z"}, // without a quota
		{"night", "2026-11-24T23:00:00Z", false, "slow", "2026-11-25T00:00:00Z"},    // the first entry
		{"night", "2026-11-25T12:00:00Z", false, "", "2026-11-25T20:00:00Z"},
		{"both", "2026-11-25T12:00:00Z", false, "slow", ""},
		{"slow", "2026-11-25T12:00:00Z", true, "", ""},
	} {
		at, err := time.Parse(time.RFC3339, test.at)
		if err != nil {
			t.Fatal(err)
		}
		r := f.Rules(test.plan)
		next, _ := time.Parse(time.RFC3339, test.next)
		if got := r.Plan(at, test.used); got != test.want {
			t.Errorf("%s at %s: got plan %q, want %q", test.plan, test.at, got, test.want)
		}
		if got := r.Next(at); !got.Equal(next) {
			t.Errorf("%s at %s: until %v, want %v", test.plan, test.at, got, next)
		}
	}
}

// TestRuleErrors checks the exact errors of quotas and schedules.
func TestRuleErrors(t *testing.T) {
	plans := func(text string) string {
		return ispClasses + "customers: {file: c.csv}\nplans:\n  p: {type: gcra, rate: 1mbit, burst: 2kB, " +
			text + "}\n" +
			"  q: {queue: {rate: 1mbit, limit: 1s}}\n  w: {queue: {rate: 1mbit, limit: 1s}, when: {at: \"22:00-06:00\", plan: q}}\n" +
			"  l: {queue: {rate: 1mbit, limit: 1s}, quota: {limit: 1GB, every: day, then: q}}\n"
	}
	const zoneHint = ": write a name such as Europe/Berlin, UTC, or local for the host's zone"
	for _, test := range []struct{ text, want string }{
		{"quota: 500GB", `5:51: a quota must be a mapping, not "500GB"`},
		{"quota: {every: month, then: q}", `5:51: a quota needs a limit, such as limit: 500GB`},
		{"quota: {limit: 1GB, then: q}", `5:51: a quota needs a window: every: hour, day, week or month`},
		{"quota: {limit: 1GB, every: day}", `5:51: a quota needs then, the plan of customers that have used it`},
		{"quota: {limit: 0, every: day, then: q}", `5:59: limit: a quota must be above zero`},
		{"quota: {limit: 0GB, every: day, then: q}", `5:59: limit: a quota must be above zero`},
		{"quota: {limit: -1, every: day, then: q}", `5:59: limit: "-1" is not a size: write a number of bytes, such as 500GB`},
		{"quota: {limit: 500  GB, every: day, then: q}", `5:59: limit: "500  GB" is not a size: write a number of bytes, such as 500GB`},
		{"quota: {limit: 1PB, every: day, then: q}", `5:59: limit: "1PB" is not a size: write a number of bytes, such as 500GB`},
		{"quota: {limit: 1mbit, every: day, then: q}", `5:59: limit: "1mbit" is not a size: write a number of bytes, such as 500GB`},
		{"quota: {limit: 20ms, every: day, then: q}", `5:59: limit: "20ms" is not a size: write a number of bytes, such as 500GB`},
		{"quota: {limit: 500gb, every: day, then: q}", `5:59: limit: "gb" is ambiguous: a power of 1000 to some tools, of 1024 to others: write 500GB or 500GiB`},
		{"quota: {limit: 1GB, every: year, then: q}", `5:71: every: "year" is not one of hour, day, week, month`},
		{"quota: {limit: 1GB, every: [day], then: q}", `5:71: every must be a single value, not a list`},
		{"quota: {limit: 1GB, every: day, then: x}", `5:82: then: no plan named "x": define it under plans:`},
		{"quota: {limit: 1GB, every: day, then: self}", `5:82: then: no plan named "self": define it under plans:`},
		{"quota: {limit: 1GB, every: day, then: p}", `5:82: then: plan "p" selects itself: name another plan`},
		{"quota: {limit: 1GB, every: day, then: [q]}", `5:82: then must be a single value, not a list`},
		{"quota: {limit: 1GB, every: day, then: l}", `5:82: then: plan "l" has a quota or when itself: the plan that a quota or when selects can have neither`},
		{"quota: {limit: 1GB, every: day, then: w}", `5:82: then: plan "w" has a quota or when itself: the plan that a quota or when selects can have neither`},
		{"quota: {limit: 1GB, every: day, then: q, zone: Europe/Berln}", `5:91: zone: "Europe/Berln" is not in the time zone database of this host` + zoneHint},
		{"quota: {limit: 1GB, every: day, then: q, zone: \"\"}", `5:91: zone: "" is not a time zone` + zoneHint},
		{"quota: {limit: 1GB, every: day, then: q, zone: Local}", `5:91: zone: "Local" is not a time zone` + zoneHint},
		{"quota: {limit: 1GB, every: day, then: q, zone: [UTC]}", `5:91: zone must be a single value, not a list`},
		{"quota: {limit: 1GB, every: day, then: q, plan: q}", `5:85: unknown key "plan" in a quota: want one of every, limit, then, zone`},

		{"when: []", `5:50: when needs an entry, such as {at: "22:00-06:00", plan: night}`},
		{"when: night", `5:50: an entry of when must be a mapping, not "night"`},
		{"when: {plan: q}", `5:50: an entry of when needs a time, such as at: "mon-fri 08:00-18:00"`},
		{"when: {at: 22:00-06:00}", `5:50: an entry of when needs the plan that it selects`},
		{"when: {at: 22:00-06, plan: q}", `5:55: at: "06" is not a time from 00:00 to 24:00 with two digits for hours and minutes`},
		{"when: {at: 22:00-06:00, plan: x}", `5:74: plan: no plan named "x": define it under plans:`},
		{"when: {at: 22:00-06:00, plan: p}", `5:74: plan: plan "p" selects itself: name another plan`},
		{"when: {at: 22:00-06:00, plan: w}", `5:74: plan: plan "w" has a quota or when itself: the plan that a quota or when selects can have neither`},
		{"when: [{at: 22:00-06:00, plan: q}, {at: 06:00-22:00, plan: l}]", `5:103: plan: plan "l" has a quota or when itself: the plan that a quota or when selects can have neither`},
		{"when: {at: 22:00-06:00, plan: q, zone: MEZ}", `5:83: zone: "MEZ" is not in the time zone database of this host` + zoneHint},
		{"when: {at: 22:00-06:00, plan: q, then: q}", `5:77: unknown key "then" in an entry of when: want one of at, plan, zone`},
		{"then: q", `5:44: then is an option of the class: write it there, as meter: {type: plan, then: ...}`},
	} {
		got := ""
		if _, err := loadCustomers(plans(test.text), "customer,address,plan\n"); err != nil {
			got = err.Error()
		}
		if want := "etc/p.yaml:" + test.want; got != want {
			t.Errorf("%s: got\n%s, want\n%s", test.text, got, want)
		}
	}
	// Without a name the plan of a quota would be none.
	unnamed := plans("quota: {limit: 1GB, every: day, then: ''}") +
		"  '': {queue: {rate: 1mbit, limit: 1s}}\n"
	if _, err := loadCustomers(unnamed, "customer,address,plan\n"); err == nil ||
		err.Error() != "etc/p.yaml:9:3: each of the plans needs a name" {
		t.Errorf("a plan without a name: got %v", err)
	}
	for row, want := range map[string]string{
		"quiet,5GB": `2: quota: plan "quiet" has no quota`,
		"p,0":       `2: quota: a quota must be above zero`,
		"p,5mbit":   `2: quota: "5mbit" is not a size: write a number of bytes, such as 500GB`,
		"x,5GB":     `2: no plan named "x": define it under plans:`,
	} {
		policy := ispPolicy +
			"  p: {queue: {rate: 1mbit, limit: 1s}, quota: {limit: 1GB, every: day, then: quiet}}\n"
		if _, err := loadCustomers(policy, "customer,address,plan,quota\n1,::1,"+row+"\n"); err == nil ||
			err.Error() != "etc/c.csv:"+want {
			t.Errorf("%s: got %v, want %s", row, err, want)
		}
	}
}
