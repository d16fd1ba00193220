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
