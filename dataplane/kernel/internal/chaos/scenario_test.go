//go:build linux && amd64

package chaos

import (
	"slices"
	"strings"
)

// scenario is a sequence of commands, one of which (the victim) gets a fault.
type scenario struct {
	name   string
	before [][]string // commands that run to their end and succeed
	beside []string   // a shaper run that is active while the victim runs
	victim []string
	within []direction // directions of the policies
	// number of directions that the victim attaches before then is called; 0: the victim ends by itself
	ready  int
	then   func(*attempt) // called when the victim is ready
	active string         // policy in force when the victim is ready
	want   string         // policy in force after exit code 0
	may    []string       // allowed policies after a fault
	fails  outcome        // exit code without a fault
	lists  bool           // the victim prints JSON that lists v0
	orphan bool           // the victim is killed when it is ready, and its guard gets the fault

	first      []string // a command that runs to its end once the run beside is attached
	besideWant string   // policy in force beside after exit code 0; "": policyB

	customers bool     // the policies have customers: the changes in force are judged
	ruled     bool     // and a quota and a schedule
	tap       bool     // shaper tap shapes, not shaper run
	added     bool     // customers are added, besides those of the file
	terms     string   // changes in force after exit code 0
	mayTerms  []string // allowed ones after a fault; nil: the same
	ends      bool     // the change ends by itself, after which terms are in force
	disk      *disk    // breaks while the run beside is active, which gets no other faults
	liar      uint64   // seed of a lying server of budgets; 0: none
}

// outcome is whether the exit code is 1.
type outcome int

const (
	never  outcome = iota
	maybe          // the command may refuse what the scenario asks for
	always         // a rollback
)

// attach is shaper run on v0.
func attach(policy, hook, side string, more ...string) []string {
	return append([]string{"run", "v0", "--policy", policy + ".yaml", "--hook", hook, "--direction", side},
		more...)
}

// background is attach with --background.
func background(policy, hook, side string, more ...string) []string {
	return attach(policy, hook, side, append(more, "--background")...)
}

// within are the directions of a value of --direction.
func within(side string) []direction {
	switch side {
	case "egress":
		return []direction{egress}
	case "ingress":
		return []direction{ingress}
	}
	return directions
}

// scenarios returns all scenarios.
func scenarios() []*scenario { return slices.Concat(plainScenarios(), changedScenarios()) }

// plainScenarios are those without changes of customers and queues.
func plainScenarios() []*scenario {
	return slices.Concat(attaching(), pinning(), rollingBack(), changing(), looking(), ending(), orphans(),
		lying(), serving())
}

// changedScenarios are those with changes: by a process, by the command itself if the shapers are pinned,
// by quotas and schedules, under other commands, and with a broken disk.
func changedScenarios() []*scenario {
	return slices.Concat(settingPinned(), settingBeside(), underChanges(), settingInside(), tapping(),
		adding(), servingChanged(), breaking())
}

// attaching are runs in the foreground that SIGTERM ends.
func attaching() []*scenario {
	var list []*scenario
	add := func(name, policy, hook, side string, more ...string) *scenario {
		s := &scenario{
			name: name, victim: attach(policy, hook, side, more...), within: within(side),
			then: (*attempt).terminate, active: policyA, want: nothing, may: []string{nothing},
		}
		s.ready = len(s.within)
		list = append(list, s)
		return s
	}
	for _, m := range [][2]string{
		{"tcx", "egress"}, {"tcx", "ingress"}, {"tc", "egress"}, {"tc", "ingress"}, {"xdp", "ingress"},
	} {
		add("attach-"+m[0]+"-"+m[1], "a", m[0], m[1])
		if m[0] != "xdp" {
			add("queues-"+m[0]+"-"+m[1], "aq", m[0], m[1])
		}
	}
	add("gso-tcx-egress", "a", "tcx", "egress", "--gso-limit", "16384")
	add("both-tcx", "a", "tcx", "both")
	add("both-tc-gso", "a", "tc", "both", "--gso-limit", "16384")
	add("both-queues-gso", "aq", "tcx", "both", "--gso-limit", "16384")
	add("shared-tcx-egress", "as", "tcx", "egress")
	add("shared-both-tc", "as", "tc", "both")
	add("leased-tcx-egress", "al", "tcx", "egress")
	add("dry-run", "a", "tcx", "egress", "--dry-run").active = nothing
	timed := add("for", "aq", "tcx", "egress", "--for", "1s")
	timed.ready, timed.then = 0, nil
	add("hangup", "a", "tcx", "egress").then = func(a *attempt) {
		a.hangup("bq")
		a.terminate()
	}
	add("linger", "aq", "tc", "both").then = func(a *attempt) {
		a.linger()
		a.terminate()
	}
	return list
}

