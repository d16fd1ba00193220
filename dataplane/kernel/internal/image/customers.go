package image

import (
	"errors"
	"fmt"
	"hash/fnv"
	"slices"

	"github.com/a-seed-32e5a53f/shaper/bpf"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/engine"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/qdisc"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/record"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/remedy"
	"github.com/cilium/ebpf"
)

// customerKeys are the values of enum customer_key in bpf/src/policy.h.
var customerKeys = map[dataplane.CustomerKey]uint8{
	dataplane.BySource: 1, dataplane.ByInside: 2, dataplane.ByDestination: 2, dataplane.ByOuterVLAN: 3,
	dataplane.ByTwoVLANs: 4, dataplane.CustomerByMark: 9, dataplane.CustomerByCgroup: 10,
	dataplane.CustomerByVNI: 11, dataplane.CustomerByTEID: 12,
}

// insideKeys are those of a key of the inner side, by direction.
var insideKeys = map[dataplane.CustomerKey][2]uint8{
	dataplane.CustomerByInner:   {dataplane.Ingress: 13, dataplane.Egress: 14},
	dataplane.CustomerByMAC:     {dataplane.Ingress: 5, dataplane.Egress: 6},
	dataplane.CustomerByVLANMAC: {dataplane.Ingress: 7, dataplane.Egress: 8},
}

// customerImage is a customer table in the form read by the programs.
type customerImage struct {
	plans []bpf.ShaperPlan
	below shorterLengths
}

// customers encodes the customers of the plan.
func (e *encoder) customers() {
	from := e.Plan.Customers
	if from == nil {
		return
	}
	key, known := customerKeys[from.Key]
	if byDirection, inside := insideKeys[from.Key]; inside {
		key, known = byDirection[e.Plan.Direction], true
	}
	if !known {
		e.refuse(from.Source, "key", from.Key.String()+" "+notInKernel, remedy.UseUserSpace)
	}
	e.Constants.Customers, e.Constants.Elsewhere = key, 1
	switch from.Key {
	case dataplane.ByInside, dataplane.BySource, dataplane.ByDestination:
		e.Constants.Reads |= 1<<bySrc | 1<<byDst
	}
	e.checkIDs(from.Source.List)
	e.customerCgroups(from.Source)
	e.customerImage = &customerImage{below: lengthsOf(from.Source, e.cgroups)}
	for i := range from.Plans {
		e.customerImage.plans = append(e.customerImage.plans, e.planOf(&from.Plans[i]))
	}
}

// checkIDs rejects two customers with one ID, which happens by chance once in 10^9 tables of
// 100,000 customers.
func (e *encoder) checkIDs(list []dataplane.Customer) {
	names := make(map[uint64]string, len(list))
	for i := range list {
		c := &list[i]
		id := CustomerID(c.Name)
		if other, taken := names[id]; taken {
			e.fail(c, "customer",
				fmt.Sprintf("%q has the same hash as %q: rename one of them", c.Name, other))
		}
		names[id] = c.Name
	}
}

// planOf encodes a plan of the policy. A template without fairness has no leaf, and no customer: it may need
// fq where other plans need HTB, so it is encoded when a customer gets it.
func (e *encoder) planOf(from *compiled.Service) bpf.ShaperPlan {
	if from.Template && from.Tree < 0 && e.Pacer == record.HTB {
		e.checkService(from.Source)
		return bpf.ShaperPlan{Profile: *engine.BlockingProfile()}
	}
	return e.service(from)
}

