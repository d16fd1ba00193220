package pipeline

import (
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
)

// LackRuns decides for which packets Verdict.Lack is measured. A run is a sequence of packets of
// one class and color with gaps below a limit. The largest Lack of a run is exact: a packet is
// skipped only if it cannot lack more than an earlier one of its run.
type LackRuns struct {
	gap  uint64    // ns
	runs []lackRun // by class and color
	each [][3]bool // by class and color: packets of a run may have different fates, so each one is measured
}

type lackRun struct {
	last int64 // time of the latest packet, ns
	most int   // largest lack
}

// NewLackRuns returns the runs of a plan's classes. With gap 0 every packet is measured.
func NewLackRuns(plan *compiled.Plan, gap time.Duration) *LackRuns {
	l := &LackRuns{
		gap: uint64(gap), runs: make([]lackRun, 3*len(plan.Classes)),
		each: make([][3]bool, len(plan.Classes)),
	}
	for i := range plan.Classes {
		class := &plan.Classes[i]
		for color := range class.Actions {
			a := &class.Actions[color]
			l.each[i][color] = class.Customers || a.ECN == dataplane.CEOrDrop || a.Queue >= 0
		}
	}
	return l
}

// Skip reports whether the lack of a packet of n bytes or packets need not be measured.
func (l *LackRuns) Skip(v *dataplane.Verdict, n int) bool { return n <= l.most(v) }

// most adds a packet to its run, and returns the largest lack before it, or -1 if it is the first one.
func (l *LackRuns) most(v *dataplane.Verdict) int {
	r := &l.runs[3*int(v.Class)+int(v.Color)]
	if uint64(v.Now)-uint64(r.last) >= l.gap {
		r.most = -1
	}
	r.last = v.Now
	return r.most
}

// Set sets the lack of a packet that Skip did not skip.
func (l *LackRuns) Set(v *dataplane.Verdict, lack int32) {
	v.Lack = lack
	if r := &l.runs[3*int(v.Class)+int(v.Color)]; !l.each[v.Class][v.Color] {
		r.most = max(r.most, int(lack))
	}
}
