package image

import (
	"errors"
	"fmt"
	"iter"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/qdisc"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/record"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/remedy"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// TreeQueue is a queue that a link schedules: of the policy, or of a plan of customers.
type TreeQueue struct {
	Source any // in the policy
	name   string
	queue  *queue.LinkQueue
	keys   *compiled.FlowKeys
}

// Fair reports whether flows or hosts share the queue evenly.
func (q *TreeQueue) Fair() bool { return q != nil && q.queue.Fair != queue.FairNone }

// treeQueues returns the queues that links schedule.
func treeQueues(plan *compiled.Plan) iter.Seq[*TreeQueue] {
	return func(yield func(*TreeQueue) bool) {
		for i := range plan.Queues {
			q := &plan.Queues[i]
			if q.Link >= 0 && !yield(&TreeQueue{q.Source, "queue " + q.Name, &q.LinkQueue, &q.FlowKeys}) {
				return
			}
		}
		if plan.Customers == nil {
			return
		}
		for i := range plan.Customers.Plans {
			s := &plan.Customers.Plans[i]
			if s.Tree >= 0 && !yield(&TreeQueue{s.Source, "plan " + s.Name, &s.LinkQueue, &s.FlowKeys}) {
				return
			}
		}
	}
}

// LinkedAndFair returns the first queue of a plan that a link schedules, and the first that is fair;
// nil if there is none.
func LinkedAndFair(plan *compiled.Plan) (linked, fair *TreeQueue) {
	for q := range treeQueues(plan) {
		if linked == nil {
			linked = q
		}
		if q.Fair() {
			return linked, q
		}
	}
	return linked, nil
}

// fairKind returns the kind of qdisc for a fair queue, or "" for another queue.
func fairKind(q *queue.LinkQueue, keys *compiled.FlowKeys) string {
	switch {
	case q.Fair == queue.FairNone:
		return ""
	case hostsOf(q, keys) == qdisc.NoHosts:
		return qdisc.FQCoDel
	}
	return qdisc.Cake
}

// hostsOf returns the hosts that get the same in a queue. Keys that cake does not know count as
// destinations; checkLinked refuses them.
func hostsOf(q *queue.LinkQueue, keys *compiled.FlowKeys) qdisc.Hosts {
	switch {
	case q.Fair == queue.FairHosts && keys.HostKey.By == dataplane.BySrc:
		return qdisc.Sources
	case q.Fair == queue.FairHosts:
		return qdisc.Dests
	}
	switch keys.Key.By {
	case dataplane.BySrc:
		return qdisc.SourceOnly
	case dataplane.ByDst:
		return qdisc.DestOnly
	case dataplane.ByHosts:
		return qdisc.HostPairs
	}
	return qdisc.NoHosts
}

// fairOf returns the options of the qdisc in the leaf of a fair queue that drains at a rate.
func fairOf(q *queue.LinkQueue, keys *compiled.FlowKeys, rate meter.Rate) *qdisc.Fair {
	return &qdisc.Fair{
		CoDel: q.CoDel, ECN: q.ECN, Packets: uint32(q.Capacity()), Quantum: flowQuantum(rate),
		Hosts: hostsOf(q, keys),
	}
}

// fairScheduler returns the schedulers of a plan's fair queues; "" without one.
func fairScheduler(plan *compiled.Plan, pacer record.Pacer) record.FairScheduler {
	needs := map[string]bool{}
	for q := range treeQueues(plan) {
		needs[fairKind(q.queue, q.keys)] = true
	}
	switch {
	case pacer != record.HTB:
		return ""
	case needs[qdisc.FQCoDel] && errors.As(qdisc.Have(qdisc.FQCoDel), new(*qdisc.MissingError)):
		return record.FairByHTB
	case needs[qdisc.FQCoDel] && needs[qdisc.Cake]:
		return record.FairByBoth
	case needs[qdisc.FQCoDel]:
		return record.FairByFQCoDel
	case needs[qdisc.Cake]:
		return record.FairByCake
	}
	return ""
}

// ChoosePacer returns the pacer for a plan: the requested one, or if that is "", one that
// the kernel has and that supports the plan. It is "" for a plan without queues.
func ChoosePacer(requested record.Pacer, plan *compiled.Plan) (record.Pacer, error) {
	linked, _ := LinkedAndFair(plan)
	switch {
	case len(plan.Queues) == 0 && !hasPaced(plan):
		return "", nil
	case requested == "" && linked == nil && qdisc.Have(string(record.FQ)) == nil:
		return record.FQ, nil
	case requested == "":
		requested = record.HTB
	}
	err := qdisc.Have(string(requested))
	if err != nil || requested != record.HTB {
		return requested, err
	}
	checked := map[string]bool{"": true}
	for q := range treeQueues(plan) {
		kind := fairKind(q.queue, q.keys)
		if checked[kind] {
			continue
		}
		checked[kind] = true
		err := qdisc.Have(kind)
		if kind == qdisc.FQCoDel && errors.As(err, new(*qdisc.MissingError)) {
			continue // flows get leaves of HTB
		}
		if kind == qdisc.Cake && errors.As(err, new(*qdisc.MissingError)) {
			return requested, remedy.UseFlow.Errorf("%s is fair: %w", q.name, err)
		}
		if err != nil {
			return requested, fmt.Errorf("%s is fair: %w", q.name, err)
		}
	}
	return requested, nil
}

// noFQCoDel ends the reasons of queues whose flows cannot get leaves of HTB.
const noFQCoDel = ", which needs fq_codel: this kernel has no fq_codel qdisc, and no module sch_fq_codel"

// alone reports whether a fair queue is alone in its tree, with the rate of the root.
func (g *Image) alone(q *compiled.Queue) bool {
	tree := &g.Plan.Trees[g.Plan.Links[q.Link].Tree]
	return q.Fair != queue.FairNone && len(tree.Links) == 1 && len(tree.Queues) == 1 &&
		q.Rate == (meter.Rate{})
}

// spreads reports whether a fair queue needs leaves for its flows.
func (e *encoder) spreads(q *compiled.Queue) bool {
	if fairKind(&q.LinkQueue, &q.FlowKeys) != qdisc.FQCoDel || e.fair != record.FairByHTB {
		return false
	}
	switch {
	case !e.alone(q):
		e.refuse(q.Source, "fair", "shares its link with other queues"+noFQCoDel, remedy.UseTAP)
	case e.spread == flowQueues:
		e.refuse(q.Source, "fair", fmt.Sprintf("is the case for more than %d queues%s", flowQueues, noFQCoDel),
			remedy.UseTAP)
	}
	return true
}

// checkLinked rejects options of a queue in a tree that HTB, fq_codel and cake do not support. alone is
// that of the queue.
func (e *encoder) checkLinked(source any, q *queue.LinkQueue, keys *compiled.FlowKeys, alone bool) {
	switch {
	case e.Pacer != record.FQ:
	case alone:
		e.refuse(source, "fair", "needs HTB; with fair: false, fq can queue the packets", remedy.UseHTB)
	default:
		e.refuse(source, "link", "needs HTB", remedy.UseHTB)
	}
	byAddress := func(k dataplane.Key) bool { return k == dataplane.Key{By: k.By} }
	known := byAddress(keys.Key) && byAddress(keys.HostKey)
	switch {
	case q.Fair == queue.FairHosts:
		known = known && keys.Key.By == dataplane.ByFlow &&
			(keys.HostKey.By == dataplane.BySrc || keys.HostKey.By == dataplane.ByDst)
	case q.Fair == queue.FairFlows:
		known = known && (keys.Key.By == dataplane.ByFlow || hostsOf(q, keys) != qdisc.NoHosts)
	}
	cake := fairKind(q, keys) == qdisc.Cake
	switch {
	case q.Fair != queue.FairNone && !known:
		e.fail(source, "fair", "must be flow, src, dst, hosts, [src, flow] or [dst, flow] in the kernel plane, which schedules flows by fq_codel, and hosts by cake")
	case cake && q.CoDel == (queue.CoDel{}):
		e.fail(source, "codel", "cannot be off in the kernel plane for a queue that is fair to hosts: cake has it always")
	case cake && !q.ECN:
		e.fail(source, "ecn", "cannot be false in the kernel plane for a queue that is fair to hosts: cake marks the packets of flows with ECN")
	case cake && q.Packets > 0:
		e.fail(source, "limit", "cannot be in packets in the kernel plane for a queue that is fair to hosts: give a size, such as 64KiB, or a time")
	}
	if q.WRED != [3]queue.Early{} || q.CoDel != (queue.CoDel{}) && q.Fair == queue.FairNone {
		field := "wred"
		if q.WRED == [3]queue.Early{} {
			field = "codel"
		}
		e.fail(source, field,
			"is not supported in a queue of a link in the kernel plane, because HTB does not report the backlog: give the queue a rate of its own")
	}
	if q.Packets > 0 && q.Fair == queue.FairNone {
		e.fail(source, "limit",
			"of a link's queue cannot be in packets in the kernel plane: give a size, such as 64KiB, or a time")
	}
}
