package dataplane

import (
	"net/netip"

	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// Customers is the customer table of a policy. It says which customer a packet belongs to,
// and by which plan each customer is metered. A customer has one state, whatever
// addresses it uses. All classes with Match.Customer share it.
type Customers struct {
	Key CustomerKey
	// Nested allows a prefix of a customer inside a prefix of another one. A packet
	// belongs to the customer with the longest prefix.
	Nested bool
	Plans  []*ServicePlan // named plans; compiled.Compile also checks those without customers
	List   []Customer     // at most MaxCustomers
}

// MaxCustomerName is the maximum length of the name of a customer, in characters.
const MaxCustomerName = 64

// MaxCustomers is the maximum number of customers of a policy.
const MaxCustomers = 1 << 20

// CustomerKey is the part of a packet that identifies its customer.
type CustomerKey uint8

const (
	// the address of the side faced by the interface: destination at egress, source at ingress; see
	// compiled.Plan.For
	ByInside      CustomerKey = iota
	BySource                  // source address
	ByDestination             // destination address
	ByOuterVLAN               // ID of the outer VLAN tag
	// IDs of the two outermost VLAN tags; a packet with one tag has no customer
	ByTwoVLANs
)

// String returns the name as spelled in policy files, such as address or [svlan, cvlan].
func (k CustomerKey) String() string {
	return enumName(k, "CustomerKey", []string{"address", "src", "dst", "vlan", "[svlan, cvlan]"})
}

// Customer is a customer with its addresses or VLANs, and its plan.
type Customer struct {
	Name     string         // unique, 1 to 64 printable characters
	Prefixes []netip.Prefix // for a key by address
	VLANs    []uint32       // for a key by VLAN: IDs; for ByTwoVLANs outer<<12 | inner
	Plan     *ServicePlan   // customers with the same plan and rates point to the same ServicePlan
}

// ServicePlan is the treatment of the packets of a customer: a meter, or a queue of the
// customer's own. With a queue, packets keep the input color of the class's meter.
type ServicePlan struct {
	Name   string
	Params meter.Params  // of the meter; nil for a queue
	Queue  *queue.Config // nil for a meter; its limit must be a time, and it has no WRED

	// For a queue, as those of a Queue. Without a link it has a rate of its own, and may be fair.
	Link             *Link
	Guarantee        meter.Rate
	Priority, Weight int
	Fair, Hosts      Key

	Up *UpwardPlan // for packets from the customer; nil: the same

	// Actions by color; nil means the class's action. A queue of the customer takes the place of a
	// queue of the action.
	Green, Yellow, Red *Action
}

// InTree reports whether customers of the plan have a queue in a tree of links, as queues of links and
// fair queues are.
func (p *ServicePlan) InTree() bool {
	return p.Queue != nil && (p.Link != nil || p.Fair.By != NoKey || p.Hosts.By != NoKey)
}

// CustomersOnLinks reports whether the queue of some customer or plan is on a link.
func (p *Policy) CustomersOnLinks() bool {
	if p.Customers == nil {
		return false
	}
	for _, plan := range p.Customers.Plans {
		if plan.Link != nil {
			return true
		}
	}
	var last *ServicePlan // most neighbors have the same plan
	for i := range p.Customers.List {
		plan := p.Customers.List[i].Plan
		if plan == last || plan == nil {
			continue
		}
		if last = plan; plan.Link != nil {
			return true
		}
	}
	return false
}

// CustomerQueue returns the queue of a customer of a plan with one.
func (p *ServicePlan) CustomerQueue() *Queue {
	return &Queue{
		Name: p.Name, Config: *p.Queue, Link: p.Link, Guarantee: p.Guarantee, Priority: p.Priority,
		Weight: p.Weight, Fair: p.Fair, Hosts: p.Hosts,
	}
}

// Drain returns the maximum rate of the queue of a customer, as Queue.Drain.
func (p *ServicePlan) Drain() meter.Rate { return p.CustomerQueue().Drain() }

// LinkQueue returns the queue of a customer as its link sees it, with the default weight.
func (p *ServicePlan) LinkQueue() queue.LinkQueue { return p.CustomerQueue().LinkQueue() }
