package live

import (
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
)

// Dropped returns the count of all dropped packets, in classes and queues.
func (s *Sample) Dropped() (sum dataplane.Count) {
	for i := range s.Stats {
		sum = sum.Plus(s.Stats[i].AllDropped())
	}
	sum.Packets += Unassigned(s.Queues)
	return sum
}

// Unassigned returns the number of packets dropped by the qdisc in queues of several classes. No
// class counts them.
func Unassigned(queues []dataplane.QueueState) (packets int64) {
	for _, q := range queues {
		if q.Class == "" {
			packets += q.Dropped
		}
	}
	return packets
}

// Uncolored is a number of packets of unknown color dropped by the qdisc.
type Uncolored struct {
	Class   string // "" if unknown
	Packets int64
}

// Uncolored returns the packets of unknown color dropped by the qdisc: by class, and last those of
// unknown class. It returns nil unless the queues are in HTB.
func (s *Sample) Uncolored(about *kernel.About) (out []Uncolored) {
	if about.Pacer != kernel.HTB {
		return nil
	}
	for i, c := range about.Outline.Classes {
		out = append(out, Uncolored{c.Name, s.Stats[i].Behind.Packets})
	}
	return append(out, Uncolored{"", Unassigned(s.Queues)})
}
