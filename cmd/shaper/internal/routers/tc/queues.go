package tc

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

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
		q = b.leaf(k)
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

// leaf makes the queue of a class of htb without classes below it.
func (b *tcQueues) leaf(k *tcClass) *routers.Entry {
	id := handleName(k.id)
	d := b.discipline(k.id)
	q := routers.NewEntry(b.name("queue", k.labels.queue, id), k.Number, "class %s", id)
	rate := k.rate
	switch top := b.device.top(k); {
	case k.parent == tcRoot:
		if k.ceil.bytes > k.rate.bytes {
			q.Comment += fmt.Sprintf("; ceil %s has no effect: there is no class to borrow from", k.ceil.text)
		}
	case k.parent != top.id:
		b.Cannot(k.Line,
			"class %s is below class %s, which is below another: two levels of links cannot be expressed", id,
			handleName(k.parent))
		b.share(q, k, top, d)
		return q
	case b.private(top):
		rate = &tcRate{
			k.ceil.bytes,
			k.ceil.text + " (ceil): all classes below " + handleName(top.id) + " can have it at the same time",
		}
	default:
		b.share(q, k, top, d)
		return q
	}
	b.own(q, rate, k.Number, d)
	return q
}

// private reports whether the classes below top can all send at their ceil at the same time, so
// none depends on the others.
func (b *tcQueues) private(top *tcClass) bool {
	var sum int64
	for _, l := range b.device.leaves(top.id) {
		if l.ceil.bytes > top.rate.bytes-sum {
			return false
		}
		sum += l.ceil.bytes
	}
	return true
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

// share makes a queue of the link of a class.
func (b *tcQueues) share(q *routers.Entry, k, top *tcClass, d *tcQdisc) {
	owner, ok := b.owners[top.id]
	if !ok {
		link := routers.NewEntry(b.name("link", top.labels.link, handleName(top.id)), top.Number, "class %s",
			handleName(top.id))
		link.Set("rate", top.rate.String(), top.Number, "rate %s", top.rate.text)
		b.Links = append(b.Links, link)
		owner = link.Key
		b.owners[top.id] = owner
	}
	q.Set("link", owner, k.Number, "parent %s", handleName(k.parent))
	if k.ceil.bytes < top.rate.bytes {
		b.Cannot(k.Line, "ceil %s is below the rate of class %s, %s: a queue of a link may use all of it",
			k.ceil.text, handleName(top.id), top.rate.text)
	}
	priority, weight, comment := b.weight(k, top)
	if priority > 0 {
		q.Set("priority", fmt.Sprint(priority), k.Number, "prio %d", k.prio)
	}
	if weight > 1 {
		q.Set("weight", fmt.Sprint(weight), k.Number, "%s", comment)
	}
	b.limits(q, d)
}

// smallPart is the part of a link's rate, as 1/n, up to which the guaranteed rate of a class does
// not matter: the class borrows nearly everything.
const smallPart = 1000

// weight returns the priority and the weight of a class among the classes of its link. HTB first
// grants each class its rate; then the class with the lowest prio borrows, and classes of the same
// prio share by quantum, by default the rate divided by r2q.
func (b *tcQueues) weight(k, top *tcClass) (priority uint32, weight int64, comment string) {
	var peers []*tcClass
	small, same := true, true
	for _, l := range b.device.leaves(top.id) {
		small = small && l.rate.bytes <= top.rate.bytes/smallPart
		same = same && l.prio == k.prio
		peers = append(peers, l)
	}
	share, what := func(l *tcClass) int64 { return l.rate.bytes }, "rates"
	switch {
	case small:
		share, what = func(l *tcClass) int64 { return int64(cmp.Or(l.quantum, minQuantum)) }, "quanta"
		peers = slices.DeleteFunc(peers, func(l *tcClass) bool { return l.prio != k.prio })
		priority = k.prio
	case !same:
		b.Cannot(k.Line,
			"prio %d: HTB grants each class its rate before prio counts, and our priority has no such guarantee",
			k.prio)
	}
	unit := int64(quantumUnit)
	if slices.ContainsFunc(peers,
		func(l *tcClass) bool { return share(l)%unit != 0 || share(l)/unit > queue.MaxWeight }) {
		unit = 0
		for _, l := range peers {
			unit = gcd(unit, share(l))
		}
	}
	for _, l := range peers {
		if share(l)/unit > queue.MaxWeight {
			unit = share(l)/queue.MaxWeight + 1
			what += ", rounded"
			b.Cannot(k.Line, "the %s of the classes below class %s have no ratio of whole numbers up to %d",
				what, handleName(top.id), queue.MaxWeight)
			break
		}
	}
	return priority, max(share(k)/unit, 1), "by the " + what + " of the classes"
}

func gcd(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

const (
	minQuantum  = 1000 // bytes: the smallest quantum computed by htb (htb_change_class)
	quantumUnit = 1514 // bytes: export writes a quantum of this for each unit of weight
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
	remarks := strings.Join(append([]string{d.Text()}, d.remarks...), "; ")
	switch {
	case d.latency > 0:
		q.Set("limit", policyTime(d.latency), d.Number, "%s", remarks)
	case d.bytes > 0:
		q.Set("limit", fmt.Sprint(d.bytes), d.Number, "%s", remarks)
	default:
		q.Set("limit", fmt.Sprintf("%dp", d.packets), d.Number, "%s", remarks)
		if d.packets > queue.MaxPackets {
			b.Cannot(d.Line, "limit %d is above our maximum, %d packets", d.packets, queue.MaxPackets)
			q.Get("limit").Value = fmt.Sprintf("%dp", queue.MaxPackets)
		}
	}
	if d.codel != (queue.CoDel{}) {
		q.Set("codel", fmt.Sprintf("{target: %s, interval: %s}", policyTime(d.codel.Target),
			policyTime(d.codel.Interval)), d.Number, "%s", d.kind)
	}
	if d.ecn {
		q.Set("ecn", "true", d.Number, "%s", d.kind)
	}
	if d.fair != "" {
		q.Set("fair", d.fair, d.Number, "%s", d.kind)
	}
}
