package dataplane

import (
	"time"

	"github.com/a-seed-32e5a53f/shaper/meter"
)

// Count counts packets and their metered bytes.
type Count struct {
	Packets int64 `json:"packets"`
	Bytes   int64 `json:"bytes"`
}

// Add adds d to the count.
func (c *Count) Add(d Count) {
	c.Packets += d.Packets
	c.Bytes += d.Bytes
}

// Plus returns the sum of both counts.
func (c Count) Plus(d Count) Count { return Count{c.Packets + d.Packets, c.Bytes + d.Bytes} }

// Cause is the cause of a drop.
type Cause uint8

const (
	CauseColor Cause = iota // the action of the packet's color is drop
	CauseECN                // the action is CEOrDrop, and the packet is not ECN-capable
	CauseQueue              // the queue was full
	CauseWRED               // dropped early by WRED
	CauseCoDel              // dropped early by CoDel
	Causes                  // the number of causes
)

// Unclassified is the name of the cause of ClassStats.UntakenDropped in tables. It is not a
// Cause, because unclassified packets have no color.
const Unclassified = "unclassified"

// String returns the cause as it is spelled in tables.
func (c Cause) String() string {
	return enumName(c, "Cause", []string{"color", "ecn", QueueFull.String(), WRED.String(), CoDel.String()})
}

// ClassStats counts the packets of one class, or unclassified packets. Arrays are
// indexed by color.
type ClassStats struct {
	Colors [3]Count         // all packets, by color after the last meter
	Drops  [3][Causes]Count // dropped packets, by cause
	Marked [3]Count         // sent packets with a mark
	CE     [3]Count         // sent packets marked Congestion Experienced
	Queued [3]Count         // sent packets that were queued

	Untaken        Count // unclassified packets; zero for a class
	UntakenDropped Count // unclassified packets dropped by Policy.DropUnclassified

	// Behind counts packets of unknown color dropped by the kernel's qdisc. It counts no bytes. If
	// the color is known, the packets are in Drops.
	Behind Count
}

// QueueState is the backlog of a queue.
type QueueState struct {
	Name  string
	Delay time.Duration // queueing delay of a packet arriving now; 0 for a queue of a link
	Bytes int64         // backlog, bytes

	// Dropped is the number of packets dropped by the kernel's qdisc because it was full. They are
	// also counted as queued, and as dropped by Class: the only class with packets ever sent to the
	// queue, or "" if there are several.
	Dropped int64
	Class   string

	Sent Count // packets sent by HTB, with bytes as HTB counts them; zero without HTB
}

// LinkState is the state of a link.
type LinkState struct {
	Name       string
	Above      int        // index of the link above, or -1
	Rate       meter.Rate // its own maximum; unset for none
	Guaranteed meter.Rate // rate while all queues of the tree are busy, in whole bytes per second
	Reach      meter.Rate // maximum rate: the lowest of its own and those of the links above

	// Missing means that another program removed the link's class: its numbers are unknown.
	Missing bool

	// Bytes are metered ones, in the kernel as HTB counts them.
	Sent    Count
	Backlog Count // queued packets of all queues below

	// Held is the total time during which packets were queued below the link and its own rate was not
	// free, because of earlier packets. It is unknown in the kernel.
	Held      time.Duration
	HeldKnown bool
}

// LinksInOrder returns the indexes of links, each link before those below it.
func LinksInOrder(list []LinkState) (order []int) {
	below := map[int][]int{}
	for i := range list {
		below[list[i].Above] = append(below[list[i].Above], i)
	}
	var add func(link int)
	add = func(link int) {
		for _, i := range below[link] {
			order = append(order, i)
			add(i)
		}
	}
	add(-1)
	return order
}

// Dropped returns the dropped packets of a color, for all causes.
func (s *ClassStats) Dropped(c meter.Color) Count { return Sum(s.Drops[c][:]) }

// AllDropped returns all dropped packets, unclassified ones included.
func (s *ClassStats) AllDropped() Count {
	sum := s.Behind.Plus(s.UntakenDropped)
	for c := range s.Drops {
		sum.Add(s.Dropped(meter.Color(c)))
	}
	return sum
}

// Total returns all packets of the class, or all unclassified packets.
func (s *ClassStats) Total() Count { return Sum(s.Colors[:]).Plus(s.Untaken) }

// Sum returns the sum of counts, such as one for each color.
func Sum(counts []Count) Count {
	var sum Count
	for _, c := range counts {
		sum.Add(c)
	}
	return sum
}

// CustomerStats counts the packets of one customer treated by its plan.
type CustomerStats struct {
	Colors  [3]Count // all packets, by color after the last meter
	Dropped Count    // for any cause
}

// Total returns all packets.
func (s *CustomerStats) Total() Count { return Sum(s.Colors[:]) }
