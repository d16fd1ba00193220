package tc

import (
	"fmt"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/routers"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// single makes the queue of a root qdisc which is itself a queue: tbf, cake and others.
func (b *tcQueues) single(root *tcQdisc) *routers.Entry {
	q := routers.NewEntry(b.name("queue", root.labels.queue, b.device.name), root.Number, "qdisc %s",
		root.kind)
	rate := root.rate
	d := root
	switch {
	case root.kind == "tbf":
		for _, lower := range b.device.qdiscs {
			if lower.parent>>16 == root.handle>>16 && lower.parent != tcRoot && lower.handle != root.handle {
				d = lower // replaces the queue of tbf, and its limit
			}
		}
	case rate == nil:
		rate = b.linkRate(root)
	}
	if rate == nil {
		return nil
	}
	b.own(q, rate, root.Number, d)
	return q
}

// linkRate returns the rate of the interface, for qdiscs without a rate.
func (b *tcQueues) linkRate(root *tcQdisc) *tcRate {
	rate, err := parseTCRate("100%", b.link)
	if err != nil {
		b.Cannot(root.Line,
			"qdisc %s has no rate, and sends at that of the interface: say it with --link, such as --link 1gbit",
			root.kind)
		return nil
	}
	return &rate
}

// band makes the queue of a band of prio, on a link with the rate of the interface.
func (b *tcQueues) band(root *tcQdisc, class uint32) *routers.Entry {
	n := class & 0xffff
	rate := b.linkRate(root)
	if rate == nil {
		return nil
	}
	if n == 0 || n > root.bands || n-1 > queue.MaxPriority {
		b.Cannot(root.Line, "band %s: prio has %d, and we have %d", handleName(class), root.bands,
			queue.MaxPriority+1)
		return nil
	}
	owner, ok := b.owners[root.handle]
	if !ok {
		link := routers.NewEntry(b.name("link", root.labels.link, b.device.name), root.Number, "qdisc prio")
		link.Set("rate", rate.String(), root.Number, "%s", rate.text)
		b.Links = append(b.Links, link)
		owner = link.Key
		b.owners[root.handle] = owner
	}
	q := routers.NewEntry(b.name("queue", "", handleName(class)), root.Number, "band %d", n)
	q.Set("link", owner, root.Number, "qdisc prio")
	q.Set("priority", fmt.Sprint(n-1), root.Number, "band %d", n)
	b.limits(q, b.discipline(class))
	return q
}
