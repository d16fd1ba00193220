//go:build linux && amd64

package chaos

import (
	"encoding/json"
	"io"
	"strings"
)

// configurations are those of shaper serve, by directory.
var configurations = map[string]string{
	"serve-a":        "interfaces: [{match: v0, policy: ../a.yaml, hook: tcx}]\n",
	"serve-b":        "interfaces: [{match: v0, policy: ../b.yaml, hook: tcx}]\n",
	"serve-both":     "interfaces: [{match: 'v*', policy: ../aq.yaml, direction: both, hook: tc}]\n",
	"serve-shared":   "interfaces: [{match: v0, policy: ../as.yaml, direction: both, hook: tcx}]\n",
	"serve-xdp":      "interfaces: [{match: 'v?', policy: ../a.yaml, direction: ingress, hook: xdp}]\n",
	"serve-pin":      "interfaces: [{match: v0, policy: ../a.yaml, hook: tcx, pin: true}]\n",
	"serve-changes":  "interfaces: [{match: v0, policy: ../ac.yaml, hook: tcx}]\n",
	"serve-state":    "interfaces: [{match: v0, policy: ../ac.yaml, hook: tcx}]\nstate: " + stateFolder + "\n",
	"serve-quota":    "interfaces: [{match: v0, policy: ../acr.yaml, hook: tcx}]\nstate: " + stateFolder + "\n",
	"serve-api":      "interfaces: [{match: v0, policy: ../ac.yaml, hook: tcx}]\ncontrol: /run/api.sock\nstate: " + stateFolder + "\n",
	"serve-pin-both": "interfaces: [{match: '*', policy: ../b.yaml, hook: tcx, pin: true, direction: both}]\n",
}

// serving are runs of shaper serve that SIGTERM ends.
func serving() []*scenario {
	var list []*scenario
	add := func(dir, side string) *scenario {
		s := &scenario{
			name: dir, victim: []string{"serve", dir}, within: within(side), ready: 1,
			then: (*attempt).terminate, active: policyA, want: nothing, may: []string{nothing},
		}
		list = append(list, s)
		return s
	}
	add("serve-a", "egress")
	add("serve-both", "both")
	add("serve-shared", "both")
	add("serve-xdp", "ingress")
	pinned := add("serve-pin", "egress")
	pinned.want, pinned.may = policyA, []string{nothing, policyA}
	hangup := add("serve-a", "egress")
	hangup.name, hangup.then = "serve-hangup", func(a *attempt) {
		a.hangup("bq")
		a.terminate()
	}
	linger := add("serve-both", "both")
	linger.name, linger.then = "serve-linger", func(a *attempt) {
		a.linger()
		a.terminate()
	}
	takeover := add("serve-b", "egress")
	takeover.name, takeover.before = "serve-takeover", [][]string{background("a", "tcx", "egress")}
	takeover.active, takeover.may = policyB, []string{nothing, policyA, policyB}
	stays := add("serve-pin-both", "both")
	stays.name, stays.before = "serve-takeover-pinned", [][]string{background("a", "tcx", "both")}
	stays.active, stays.want, stays.may = policyB, policyB, []string{nothing, policyA, policyB}
	list = append(list, &scenario{
		name: "serve-reload-beside", beside: []string{"serve", "serve-both"},
		victim: []string{"reload", "v0", "--policy", "bq.yaml"}, within: directions, want: nothing,
		may: []string{nothing},
	}, &scenario{
		name: "serve-status-beside", beside: []string{"serve", "serve-both"}, victim: []string{"status", "--json"},
		within: directions, want: nothing, may: []string{nothing}, besideWant: policyA, lists: true,
	})
	return list
}

