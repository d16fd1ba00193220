package main

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

// kindOf names the type of a meter.
func kindOf(p dataplane.Params) string { return p.Kind().String() }

// describeMeter writes a meter's parameters in exact units.
func describeMeter(m *dataplane.Meter) string {
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
		parts = append(parts, describeBudget(m.Budget))
	}
	return strings.Join(parts, ", ")
}

// describeBudget says with whom a meter shares its budget.
func describeBudget(b *dataplane.Budget) string {
	if b.OnHost() {
		return "budget " + b.Name + " of this host"
	}
	r := b.Resolved()
	text := fmt.Sprintf("budget %s on %v, reported every %v, rescue %s of all hosts together", b.Name, shared.Server(b.Store), r.Interval, portionOf(r.Rescue))
	if r.Weight != 1 {
		text += fmt.Sprintf(", weight %d", r.Weight)
	}
	return text
}

// portionOf writes a share, exactly.
func portionOf(s dataplane.Share) string {
	r := new(big.Rat).SetFrac64(s.Num*100, s.Den)
	text := strings.TrimRight(r.FloatString(7), "0")
	return strings.TrimSuffix(text, ".") + "%"
}

// describeParams writes the parameters in the order of the table of kinds, each after
// its name. Bursts have the time that they take to fill.
func describeParams(m *dataplane.Meter) []string {
	kind := m.Params.Kind().Info()
	bursts := map[string]meter.Bucket{}
	names := map[string]string{} // CIR, but rate
	for _, b := range m.Params.Buckets() {
		bursts[strings.ToLower(b.BurstName)] = b
		names[strings.ToLower(b.RateName)], names[strings.ToLower(b.BurstName)] = b.RateName, b.BurstName
	}
	var parts []string
	for _, name := range slices.Concat(kind.Required, kind.Optional) {
		text := cmp.Or(names[name], name)
		switch v := meter.Field(m.Params, name).(type) {
		case meter.Rate:
			text += " " + describeRate(v, m.Packets)
		case int64:
			text += " " + amount(v, m.Packets)
			if kind.State == meter.StateBuckets {
				text += fmt.Sprintf(" (%s)", fillTime(v, bursts[name].Rate))
			}
		case int:
			text += fmt.Sprintf(" %d (%s)", v, memory(int64(v)*policyfile.EntryBytes))
		case bool:
			if !v {
				continue
			}
		case time.Duration:
			if v == 0 {
				continue
			}
			text += fmt.Sprintf(" %v", v)
		default:
			text += fmt.Sprintf(" %v", v)
		}
		parts = append(parts, text)
	}
	return parts
}

// describeKeys says for whom there is a meter each.
func describeKeys(m *dataplane.Meter) string {
	fresh, goes := "full", "least recently used goes"
	if m.Initial.Den != 0 {
		fresh = "empty"
	}
	if m.Idle {
		goes = "least recently used goes where it is idle"
	}
	text := fmt.Sprintf("per %v, at most %s, new ones %s, %s", m.Per, countKeys(policyfile.Keys(m)), fresh, goes)
	if n, _ := policyfile.Memory(m); n > 0 {
		text += fmt.Sprintf(" (%s of entries)", memory(n))
	}
	return text
}

func amount(n int64, packets bool) string {
	if packets {
		return fmt.Sprintf("%d p", n)
	}
	return fmt.Sprintf("%d B", n)
}

// memory writes bytes of memory, with four digits.
func memory(n int64) string { return scaled(n, 1024, "B", "KiB", "MiB", "GiB") }

// scaled writes n with four digits, in the largest unit of which it is at least one. Each
// unit is factor times the one before.
func scaled(n int64, factor float64, units ...string) string {
	v := float64(n)
	for len(units) > 1 && v >= factor {
		v, units = v/factor, units[1:]
	}
	return fmt.Sprintf("%.4g %s", v, units[0])
}

func describeRate(r meter.Rate, packets bool) string {
	if packets {
		return fmt.Sprintf("%dp/%v", r.Bytes, r.Period)
	}
	return r.String()
}

// fillTime is how long a rate takes to bring n bytes, with three digits.
func fillTime(n int64, r meter.Rate) string {
	if r.Bytes == 0 {
		return "never refills"
	}
	ns := new(big.Rat).SetFrac64(int64(r.Period), r.Bytes)
	return duration(ns.Mul(ns, new(big.Rat).SetInt64(n)))
}

// duration writes a time in ns to three digits.
func duration(ns *big.Rat) string {
	s, _ := ns.Float64()
	for _, u := range []struct {
		ns   float64
		name string
	}{{1e9, "s"}, {1e6, "ms"}, {1e3, "us"}} {
		if s >= u.ns {
			return fmt.Sprintf("%.3g %s", s/u.ns, u.name)
		}
	}
	return fmt.Sprintf("%.3g ns", s)
}

// describeMode says where a meter gets the color before.
func describeMode(m *dataplane.Meter) string {
	switch {
	case !m.Aware:
		return "color-blind"
	case m.PreColor.Map != nil:
		return fmt.Sprintf("color-aware by %v, own map", m.PreColor.From)
	}
	return fmt.Sprintf("color-aware by %v", m.PreColor.From)
}
