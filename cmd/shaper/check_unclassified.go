package main

import (
	"strings"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/lint"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
)

// checkUnclassifiedJSON describes unclassified packets and their action.
type checkUnclassifiedJSON struct {
	Packets []string `json:"packets"`
	Action  string   `json:"action"` // pass or drop
}

func unclassified(policy *policyfile.Compiled) checkUnclassifiedJSON {
	out := checkUnclassifiedJSON{append([]string{}, lint.Unclassified(policy.Plan)...), "pass"}
	if policy.Policy.DropUnclassified {
		out.Action = "drop"
	}
	return out
}

// unclassified prints unclassified packets and their action, if there are any.
func (p *printer) unclassified(policy *policyfile.Compiled) {
	u := unclassified(policy)
	if len(u.Packets) == 0 {
		return
	}
	action := "drop"
	if u.Action == "pass" {
		action = "pass unmetered (to drop them, add otherwise: drop to the policy)"
	}
	p.Printf("\nunclassified (row -)\n  packets %s\n  action  %s\n", strings.Join(u.Packets, ", "), action)
}
