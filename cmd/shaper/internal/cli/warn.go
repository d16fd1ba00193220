package cli

import (
	"fmt"
	"io"
	"net"
	"slices"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/lint"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
)

// Defaults of lints.
const (
	DefaultRTT = 50 * time.Millisecond
	DefaultMTU = 1500 // bytes
)

// mostWarnings is the maximum number of warnings printed by a command other than check.
const mostWarnings = 10

// Warn prints the warnings of check about a policy, unless they are the same as before: a
// policy is read again on each SIGHUP. device is the shaped interface, whose MTU is used; ""
// is the device of the last call.
func (p *PolicyFlags) Warn(w io.Writer, policy *policyfile.Compiled, device string) {
	if device != "" {
		p.device = device
	}
	o := lint.Options{RTT: DefaultRTT, MTU: DefaultMTU, NoMarks: p.NoMarks}
	if i, err := net.InterfaceByName(p.device); err == nil {
		o.MTU = int64(i.MTU)
	}
	var lines []string
	for _, f := range lint.Policy(policy.File, policy.Plan, o) {
		if f.Level == lint.Warning {
			lines = append(lines, f.Place+": "+f.Text)
		}
	}
	if slices.Equal(lines, p.warned) {
		return
	}
	p.warned = lines
	more := len(lines) - mostWarnings
	for _, line := range lines[:min(len(lines), mostWarnings)] {
		fmt.Fprintf(w, "shaper: warning: %s\n", line)
	}
	if more > 0 {
		fmt.Fprintf(w, "shaper: warning: %s not shown: shaper check prints all\n", say.Count(more, "warning"))
	}
}

// WarnReplay warns about parts of a policy without effect in a replay.
func WarnReplay(w io.Writer, policy *policyfile.Compiled) {
	if policy.HasRules() {
		fmt.Fprintln(w,
			"shaper: warning: quotas and schedules of plans are not applied in a replay: each customer has its own plan")
	}
}

// mostStale is the maximum number of changes printed by WarnStale.
const mostStale = 20

// WarnStale prints the changes that a policy cannot use.
func WarnStale(to io.Writer, stale []error) {
	for i, err := range stale {
		if i == mostStale {
			fmt.Fprintf(to, "shaper: warning: and %d more\n", len(stale)-i)
			return
		}
		fmt.Fprintf(to, "shaper: warning: a change by shaper set is not in force: %v\n", err)
	}
}

// PrintNotes prints the effects of a shaper's policy on budgets in use by other shapers.
func PrintNotes(w io.Writer, name string, notes []string) {
	for _, note := range notes {
		fmt.Fprintf(w, "shaper: %s: %s\n", name, note)
	}
}
