package dataplane

// Direction is the direction of packets at an interface.
type Direction uint8

const (
	Egress  Direction = iota // packets sent through the interface
	Ingress                  // packets received by the interface
)

// String returns "egress" or "ingress".
func (d Direction) String() string {
	if d == Egress {
		return "egress"
	}
	return "ingress"
}

// For returns the plan for packets of one direction. With customers ByInside it is a copy
// that finds them by the address of that direction; otherwise it is p.
func (p *Plan) For(d Direction) *Plan {
	if p.Customers == nil || p.Customers.Key != ByInside {
		return p
	}
	plan, customers := *p, *p.Customers
	customers.Key = [...]CustomerKey{Egress: ByDestination, Ingress: BySource}[d]
	plan.Customers = &customers
	return &plan
}
