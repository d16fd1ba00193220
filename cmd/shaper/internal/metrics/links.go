package metrics

import (
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

var (
	perLink = with(perShaper, "link", "parent")

	descLinkSent = describe("shaper_link_sent_packets_total",
		"Packets sent by a link. parent is the link above.", perLink)
	descLinkSentBytes = describe("shaper_link_sent_bytes_total",
		"Metered bytes of these packets; in the kernel as counted by HTB.", perLink)
	descLinkPackets = describe("shaper_link_queued_packets", "Packets queued now in all queues below a link.",
		perLink)
	descLinkBytes = describe("shaper_link_queued_bytes", "Their bytes.", perLink)
	descLinkHeld  = describe("shaper_link_held_seconds_total",
		"Time during which packets were queued below a link and its own rate was not free; not in the kernel.",
		perLink)
	descLinkGuaranteed = describe("shaper_link_guaranteed_rate",
		"Rate of a link while all queues of its tree are busy, in bit/s.", perLink)
	descLinkReach = describe("shaper_link_maximum_rate",
		"Maximum rate of a link: the lowest of its own and those of the links above, in bit/s.", perLink)
)

// link adds the samples of a link.
func (e exposition) link(list []dataplane.LinkState, i int, labels ...string) {
	s, parent := &list[i], ""
	if s.Missing {
		return
	}
	if s.Above >= 0 {
		parent = list[s.Above].Name
	}
	labels = with(labels, s.Name, parent)
	e.count(descLinkSent, s.Sent.Packets, labels...)
	e.count(descLinkSentBytes, s.Sent.Bytes, labels...)
	e.count(descLinkPackets, s.Backlog.Packets, labels...)
	e.count(descLinkBytes, s.Backlog.Bytes, labels...)
	if s.HeldKnown {
		e.gauge(descLinkHeld, s.Held.Seconds(), labels...)
	}
	e.gauge(descLinkGuaranteed, say.BitsPerSecond(s.Guaranteed), labels...)
	e.gauge(descLinkReach, say.BitsPerSecond(s.Reach), labels...)
}
