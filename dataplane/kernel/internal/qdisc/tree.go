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

// Tree is the qdiscs and classes that the queues of a policy need at the root of an
// interface. Packets that belong to no queue pass it unshaped. From one tree to the
// next a class ID stays a link or a leaf.
type Tree struct {
	Kind    string        // FQ, which has neither links nor leaves, or HTB
	Horizon time.Duration // of FQ: no packet leaves later
	// Overhead is what HTB adds to the length of a frame, in bytes. A packet that
	// the device cuts into segments counts it once. With an overhead below zero HTB
	// does not see the headers of the segments either; with an MTU it assumes those
	// of TCP.
	Overhead int
	MTU      int // of the device; 0 is not known
	Links    []Link
	Leaves   []Leaf
}

// Link is a class whose leaves share its rate.
type Link struct {
	ID     uint16        // below Over
	Rate   uint64        // bytes/s
	Credit time.Duration // how much of the rate it may save up
}

// Leaf is a class in which packets wait.
type Leaf struct {
	ID       uint16        // below Over
	Parent   uint16        // a link, or 0
	Rate     uint64        // bytes/s; 0 in a link is all of it
	Credit   time.Duration // outside a link: as that of a link
	Priority uint32        // in a link: 0 is served first, 7 last
	Quantum  uint32        // in a link: bytes of a turn, at least those of the longest packet
	Limit    uint32        // bytes that may wait; 0 is no limit
	Fair     *Fair         // keeps flows apart; nil is first in, first out
}

// Fair configures fq_codel: CoDel of each flow, and how many packets may wait.
type Fair struct {
	CoDel   queue.CoDel
	ECN     bool
	Packets uint32
}

// Over is added to the ID of a link, or of a leaf outside links, for the class above it.
const Over = 1 << 15

// errForeign says that the root qdisc is not ours any more.
var errForeign = errors.New("somebody replaced the root qdisc: detach and attach again")

// Plant replaces the root qdisc of an interface by the tree. before is what Save
// returned; it is restored if the tree cannot be made.
func (t *Tree) Plant(index int, before *Saved) error {
	if err := t.root().add(index, unix.NLM_F_REPLACE); err != nil {
		return cause.Of(fmt.Errorf("%s qdisc on interface %d: %w", t.Kind, index, err))
	}
	if err := t.Grow(index); err != nil {
		return errors.Join(err, before.Restore(index))
	}
	return nil
}

// Grow makes the tree of the root qdisc, which is ours, by adding and changing classes.
// Leaves that stay keep their packets. Attach a program that selects the tree's leaves
// after Grow and before Prune.
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
			next.Options = nil // the size table is all that HTB can change
		}
		err = next.send(unix.RTM_NEWQDISC, 0, index)
	}
	if err != nil {
		return cause.Of(fmt.Errorf("%s qdisc: %w", t.Kind, err))
	}
	if t.Kind == FQ {
		return nil
	}
	for _, class := range t.inner() {
		if err := class.add(index, 0); err != nil {
			return fmt.Errorf("HTB %v: %w", class, err)
		}
	}
	classes, err := dump(unix.RTM_GETTCLASS, index, 0)
	if err != nil {
		return err
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

// Prune removes our classes that the tree does not have, with the packets in them.
func (t *Tree) Prune(index int) error {
	keep := map[uint32]bool{}
	for _, class := range t.inner() {
		keep[class.Handle] = true
	}
	for _, l := range t.Leaves {
		keep[Handle(l.ID)] = true
	}
	classes, err := dump(unix.RTM_GETTCLASS, index, 0)
	if err != nil {
		return err
	}
	classes = slices.DeleteFunc(classes, func(c Object) bool { return c.Handle>>16 != Major || c.Kind != HTB || keep[c.Handle] })
	inOrder(classes)
	for _, c := range slices.Backward(classes) {
		if err := c.send(unix.RTM_DELTCLASS, 0, index); err != nil {
			return fmt.Errorf("HTB class %x:%x: %w", c.Handle>>16, c.Handle&0xffff, err)
		}
	}
	return nil
}
