package say

import (
	"cmp"
	"fmt"
	"math/big"
	"slices"
	"strings"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/meter/shared"
)

// Meter writes a meter's parameters in exact units.
func Meter(m *dataplane.Meter) string {
	parts := describeParams(m)
	switch {
	case m.Per.By != dataplane.NoKey:
		parts = append(parts, describeKeys(m))
	case m.Initial.Den != 0:
		parts = append(parts, fmt.Sprintf("initial %d/%d", m.Initial.Num, m.Initial.Den))
	}
	if m.Envelope != nil {
		parts = append(parts, fmt.Sprintf("rank %d in envelope %s", m.Rank, m.Envelope.Name))
	}
	if m.Budget != nil {
		parts = append(parts, Budget(m.Budget))
	}
	// Mode describes the input color; callers print the rest of a chain, and the limits of a flow.
	parts = append(parts, restWords(" ", m,
		"Name", "Params", "Aware", "PreColor", "Initial", "Packets", "Then", "Per", "Keys", "Idle",
		"Envelope", "Rank", "CIRMax", "EIRMax", "Budget")...)
	return strings.Join(parts, ", ")
}

// Budget names a budget, and its server unless it belongs to this host.
func Budget(b *dataplane.Budget) string {
	if b.OnHost() {
		text := "budget " + b.Name + " of this host"
		if b.Once {
			text += ", which charges a packet once"
		}
		return text
	}
	r := b.Resolved()
	text := fmt.Sprintf("budget %s on %v, reported every %v, rescue %s for all hosts together", b.Name,
		shared.Server(b.Address), r.Interval, portionOf(r.Rescue))
	if r.Weight != 1 {
		text += fmt.Sprintf(", weight %d", r.Weight)
	}
	return text
}

// portionOf writes a share exactly, in percent.
func portionOf(s dataplane.Fraction) string {
	r := new(big.Rat).SetFrac64(s.Num*100, s.Den)
	text := strings.TrimRight(r.FloatString(7), "0")
	return strings.TrimSuffix(text, ".") + "%"
}

// Parameter is a parameter of a meter.
type Parameter struct {
	Name  string // as RFCs spell it: CIR, but rate
	Value any    // as meter.Field returns it
	Text  string // in exact units; a burst with the time to fill it. "" for a flag, and if there is no value
}

// Parameters returns the parameters of a meter, in the order of the table of kinds. packets means
// that it counts packets.
func Parameters(p meter.Params, packets bool) []Parameter {
	kind := p.Kind().Info()
	bursts := map[string]meter.Bucket{}
	names := map[string]string{} // as RFCs spell them
	for _, b := range p.Buckets() {
		bursts[strings.ToLower(b.BurstName)] = b
		names[strings.ToLower(b.RateName)], names[strings.ToLower(b.BurstName)] = b.RateName, b.BurstName
	}
	var out []Parameter
	for _, name := range slices.Concat(kind.Required, kind.Optional) {
		text := ""
		value := meter.Field(p, name)
		switch v := value.(type) {
		case meter.Rate:
			text = Rate(v, packets)
		case int64:
			text = tokens(v, packets)
			if kind.State == meter.StateBuckets {
				text += fmt.Sprintf(" (%s)", FillTime(v, bursts[name].Rate))
			}
		case int:
			text = fmt.Sprintf("%d (%s)", v, Bytes(int64(v)*policyfile.EntryBytes))
		case bool:
		case time.Duration:
			if v != 0 {
				text = v.String()
			}
		default:
			text = fmt.Sprint(v)
		}
		out = append(out, Parameter{cmp.Or(names[name], name), value, text})
	}
	return out
}

// describeParams writes the parameters, without ineffective ones.
func describeParams(m *dataplane.Meter) []string {
	var parts []string
	for _, p := range Parameters(m.Params, m.Packets) {
		switch {
		case p.Text != "":
			parts = append(parts, p.Name+" "+p.Text)
		case p.Value == true:
			parts = append(parts, p.Name)
		}
	}
	return parts
}

// describeKeys writes the key of a per-key meter, and the properties of its table.
func describeKeys(m *dataplane.Meter) string {
	fresh, evicts := "full", "evicts the least recently used"
	if m.Initial.Den != 0 {
		fresh = "empty"
	}
	if m.Idle {
		evicts += " if it is idle"
	}
	text := fmt.Sprintf("per %v, at most %s, new ones start %s, %s", m.Per, Count(policyfile.Keys(m), "key"),
		fresh, evicts)
	if n, _ := policyfile.Memory(m); n > 0 {
		text += fmt.Sprintf(" (%s of entries)", Bytes(n))
	}
	return text
}

// Mode names the source of a meter's input color.
func Mode(m *dataplane.Meter) string {
	switch {
	case !m.Aware:
		return "color-blind"
	case m.PreColor.Map != nil:
		return fmt.Sprintf("color-aware by %v, own map", m.PreColor.From)
	}
	return fmt.Sprintf("color-aware by %v", m.PreColor.From)
}
