package image

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"math"
	"math/big"
	"math/bits"
	"time"

	"github.com/a-seed-32e5a53f/shaper/bpf"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/engine"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/iface"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/qdisc"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/record"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/remedy"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// fairScheduler returns the scheduler of a plan's fair queues; "" without one.
func fairScheduler(plan *compiled.Plan, pacer record.Pacer) record.FairScheduler {
	switch _, fair := LinkedAndFair(plan); {
	case fair == nil || pacer != record.HTB:
		return ""
	case errors.As(qdisc.Have(qdisc.FQCoDel), new(*qdisc.MissingError)):
		return record.FairByHTB
	}
	return record.FairByFQCoDel
}

// PacerNumber holds the values of enum pacer in bpf/src/policy.h.
var PacerNumber = map[record.Pacer]uint32{record.FQ: 1, record.HTB: 2}

// LinkedAndFair returns the first queue of a plan that belongs to a link, and the first that
// is fair; nil if there is none.
func LinkedAndFair(plan *compiled.Plan) (linked, fair *compiled.Queue) {
	for i := len(plan.Queues) - 1; i >= 0; i-- {
		q := &plan.Queues[i]
		if q.Link >= 0 {
			linked = q
		}
		if q.Fair != queue.FairNone {
			fair = q
		}
	}
	return linked, fair
}

// ChoosePacer returns the pacer for a plan: the requested one, or if that is "", one that
// the kernel has and that supports the plan. It is "" for a plan without queues.
func ChoosePacer(requested record.Pacer, plan *compiled.Plan) (record.Pacer, error) {
	linked, fair := LinkedAndFair(plan)
	switch {
	case len(plan.Queues) == 0 && !hasPaced(plan):
		return "", nil
	case requested == "" && linked == nil && qdisc.Have(string(record.FQ)) == nil:
		return record.FQ, nil
	case requested == "":
		requested = record.HTB
	}
	err := qdisc.Have(string(requested))
	if err == nil && fair != nil && requested == record.HTB {
		if err = qdisc.Have(qdisc.FQCoDel); errors.As(err, new(*qdisc.MissingError)) {
			err = nil // flows get leaves of HTB
		} else if err != nil {
			err = fmt.Errorf("queue %s is fair: %w", fair.Name, err)
		}
	}
	return requested, err
}

// Without fq_codel, the flows of a fair queue are spread over leaves of HTB, which take turns.
// Flows that send little share the leaf of the queue itself, which is sent first: the program keeps
// the time at which a flow used up its part.
const (
	flowLeaves = queue.Flows
	flowPart   = 32       // a flow is sent first up to 1/flowPart of the rate
	firstParts = 4        // flows sent first have at most 1 - 1/firstParts of the rate
	flowLimit  = 2        // limit of a leaf: this part of the queue's limit
	flowRoom   = 80 << 10 // and at least a GSO packet with the headers of its segments, bytes
	flowQueues = 15       // queues with such leaves: those of two policies have IDs below qdisc.Over
)

// FlowIDs returns the IDs of the classes of a queue: its own, and those of its leaves for flows.
func FlowIDs(q *bpf.ShaperQueue) iter.Seq[uint16] {
	return func(yield func(uint16) bool) {
		if !yield(uint16(q.ClassId)) {
			return
		}
		for i := range q.Flows {
			if !yield(uint16(q.FlowsId + i)) {
				return
			}
		}
	}
}

// CountsOf returns the sum of the counters of a queue's classes.
func CountsOf(leaves map[uint16]qdisc.Counts, q *bpf.ShaperQueue) (sum qdisc.Counts) {
	for id := range FlowIDs(q) {
		sum.Add(leaves[id])
	}
	return sum
}

// alone reports whether a fair queue is alone in its tree, with the rate of the root.
func (g *Image) alone(q *compiled.Queue) bool {
	tree := &g.Plan.Trees[g.Plan.Links[q.Link].Tree]
	return q.Fair != queue.FairNone && len(tree.Links) == 1 && len(tree.Queues) == 1 &&
		q.Rate == (meter.Rate{})
}