// servingChanged are runs of shaper serve with changes.
func servingChanged() []*scenario {
	var list []*scenario
	for _, s := range []struct {
		name, dir string
		then      func(*attempt)
		ruled     bool
	}{
		{"serve-set", "serve-changes", changeInside(c1Off, unchanged, offTerms), false},
		{"serve-set-state", "serve-state", changeInside(fromFile, unchanged, fileTerms), false},
		{"serve-quota", "serve-quota", spendInside, true},
		{"serve-customer", "serve-api", addInside, false},
	} {
		list = append(list, &scenario{
			name: s.name, victim: []string{"serve", s.dir}, within: within("egress"), ready: 1, then: s.then,
			active: policyA, want: nothing, may: []string{nothing}, customers: true, ruled: s.ruled,
			added: s.dir == "serve-api",
		})
	}
	return append(list, &scenario{
		name: "set-serve", beside: []string{"serve", "serve-state"}, victim: setCommand("v0", c1Closed),
		within: within("egress"), want: nothing, may: []string{nothing}, besideWant: policyA, customers: true,
		terms: lessTerms, mayTerms: []string{unchanged, lessTerms},
	})
}

// customerCommand is shaper customer on a device.
func customerCommand(do, device, terms string) []string {
	return append([]string{"customer", do, device}, strings.Fields(terms)...)
}

// Customer c1 of the file with another plan, and as in the file again.
const (
	c1Added = "c1 address=10.0.0.11 plan=closed"
	c1Again = "c1 --reset"
)

// addInside adds a customer while the victim runs, which then ends.
func addInside(a *attempt) {
	a.insideBy(customerCommand("add", a.s.device(), c1Added), unchanged, lessTerms)
	a.terminate()
}

// adding are customers that are added and removed.
func adding() []*scenario {
	var list []*scenario
	for _, s := range []struct {
		name             string
		beside           []string
		first            string // added before
		do, terms        string
		from, to, device string
	}{
		{"customer-add", attach("ac", "tcx", "egress"), "", "add", c1Added, unchanged, lessTerms, "v0"},
		{"customer-add-state", attach("ac", "tcx", "egress", stateFlags...), "", "add", c1Added, unchanged, lessTerms, "v0"},
		{"customer-reset", attach("ac", "tc", "egress", stateFlags...), c1Added, "remove", c1Again, lessTerms, unchanged, "v0"},
		{"customer-list", attach("ac", "tcx", "egress"), c1Added, "list", "", lessTerms, lessTerms, "v0"},
		{"customer-serve", []string{"serve", "serve-api"}, "", "add", c1Added, unchanged, lessTerms, "v0"},
	} {
		x := &scenario{
			name: s.name, beside: s.beside, victim: customerCommand(s.do, s.device, s.terms),
			within: within("egress"), want: nothing, may: []string{nothing}, besideWant: policyA, customers: true,
			added: true, terms: s.to, mayTerms: []string{s.from, s.to},
		}
		if s.first != "" {
			x.first = customerCommand("add", s.device, s.first)
		}
		list = append(list, x)
	}
	for _, s := range []struct {
		name string
		more []string
	}{{"run-customer", nil}, {"run-customer-state", stateFlags}} {
		list = append(list, &scenario{
			name: s.name, victim: attach("ac", "tcx", "egress", s.more...), within: within("egress"), ready: 1,
			then: addInside, active: policyA, want: nothing, may: []string{nothing}, customers: true,
			added: true,
		})
	}
	return list
}

// addedCustomers returns the customers with another plan than in the file, as shaper customer lists them. ok
// is false if it does not.
func (a *attempt) addedCustomers() (list []change, ok bool) {
	if !a.s.added {
		return nil, true
	}
	r, _ := a.w.runCommand("customer", "list", a.s.device(), "--json")
	if r.code() != 0 { // the fault may be in the answer of the victim
		r, _ = a.w.runCommand("customer", "list", a.s.device(), "--json")
	}
	if r.code() != 0 {
		return nil, false
	}
	for d := json.NewDecoder(strings.NewReader(r.stdout())); ; {
		var row struct{ Name, Plan string }
		err := d.Decode(&row)
		if err == io.EOF {
			return list, true
		}
		if err != nil {
			a.problem("list: not JSON: %v: %s", err, r.stdout())
			return nil, false
		}
		if row.Plan == closed {
			list = append(list, change{Kind: "customer", Name: row.Name, Plan: row.Plan})
		}
	}
}
