package live

import (
	"github.com/a-seed-32e5a53f/shaper/dataplane"
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