// pinning are runs that pin their policy.
func pinning() []*scenario {
	var list []*scenario
	add := func(name, policy, hook, side string, more ...string) *scenario {
		s := &scenario{
			name: name, victim: background(policy, hook, side, more...), within: within(side),
			want: policyA, may: []string{nothing, policyA},
		}
		list = append(list, s)
		return s
	}
	add("background-tcx-egress", "a", "tcx", "egress")
	add("background-tc-egress", "a", "tc", "egress")
	add("background-xdp-ingress", "a", "xdp", "ingress")
	add("background-queues-egress", "aq", "tcx", "egress")
	add("background-queues-ingress", "aq", "tcx", "ingress")
	add("background-shared", "as", "tcx", "egress")
	add("background-both-queues-gso", "aq", "tcx", "both", "--gso-limit", "16384")
	pin := add("pin-tcx-egress", "a", "tcx", "egress")
	pin.victim, pin.ready, pin.then, pin.active = attach("a", "tcx", "egress", "--pin"), 1,
		(*attempt).terminate, policyA
	return list
}

// rollingBack are policies with a rollback timer, confirmed or not.
func rollingBack() []*scenario {
	soon := []string{"--confirm", "1s"}
	late := []string{"--confirm", "60s"}
	pinned := [][]string{background("a", "tcx", "egress")}
	confirm := func(a *attempt) {
		a.command("confirm", "v0")
		a.terminate()
	}
	return []*scenario{
		{
			name: "unconfirmed-new", victim: attach("a", "tcx", "egress", soon...), within: within("egress"),
			want: nothing, may: []string{nothing}, fails: always,
		},
		{
			name: "unconfirmed-queues", victim: attach("aq", "tc", "both", soon...), within: directions,
			want: nothing, may: []string{nothing}, fails: always,
		},
		{
			name: "unconfirmed-shared", before: [][]string{background("as", "tcx", "egress")},
			victim: []string{"reload", "v0", "--policy", "bs.yaml", "--confirm", "1s"},
			within: within("egress"), want: policyA, may: []string{policyA}, fails: always,
		},
		{
			name: "unconfirmed-pinned", before: pinned, victim: attach("b", "tcx", "egress", soon...),
			within: within("egress"), want: policyA, may: []string{policyA}, fails: always,
		},
		{
			name: "unconfirmed-reload", before: pinned,
			victim: []string{"reload", "v0", "--policy", "bq.yaml", "--confirm", "1s"},
			within: within("egress"), want: policyA, may: []string{policyA}, fails: always,
		},
		{
			name: "confirmed-new", victim: attach("a", "tcx", "egress", append(late, "--pin")...),
			within: within("egress"), ready: 1, then: confirm, active: policyA, want: policyA,
			may: []string{nothing, policyA},
		},
		{
			name: "confirm", before: pinned, beside: attach("b", "tcx", "egress", append(late, "--pin")...),
			victim: []string{"confirm", "v0"}, within: within("egress"), want: policyB,
			may: []string{policyA, policyB},
		},
	}
}

// changing are reloads and takeovers.
func changing() []*scenario {
	var list []*scenario
	add := func(name string, before [][]string, side string, victim ...string) *scenario {
		s := &scenario{
			name: name, before: before, victim: victim, within: within(side), want: policyB,
			may: []string{policyA, policyB},
		}
		list = append(list, s)
		return s
	}
	reload := func(policy string) []string { return []string{"reload", "v0", "--policy", policy + ".yaml"} }
	one := func(command []string) [][]string { return [][]string{command} }
	add("reload-plain", one(background("a", "tcx", "egress")), "egress", reload("b")...)
	add("reload-plain-tc", one(background("a", "tc", "both")), "both", reload("b")...)
	add("reload-xdp", one(background("a", "xdp", "ingress")), "ingress", reload("b")...)
	add("reload-to-queues", one(background("a", "tcx", "egress")), "egress", reload("bq")...)
	add("reload-to-queues-ingress", one(background("a", "tc", "ingress")), "ingress",
		reload("bq")...).fails = maybe
	add("reload-from-queues", one(background("aq", "tcx", "egress")), "egress", reload("b")...)
	add("reload-from-queues-ingress", one(background("aq", "tcx", "ingress")), "ingress",
		reload("b")...).fails = maybe
	add("reload-shared", one(background("as", "tcx", "egress")), "egress", reload("bs")...)
	add("reload-to-shared", one(background("a", "tc", "both")), "both", reload("bs")...)
	add("reload-from-shared", one(background("as", "tcx", "both")), "both", reload("b")...)
	add("reload-rate", one(background("aq", "tcx", "both")), "both", reload("bq")...)
	beside := add("reload-beside", nil, "egress", reload("bq")...)
	beside.beside, beside.want, beside.may = attach("a", "tc", "egress"), nothing, []string{nothing}
	for _, takeover := range []struct{ name, from, to, hook, side string }{
		{"takeover", "a", "b", "tcx", "egress"},
		{"takeover-queues", "aq", "bq", "tcx", "egress"},
		{"takeover-shared", "as", "bs", "tcx", "egress"},
		{"takeover-to-queues", "a", "bq", "tc", "ingress"},
		{"takeover-xdp", "a", "b", "xdp", "ingress"},
	} {
		s := add(takeover.name, one(background(takeover.from, takeover.hook, takeover.side)), takeover.side,
			attach(takeover.to, takeover.hook, takeover.side)...)
		s.ready, s.then, s.active, s.want, s.may = 1, (*attempt).terminate, policyB, nothing,
			[]string{nothing, policyA, policyB}
	}
	return list
}

