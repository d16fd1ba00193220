package kernel

import "github.com/a-seed-32e5a53f/shaper/dataplane"

// Direction is the direction of the packets that a shaper meters.
type Direction = dataplane.Direction

const (
	Egress  = dataplane.Egress  // packets sent through the interface
	Ingress = dataplane.Ingress // packets received by the interface
)
