//go:build linux && amd64

package chaos

import (
	"slices"
	"strings"
	"syscall"
	"time"
)

// Arguments of shaper set on v0, and the terms that they lead to.
const (
	c1Off     = "customer c1 off"
	c1Closed  = "customer c1 plan=closed"
	c1Burst   = "customer c1 burst=500B"
	c1Reset   = "customer c1 reset"
	slower    = "queue slow rate=40mbit"
	fromFile  = "--file " + changeFile
	fileTerms = "c1 off, c2 closed"
	offTerms  = "c1 off"
	lessTerms = "c1 closed"
)

// setCommand is shaper set on a device.
func setCommand(device, change string) []string {
	return append([]string{"set", device}, strings.Fields(change)...)
}

// settingPinned are changes of shapers without a process.
func settingPinned() []*scenario {
	var list []*scenario
	for _, s := range []struct {
		name, policy, hook, side string
		first, change, from, to  string
	}{
		{"set-off", "ac", "tcx", "egress", "", c1Off, unchanged, offTerms},
		{"set-plan", "ac", "tc", "both", "", c1Closed, unchanged, lessTerms},
		{"set-burst", "ac", "tcx", "egress", "", c1Burst, unchanged, lessTerms},
		{"set-file", "ac", "tcx", "both", "", fromFile, unchanged, fileTerms},
		{"set-reset", "ac", "tcx", "egress", c1Off, c1Reset, offTerms, unchanged},
		{"set-queue", "acq", "tc", "egress", "", slower, unchanged, changedRateTerm},
		{"set-list", "ac", "tcx", "egress", c1Off, "", offTerms, offTerms},
	} {
		x := &scenario{
			name: s.name, before: [][]string{background(s.policy, s.hook, s.side)},
			victim: setCommand("v0", s.change), within: within(s.side), want: policyA, may: []string{policyA},
			customers: true, terms: s.to,
			mayTerms: []string{s.from, s.to},
		}
		if s.first != "" {
			x.before = append(x.before, setCommand("v0", s.first))
		}
		list = append(list, x)
	}
	return list
}

// settingBeside are changes of shapers whose process makes them.
func settingBeside() []*scenario {
	var list []*scenario
	for _, s := range []struct {
		name, policy, change, terms string
		more                        []string
	}{
		{"set-run", "ac", c1Off, offTerms, nil},
		{"set-run-queue", "acq", slower, changedRateTerm, nil},
		{"set-run-state", "ac", c1Closed, lessTerms, stateFlags},
		{"set-run-file", "ac", fromFile, fileTerms, stateFlags},
		{"set-run-for", "ac", c1Off + " --for 2s", unchanged, nil},
		{"set-run-state-for", "ac", c1Off + " --for 2s", unchanged, stateFlags},
	} {
		list = append(list, &scenario{
			name: s.name, beside: attach(s.policy, "tcx", "egress", s.more...),
			victim: setCommand("v0", s.change), within: within("egress"), want: nothing,
			may: []string{nothing}, besideWant: policyA, customers: true, terms: s.terms,
			mayTerms: []string{unchanged, s.terms},
			ends:     strings.Contains(s.change, "--for"),
		})
	}
	return list
}

// stateFlags keep the state in a directory of the world, which is removed after each attempt.
var stateFlags = []string{"--state", stateFolder}

const stateFolder = "/run/state"

// underChanges are other commands while a change is in force.
func underChanges() []*scenario {
	changed := func(policy, hook, side, change string) [][]string {
		return [][]string{background(policy, hook, side), setCommand("v0", change)}
	}
	reload := func(policy string) []string { return []string{"reload", "v0", "--policy", policy + ".yaml"} }
	list := []*scenario{
		{name: "reload-changed", before: changed("ac", "tcx", "both", fromFile), victim: reload("bc"), within: directions, want: policyB, may: []string{policyA, policyB}, terms: fileTerms},
		{name: "reload-changed-queue", before: changed("acq", "tc", "egress", slower), victim: reload("bcq"), within: within("egress"), want: policyB, may: []string{policyA, policyB}, terms: changedRateTerm},
		{
			name: "unconfirmed-changed", before: changed("ac", "tcx", "egress", c1Off),
			victim: append(reload("bc"), "--confirm", "1s"), within: within("egress"), want: policyA,
			may: []string{policyA}, fails: always, terms: offTerms,
		},
		{
			name: "takeover-changed", before: changed("ac", "tcx", "egress", c1Closed),
			victim: attach("bc", "tcx", "egress"), within: within("egress"), ready: 1,
			then: changeInside("", lessTerms, lessTerms), active: policyB, want: nothing,
			may: []string{nothing, policyA, policyB}, terms: lessTerms,
		},
		{name: "detach-changed", before: changed("ac", "tc", "both", fromFile), victim: []string{"detach", "v0"}, within: directions, want: nothing, may: []string{nothing, policyA}, terms: fileTerms},
		{
			name: "reload-run-changed", beside: attach("ac", "tcx", "egress", stateFlags...),
			first: setCommand("v0", c1Off), victim: reload("bc"), within: within("egress"), want: nothing,
			may: []string{nothing}, besideWant: policyB, terms: offTerms,
		},
	}
	for _, s := range list {
		s.customers = true
	}
	return list
}

