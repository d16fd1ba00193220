package check

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/meter/shared"
)

// checkKeysJSON holds the properties of a per-key meter.
type checkKeysJSON struct {
	Per   string `json:"per"`
	Keys  int    `json:"keys"` // maximum
	New   string `json:"new"`
	Evict string `json:"evict"`
}

// parameterJSON is a parameter of a meter outside of its buckets, under its name with the unit.
type parameterJSON struct {
	name  string
	value any
}

// MarshalJSON writes the parameters as the last properties of the meter.
func (m checkMeterJSON) MarshalJSON() ([]byte, error) {
	type fields checkMeterJSON // without this method
	var out bytes.Buffer
	if err := say.WriteJSON(&out, fields(m)); err != nil {
		return nil, err
	}
	out.Truncate(out.Len() - len("}\n"))
	for _, p := range m.parameters {
		value, err := json.Marshal(p.value)
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(&out, ",%q:%s", p.name, value)
	}
	out.WriteByte('}')
	return out.Bytes(), nil
}

// checkEnvelopeJSON lists its flows from the highest rank to the lowest.
type checkEnvelopeJSON struct {
	Name     string          `json:"name"`
	CIRMax   *checkRateJSON  `json:"cirmax"` // null: no limit
	EIRMax   *checkRateJSON  `json:"eirmax"`
	Coupling bool            `json:"coupling,omitempty"`
	Flows    []checkFlowJSON `json:"flows"`
}

type checkRateJSON struct {
	Amount   int64 `json:"rate_amount"`
	PeriodNS int64 `json:"rate_period_ns"`
}

// checkFlowJSON contains only limits that differ from those of the envelope.
type checkFlowJSON struct {
	Meter  string         `json:"meter"`
	Rank   int            `json:"rank"`
	CIRMax *checkRateJSON `json:"cirmax,omitempty"`
	EIRMax *checkRateJSON `json:"eirmax,omitempty"`
}

// checkBudgetJSON contains only a name, the store "host" and the count if the budget belongs to this host.
type checkBudgetJSON struct {
	Name       string  `json:"name"`
	Store      string  `json:"store"`           // URL without a password
	Count      string  `json:"count,omitempty"` // each or once, of a budget of this host
	IntervalNS int64   `json:"interval_ns,omitempty"`
	Rescue     float64 `json:"rescue,omitempty"` // part of the budget, for all hosts together
	Weight     int     `json:"weight,omitempty"`
}

func budgetJSON(b *dataplane.Budget) *checkBudgetJSON {
	if b.OnHost() {
		return &checkBudgetJSON{
			Name: b.Name, Store: "host", Count: map[bool]string{false: "each", true: "once"}[b.Once],
		}
	}
	r := b.Resolved()
	return &checkBudgetJSON{
		b.Name, shared.Server(b.Address).String(), "", int64(r.Interval),
		float64(r.Rescue.Num) / float64(r.Rescue.Den), r.Weight,
	}
}

// inputColorJSON is the source of the input color of packets: green for values not listed.
type inputColorJSON struct {
	From   string            `json:"from"` // dscp, pcp, dei, mpls or mark
	Colors map[uint32]string `json:"colors"`
}

func meterJSON(m *dataplane.Meter) checkMeterJSON {
	if m.Params == nil { // of customers
		return checkMeterJSON{
			Name: m.Name, Type: "plan", Aware: m.Aware, Packets: m.Packets, Buckets: []checkBucketJSON{},
		}
	}
	kind := m.Params.Kind().Info()
	out := checkMeterJSON{
		Name: m.Name, Type: kind.Name, Aware: m.Aware, Packets: m.Packets,
		parameters: parametersJSON(m.Params, slices.Concat(kind.Required, kind.Optional)),
	}
	for _, b := range m.Params.Buckets() {
		out.Buckets = append(out.Buckets,
			checkBucketJSON{b.BurstName, b.Burst, b.Rate.Bytes, int64(b.Rate.Period)})
	}
	if m.Aware {
		out.InputColor = &inputColorJSON{m.PreColor.From.String(), map[uint32]string{}}
		for value, color := range m.PreColor.Table() {
			out.InputColor.Colors[value] = color.String()
		}
	}
	if m.Per.By == dataplane.NoKey && m.Initial.Den != 0 {
		out.Initial = new(float64(m.Initial.Num) / float64(m.Initial.Den))
	}
	if m.Per.By != dataplane.NoKey {
		out.checkKeysJSON = &checkKeysJSON{
			Per: m.Per.String(), Keys: policyfile.Keys(m), New: "full", Evict: "lru",
		}
		if m.Initial.Den != 0 {
			out.New = "empty"
		}
		if m.Idle {
			out.Evict = "idle"
		}
	}
	if m.Envelope != nil {
		out.Envelope, out.Rank = m.Envelope.Name, m.Rank
	}
	if m.Budget != nil {
		out.Budget = budgetJSON(m.Budget)
	}
	return out
}

