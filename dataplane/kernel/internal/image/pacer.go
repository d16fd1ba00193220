package image

import (
	"cmp"
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

// PacerNumber holds the values of enum pacer in bpf/src/policy.h.
var PacerNumber = map[record.Pacer]uint32{record.FQ: 1, record.HTB: 2}

// Without fq_codel, the flows of a fair queue are spread over leaves of HTB, which take turns.
// Flows that send little share the leaf of the queue itself, which is sent first: the program keeps
// the time at which a flow used up its part.
const (
	flowLeaves = queue.Flows
	flowPart   = 32       // a flow is sent first up to 1/flowPart of the rate
	firstParts = 4        // flows sent first have at most 1 - 1/firstParts of the rate
	flowLimit  = 2        // limit of a leaf: this part of the queue's limit
	flowRoom   = 80 << 10 // and at least a GSO packet with the headers of its segments, bytes
	flowQueues = 14       // queues with such leaves: those of two policies have IDs below qdisc.Over
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

// queue encodes a queue and gives it a ring of departures if its limit needs one.
func (e *encoder) queue(q *compiled.Queue) {
	e.checkQueue(q)
	out := encodeQueue(&q.Config, q.Drain)
	if q.Link >= 0 {
		out.Linked, out.Capacity, out.Paces[0] = 1, 0, bpf.ShaperPace{}
		e.checkLinked(q.Source, &q.LinkQueue, &q.FlowKeys, e.alone(q))
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
		share := shares.ofQueue[i]
		leaf.Parent, leaf.Priority, leaf.Guarantee = g.linkIDs[q.Link], share.priority, share.rate
		if q.Rate != (meter.Rate{}) {
			leaf.Rate = bytesPerSecond(q.Rate)
		}
		leaf.Quantum, leaf.Limit = share.quantum(longest), uint32(min(q.Bytes, math.MaxUint32))
		switch {
		case g.Queues[i].Flows > 0:
			t.Leaves = append(t.Leaves, flowLeavesOf(q, leaf, uint16(g.Queues[i].FlowsId))...)
			continue
		case q.Fair != queue.FairNone:
			leaf.Fair = fairOf(&q.LinkQueue, &q.FlowKeys, q.Drain)
		}
		t.Leaves = append(t.Leaves, leaf)
	}
	known := limits{}
	for i, id := range g.leafIDs {
		if id != 0 {
			s := g.Plan.Customers.Service(uint32(i + 1))
			leaf := g.customerLeaf(s, shares.ofCustomer[i], longest, known)
			leaf.ID = id
			t.Leaves = append(t.Leaves, leaf)
		}
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