// spreads reports whether a fair queue needs leaves for its flows.
func (e *encoder) spreads(q *compiled.Queue) bool {
	if q.Fair == queue.FairNone || e.fair != record.FairByHTB {
		return false
	}
	const missing = ", which needs fq_codel: this kernel has no fq_codel qdisc, and no module sch_fq_codel"
	switch {
	case !e.alone(q):
		e.fail(q.Source, "fair", "shares its link with other queues"+missing)
	case e.spread == flowQueues:
		e.fail(q.Source, "fair", fmt.Sprintf("is the case for more than %d queues%s", flowQueues, missing))
	}
	return true
}

// queue encodes a queue and gives it a ring of departures if its limit needs one.
func (e *encoder) queue(q *compiled.Queue) {
	e.checkQueue(q)
	out := encodeQueue(&q.Config, q.Drain)
	if q.Link >= 0 {
		out.Linked, out.Capacity, out.Paces[0] = 1, 0, bpf.ShaperPace{}
		e.checkLinked(q)
	}
	if e.spreads(q) {
		out.Flows, out.FlowsSlot = flowLeaves, e.spread
		e.spread++
		e.Constants.Spread = 1
		out.Paces[0].Ns = flowPart * uint64(time.Second) / min(bytesPerSecond(q.Drain),
			flowPart*uint64(time.Second))
	}
	if e.Pacer == record.FQ && maxDelay(q) > maxFQDelay {
		e.refuse(q.Source, "limit",
			fmt.Sprintf("allows queueing delays above %v, the maximum of fq", maxFQDelay), remedy.UseHTB)
	}
	if out.Capacity > 0 {
		size := ringSize(int(out.Capacity), ringSpare)
		out.Ring, out.Mask = uint32(e.ring), uint64(size-1)
		e.ring += size
	}
	e.Queues = append(e.Queues, out)
}

// ringSpare is the minimum number of entries of a queue's ring beyond its capacity: packets
// enqueued by other CPUs while one counts the backlog.
const ringSpare = 64

// ringSize is the number of entries in the ring of a queue, a power of two.
func ringSize(capacity, spare int) int { return 1 << bits.Len(uint(capacity+spare-1)) }

// encodeQueue encodes a queue with a rate.
func encodeQueue(c *queue.Config, rate meter.Rate) bpf.ShaperQueue {
	num, den, _ := queue.Pace(rate) // Compile checked it
	out := bpf.ShaperQueue{
		Paces: [2]bpf.ShaperPace{{Ns: num / den, Rest: num % den, Den: den}},
		Time:  uint64(c.Time), Bytes: uint64(c.Bytes), Capacity: uint64(c.Capacity()), Seed: c.Seed,
		Target: uint64(c.CoDel.Target), Interval: uint64(c.CoDel.Interval),
		Axis: uint8(c.Axis()), Ecn: engine.Flag(c.ECN),
	}
	for color, w := range c.WRED {
		out.Wred[color] = bpf.ShaperEarly{
			Min: uint64(w.Min), Max: uint64(w.Max), Probability: uint64(w.Probability),
		}
	}
	return out
}