// service encodes a plan of customers.
func (e *encoder) service(from *compiled.Service) (out bpf.ShaperPlan) {
	e.checkService(from.Source)
	if from.Profile != nil {
		profile, err := engine.EncodeMeter(from.Profile, from.Kind, from.Source)
		if err != nil {
			e.faults = append(e.faults, err)
		}
		out.Profile = profile
	} else {
		out.Paced, e.Constants.Paced = 1, 1
		out.Profile = *engine.BlockingProfile()
		switch {
		case from.Tree >= 0:
			out.Queue = bpf.ShaperQueue{Linked: 1, Ecn: engine.Flag(from.LinkQueue.ECN)}
			e.checkLinked(from.Source, &from.LinkQueue, &from.FlowKeys, false)
			if e.fair == record.FairByHTB && fairKind(&from.LinkQueue, &from.FlowKeys) == qdisc.FQCoDel {
				e.refuse(from.Source, "fair", "is for queues of customers"+noFQCoDel, remedy.UseTAP)
			}
		default:
			out.Queue = encodeQueue(&from.Queue, from.Queue.Rate)
		}
		switch {
		case e.entry == XdpEntry:
			e.refuse(from.Source, "queue", "cannot run in XDP, which has no queues", remedy.UseTC)
		case from.Tree >= 0:
		case e.Pacer == record.HTB:
			e.refuse(from.Source, "queue",
				"of each customer needs a link, or fair: flow, or qdisc fq: this kernel lacks it, or other queues need HTB",
				remedy.UseUserSpace)
		case e.Pacer == record.FQ && from.Queue.Time > maxFQDelay:
			e.refuse(from.Source, "limit",
				fmt.Sprintf("allows queueing delays above %v, the maximum of fq", maxFQDelay),
				remedy.UseUserSpace)
		}
	}
	for color, a := range from.Actions {
		if a != nil {
			out.Own[color], out.Actions[color] = 1, e.encodeAction(a)
		}
	}
	return out
}

// leaves returns the number of customers whose queues are leaves of HTB.
func (e *encoder) leaves() (n int) {
	for i := range e.Plan.Trees {
		n += len(e.Plan.Trees[i].Customers)
	}
	return n
}

// hasPaced reports whether a plan of customers uses a queue.
func hasPaced(plan *compiled.Plan) bool {
	return plan.Customers != nil &&
		slices.ContainsFunc(plan.Customers.Plans, func(p compiled.Service) bool { return p.Profile == nil })
}

// CustomerID returns the number by which the maps know the name of a customer, never 0: its
// hash.
func CustomerID(name string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(name)) // never fails
	return max(h.Sum64(), 1)
}

// statsOfCustomer returns the counters of a customer. Leaves count packets, no bytes.
func statsOfCustomer(c *bpf.ShaperCustomer, drops map[uint16]uint64) (out dataplane.CustomerStats) {
	for color, n := range []bpf.ShaperCount{c.Green, c.Yellow, c.Red} {
		addCount(&out.Colors[color], n)
	}
	addCount(&out.Dropped, c.Dropped)
	if c.ClassId != 0 {
		addCount(&out.Dropped, bpf.ShaperCount{Packets: drops[uint16(c.ClassId)]})
	}
	return out
}

// CustomerStats returns the counters of the customers of a plan in a map, see kernel.CustomerCounters.Of.
// drops are the packets dropped by leaves, by class ID.
func CustomerStats(
	m *ebpf.Map, plan *compiled.Customers, drops map[uint16]uint64,
) ([]dataplane.CustomerStats, error) {
	list := plan.Source.List
	out, found := make([]dataplane.CustomerStats, len(list)), make([]bool, len(list))
	others := map[uint64]dataplane.CustomerStats{} // by ID: those in other places of the map than in the plan
	err := engine.EachChunk(m, ebpf.LookupLock, func(at int, values []bpf.ShaperCustomer) {
		for i := range values {
			c, at := &values[i], at+i
			switch {
			case at < len(list) && c.Id == CustomerID(list[at].Name):
				out[at], found[at] = statsOfCustomer(c, drops), true
			case c.Id != 0:
				others[c.Id] = statsOfCustomer(c, drops)
			}
		}
	})
	if err != nil {
		return nil, err
	}
	for i := range out {
		if !found[i] {
			out[i] = others[CustomerID(list[i].Name)]
		}
	}
	return out, nil
}

// EncodeServices encodes the plans of customers for a shaper. The error joins a dataplane.FieldError for
// each part that the kernel plane cannot run.
func EncodeServices(
	a *record.About, list []compiled.CustomerService,
) (map[*compiled.Service]bpf.ShaperPlan, error) {
	e := encoder{Image: &Image{
		entry: EntryOf(a.Direction, a.Place.Hook, a.Pacer), Pacer: a.Pacer, fair: a.Fair,
	}}
	plans := map[*compiled.Service]bpf.ShaperPlan{}
	for _, c := range list {
		if _, known := plans[c.Plan]; !known {
			plans[c.Plan] = e.service(c.Plan)
		}
	}
	return plans, errors.Join(e.faults...)
}