// settingInside are runs that make changes while they get the fault.
func settingInside() []*scenario {
	var list []*scenario
	add := func(name, policy string, then func(*attempt), more ...string) *scenario {
		s := &scenario{
			name: name, victim: attach(policy, "tcx", "egress", more...), within: within("egress"), ready: 1,
			then: then, active: policyA, want: nothing, may: []string{nothing}, customers: true,
		}
		list = append(list, s)
		return s
	}
	add("run-set", "ac", changeInside(c1Off, unchanged, offTerms))
	add("run-set-state", "ac", changeInside(fromFile, unchanged, fileTerms), stateFlags...)
	add("run-set-queue", "acq", changeInside(slower, unchanged, changedRateTerm), stateFlags...)
	add("run-set-for", "ac", func(a *attempt) {
		a.inside("--for 1s "+c1Off, unchanged, offTerms)
		a.awaitTerms(unchanged)
		a.terminate()
	}, stateFlags...)
	add("run-quota", "acr", spendInside).ruled = true
	add("run-quota-state", "acr", spendInside, stateFlags...).ruled = true
	pinned := add("run-set-pinned", "ac", changeInside(c1Off, unchanged, offTerms), "--pin")
	pinned.want, pinned.may = policyA, []string{nothing, policyA}
	pinned.terms, pinned.mayTerms = offTerms, []string{unchanged, offTerms}
	return list
}

// tapping are changes of shaper tap.
func tapping() []*scenario {
	tap := func(policy string, more ...string) []string {
		return append(
			[]string{"tap", tapDevice, "--uplink", "v0", "--policy", policy + ".yaml", "--drain", "10ms"},
			more...)
	}
	list := []*scenario{
		{name: "tap", victim: tap("ac"), then: (*attempt).terminate},
		{name: "tap-set", victim: tap("ac"), then: changeInside(c1Off, unchanged, offTerms)},
		{name: "tap-set-state", victim: tap("ac", stateFlags...), then: changeInside(fromFile, unchanged, fileTerms)},
		{name: "tap-quota", victim: tap("acr", stateFlags...), then: spendInside, ruled: true},
		{name: "set-tap", beside: tap("ac"), victim: setCommand(tapDevice, c1Closed), besideWant: policyA, terms: lessTerms, mayTerms: []string{unchanged, lessTerms}},
		{
			name: "set-tap-for", beside: tap("ac", stateFlags...),
			victim: setCommand(tapDevice, c1Off+" --for 2s"), besideWant: policyA, ends: true,
			mayTerms: []string{unchanged},
		},
	}
	for _, s := range list {
		s.within, s.want, s.may, s.active = within("egress"), nothing, []string{nothing}, policyA
		s.tap, s.customers = true, true
		if s.beside == nil {
			s.ready = 1
		}
	}
	return list
}

// changeInside is a change while the victim runs, which then ends. change "" makes none.
func changeInside(change, from, to string) func(*attempt) {
	return func(a *attempt) {
		a.inside(change, from, to)
		a.terminate()
	}
}

// inside makes a change while the victim runs. Even if it fails, the list of changes must match the rates
// in force.
func (a *attempt) inside(change, from, to string) {
	if change == "" {
		a.judgeInside([]string{to})
		return
	}
	a.insideBy(setCommand(a.s.device(), change), from, to)
}

// insideBy is inside for a command.
func (a *attempt) insideBy(command []string, from, to string) {
	may := []string{to}
	if slices.Contains(command, "--for") { // it may have ended by now
		may = []string{from, to}
	}
	r, ok := a.w.runCommand(command...)
	switch {
	case !ok || r.code() != 0 && a.f.kind == "none":
		a.problem("set: %s fails: %s", strings.Join(command, " "), r.stderr())
	case r.code() != 0:
		may = []string{from, to}
	}
	a.judgeInside(may)
}

// judgeInside judges the terms while the victim runs. If it is about to end, they say nothing.
func (a *attempt) judgeInside(may []string) {
	text := a.termsDiffer(may)
	if text != "" && !a.ending() {
		a.problem("%s", text)
	}
}

// ending reports whether the fault ends the victim.
func (a *attempt) ending() bool {
	return a.f.kind != "none" && eventually(time.Second, func() bool { return !a.victim.alive() })
}

// awaitTerms waits until the list of changes and the terms in force are want.
func (a *attempt) awaitTerms(want string) {
	text, begin := "", time.Now()
	var list []change
	if eventually(patienceOfTerms, func() bool {
		list, _ = a.listed()
		text = a.termsDiffer([]string{want})
		return text == "" || !a.alive()
	}) {
		a.late = max(a.late, time.Since(begin))
		return
	}
	if !a.ending() {
		a.problem("late: %v after the change: %s; listed: %+v", patienceOfTerms, text, list)
	}
}

// patienceOfTerms is the time limit of an end or a quota, which normally takes a second.
const patienceOfTerms = 30 * time.Second

// alive reports whether the shaper's process runs: the victim, or the run beside it.
func (a *attempt) alive() bool {
	if a.beside != nil {
		return a.beside.alive()
	}
	return a.victim.alive()
}

// spendInside uses up the quota of c1 while the victim runs, which then ends.
func spendInside(a *attempt) {
	a.judgeInside([]string{unchanged})
	a.w.prober.spend()
	a.awaitTerms(lessTerms)
	a.victim.signal(syscall.SIGTERM)
}
