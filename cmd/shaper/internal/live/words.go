package live

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/changes"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
	"github.com/a-seed-32e5a53f/shaper/dataplane/tap"
)

// ShownChanges is the number of changes printed by status, reload and logs; shaper set lists all.
const ShownChanges = 10

// ChangeInWords returns a change in words.
func ChangeInWords(c *changes.Change) string {
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

// Words returns a change in force in words.
func (f *InForce) Words() string {
	text := ChangeInWords(&f.Change)
	if own := f.policyWords(); own != "" {
		text += " (policy: " + own + ")"
	}
	if f.State != "" {
		text += ": " + f.State
	}
	return text
}

// policyWords returns the policy's own values for the terms of a change, in words; "" for none.
func (f *InForce) policyWords() string {
	own := changes.Terms{Plan: f.Policy.Plan}
	if f.Kind != changes.Customer {
		own = f.Policy
	}
	return say.Printable(strings.Join(own.Words(), ", "))
}

// KeptNotes returns a line for each change that wins over the policy just loaded.
func KeptNotes(list []InForce, iface string) (out []string) {
	for i := range list {
		f := &list[i]
		if !f.Differs() || f.State != "" {
			continue
		}
		if len(out) == ShownChanges {
			return append(out, fmt.Sprintf("and further changes: shaper set %s lists them", iface))
		}
		reset := fmt.Sprintf("shaper set %s %s %s reset", iface, f.Kind, say.Quoted(f.Name))
		out = append(out, f.Words()+"; to end it: "+reset)
	}
	return out
}

// PrintDetached reports a detached shaper, and the number of lost packets.
func PrintDetached(p *say.Printer, about *kernel.About) {
	if n := about.Lost.Packets; n > 0 {
		most := ""
		if about.Lost.AtMost {
			most = "at most "
		}
		p.Printf("%s: lost %s%s packets that were still queued\n", Name(about), most, say.Grouped(int64(n)))
	}
	p.Printf("%s: detached\n", Name(about))
}

// PrintReloadedLine reports the new policy of a shaper in one line, for logs: it names the classes not kept.
func PrintReloadedLine(
	p *say.Printer, about *kernel.About, policy *policyfile.Compiled, list []compiled.ClassChange,
) {
	by := map[string][]string{}
	for _, c := range list {
		by[c.Effect] = append(by[c.Effect], say.Printable(c.Class))
	}
	first := "policy " + policy.Name
	if about.Program != 0 {
		first = fmt.Sprintf("program %d, %s", about.Program, first)
	}
	parts := []string{first}
	for _, what := range slices.Sorted(maps.Keys(by)) {
		classes := by[what]
		switch {
		case what == "kept":
			continue
		case len(classes) > ShownChanges:
			more := fmt.Sprintf("and %d more", len(classes)-ShownChanges)
			classes = append(classes[:ShownChanges:ShownChanges], more)
		}
		parts = append(parts, fmt.Sprintf("%s %s", what, strings.Join(classes, ", ")))
	}
	p.Printf("%s: reloaded, %s\n", Name(about), strings.Join(parts, "; "))
}

// PrintGSO prints the cap of the device's GSO size, unless the user set it.
func PrintGSO(p *say.Printer, about *kernel.About) {
	if about.GSOLimit != 0 && about.AskedGSO == 0 {
		limit := say.Grouped(int64(about.GSOLimit))
		p.Printf("%s: gso capped at %s bytes, by the rate of the slowest queue\n", Name(about), limit)
	}
}

// PrintClasses prints the change of each class, if there was a policy before.
func PrintClasses(p *say.Printer, about *kernel.About, list []compiled.ClassChange) {
	if !slices.ContainsFunc(list, func(c compiled.ClassChange) bool { return c.Effect != "new" }) {
		return
	}
	for _, c := range list {
		p.Printf("%s: class %s: %s\n", Name(about), c.Class, c.Effect)
	}
}

// PrintLost prints the numbers of packets lost by a shaper tap, by reason.
func PrintLost(p *say.Printer, about *kernel.About, lost tap.Lost) {
	for _, n := range []struct {
		dataplane.Count
		why string
	}{
		{lost.Refused, "rejected by the other device"},
		{lost.Memory, "for lack of memory (--memory)"},
		{lost.Ended, "still queued at the end"},
	} {
		if n.Packets > 0 {
			p.Folded(fmt.Sprintf("%s: lost %s packets %s\n", Name(about), say.Grouped(n.Packets), n.why))
		}
	}
}
