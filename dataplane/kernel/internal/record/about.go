package record

import (
	"encoding/json"
	"time"

	"github.com/a-seed-32e5a53f/shaper/bpf"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/hook"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/iface"
	"github.com/cilium/ebpf"
)

// About describes an attached shaper. It is stored beside the program as a JSON record,
// so that other processes can find the shaper, read its counters and change it. A
// change of its format must change Version.
type About struct {
	Version   int                 // Version of the writing process
	Begun     bool                // true until the loading change is complete
	Ending    bool                `json:",omitempty"` // shaper itself is detaching the program
	Interface string              // current name of the interface
	Index     int                 // index of the interface
	Namespace uint64              // cookie of the network namespace, when attached
	Direction dataplane.Direction // Egress or Ingress
	Program   ebpf.ProgramID      `json:"-"` // ID of the attached program
	Since     time.Time           // time of the attachment
	Loaded    time.Time           // time when the current policy was loaded
	Dry       bool                // kernel.Config.Dry
	Pinned    bool                // kernel.Config.Pin
	Process   int                 // ID of the attaching process
	Peer      string              `json:",omitempty"` // for a TAP plane: the device on its other side
	Label     json.RawMessage     // kernel.Config.Label
	Before    *Before             `json:",omitempty"` // configuration of a rollback; nil detaches
	Until     time.Time           `json:",omitzero"`  // time of the armed rollback; zero if none is armed
	Expires   uint64              `json:",omitempty"` // deadline of Expire, CLOCK_MONOTONIC ns; 0 for none
	AskedGSO  uint32              `json:",omitempty"` // kernel.Config.GSOLimit
	GSOLimit  uint32              `json:",omitempty"` // GSO limit needed by this shaper, bytes; 0 for none

	Place   hook.Place       // where the program is attached
	Outline compiled.Outline // names of the policy's parts
	Slots   []uint32         // of the counters, by class of the outline
	Stages  packed[Stage]    // by stage of the outline

	Asked  Pacer         `json:",omitempty"` // kernel.Config.Pacer
	Pacer  Pacer         `json:",omitempty"` // root qdisc in use; "" without queues
	MQ     bool          `json:",omitempty"` // the root qdisc before was mq: FQ is below one like it
	Fair   FairScheduler `json:",omitempty"` // "" without fair queues
	Queued []Queue       `json:",omitempty"` // by queue of the outline
	Links  []uint16      `json:",omitempty"` // HTB class minor, by link of the outline
	Leaves bool          `json:",omitempty"` // queues of customers have HTB classes
	// number of changes of the tree of HTB since the policy was loaded; counted with Leaves
	TreeChanges uint64 `json:",omitempty"`
	// packets dropped by leaves of customers that were removed since then
	RetiredDrops uint64 `json:",omitempty"`
	Ring         int    `json:",omitempty"` // total number of ring entries

	Customers uint8     `json:",omitempty"` // enum customer_key of bpf/src/policy.h; 0 without customers
	Cgroups   []Cgroup  `json:",omitempty"` // those that the policy names
	Lost      Discarded `json:"-"`          // packets dropped when queues were removed
}

// Cgroup is a cgroup v2 as the programs know it.
type Cgroup struct {
	Path string
	ID   uint64 // 0: it did not exist when the policy was loaded, and no packet belongs to it
}

// Redirected reports whether ingress packets are redirected through an ifb device of
// the shaper, which queues them.
func (a *About) Redirected() bool { return a.Place.Index != 0 && a.Place.Index != a.Index }

// Before is the configuration of a rollback. The fields are those of About.
type Before struct {
	Label       json.RawMessage
	Dry, Pinned bool
	AskedGSO    uint32
	Expires     uint64 `json:",omitempty"`
	Asked       Pacer  `json:",omitempty"`
}

// RollbackGoal returns the current configuration.
func (a *About) RollbackGoal() *Before {
	return &Before{
		Label: a.Label, Dry: a.Dry, Pinned: a.Pinned, Asked: a.Asked, AskedGSO: a.AskedGSO,
		Expires: a.Expires,
	}
}

// Apply sets the configuration of a to b, which is that of a rollback or a new one.
func (a *About) Apply(b *Before) {
	a.Label, a.Dry, a.Pinned, a.Asked, a.AskedGSO, a.Expires = b.Label, b.Dry, b.Pinned, b.Asked, b.AskedGSO,
		b.Expires
}

type Stage struct {
	bpf.ShaperStage
	Room uint32 `json:",omitempty"` // capacity of the key table; 0 without one
}

type Queue struct {
	bpf.ShaperQueue
	Feeder
}

// BpfStages returns the stages in the form of the program.
func (a *About) BpfStages() []bpf.ShaperStage {
	out := make([]bpf.ShaperStage, len(a.Stages))
	for i, s := range a.Stages {
		out[i] = s.ShaperStage
	}
	return out
}

// Identity returns the identity of the shaper's interface.
func (a *About) Identity() iface.ID { return iface.ID{Namespace: a.Namespace, Index: a.Index} }

// NeedsOtherDevice reports whether a program with this pacer must be attached to
// another device: at ingress, a program with queues runs on an ifb device. A dry run
// queues nothing.
func (a *About) NeedsOtherDevice(pacer Pacer, dry bool) bool {
	return a.Direction == dataplane.Ingress && a.Place.Index != 0 && (pacer != "" && !dry) != a.Redirected()
}

// ArmRollback arms a rollback to before at time until; a zero until does nothing. If a
// rollback is already armed, its goal is kept and only its time changes.
func (a *About) ArmRollback(before *Before, until time.Time) {
	if until.IsZero() {
		return
	}
	if a.Until.IsZero() {
		a.Before = before
	}
	a.Until = until.Round(0)
}

// Budgets returns the names of the shaper's host budgets.
func (a *About) Budgets() []string { return a.budgetsIn(StoreShared) }

// OnServers returns the names of the budgets on servers whose leases the shaper follows.
func (a *About) OnServers() []string { return a.budgetsIn(StoreLeased) }

func (a *About) budgetsIn(store int32) (names []string) {
	for i := range a.Stages {
		if s := &a.Stages[i]; s.Table == store {
			names = append(names, a.Outline.Stages[i].BudgetName)
		}
	}
	return names
}

// The map with the state of a stage without a table of keys: enum store in bpf/src/policy.h.
const (
	StorePrivate  = -1 // states
	StoreShared   = -2 // budgets
	StoreLeased   = -3 // leases
	StoreCustomer = -4 // customers
)

// InStates reports whether a stage with this table uses a slot in the map states. A stage with keys
// uses one for packets without a key.
func InStates(table int32) bool { return table >= StorePrivate }

// PaceOf returns the rate of a queue.
func PaceOf(q *bpf.ShaperQueue) *bpf.ShaperPace { return &q.Paces[q.Version&1] }
