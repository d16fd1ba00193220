package main

import (
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
	"github.com/a-seed-32e5a53f/shaper/meter/shared"
)

// observation is one shaper at one moment, with all that its metrics need.
type observation struct {
	about       kernel.About
	name        string // of the policy
	sample      sample // nothing is counted unless it is attached
	attached    bool
	effective   bool   // packets really go through the program
	problem     string // why they do not
	unconfirmed bool   // it rolls back unless confirmed
	shares      []shared.Status
}

// observe reads a shaper. problem is why not all packets go through it, "" if they
// do.
func observe(sh live, problem string) (observation, error) {
	about := sh.Info()
	l, err := policyfile.SourceOf(about.Label)
	if err != nil {
		return observation{}, err
	}
	out := observation{
		about: *about, name: l.Name, attached: true, effective: problem == "", problem: problem, unconfirmed: !about.Until.IsZero(),
	}
	out.sample, err = take(sh)
	return out, err
}

// absent is the observation of a shaper that is not attached now.
func absent(name string, direction kernel.Hook, why string) observation {
	return observation{about: kernel.About{Interface: name, Direction: direction}, problem: why}
}
