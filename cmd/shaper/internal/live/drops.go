package live

import (
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
)

// Dropped counts all packets that were dropped, by classes and by queues.
func (s *Sample) Dropped() (sum dataplane.Count) {
	for i := range s.Stats {
		sum = sum.Plus(s.Stats[i].AllDropped())
	}
	sum.Packets += Unassigned(s.Queues)
	return sum
}

// Unassigned counts the packets that the qdisc dropped in queues that several
// classes feed: no class counts them.
func Unassigned(queues []dataplane.QueueState) (packets int64) {
	for _, q := range queues {
		if q.Class == "" {
			packets += q.Dropped
		}
	}
	return packets
}

// Uncolored counts packets of unknown color that the qdisc dropped.
type Uncolored struct {
	Class   string // "" if that is not known either
	Packets int64
}

// Uncolored returns what the qdisc dropped of packets of unknown color: by class, and last
// of unknown class. It is nil unless the shaper's queues are in HTB.
func (s *Sample) Uncolored(about *kernel.About) (out []Uncolored) {
	if about.Pacer != kernel.HTB {
		return nil
	}
	for i, c := range about.Outline.Classes {
		out = append(out, Uncolored{c.Name, s.Stats[i].Behind.Packets})
	}
	return append(out, Uncolored{"", Unassigned(s.Queues)})
}
