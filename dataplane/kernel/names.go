package kernel

import (
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/engine"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/iface"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/image"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/record"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/rundir"
)

// About describes an attached shaper. It is stored beside the program as a JSON record, so
// other processes can find the shaper, read its counters and change it.
type About = record.About

// Leftover is something of shaper that no attached shaper needs, or a shaper whose record this
// version cannot read.
type Leftover = record.Leftover

// Discarded counts the packets dropped because their queues were removed.
type Discarded = record.Discarded

// Reading holds the counters of a shaper at one time. The difference of two readings gives
// rates.
type Reading = image.Reading

// MinReadingAge is the minimum age of a reading for computing rates. A rate over less time depends
// on single packets.
const MinReadingAge = image.MinReadingAge

// Directions of a shaper's packets.
const (
	Egress  = dataplane.Egress  // packets sent through the interface
	Ingress = dataplane.Ingress // packets received by the interface
)

// Pacer is the root qdisc holding queued packets until they depart.
type Pacer = record.Pacer

const (
	FQ  = record.FQ  // the program sets a packet's departure time in skb->tstamp
	HTB = record.HTB // the program sets the class of a packet's queue in skb->priority
)

// Schedulers of the flows of fair queues, see About.Fair.
const (
	FairByFQCoDel = record.FairByFQCoDel // fq_codel in an HTB leaf
	FairByCake    = record.FairByCake    // cake in an HTB leaf, for fairness by host
	FairByBoth    = record.FairByBoth    // both, for different queues
	FairByHTB     = record.FairByHTB     // HTB leaves by flow hash, in a kernel without fq_codel
)

// Limits of the programs.
const (
	MaxClasses = image.MaxClasses // classes
	MaxChain   = image.MaxChain   // meters in one chain
	MaxQueues  = image.MaxQueues  // queues
	MaxTables  = image.MaxTables  // meters with keys
)

// StateDir is the directory of locks, journals and the registry of budgets. It is the same
// in all network namespaces, because ip netns exec does not replace /run.
const StateDir = rundir.StateDir

// ErrNoRoom reports a lack of room in the maps for more plans, customers or prefixes. A reload
// makes larger ones.
var ErrNoRoom = image.ErrNoRoom

// Now returns the current time on the clock of leases and of the programs:
// CLOCK_MONOTONIC, in ns.
func Now() int64 { return engine.Now() }

// Identity identifies an interface independently of its name. It is comparable.
type Identity = iface.ID

// NoInterfaceError reports a missing interface of this name.
type NoInterfaceError = iface.NoInterfaceError

// Identify returns the identity of the named interface. The error is a
// *NoInterfaceError if there is none.
func Identify(name string) (Identity, error) { return iface.Identify(name) }
