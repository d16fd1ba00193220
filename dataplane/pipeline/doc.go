// Package pipeline decides about one packet at a time. It needs no privilege, reads no clock and does no
// input or output.
//
//	source -> parse -> classify -> meter -> act {pass | mark | queue | drop} -> sink
//
// [New] compiles a policy and adds the state: tokens, backlogs and counters. [Pipeline.Process] takes one
// packet, which arrives at a known time. The packet is classified once, colored once and acted on once.
// The result is a verdict, with the time at which the packet departs.
//
//	pl, err := pipeline.New(&policy)
//	...
//	packet := dataplane.Packet{Data: frame, WireLen: len(frame), Time: now, Link: dataplane.LinkEthernet}
//	pl.Process(&packet, &verdict) // writes marks into frame
//
// Pipelines can share a plan ([FromPlan]); each has its own tokens, backlogs and counters. To change the
// policy, make a new pipeline and let it [Pipeline.Inherit] the state of the old one. If packets are
// queued in a link, [Pipeline.Settle] returns their departures later.
package pipeline
