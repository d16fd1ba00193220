// Package lint finds likely mistakes in valid policies: bursts too small for a packet, unreachable
// classes, control traffic that can be dropped, and queues that can starve others.
package lint

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// Severity is the severity of a finding.
type Severity string

const (
	Warning Severity = "warning" // traffic may suffer
	Note    Severity = "note"    // probably harmless
)

// Finding is a likely mistake in a policy.
type Finding struct {
	Place string   `json:"place"` // file:line:column
	Level Severity `json:"level"`
	Text  string   `json:"text"`
}

// Options are properties of the network.
type Options struct {
	MTU int64         // largest IP packet, bytes
	RTT time.Duration // round-trip time of TCP flows

	// ChargedTwice returns a warning about users of a budget of this host that both charge a forwarded
	// packet, or ""; nil: unknown
	ChargedTwice func(budget string) string

	NoMarks string // the plane, if its packets have no skb mark; else ""
}

// gsoMax is the default maximum size of a GSO packet in the kernel, in bytes
// (GSO_LEGACY_MAX_SIZE).
const gsoMax = 65536

// linter collects findings.
type linter struct {
	*policyfile.File
	Options
	plan   *compiled.Plan
	found  []Finding
	effort int // comparisons made in unreached so far
}

// Policy returns the findings about a policy and its plan. Those that packets from the customers alone
// have are the last.
func Policy(f *policyfile.File, plan *compiled.Plan, o Options) []Finding {
	found := policy(f, plan, o)
	if plan.Up == nil {
		return found
	}
	known := map[Finding]bool{}
	for _, finding := range found {
		known[finding] = true
	}
	for _, finding := range policy(f.Of(plan.Up), plan.Up, o) {
		if !known[finding] {
			finding.Text += " (up)"
			found = append(found, finding)
		}
	}
	return found
}

// policy is Policy for one direction.
func policy(f *policyfile.File, plan *compiled.Plan, o Options) []Finding {
	l := &linter{File: f, Options: o, plan: plan}
	l.bursts()
	l.longBursts()
	l.rescueShares()
	l.chargedTwice()
	l.meterTypes()
	l.impossible()
	l.absentMarks()
	l.unreached()
	for i := range f.Policy.Classes {
		l.sameActions(&f.Policy.Classes[i])
		l.tcpBurst(&f.Policy.Classes[i])
	}
	l.controlTraffic()
	l.dropUnclassified()
	l.queues()
	l.unused()
	l.customers()
	return l.found
}

// Summary writes the number of warnings and notes.
func Summary(found []Finding) string {
	if len(found) == 0 {
		return "no findings"
	}
	warnings := Warnings(found)
	return fmt.Sprintf("%s, %s", say.Count(warnings, "warning"), say.Count(len(found)-warnings, "note"))
}

// Warnings returns the number of warnings.
func Warnings(found []Finding) (n int) {
	for _, f := range found {
		if f.Level == Warning {
			n++
		}
	}
	return n
}

func (l *linter) add(level Severity, object any, key, format string, args ...any) {
	l.found = append(l.found, Finding{l.Place(object, key), level, fmt.Sprintf(format, args...)})
}

// bursts finds bursts too small for a packet of the MTU, or for a GSO packet.
func (l *linter) bursts() {
	var small []string // below a GSO packet
	var first any
	var firstKey string
	for _, m := range l.metered() {
		if m.params.Kind().Info().State == meter.StateAverage || m.packets {
			continue // every packet fits
		}
		for _, b := range m.params.Buckets() {
			key := strings.ToLower(b.BurstName)
			switch {
			case b.Burst > 0 && b.Burst < l.MTU:
				l.add(Warning, m.object, key, "%s", l.neverFits(b))
			case b.Burst >= l.MTU && b.Burst < gsoMax:
				if first == nil {
					first, firstKey = m.object, key
				}
				small = append(small, fmt.Sprintf("%s.%s (%d B)", m.name, key, b.Burst))
			}
		}
	}
	if small != nil {
		l.add(Note, first, firstKey,
			"smaller than a GSO packet: %s: with TSO on, the kernel sends packets of up to %d bytes, which never fit",
			strings.Join(small, ", "), gsoMax)
	}
}

// neverFits describes a burst below the MTU.
func (l *linter) neverFits(b meter.Bucket) string {
	return fmt.Sprintf("%s of %d B is below the MTU: a packet of %d bytes never fits, even on an idle link%s",
		b.BurstName, b.Burst, l.MTU, burstClause(strings.ToLower(b.BurstName)))
}

// burstClause cites the RFC requiring a burst of at least the MTU. There is none for windows.
func burstClause(key string) string {
	if key == "limit" {
		return ""
	}
	return " (RFC 2697 §2)"
}

// plansDiffer reports whether a customer plan gives a color an action of its own.
func plansDiffer(c *dataplane.Customers, color meter.Color) bool {
	return slices.ContainsFunc(c.Plans, func(p *dataplane.ServicePlan) bool {
		return [...]*dataplane.Action{p.Green, p.Yellow, p.Red}[color] != nil
	})
}

