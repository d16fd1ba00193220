package kernel

import (
	"errors"

	"golang.org/x/sys/unix"
)

// Lost counts packets that were still queued when their queues were removed.
type Lost struct {
	Packets uint32
	AtMost  bool // of FQ: some of Packets may have been sent while it was removed
}

func (l *Lost) add(more Lost) {
	l.Packets += more.Packets
	l.AtMost = l.AtMost || more.AtMost
}

// discard removes the queued packets of our qdisc tree and counts them. For HTB the
// count is exact: when the kernel removes a leaf, it adds the leaf's backlog to the
// root's drops in one step. FQ has no leaves. Its backlog stays until FQ itself is
// removed, so packets sent in the meantime are counted too.
func (l *Lost) discard(index int) error {
	qdiscs, err := dump(unix.RTM_GETQDISC, index, 0)
	root := rootOf(qdiscs)
	if err != nil || root == nil || root.Handle != major<<16 {
		return err
	}
	before, err := root.counted()
	if err != nil {
		return err
	}
	if root.Kind == string(FQ) {
		l.add(Lost{before.Waiting, before.Waiting > 0})
		return nil
	}
	queued := uint32(0) // no packets are added to leaves any more
	var errs []error
	for _, q := range qdiscs {
		if q.Parent>>16 != major {
			continue
		}
		in, err := q.counted()
		queued += in.Waiting
		leaf := object{Parent: q.Parent, Handle: q.Handle}
		errs = append(errs, err, leaf.send(unix.RTM_DELQDISC, 0, index))
	}
	qdiscs, err = dump(unix.RTM_GETQDISC, index, 0)
	if root = rootOf(qdiscs); err == nil && root != nil && root.Handle == major<<16 {
		var after queueStats
		after, err = root.counted()
		l.Packets += min(uint32(after.Drops-before.Drops), queued) // unqueued packets may have found no room meanwhile
	}
	return errors.Join(append(errs, err)...)
}
