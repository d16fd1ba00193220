package main

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
	defaultRTT = 50 * time.Millisecond
	defaultMTU = 1500 // bytes
)

// mostWarnings is the maximum number of warnings that a command other than check prints.
const mostWarnings = 10

// warn prints the warnings of check about a policy, unless they are the same as before: a
// policy is read again on each SIGHUP. device is the shaped interface, whose MTU is used; ""
// is the device of the last call.
func (p *policyFlags) warn(w io.Writer, policy *policyfile.Compiled, device string) {
	if device != "" {
		p.device = device
	}
	o := lint.Options{RTT: defaultRTT, MTU: defaultMTU, NoMarks: p.noMarks}
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

// warnReplay warns about parts of a policy that do not apply in a replay.
func warnReplay(w io.Writer, policy *policyfile.Compiled) {
	if policy.HasRules() {
		fmt.Fprintln(w, "shaper: warning: quotas and schedules of plans are not applied in a replay: each customer has its own plan")
	}
}
