package stats

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/changes"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/control"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/live"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
)

const (
	ShownChanges  = 10    // changes that status, reload and logs print; shaper set lists all
	listedChanges = 1_000 // changes in the JSON of status; shaper set --json lists all
)

// ChangesLook returns the changes in a shaper, and a function that returns its policy, with or without them.
type ChangesLook func(live.Handle) (live.Changes, func() (*policyfile.Compiled, error), error)

// LookAtChanges is a changesLook for any process.
func LookAtChanges(sh live.Handle) (live.Changes, func() (*policyfile.Compiled, error), error) {
	now, err := sh.Changes()
	return now, func() (*policyfile.Compiled, error) { return policyfile.CompileNames(sh.Info().Label) }, err
}

// changesJSON are the changes by shaper set and the API in the JSON of status and stats.
type changesJSON struct {
	Changes   []control.Change `json:"changes"`
	More      int              `json:"more_changes,omitempty"` // changes that are not listed
	OverQuota int              `json:"over_quota,omitempty"`   // customers who have used their quota
	Problem   string           `json:"change_problem,omitempty"`

	list []live.InForce
}

// changesIn returns the changes in force in a shaper. It compiles the policy only if there are any.
func changesIn(sh live.Handle, look ChangesLook) (out changesJSON) {
	out.Changes = []control.Change{}
	all, policyOf, err := look(sh)
	out.Problem = all.Problem
	if err == nil && len(all.Book)+len(all.Interrupted) > 0 {
		var policy *policyfile.Compiled
		if policy, err = policyOf(); err == nil {
			out.list, out.OverQuota = all.InForce(policy, time.Now())
		}
	}
	if err != nil {
		out.Problem = "changes by shaper set are unknown: " + err.Error()
	}
	for i := range out.list {
		if i == listedChanges {
			out.More = len(out.list) - i
			break
		}
		out.Changes = append(out.Changes, InForceJSON(&out.list[i]))
	}
	return out
}

// InForceJSON returns the JSON form of a change in force.
func InForceJSON(f *live.InForce) control.Change {
	row := control.ChangeOf(&f.Change)
	row.InPolicy, row.State = &control.Terms{Plan: f.Policy.Plan, Parameters: f.Policy.Parameters}, f.State
	return row
}

// printChanges prints the changes in force.
func printChanges(p *say.Printer, c *changesJSON, iface string) {
	for i := range c.list {
		if i == ShownChanges {
			p.Printf("  changed  and %d more: shaper set %s lists them\n", len(c.list)-i, iface)
			break
		}
		p.Printf("  changed  %s\n", inForceWords(&c.list[i]))
	}
	if c.OverQuota > 0 {
		p.Printf("  quota    used by %s\n", say.Count(c.OverQuota, "customer"))
	}
	if c.Problem != "" {
		p.Printf("  problem  %s\n", say.Printable(c.Problem))
	}
}

// inForceWords returns a change in force in words.
func inForceWords(f *live.InForce) string {
	text := ChangeWords(&f.Change)
	if own := policyWords(f); own != "" {
		text += " (policy: " + own + ")"
	}
	if f.State != "" {
		text += ": " + f.State
	}
	return text
}

// policyWords returns what the policy says about the terms of a change; "" if nothing.
func policyWords(f *live.InForce) string {
	own := changes.Terms{Plan: f.Policy.Plan}
	if f.Kind != changes.Customer {
		own = f.Policy
	}
	return say.Printable(strings.Join(own.Words(), ", "))
}

// KeptNotes returns a line for each change that a policy which was just loaded does not change, because the
// change wins.
func KeptNotes(list []live.InForce, iface string) (out []string) {
	for i := range list {
		f := &list[i]
		if !f.Differs() || f.State != "" {
			continue
		}
		if len(out) == ShownChanges {
			return append(out, fmt.Sprintf("and further changes: shaper set %s lists them", iface))
		}
		out = append(out, fmt.Sprintf("%s; to end it: shaper set %s %s %s reset", inForceWords(f), iface, f.Kind, say.Quoted(f.Name)))
	}
	return out
}

// KeptPrinter prints which changes a reload by the process itself leaves in force, if they are others than before.
type KeptPrinter struct{ last []string }

// Print prints the changes that a policy leaves in force, unless they are those of the last call.
func (k *KeptPrinter) Print(to io.Writer, c *live.Changer, policy *policyfile.Compiled, iface string) {
	all := live.Changes{Book: c.Book}
	list, _ := all.InForce(policy, time.Now())
	if notes := KeptNotes(list, iface); !slices.Equal(notes, k.last) {
		k.last = notes
		cli.PrintNotes(to, iface, notes)
	}
}

// ChangeWords returns a change in words.
func ChangeWords(c *changes.Change) string {
	var parts []string
	if c.Reset {
		parts = append(parts, "as in the policy")
	}
	parts = append(parts, c.Terms.Words()...)
	text := say.Printable(c.Target.String()) + ": " + say.Printable(strings.Join(parts, ", "))
	if !c.Until.IsZero() {
		text += ", until " + c.Until.Local().Format(time.DateTime)
	}
	if !c.Since.IsZero() {
		text += ", since " + c.Since.Local().Format(time.DateTime)
	}
	if by := c.Author.String(); by != "" {
		text += " by " + say.Printable(by)
	}
	if c.By == changes.ByQuota {
		text += " (quota)"
	}
	return text
}
