package qdisc

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/cause"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// Tree describes the qdiscs and classes for the queues of a policy at the root of an interface.
// Packets outside all queues pass it unshaped. If a tree replaces another one with Grow, the class
// ID of a link must not become a leaf's, or the reverse.
type Tree struct {
	Kind    string        // HTB, or FQ, which has neither links nor leaves
	MQ      bool          // the root is MQ, with an FQ for each hardware queue; for FQ
	Horizon time.Duration // maximum queueing delay, for FQ

	// Overhead is added to the length of each frame, in bytes. HTB adds it once to a packet split
	// into segments by the device. With a negative overhead HTB does not see the headers of the
	// segments either; if the MTU is known, it assumes those of TCP.
	Overhead int
	MTU      int // of the device, bytes; 0: unknown
	Links    []Link
	Leaves   []Leaf
}

// Link is a class whose children share its rate: a link of a policy. Links are listed after their
// parents.
type Link struct {
	ID        uint16        // class ID; below Over without a parent
	Parent    uint16        // ID of the link above; 0: none
	Rate      uint64        // maximum, bytes/s; with a parent, 0 means the parent's
	Guarantee uint64        // with a parent: bytes/s that it can count on; with siblings at most the parent's
	Credit    time.Duration // amount of the rate saved up by an idle link, as time; unused with a parent
}

// Leaf is a class in which packets are queued.
type Leaf struct {
	ID        uint16        // class ID; below Over without a link
	Parent    uint16        // ID of its link; 0: none
	Rate      uint64        // maximum, bytes/s; in a link, 0 means the link's rate
	Guarantee uint64        // in a link: as Link.Guarantee
	Credit    time.Duration // as Link.Credit; unused in a link
	Priority  uint32        // in a link: 0 is served first, 7 last
	Quantum   uint32        // in a link: bytes per turn, at least the longest packet
	Limit     uint32        // maximum backlog, bytes; 0: unlimited
	Fair      *Fair         // separate queues for flows; nil: first in, first out
}

// Fair configures fq_codel.
type Fair struct {
	CoDel   queue.CoDel // of each flow
	ECN     bool        // mark packets of ECN-capable flows instead of dropping them
	Packets uint32      // maximum backlog of all flows, packets
	Quantum uint32      // bytes that a flow may send per turn
}

// Over is added to the ID of a link without a parent, or of a leaf outside links, to get the ID of the
// class above it.
const Over = 1 << 15

// MaxLevels is the maximum number of levels of links and leaves. HTB has 8, of which a link without a
// parent takes two.
const MaxLevels = 7

// errForeign is the error for a root qdisc that is not ours any more.
var errForeign = errors.New("another program replaced the root qdisc: detach and attach again")

// Plant replaces the root qdisc of an interface by the tree. If that fails, it restores
// before, the result of Save.
func (t *Tree) Plant(index int, before *Saved) error {
	if err := t.root().add(index, unix.NLM_F_REPLACE); err != nil {
		return cause.Of(fmt.Errorf("%s qdisc on interface %d: %w", t.Kind, index, err))
	}
	if err := t.Grow(index); err != nil {
		return errors.Join(err, before.Restore(index))
	}
	return nil
}

// Grow changes our tree on an interface to t by adding and changing classes. Leaves of both trees
// keep their packets. Call Prune to remove the other classes; between Grow and Prune, replace the
// program by one selecting the leaves of t.
func (t *Tree) Grow(index int) error {
	root, err := Root(index)
	if err != nil {
		return err
	}
	if !root.Ours() {
		return errForeign
	}
	next := t.root()
	if root.Kind != next.Kind {
		err = Remove(index)
		if err == nil {
			err = next.add(index, unix.NLM_F_EXCL)
		}
	} else {
		if t.Kind == HTB {
			next.Options = nil // HTB can change its size table only
		}
		err = next.send(unix.RTM_NEWQDISC, 0, index)
	}
	if err != nil {
		return cause.Of(fmt.Errorf("%s qdisc: %w", t.Kind, err))
	}
	if t.Kind == FQ {
		return t.growMQ(index)
	}
	classes, err := dump(unix.RTM_GETTCLASS, index, 0)
	if err != nil {
		return err
	}
	for _, class := range t.inner() {
		if classes, err = class.removeMoved(classes, index); err != nil {
			return err
		}
		if err := class.add(index, 0); err != nil {
			return fmt.Errorf("HTB %v: %w", class, err)
		}
	}
	for _, l := range t.Leaves {
		class, qdisc := t.leaf(&l), l.qdisc()
		moves := func(c Object) bool { return c.Handle == class.Handle && c.Parent != class.Parent }
		if i := slices.IndexFunc(classes, moves); i >= 0 { // HTB cannot move a class
			err = classes[i].send(unix.RTM_DELTCLASS, 0, index)
		}
		if err == nil {
			err = class.add(index, 0)
		}
		if err == nil {
			err = qdisc.add(index, unix.NLM_F_REPLACE)
		}
		if err != nil {
			return fmt.Errorf("HTB class of queue %d: %w", l.ID, err)
		}
	}
	return nil
}

// growMQ makes or changes the FQ of each hardware queue.
func (t *Tree) growMQ(index int) error {
	list, err := t.belowMQ(index)
	for _, o := range list {
		if err := o.add(index, unix.NLM_F_REPLACE); err != nil {
			return cause.Of(fmt.Errorf("%v below %x:%x: %w", o, o.Parent>>16, o.Parent&0xffff, err))
		}
	}
	return err
}

// removeMoved removes a class below another parent, with all classes below it, and returns the other
// classes: HTB cannot move it. Grow finds such a class only if another program made it.
func (o *Object) removeMoved(classes []Object, index int) ([]Object, error) {
	moved := func(c Object) bool { return c.Handle == o.Handle && c.Parent != o.Parent }
	if !slices.ContainsFunc(classes, moved) {
		return classes, nil
	}
	below := map[uint32]bool{o.Handle: true}
	inOrder(classes)
	for _, c := range classes {
		below[c.Handle] = below[c.Handle] || below[c.Parent]
	}
	for _, c := range slices.Backward(classes) {
		if below[c.Handle] {
			if err := c.send(unix.RTM_DELTCLASS, 0, index); err != nil {
				return nil, fmt.Errorf("%v: %w", &c, err)
			}
		}
	}
	return slices.DeleteFunc(classes, func(c Object) bool { return below[c.Handle] }), nil
}

// Prune removes our classes missing in t, and drops the packets in them.
func (t *Tree) Prune(index int) error {
	wanted := map[uint32]bool{}
	for _, class := range t.inner() {
		wanted[class.Handle] = true
	}
	for _, l := range t.Leaves {
		wanted[Handle(l.ID)] = true
	}
	classes, err := dump(unix.RTM_GETTCLASS, index, 0)
	if err != nil {
		return err
	}
	classes = slices.DeleteFunc(classes,
		func(c Object) bool { return c.Handle>>16 != Major || c.Kind != HTB || wanted[c.Handle] })
	inOrder(classes)
	for _, c := range slices.Backward(classes) {
		if err := c.send(unix.RTM_DELTCLASS, 0, index); err != nil {
			return fmt.Errorf("HTB class %x:%x: %w", c.Handle>>16, c.Handle&0xffff, err)
		}
	}
	return nil
}
