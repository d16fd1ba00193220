package record

import "github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/qdisc"

// Discarded counts the packets dropped because their queues were removed.
type Discarded struct {
	Packets uint32
	AtMost  bool // Packets is an upper bound: fq may have sent some of them meanwhile
}

func (l *Discarded) Add(more Discarded) {
	l.Packets += more.Packets
	l.AtMost = l.AtMost || more.AtMost
}

// Discard drops and counts the queued packets of our qdisc tree on a device.
func (l *Discarded) Discard(index int) error {
	packets, exact, err := qdisc.Discard(index)
	l.Add(Discarded{packets, !exact})
	return err
}
