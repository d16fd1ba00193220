package compiled

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// Customers are compiled dataplane.Customers.
type Customers struct {
	Key    dataplane.CustomerKey // of Source, or chosen by Plan.For
	Plans  []Service             // Customers.Plans, then the others in the order of their first customer
	Of     []uint32              // index of each customer's plan
	Source *dataplane.Customers
	// Packets means that the meters count packets instead of bytes.
	Packets bool

	numbers map[string]uint32 // numbers of customers, from 1, by name
	table   customerTable
}

// Service is a compiled dataplane.ServicePlan.
type Service struct {
	Name    string
	Kind    meter.Kind
	Profile *meter.Profile // nil for a queue
	Buckets []BucketOutline
	Queue   queue.Config // valid for a queue
	Tree    int          // index of the tree that contains the queue, or -1
	// Template means that the queue has no link, and that no customer has the plan as it is: each one names
	// a link of its own.
	Template bool
	// LinkQueue is the queue in the tree; its limit is a time.
	LinkQueue queue.LinkQueue
	FlowKeys
	Actions [3]*Action // by color; nil: the class's action
	Source  *dataplane.ServicePlan

	Up *Service // for packets from the customer; nil: the same plan. See Plan.ServiceFor
}

// Number returns the number of the customer of a name, from 1, or 0 if there is none.
func (c *Customers) Number(name string) uint32 { return c.numbers[name] }

// Names returns the names of all customers, in the order of their numbers.
func (c *Customers) Names() []string {
	names := make([]string, len(c.Source.List))
	for i := range names {
		names[i] = c.Source.List[i].Name
	}
	return names
}

// Service returns the plan of a customer.
func (c *Customers) Service(number uint32) *Service { return &c.Plans[c.Of[number-1]] }

// CustomerOf returns the number of the customer of a parsed packet, or 0 for none. With ByInside
// the packet counts as one of egress.
func (c *Customers) CustomerOf(p *dataplane.Packet) uint32 {
	switch c.Key {
	case dataplane.BySource:
		return c.table.find(p.Kind, p.Src)
	case dataplane.ByInside, dataplane.ByDestination:
		return c.table.find(p.Kind, p.Dst)
	case dataplane.CustomerByInner:
		return c.table.find(p.InsideInner())
	}
	if id, ok := idOf(c.Key, p); ok {
		return c.table.ids.find(id, mix(id))
	}
	return 0
}

// idOf returns the number in a packet that identifies its customer, as in dataplane.Customer.IDs.
func idOf(key dataplane.CustomerKey, p *dataplane.Packet) (id uint64, ok bool) {
	switch key {
	case dataplane.ByOuterVLAN:
		v, ok := p.VLAN()
		return uint64(v), ok
	case dataplane.ByTwoVLANs:
		outer, inner, ok := p.TwoVLANs()
		return uint64(outer)<<12 | uint64(inner), ok
	case dataplane.CustomerByMAC:
		return p.InsideMAC()
	case dataplane.CustomerByVLANMAC:
		return p.VLANAndMAC()
	case dataplane.CustomerByVNI:
		return p.VNI()
	case dataplane.CustomerByTEID:
		return p.TEID()
	case dataplane.CustomerByMark:
		return uint64(p.Mark), true
	}
	return 0, false // of a cgroup, which only the kernel knows
}

// ByAddress returns the number of the customer with the longest prefix that contains an address, or 0.
func (c *Customers) ByAddress(a netip.Addr) uint32 {
	b := a.As16()
	addr := dataplane.Addr{Hi: binary.BigEndian.Uint64(b[:8]), Lo: binary.BigEndian.Uint64(b[8:])}
	if a.Is4() {
		return c.table.find(dataplane.IPv4, dataplane.Addr{Lo: addr.Lo & 0xffff_ffff})
	}
	return c.table.find(dataplane.IPv6, addr)
}

// ByID returns the number of the customer with a number in its dataplane.Customer.IDs, or 0.
func (c *Customers) ByID(id uint64) uint32 { return c.table.ids.find(id, mix(id)) }

