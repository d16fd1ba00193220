package tc

import (
	"strings"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// single makes the queue of a root qdisc which is itself a queue: tbf, cake and others.
func (b *tcQueues) single(root *tcQdisc) *dataplane.Queue {
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
	q := b.add(root.labels.queue, b.device.name, root.Line, "qdisc %s", root.kind)
	if d != root && root.remarks != nil {
		b.Note(root.Line, "%s", strings.Join(root.remarks, "; "))
	}
	b.own(q, rate, root.Line, d)
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
func (b *tcQueues) band(root *tcQdisc, class uint32) *dataplane.Queue {
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
	if b.bands == nil {
		b.bands = b.addLink(root.labels.link, b.device.name, root.Line, "qdisc prio")
		b.bands.Rate = rate.rate()
		b.From(b.bands, "rate", root.Line, "%s", rate.text)
	}
	q := b.add("", handleName(class), root.Line, "band %d", n)
	q.Link, q.Priority = b.bands, int(n-1)
	b.From(q, "link", root.Line, "qdisc prio")
	b.From(q, "priority", root.Line, "band %d", n)
	b.limits(q, b.discipline(class))
	return q
}
