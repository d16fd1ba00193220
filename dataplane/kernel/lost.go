package kernel

import "github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/qdisc"

// Lost counts packets that were still queued when their queues were removed.
type Lost struct {
	Packets uint32
	AtMost  bool // of FQ: some of Packets may have been sent while it was removed
}

func (l *Lost) add(more Lost) {
	l.Packets += more.Packets
	l.AtMost = l.AtMost || more.AtMost
}

// discard removes the queued packets of our qdisc tree and counts them.
func (l *Lost) discard(index int) error {
	packets, exact, err := qdisc.Discard(index)
	l.add(Lost{packets, !exact})
	return err
}
