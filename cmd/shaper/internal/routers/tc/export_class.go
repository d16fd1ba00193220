package tc

import (
	"fmt"
	"slices"
	"strings"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// exportedMeter is a meter as police actions.
type exportedMeter struct {
	indexes []int
	plan    string // controls of the actions
}

// fate is the result of the actions of a filter for a color.
type fate struct {
	verdict verdict
	action  dataplane.Action
}

// class writes the filters of a class. If a color has another queue than the others, it continues
// with a second filter for the same packets.
func (x *tcExport) class(c *dataplane.Class) {
	what := "class " + c.Name
	plain := *c
	c = &plain
	c.Meter = x.plainMeter(what, c.Meter)
	fates, main, other, ok := x.fates(what, c)
	if !ok {
		return
	}
	problems := len(x.Problems)
	matches := x.matches(what, c.Match)
	if len(x.Problems) > problems { // without a part of its condition it would match other packets
		return
	}
	x.line("")
	x.label("class", c.Name)
	for i, m := range matches {
		x.filter(m, x.actions(what, c, fates, main, m, i == 0), main.Queue)
	}
	if other == nil {
		return
	}
	for _, m := range matches {
		actions := x.marks(what, other.Marks, m)
		if other.Drop {
			actions = " action drop"
		} else if actions != "" {
			actions += " action ok"
		}
		x.filter(m, actions, other.Queue)
	}
}

// plainMeter returns the meter without the options that tc does not have, or nil if it has no such
// meter.
func (x *tcExport) plainMeter(what string, m *dataplane.Meter) *dataplane.Meter {
	if m == nil {
		return nil
	}
	for _, part := range []struct {
		used bool
		name string
	}{
		{m.Aware, "color: aware"},
		{m.Then != nil, "then"},
		{m.Initial.Num != m.Initial.Den, "initial: police starts full"},
	} {
		if part.used {
			x.Cannot("%s: %s", what, part.name)
		}
	}
	x.Unsaid(what, m, notOfTC,
		"Name", "Params", "Aware", "PreColor", "Initial", "Packets", "Then", "Per", "Keys", "Idle",
		"Envelope", "Rank", "CIRMax", "EIRMax", "Budget")
	switch p := m.Params.(type) {
	case meter.TokenBucket:
		x.Unsaid(what, p, notOfTC, "Rate", "Burst", "Warmup", "GCRA")
		if p.GCRA || p.Warmup != 0 {
			x.Cannot("%s: gcra and warmup", what)
		}
	case meter.TRTCM:
		x.Unsaid(what, p, notOfTC, "CIR", "CBS", "PIR", "PBS")
	case meter.TRTCM4115:
		x.Unsaid(what, p, notOfTC, "CIR", "CBS", "EIR", "EBS", "Coupling")
		if p.Coupling {
			x.Cannot("%s: coupling", what)
		}
	case nil:
		x.Cannot("%s: the meter of a plan", what)
		return nil
	default:
		x.Cannot("%s: meter %v: tc has token buckets", what, p.Kind())
		return nil
	}
	for _, part := range []struct {
		used bool
		name string
	}{
		{m.Per != (dataplane.Key{}), "per"},
		{m.Envelope != nil, "envelope"},
		{m.Budget != nil, "share"},
	} {
		if part.used {
			x.Cannot("%s: %s", what, part.name)
			return nil
		}
	}
	return m
}

// colors are the colors of a meter, in the order green, yellow, red.
func colors(m *dataplane.Meter) []meter.Color {
	switch {
	case m == nil, m.Params == nil:
		return []meter.Color{meter.Green}
	case len(m.Params.Buckets()) == 1:
		return []meter.Color{meter.Green, meter.Red}
	}
	return []meter.Color{meter.Green, meter.Yellow, meter.Red}
}

// fates decides how each color gets its action. main is the action of most colors; with the verdict
// ok they get it without its marks. other is the action of colors that continue with the next filter.
func (x *tcExport) fates(
	what string, c *dataplane.Class,
) (fates [3]fate, main dataplane.Action, other *dataplane.Action, ok bool) {
	all := colors(c.Meter)
	have := false
	for _, color := range all {
		a := c.Action(color)
		x.Unsaid(what, &a, notOfTC, "Drop", "ECN", "Marks", "Queue")
		if a.ECN != dataplane.NoECN {
			x.Cannot("%s: action ecn", what)
			return
		}
		for _, m := range a.Marks {
			x.Unsaid(what, m, notOfTC, "Field", "Value")
			if m.Field != dataplane.DSCP && m.Field != dataplane.SKBMark {
				x.Cannot("%s: action %v", what, m.Field)
				return
			}
		}
		if !a.Drop && !have {
			main, have = dataplane.Action{Queue: a.Queue}, true
		}
	}
	for _, color := range all {
		a := c.Action(color)
		f := &fates[color]
		f.action = a
		switch {
		case a.Drop:
			f.verdict = tcDrop
		case a.Queue == main.Queue && len(a.Marks) == 0:
			f.verdict = tcOK
		case a.Queue == main.Queue && x.canPipe(c.Meter, color) &&
			(len(main.Marks) == 0 || slices.Equal(main.Marks, a.Marks)):
			f.verdict = tcPipe
			main.Marks = a.Marks
		case other == nil || other.Queue == a.Queue && slices.Equal(other.Marks, a.Marks):
			f.verdict = tcContinue
			other = &f.action
		default:
			x.Cannot("%s: more than two different actions that do not drop", what)
			return
		}
	}
	return fates, main, other, true
}

// canPipe reports whether actions can follow the police action for a color. The first of two police
// actions needs pipe for the second one.
func (x *tcExport) canPipe(m *dataplane.Meter, color meter.Color) bool {
	if m == nil {
		return true
	}
	switch m.Params.(type) {
	case meter.TRTCM:
		return color != meter.Red
	case meter.TRTCM4115:
		return color != meter.Green
	}
	return true
}

// actions writes the actions of a filter. first is the first filter of the class; it has the
// parameters of its police actions, and later ones their index.
func (x *tcExport) actions(
	what string, c *dataplane.Class, fates [3]fate, main dataplane.Action, m exportedMatch, first bool,
) string {
	marks := x.marks(what, main.Marks, m)
	if marks != "" {
		marks += " action ok"
	}
	if c.Meter == nil {
		if fates[meter.Green].verdict == tcDrop {
			return " action drop"
		}
		return marks
	}
	v := [3]verdict{fates[0].verdict, fates[1].verdict, fates[2].verdict}
	switch p := c.Meter.Params.(type) {
	case meter.TokenBucket:
		return x.policed(what, c, first, []bucket{{p.Rate, p.Burst, v[meter.Red], v[meter.Green]}}) + marks
	case meter.TRTCM:
		return x.policed(what, c, first, []bucket{
			{p.PIR, p.PBS, v[meter.Red], tcPipe}, {p.CIR, p.CBS, v[meter.Yellow], v[meter.Green]},
		}) + marks
	case meter.TRTCM4115:
		return x.policed(what, c, first, []bucket{
			{p.CIR, p.CBS, tcPipe, v[meter.Green]}, {p.EIR, p.EBS, v[meter.Red], v[meter.Yellow]},
		}) + marks
	}
	return "" // plainMeter allows no others
}

// bucket is a police action.
type bucket struct {
	rate            meter.Rate
	burst           int64
	exceed, conform verdict
}

// policed writes police actions.
func (x *tcExport) policed(what string, c *dataplane.Class, first bool, buckets []bucket) (s string) {
	known := x.police[c.Meter]
	var plan strings.Builder
	for _, b := range buckets {
		fmt.Fprint(&plan, b.exceed, "/", b.conform, " ")
	}
	if known != nil && first && known.plan != plan.String() {
		x.Cannot("%s: it shares a meter with a class that has other actions", what)
	}
	if known != nil {
		for _, i := range known.indexes {
			s += fmt.Sprintf(" action police index %d", i)
		}
		return s
	}
	e := &exportedMeter{plan: plan.String()}
	x.police[c.Meter] = e
	for _, b := range buckets {
		x.index++
		e.indexes = append(e.indexes, x.index)
		s += fmt.Sprintf(" action police index %d%s conform-exceed %s/%s", x.index,
			x.bucket(what, c.Meter, b), b.exceed, b.conform)
	}
	return s
}

// maxMTU is the longest packet that police may pass, bytes: that of GSO.
const maxMTU = 1 << 16

// bucket writes the rate and the burst of a police action.
func (x *tcExport) bucket(what string, m *dataplane.Meter, b bucket) string {
	if m.Packets {
		n, ok := b.rate.Burst(second)
		if !ok || b.rate != meter.Per(n, second) && b.rate.Cmp(meter.Per(n, second)) != 0 || n >= 1<<32 ||
			b.burst >= 1<<32 {
			x.Cannot("%s: rate %v is not a whole number of packets per second", what, b.rate)
		}
		return fmt.Sprintf(" pkts_rate %d pkts_burst %d", n, b.burst)
	}
	rate, bytes := x.rate(what, b.rate)
	if b.burst == 0 {
		x.Cannot("%s: a burst of zero", what)
	}
	x.checkBytes(what, bytes, b.burst)
	if b.burst < maxMTU {
		x.Note("police counts a GSO packet as one packet of up to %d bytes, which never fits a smaller burst: ethtool -K %s tso off gso off",
			maxMTU, x.device)
	}
	if bytes > 0 {
		if low, high := storedBursts(bytes, b.burst); low != b.burst || high != b.burst {
			x.Note("%s: tc converts burst %d to a time, which it rounds: the kernel gets %d bytes before iproute2 6.15, %d since",
				what, b.burst, low, high)
		}
	}
	return fmt.Sprintf(" rate %s burst %d mtu %d%s", rate, b.burst, maxMTU, x.sizes())
}

// marks writes actions that mark packets.
func (x *tcExport) marks(what string, marks []dataplane.Mark, m exportedMatch) (s string) {
	for _, mark := range marks {
		switch {
		case mark.Field == dataplane.SKBMark:
			s += fmt.Sprintf(" action skbedit mark %d pipe", mark.Value)
		case m.family == etherIPv4:
			s += fmt.Sprintf(
				" action pedit ex munge ip dsfield set %#02x retain 0xfc pipe action csum ip4h pipe",
				mark.Value<<2)
		case m.family == etherIPv6:
			s += fmt.Sprintf(" action pedit ex munge ip6 traffic_class set %#02x retain 0xfc pipe",
				mark.Value<<2)
		default:
			x.Cannot("%s: action dscp for packets of any protocol: tc needs one", what)
		}
	}
	return s
}

// filter writes a filter.
func (x *tcExport) filter(m exportedMatch, actions string, queue *dataplane.Queue) {
	class := "1:"
	if queue != nil {
		class = x.queues[queue]
	}
	x.pref++
	x.line("tc filter add dev %s parent 1: pref %d protocol %s %s%s flowid %s", x.device, x.pref, m.protocol,
		m.match, actions, class)
}
