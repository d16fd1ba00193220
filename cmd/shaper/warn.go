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

// What lints assume unless they are told otherwise.
const (
	defaultRTT = 50 * time.Millisecond
	defaultMTU = 1500 // bytes
)

// mostWarnings is how many lines of warnings a command prints that was asked for
// something else. check prints all.
const mostWarnings = 10

// warn prints the warnings that check has about a policy, but not again while
// they stay the same: a policy is read at each SIGHUP. The interface that is
// shaped says the MTU; "" is that of the last call.
func (p *policyFlags) warn(w io.Writer, policy *policyfile.Compiled, device string) {
	if device != "" {
		p.device = device
	}
	o := lint.Options{RTT: defaultRTT, MTU: defaultMTU}
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
