package tc

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/routers"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// tcQueues makes the queues and links of a draft from qdiscs and classes.
type tcQueues struct {
	*routers.Draft
	device *tcDevice
	link   meter.Rate
	names  map[uint32]string // queues by class
	used   map[string]bool   // names
	owners map[uint32]string // links by class
	leaves []tcLeaf          // of htb, in order of first use
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

// queue returns the queue of a class of the root qdisc, or "" if packets pass it.
func (b *tcQueues) queue(root *tcQdisc, class uint32) string {
	if name, ok := b.names[class]; ok {
		return name
	}
	b.names[class] = "" // until it is known, and if there is none
	var q *routers.Entry
	switch k := b.device.find(class); {
	case root.kind == "htb" && k != nil:
		if len(b.device.leaves(k.id)) > 0 {
			b.Cannot(k.Line, "packets are sent to class %s, which has classes below it", handleName(k.id))
			return ""
		}
		id := handleName(k.id)
		q = routers.NewEntry(b.name("queue", k.labels.queue, id), k.Number, "class %s", id)
		b.leaves = append(b.leaves, tcLeaf{k, q})
	case root.kind == "htb":
		// HTB sends packets of its own handle at once. Those of a missing class get the default class,
		// or are sent at once too (htb_classify).
		otherwise := root.handle&majorMask | root.defaultClass
		if k := b.device.find(otherwise); class != root.handle && k != nil &&
			len(b.device.leaves(k.id)) == 0 {
			b.names[class] = b.queue(root, otherwise)
		}
		return b.names[class]
	case root.kind == "prio":
		q = b.band(root, class)
	default:
		q = b.single(root)
	}
	if q == nil {
		return ""
	}
	b.Queues = append(b.Queues, q)
	b.names[class] = q.Key
	return q.Key
}

// own sets the rate of a queue, which a fair queue takes from a link.
func (b *tcQueues) own(q *routers.Entry, rate *tcRate, line int, d *tcQdisc) {
	if d != nil && d.fair != "" {
		link := routers.NewEntry(b.name("link", "", q.Name()), line, "a fair queue shares a link")
		link.Set("rate", rate.String(), line, "rate %s", rate.text)
		b.Links = append(b.Links, link)
		q.Set("link", link.Key, 0, "")
	} else {
		q.Set("rate", rate.String(), line, "rate %s", rate.text)
	}
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

// limits sets the limit, CoDel and fairness of a queue from its qdisc. Nil is htb's default.
func (b *tcQueues) limits(q *routers.Entry, d *tcQdisc) {
	if d == nil {
		q.Set("limit", fmt.Sprintf("%dp", defaultPackets), 0,
			"the default: the interface's txqueuelen, usually %d packets", defaultPackets)
		return
	}
	if d.parent != tcRoot && (d.kind == "htb" || d.kind == "prio" || d.kind == "tbf") {
		b.Cannot(d.Line, "qdisc %s below a class cannot be expressed", d.kind)
	}
	if d.kind == "cake" {
		b.cakeNotes(d)
	}
	remarks := strings.Join(append([]string{d.Text()}, d.remarks...), "; ")
	switch {
	case d.latency > 0:
		q.Set("limit", policyfile.FormatDuration(d.latency, time.Second), d.Number, "%s", remarks)
	case d.bytes > 0:
		q.Set("limit", fmt.Sprint(d.bytes), d.Number, "%s", remarks)
	default:
		q.Set("limit", fmt.Sprintf("%dp", d.packets), d.Number, "%s", remarks)
		if d.packets > queue.MaxPackets {
			b.Cannot(d.Line, "limit %d is above our maximum, %d packets", d.packets, queue.MaxPackets)
			q.Get("limit").Value = fmt.Sprintf("%dp", queue.MaxPackets)
		}
	}
	switch {
	case d.codel == queue.CoDel{} && d.fair != "":
		q.Set("codel", "false", d.Number, "%s", d.kind) // true is the default of a fair queue
	case d.codel != queue.CoDel{}:
		q.Set("codel", fmt.Sprintf("{target: %s, interval: %s}", policyfile.FormatDuration(d.codel.Target, time.Second),
			policyfile.FormatDuration(d.codel.Interval, time.Second)), d.Number, "%s", d.kind)
	}
	if d.ecn {
		q.Set("ecn", "true", d.Number, "%s", d.kind)
	}
	if d.fair != "" {
		q.Set("fair", d.fair, d.Number, "%s", d.kind)
	}
}