// looking are commands that only print. They must not print that nothing is attached if they could
// not check.
func looking() []*scenario {
	var list []*scenario
	for _, victim := range []string{"status", "stats"} {
		for _, s := range [][3]string{
			{"aq", "tcx", "egress"}, {"aq", "tc", "ingress"}, {"a", "xdp", "ingress"},
		} {
			list = append(list, &scenario{
				name: victim + "-" + s[1] + "-" + s[2], before: [][]string{background(s[0], s[1], s[2])},
				victim: []string{victim, "--json"}, within: within(s[2]), want: policyA,
				may: []string{policyA}, lists: true,
			})
		}
	}
	return list
}

// ending are detaches.
func ending() []*scenario {
	var list []*scenario
	for _, s := range []struct{ name, policy, hook, side, more string }{
		{"detach-tcx-egress", "a", "tcx", "egress", ""},
		{"detach-tc-ingress", "a", "tc", "ingress", ""},
		{"detach-xdp", "a", "xdp", "ingress", ""},
		{"detach-queues-egress", "aq", "tc", "egress", ""},
		{"detach-queues-ingress", "aq", "tcx", "ingress", ""},
		{"detach-shared", "as", "tc", "both", ""},
		{"detach-both-queues-gso", "aq", "tcx", "both", "--gso-limit 16384"},
	} {
		list = append(list, &scenario{
			name: s.name, before: [][]string{background(s.policy, s.hook, s.side, strings.Fields(s.more)...)},
			victim: []string{"detach", "v0"}, within: within(s.side), want: nothing,
			may: []string{nothing, policyA},
		})
	}
	return list
}

// orphans are guards that clean up after a killed run.
func orphans() []*scenario {
	var list []*scenario
	for _, s := range []struct{ name, policy, hook, side, more string }{
		{"orphan-tc-egress", "a", "tc", "egress", ""},
		{"orphan-gso", "a", "tcx", "ingress", "--gso-limit 16384"},
		{"orphan-shared", "as", "tc", "both", ""},
		{"orphan-queues-egress", "aq", "tcx", "egress", ""},
		{"orphan-queues-ingress", "aq", "tcx", "ingress", ""},
		{"orphan-both-queues-gso", "aq", "tc", "both", "--gso-limit 16384"},
		{"orphan-unconfirmed", "aq", "tcx", "egress", "--pin --confirm 1s"},
	} {
		x := &scenario{
			name: s.name, victim: attach(s.policy, s.hook, s.side, strings.Fields(s.more)...),
			within: within(s.side), then: (*attempt).kill, active: policyA, may: []string{nothing},
			orphan: true,
		}
		x.ready = len(x.within)
		list = append(list, x)
	}
	pinned := list[len(list)-1]
	list = append(list, &scenario{
		name: "orphan-unconfirmed-pinned", before: [][]string{background("b", "tcx", "egress")},
		victim: pinned.victim, within: pinned.within, ready: 1, then: (*attempt).kill, active: policyA,
		may: []string{policyB}, orphan: true,
	})
	return list
}

// foreground reports whether the victim is a shaper run or serve with a guard.
func (s *scenario) foreground() bool {
	return s.victim[0] == "run" && !slices.Contains(s.victim, "--background") || s.victim[0] == "serve"
}

// device is the name by which commands find the shaper.
func (s *scenario) device() string {
	if s.tap {
		return tapDevice
	}
	return "v0"
}

// plain is a run with the hook and direction of the scenario. It must succeed on an interface that
// was cleaned up.
func (s *scenario) plain() []string {
	from := s.victim
	if from[0] != "run" && from[0] != "tap" && from[0] != "serve" {
		from = s.beside
	}
	if from == nil {
		from = s.before[0]
	}
	if from[0] == "serve" {
		return from
	}
	return slices.Clone(from[:8])
}
