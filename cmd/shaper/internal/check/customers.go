package check

import (
	"fmt"
	"reflect"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/calendar"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// customerKeys are the keys of customers, as in policies and in words.
var customerKeys = map[dataplane.CustomerKey]struct{ key, text string }{
	dataplane.ByInside:      {"address", "destination address at egress, source address at ingress"},
	dataplane.BySource:      {"src", "source address"},
	dataplane.ByDestination: {"dst", "destination address"},
	dataplane.ByOuterVLAN:   {"vlan", "ID of the outer VLAN tag"},
	dataplane.ByTwoVLANs:    {"svlan,cvlan", "IDs of the two outermost VLAN tags"},
	dataplane.CustomerByMAC: {"mac", "destination MAC address at egress, source MAC address at ingress"},
	dataplane.CustomerByVLANMAC: {
		"vlan,mac", "ID of the outer VLAN tag, and destination MAC address at egress, source MAC address at ingress",
	},
	dataplane.CustomerByVNI:    {"vni", "VNI of VXLAN or GENEVE"},
	dataplane.CustomerByTEID:   {"teid", "TEID of GTP-U"},
	dataplane.CustomerByInner:  {"inner-address", "address in a tunnel: destination at egress, source at ingress"},
	dataplane.CustomerByMark:   {"mark", "skb mark"},
	dataplane.CustomerByCgroup: {"cgroup", "cgroup of the socket, or the nearest one above it that a customer has"},
}

// checkCustomersJSON describes the table of customers.
type checkCustomersJSON struct {
	Key       string          `json:"key"`
	Nested    bool            `json:"nested"`
	Customers int             `json:"customers"`
	Prefixes  int             `json:"prefixes"` // addresses and prefixes
	VLANs     int             `json:"vlans"`
	MACs      int             `json:"macs,omitempty"` // with a key by VLAN and MAC, pairs
	VNIs      int             `json:"vnis,omitempty"`
	TEIDs     int             `json:"teids,omitempty"`
	Marks     int             `json:"marks,omitempty"`
	Cgroups   int             `json:"cgroups,omitempty"`
	Plans     []checkPlanJSON `json:"plans"`
}

// checkPlanJSON contains a meter or a queue.
type checkPlanJSON struct {
	Name      string            `json:"name"`
	Customers int               `json:"customers"`
	Own       int               `json:"customers_with_own_parameters"`
	Meter     *checkMeterJSON   `json:"meter,omitempty"`
	Queue     *checkQueueJSON   `json:"queue,omitempty"`
	Actions   map[string]string `json:"actions"` // only those that differ from the class's
	Quota     *checkQuotaJSON   `json:"quota,omitempty"`
	When      []checkWhenJSON   `json:"when,omitempty"`

	Up *checkServiceJSON `json:"up,omitempty"` // for packets from the customers, if it differs
}

// checkServiceJSON is the meter or the queue of a plan.
type checkServiceJSON struct {
	Meter *checkMeterJSON `json:"meter,omitempty"`
	Queue *checkQueueJSON `json:"queue,omitempty"`
}

type checkQuotaJSON struct {
	Limit int64  `json:"limit_bytes"`
	Every string `json:"every"`
	Zone  string `json:"zone"`
	Then  string `json:"then"`
	Own   int    `json:"customers_with_own_limit"`
}

type checkWhenJSON struct {
	At   string `json:"at"`
	Zone string `json:"zone"`
	Plan string `json:"plan"`
}

// addRules adds the quota and the schedules of a plan. own is the number of its customers
// with a limit of their own.
func (plan *checkPlanJSON) addRules(r policyfile.QuotaRules, own int) {
	if q := r.Quota; q != nil {
		plan.Quota = &checkQuotaJSON{q.Limit, q.Every.String(), calendar.ZoneName(q.Zone), q.Then, own}
	}
	for _, w := range r.When {
		plan.When = append(plan.When,
			checkWhenJSON{w.Schedule.String(), calendar.ZoneName(w.Schedule.Zone()), w.Plan})
	}
}

// customersJSON returns nil for a policy without customers.
func customersJSON(file *policyfile.File, mtu int64) *checkCustomersJSON {
	policy := file.Policy
	c := policy.Customers
	if c == nil {
		return nil
	}
	out := &checkCustomersJSON{
		Key: customerKeys[c.Key].key, Nested: c.Nested, Customers: len(c.List),
		Plans: make([]checkPlanJSON, len(c.Plans)),
	}
	named, index := map[*dataplane.ServicePlan]bool{}, map[string]int{}
	limits := make([]int, len(c.Plans)) // customers with an own limit of the quota, by plan
	for i, p := range c.Plans {
		plan := &out.Plans[i]
		*plan = checkPlanJSON{Name: p.Name, Actions: map[string]string{}}
		named[p], index[p.Name] = true, i
		service := newPlanJSON(policy, p, mtu)
		plan.Meter, plan.Queue, plan.Up = service.Meter, service.Queue, service.Up
		for color, a := range [...]*dataplane.Action{p.Green, p.Yellow, p.Red} {
			if a != nil {
				plan.Actions[meter.Color(color).String()] = say.Action(*a)
			}
		}
	}
	for i := range c.List {
		customer := &c.List[i]
		out.Prefixes += len(customer.Prefixes)
		*out.ids(c.Key) += len(customer.IDs)
		number := index[customer.Plan.Name]
		if _, own := file.OwnQuota(customer.Name); own {
			limits[number]++
		}
		plan := &out.Plans[number]
		plan.Customers++
		if !named[customer.Plan] {
			plan.Own++
		}
	}
	for i, p := range c.Plans {
		out.Plans[i].addRules(file.Rules(p.Name), limits[i])
	}
	return out
}

// ids returns the count of the IDs of customers.
func (t *checkCustomersJSON) ids(key dataplane.CustomerKey) *int {
	switch key {
	case dataplane.CustomerByMAC, dataplane.CustomerByVLANMAC:
		return &t.MACs
	case dataplane.CustomerByVNI:
		return &t.VNIs
	case dataplane.CustomerByTEID:
		return &t.TEIDs
	case dataplane.CustomerByMark:
		return &t.Marks
	case dataplane.CustomerByCgroup:
		return &t.Cgroups
	}
	return &t.VLANs
}

// serviceJSON returns the meter or the queue of a plan.
func serviceJSON(policy *dataplane.Policy, p *dataplane.ServicePlan, mtu int64) (out checkServiceJSON) {
	if p.Params != nil {
		m := meterJSON(planMeter(policy, p))
		out.Meter = &m
		return out
	}
	own := p.CustomerQueue()
	q := queueJSON(own, nil, &say.Trees{}, mtu)
	if p.Link != nil {
		q.Link, q.Path = p.Link.Name, say.Path(p.Link)
		q.OwnRate = say.BitsPerSecond(own.Rate)
	}
	q.Guarantee = say.BitsPerSecond(own.Guarantee)
	out.Queue = &q
	return out
}

// planMeter returns the meter of a plan. It counts in the unit of the customers' classes.
func planMeter(policy *dataplane.Policy, p *dataplane.ServicePlan) *dataplane.Meter {
	m := &dataplane.Meter{Name: p.Name, Params: p.Params}
	for i := range policy.Classes {
		if c := &policy.Classes[i]; c.Match.Customer {
			m.Packets = c.Meter.Packets
		}
	}
	return m
}

// idNouns are the nouns for IDs of customers.
var idNouns = map[dataplane.CustomerKey]string{
	dataplane.ByOuterVLAN: "VLAN", dataplane.ByTwoVLANs: "VLAN", dataplane.CustomerByMAC: "MAC address",
	dataplane.CustomerByVLANMAC: "MAC address", dataplane.CustomerByVNI: "VNI", dataplane.CustomerByTEID: "TEID",
	dataplane.CustomerByMark: "mark", dataplane.CustomerByCgroup: "cgroup",
}

// customers prints the table of customers and their plans.
func (p policyPrinter) customers(file *policyfile.File) {
	policy := file.Policy
	c := policy.Customers
	if c == nil {
		return
	}
	t := customersJSON(file, cli.DefaultMTU)
	has := fmt.Sprintf("%s and prefixes", say.Count(t.Prefixes, "address"))
	if noun := idNouns[c.Key]; noun != "" {
		has = say.Count(*t.ids(c.Key), noun)
	}
	p.Printf("\ncustomers\n  table   %s with %s\n  key     %s\n", say.Count(t.Customers, "customer"), has,
		customerKeys[c.Key].text)
	if c.Nested {
		p.Printf("  nested  the longest matching prefix wins\n")
	}
	if file.HasRules() {
		p.Printf("  replay  ignores the quotas and schedules of plans\n")
	}
	selecting := selectingPlans(t.Plans)
	for i, plan := range c.Plans {
		used := say.Count(t.Plans[i].Customers, "customer")
		if own := t.Plans[i].Own; own > 0 {
			used += fmt.Sprintf(", %s with own parameters", say.Grouped(int64(own)))
		}
		switch by := selecting[plan.Name]; len(by) {
		case 0:
		case 1:
			used += "; selected by plan " + by[0]
		default:
			used += fmt.Sprintf("; selected by %s", say.Count(len(by), "plan"))
		}
		p.Printf("\nplan %s\n  used    by %s\n", plan.Name, used)
		p.parts(PlanParts(policy, plan))
		for color, a := range [...]*dataplane.Action{plan.Green, plan.Yellow, plan.Red} {
			if a != nil {
				p.Printf("  %-7s %s\n", meter.Color(color), say.Action(*a))
			}
		}
		p.rules(&t.Plans[i])
	}
}

// PlanParts describes the meter or the queue of a plan, for both directions.
func PlanParts(policy *dataplane.Policy, p *dataplane.ServicePlan) []say.Part {
	if p.Params != nil {
		return meterParts(policy, p)
	}
	return append([]say.Part{{Key: "queue", Text: "one for each customer"}}, say.PlanParts(p)...)
}

// PlanJSON is the meter or the queue of a plan, as in the output of check --json.
type PlanJSON struct {
	checkServiceJSON
	Up *checkServiceJSON `json:"up,omitempty"` // for packets from the customer, if it differs
}

// NewPlanJSON returns the JSON of a plan.
func NewPlanJSON(policy *dataplane.Policy, p *dataplane.ServicePlan) PlanJSON {
	return newPlanJSON(policy, p, cli.DefaultMTU)
}

func newPlanJSON(policy *dataplane.Policy, p *dataplane.ServicePlan, mtu int64) (out PlanJSON) {
	out.checkServiceJSON = serviceJSON(policy, p, mtu)
	if up := p.Upward(); up != nil {
		if service := serviceJSON(policy, up, mtu); !reflect.DeepEqual(service, out.checkServiceJSON) {
			out.Up = &service
		}
	}
	return out
}

// meterParts describes the meter of a plan, for both directions.
func meterParts(policy *dataplane.Policy, p *dataplane.ServicePlan) []say.Part {
	describe := func(p *dataplane.ServicePlan) []say.Part {
		return []say.Part{{
			Key: "meter", Text: fmt.Sprintf("%s: %s", p.Params.Kind(), say.Meter(planMeter(policy, p))),
		}}
	}
	parts := describe(p)
	if up := p.Upward(); up != nil {
		parts = say.Both(parts, describe(up))
	}
	return parts
}

// selectingPlans returns, by name of a plan, the plans whose quotas and schedules select it.
func selectingPlans(plans []checkPlanJSON) map[string][]string {
	out := map[string][]string{}
	add := func(name, by string) {
		if list := out[name]; len(list) == 0 || list[len(list)-1] != by {
			out[name] = append(list, by)
		}
	}
	for i := range plans {
		if q := plans[i].Quota; q != nil {
			add(q.Then, plans[i].Name)
		}
		for _, w := range plans[i].When {
			add(w.Plan, plans[i].Name)
		}
	}
	return out
}

// rules prints the quota and the schedules of a plan.
func (p policyPrinter) rules(plan *checkPlanJSON) {
	if q := plan.Quota; q != nil {
		own := ""
		if q.Own > 0 {
			own = fmt.Sprintf("; %s with an own limit", say.Count(q.Own, "customer"))
		}
		p.Printf("  quota   %s B every %s (%s), then plan %s%s\n", say.Grouped(q.Limit), q.Every, q.Zone,
			q.Then, own)
	}
	for _, w := range plan.When {
		p.Printf("  when    %s (%s): plan %s\n", w.At, w.Zone, w.Plan)
	}
}
