package qdisc

import (
	"errors"
	"fmt"
	"maps"
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

// Fair configures fq_codel, or cake for fairness by host.
type Fair struct {
	CoDel   queue.CoDel // of each flow
	ECN     bool        // mark packets of ECN-capable flows instead of dropping them; cake always does
	Packets uint32      // maximum backlog of all flows, packets; for fq_codel
	Quantum uint32      // bytes that a flow may send per turn; for fq_codel
	Flows   uint32      // number of queues for flows; 0: the kernel's default; for fq_codel
	Hosts   Hosts
}

// Hosts are the hosts that get the same, each shared by its flows. The values are those of
// TCA_CAKE_FLOW_MODE.
type Hosts uint32

const (
	NoHosts    Hosts = 0
	SourceOnly Hosts = 1 // without fairness among the flows of a host, like the next
	DestOnly   Hosts = 2
	HostPairs  Hosts = 3
	Sources    Hosts = 5
	Dests      Hosts = 6
)

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
	classes, err := dump(unix.RTM_GETTCLASS, index, Major<<16) // without the flows of fq_codel
	if err != nil {
		return err
	}
	var list []request
	wanted := map[uint32]uint32{} // handles of the classes above, by handle
	for _, class := range t.inner() {
		wanted[class.Handle] = class.Parent
		list = append(list, adding(class, 0))
	}
	there := make(map[uint32]bool, len(classes))
	for i := range classes {
		there[classes[i].Handle] = true
	}
	for i := range t.Leaves {
		class := t.leaf(&t.Leaves[i])
		qdisc := t.Leaves[i].qdisc(!there[class.Handle])
		wanted[class.Handle] = class.Parent
		list = append(list, adding(class, 0), adding(qdisc, unix.NLM_F_REPLACE))
	}
	if err := removeMoved(classes, wanted, index); err != nil {
		return err
	}
	return sendAll(index, list)
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

// removeMoved removes the classes that are below another parent than the wanted one, with all classes
// below them: HTB cannot move a class. Grow finds such a class only if another program made it.
func removeMoved(classes []Object, wanted map[uint32]uint32, index int) error {
	inOrder(classes)
	below := map[uint32]bool{}
	var list []request
	for i := range classes {
		c := &classes[i]
		parent, known := wanted[c.Handle]
		if below[c.Handle] = known && parent != c.Parent || below[c.Parent]; below[c.Handle] {
			list = append(list, request{c, unix.RTM_DELTCLASS, 0})
		}
	}
	slices.Reverse(list)
	return sendAll(index, list)
}

// Pruned are the packets of removed classes.
type Pruned struct {
	Lost  uint32            // they were in the classes
	Drops map[uint16]uint64 // the qdiscs in the classes had dropped them before, by class ID
}

// Prune removes our classes missing in t, which no program selects any more. It waits until their packets
// have left, but not longer than patience.
func (t *Tree) Prune(index int, patience time.Duration) (out Pruned, err error) {
	wanted := map[uint32]bool{}
	for _, class := range t.inner() {
		wanted[class.Handle] = true
	}
	for _, l := range t.Leaves {
		wanted[Handle(l.ID)] = true
	}
	var classes []Object
	for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		if classes, err = dump(unix.RTM_GETTCLASS, index, Major<<16); err != nil {
			return out, err
		}
		classes = slices.DeleteFunc(classes, func(c Object) bool { return c.Kind != HTB || wanted[c.Handle] })
		out.Lost = 0
		for i := range classes {
			s, err := classes[i].counted()
			if err != nil {
				return out, err
			}
			out.Lost += s.Queued
		}
		if out.Lost == 0 || time.Now().After(end) {
			break
		}
	}
	if len(classes) == 0 {
		return out, nil
	}
	if out.Drops, err = LeafDrops(index); err != nil {
		return out, err
	}
	maps.DeleteFunc(out.Drops, func(id uint16, _ uint64) bool { return wanted[Handle(id)] })
	inOrder(classes)
	var list []request
	for i := range classes {
		list = append(list, request{&classes[i], unix.RTM_DELTCLASS, 0})
	}
	slices.Reverse(list)
	return out, sendAll(index, list)
}
