package metrics

import (
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/live"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
	"github.com/a-seed-32e5a53f/shaper/meter/shared"
)

// Observation is one shaper at one moment, with all that its metrics need.
type Observation struct {
	About       kernel.About
	name        string      // of the policy
	sample      live.Sample // nothing is counted unless it is attached
	attached    bool
	effective   bool   // packets really go through the program
	problem     string // why they do not
	unconfirmed bool   // it rolls back unless confirmed
	Shares      []shared.Status
}

// Observe reads a shaper. problem is why not all packets go through it, "" if they
// do.
func Observe(sh live.Shaper, problem string) (Observation, error) {
	about := sh.Info()
	l, err := policyfile.SourceOf(about.Label)
	if err != nil {
		return Observation{}, err
	}
	out := Observation{
		About: *about, name: l.Name, attached: true, effective: problem == "", problem: problem, unconfirmed: !about.Until.IsZero(),
	}
	out.sample, err = live.Read(sh)
	return out, err
}

// Absent is the observation of a shaper that is not attached now.
func Absent(name string, direction kernel.Direction, why string) Observation {
	return Observation{About: kernel.About{Interface: name, Direction: direction}, problem: why}
}
