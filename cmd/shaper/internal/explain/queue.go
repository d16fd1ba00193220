package explain

import (
	"fmt"
	"strings"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// find returns a queue of an action as compiled, and its backlog at the packet's arrival.
func (w *Witness) find(source *dataplane.Queue) (q *compiled.Queue, b *backlog) {
	for i := range w.plan.Queues {
		if q := &w.plan.Queues[i]; q.Source == source {
			return q, &w.queues[i]
		}
	}
	q = &compiled.Queue{
		QueueOutline: compiled.QueueOutline{Name: source.Name, Link: -1}, Source: source,
	}
	q.Config = source.Config
	return q, &w.ownAt
}

// queue describes a queue of an action at the packet's arrival.
func (w *Witness) queue(source *dataplane.Queue) *QueuedJSON {
	v, plan := &w.verdict, w.plan
	q, b := w.find(source)
	place := w.file.Place(source, "limit")
	if b == &w.ownAt {
		place = w.file.Place(w.service(v).Source, "queue")
	}
	out := &QueuedJSON{
		Name: q.Name, Place: place, Packets: b.packets, Bytes: b.bytes, Early: w.wredText(q, b),
	}
	for _, p := range say.QueueParts(source, w.file.Policy.Queues) {
		if strings.HasSuffix(p.Key, say.Up) {
			continue // of the other direction
		}
		out.Settings = append(out.Settings, p.Key+" "+p.Text)
	}
	if link, rated := w.linkOf(v); link >= 0 {
		path := w.path(link)
		out.LinkPackets, out.LinkBytes = path[0].Packets, path[0].Bytes
		if len(plan.Trees[plan.Links[link].Tree].Links) > 1 {
			out.Links = path
		}
		if w.after != nil && !say.OwnLink(source, w.file.Policy.Queues) {
			out.holder(w.after.own-w.before.own, rated, path)
		}
	}
	switch {
	case !v.Done.Dropped():
		wait := v.Departure - v.Now
		out.WaitNS = &wait
	case q.Link < 0:
		wait := int64(b.delay)
		out.WaitNS = &wait
	}
	return out
}

// wredText describes the decision of WRED, or returns "" if it had none.
func (w *Witness) wredText(q *compiled.Queue, b *backlog) string {
	v := &w.verdict
	e := q.WRED[v.Color]
	backlog, found := b.size(&q.Config)
	switch {
	case e == (queue.Early{}) || v.Reason == dataplane.QueueFull || backlog < e.Min:
		return ""
	case backlog >= e.Max:
		return fmt.Sprintf("%s is at or above the max for %v: dropped", found, v.Color)
	}
	chance := 100 * say.Probability(e) * float64(backlog-e.Min) / float64(e.Max-e.Min)
	outcome := "not dropped"
	switch marked := v.Done&dataplane.ECNSet != 0 && q.ECN; {
	case v.Reason == dataplane.WRED:
		outcome = "dropped"
	case marked && q.CoDel == (queue.CoDel{}):
		outcome = "CE is set instead"
	case marked:
		outcome = "CE is set instead, for this or by CoDel"
	}
	return fmt.Sprintf("%s, drop probability %.3g %% for %v: %s", found, chance, v.Color, outcome)
}

// size returns a backlog in the unit of the queue's limit, and as text.
func (b backlog) size(c *queue.Config) (n int64, text string) {
	switch c.Axis() {
	case queue.ByTime:
		return int64(b.delay), "delay " + b.delay.String()
	case queue.ByBytes:
		return b.bytes, "backlog " + say.Grouped(b.bytes) + " B"
	}
	return b.packets, "backlog " + say.Count(b.packets, "packet")
}
