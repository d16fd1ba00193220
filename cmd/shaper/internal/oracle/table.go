package oracle

import "net/netip"

// CustomerLine is a customer as read from the file of customers.
type CustomerLine struct {
	Name      string
	Line      int
	Plan      string
	Addresses [][2]netip.Addr // first and last address of each block
	VLANs     []int           // IDs; with two tags, outer * 4096 + inner
	Own       map[string]string
}

// Customers returns the customers of a policy.
func (s Site) Customers(policy []byte) (out []CustomerLine, err error) {
	p, err := s.parse(policy)
	if err != nil || p.customers == nil {
		return nil, err
	}
	for _, who := range p.customers.list {
		l := CustomerLine{who.name, who.line, who.plan.name, nil, who.vlans, who.own}
		for _, b := range who.blocks {
			l.Addresses = append(l.Addresses, [2]netip.Addr{b.first, b.last})
		}
		out = append(out, l)
	}
	return out, nil
}
