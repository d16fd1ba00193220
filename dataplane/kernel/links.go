package kernel

import (
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/qdisc"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// LinkStates returns the states of the policy's links, as HTB has them: rates are in whole bytes per second.
// Held is unknown. There are none in a dry run, which queues nothing.
func (s *Shaper) LinkStates() ([]dataplane.LinkState, error) {
	if s.Pacer != HTB {
		return nil, nil
	}
	classes, err := qdisc.AllLinkCounts(s.Place.Index)
	if err != nil {
		return nil, err
	}
	out := make([]dataplane.LinkState, len(s.About.Links))
	for i, id := range s.About.Links {
		c, there := classes[id]
		out[i] = dataplane.LinkState{Name: s.Outline.Links[i], Above: s.Outline.LinkAbove(i)}
		link := &out[i]
		if link.Missing = !there; !there {
			continue
		}
		link.Sent = dataplane.Count{Packets: int64(c.Packets), Bytes: int64(c.Bytes)}
		link.Backlog = dataplane.Count{Packets: int64(c.Queued), Bytes: int64(c.Backlog)}
		link.Guaranteed = meter.ByteRate(int64(c.Rate))
		if c.Ceil < qdisc.Fastest {
			link.Rate = meter.ByteRate(int64(c.Ceil))
		}
	}
	for i := range out { // links are listed after the link above
		link := &out[i]
		link.Reach = link.Rate
		if link.Above < 0 {
			continue
		}
		none, above := meter.Rate{}, out[link.Above].Reach
		if link.Rate == none || above != none && above.Cmp(link.Rate) < 0 {
			link.Reach = above
		}
	}
	return out, nil
}
