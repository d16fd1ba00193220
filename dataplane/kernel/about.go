package kernel

import (
	"encoding/json"
	"time"

	"github.com/cilium/ebpf"

	"github.com/a-seed-32e5a53f/shaper/bpf"
)

// String returns the direction as people spell it.
func (h Hook) String() string {
	if h == Egress {
		return "egress"
	}
	return "ingress"
}

// About is what a shaper keeps beside its program, so that others find it and
// can read its counters.
type About struct {
	Interface string
	Namespace uint64         // inode of its network namespace
	Direction Hook           // Egress or Ingress
	Program   ebpf.ProgramID `json:"-"`
	Since     time.Time      // when it was attached
	Loaded    time.Time      // when its policy was
	Dry       bool
	Pinned    bool
	Process   int             // that attached it
	Label     json.RawMessage // the caller's
	// Before is what to go back to at Until, unless that is confirmed; nil
	// for nothing attached.
	Before *Before   `json:",omitempty"`
	Until  time.Time `json:",omitzero"`
	GSO    *GSO      `json:",omitempty"` // nil where the device is as it was

	Place   place
	Classes []classRecord
	Stages  []stageRecord
}

// Before is what a shaper was before it was changed.
type Before struct {
	Label       json.RawMessage
	Dry, Pinned bool
	GSOLimit    uint32
}

// Now is what it is.
func (a *About) Now() *Before {
	b := &Before{Label: a.Label, Dry: a.Dry, Pinned: a.Pinned}
	if a.GSO != nil {
		b.GSOLimit = a.GSO.Limit
	}
	return b
}

// GSO is the limit that a device has on what its stack hands down at once, and
// those it had, in bytes.
type GSO struct{ Limit, Max, MaxIPv4 uint32 }

type classRecord struct {
	Name string
	bpf.ShaperClass
}

type stageRecord struct {
	Name string
	bpf.ShaperStage
}

// record notes which slots belong to whom.
func (a *About) record(g *image) {
	a.Classes, a.Stages = nil, nil
	for i, c := range g.classes {
		a.Classes = append(a.Classes, classRecord{g.policy.Classes[i].Name, c})
	}
	for i, s := range g.stages {
		a.Stages = append(a.Stages, stageRecord{g.meters[i].Name, s})
	}
}

// classes are those of the program, in the policy's order.
func (a *About) classes() []bpf.ShaperClass {
	out := make([]bpf.ShaperClass, len(a.Classes))
	for i, c := range a.Classes {
		out[i] = c.ShaperClass
	}
	return out
}

// chain returns the indexes of the stages that a class leads to.
func (a *About) chain(class int) []int {
	var out []int
	for i := a.Classes[class].Stage; i >= 0 && len(out) < MaxChain; i = a.Stages[i].Then {
		out = append(out, int(i))
	}
	return out
}