// checkLinked rejects options unsupported by HTB in a queue of a link.
func (e *encoder) checkLinked(q *compiled.Queue) {
	switch {
	case e.Pacer != record.FQ:
	case e.alone(q):
		e.refuse(q.Source, "fair", "needs HTB; with fair: false, fq can queue the packets", remedy.UseHTB)
	default:
		e.refuse(q.Source, "link", "needs HTB", remedy.UseHTB)
	}
	if q.Fair == queue.FairHosts || q.Fair == queue.FairFlows && q.Key.By != dataplane.ByFlow {
		e.fail(q.Source, "fair",
			"must be flow in the kernel plane, which schedules flows by fq_codel: write fair: flow")
	}
	if q.WRED != [3]queue.Early{} || q.CoDel != (queue.CoDel{}) && q.Fair == queue.FairNone {
		field := "wred"
		if q.WRED == [3]queue.Early{} {
			field = "codel"
		}
		e.fail(q.Source, field,
			"is not supported in a queue of a link in the kernel plane, because HTB does not report the backlog: give the queue a rate of its own")
	}
	if q.Packets > 0 && q.Fair == queue.FairNone {
		e.fail(q.Source, "limit",
			"of a link's queue cannot be in packets in the kernel plane: give a size, such as 64KiB, or a time")
	}
}

// maxFQDelay is the maximum queueing delay with fq. fq itself allows 2^32 µs, 71 minutes.
const maxFQDelay = time.Hour

// maxDelay returns the maximum queueing delay of a queue, 0 for a queue of a link.
func maxDelay(q *compiled.Queue) time.Duration {
	switch {
	case q.Link >= 0:
		return 0
	case q.Time > 0:
		return q.Time
	}
	return transmitTime(q.Drain, maxBacklog(q, maxPacket))
}

// transmitTime returns the time that bytes take at a rate, at most math.MaxInt64 ns.
func transmitTime(r meter.Rate, bytes int64) time.Duration {
	t := new(big.Int).Mul(big.NewInt(bytes), big.NewInt(int64(r.Period)))
	if t.Div(t, big.NewInt(r.Bytes)); !t.IsInt64() {
		return math.MaxInt64
	}
	return time.Duration(t.Int64())
}

const maxPacket = 1 << 16 // bytes; the maximum of GSO without BIG TCP

// maxBacklog returns the maximum backlog of a queue, in bytes, if its packets have at most
// packet bytes.
func maxBacklog(q *compiled.Queue, packet int) (bytes int64) {
	switch {
	case q.Time > 0:
		bytes, _ = q.Drain.Burst(min(q.Time, time.Hour))
	case q.Bytes > 0:
		bytes = q.Bytes
	default:
		bytes = q.Packets * int64(packet)
	}
	return bytes
}

// bytesPerSecond returns a rate in bytes per second, rounded up. HTB must not be slower than
// the program, which enforces the exact rate.
func bytesPerSecond(r meter.Rate) uint64 {
	b := new(big.Int).Mul(big.NewInt(r.Bytes), big.NewInt(int64(time.Second)))
	b.Add(b, big.NewInt(int64(r.Period)-1)).Div(b, big.NewInt(int64(r.Period)))
	return b.Uint64()
}

// If timers fire late, HTB falls behind the program. It catches up at once by the leaf's
// credit, and then slowly by the leaf's surplus rate. The queue's rate is still kept, because
// the program admits no more. tree reduces the credit of short queues: an idle leaf saves its
// credit, and with a credit above the maximum backlog nothing would ever be queued.
const (
	LeafCredit  = 10 * time.Millisecond // of the queue's rate
	leafSurplus = 16384                 // the leaf's rate is higher by 1/leafSurplus
)

// leafLimit returns the limit of a leaf in bytes, for a queue with a maximum backlog. Its room
// includes packets admitted by the program while HTB is behind.
func leafLimit(bytes int64) uint32 {
	return uint32(min(min(bytes, math.MaxInt32)*3/2, math.MaxInt32) + maxPacket)
}

