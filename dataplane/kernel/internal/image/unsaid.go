package image

import (
	"strings"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/remedy"
	"github.com/a-seed-32e5a53f/shaper/meter/unsaid"
)

// notInKernel is the reason for parts of a policy unknown to the programs.
const notInKernel = "cannot run in the kernel"

// unsaid refuses every unknown field of a part, if set. Known fields are encoded, refused with a
// better reason, or read from the plan elsewhere in this package. object is the part of the policy.
func (e *encoder) unsaid(object, part any, known ...string) {
	for _, name := range unsaid.Fields(part, known...) {
		e.refuse(object, strings.ToLower(name), notInKernel, remedy.UseUserSpace)
	}
}

// checkPolicy refuses unknown fields of the policy, its classes, links and customers.
func (e *encoder) checkPolicy(p *dataplane.Policy) {
	e.unsaid(p, p,
		"Length", "Classes", "DropUnclassified", "Meters", "Queues", "Links", "Envelopes", "Customers")
	e.unsaid(&p.Length, p.Length, "Base", "Overhead", "MPU")
	for i := range e.Plan.Links {
		e.unsaid(e.Plan.Links[i].Source, e.Plan.Links[i].Source,
			"Name", "Rate", "Link", "Guarantee", "Priority", "Weight", "Up")
	}
	if c := p.Customers; c != nil {
		e.unsaid(c, c, "Key", "Nested", "Cgroups", "Plans", "List")
	}
	for i := range p.Classes {
		c := &p.Classes[i]
		e.unsaid(c, c, "Name", "Match", "Meter", "Green", "Yellow", "Red")
		e.unsaid(&c.Match, c.Match,
			"Src", "Dst", "Proto", "SPort", "DPort", "DSCP", "VLAN", "PCP", "Mark", "EtherType", "Length",
			"InnerVLAN", "TCPFlags", "ICMPType", "MAC", "SrcMAC", "DstMAC", "VNI", "TEID", "Cgroups", "Customer")
	}
}

// checkAction refuses unknown fields of an action. Default actions have no source.
func (e *encoder) checkAction(a *compiled.Action) {
	if a.Source != nil {
		e.unsaid(a.Source, a.Source, "Drop", "ECN", "Marks", "Queue")
	}
	for _, m := range a.Marks {
		e.unsaid(a.Source, m, "Field", "Value")
	}
}

// checkMeter refuses unknown fields of a meter.
func (e *encoder) checkMeter(m *dataplane.Meter) {
	e.unsaid(m, m,
		"Name", "Params", "Aware", "PreColor", "Initial", "Packets", "Then", "Per", "Keys", "Idle",
		"Envelope", "Rank", "CIRMax", "EIRMax", "Budget")
	e.unsaid(m, m.PreColor, "From", "Map")
	e.unsaid(m, m.Per, "By", "V4", "V6")
	if b := m.Budget; b != nil {
		e.unsaid(b, b, "Name", "Address", "Interval", "Rescue", "Weight", "Hosts", "Once")
	}
}

// checkQueue refuses unknown fields of a queue.
func (e *encoder) checkQueue(q *compiled.Queue) {
	e.unsaid(q.Source, q.Source,
		"Name", "Rate", "Time", "Bytes", "Packets", "WRED", "Seed", "CoDel", "ECN", "TargetAtRate",
		"IntervalAtRate",
		"Link", "Guarantee", "Priority", "Weight", "Fair", "Hosts", "Up")
	e.unsaid(q.Source, q.CoDel, "Target", "Interval")
	for _, early := range q.WRED {
		e.unsaid(q.Source, early, "Min", "Max", "Probability")
	}
	e.unsaid(q.Source, q.Key, "By", "V4", "V6")
	e.unsaid(q.Source, q.HostKey, "By", "V4", "V6")
}

// checkService refuses unknown fields of a plan of customers.
func (e *encoder) checkService(p *dataplane.ServicePlan) {
	e.unsaid(p, p, "Name", "Params", "Queue", "Up", "Green", "Yellow", "Red", "Link", "Guarantee", "Priority", "Weight",
		"Fair", "Hosts")
	e.unsaid(p, p.Fair, "By", "V4", "V6")
	e.unsaid(p, p.Hosts, "By", "V4", "V6")
	if q := p.Queue; q != nil {
		e.unsaid(p, q, "Rate", "Time", "Bytes", "Packets", "WRED", "Seed", "CoDel", "ECN")
		e.unsaid(p, q.CoDel, "Target", "Interval")
	}
}
