package oracle

import (
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// customers is the customer table of a policy.
type customers struct {
	key     string // one of customerKeys
	ingress bool
	nested  bool
	list    []*customer
}

// customerKeys are the values of `key`, with a blank between two tags.
var customerKeys = []string{
	"address", "src", "dst", "vlan", "svlan cvlan", "mac", "vlan mac", "vni", "teid",
	"inner-address",
}

// customer is a row of the table, with the state of its plan.
type customer struct {
	name   string
	line   int // in the CSV file
	blocks []block
	// IDs; with two tags, outer * 4096 + inner; with MAC addresses, these, or ID << 48 + address
	vlans []int
	plan  *plan
	own   map[string]string // parameters of its own

	state state  // nil if paced
	queue *queue // nil if metered
}

// of returns the customer of a packet, or nil.
func (c *customers) of(f frame) *customer {
	switch {
	case c == nil:
		return nil
	case c.key == "vlan":
		return c.byVLAN(f.vlan, f.hasVLAN)
	case c.key == "svlan cvlan":
		return c.byVLAN(f.vlan*4096+f.inner, f.tags >= 2)
	case c.key == "mac":
		return c.byVLAN(f.insideMAC(), f.hasMACs)
	case c.key == "vlan mac":
		return c.byVLAN(f.vlan<<48+f.insideMAC(), f.hasMACs && f.hasVLAN)
	case c.key == "vni":
		return c.byVLAN(f.vni, f.hasVNI)
	case c.key == "teid":
		return c.byVLAN(f.teid, f.hasTEID)
	case c.key == "inner-address" && c.ingress:
		return c.byAddress(f.innerSrc)
	case c.key == "inner-address":
		return c.byAddress(f.innerDst)
	case !f.isIP():
		return nil
	case c.key == "dst" || c.key == "address" && !c.ingress:
		return c.byAddress(f.dst)
	}
	return c.byAddress(f.src)
}

func (c *customers) byVLAN(id int, tagged bool) *customer {
	for _, who := range c.list {
		if tagged && slices.Contains(who.vlans, id) {
			return who
		}
	}
	return nil
}

// byAddress returns the customer with the smallest block that contains the address.
func (c *customers) byAddress(a netip.Addr) (best *customer) {
	var least block
	for _, who := range c.list {
		for _, b := range who.blocks {
			if b.contains(a) && (best == nil || b.smaller(least)) {
				best, least = who, b
			}
		}
	}
	return best
}

// add adds a customer. Its addresses must not be those of another one.
func (c *customers) add(who *customer) error {
	for _, other := range c.list {
		if other.name == who.name {
			return fmt.Errorf("customer %q is in line %d too", who.name, other.line)
		}
		for _, id := range who.vlans {
			if slices.Contains(other.vlans, id) {
				return fmt.Errorf("VLAN %d belongs to customer %q too", id, other.name)
			}
		}
		for _, b := range who.blocks {
			for _, o := range other.blocks {
				inside := b.within(o) || o.within(b)
				if b.overlaps(o) && (!c.nested || !inside || b.sharesPrefix(o)) {
					return fmt.Errorf("%s belongs to customer %q (line %d) too", b, other.name, other.line)
				}
			}
		}
	}
	c.list = append(c.list, who)
	return nil
}

// parseTable reads the plans and the customers. Queues of links named by plans come after those
// named by classes.
func (p *policy) parseTable(top map[string]*yaml.Node, s Site) error {
	var plans []*plan
	if n := top["plans"]; n != nil {
		var err error
		if plans, err = p.parsePlans(n); err != nil {
			return err
		}
	}
	packets, err := p.countOfPlans()
	if err != nil {
		return err
	}
	onLinks := false
	for _, one := range plans {
		alone := one.alone()
		_, q, err := alone.build(nil, packets, p.links)
		if err != nil {
			return fmt.Errorf("plan %s: %w", one.name, err)
		}
		if q != nil && one.has("link") {
			q.link.enter()
			onLinks = true
		}
		for _, a := range one.actions {
			if a != nil && a.queue != "" {
				p.queues[a.queue].share()
			}
		}
	}
	if n := top["customers"]; n != nil {
		if p.customers, err = p.parseCustomers(n, s, plans, packets); err != nil {
			return err
		}
		p.plant(top["links"], onLinks)
		return nil
	}
	if slices.ContainsFunc(p.classes, func(c *class) bool { return c.perCustomer }) {
		return errors.New("per: customer without customers")
	}
	return nil
}

// countOfPlans reports whether the classes' plans count packets. All of them must count the
// same, because they share the customers' states.
func (p *policy) countOfPlans() (packets bool, err error) {
	first := true
	for _, c := range p.classes {
		if !c.perCustomer {
			continue
		}
		if !first && c.chain[0].packets != packets {
			return false, errors.New("meter: plan counts bytes and packets")
		}
		packets, first = c.chain[0].packets, false
	}
	return packets, nil
}

// parseCustomers reads `customers` and its file. The plans' meters count packets or bytes.
func (p *policy) parseCustomers(n *yaml.Node, s Site, plans []*plan, packets bool) (*customers, error) {
	entries, err := mapping(n, "file", "key", "nested", "columns", "unit", "plan")
	if err != nil {
		return nil, err
	}
	c := &customers{key: "address", ingress: s.Ingress}
	if key := entries["key"]; key != nil {
		words := []*yaml.Node{key}
		if key.Kind == yaml.SequenceNode {
			words = key.Content
		}
		var texts []string
		for _, w := range words {
			texts = append(texts, w.Value)
		}
		c.key = strings.Join(texts, " ")
	}
	nested, err := optional(entries, "nested", "false")
	if err != nil || nested != "true" && nested != "false" || !slices.Contains(customerKeys, c.key) {
		return nil, at(n, errors.Join(err, fmt.Errorf("key %q or nested %q is unknown", c.key, nested)))
	}
	c.nested = nested == "true"

	file, err := optional(entries, "file", "")
	if err != nil || file == "" {
		return nil, at(n, errors.Join(err, errors.New("customers without a file")))
	}
	if !filepath.IsAbs(file) {
		file = filepath.Join(s.Dir, file)
	}
	form, err := parseForm(entries, c.key)
	if err != nil {
		return nil, at(n, err)
	}
	lines, err := readTable(file, form)
	if err != nil {
		return nil, err
	}
	for _, l := range lines {
		who, err := l.customer(c.key, plans)
		if err == nil {
			err = c.add(who)
		}
		if err == nil {
			who.own = l.parameters()
			who.state, who.queue, err = who.plan.build(who.own, packets, p.links)
		}
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w", file, l.number, err)
		}
	}
	return c, nil
}

// plant puts the queues of customers into their trees. If there are any on links, or plans name a link, all
// links take part, because customers can move to them.
func (p *policy) plant(links *yaml.Node, onLinks bool) {
	for _, who := range p.customers.list {
		if q := who.queue; q != nil && q.link != nil && q.rate == nil {
			q.link.enter()
			onLinks = true
		}
	}
	for i := 0; onLinks && i < len(links.Content); i += 2 {
		p.links[links.Content[i].Value].enter()
	}
	for _, who := range p.customers.list {
		if q := who.queue; q != nil && q.link != nil {
			if q.rate != nil { // alone on a link of its own
				p.trees = append(p.trees, q.link.tree)
			}
			q.share()
		}
	}
}
