// Package episodes finds the worst runs of drops in a replay, and the largest flows.
//
// An episode is a run of dropped packets of one class, or of yellow packets that were not
// dropped on arrival, with gaps below Gap. The clock is that of the meters. A packet that a
// link's queue drops later counts at its arrival.
package episodes

import (
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// Gap is the time without a packet that ends an episode.
const Gap = 100 * time.Millisecond

// Kind is the kind of packets of an episode.
type Kind uint8

const (
	Drop   Kind = iota // dropped packets
	Yellow             // yellow packets that were not dropped on arrival
	kinds
)

func (k Kind) String() string { return [...]string{"drop", "yellow"}[k] }

// Episode is a run of packets of one class.
type Episode struct {
	Kind                    Kind
	Class                   int   // index in the plan; len(Plan.Classes) for unclassified packets
	First, Last             int64 // arrival of the first and the last packet, ns
	FirstPacket, LastPacket int64 // their numbers in the capture
	dataplane.Count
	Lack      int64 // most tokens that a packet lacked; 0 if no meter decided, or not measured
	LackStage int   // stage of that meter
	Parts     []Part
	Flow      Item[dataplane.Flow] // the flow that lost most bytes
	Detail    any                  // for Tracker.Begin; nil if the episode is not among the worst

	flows Top[dataplane.Flow]
}

// Part has the packets of an episode that were dropped for one cause at one place.
type Part struct {
	Place
	dataplane.Count
}

// Place is a cause and where it applied.
type Place struct {
	Cause dataplane.Cause // dataplane.Causes for unclassified packets
	Stage int             // the last meter of the packet; -1 for none
	Queue int             // the queue that dropped it; -1 for none, or a customer's own queue
}

// put adds a packet.
func (e *Episode) put(v *dataplane.Verdict, at Place, flow dataplane.Flow) {
	if v.Now < e.First || v.Now == e.First && v.ID < e.FirstPacket {
		e.First, e.FirstPacket = v.Now, v.ID
	}
	if v.Now > e.Last || v.Now == e.Last && v.ID > e.LastPacket {
		e.Last, e.LastPacket = v.Now, v.ID
	}
	n := dataplane.Count{Packets: int64(v.Packets), Bytes: int64(v.Length)}
	if lack := int64(v.Lack); at.Cause <= dataplane.CauseECN && lack > e.Lack {
		e.Lack, e.LackStage = lack, at.Stage
	}
	e.count(Part{at, n})
	e.flows.Add(flow, n)
}

// count adds a count to the episode and to its part.
func (e *Episode) count(n Part) {
	e.Count = e.Plus(n.Count)
	for i := range e.Parts {
		if p := &e.Parts[i]; p.Place == n.Place {
			p.Count = p.Plus(n.Count)
			return
		}
	}
	e.Parts = append(e.Parts, n)
}

// join adds a later episode of the same class.
func (e *Episode) join(o *Episode) {
	if o.First < e.First {
		e.First, e.FirstPacket = o.First, o.FirstPacket
	}
	if o.Last > e.Last {
		e.Last, e.LastPacket = o.Last, o.LastPacket
	}
	if o.Lack > e.Lack {
		e.Lack, e.LackStage = o.Lack, o.LackStage
	}
	for _, p := range o.Parts {
		e.count(p)
	}
	e.flows.join(&o.flows)
	if e.Detail == nil {
		e.Detail = o.Detail
	}
	o.Detail = nil
}

// compare orders episodes: more bytes first, then the earlier one.
func (e *Episode) compare(o *Episode) int {
	switch {
	case e.Bytes != o.Bytes && e.Bytes > o.Bytes, e.Bytes == o.Bytes && e.First < o.First:
		return -1
	case e.Bytes == o.Bytes && e.First == o.First:
		return e.Class - o.Class
	}
	return 1
}
