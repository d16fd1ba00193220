package check

import (
	"slices"
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

// checkOptionsJSON holds parameters of some types other than buckets. A limit and its window are
// also a bucket; a target rate is a bucket with the bytes it allows in the window.
type checkOptionsJSON struct {
	WindowNS int64   `json:"window_ns,omitempty"`
	Slots    int     `json:"slots,omitempty"`
	Entries  int     `json:"entries,omitempty"`
	WarmupNS int64   `json:"warmup_ns,omitempty"`
	Seed     *uint64 `json:"seed,omitempty"`
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

// checkBudgetJSON contains only a name and the store "host" if the budget belongs to this host.
type checkBudgetJSON struct {
	Name       string  `json:"name"`
	Store      string  `json:"store"` // URL without a password
	IntervalNS int64   `json:"interval_ns,omitempty"`
	Rescue     float64 `json:"rescue,omitempty"` // part of the budget, for all hosts together
	Weight     int     `json:"weight,omitempty"`
}

func budgetJSON(b *dataplane.Budget) *checkBudgetJSON {
	if b.OnHost() {
		return &checkBudgetJSON{Name: b.Name, Store: "host"}
	}
	r := b.Resolved()
	return &checkBudgetJSON{
		b.Name, shared.Server(b.Address).String(), int64(r.Interval),
		float64(r.Rescue.Num) / float64(r.Rescue.Den), r.Weight,
	}
}

func meterJSON(m *dataplane.Meter) checkMeterJSON {
	if m.Params == nil { // of customers
		return checkMeterJSON{
			Name: m.Name, Type: "plan", Aware: m.Aware, Packets: m.Packets, Buckets: []checkBucketJSON{},
		}
	}
	out := checkMeterJSON{
		Name: m.Name, Type: m.Params.Kind().String(), Aware: m.Aware, Packets: m.Packets,
		checkOptionsJSON: optionsJSON(m.Params),
	}
	for _, b := range m.Params.Buckets() {
		out.Buckets = append(out.Buckets,
			checkBucketJSON{b.BurstName, b.Burst, b.Rate.Bytes, int64(b.Rate.Period)})
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

func optionsJSON(p meter.Params) (out checkOptionsJSON) {
	kind := p.Kind().Info()
	for _, name := range slices.Concat(kind.Required, kind.Optional) {
		switch v := meter.Field(p, name); name {
		case "window":
			out.WindowNS = int64(v.(time.Duration))
		case "warmup":
			out.WarmupNS = int64(v.(time.Duration))
		case "slots":
			out.Slots = v.(int)
		case "entries":
			out.Entries = v.(int)
		case "seed":
			seed := v.(uint64)
			out.Seed = &seed
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
