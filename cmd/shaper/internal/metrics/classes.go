package metrics

import (
	"slices"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/live"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// possible adds a sample if it can become positive, or is: an earlier policy, or a change, may have counted.
func (e exposition) possible(f *metricFamily, can bool, v int64, labels ...string) {
	if can || v != 0 {
		e.count(f, v, labels...)
	}
}

// classes adds the samples of classes, and of unclassified packets. Samples that the policy keeps at 0 are
// left out.
func (e exposition) classes(o *Observation) {
	about := &o.About
	name, direction := about.Interface, about.Direction.String()
	stats, htb := o.sample.Stats, about.Pacer == kernel.HTB
	drops := findQdiscDrops(o.plan, &about.Outline, htb)
	for i := range about.Outline.Classes {
		class, st, can := &about.Outline.Classes[i], &stats[i], o.effects(i)
		for color := meter.Green; color <= meter.Red; color++ {
			labels := []string{name, direction, class.Name, color.String()}
			e.possible(descPackets, can.Colors[color], st.Colors[color].Packets, labels...)
			e.possible(descBytes, can.Colors[color], st.Colors[color].Bytes, labels...)
			e.possible(descMarked, can.Marked[color], st.Marked[color].Packets, labels...)
			e.possible(descQueued, can.Queued[color], st.Queued[color].Packets, labels...)
			e.possible(descCE, can.CE[color], st.CE[color].Packets, labels...)
			for cause, n := range st.Drops[color] {
				cause, can := dataplane.Cause(cause), can.Drops[color][cause]
				labels := with(labels, cause.String())
				ofQdisc := cause == dataplane.CauseQueue && drops.colors[i][color]
				e.possible(descDropped, can || ofQdisc, n.Packets, labels...)
				e.possible(descLost, can, n.Bytes, labels...)
			}
		}
		e.possible(descDropped, drops.uncolored[i], st.Behind.Packets, name, direction, class.Name, "",
			dataplane.CauseQueue.String())
		e.meters(o, i)
	}
	if htb {
		e.possible(descDropped, drops.unassigned, live.Unassigned(o.sample.Queues), name, direction, "", "",
			dataplane.CauseQueue.String())
	}
	rest, can := &stats[len(stats)-1], about.Outline.DropUnclassified
	e.count(descUnclassified, rest.Untaken.Packets, name, direction)
	e.count(descUnclassifiedBytes, rest.Untaken.Bytes, name, direction)
	labels := []string{name, direction, say.Unclassified, "", dataplane.Unclassified}
	e.possible(descDropped, can, rest.UntakenDropped.Packets, labels...)
	e.possible(descLost, can, rest.UntakenDropped.Bytes, labels...)
}

// effects returns what the policy can do to a class. Customers can be switched off at any time. If another
// policy was loaded in this moment, everything is possible.
func (o *Observation) effects(class int) (can compiled.Effects) {
	if class >= len(o.plan.Classes) || o.plan.Classes[class].Name != o.About.Outline.Classes[class].Name {
		can.Colors = [3]bool{true, true, true}
		can.Marked, can.CE, can.Queued = can.Colors, can.Colors, can.Colors
		for color := range can.Drops {
			for cause := range can.Drops[color] {
				can.Drops[color][cause] = true
			}
		}
		return can
	}
	can = o.plan.Effects(class, o.About.Pacer == kernel.HTB)
	if o.About.Outline.OfCustomers(class) {
		for color, is := range can.Colors {
			can.Drops[color][dataplane.CauseColor] = is
		}
	}
	return can
}

// qdiscDrops are the samples of drops by HTB that can become positive. HTB knows only the queue.
type qdiscDrops struct {
	colors     [][3]bool // by class: of one color
	uncolored  []bool    // by class: of unknown color
	unassigned bool      // of unknown class
}

func findQdiscDrops(plan *compiled.Plan, o *compiled.Outline, htb bool) qdiscDrops {
	out := qdiscDrops{colors: make([][3]bool, len(o.Classes)), uncolored: make([]bool, len(o.Classes))}
	if !htb {
		return out
	}
	for q := range o.Queues {
		classes, last := 0, 0
		var of [3]bool // colors of the last class
		for i := range o.Classes {
			if queues := &o.Classes[i].Queues; slices.Contains(queues[:], q) {
				classes, last = classes+1, i
				for color := range queues {
					of[color] = queues[color] == q
				}
			}
		}
		switch {
		case classes > 1:
			out.unassigned = true
		case of == [3]bool{true} || of == [3]bool{false, true} || of == [3]bool{false, false, true}:
			for color, is := range of {
				out.colors[last][color] = out.colors[last][color] || is
			}
		case classes == 1:
			out.uncolored[last] = true
		}
	}
	inTree := func(s compiled.Service) bool { return s.Tree >= 0 }
	if c := plan.Customers; c != nil && slices.ContainsFunc(c.Plans, inTree) {
		for i := range o.Classes {
			out.uncolored[i] = out.uncolored[i] || o.OfCustomers(i)
		}
	}
	return out
}