// Tree returns the qdisc tree for the queues on a device.
func (g *Image) Tree(d *iface.Device) *qdisc.Tree {
	length := g.Plan.Length
	t := &qdisc.Tree{
		Kind: string(g.Pacer), MQ: g.MQ && g.Pacer == record.FQ, Overhead: length.Overhead, MTU: d.MTU,
	}
	switch length.Base {
	case dataplane.L3:
		if d.LinkType == dataplane.LinkEthernet {
			t.Overhead -= 14
		}
	case dataplane.L1:
		t.Overhead += 24
	}
	longest := cmp.Or(d.MTU, 1500) + 14 // length of the longest frame, bytes
	shares := g.shares()
	for i := range g.linkIDs {
		t.Links = append(t.Links, g.link(i, shares))
	}
	for i := range g.Plan.Queues {
		q := &g.Plan.Queues[i]
		leaf := qdisc.Leaf{ID: uint16(g.Queues[i].ClassId)}
		t.Horizon = max(t.Horizon, maxDelay(q))
		if q.Link < 0 {
			leaf.Rate = bytesPerSecond(q.Drain)
			leaf.Rate += leaf.Rate / leafSurplus
			bytes := maxBacklog(q, cmp.Or(d.MTU, maxPacket))
			leaf.Limit, leaf.Credit = leafLimit(bytes), min(LeafCredit, transmitTime(q.Drain, bytes)/4)
			t.Leaves = append(t.Leaves, leaf)
			continue
		}
		leaf.Parent, leaf.Priority, leaf.Guarantee = g.linkIDs[q.Link], shares.priority[i], shares.ofQueue[i]
		if q.Rate != (meter.Rate{}) {
			leaf.Rate = bytesPerSecond(q.Rate)
		}
		leaf.Quantum, leaf.Limit = g.quantum(q, longest), uint32(min(q.Bytes, math.MaxUint32))
		switch {
		case g.Queues[i].Flows > 0:
			t.Leaves = append(t.Leaves, flowLeavesOf(q, leaf, uint16(g.Queues[i].FlowsId))...)
			continue
		case q.Fair != queue.FairNone:
			leaf.Fair = &qdisc.Fair{
				CoDel: q.CoDel, ECN: q.ECN, Packets: uint32(q.Capacity()), Quantum: flowQuantum(q.Drain),
			}
		}
		t.Leaves = append(t.Leaves, leaf)
	}
	return t
}

// flowQuantum returns fq_codel's quantum at a rate, as cake chooses it. At low rates a flow with small
// packets would wait long while each other flow sends a packet of the MTU. With a small quantum a large
// packet needs several turns, and a small one does not.
func flowQuantum(rate meter.Rate) uint32 {
	return uint32(min(max(bytesPerSecond(rate)>>12, 300), queue.Quantum))
}

// flowLeavesOf returns the leaves of a fair queue: first, the leaf of flows that send little, and
// one for each flow number, with IDs from id on.
func flowLeavesOf(q *compiled.Queue, first qdisc.Leaf, id uint16) []qdisc.Leaf {
	bytes := q.Bytes
	if bytes == 0 {
		bytes = q.Packets * 1500
	}
	first.Rate = max(bytesPerSecond(q.Drain)/firstParts*(firstParts-1), 1) // 0 is unlimited, as for limits
	first.Limit = uint32(min(bytes, math.MaxInt32))
	first.Priority = 0 // the queue is alone on its link
	first.Guarantee = 0
	leaf := first
	leaf.Rate, leaf.Priority = 0, 1
	leaf.Limit = uint32(min(max(bytes/flowLimit, flowRoom), math.MaxInt32))
	out := []qdisc.Leaf{first}
	for i := range uint16(flowLeaves) {
		leaf.ID = id + i
		out = append(out, leaf)
	}
	return out
}

// quantum returns the bytes that a queue of a link may send in its turn. The queue with the
// smallest weight of its priority may send longest, because HTB needs a quantum of at least
// the longest packet; the others send more, in proportion to their weights.
func (g *Image) quantum(q *compiled.Queue, longest int) uint32 {
	least := q.Weight
	for _, i := range g.Plan.Links[q.Link].Queues {
		if other := &g.Plan.Queues[i]; other.Priority == q.Priority {
			least = min(least, other.Weight)
		}
	}
	return uint32((q.Weight*longest + least - 1) / least)
}
