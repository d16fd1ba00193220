package tc

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/routers"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// tcQueues makes the queues and links of a draft from qdiscs and classes.
type tcQueues struct {
	*routers.Draft
	device *tcDevice
	link   meter.Rate
	queues map[uint32]*dataplane.Queue // by class; nil if packets pass
	used   map[string]bool             // names
	bands  *dataplane.Link             // of the queues of prio
	leaves []tcLeaf                    // of htb, in order of first use
	asked  bool                        // the queue length of the interface was assumed
}

// name returns a name unused by other parts of the kind: from a comment, or else a default.
func (b *tcQueues) name(kind, label, otherwise string) string {
	first := cmp.Or(label, otherwise)
	name := first
	for i := 2; b.used[kind+name]; i++ {
		name = fmt.Sprintf("%s-%d", first, i)
	}
	b.used[kind+name] = true
	return name
}

// add adds a queue.
func (b *tcQueues) add(
	label, otherwise string, line routers.Line, format string, args ...any,
) *dataplane.Queue {
	q := &dataplane.Queue{Name: b.name("queue", label, otherwise)}
	b.Queue(q, routers.Line{Number: line.Number}, format, args...)
	return q
}

// addLink adds a link.
func (b *tcQueues) addLink(
	label, otherwise string, line routers.Line, format string, args ...any,
) *dataplane.Link {
	l := &dataplane.Link{Name: b.name("link", label, otherwise)}
	b.From(l, "", line, format, args...)
	b.Policy.Links = append(b.Policy.Links, l)
	return l
}

// queue returns the queue of a class of the root qdisc, or nil if packets pass it.
func (b *tcQueues) queue(root *tcQdisc, class uint32) *dataplane.Queue {
	if q, ok := b.queues[class]; ok {
		return q
	}
	b.queues[class] = nil // until it is known, and if there is none
	var q *dataplane.Queue
	switch k := b.device.find(class); {
	case root.kind == "htb" && k != nil:
		if len(b.device.leaves(k.id)) > 0 {
			b.Cannot(k.Line, "packets are sent to class %s, which has classes below it", handleName(k.id))
			return nil
		}
		q = b.add(k.labels.queue, handleName(k.id), k.Line, "class %s", handleName(k.id))
		b.leaves = append(b.leaves, tcLeaf{k, q})
	case root.kind == "htb":
		// HTB sends packets of its own handle at once. Those of a missing class get the default class,
		// or are sent at once too (htb_classify).
		otherwise := root.handle&majorMask | root.defaultClass
		if k := b.device.find(otherwise); class != root.handle && k != nil &&
			len(b.device.leaves(k.id)) == 0 {
			q = b.queue(root, otherwise)
		}
	case root.kind == "prio":
		q = b.band(root, class)
	default:
		q = b.single(root)
	}
	b.queues[class] = q
	return q
}

// own sets the rate of a queue, which a fair queue takes from a link.
func (b *tcQueues) own(q *dataplane.Queue, rate *tcRate, line routers.Line, d *tcQdisc) {
	if d != nil && d.fair.flows.By != dataplane.NoKey {
		q.Link = b.addLink("", q.Name, line, "a fair queue shares a link")
		q.Link.Rate = rate.rate()
		b.From(q.Link, "rate", line, "rate %s", rate.text)
	} else {
		q.Rate = rate.rate()
	}
	b.From(q, "rate", line, "rate %s", rate.text)
	b.limits(q, d)
}

const (
	minQuantum  = 1000    // bytes: the smallest and the largest quantum computed by htb (htb_change_class)
	maxQuantum  = 200_000 //
	quantumUnit = 1514    // bytes: export writes a quantum of this for each unit of weight
)

// discipline returns the qdisc of a class, or nil.
func (b *tcQueues) discipline(class uint32) *tcQdisc {
	for _, d := range b.device.qdiscs {
		if d.parent == class {
			return d
		}
	}
	return nil
}

// queueLength returns the queue length of the interface, which is the limit of a qdisc without one, and how
// it is known.
func (b *tcQueues) queueLength(line routers.Line) (n int64, why string) {
	if n = b.device.queueLength; n > 0 {
		return n, fmt.Sprintf("the default: the interface's txqueuelen, %d packets", n)
	}
	if n = knownLength(b.device.name); n > 0 {
		return n, fmt.Sprintf("the default: the interface's txqueuelen, %d packets unless it was changed", n)
	}
	if !b.asked {
		b.asked = true
		b.Note(line, "the limit of a queue is the interface's txqueuelen, assumed to be %d packets: ip link shows it as qlen",
			defaultPackets)
	}
	return defaultPackets, fmt.Sprintf("assumed: the interface's txqueuelen, %d packets", defaultPackets)
}

// limits sets the limit, CoDel and fairness of a queue from its qdisc. Nil is htb's default.
func (b *tcQueues) limits(q *dataplane.Queue, d *tcQdisc) {
	if d == nil {
		why := ""
		q.Packets, why = b.queueLength(routers.Line{Number: b.Comments[q][""].Line})
		b.From(q, "limit", routers.Line{}, "%s", why)
		return
	}
	if d.parent != tcRoot && (d.kind == "htb" || d.kind == "prio" || d.kind == "tbf") {
		b.Cannot(d.Line, "qdisc %s below a class cannot be expressed", d.kind)
	}
	if d.kind == "pfifo_fast" {
		b.Cannot(d.Line, "pfifo_fast has three bands by the TOS of packets, and a queue of a policy has one: use pfifo")
	}
	if d.kind == "cake" {
		b.cakeNotes(d)
	}
	if d.remarks != nil {
		b.Note(d.Line, "%s", strings.Join(d.remarks, "; "))
	}
	from := d.limitFrom
	switch {
	case d.latency > 0:
		q.Time = d.latency
	case d.bytes > 0:
		q.Bytes = d.bytes
	case d.packets > 0:
		q.Packets = d.packets
	case d.kind == "bfifo":
		q.Bytes, from = b.queueLength(d.Line)
		q.Bytes *= fullFrame
	default:
		q.Packets, from = b.queueLength(d.Line)
	}
	if q.Packets > queue.MaxPackets {
		b.Cannot(d.Line, "limit %d is above our maximum, %d packets", d.packets, queue.MaxPackets)
		q.Packets = queue.MaxPackets
	}
	b.From(q, "limit", d.Line, "%s", cmp.Or(from, d.Text()))
	q.CoDel, q.ECN, q.Hosts, q.Fair = d.codel, d.ecn, d.fair.hosts, d.fair.flows
	if d.kind == "cake" {
		q.CoDel = d.cakeCoDel()
	}
	for _, key := range []string{"codel", "ecn", "fair"} {
		b.From(q, key, d.Line, "%s", d.kind)
	}
}
