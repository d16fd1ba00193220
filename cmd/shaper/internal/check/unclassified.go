package check

import (
	"fmt"
	"strings"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/lint"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
)

// checkUnclassifiedJSON describes unclassified packets and their action.
type checkUnclassifiedJSON struct {
	Packets []string `json:"packets"`
	Action  string   `json:"action"` // pass or drop
	// classes to add before otherwise: drop, which drops ARP and neighbor discovery, too
	Before []string `json:"before_drop,omitempty"`
}

func unclassified(policy *policyfile.Compiled) checkUnclassifiedJSON {
	_, classes := lint.NotSpared(policy.Plan)
	out := checkUnclassifiedJSON{append([]string{}, lint.Unclassified(policy.Plan)...), "pass", classes}
	if policy.Policy.DropUnclassified {
		out.Action = "drop"
	}
	return out
}

// unclassified prints unclassified packets and their action, if there are any.
func (p policyPrinter) unclassified(policy *policyfile.Compiled) {
	u := unclassified(policy)
	if len(u.Packets) == 0 {
		return
	}
	action := "drop"
	if u.Action == "pass" {
		action = "pass unmetered (to drop them, add otherwise: drop to the policy"
		if names, classes := lint.NotSpared(policy.Plan); names != nil {
			action += fmt.Sprintf("; it drops %s, too: add %s", strings.Join(names, " and "),
				strings.Join(classes, " and "))
		}
		action += ")"
	}
	p.Printf("\nunclassified (row -)\n  packets %s\n  action  %s\n", strings.Join(u.Packets, ", "), action)
}