// parametersJSON returns the named parameters, without those in the buckets of the meter. A limit and its
// window are also a bucket; a target rate is a bucket with the bytes that it allows in the window. Zeros are
// left out, except a seed. parametersJSON panics if a parameter has a type without a unit.
func parametersJSON(p meter.Params, names []string) (out []parameterJSON) {
	buckets := p.Buckets()
	for _, name := range names {
		if slices.ContainsFunc(buckets, func(b meter.Bucket) bool {
			return strings.EqualFold(b.RateName, name) || strings.EqualFold(b.BurstName, name)
		}) {
			continue
		}
		value := meter.Field(p, name)
		if _, seed := value.(uint64); seed || !reflect.ValueOf(value).IsZero() {
			out = append(out, parameterOf(p, name)...)
		}
	}
	return out
}

// flowsOf returns the used flows of an envelope, from the highest rank to the lowest.
func flowsOf(plan *compiled.Plan, e *dataplane.Envelope) []*dataplane.Meter {
	flows := slices.DeleteFunc(plan.Meters(), func(m *dataplane.Meter) bool { return m.Envelope != e })
	slices.SortFunc(flows, func(a, b *dataplane.Meter) int { return b.Rank - a.Rank })
	return flows
}

func envelopeJSON(e *dataplane.Envelope, flows []*dataplane.Meter) checkEnvelopeJSON {
	rate := func(r *meter.Rate) *checkRateJSON {
		if r == nil {
			return nil
		}
		return &checkRateJSON{r.Bytes, int64(r.Period)}
	}
	cirmax, eirmax := e.Limits()
	out := checkEnvelopeJSON{
		Name: e.Name, CIRMax: rate(cirmax), EIRMax: rate(eirmax), Coupling: e.Coupling,
		Flows: []checkFlowJSON{},
	}
	for _, m := range flows {
		out.Flows = append(out.Flows, checkFlowJSON{m.Name, m.Rank, rate(m.CIRMax), rate(m.EIRMax)})
	}
	return out
}

// envelope prints an envelope and its flows from the highest rank to the lowest.
func (p policyPrinter) envelope(e *dataplane.Envelope, flows []*dataplane.Meter) {
	rate := func(r *meter.Rate) string {
		if r == nil {
			return "no limit"
		}
		return say.Rate(*r, e.Packets)
	}
	cirmax, eirmax := e.Limits()
	p.Printf("\nenvelope %s\n  cirmax  %s\n  eirmax  %s\n", e.Name, rate(cirmax), rate(eirmax))
	if e.Coupling {
		p.Printf("  coupling  true\n")
	}
	for _, m := range flows {
		own := ""
		if m.CIRMax != nil {
			own += ", cirmax " + say.Rate(*m.CIRMax, m.Packets)
		}
		if m.EIRMax != nil {
			own += ", eirmax " + say.Rate(*m.EIRMax, m.Packets)
		}
		p.Printf("  rank %-2d %s%s\n", m.Rank, m.Name, own)
	}
}

// parameterOf returns a parameter in JSON, or two for a rate.
func parameterOf(p meter.Params, name string) []parameterJSON {
	switch v := meter.Field(p, name).(type) {
	case meter.Rate:
		return []parameterJSON{{name + "_amount", v.Bytes}, {name + "_period_ns", int64(v.Period)}}
	case time.Duration:
		return []parameterJSON{{name + "_ns", int64(v)}}
	case int64, int, uint64, bool:
		return []parameterJSON{{name, v}}
	default:
		panic(fmt.Sprintf("check: parameter %s of %v is a %T, which has no unit", name, p.Kind(), v))
	}
}

// MoreProperties returns the parameters of all meters, for the schema of the output.
func (checkMeterJSON) MoreProperties() map[string]any {
	out := map[string]any{}
	for _, k := range meter.Kinds() {
		kind := k.Info()
		for _, name := range slices.Concat(kind.Required, kind.Optional) {
			for _, p := range parameterOf(kind.Defaults, name) {
				out[p.name] = p.value
			}
		}
	}
	return out
}

// OutputType returns the type of the output of check --json.
func OutputType() reflect.Type { return reflect.TypeFor[checkJSON]() }