// colors is policyfile.Colors, but for customers only the colors given by their plans.
func (l *linter) colors(c *dataplane.Class) []meter.Color {
	two := c.Match.Customer && !c.Meter.Aware && c.Meter.Then == nil
	if two && !slices.ContainsFunc(l.Policy.Customers.Plans, func(p *dataplane.ServicePlan) bool {
		return p.Params != nil && len(p.Params.Buckets()) > 1
	}) {
		return []meter.Color{meter.Green, meter.Red}
	}
	return policyfile.Colors(c)
}

// sameActions finds colors treated alike by a class.
func (l *linter) sameActions(c *dataplane.Class) {
	colors := l.colors(c)
	for i, color := range colors[1:] {
		if c.Match.Customer &&
			(plansDiffer(l.Policy.Customers, colors[i]) || plansDiffer(l.Policy.Customers, color)) {
			continue
		}
		if before := colors[i]; sameAction(c.Action(before), c.Action(color)) &&
			!differentWRED(c, before, color) {
			if before == meter.Yellow && l.boosts(c) {
				continue
			}
			l.add(Note, c, color.String(),
				"class %s treats %v and %v alike: the meter's distinction between them is lost", c.Name,
				before, color)
		}
	}
}

// boosts reports whether a class drops yellow packets for a speed boost.
func (l *linter) boosts(c *dataplane.Class) bool {
	if !c.Action(meter.Yellow).Drop {
		return false
	}
	if c.Match.Customer {
		return slices.ContainsFunc(l.Policy.Customers.Plans,
			func(p *dataplane.ServicePlan) bool { return p.Params != nil && boost(p.Params) })
	}
	return boost(c.Meter.Params)
}

// differentWRED reports whether the queue of two colors drops them differently.
func differentWRED(c *dataplane.Class, a, b meter.Color) bool {
	q := c.Action(a).Queue
	return q != nil && q.WRED[a] != q.WRED[b]
}

func sameAction(a, b dataplane.Action) bool {
	return a.Drop == b.Drop && a.ECN == b.ECN && a.Queue == b.Queue && slices.Equal(a.Marks, b.Marks)
}

// tcpBurst compares the burst of a policer with the bytes that TCP has in flight. To fill a rate, a
// flow keeps rate * RTT in flight. If the burst is smaller, the policer drops packets before TCP
// reaches the rate.
func (l *linter) tcpBurst(c *dataplane.Class) {
	if c.Meter == nil || c.Match.Customer || c.Meter.Packets || !c.Action(meter.Red).Drop ||
		!matchesTCP(&c.Match) {
		return
	}
	rate, burst, key := redLimit(c.Meter.Params)
	need, ok := rate.Burst(l.RTT)
	if ok && burst < need {
		l.add(Warning, c.Meter, key,
			"class %s has a burst of %s bytes; a TCP flow needs %s bytes in flight to fill %v at a %v RTT and will fall short",
			c.Name, say.Grouped(burst), say.Grouped(need), rate, l.RTT)
	}
}

// redLimit returns the rate and the burst beyond which packets are red, and the name of the burst.
// Averages lack a burst.
func redLimit(p meter.Params) (meter.Rate, int64, string) {
	kind, buckets := p.Kind().Info(), p.Buckets()
	if kind.State == meter.StateAverage {
		return meter.Rate{}, 0, ""
	}
	b := buckets[len(buckets)-1]
	// yellow packets take from the second bucket alone
	if first := buckets[0]; len(buckets) > 1 && !kind.Peak {
		b.Burst += first.Burst
		if first.Rate.Cmp(b.Rate) > 0 {
			b.Rate = first.Rate
		}
	}
	return b.Rate, b.Burst, strings.ToLower(b.BurstName)
}

func matchesTCP(m *dataplane.Match) bool {
	return m.Proto == nil ||
		slices.ContainsFunc(m.Proto, func(r dataplane.Range) bool { return r.First <= 6 && 6 <= r.Last })
}

// unused finds meters, queues and envelopes that no class uses.
func (l *linter) unused() {
	used := l.plan.Meters()
	for _, m := range l.File.Policy.Meters {
		if !slices.Contains(used, m) {
			l.add(Note, m, "", "no class uses meter %s", m.Name)
		}
	}
	for _, q := range l.File.Policy.Queues {
		if slices.ContainsFunc(l.plan.Queues, func(p compiled.Queue) bool { return p.Source == q }) {
			continue
		}
		if l.Flags { // --queue was given, but the default actions police
			l.add(Warning, q, "", "no action uses --queue: add --red queue or --green queue")
			continue
		}
		l.add(Note, q, "", "no action uses queue %s", q.Name)
	}
	for _, e := range l.File.Policy.Envelopes {
		flows := 0
		for _, m := range used {
			if m.Envelope == e {
				flows++
			}
		}
		switch {
		case flows == 0:
			l.add(Note, e, "", "envelope %s has no flow", e.Name)
		case flows == 1 && e.Coupling:
			l.add(Note, e, "coupling",
				"envelope %s has coupling, but only one flow: set coupling on that flow (MEF 10.3 [R142])",
				e.Name)
		}
	}
}
