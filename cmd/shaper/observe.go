package main

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
	"github.com/a-seed-32e5a53f/shaper/meter/shared"
)

// observation is one shaper at one moment, with all that its metrics need.
type observation struct {
	about       kernel.About
	name        string            // of the policy
	policy      *dataplane.Policy // nil if it is not attached: nothing is counted
	sample      sample
	attached    bool
	effective   bool   // packets really go through the program
	problem     string // why they do not
	unconfirmed bool   // it rolls back unless confirmed
	shares      []shared.Status
}

// observer reads shapers for a board. It belongs to the goroutine that owns the
// shapers. A policy is compiled again only after another one was loaded.
type observer struct{ known [2]known } // by direction

type known struct {
	loaded time.Time
	policy *compiled
}

// learn passes the policy that a shaper has now, so that it need not be compiled
// again.
func (o *observer) learn(about *kernel.About, policy *compiled) {
	o.known[about.Direction] = known{about.Loaded, policy}
}

// policy is that of a shaper.
func (o *observer) policy(about *kernel.About) (*compiled, error) {
	k := &o.known[about.Direction]
	if k.policy == nil || !k.loaded.Equal(about.Loaded) {
		policy, err := policyOf(about.Label)
		if err != nil {
			return nil, err
		}
		o.learn(about, policy)
	}
	return k.policy, nil
}

// observe reads a shaper. problem is why not all packets go through it, "" if they
// do.
func (o *observer) observe(sh live, problem string) (observation, error) {
	about := sh.Info()
	policy, err := o.policy(about)
	if err != nil {
		return observation{}, err
	}
	out := observation{
		about: *about, name: policy.Name, policy: policy.Policy,
		attached: true, effective: problem == "", problem: problem, unconfirmed: !about.Until.IsZero(),
	}
	out.sample, err = take(sh, len(out.policy.Classes))
	return out, err
}

// absent is the observation of a shaper that is not attached now.
func absent(name string, direction kernel.Hook, why string) observation {
	return observation{about: kernel.About{Interface: name, Direction: direction}, problem: why}
}

// observe reads a direction of shaper tap.
func (c *carried) observe() (observation, error) {
	now := c.snapshot()
	var l label
	if err := json.Unmarshal(now.About.Label, &l); err != nil {
		return observation{}, fmt.Errorf("label: %w", err)
	}
	return observation{
		about: now.About, name: l.Name, policy: now.policy, attached: true, effective: true,
		sample: sample{stats: now.Stats, tokens: now.Tokens, keys: now.Keys, queues: now.Queues},
	}, nil
}