// CustomerService is a customer, by name, with its plan.
type CustomerService struct {
	Name string
	Plan *Service
}

// Replaces returns an error if a customer cannot get the plan instead of another one without a reload: its
// packets stay queued in a tree of links, which has one kind of fairness for a queue. Nor can a customer
// without a link get a plan that needs one.
func (s *Service) Replaces(before *Service) error {
	switch {
	case needsLink(s.Source):
		return errors.New("link " + linkMissing)
	case s.Tree != before.Tree:
		return fmt.Errorf("plan %q has its queue in another tree of links: change the policy and reload it", s.Name)
	case s.Tree >= 0 && s.LinkQueue.Fair != before.LinkQueue.Fair:
		return fmt.Errorf("plan %q has a queue that is fair in another way: change the policy and reload it", s.Name)
	}
	return nil
}

// Variant returns a plan of customers with other parameters: those of from, which is a meter if s is
// one, and else a queue. The actions stay those of s. off means a plan dropping all
// packets. The error joins a dataplane.FieldError for each invalid part.
func (p *Plan) Variant(s *Service, from *dataplane.ServicePlan, off bool) (*Service, error) {
	out, err := p.variant(p, s, from, from.Link, off)
	up := from.Upward()
	if err != nil || p.Up == nil && up == nil {
		return out, err
	}
	if out.Up, err = p.upward().variant(p, s.upward(), cmp.Or(up, from), from.Link, off); err != nil {
		return nil, err
	}
	return out, nil
}

// variant is Variant for one direction. link, that of from, is one of the Sources of a plan with the same
// links.
func (p *Plan) variant(
	sources *Plan, s *Service, from *dataplane.ServicePlan, link *dataplane.Link, off bool,
) (*Service, error) {
	c := newCompiler()
	c.plan.Source = p.Source
	c.plan.Links, c.plan.Trees = slices.Clip(p.Links), slices.Clip(p.Trees)
	for i := range sources.Links {
		c.links[sources.Links[i].Source] = i
	}
	limits := *from
	limits.Link = link
	limits.Green, limits.Yellow, limits.Red = nil, nil, nil // they may name parts of the policy
	out := c.compileService(&limits)
	if needsLink(&limits) {
		c.add(from, "link", linkMissing)
	}
	if (from.Queue != nil) != (s.Profile == nil) {
		c.add(from, "queue", "cannot replace a meter, nor a meter a queue: reload the policy")
	}
	if out.Tree >= len(p.Trees) {
		c.add(from, "fair", "needs a tree that the policy does not have: reload the policy")
	}
	if c.errorList != nil {
		return nil, errors.Join(c.errorList...)
	}
	out.Actions, out.Source = s.Actions, from
	if off {
		drop := &Action{Drop: true, Queue: -1}
		out.Actions = [3]*Action{drop, drop, drop}
	}
	return &out, nil
}

// WithServices returns a plan whose customers, by number, have other plans. It shares
// everything else with p.
func (p *Plan) WithServices(of map[uint32]*Service) *Plan {
	if len(of) == 0 {
		return p
	}
	next := p.withServices(of)
	up, differs := make(map[uint32]*Service, len(of)), p.Up != nil
	for number, service := range of {
		up[number], differs = service.upward(), differs || service.Up != nil
	}
	if differs {
		next.Up = p.upward().withServices(up)
	}
	return next
}

// withServices is WithServices for one direction.
func (p *Plan) withServices(of map[uint32]*Service) *Plan {
	next, customers := *p, *p.Customers
	customers.Plans, customers.Of = slices.Clone(customers.Plans), slices.Clone(customers.Of)
	indexes := map[*Service]uint32{}
	for i := range p.Customers.Plans {
		indexes[&p.Customers.Plans[i]] = uint32(i)
	}
	for _, number := range slices.Sorted(maps.Keys(of)) {
		service := of[number]
		i, known := indexes[service]
		if !known {
			i = uint32(len(customers.Plans))
			indexes[service] = i
			customers.Plans = append(customers.Plans, *service)
		}
		customers.Of[number-1] = i
	}
	next.Customers = &customers
	return &next
}
