package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/live"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/stats"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
)

// printAttached prints how a shaper is attached.
func (r *running) printAttached(sh *kernel.Shaper, changes []dataplane.Change) {
	p := r.print()
	p.Printf("%s: attached by %s, program %d, kernel %s, policy %s (%s)\n", live.Name(&sh.About), live.Hook(&sh.About), sh.Program,
		live.KernelRelease(), r.policy.Name, say.Count(len(sh.Outline.Classes), "class"))
	if sh.Place.Mode == kernel.Generic {
		p.Printf("%s: the driver does not support XDP: the kernel's generic XDP is slower than tc\n", live.Name(&sh.About))
	}
	if sh.Pacer != "" {
		p.Printf("%s: packets are queued in %s\n", live.Name(&sh.About), live.Pacer(&sh.About))
	}
	p.gso(&sh.About)
	if r.flags.dry {
		p.Printf("%s: dry run: packets are counted, not changed\n", live.Name(&sh.About))
	}
	p.changes(&sh.About, changes)
	if !r.until.IsZero() {
		p.Printf("%s: rolls back in %v unless you run shaper confirm %s\n", live.Name(&sh.About), r.flags.confirm, sh.Interface)
	}
}

// printEnd prints the counters of a shaper, and whether it stays attached.
func (r *running) printEnd(sh *kernel.Shaper, stays bool, failed error) error {
	p := r.print()
	stats, err := sh.Stats()
	if err == nil {
		p.Printf("\n%s\n", say.Counters(&sh.Outline, stats, r.colored))
	}
	if queues, err := sh.Queues(); err == nil && live.Unassigned(queues) > 0 {
		p.Printf("%s more packets were dropped in queues that several classes use\n", say.Grouped(live.Unassigned(queues)))
	}
	switch {
	case stays:
		p.Printf("%s: still attached; shaper detach %s removes it\n", live.Name(&sh.About), sh.Interface)
	case failed == nil:
		p.detached(&sh.About)
	}
	return err
}

// detached prints that a shaper is detached, and the number of lost packets.
func (p *printer) detached(about *kernel.About) {
	if n := about.Lost.Packets; n > 0 {
		most := ""
		if about.Lost.AtMost {
			most = "at most "
		}
		p.Printf("%s: lost %s%s packets that were still queued\n", live.Name(about), most, say.Grouped(int64(n)))
	}
	p.Printf("%s: detached\n", live.Name(about))
}

// reloaded prints that a shaper has a new policy.
func (p *printer) reloaded(about *kernel.About, policy *policyfile.Compiled, changes []dataplane.Change) {
	p.Printf("%s: reloaded, ", live.Name(about))
	if about.Program != 0 {
		p.Printf("program %d, ", about.Program)
	}
	p.Printf("policy %s\n", policy.Name)
	p.gso(about)
	p.changes(about, changes)
}

// reloadedLine is reloaded in one line, for logs: it names the classes that are not kept.
func (p *printer) reloadedLine(about *kernel.About, policy *policyfile.Compiled, changes []dataplane.Change) {
	by := map[string][]string{}
	for _, c := range changes {
		by[c.What] = append(by[c.What], say.Printable(c.Class))
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
		case len(classes) > stats.ShownChanges:
			classes = append(classes[:stats.ShownChanges:stats.ShownChanges], fmt.Sprintf("and %d more", len(classes)-stats.ShownChanges))
		}
		parts = append(parts, fmt.Sprintf("%s %s", what, strings.Join(classes, ", ")))
	}
	p.Printf("%s: reloaded, %s\n", live.Name(about), strings.Join(parts, "; "))
}

// gso prints the cap of the device's GSO size, unless the user set it.
func (p *printer) gso(about *kernel.About) {
	if about.GSOLimit != 0 && about.AskedGSO == 0 {
		p.Printf("%s: gso capped at %s bytes, by the rate of the slowest queue\n", live.Name(about), say.Grouped(int64(about.GSOLimit)))
	}
}

// changes prints the change of each class, if there was a policy before.
func (p *printer) changes(about *kernel.About, changes []dataplane.Change) {
	if !slices.ContainsFunc(changes, func(c dataplane.Change) bool { return c.What != "new" }) {
		return
	}
	for _, c := range changes {
		p.Printf("%s: class %s: %s\n", live.Name(about), c.Class, c.What)
	}
}
