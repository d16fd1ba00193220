package metrics

import (
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/live"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
	"github.com/a-seed-32e5a53f/shaper/dataplane/tap"
	"github.com/a-seed-32e5a53f/shaper/meter/shared"
)

// Observation is the state of one shaper at one moment, for its metrics.
type Observation struct {
	About       kernel.About
	name        string      // name of the policy
	sample      live.Sample // empty unless the shaper is attached
	links       []dataplane.LinkState
	lost        tap.Lost // packets lost by a shaper tap
	attached    bool
	effective   bool   // all packets go through the program
	problem     string // reason why they do not, "" if effective
	unconfirmed bool   // the policy rolls back unless it is confirmed
	Shares      []shared.Status
	Changes     live.ChangeCounts
	State       *bool // the state was saved at the last attempt; nil: no state is kept
	// ReloadFailed means that the process could not reload its policy, and that none was loaded since
	ReloadFailed bool

	plan  *compiled.Plan // of the policy in force
	ruled bool           // customers have quotas or schedules

	counters customerCounters            // of customers; nil: not wanted, or already used
	policy   func() *policyfile.Compiled // policy in force; nil: the policy of the label
	top      []customer                  // customers with metrics of their own; nil: not wanted
	topError error                       // reason why top is empty
}

// Observe reads a shaper with a policy. problem is the reason why not all packets go through it, or "".
func Observe(sh live.Handle, policy *policyfile.Compiled, problem string) (Observation, error) {
	about := sh.Info()
	l, err := policyfile.SourceOf(about.Label)
	if err != nil {
		return Observation{}, err
	}
	out := Observation{
		About: *about, name: l.Name, attached: true, effective: problem == "", problem: problem,
		unconfirmed: !about.Until.IsZero(), lost: sh.Lost(), plan: policy.Plan, ruled: l.Ruled,
	}
	if out.sample, err = sh.Sample(); err == nil && len(about.Outline.Links) > 0 {
		_, out.links, err = sh.Links()
	}
	return out, err
}

// Absent returns the observation of a detached shaper.
func Absent(name string, direction dataplane.Direction, why string) Observation {
	return Observation{About: kernel.About{Interface: name, Direction: direction}, problem: why}
}

// AddCustomers adds access to the counters of the customers of a shaper in the kernel, which a
// handler reads. policy returns its policy, or is nil if unknown: then the handler compiles it.
func (o *Observation) AddCustomers(sh *kernel.Shaper, policy func() *policyfile.Compiled) error {
	c, err := sh.CustomerCounters()
	if c == nil || err != nil {
		return err
	}
	o.counters, o.policy = c, policy
	return nil
}

// AddTapCustomers adds the counters of the customers of a shaper tap.
func (o *Observation) AddTapCustomers(sh *live.LocalTap, c *live.LockedChanger) {
	if policy := sh.CustomerPlan(c); policy != nil {
		o.policy, o.counters = policy, tapCounters{sh}
	}
}
