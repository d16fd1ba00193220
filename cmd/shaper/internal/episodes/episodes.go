// Package episodes finds the worst runs of drops in a replay, and the largest flows.
//
// An episode is a run of dropped packets of one class, or of yellow packets not dropped on arrival,
// with gaps below Gap, by the clock of the meters. If a link's queue drops a packet later, it
// counts at its arrival.
package episodes

import (
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// Gap is the time without a packet after which an episode ends.
const Gap = 100 * time.Millisecond

// Kind is the kind of packets of an episode.
type Kind uint8

const (
	Drop   Kind = iota // dropped packets
	Yellow             // yellow packets not dropped on arrival
	kinds
)

func (k Kind) String() string { return [...]string{"drop", "yellow"}[k] }

// Episode is a run of packets of one class.
type Episode struct {
	Kind                    Kind
	Class                   int   // index in the plan; len(Plan.Classes) for unclassified packets
	First, Last             int64 // arrival of the first and the last packet, ns
	FirstPacket, LastPacket int64 // their numbers in the capture
	dataplane.Count               // of all parts; valid after Total or Tracker.Worst
	Lack                    int64 // most tokens lacked by a packet; 0 if no meter decided, or not measured
	LackStage               int   // stage of the meter
	Parts                   []Part
	Flow                    Item[dataplane.Flow] // flow with the most bytes lost
	// Flow was counted in a sample of the packets, and is an estimate
	Sampled bool
	// for Tracker.Begin; nil if the episode is not among the worst
	Detail any

	key   uint64 // placeKey of the latest packet
	part  int    // its index in Parts
	flows Top[dataplane.Flow]
	sampler
}

// Part counts the packets of an episode dropped for one cause at one place.
type Part struct {
	Place
	dataplane.Count
}

// Place is a cause and where it applied.
type Place struct {
	Cause dataplane.Cause // dataplane.Causes for unclassified packets
	Stage int             // the last meter of the packet; -1 for none
	Queue int             // the queue with the drop; -1 for none, or a customer's own queue
}

// placeKey is equal for packets of an episode with equal places.
func placeKey(v *dataplane.Verdict) uint64 {
	return uint64(v.Customer)<<32 ^ uint64(uint32(v.Stage))<<12 ^ uint64(v.Reason)<<2 ^ uint64(v.Color)
}

// continues reports whether a packet directly follows the latest one, at the same place.
func (e *Episode) continues(v *dataplane.Verdict) bool {
	return e.key == placeKey(v) && v.ID > e.LastPacket && near(e.Last, v.Now)
}

// put adds a packet before its flow is counted. Its place is the place of Parts[e.part].
func (e *Episode) put(v *dataplane.Verdict) {
	p := &e.Parts[e.part]
	p.Packets += int64(v.Packets)
	p.Bytes += int64(v.Length)
	if lack := int64(v.Lack); lack > e.Lack && p.Cause <= dataplane.CauseECN {
		e.Lack, e.LackStage = lack, p.Stage
	}
}

// extend moves the ends of the episode to include a packet.
func (e *Episode) extend(v *dataplane.Verdict) {
	if v.Now < e.First || v.Now == e.First && v.ID < e.FirstPacket {
		e.First, e.FirstPacket = v.Now, v.ID
	}
	if v.Now > e.Last || v.Now == e.Last && v.ID > e.LastPacket {
		e.Last, e.LastPacket = v.Now, v.ID
	}
}

// find returns the index of the part of a place. It adds the part if it is missing.
func (e *Episode) find(at Place) int {
	for i := range e.Parts {
		if e.Parts[i].Place == at {
			return i
		}
	}
	e.Parts = append(e.Parts, Part{Place: at})
	return len(e.Parts) - 1
}

// Total sets Count to the sum of the parts so far, and returns it.
func (e *Episode) Total() dataplane.Count {
	e.Count = dataplane.Count{}
	for i := range e.Parts {
		e.Count = e.Plus(e.Parts[i].Count)
	}
	return e.Count
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
		to := &e.Parts[e.find(p.Place)]
		to.Count = to.Plus(p.Count)
	}
	e.flows.join(&o.flows)
	e.Sampled = e.Sampled || o.Sampled
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
