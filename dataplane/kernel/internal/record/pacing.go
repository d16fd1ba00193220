package record

import (
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/qdisc"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// Pacer is the root qdisc holding queued packets until they depart.
type Pacer string

const (
	FQ  Pacer = qdisc.FQ  // the program sets a packet's departure time in skb->tstamp
	HTB Pacer = qdisc.HTB // the program sets the class of a packet's queue in skb->priority
)

// FairScheduler is the kernel's scheduler of the flows of fair queues.
type FairScheduler string

const (
	FairByFQCoDel FairScheduler = qdisc.FQCoDel // fq_codel in an HTB leaf
	FairByCake    FairScheduler = qdisc.Cake    // cake in an HTB leaf, for fairness by host
	FairByBoth    FairScheduler = "fq_codel and cake"
	FairByHTB     FairScheduler = qdisc.HTB // HTB leaves by flow hash, in a kernel without fq_codel
)

// Feeder is the class and the color of all packets that ever entered a queue. HTB counts drops by
// queue, so the class or color of a drop is known only if the queue never had another one.
type Feeder struct {
	Class string       `json:",omitempty"` // "" for several classes
	Color *meter.Color `json:",omitempty"` // nil for several colors
}

// Merge returns the feeder of a queue fed by f and other.
func (f Feeder) Merge(other Feeder) Feeder {
	switch {
	case f.Class != other.Class:
		return Feeder{}
	case f.Color == nil || other.Color == nil || *f.Color != *other.Color:
		return Feeder{Class: f.Class}
	}
	return f
}
