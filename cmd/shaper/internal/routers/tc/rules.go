package tc

import (
	"cmp"
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/routers"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// tcRule is the effect of one or several filters: a class of the policy.
type tcRule struct {
	name     string // of a comment, or ""
	lines    []routers.Line
	match    dataplane.Match
	total    []dataplane.Range // as in tcFilter
	class    uint32
	meters   []*tcPolice // none, or one; two are a meter of three colors
	later    bool        // the second meter counts packets in excess of the first (RFC 4115)
	outcomes [3]tcOutcome
	next     *tcRule // for colors that continue: the rule of a later filter for the same packets
}

// rule returns the rule of a filter.
func (f *tcFilter) rule() (*tcRule, error) {
	r := &tcRule{
		name: f.labels.class, lines: []routers.Line{f.Line}, match: f.match, total: f.total, class: f.class,
	}
	i := slices.IndexFunc(f.actions, func(a tcAction) bool { return a.police != nil })
	if i < 0 {
		o, err := outcome(f.actions, nil)
		r.outcomes = [3]tcOutcome{o, o, o}
		return r, err
	}
	before, err := outcome(f.actions[:i], nil)
	if err != nil {
		return nil, err
	}
	if before.verdict != tcOK ||
		slices.ContainsFunc(f.actions[:i], func(a tcAction) bool { return a.then != tcPipe }) {
		return nil, errors.New("the actions before police end, so police has no effect")
	}
	rest := f.actions[i+1:]
	first := f.actions[i].police
	r.meters = append(r.meters, first)
	end := func(v verdict, actions []tcAction, marks []dataplane.Mark) tcOutcome {
		if v != tcPipe {
			actions = []tcAction{{then: v}}
		}
		o, e := outcome(actions, marks)
		err = cmp.Or(err, e)
		return o
	}
	j := slices.IndexFunc(rest, func(a tcAction) bool { return a.police != nil })
	if j < 0 || first.conform != tcPipe && first.exceed != tcPipe {
		r.outcomes[meter.Green] = end(first.conform, rest, before.marks)
		r.outcomes[meter.Red] = end(first.exceed, rest, before.marks)
		return r, err
	}
	if first.conform == tcPipe && first.exceed == tcPipe {
		return nil, errors.New(
			"packets that conform to police and packets that exceed it go to the same second police")
	}
	middle, e := outcome(rest[:j], before.marks)
	if e != nil || slices.ContainsFunc(rest[:j], func(a tcAction) bool { return a.then != tcPipe }) {
		return nil, errors.New("the actions between two police actions cannot be expressed")
	}
	second := rest[j].police
	rest = rest[j+1:]
	r.meters = append(r.meters, second)
	conforms, exceeds := end(second.conform, rest, middle.marks), end(second.exceed, rest, middle.marks)
	r.later = first.exceed == tcPipe
	if r.later { // RFC 4115: packets in excess of C may take from E
		r.outcomes = [3]tcOutcome{end(first.conform, nil, before.marks), conforms, exceeds}
	} else { // RFC 2698: packets in excess of P are red and take nothing; C decides about the rest
		r.outcomes = [3]tcOutcome{conforms, exceeds, end(first.exceed, nil, before.marks)}
	}
	return r, err
}

// sameFate reports whether two rules differ only in their match, so they are one class.
func (r *tcRule) sameFate(o *tcRule) bool {
	if r.name != o.name || r.class != o.class || r.later != o.later || len(r.meters) != len(o.meters) ||
		(r.next == nil) != (o.next == nil) {
		return false
	}
	if r.next != nil && !r.next.sameFate(o.next) {
		return false
	}
	for i, m := range r.meters {
		if m.index == 0 || m.index != o.meters[i].index || m.conform != o.meters[i].conform ||
			m.exceed != o.meters[i].exceed {
			return false
		}
	}
	return slices.EqualFunc(r.outcomes[:], o.outcomes[:], func(a, b tcOutcome) bool {
		return a.verdict == b.verdict && slices.Equal(a.marks, b.marks)
	})
}

// continues reports whether packets of some color go to the next filter.
func (r *tcRule) continues() bool {
	return slices.ContainsFunc(r.outcomes[:], func(o tcOutcome) bool { return o.verdict == tcContinue })
}

// followRules finds the successors of rules that continue: the next filter for the same packets. It
// removes the successors that no other packets reach.
func followRules(rules []*tcRule) (out []*tcRule) {
	const window = 2 * maxFilters // export writes at most this number of filters for a class
	followed := map[*tcRule]bool{}
	for i, r := range rules {
		if !r.continues() {
			continue
		}
		later := rules[i+1:]
		n := slices.IndexFunc(later[:min(len(later), window)],
			func(o *tcRule) bool { return !routers.Disjoint(&r.match, &o.match) })
		switch {
		case n < 0 && len(later) <= window:
			r.next = passRule
		case n >= 0 && later[n].match.Covers(&r.match) && len(later[n].meters) == 0 && !later[n].continues():
			r.next = later[n]
			followed[r.next] = r.match.Covers(&r.next.match)
		}
	}
	for _, r := range rules {
		if !followed[r] {
			out = append(out, r)
		}
	}
	return out
}

// takesAll reports whether a rule leaves no packets to later ones.
func (r *tcRule) takesAll() bool {
	return !r.continues() && len(r.total) == 0 && r.match.Covers(&dataplane.Match{Length: anyLength})
}

// passRule is the rule of packets that no filter matches.
var passRule = &tcRule{outcomes: [3]tcOutcome{{verdict: tcOK}, {verdict: tcOK}, {verdict: tcOK}}}

// mergeRules unites rules with the same fate whose matches differ in one field: first those of one
// family, then IPv4 and IPv6.
func mergeRules(rules []*tcRule) []*tcRule { return mergeAdjacent(mergeAdjacent(rules, false), true) }

func mergeAdjacent(rules []*tcRule, families bool) (out []*tcRule) {
	for _, r := range rules {
		out = append(out, r)
		for len(out) > 1 {
			a, b := out[len(out)-2], out[len(out)-1]
			m, ok := routers.Unite(a.match, b.match, families)
			if !ok || !a.sameFate(b) {
				break
			}
			a.match = m
			a.lines = append(a.lines, b.lines...)
			out = out[:len(out)-1]
		}
	}
	return out
}

// whichLines returns the lines of a rule for a comment.
func whichLines(lines []routers.Line) string {
	if len(lines) == 1 {
		return lines[0].Text()
	}
	var numbers []string
	for _, l := range lines[1:min(len(lines), 8)] {
		numbers = append(numbers, strconv.Itoa(l.Number))
	}
	if len(lines) > 8 {
		numbers = append(numbers, "more")
	}
	return "and of lines " + strings.Join(numbers, ", ")
}
