package stats

import (
	"slices"

	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/hostbudget"
)

// HostBudget is a budget of the host with the parameters in force.
type HostBudget struct {
	Name   string   `json:"name"`
	Params string   `json:"parameters"` // in the syntax of --meter
	Users  []string `json:"users"`      // all users, including this shaper
	// two users that both charge a packet which this host forwards
	Warning string `json:"warning,omitempty"`
}

// hostBudgets returns the budgets of the host with the given names.
func hostBudgets(names []string) (out []HostBudget) {
	if len(names) == 0 {
		return nil
	}
	all, err := hostbudget.InUse()
	if err != nil {
		return nil // attaching and detaching report the error
	}
	for _, b := range all {
		if slices.Contains(names, b.Name) {
			out = append(out, HostBudget(b))
		}
	}
	return out
}
