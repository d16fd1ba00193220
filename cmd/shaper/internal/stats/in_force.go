package stats

import (
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/changes"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/control"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/live"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
)

// listedChanges is the number of changes in the JSON of status; shaper set --json lists all.
const listedChanges = 1_000

// ChangesLook returns the changes in a shaper, and a function returning its policy, with or without
// them.
type ChangesLook func(live.Handle) (live.Changes, func() (*policyfile.Compiled, error), error)

// lookAtChanges is a ChangesLook for the shapers of any process.
func lookAtChanges(sh live.Handle) (live.Changes, func() (*policyfile.Compiled, error), error) {
	now, err := sh.Changes()
	return now, func() (*policyfile.Compiled, error) { return policyfile.CompileNames(sh.Info().Label) }, err
}

// changesJSON are the changes by shaper set and the API in the JSON of status and stats.
type changesJSON struct {
	Changes   []control.Change `json:"changes"`
	More      int              `json:"more_changes,omitempty"`      // changes not listed
	OverQuota int              `json:"over_quota,omitempty"`        // customers who have used their quota
	Added     int              `json:"customers_added,omitempty"`   // customers added or replaced while it ran
	Removed   int              `json:"customers_removed,omitempty"` // customers of the policy's file removed
	Problem   string           `json:"change_problem,omitempty"`
}

// changesIn returns the changes in force in a shaper. It compiles the policy only if there are any.
func changesIn(sh live.Handle, look ChangesLook) (out changesJSON) {
	out.Changes = []control.Change{}
	all, policyOf, err := look(sh)
	out.Problem, out.Added, out.Removed = all.Problem, all.Customers.Added, all.Customers.Removed
	var list []live.InForce
	if err == nil && len(all.Book)+len(all.Interrupted) > 0 {
		var policy *policyfile.Compiled
		if policy, err = policyOf(); err == nil {
			list, out.OverQuota = all.InForce(policy, time.Now())
		}
	}
	if err != nil {
		out.Problem = "changes by shaper set are unknown: " + err.Error()
	}
	for i := range list {
		if i == listedChanges {
			out.More = len(list) - i
			break
		}
		out.Changes = append(out.Changes, InForceJSON(&list[i]))
	}
	return out
}

// InForceJSON returns the JSON form of a change in force.
func InForceJSON(f *live.InForce) control.Change {
	row := control.ChangeOf(&f.Change)
	row.InPolicy, row.State = &control.Terms{Plan: f.Policy.Plan, Parameters: f.Policy.Parameters}, f.State
	return row
}

// inForceOf is the reverse of InForceJSON.
func inForceOf(row *control.Change) *live.InForce {
	f := live.InForce{Change: row.Made(), State: row.State}
	if own := row.InPolicy; own != nil {
		f.Policy = changes.Terms{Plan: own.Plan, Parameters: own.Parameters}
	}
	return &f
}

// printChanges prints the changes in force.
func printChanges(p *say.Printer, c *changesJSON, iface string) {
	for i := range c.Changes {
		if i == live.ShownChanges {
			p.Printf("  changed  and %d more: shaper set %s lists them\n", len(c.Changes)+c.More-i, iface)
			break
		}
		p.Printf("  changed  %s\n", inForceOf(&c.Changes[i]).Words())
	}
	if c.Added+c.Removed > 0 {
		p.Printf("  added    %s, %d of the file removed: shaper customer list %s --added lists them\n",
			say.Count(c.Added, "customer"), c.Removed, iface)
	}
	if c.OverQuota > 0 {
		p.Printf("  quota    used by %s\n", say.Count(c.OverQuota, "customer"))
	}
	if c.Problem != "" {
		p.Printf("  problem  %s\n", say.Printable(c.Problem))
	}
}
