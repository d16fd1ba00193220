package dataplane

import (
	"fmt"
	"net/netip"
	"strconv"

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
	// paths of cgroup v2 that customers have, such as /user.slice; for CustomerByCgroup
	Cgroups []string
	Plans   []*ServicePlan // named plans; compiled.Compile also checks those without customers
	List    []Customer     // at most MaxCustomers
}

// IDText writes a number of Customer.IDs, such as a MAC address or the path of a cgroup.
func (c *Customers) IDText(id uint64) string {
	switch c.Key {
	case ByTwoVLANs:
		return fmt.Sprintf("%d, %d", id>>12, id&0xfff)
	case CustomerByMAC:
		return string(AppendMAC(nil, id))
	case CustomerByVLANMAC:
		return string(AppendMAC(fmt.Appendf(nil, "%d, ", id>>48), id&MaxMAC))
	case CustomerByCgroup:
		if id < uint64(len(c.Cgroups)) {
			return c.Cgroups[id]
		}
	}
	return strconv.FormatUint(id, 10)
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
	CustomerByMAC     // MAC address of the inner side: see Packet.Direction
	CustomerByVLANMAC // ID of the outer VLAN tag, and MAC address of the inner side
	CustomerByVNI     // network of VXLAN or GENEVE: see Packet.VNI
	CustomerByTEID    // tunnel of GTP-U: see Packet.TEID
	// address in a tunnel, of the side faced by the interface: see Packet.Inner
	CustomerByInner
	CustomerByMark // skb mark, which only the kernel plane knows
	// The cgroup v2 of the packet's socket, or the innermost one above it that a customer has. Only the
	// kernel plane knows it, of packets sent by sockets of its namespace.
	CustomerByCgroup
)

// ByAddress reports whether customers have prefixes.
func (k CustomerKey) ByAddress() bool { return k <= ByDestination || k == CustomerByInner }

// NeedsMAC reports whether only packets of Ethernet can have a customer.
func (k CustomerKey) NeedsMAC() bool { return k == CustomerByMAC || k == CustomerByVLANMAC }

// String returns the name as spelled in policy files, such as address or [svlan, cvlan].
func (k CustomerKey) String() string {
	return enumName(k, "CustomerKey", customerKeyNames)
}

var customerKeyNames = []string{
	"address", "src", "dst", "vlan", "[svlan, cvlan]", "mac", "[vlan, mac]", "vni", "teid", "inner-address",
	"mark", "cgroup",
}

// Customer is a customer with its addresses or other keys, and its plan.
type Customer struct {
	Name     string         // unique, 1 to 64 printable characters
	Prefixes []netip.Prefix // for a key by address
	// For other keys, numbers: IDs of VLANs, for ByTwoVLANs outer<<12 | inner; MAC addresses, for
	// CustomerByVLANMAC with the ID in the upper 16 bits; VNIs; TEIDs; marks; indexes of Customers.Cgroups.
	IDs  []uint64
	Plan *ServicePlan // customers with the same plan and rates point to the same ServicePlan
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
