// Package lint finds what compiles and is probably not meant: bursts that no
// packet fits, classes that are never reached, control traffic that is dropped,
// queues that starve others.
package lint

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// Level says how much a finding matters.
type Level string

const (
	Warning Level = "warning" // traffic suffers
	Note    Level = "note"    // worth knowing
)

// Finding is something about a policy, at its place.
type Finding struct {
	Place string `json:"place"`
	Level Level  `json:"level"`
	Text  string `json:"text"`
}

// Options are what lints depend on.
type Options struct {
	MTU int64 // bytes of the largest IP packet
	RTT time.Duration
}

// gsoMax is the largest packet that the kernel hands down in one piece unless
// told otherwise (GSO_LEGACY_MAX_SIZE).
const gsoMax = 65536

// linter collects findings.
type linter struct {
	*policyfile.File
	Options
	plan   *dataplane.Plan
	found  []Finding
	effort int // of reached so far
}

// Policy lints a policy and its plan.
func Policy(f *policyfile.File, plan *dataplane.Plan, o Options) []Finding {
	l := &linter{File: f, Options: o, plan: plan}
	l.bursts()
	l.budgets()
	l.meters()
	l.reached()
	for i := range f.Policy.Classes {
		l.fates(&f.Policy.Classes[i])
		l.tcp(&f.Policy.Classes[i])
	}
	l.control()
	l.otherwise()
	l.queues()
	l.unused()
	return l.found
}

// Summary counts findings for people.
func Summary(found []Finding) string {
	warnings := 0
	for _, f := range found {
		if f.Level == Warning {
			warnings++
		}
	}
	if len(found) == 0 {
		return "no findings"
	}
	return fmt.Sprintf("%s, %s", say.Count(warnings, "warning"), say.Count(len(found)-warnings, "note"))
}

func (l *linter) add(level Level, object any, key, format string, args ...any) {
	l.found = append(l.found, Finding{l.Place(object, key), level, fmt.Sprintf(format, args...)})
}

// bursts looks for what no packet fits.
func (l *linter) bursts() {
	var small []string // below a GSO packet
	var first *dataplane.Meter
	var firstKey string
	for _, m := range l.plan.Meters() {
		if m.Params.Kind().Info().State == meter.StateAverage || m.Packets {
			continue // every packet fits
		}
		for _, b := range m.Params.Buckets() {
			key := strings.ToLower(b.BurstName)
			switch {
			case b.Burst > 0 && b.Burst < l.MTU:
				l.add(Warning, m, key, "%s of %d B is below the MTU: a packet of %d bytes never fits, even on an idle link%s", b.BurstName, b.Burst, l.MTU, clause(key))
			case b.Burst >= l.MTU && b.Burst < gsoMax:
				if first == nil {
					first, firstKey = m, key
				}
				small = append(small, fmt.Sprintf("%s.%s (%d B)", m.Name, key, b.Burst))
			}
		}
	}
	if small != nil {
		l.add(Note, first, firstKey, "smaller than a GSO packet: %s: with TSO on, the kernel sends packets of up to %d bytes, which never fit", strings.Join(small, ", "), gsoMax)
	}
}

// clause is what wants a burst of an MTU. Windows are in no RFC.
func clause(key string) string {
	if key == "limit" {
		return ""
	}
	return " (RFC 2697 §2)"
}

// fates looks for two colors that end alike.
func (l *linter) fates(c *dataplane.Class) {
	colors := policyfile.Colors(c)
	for i, color := range colors[1:] {
		if before := colors[i]; same(c.Action(before), c.Action(color)) && !queuedApart(c, before, color) {
			l.add(Note, c, color.String(), "class %s treats %v and %v alike: the meter's distinction between them is lost", c.Name, before, color)
		}
	}
}

// queuedApart says whether the queue of two colors tells them apart.
func queuedApart(c *dataplane.Class, a, b meter.Color) bool {
	q := c.Action(a).Queue
	return q != nil && q.WRED[a] != q.WRED[b]
}

func same(a, b dataplane.Action) bool {
	if a.Drop != b.Drop || a.ECN != b.ECN || a.Queue != b.Queue || len(a.Marks) != len(b.Marks) {
		return false
	}
	for i := range a.Marks {
		if a.Marks[i] != b.Marks[i] {
			return false
		}
	}
	return true
}

// tcp compares the depth of what passes with what TCP has in flight. A flow
// that fills a rate keeps rate * RTT in flight; a policer that holds less
// drops before TCP gets there.
func (l *linter) tcp(c *dataplane.Class) {
	if c.Meter == nil || c.Meter.Packets || !c.Action(meter.Red).Drop || !takesTCP(&c.Match) {
		return
	}
	rate, burst, key := limit(c.Meter.Params)
	need, ok := rate.Burst(l.RTT)
	if ok && burst < need {
		l.add(Warning, c.Meter, key, "class %s has a burst of %s bytes; a TCP flow needs %s bytes in flight to fill %v at a %v RTT and will fall short",
			c.Name, say.Grouped(burst), say.Grouped(need), rate, l.RTT)
	}
}

// limit returns the rate and depth beyond which a meter gives red, and the name of the
// burst. An average has no depth.
func limit(p dataplane.Params) (meter.Rate, int64, string) {
	kind, buckets := p.Kind().Info(), p.Buckets()
	if kind.State == meter.StateAverage {
		return meter.Rate{}, 0, ""
	}
	b := buckets[len(buckets)-1]
	if first := buckets[0]; len(buckets) > 1 && !kind.Peak {
		b.Burst += first.Burst
		if first.Rate.Cmp(b.Rate) > 0 {
			b.Rate = first.Rate
		}
	}
	return b.Rate, b.Burst, strings.ToLower(b.BurstName)
}

func takesTCP(m *dataplane.Match) bool {
	if m.Proto == nil {
		return true
	}
	for _, r := range m.Proto {
		if r.First <= 6 && 6 <= r.Last {
			return true
		}
	}
	return false
}

// unused looks for meters, queues and envelopes that nothing leads to.
func (l *linter) unused() {
	led := l.plan.Meters()
	for _, m := range l.File.Policy.Meters {
		if !slices.Contains(led, m) {
			l.add(Note, m, "", "no class uses meter %s", m.Name)
		}
	}
	for _, q := range l.File.Policy.Queues {
		if slices.ContainsFunc(l.plan.Queues, func(p dataplane.PlanQueue) bool { return p.Source == q }) {
			continue
		}
		if l.Flags { // whose actions police where a queue was wanted
			l.add(Warning, q, "", "no action uses --queue: add --red queue or --green queue")
			continue
		}
		l.add(Note, q, "", "no action uses queue %s", q.Name)
	}
	for _, e := range l.File.Policy.Envelopes {
		flows := 0
		for _, m := range led {
			if m.Envelope == e {
				flows++
			}
		}
		switch {
		case flows == 0:
			l.add(Note, e, "", "envelope %s has no flow", e.Name)
		case flows == 1 && e.Coupling:
			l.add(Note, e, "coupling", "envelope %s has coupling, but only one flow: set coupling on that flow (MEF 10.3 [R142])", e.Name)
		}
	}
}
