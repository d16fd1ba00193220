package kernel

import (
	"encoding/json"
	"time"

	"github.com/cilium/ebpf"

	"github.com/a-seed-32e5a53f/shaper/bpf"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/hook"
)

// String returns the direction as people spell it.
func (h Direction) String() string {
	if h == Egress {
		return "egress"
	}
	return "ingress"
}

// About is what a shaper keeps beside its program, so that others find it and
// can read its counters.
type About struct {
	Version   int            // recordVersion
	Begun     bool           // the change that loaded the program is not complete
	Ending    bool           `json:",omitempty"` // shaper itself detached the program
	Interface string         // its name now
	Index     int            // of the interface
	Namespace uint64         // cookie of its network namespace when it was attached
	Direction Direction      // Egress or Ingress
	Program   ebpf.ProgramID `json:"-"`
	Since     time.Time      // when it was attached
	Loaded    time.Time      // when its policy was
	Dry       bool
	Pinned    bool
	Process   int             // that attached it
	Peer      string          `json:",omitempty"` // the device of a plane in user space behind the interface
	Label     json.RawMessage // the caller's
	// Before is what to roll back to at Until, unless that is confirmed; nil
	// for nothing attached.
	Before   *Before   `json:",omitempty"`
	Until    time.Time `json:",omitzero"`
	Expires  uint64    `json:",omitempty"` // ns of CLOCK_MONOTONIC, from when the program does nothing; 0 for never
	AskedGSO uint32    `json:",omitempty"` // Config.GSOLimit
	GSOLimit uint32    `json:",omitempty"` // bytes that the stack hands down at once at most, as this shaper asks; 0 for any

	Place   hook.Place
	Outline dataplane.Outline // of the policy
	Classes []bpf.ShaperClass // by class of the outline; so are the next
	Stages  []stageRecord

	// Of queues.
	Asked  Pacer         `json:",omitempty"` // what is to hold packets; "" is what the kernel has
	Pacer  Pacer         `json:",omitempty"` // what holds them; "" for nothing
	Queued []queueRecord `json:",omitempty"`
	Links  []uint16      `json:",omitempty"` // classes of HTB
	Ring   int           `json:",omitempty"` // entries of all rings
	Lost   Lost          `json:"-"`
}

// iface is the interface that it was attached to.
func (a *About) iface() iface { return iface{a.Namespace, a.Index} }

// Redirected says whether what comes in goes through a device of shaper's own.
func (a *About) Redirected() bool { return a.Place.Index != 0 && a.Place.Index != a.Index }

// Before is what a shaper was before it was changed.
type Before struct {
	Label       json.RawMessage
	Dry, Pinned bool
	AskedGSO    uint32
	Expires     uint64 `json:",omitempty"`
	Asked       Pacer  `json:",omitempty"`
}

// now is what it is.
func (a *About) rollbackGoal() *Before {
	return &Before{Label: a.Label, Dry: a.Dry, Pinned: a.Pinned, Asked: a.Asked, AskedGSO: a.AskedGSO, Expires: a.Expires}
}

type stageRecord struct {
	bpf.ShaperStage
	Room uint32 `json:",omitempty"` // keys that its table has room for
}

type queueRecord struct {
	bpf.ShaperQueue
	feeder
}

// record notes which slots belong to whom.
func (a *About) recordImage(g *image) {
	a.Outline, a.Classes, a.Stages, a.Queued = *g.plan.Outline(), g.classes, nil, nil
	a.Links, a.Ring, a.Pacer = g.linkIDs, g.ring, g.pacer
	for i, q := range g.queues {
		a.Queued = append(a.Queued, queueRecord{q, g.feeders[i]})
	}
	for i, s := range g.stages {
		r := stageRecord{ShaperStage: s}
		if s.Table >= 0 {
			r.Room = tableSize(&g.plan.Stages[i])
		}
		a.Stages = append(a.Stages, r)
	}
}

// stages are those of the program.
func (a *About) bpfStages() []bpf.ShaperStage {
	out := make([]bpf.ShaperStage, len(a.Stages))
	for i, s := range a.Stages {
		out[i] = s.ShaperStage
	}
	return out
}
