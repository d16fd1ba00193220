package main

import (
	"fmt"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// keyTotals counts the keys of a meter that has one.
type keyTotals struct {
	Name    string `json:"name"`
	Keys    int    `json:"keys"` // known now
	Evicted uint64 `json:"evicted"`
	Refused uint64 `json:"refused"` // packets
	meter   *dataplane.Meter
}

// String is for people.
func (k keyTotals) String() string {
	return fmt.Sprintf("%s of %d, %d forgotten, %d refused", countKeys(k.Keys), policyfile.Keys(k.meter), k.Evicted, k.Refused)
}

func countKeys(n int) string {
	if n == 1 {
		return "1 key"
	}
	return fmt.Sprintf("%d keys", n)
}

// keys asks an engine for the keys of all meters that have one, in the order in
// which classes lead to them.
func (c *compiled) keys(e engine) []keyTotals {
	var out []keyTotals
	for _, m := range c.led() {
		if m.Per.By == dataplane.NoKey {
			continue
		}
		if n, ok := e.Keys(m); ok {
			out = append(out, keyTotals{m.Name, n.Keys, n.Evicted, n.Refused, m})
		}
	}
	return out
}

// over warns of meters that saw more keys than they are to know, where the engine
// forgets in its own way then.
func (c *compiled) over(e engine) (warnings []string, err error) {
	for _, m := range c.led() {
		n, err := e.Over(m)
		if err != nil {
			return nil, err
		}
		if n > 0 {
			warnings = append(warnings, fmt.Sprintf("meter %s met more than its %s: above that the kernel forgets others than --engine go does, "+
				"and colors may differ from there and from live ones; give it more keys", m.Name, countKeys(policyfile.Keys(m))))
		}
	}
	return warnings, nil
}

// leadsTo says whether a chain leads to a meter.
func leadsTo(chain, m *dataplane.Meter) bool {
	for chain != nil && chain != m {
		chain = chain.Then
	}
	return chain == m
}

// led are the meters that classes lead to, each once.
func (c *compiled) led() []*dataplane.Meter {
	var out []*dataplane.Meter
	seen := map[*dataplane.Meter]bool{}
	for i := range c.Policy.Classes {
		for m := c.Policy.Classes[i].Meter; m != nil && !seen[m]; m = m.Then {
			seen[m] = true
			out = append(out, m)
		}
	}
	return out
}
