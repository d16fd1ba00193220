package replay

import (
	"io"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

const (
	// DefaultMaxStep is far above the reordering of real captures and far below most steps of a
	// clock: of the unedited ones among 3,155 public captures, all but one stay below 3 ms, and
	// this one below 0.9 s.
	DefaultMaxStep = time.Second
	DefaultMaxGap  = 24 * time.Hour
)

// flushAfter is the pause of the input after which the output is flushed. A reader sees no delay,
// and at full speed a capture is still written in large parts.
const flushAfter = 100 * time.Millisecond

// Config holds the options of Run. The zero Config only meters.
type Config struct {
	Output io.Writer // receives the capture as it would have left the box; nil: none
	// A timestamp more than MaxStep behind, or more than MaxGap ahead of the previous ones means a
	// step of the capture's clock. Time then continues at the latest time so far: Packet.Time,
	// Verdict.Now and Verdict.Departure are Packet.Shift after the timestamps. The output keeps the
	// timestamps. 0: DefaultMaxStep, DefaultMaxGap
	MaxStep, MaxGap time.Duration
	Select          Selection // packets to replay
	// maximum segment size of TCP connections whose SYN is not in the capture, bytes; 0: unknown
	MSS int
	// UDPSegment is the payload of the segments of UDP super-packets, bytes; 0: unknown. The capture does not
	// contain it, and a flow may use several.
	UDPSegment int
	// FCS is the number of unmetered bytes behind each Ethernet frame: 4 for an FCS, at most
	// MaxFCS; 0: as the capture declares; NoFCS: none.
	FCS int
	// Shared is true for each class of the policy whose packets draw from the same tokens or the
	// same queue. Summary.Both counts their packets. nil: not counted.
	Shared []bool
	// Arrived is called for every replayed packet before it is metered and marked.
	// nil: not called.
	Arrived func(p *dataplane.Packet) error
	// Each is called for every replayed packet, in order. p.ID is the packet's
	// number in the input, from 1. The arguments are valid until it returns. nil:
	// not called.
	Each func(p *dataplane.Packet, v *dataplane.Verdict) error
	// Batch is called with the packets for which Each was called since its last call, and their
	// verdicts, before Settled is called for any of them. nil: not called.
	Batch func(packets []dataplane.Packet, verdicts []dataplane.Verdict)
	// Settled is called with the outcome of every packet still Waiting when Each was called,
	// identified by v.ID. nil: not called.
	Settled func(v *dataplane.Verdict) error
	// Flush is called after Output was written up to the last packet, because the input
	// paused for 100 ms. nil: not called.
	Flush     func() error
	FlushEach bool // flush after each packet
}

// Summary is the result of Run.
type Summary struct {
	Began   bool  // the file header was readable, so there is an output
	Packets int64 // replayed packets
	Read    int64 // packets of the input
	// the direction of a packet was known; valid if Config.Select gives a direction
	Directed   bool
	Unread     int64              // unclassified packets of unsupported link types
	UnreadLink dataplane.LinkType // of the last of them
	Undirected int64              // packets excluded for their unknown direction
	// First is the time of the first packet with a timestamp: the start of the capture. Last is the
	// largest time. Both are in ns since 1970, by the clock of the packet. Earlier packets are
	// metered at the earliest time expressible on their interface, usually 0.
	First, Last int64
	Steps       int64 // steps of the clock of the capture (Config.MaxStep)
	Both        Both
	Cut         int64 // super-packets cut into segments
	Warnings    []string
	Notes       []string // good to know, although nothing is wrong
}
